"""A listener for tokens, added to a cluster that runs: its Secret, its clients, another audience, another authority."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.identity_provider import AUDIENCE, ISSUER, Provider, new_key, signed
from tests.operator.test_managed_secured import (
    LISTENERS,
    SECURITY,
    SUBJECT,
    Secured,
    consume,
    produce,
    producing,
    refused,
)

from ballast_operator.apply.kubernetes import path_of

pytestmark = [pytest.mark.timeout(240), pytest.mark.spec("OPR-40", "OPR-44", "CLI-06")]
RIGHTS = {**SECURITY, "authorization": {"type": "Simple", "superUsers": ["alice"]}}
CLAIM = "preferred_username"
BOTH = [AUDIENCE, "shop"]


class WithTokens(Secured):
    """Its provider speaks TLS with a certificate of an authority that nobody believes without being told."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.provider = Provider(self.outside.issue("provider"))

    def tokens(self, audiences: list[str]) -> None:
        oauth = {
            "jwksEndpointUri": self.provider.jwks_url,
            "issuer": ISSUER,
            "audiences": audiences,
            "userNameClaim": CLAIM,
            "tls": {"secretName": "issuer"},
        }
        listener = {"name": "TOKENS", "port": 9096, "tls": {"secretName": "demo-clients"}}
        listener["authentication"] = {"type": "OAUTHBEARER", "oauth": oauth}
        self.declare(listeners=[*LISTENERS, listener], security=RIGHTS)

    def issuer(self, **data: str) -> None:
        """The Secret; a name's _ stands for a dot."""
        encoded = {key.replace("_", "."): base64.b64encode(text.encode()).decode() for key, text in data.items()}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "issuer"}, "data": encoded}
        self.api("apply", path_of("v1", "secrets", "default", "issuer"), body)

    def bearer(self, token: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.clients.replace("9092", "9096"),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.outside.ca),
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (token, time.time() + 600),
        }

    def alice(self, kid: str = "one", changes: Mapping[str, object] | None = None) -> dict[str, Any]:
        return self.bearer(self.provider.token("1234", kid, **{CLAIM: "alice"} | dict(changes or {})))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithTokens]:
    """With the Secret that the listener wants, which comes when it is missed."""
    with WithTokens(tmp_path_factory.mktemp("tokens")) as found, found.provider:
        found.secret("demo-clients", found.outside)
        found.secret("demo-internal", found.inside, SUBJECT)
        found.declare(security=RIGHTS)
        found.topic("orders", partitions=3, replicas=3)
        found.until_ready("KafkaCluster", "demo", 90)
        found.until_ready("KafkaTopic", "orders")
        before = found.pods()
        found.tokens([AUDIENCE])
        assert "Secret issuer does not exist" in found.until_reason("KafkaCluster", "demo", "SecretNotFound")
        found.issuer(tls_crt="of no use")
        lacking = "Secret issuer has no key ca.crt"
        found.until("the lacking key is told", lambda: lacking in found.condition("KafkaCluster", "demo")[2])
        found.issuer(ca_crt="none")
        assert "ca.crt has no certificate" in found.until_reason("KafkaCluster", "demo", "SecretUnusable")
        assert found.pods() == before, "no pod depends on what is not there"
        found.issuer(ca_crt=found.outside.ca.read_text(), tls_key="of no use")
        found.until_new(before, 120)
        found.until_ready("KafkaCluster", "demo", 60)
        yield found


def test_who_has_a_token_writes_and_reads_and_is_who_the_claim_says(world: WithTokens) -> None:
    assert produce(world.alice(), 100) == set()
    consume(world.alice(), 100)
    assert produce(world.alice(changes={CLAIM: "bob"}), 1) == {"TOPIC_AUTHORIZATION_FAILED"}


@pytest.mark.parametrize("wrong", ["audience", "issuer", "claim", "signature"])
def test_who_has_none_that_counts_does_not_come_in(world: WithTokens, wrong: str) -> None:
    settings: Mapping[str, Any] = {
        "audience": world.alice(changes={"aud": "shop"}),
        "issuer": world.alice(changes={"iss": "https://other.example"}),
        "claim": world.alice(changes={CLAIM: None}),
        "signature": world.bearer(signed(new_key(), "one", **{CLAIM: "alice"})),
    }[wrong]
    assert refused(settings) == "_AUTHENTICATION"


def test_another_audience_rolls_in_while_clients_of_both_go_on(world: WithTokens) -> None:
    before = world.pods()
    with producing(world.alice(changes={"aud": BOTH})) as errors:
        world.tokens(["shop"])
        world.until_new(before, 120)
        world.until_ready("KafkaCluster", "demo", 60)
    assert errors == []
    assert produce(world.alice(changes={"aud": "shop"}), 10) == set()
    assert refused(world.alice(changes={"aud": AUDIENCE})) == "_AUTHENTICATION"


def test_another_authority_and_new_keys_come_to_brokers_without_a_restart(world: WithTokens) -> None:
    """A provider in the place of the former one, whose certificate nobody would have believed before."""
    before = world.pods()
    former = world.provider
    former.__exit__(None, None, None)
    with Provider(world.inside.issue("provider"), former.port) as provider:
        world.provider = provider
        provider.keys = {"two": new_key()}
        assert refused(world.alice("two", changes={"aud": BOTH})) == "_AUTHENTICATION"
        world.issuer(ca_crt=world.inside.ca.read_text())
        assert produce(world.alice("two", changes={"aud": BOTH}), 10) == set()
    assert world.pods() == before
