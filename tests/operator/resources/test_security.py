"""Encryption, authentication and rights of a cluster: what its nodes are told, and what their pods mount."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.operator.making import cluster

from ballast_broker.config.broker import broker_config
from ballast_broker.config.properties_file import parse_properties
from ballast_broker.security.oauth_settings import TokenRules
from ballast_operator.resources import others, pods, security
from ballast_operator.resources.layout import Layout, new_identity
from ballast_operator.resources.names import BROKER_ROLE, CONTROLLER_ROLE, PRINCIPAL, TOKENS
from ballast_operator.resources.properties import config_map_data, config_map_name

pytestmark = pytest.mark.spec("OPR-40")
INSIDE = {"internal": {"tls": {"secretName": "inside"}}}
RIGHTS = {**INSIDE, "authorization": {"type": "Simple", "superUsers": ["admin", "CN=inside"]}}
LISTENERS = [
    {"name": "SCRAM", "port": 9092, "tls": {"secretName": "clients"}, "authentication": {"type": "SCRAM-SHA-256"}},
    {"name": "BY_CERT", "port": 9095, "tls": {"secretName": "clients"}, "authentication": {"type": "TLS"}},
    {"name": "OPEN", "port": 9096},
    {"name": "PASSWORD", "port": 9097, "authentication": {"type": "SCRAM-SHA-512"}},
    {"name": "ENCRYPTED", "port": 9098, "tls": {"secretName": "outside"}, "nodePorts": {"host": "n", "first": 32000}},
]


OAUTH = {"jwksEndpointUri": "https://issuer.example/keys?x=1", "issuer": "https://issuer.example"}
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


def with_tokens(name: str = "TOKENS", **changes: Any) -> dict[str, Any]:
    return {"name": name, "port": 9096, "authentication": {"type": "OAUTHBEARER", "oauth": OAUTH | changes}}


def layout(principal: str = "CN=inside", **spec: Any) -> Layout:
    subject = cluster(brokers=3, **spec)
    identity = new_identity(subject, "cluster-id")
    return Layout(subject, identity, 3, subject.spec.volumes, principal=principal)


def properties(found: Layout, pod: str) -> dict[str, str]:
    text = config_map_data(found, 3 if found.identity.dedicated else 0)[f"{pod}.properties"]
    return dict(line.split("=", 1) for line in text.splitlines())


def pod_spec(found: Layout, role: str) -> dict[str, Any]:
    spec: dict[str, Any] = pods.pod_template(found, role)["spec"]
    return spec


def secrets_of(spec: dict[str, Any]) -> dict[str, str]:
    """Mount path → Secret."""
    held = {volume["name"]: volume["secret"] for volume in spec["volumes"] if "secret" in volume}
    assert all(secret["defaultMode"] == 0o440 for secret in held.values())
    mounted = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] in held]
    assert all(mount["readOnly"] for mount in mounted)
    return {mount["mountPath"]: held[mount["name"]]["secretName"] for mount in mounted}


def test_nodes_have_a_listener_of_their_own_for_which_both_sides_show_the_one_certificate() -> None:
    found = layout(security=INSIDE)
    told = properties(found, "demo-1")
    assert told["inter.broker.listener.name"] == "INTERNAL"
    assert told["listener.security.protocol.map"] == "INTERNAL:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:SSL"
    assert told["advertised.listeners"].split(",") == [
        "INTERNAL://demo-1.demo-brokers.default.svc:9091",
        "PLAINTEXT://demo-1.demo-brokers.default.svc:9092",
    ]
    for listener in ("internal", "controller"):
        assert {key: value for key, value in told.items() if key.startswith(f"listener.name.{listener}.")} == {
            f"listener.name.{listener}.ssl.client.auth": "required",
            f"listener.name.{listener}.ssl.keystore.type": "PEM",
            f"listener.name.{listener}.ssl.keystore.location": "/etc/ballast-tls/tls-internal",
            f"listener.name.{listener}.ssl.truststore.type": "PEM",
            f"listener.name.{listener}.ssl.truststore.location": "/etc/ballast-tls/tls-internal/ca.crt",
        }
    assert "authorizer.class.name" not in told
    spec = pod_spec(found, BROKER_ROLE)
    assert secrets_of(spec) == {"/etc/ballast-tls/tls-internal": "inside"}
    (container,) = spec["containers"]
    assert container["args"][1].startswith("listeners=INTERNAL://$(POD_IP):9091,PLAINTEXT://$(POD_IP):9092,CONTROLLER")
    assert {"name": "kafka", "containerPort": 9091} in container["ports"]
    (port,) = others.bootstrap_service(found.cluster)["spec"]["ports"]
    assert port["port"] == 9092
    assert others.headless_service(found.cluster)["spec"]["ports"][0]["port"] == 9091


def test_each_listener_asks_of_clients_what_the_spec_says() -> None:
    found = layout(security=INSIDE, listeners=LISTENERS)
    told = properties(found, "demo-0")
    assert dict(pair.split(":") for pair in told["listener.security.protocol.map"].split(",")) == {
        "INTERNAL": "SSL",
        "SCRAM": "SASL_SSL",
        "BY_CERT": "SSL",
        "OPEN": "PLAINTEXT",
        "PASSWORD": "SASL_PLAINTEXT",
        "ENCRYPTED": "SSL",
        "CONTROLLER": "SSL",
    }
    assert told["listener.name.scram.sasl.enabled.mechanisms"] == "SCRAM-SHA-256"
    assert told["listener.name.scram.scram-sha-256.sasl.jaas.config"].endswith("ScramLoginModule required;")
    assert told["listener.name.password.sasl.enabled.mechanisms"] == "SCRAM-SHA-512"
    assert told["listener.name.scram.ssl.client.auth"] == "none"
    assert told["listener.name.by_cert.ssl.client.auth"] == "required"
    assert told["listener.name.by_cert.ssl.truststore.location"] == "/etc/ballast-tls/tls-by-cert/ca.crt"
    assert not any(key.startswith(("listener.name.open.", "listener.name.password.ssl")) for key in told)
    assert secrets_of(pod_spec(found, BROKER_ROLE)) == {
        "/etc/ballast-tls/tls-internal": "inside",
        "/etc/ballast-tls/tls-scram": "clients",
        "/etc/ballast-tls/tls-by-cert": "clients",
        "/etc/ballast-tls/tls-encrypted": "outside",
    }
    assert security.keys_needed(found.cluster) == {
        "inside": {"tls.crt", "tls.key", "ca.crt"},
        "clients": {"tls.crt", "tls.key", "ca.crt"},
        "outside": {"tls.crt", "tls.key"},
    }
    ports = others.bootstrap_service(found.cluster)["spec"]["ports"]
    assert [(port["name"], port["port"]) for port in ports] == [
        ("kafka", 9092),
        ("kafka-2", 9095),
        ("kafka-3", 9096),
        ("kafka-4", 9097),
    ]


def test_a_listener_for_tokens_is_told_the_issuer_the_audiences_and_the_claim() -> None:
    oauth: dict[str, Any] = {"audiences": ["kafka", "shop"], "userNameClaim": "email", "tls": {"secretName": "issuer"}}
    found = layout(listeners=[{"name": "OPEN", "port": 9092}, with_tokens(**oauth)])
    told = properties(found, "demo-0")
    prefix = "listener.name.tokens."
    authorities = "/etc/ballast-tls/tls-0-tokens/ca.crt"
    assert {key.removeprefix(prefix): value for key, value in told.items() if key.startswith(prefix)} == {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "oauthbearer.sasl.jaas.config": (
            f'{MODULE} required ssl.truststore.type="PEM" ssl.truststore.location="{authorities}";'
        ),
        "sasl.oauthbearer.jwks.endpoint.url": "https://issuer.example/keys?x=1",
        "sasl.oauthbearer.expected.issuer": "https://issuer.example",
        "sasl.oauthbearer.expected.audience": "kafka,shop",
        "sasl.oauthbearer.sub.claim.name": "email",
    }
    text = config_map_data(found, 0)["demo-0.properties"]
    addresses = {"listeners": "OPEN://demo-0:9092,TOKENS://demo-0:9096,CONTROLLER://demo-0:9093"}
    config = broker_config(parse_properties(text) | addresses)
    assert not config.warnings
    listener = config.listener_security["TOKENS"]
    assert listener.protocol == "SASL_PLAINTEXT"
    assert listener.sasl is not None
    assert listener.sasl.oauth is not None
    assert listener.sasl.oauth.rules == TokenRules(
        frozenset({"kafka", "shop"}), "https://issuer.example", name_claim="email"
    )
    assert listener.sasl.oauth.own is None
    spec = pod_spec(found, BROKER_ROLE)
    assert secrets_of(spec) == {"/etc/ballast-tls/tls-0-tokens": "issuer"}
    (volume,) = (one for one in spec["volumes"] if "secret" in one)
    assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}], "no key that lies beside it"
    assert security.keys_needed(found.cluster) == {"issuer": {"ca.crt"}}


def test_what_is_not_said_of_tokens_is_as_with_the_broker_and_needs_no_secret() -> None:
    found = layout(listeners=[{"name": "OPEN", "port": 9092}, with_tokens()])
    told = properties(found, "demo-0")
    assert told["listener.name.tokens.oauthbearer.sasl.jaas.config"] == f"{MODULE} required;"
    assert told["listener.name.tokens.sasl.oauthbearer.sub.claim.name"] == "sub"
    assert not any("audience" in key for key in told)
    assert security.keys_needed(found.cluster) == {}
    assert secrets_of(pod_spec(found, BROKER_ROLE)) == {}


def test_secrets_for_tokens_are_mounted_beside_those_of_certificates_and_not_in_controllers() -> None:
    """Even where a listener has a name like that of a volume, and a Secret is used twice."""
    issuer = {"tls": {"secretName": "clients"}}
    listeners = [{**with_tokens("A", **issuer), **issuer}, {**with_tokens("A_0", **issuer), "port": 9097}]
    found = layout(security=INSIDE, listeners=listeners, controllers={"mode": "Dedicated", "count": 3})
    assert secrets_of(pod_spec(found, BROKER_ROLE)) == {
        "/etc/ballast-tls/tls-internal": "inside",
        "/etc/ballast-tls/tls-a": "clients",
        "/etc/ballast-tls/tls-0-a": "clients",
        "/etc/ballast-tls/tls-0-a-0": "clients",
    }
    assert security.keys_needed(found.cluster)["clients"] == {"tls.crt", "tls.key", "ca.crt"}
    protocols = dict(pair.split(":") for pair in security.protocol_map(found.cluster).split(","))
    assert (protocols["A"], protocols["A_0"]) == ("SASL_SSL", "SASL_PLAINTEXT")
    assert secrets_of(pod_spec(found, CONTROLLER_ROLE)) == {"/etc/ballast-tls/tls-internal": "inside"}
    assert not any("oauthbearer" in key for key in properties(found, "demo-controller-0"))


@pytest.mark.parametrize(
    "change",
    [
        {"jwksEndpointUri": "https://other.example/keys"},
        {"issuer": "https://other.example"},
        {"audiences": ["shop"]},
        {"userNameClaim": "email"},
        {"tls": {"secretName": "issuer"}},
    ],
)
def test_another_rule_for_tokens_restarts_brokers(change: dict[str, Any]) -> None:
    before, after = (layout(security=INSIDE, listeners=[with_tokens(**one)]) for one in ({}, change))
    assert config_map_name(before) != config_map_name(after)
    assert pods.revision(before, BROKER_ROLE) != pods.revision(after, BROKER_ROLE)


def test_another_authentication_restarts_brokers_and_a_renewed_secret_does_not() -> None:
    listener = {"name": "SCRAM", "port": 9092, "authentication": {"type": "SCRAM-SHA-256"}}
    other = {**listener, "authentication": {"type": "SCRAM-SHA-512"}}
    before, after = (layout(security=INSIDE, listeners=[one]) for one in (listener, other))
    assert config_map_name(before) != config_map_name(after)
    assert pods.revision(before, BROKER_ROLE) != pods.revision(after, BROKER_ROLE)
    renewed = layout("CN=another", security=INSIDE, listeners=[listener])
    assert pods.revision(before, BROKER_ROLE) == pods.revision(renewed, BROKER_ROLE)


def test_the_nodes_are_super_users_without_being_named() -> None:
    found = layout(security=RIGHTS)
    told = properties(found, "demo-0")
    assert told["authorizer.class.name"] == "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    assert told["super.users"] == "User:CN=inside;User:admin"
    assert pods.stateful_set(found, BROKER_ROLE)["metadata"]["annotations"][PRINCIPAL] == "CN=inside"


def test_names_and_values_come_to_the_nodes_as_they_were_given() -> None:
    """A company with a comma in its name made its brokers nobody: they were no super users."""
    names, value = (r"CN=broker,O=Shop\, Ltd", r"CN=größe \#1"), "a\\tb\nnode.id=7\t\\"
    rights = {**RIGHTS, "authorization": {"type": "Simple", "superUsers": [names[1]]}}
    for mode in ("Combined", "Dedicated"):
        found = layout(names[0], security=rights, config={"any": value}, controllers={"mode": mode, "count": 3})
        files = config_map_data(found, 3 if found.identity.dedicated else 0)
        for text in files.values():
            read = parse_properties(text)
            assert (read["super.users"], read["any"]) == (f"User:{names[0]};User:{names[1]}", value)
        assert parse_properties(files["demo-1.properties"])["node.id"] == "1"


def test_controllers_are_told_the_same_and_are_given_no_secret_of_clients() -> None:
    found = layout(security=RIGHTS, listeners=LISTENERS, controllers={"mode": "Dedicated", "count": 3})
    told = properties(found, "demo-controller-2")
    assert told["listener.name.controller.ssl.client.auth"] == "required"
    assert told["super.users"] == "User:CN=inside;User:admin"
    assert not any(key.startswith("listener.name.scram.") for key in told)
    assert secrets_of(pod_spec(found, CONTROLLER_ROLE)) == {"/etc/ballast-tls/tls-internal": "inside"}


def test_a_certificate_has_to_have_the_names_of_all_nodes_that_are_wanted_or_there() -> None:
    fewer = cluster(brokers=2, controllers={"mode": "Dedicated", "count": 1})
    pods_of = [name.partition(".")[0] for name in security.hosts(fewer, 3, 3)]
    assert pods_of == [f"demo-{n}" for n in range(3)] + [f"demo-controller-{n}" for n in range(3)]
    pods_of = [name.partition(".")[0] for name in security.hosts(fewer, 0)]
    assert pods_of == ["demo-0", "demo-1", "demo-controller-0"]


def test_without_any_of_it_nothing_is_mounted_and_nothing_said() -> None:
    found = layout("")
    assert secrets_of(pod_spec(found, BROKER_ROLE)) == {}
    assert not any(key.startswith("listener.name.") for key in properties(found, "demo-0"))
    assert properties(found, "demo-0")["inter.broker.listener.name"] == "PLAINTEXT"


def test_all_nodes_find_the_secret_of_delegation_tokens_in_a_file_and_nowhere_else() -> None:
    """Neither a ConfigMap nor the environment nor a set has it; without it nothing is as it would not have been."""
    security_spec = {**INSIDE, "delegationTokens": {"secretName": "tokens"}}
    spec: dict[str, Any] = {"listeners": LISTENERS[:2], "controllers": {"mode": "Dedicated"}}
    found = replace(layout(security=security_spec, **spec), tokens="stand-in")
    plain = layout(security=INSIDE, **spec)
    for role, pod in ((BROKER_ROLE, "demo-0"), (CONTROLLER_ROLE, "demo-controller-0")):
        told = properties(found, pod)
        reference = "${secret:/etc/ballast-tls/tls-1-delegation:secretKey}"
        assert told["delegation.token.secret.key"] == reference
        template = pods.pod_template(found, role)
        assert secrets_of(template["spec"])["/etc/ballast-tls/tls-1-delegation"] == "tokens"
        (volume,) = [one for one in template["spec"]["volumes"] if one["name"] == "tls-1-delegation"]
        assert volume["secret"]["items"] == [{"key": "secretKey", "path": "secretKey"}]
        assert template["metadata"]["annotations"][TOKENS] == "stand-in"
        assert TOKENS not in pods.pod_template(plain, role)["metadata"]["annotations"]
        assert not any(name.startswith("config.providers") for name in properties(plain, pod))
    assert security.keys_needed(found.cluster)["tokens"] == {"secretKey"}


def test_another_secret_of_delegation_tokens_restarts_brokers_and_controllers() -> None:
    found = layout(security={**INSIDE, "delegationTokens": {"secretName": "tokens"}}, listeners=LISTENERS[:1])
    one, other = replace(found, tokens="one"), replace(found, tokens="other")
    for role in (BROKER_ROLE, CONTROLLER_ROLE):
        assert pods.revision(one, role) != pods.revision(other, role)
    assert config_map_name(one) == config_map_name(other)


def test_a_node_reads_the_secret_from_the_file_that_is_mounted(tmp_path: Path) -> None:
    found = layout(security={**INSIDE, "delegationTokens": {"secretName": "tokens"}}, listeners=LISTENERS[:1])
    text = config_map_data(found, 0)["demo-0.properties"].replace("/etc/ballast-tls", str(tmp_path))
    (tmp_path / "tls-1-delegation").mkdir()
    (tmp_path / "tls-1-delegation" / "secretKey").write_text("long and random\n")
    assert parse_properties(text)["config.providers"] == "secret"
    config = broker_config(parse_properties(text), ["listeners=INTERNAL://:9091,SCRAM://:9092,CONTROLLER://:9093"])
    assert config.delegation_token_secret == b"long and random"
    assert config.warnings == ()
