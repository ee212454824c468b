"""What the schema of KafkaCluster refuses of TLS, authentication and rights, by itself and at once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.docs.commands import block

from ballast_local.rules import RuleSet
from ballast_local.schema import apply_defaults, validate
from ballast_operator.model.cluster import Listener
from ballast_operator.model.fields import read, write

ROOT = Path(__file__).parents[2]
CRD = yaml.safe_load((ROOT / "crds" / "kafkaclusters.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
RULES = RuleSet({"type": "object", "properties": {"spec": SCHEMA}})
TLS = {"secretName": "clients"}
INSIDE = {"internal": {"tls": {"secretName": "inside"}}}
DELEGATED: dict[str, Any] = {**INSIDE, "delegationTokens": {"secretName": "tokens"}}
RIGHTS = {**INSIDE, "authorization": {"type": "Simple", "superUsers": ["admin", "CN=admin,O=example"]}}
OAUTH = {"jwksEndpointUri": "https://issuer.example/keys", "issuer": "https://issuer.example"}


def messages(**spec: Any) -> list[str]:
    whole = {"volumes": [{"name": "a", "size": "1Gi"}], **copy.deepcopy(spec)}
    apply_defaults(SCHEMA, whole)
    return refused(whole)


def refused(spec: dict[str, Any]) -> list[str]:
    causes = validate(SCHEMA, spec, "spec") or RULES.check({"spec": spec}, None)
    return [cause["message"] for cause in causes]


def listener(name: str = "CLIENTS", port: int = 9092, **more: Any) -> dict[str, Any]:
    return {"name": name, "port": port, **more}


def outside(*firsts: int) -> list[dict[str, Any]]:
    ports = [{"host": "node.example", "first": first} for first in firsts]
    return [listener(f"OUTSIDE{at}", 9095 + at, nodePorts=each) for at, each in enumerate(ports)]


def tokens(name: str = "TOKENS", **changes: Any) -> dict[str, Any]:
    return listener(name, 9096, authentication={"type": "OAUTHBEARER", "oauth": OAUTH | changes})


@pytest.mark.spec("OPR-01", "OPR-40")
@pytest.mark.parametrize(
    "spec",
    [
        {"listeners": [listener(), listener("B", 9094, tls=TLS, authentication={"type": "TLS"})]},
        {"listeners": [listener(tls=TLS, authentication={"type": "SCRAM-SHA-512"})], "security": INSIDE},
        {"listeners": [listener(authentication={"type": "SCRAM-SHA-256"})], "security": RIGHTS},
        {
            "listeners": [listener(), listener("SCRAM", 9095, authentication={"type": "SCRAM-SHA-512"})],
            "security": DELEGATED,
        },
        {"listeners": [listener(), tokens()]},
        {"listeners": [tokens() | {"tls": TLS}], "security": RIGHTS},
        {"brokers": 3, "listeners": [listener(), *outside(32003, 32000)]},
        {"listeners": [listener(port=9404)], "metrics": {"port": 9091}},
        {
            "listeners": [
                listener(),
                tokens(audiences=["kafka", "https://kafka.example"], userNameClaim="email", tls=TLS),
            ]
        },
        {"listeners": [listener(), tokens(jwksEndpointUri="http://10.0.0.1:65535/keys?of=[all]")]},
        {"listeners": [listener(), tokens("TOKENS_")]},
        {"config": {"listener.name.tokens.sasl.oauthbearer.clock.skew.seconds": 5}},
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
        ({"listeners": [listener(authentication={"type": "GSSAPI"})], "security": INSIDE}, '"SCRAM-SHA-512", "OAUTH'),
        ({"security": {"authorization": {"type": "Simple"}}}, "Required value"),
        ({"security": {**INSIDE, "authorization": {"type": "Simple", "superUsers": ["a;b"]}}}, "should match"),
        ({"volumes": [{"name": "tls-internal", "size": "1Gi"}]}, "are kept for Secrets"),
        ({"listeners": [listener(port=9404)]}, "Metrics need a port of their own"),
        ({"listeners": [listener(port=9500)], "metrics": {"port": 9500}}, "Metrics need a port of their own"),
        ({"metrics": {"port": 9093}}, "Metrics need a port of their own"),
        ({"metrics": {"port": 9091}, "security": INSIDE}, "Metrics need a port of their own"),
        ({"brokers": 3, "listeners": [listener(), *outside(32000, 32002)]}, "leave as many between two listeners"),
        ({"brokers": 3, "listeners": [listener(), *outside(32002, 32000)]}, "leave as many between two listeners"),
        ({"security": DELEGATED}, "give a listener authentication of type SCRAM"),
        ({"config": {"config.providers": "env"}}, "remove config.providers here"),
        ({"config": {"config.providers.env.class": "x"}}, "remove config.providers here"),
        ({"config": {"delegation.token.secret.key": "x"}}, "name that in spec.security.delegationTokens"),
        ({"config": {"super.users": "User:a"}}, "are said in spec.listeners and spec.security"),
        ({"config": {"authorizer.class.name": "x"}}, "are said in spec.listeners and spec.security"),
        ({"config": {"listener.name.a.ssl.keystore.location": "/x"}}, "are said in spec.listeners"),
        ({"config": {"listener.name.a.scram-sha-512.sasl.jaas.config": "x"}}, "are said in spec.listeners"),
        ({"config": {"ssl.client.auth": "none"}}, "are said in spec.listeners"),
        ({"listeners": [tokens()]}, "put a plain one first, or set security.internal"),
        ({"listeners": [listener(), listener("B", 9094, authentication={"type": "OAUTHBEARER"})]}, "needs oauth"),
        ({"listeners": [listener(), listener("B", 9094, tls=TLS, authentication={"type": "TLS", "oauth": OAUTH})]},
         "the other types go without it"),
        ({"listeners": [listener(), tokens(issuer=None)]}, "Required value"),
        ({"listeners": [listener(), tokens(jwksEndpointUri=None)]}, "Required value"),
        ({"listeners": [listener(), tokens(jwksEndpointUri="file:///etc/keys.json")]}, "should match"),
        ({"listeners": [listener(), tokens(jwksEndpointUri="https://")]}, "should match"),
        ({"listeners": [listener(), tokens(jwksEndpointUri="https:///keys")]}, "Write https://HOST:PORT/PATH"),
        ({"listeners": [listener(), tokens(jwksEndpointUri="https://me:x@issuer/")]}, "Write https://HOST:PORT/PATH"),
        ({"listeners": [listener(), tokens(jwksEndpointUri="https://issuer:65536/")]}, "a port up to 65535"),
        ({"listeners": [listener(), tokens(jwksEndpointUri="https://issuer/a b")]}, "should match"),
        ({"listeners": [listener(), tokens(jwksEndpointUri="http://issuer/keys", tls=TLS)]}, "or remove oauth.tls"),
        ({"listeners": [listener(), tokens(audiences=[])]}, "at least 1 item"),
        ({"listeners": [listener(), tokens(audiences=["a,b"])]}, "should match"),
        ({"listeners": [listener(), tokens(userNameClaim="")]}, "at least 1 char"),
        ({"listeners": [listener(), tokens("TOKENS_", tls=TLS)]}, "cannot end with an underscore"),
        ({"config": {"listener.name.tokens.oauthbearer.sasl.oauthbearer.expected.audience": "x"}}, "said in spec.list"),
        ({"config": {"sasl.oauthbearer.jwks.endpoint.url": "x"}}, "are said in spec.listeners"),
        ({"config": {"listener.name.tokens.sasl.oauthbearer.sub.claim.name": "x"}}, "are said in spec.listeners"),
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


@pytest.mark.spec("OPR-01", "OPR-40")
def test_the_listener_for_tokens_on_the_page_is_taken_with_all_that_it_says() -> None:
    (shown,) = yaml.safe_load(block("docs/kubernetes.md", "- name: TOKENS"))
    assert messages(listeners=[listener(), shown]) == []
    assert write(read(Listener, shown, "listener")) == shown


def elsewhere(mechanism: str = "OAUTHBEARER", **oauth: Any) -> list[str]:
    """What is said of a cluster elsewhere, to which the operator goes so."""
    sasl = {"mechanism": mechanism, "secretName": "client"} | ({"oauth": oauth} if oauth else {})
    spec = {"external": {"bootstrapServers": "kafka:9093", "sasl": sasl}}
    apply_defaults(SCHEMA, spec)
    return refused(spec)


@pytest.mark.spec("OPR-01", "OPR-40")
def test_a_cluster_elsewhere_may_want_tokens() -> None:
    uri = {"tokenEndpointUri": "https://issuer.example/token"}
    assert elsewhere(**uri) == []
    assert elsewhere(**uri, scope="kafka a/b", tls={"secretName": "issuer"}) == []
    for said, words in (
        (elsewhere(), "needs oauth, which says where the token is to be had"),
        (elsewhere("PLAIN", **uri), "the others go without it"),
        (elsewhere(scope="kafka"), "Required value"),
        (elsewhere(tokenEndpointUri="file:///var/run/secrets/token"), "should match"),
        (elsewhere(tokenEndpointUri="https://me:x@issuer/token"), "Write https://HOST:PORT/PATH"),
        (elsewhere(tokenEndpointUri="http://issuer/token", tls={"secretName": "issuer"}), "or remove oauth.tls"),
        (elsewhere(**uri, scope=" kafka"), "should match"),
    ):
        assert any(words in one for one in said), (words, said)
