"""Clusters that want TLS or SASL, by Secrets, and what is said when a Secret is missing or wrong: with Apache Kafka."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority
from tests.identity_provider import AUDIENCE, CLIENTS, ISSUER, Provider
from tests.operator.apache import ApacheKafka
from tests.operator.world import World

from ballast_cli.__main__ import main
from ballast_local import certificates
from ballast_local.certificates import make_certificate
from ballast_operator.apply.kubernetes import path_of

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(240),
    pytest.mark.skipif("BALLAST_KAFKA_JARS" not in os.environ, reason="BALLAST_KAFKA_JARS is not set"),
]
PROTOCOLS = {"MUTUAL": "SSL", "SCRAM": "SASL_SSL", "PLAIN": "SASL_PLAINTEXT", "TOKENS": "SASL_SSL"}
OAUTH = "org.apache.kafka.common.security.oauthbearer."
MODULES = "org.apache.kafka.common.security"
USER = {"username": "operator", "password": "a secret"}


def pkcs8(key: str) -> str:
    """Java reads no other form of a private key."""
    sec1 = base64.b64decode("".join(key.splitlines()[1:-1]))
    content = certificates._sequence(
        certificates._integer(0), certificates._CURVE, certificates._tlv(0x04, sec1)
    )  # fmt: skip
    return certificates._pem("PRIVATE KEY", content)


class Secured:
    """One broker of Apache Kafka with a listener of each protocol, and the operator beside it."""

    def __init__(self, data: Path, provider: Provider) -> None:
        (data / "kafka").mkdir()
        self.trusted = data / "server.crt"
        keys = data / "keys.json"
        keys.write_bytes(provider.jwks())
        self.certificate, key = make_certificate()
        self.client_certificate, self.client_key = make_certificate()
        (data / "server.pem").write_text(pkcs8(key) + self.certificate)
        (data / "trusted.pem").write_text(self.client_certificate)
        self.trusted.write_text(self.certificate)
        settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(data / "server.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(data / "trusted.pem"),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
            "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.plain.plain.sasl.jaas.config": (
                f'{MODULES}.plain.PlainLoginModule required user_operator="{USER["password"]}";'
            ),
            "sasl.oauthbearer.jwt.validator.class": f"{OAUTH}BrokerJwtValidator",
            "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.tokens.oauthbearer.sasl.server.callback.handler.class": (
                f"{OAUTH}OAuthBearerValidatorCallbackHandler"
            ),
            "listener.name.tokens.oauthbearer.sasl.jaas.config": f"{OAUTH}OAuthBearerLoginModule required;",
            "listener.name.tokens.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "listener.name.tokens.oauthbearer.sasl.oauthbearer.expected.issuer": ISSUER,
            "listener.name.tokens.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
        }
        scram = f"SCRAM-SHA-512=[name={USER['username']},password={USER['password']}]"
        self.kafka = ApacheKafka(
            data / "kafka", brokers=1, log_dirs=2, protocols=PROTOCOLS, settings=settings,
            format_options=("--add-scram", scram),
            java_options=(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys.as_uri()}",),
        )  # fmt: skip
        self.world = World(data / "world")

    def secret(self, name: str, data: Mapping[str, str]) -> None:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}
        self.world.api("apply", path_of("v1", "secrets", "default", name), body)

    def declare(self, name: str, **how: Any) -> None:
        bootstrap = f"127.0.0.1:{self.kafka.listeners[0][name.upper()]}"
        spec = {"external": {"bootstrapServers": bootstrap, **how}, "resyncSeconds": 2}
        self.world.apply("KafkaCluster", name, spec)

    def use(self, name: str) -> None:
        """A topic is made and described through this cluster."""
        self.world.until_ready("KafkaCluster", name, 60)
        spec = {"clusterRef": {"name": name}, "partitions": 2, "config": {"retention.ms": 600_000}}
        self.world.apply("KafkaTopic", f"by-{name}", spec)
        self.world.until_ready("KafkaTopic", f"by-{name}", 60)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def provider(issuer: Authority) -> Iterator[Provider]:
    with Provider(issuer.issue("issuer")) as running:
        yield running


@pytest.fixture(scope="module")
def secured(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    found = Secured(tmp_path_factory.mktemp("secured"), provider)
    try:
        found.kafka.start()
        found.world.start()
        yield found
    finally:
        found.world.stop()
        found.kafka.stop()


@pytest.mark.spec("OPR-40")
def test_tls_with_a_certificate_of_our_own(secured: Secured) -> None:
    secured.declare("mutual", tls={"secretName": "mutual-tls"})
    assert "Secret mutual-tls" in secured.world.until_reason("KafkaCluster", "mutual", "SecretNotFound")
    own = {"tls.crt": secured.client_certificate, "tls.key": secured.client_key}
    secured.secret("mutual-tls", {"ca.crt": secured.certificate, **own})
    secured.use("mutual")


@pytest.mark.spec("OPR-40")
def test_scram_over_tls(secured: Secured) -> None:
    secured.secret("scram-tls", {"ca.crt": secured.certificate})
    secured.secret("scram-user", USER)
    sasl = {"mechanism": "SCRAM-SHA-512", "secretName": "scram-user"}
    secured.declare("scram", tls={"secretName": "scram-tls"}, sasl=sasl)
    secured.use("scram")


@pytest.mark.spec("OPR-40")
def test_a_certificate_of_somebody_else_is_not_believed(secured: Secured) -> None:
    secured.secret("strange-tls", {"ca.crt": make_certificate()[0]})
    secured.world.delete("KafkaCluster", "scram")
    secured.world.until_gone("KafkaCluster", "scram")
    sasl = {"mechanism": "SCRAM-SHA-512", "secretName": "scram-user"}
    secured.declare("scram", tls={"secretName": "strange-tls"}, sasl=sasl)
    said = secured.world.until_reason("KafkaCluster", "scram", "Unreachable", 90)
    assert "the certificate is not believed" in said


@pytest.mark.spec("OPR-40")
def test_a_wrong_password_is_told_and_the_right_one_is_taken_when_it_comes(secured: Secured) -> None:
    secured.secret("plain-user", {"username": USER["username"]})
    secured.declare("plain", sasl={"mechanism": "PLAIN", "secretName": "plain-user"})
    assert "no key password" in secured.world.until_reason("KafkaCluster", "plain", "SecretNotFound")
    secured.secret("plain-user", {**USER, "password": "wrong"})
    said = secured.world.until_reason("KafkaCluster", "plain", "Unreachable", 90)
    assert "did not authenticate user operator" in said
    assert "wrong" not in said
    secured.secret("plain-user", USER)
    secured.use("plain")


@pytest.mark.spec("OPR-40", "CLI-06")
def test_tokens_of_an_identity_provider(
    secured: Secured, provider: Provider, issuer: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Longer than one holds: Apache Kafka ends a session with its token."""
    provider.lifetime_s = 10
    secured.secret("tokens-tls", {"ca.crt": secured.certificate})
    secured.secret("issuer", {"ca.crt": issuer.ca.read_text()})
    secured.secret("tokens-client", {"clientId": "node"})
    oauth = {"tokenEndpointUri": provider.token_url, "scope": "kafka", "tls": {"secretName": "issuer"}}
    sasl = {"mechanism": "OAUTHBEARER", "secretName": "tokens-client", "oauth": oauth}
    secured.declare("tokens", tls={"secretName": "tokens-tls"}, sasl=sasl)
    assert "no key clientSecret" in secured.world.until_reason("KafkaCluster", "tokens", "SecretNotFound")
    secured.secret("tokens-client", {"clientId": "node", "clientSecret": "wrong"})
    said = secured.world.until_reason("KafkaCluster", "tokens", "Unreachable", 90)
    assert f"There is no token to show: {provider.token_url} answers 401: invalid_client: who are you?" in said
    secured.secret("tokens-client", {"clientId": "node", "clientSecret": CLIENTS["node"]})
    secured.use("tokens")
    asked, until = len(provider.asked), time.monotonic() + 12
    while time.monotonic() < until:
        ready = secured.world.condition("KafkaCluster", "tokens")
        assert ready[0] == "True", ready
        time.sleep(0.2)
    assert len(provider.asked) > asked, "it had another one meanwhile"
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={secured.trusted}\nsasl.oauthbearer.token.endpoint.url={provider.token_url}\n"
        f"sasl.oauthbearer.client.credentials.client.id=alice\n"
        f"sasl.oauthbearer.client.credentials.client.secret={CLIENTS['alice']}\n"
        f'sasl.jaas.config={OAUTH}OAuthBearerLoginModule required ssl.truststore.type="PEM" '
        f'ssl.truststore.location="{issuer.ca}";\n'
    )
    bootstrap = f"127.0.0.1:{secured.kafka.listeners[0]['TOKENS']}"
    for command in (["status"], ["reassign", "generate", "--json", str(tmp_path / "plan.json")]):
        assert main([*command, "--bootstrap", bootstrap, "--command-config", str(file)]) == 0
        capsys.readouterr()
