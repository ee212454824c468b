"""What the schema of KafkaCluster refuses of TLS, authentication and rights, by itself and at once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_local.rules import RuleSet
from ballast_local.schema import apply_defaults, validate

ROOT = Path(__file__).parents[2]
CRD = yaml.safe_load((ROOT / "crds" / "kafkaclusters.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
RULES = RuleSet({"type": "object", "properties": {"spec": SCHEMA}})
TLS = {"secretName": "clients"}
INSIDE = {"internal": {"tls": {"secretName": "inside"}}}
RIGHTS = {**INSIDE, "authorization": {"type": "Simple", "superUsers": ["admin", "CN=admin,O=example"]}}


def messages(**spec: Any) -> list[str]:
    whole = {"volumes": [{"name": "a", "size": "1Gi"}], **copy.deepcopy(spec)}
    apply_defaults(SCHEMA, whole)
    return refused(whole)


def refused(spec: dict[str, Any]) -> list[str]:
    causes = validate(SCHEMA, spec, "spec") or RULES.check({"spec": spec}, None)
    return [cause["message"] for cause in causes]


def listener(name: str = "CLIENTS", port: int = 9092, **more: Any) -> dict[str, Any]:
    return {"name": name, "port": port, **more}


@pytest.mark.spec("OPR-01", "OPR-40")
@pytest.mark.parametrize(
    "spec",
    [
        {"listeners": [listener(), listener("B", 9094, tls=TLS, authentication={"type": "TLS"})]},
        {"listeners": [listener(tls=TLS, authentication={"type": "SCRAM-SHA-512"})], "security": INSIDE},
        {"listeners": [listener(authentication={"type": "SCRAM-SHA-256"})], "security": RIGHTS},
        {"config": {"ssl.cipher.suites": "x", "listener.name.clients.connections.max.reauth.ms": 5}},
        {"config": {"allow.everyone.if.no.acl.found": "true", "ssl.endpoint.identification.algorithm": ""}},
    ],
)
def test_what_is_right_passes(spec: dict[str, Any]) -> None:
    assert messages(**spec) == []


@pytest.mark.spec("OPR-01", "OPR-40")
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"listeners": [listener(), listener("B", 9094, authentication={"type": "TLS"})]}, "needs tls with a secret"),
        ({"listeners": [listener(tls=TLS)]}, "put a plain one first, or set security.internal"),
        ({"listeners": [listener(authentication={"type": "SCRAM-SHA-512"})]}, "put a plain one first"),
        ({"listeners": [listener("INTERNAL")], "security": INSIDE}, "belong to the brokers"),
        ({"listeners": [listener(port=9091)], "security": INSIDE}, "belong to the brokers"),
        ({"listeners": [listener(authentication={"type": "PLAIN"})], "security": INSIDE}, 'Unsupported value: "PLAIN"'),
        ({"security": {"authorization": {"type": "Simple"}}}, "Required value"),
        ({"security": {**INSIDE, "authorization": {"type": "Simple", "superUsers": ["a;b"]}}}, "should match"),
        ({"volumes": [{"name": "tls-internal", "size": "1Gi"}]}, "are kept for Secrets"),
        ({"config": {"super.users": "User:a"}}, "are said in spec.listeners and spec.security"),
        ({"config": {"authorizer.class.name": "x"}}, "are said in spec.listeners and spec.security"),
        ({"config": {"listener.name.a.ssl.keystore.location": "/x"}}, "are said in spec.listeners"),
        ({"config": {"listener.name.a.scram-sha-512.sasl.jaas.config": "x"}}, "are said in spec.listeners"),
        ({"config": {"ssl.client.auth": "none"}}, "are said in spec.listeners"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_what_to_do(spec: dict[str, Any], words: str) -> None:
    said = messages(**spec)
    assert any(words in one for one in said), said


@pytest.mark.spec("OPR-01", "OPR-40")
def test_a_cluster_elsewhere_says_what_it_wants_elsewhere() -> None:
    spec = {"external": {"bootstrapServers": "kafka:9093"}, "security": copy.deepcopy(INSIDE)}
    apply_defaults(SCHEMA, spec)
    assert ["external.tls and external.sasl" in message for message in refused(spec)] == [True]
