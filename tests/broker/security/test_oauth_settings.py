"""OAUTHBEARER properties with Apache Kafka's names: their effects, and what is refused for which reason."""

from __future__ import annotations

import re

import pytest

from ballast_broker.config.broker import broker_config
from ballast_broker.config_types import ConfigError
from ballast_broker.security.oauth_settings import OauthSettings, TokenRules

pytestmark = pytest.mark.spec("CLI-06")
PACKAGE = "org.apache.kafka.common.security.oauthbearer."
MODULE = f"{PACKAGE}OAuthBearerLoginModule"
JAAS = "listener.name.open.oauthbearer.sasl.jaas.config"
JWKS, TOKENS = "sasl.oauthbearer.jwks.endpoint.url", "sasl.oauthbearer.token.endpoint.url"
SECRET = "sasl.oauthbearer.client.credentials.client.secret"
BASE = {
    "node.id": "1",
    "listeners": "PLAINTEXT://a:9091,OPEN://a:9092",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OPEN:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    JWKS: "https://issuer.example/keys?x=1",
}
OWN = {
    "inter.broker.listener.name": "OPEN",
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    TOKENS: "http://issuer.example:8080/token",
    "sasl.oauthbearer.client.credentials.client.id": "node",
    SECRET: "hush",
}


def settings(properties: dict[str, str], listener: str = "OPEN") -> OauthSettings:
    found = broker_config(properties)
    assert not found.warnings
    assert "hush" not in repr(found) + repr(found.listener_security)
    sasl = found.listener_security[listener].sasl
    assert sasl is not None
    assert sasl.oauth is not None
    return sasl.oauth


def test_what_is_not_said_is_as_with_apache_kafka() -> None:
    found = settings(BASE)
    assert found.own is None
    assert found.rules == TokenRules(frozenset(), None, 30, "scope", "sub")
    assert found.keys is not None
    endpoint = found.keys.endpoint
    assert (endpoint.scheme, endpoint.host, endpoint.port, endpoint.path) == (
        "https",
        "issuer.example",
        443,
        "/keys?x=1",
    )
    assert endpoint.tls is not None
    assert not endpoint.tls.truststore.is_there
    assert (found.keys.refresh_ms, found.keys.backoff.first_ms, found.keys.backoff.most_ms) == (3_600_000, 100, 10_000)


def test_what_is_said_of_the_mechanism_goes_before_what_is_said_of_the_listener_or_the_node() -> None:
    found = broker_config(
        BASE
        | {
            "sasl.oauthbearer.expected.issuer": "of the node",
            "listener.name.open.sasl.oauthbearer.expected.issuer": "of the listener",
            "listener.name.open.oauthbearer.sasl.oauthbearer.expected.issuer": "of the mechanism",
            "listener.name.open.sasl.oauthbearer.expected.audience": "a, b",
            "listener.name.open.oauthbearer.sasl.oauthbearer.sub.claim.name": "client_id",
            "sasl.oauthbearer.scope.claim.name": "scp",
            "sasl.oauthbearer.clock.skew.seconds": "5",
            "connections.max.reauth.ms": "1000",
            "listener.name.open.oauthbearer.connections.max.reauth.ms": "3000",
            "listener.name.open.oauthbearer.sasl.server.callback.handler.class": (
                f"{PACKAGE}OAuthBearerValidatorCallbackHandler"
            ),
            "listener.name.open.oauthbearer.sasl.login.callback.handler.class": (
                f"{PACKAGE}OAuthBearerLoginCallbackHandler"
            ),
            JAAS: f"{MODULE} required;",
        }
    )
    assert not found.warnings
    sasl = found.listener_security["OPEN"].sasl
    assert sasl is not None
    assert sasl.oauth is not None
    assert sasl.oauth.rules == TokenRules(frozenset({"a", "b"}), "of the mechanism", 5, "scp", "client_id")
    assert (sasl.max_reauth_ms, sasl.max_reauth_ms_of) == (1000, {"OAUTHBEARER": 3000})


def test_the_nodes_own_token() -> None:
    own = settings(BASE | OWN).own
    assert own is not None
    assert (own.client_id, own.client_secret, own.scope, own.extensions) == ("node", "hush", "", {})
    assert (own.endpoint.host, own.endpoint.port, own.endpoint.path) == ("issuer.example", 8080, "/token")
    assert (own.renewed_at, own.connect_ms, own.read_ms, own.backoff.most_ms) == (0.8, None, None, 10_000)


def test_the_login_module_may_say_who_it_is_and_whom_to_believe() -> None:
    jaas = (
        f'{MODULE} required clientId="other" clientSecret="hush" scope="all of it" extension_tenant="a b" '
        'ssl.truststore.type="PEM" ssl.truststore.location="/ca.pem";'
    )
    without = {name: value for name, value in OWN.items() if "client.credentials" not in name}
    own = settings(BASE | without | {JAAS: jaas, TOKENS: "https://issuer.example/token"}).own
    assert own is not None
    assert (own.client_id, own.client_secret, own.scope) == ("other", "hush", "all of it")
    assert own.extensions == {"tenant": "a b"}
    assert own.endpoint.tls is not None
    assert own.endpoint.tls.truststore.location == "/ca.pem"
    both = settings(BASE | OWN | {JAAS: jaas}).own
    assert both is not None
    assert (both.client_id, both.scope) == ("node", "all of it")  # properties go before options


