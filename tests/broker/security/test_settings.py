"""TLS and SASL properties: the listeners that follow from them, and what is refused for which reason."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ballast_broker.config.broker import BrokerConfig, broker_config
from ballast_broker.config.properties_file import parse_properties
from ballast_broker.config_types import ConfigError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
TLS = {
    "node.id": "1",
    "listeners": "SSL://a:9092",
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": "/node.pem",
    "ssl.truststore.type": "PEM",
    "ssl.truststore.location": "/ca.pem",
}
SASL = {
    "node.id": "1",
    "listeners": "PLAINTEXT://a:9091,SASL_PLAINTEXT://a:9092",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} required user_alice="hush";',
}
BETWEEN = {
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
}
JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"


def config(base: dict[str, str], **changes: Any) -> BrokerConfig:
    return broker_config(base | changes)


@pytest.mark.spec("CLI-06")
def test_a_listener_may_have_properties_of_its_own() -> None:
    found = broker_config(
        TLS
        | {
            "listeners": "INSIDE://a:9091,OUTSIDE://a:9092,CONTROLLER://a:9093",
            "listener.security.protocol.map": "INSIDE:SSL,OUTSIDE:SASL_SSL,CONTROLLER:PLAINTEXT",
            "ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "connections.max.reauth.ms": "1000",
            "listener.name.outside.ssl.keystore.location": "/outside.pem",
            "listener.name.outside.connections.max.reauth.ms": "5000",
        }
    )
    assert not found.warnings
    inside, outside = found.listener_security["INSIDE"], found.listener_security["OUTSIDE"]
    assert found.listener_security["CONTROLLER"].tls is None
    assert inside.tls is not None
    assert (inside.tls.keystore.location, inside.tls.client_auth, inside.sasl) == ("/node.pem", "required", None)
    assert outside.tls is not None
    assert outside.sasl is not None
    # With SASL a certificate is asked for only by a property of that listener.
    assert (outside.tls.keystore.location, outside.tls.client_auth) == ("/outside.pem", "none")
    assert (outside.sasl.mechanisms, outside.sasl.max_reauth_ms) == (("SCRAM-SHA-256",), 5000)


@pytest.mark.spec("CLI-06")
def test_users_and_the_nodes_own_login_come_from_jaas() -> None:
    jaas = f'{PLAIN} required username="node" password="n=1;" user_node="n=1;" user_alice="a";'
    found = broker_config(SASL | BETWEEN | {JAAS: jaas})
    sasl = found.listener_security["SASL_PLAINTEXT"].sasl
    assert sasl is not None
    assert sasl.plain_users == {"node": "n=1;", "alice": "a"}
    assert sasl.own == {"PLAIN": ("node", "n=1;")}
    assert found.inter_broker_listener == "SASL_PLAINTEXT"


def test_the_listener_between_brokers_may_be_named_by_its_protocol() -> None:
    found = broker_config(TLS | {"listeners": "PLAINTEXT://a:1,SSL://a:2", "security.inter.broker.protocol": "SSL"})
    assert found.inter_broker_listener == "SSL"


def test_no_password_is_in_what_a_configuration_shows_of_itself() -> None:
    found = broker_config(SASL | {"ssl.key.password": "hush"})
    shown = repr(found) + repr(found.listener_security)
    assert "hush" not in shown


def test_a_controllers_listener_is_not_open_by_default_where_another_is_not() -> None:
    """As in Kafka: a missing setting is an error."""
    with pytest.raises(ConfigError, match=r"CONTROLLER, which listener\.security\.protocol\.map does not map"):
        broker_config(TLS | {"listeners": "SSL://a:1,CONTROLLER://a:2", "controller.quorum.voters": "1@a:2"})


@pytest.mark.parametrize(
    "where", [{"controller.quorum.voters": "9@c:1"}, {"controller.quorum.bootstrap.servers": "c:1"}]
)
def test_how_controllers_are_reached_must_be_said_by_a_broker_as_well(where: dict[str, str]) -> None:
    broker = {"process.roles": "broker", "controller.listener.names": "QUORUM"} | where
    with pytest.raises(ConfigError, match=r"names QUORUM, which listener\.security\.protocol\.map does not map"):
        broker_config(TLS | broker)
    explicit = {"listener.security.protocol.map": "SSL:SSL,QUORUM:SSL"}
    security = broker_config(TLS | broker | explicit).listener_security["QUORUM"]
    assert security.protocol == "SSL"
    assert security.tls is not None


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ssl.keystore.type": "BCFKS"}, "BCFKS for configuration ssl.keystore.type: there are PEM, JKS, PKCS12"),
        ({"ssl.truststore.type": "BCFKS"}, "BCFKS for configuration ssl.truststore.type: there are PEM, JKS, PKCS12"),
        ({"ssl.keystore.type": "pkcs12"}, "ssl.keystore.password is missing: a keystore of type pkcs12 has one"),
        ({"ssl.keystore.password": "hush"}, "ssl.keystore.password is set"),
        ({"ssl.truststore.password": "hush"}, "ssl.truststore.password is set"),
        ({"ssl.keystore.key": "hush"}, "are both set"),
        ({"ssl.keystore.certificate.chain": "hush"}, "are both set"),
        ({"ssl.truststore.certificates": "hush"}, "are both set"),
        (
            {"ssl.truststore.type": "JKS", "ssl.truststore.certificates": "hush", "ssl.truststore.location": ""},
            "ssl.truststore.certificates is PEM, and ssl.truststore.type is JKS: set it to PEM",
        ),
        ({"ssl.client.auth": "perhaps"}, "configuration ssl.client.auth: String must be one of: required, requested"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "configuration ssl.enabled.protocols: String must be one of: TLSv1.2"),
        ({"ssl.enabled.protocols": "TLSv1.3", "ssl.protocol": "TLSv1.2"}, "no version of TLS in common"),
        ({"ssl.principal.mapping.rules": "RULE:x"}, "configuration ssl.principal.mapping.rules: Invalid rule"),
        ({"listener.name.ssl.ssl.client.auth": "x"}, "configuration listener.name.ssl.ssl.client.auth"),
        ({"security.inter.broker.protocol": "SSL", "inter.broker.listener.name": "SSL"}, "both set"),
        ({"listener.security.protocol.map": "SSL:TLS"}, "gives SSL TLS: there are PLAINTEXT, SSL"),
        ({"listeners": "SASL_SSL://a:9092"}, "sasl_ssl.gssapi.sasl.jaas.config is missing"),
        ({"listeners": "SASL_SSL://a:9092", "sasl.enabled.mechanisms": "OAUTHBEARER"}, "jwks.endpoint.url is missing"),
    ],
)  # fmt: skip
def test_what_cannot_be_of_tls(changes: dict[str, str], says: str) -> None:
    _refused(TLS | changes, says)


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({JAAS: f'{PLAIN} required user_alice="hush"'}, f"[hidden] for configuration {JAAS}: JAAS config entry not"),
        ({JAAS: f"{SCRAM} required;"}, f"the login module of PLAIN is {PLAIN}"),
        ({JAAS: f'{PLAIN} required serviceName="hush";'}, "option serviceName is not known here"),
        ({JAAS: f'{PLAIN} required username="node";'}, "username and password go together"),
        (
            {"sasl.enabled.mechanisms": "DIGEST-MD5"},
            "Invalid value DIGEST-MD5 for configuration sasl.enabled.mechanisms: there are",
        ),
        (BETWEEN, f"{JAAS} has no username and password"),
        (
            BETWEEN | {"sasl.mechanism.inter.broker.protocol": "DIGEST-MD5"},
            "sasl.mechanism.inter.broker.protocol: there are",
        ),
        (BETWEEN | {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"}, "which sasl.enabled.mechanisms of"),
        (
            {
                "listeners": "PLAINTEXT://a:1,SASL_PLAINTEXT://a:2",
                "controller.listener.names": "SASL_PLAINTEXT",
                "controller.quorum.voters": "1@a:2",
                "sasl.mechanism.controller.protocol": "SCRAM-SHA-512",
            },
            "which controllers have only once they know each other; use PLAIN",
        ),
        (
            {
                "listeners": "PLAINTEXT://a:1,SASL_PLAINTEXT://a:2",
                "controller.listener.names": "SASL_PLAINTEXT",
                "controller.quorum.bootstrap.servers": "a:2,b:2",
                "sasl.mechanism.controller.protocol": "PLAIN",
            },
            f"{JAAS} has no username and password",
        ),
    ],
)
def test_what_cannot_be_of_sasl(changes: dict[str, str], says: str) -> None:
    _refused(SASL | changes, says)


def _refused(properties: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)) as refused:
        broker_config(properties)
    assert "hush" not in str(refused.value)


def test_plain_without_users_is_refused() -> None:
    properties = dict(SASL)
    del properties[JAAS]
    _refused(properties, f"{JAAS} is missing: it names the users that may log in by PLAIN")


def test_what_kafka_ignores_is_told() -> None:
    found = broker_config(SASL | {"sasl.jaas.config": "hush"})
    assert found.warnings == (
        "property sasl.jaas.config has no effect: name it listener.name.LISTENER.MECHANISM.sasl.jaas.config",
    )


def test_a_value_may_have_what_java_escapes() -> None:
    text = 'a=one \\\n  two\\\n# three\nb=C:\\\\x\\u00e9\\n\\t"\\"\nc=ends\\\\\nd=1'
    assert parse_properties(text) == {"a": "one two# three", "b": 'C:\\xé\n\t""', "c": "ends\\", "d": "1"}