def test_a_file_is_a_place_for_keys_and_for_tokens() -> None:
    found = settings(BASE | OWN | {JWKS: "file:/etc/a%20b.json", TOKENS: "file:///etc/token", SECRET: ""})
    assert found.keys is not None
    assert found.own is not None
    assert (found.keys.endpoint.path, found.own.endpoint.path) == ("/etc/a b.json", "/etc/token")


def test_who_only_goes_to_controllers_needs_no_keys() -> None:
    found = settings(
        OWN
        | {
            "node.id": "1",
            "process.roles": "broker",
            "listeners": "PLAINTEXT://a:9091",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.quorum.voters": "9@c:1",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        },
        "CONTROLLER",
    )
    assert found.keys is None
    assert found.own is not None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({JWKS: ""}, f"{JWKS} is missing: the keys that tokens are signed with"),
        (
            {JWKS: "ftp://a/b"},
            f"Invalid value ftp://a/b for configuration {JWKS}: URLs begin with https:, http: or file:",
        ),
        ({JWKS: "issuer.example/keys"}, "URLs begin with"),
        ({JWKS: "https:///keys"}, "Value must be https://HOST:PORT/PATH"),
        ({JWKS: "https://user:pw@a/keys"}, "Value must be https://HOST:PORT/PATH"),
        ({JWKS: "https://a/k é"}, "Value must be https://HOST:PORT/PATH"),
        ({JWKS: "https://a:0x1/"}, f"for configuration {JWKS}: Port"),
        ({JWKS: "https://[a/"}, f"for configuration {JWKS}: Invalid IPv6"),
        ({JWKS: "file://a/keys"}, "a file's URL is as file:///etc/keys.json"),
        ({JWKS: "file:keys"}, "a file's URL is as"),
        ({"sasl.oauthbearer.sub.claim.name": " "}, "sasl.oauthbearer.sub.claim.name is empty: name a claim"),
        ({"sasl.oauthbearer.scope.claim.name": ""}, "sasl.oauthbearer.scope.claim.name is empty"),
        ({"sasl.oauthbearer.clock.skew.seconds": "-1"}, "Value must be at least 0"),
        ({"sasl.oauthbearer.jwks.endpoint.refresh.ms": "0"}, "Value must be at least 1"),
        ({"sasl.login.refresh.window.factor": "0.4"}, "Value must be at least 0.5"),
        ({"listener.name.open.oauthbearer.sasl.login.connect.timeout.ms": "x"}, "Not a number of type INT"),
        (
            {"sasl.oauthbearer.jwt.validator.class": "a.Validator"},
            f"jwt.validator.class: String must be one of: {PACKAGE}DefaultJwtValidator, {PACKAGE}BrokerJwtValidator",
        ),
        ({"sasl.oauthbearer.jwt.retriever.class": f"{PACKAGE}JwtBearerJwtRetriever"}, "String must be one of"),
        (
            {"listener.name.open.oauthbearer.sasl.server.callback.handler.class": "a.Handler"},
            f"String must be one of: {PACKAGE}OAuthBearerValidatorCallbackHandler",
        ),
        ({JAAS: "a.Module required;"}, f"the login module of OAUTHBEARER is {MODULE}"),
        ({JAAS: f"{MODULE} required"}, "JAAS config entry not terminated"),
        ({JAAS: f'{MODULE} required username="hush";'}, "option username is not known here"),
        ({JAAS: f'{MODULE} required unsecuredLoginStringClaim_sub="hush";'}, "makes unsigned tokens"),
        ({JAAS: f'{MODULE} required extension_auth="hush";'}, "extension_auth has a name or a value"),
        ({JAAS: f'{MODULE} required extension_a="\x01hush";'}, "extension_a has a name or a value"),
        (
            {JAAS: f'{MODULE} required ssl.truststore.type="BKS" ssl.truststore.location="/a";'},
            f"{JAAS}: Invalid value BKS for configuration",
        ),
        (OWN | {TOKENS: ""}, f"{TOKENS} is missing: the token that this node logs in to others with"),
        (OWN | {SECRET: ""}, f"{SECRET} is missing: {TOKENS} asks for it"),
        (OWN | {TOKENS: "mailto:a"}, f"for configuration {TOKENS}: URLs begin with"),
        (
            OWN | {"sasl.oauthbearer.jwt.retriever.class": f"{PACKAGE}FileJwtRetriever"},
            f"it does not go with {TOKENS}=http://issuer.example:8080/token",
        ),
        (OWN | {"sasl.enabled.mechanisms": "PLAIN"}, "listener.name.open.plain.sasl.jaas.config is missing"),
    ],
)
def test_what_cannot_be(changes: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)) as refused:
        broker_config(BASE | changes)
    assert "hush" not in str(refused.value)
