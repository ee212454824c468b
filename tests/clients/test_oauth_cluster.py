"""Three nodes that believe nobody without a token, each other neither; and the one who gives tokens goes away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients import test_librdkafka as rd
from tests.clients.oauth import AUTHORIZER
from tests.clients.three_nodes import NODES, ThreeNodes, until_all_are_in_sync
from tests.identity_provider import AUDIENCE, CLIENTS, ISSUER, Provider

pytestmark = [pytest.mark.spec("CLI-06"), pytest.mark.timeout(120)]
TOKEN_LIFETIME_S = 6


class Cluster(ThreeNodes):
    """Between brokers and to controllers with tokens that hold for seconds."""

    def __init__(self, folder: Path, provider: Provider) -> None:
        super().__init__(folder, "OPEN", "SASL_PLAINTEXT")
        self.provider = provider
        for number in NODES:
            self.has(
                number,
                {
                    "sasl.enabled.mechanisms": "OAUTHBEARER",
                    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
                    "sasl.mechanism.controller.protocol": "OAUTHBEARER",
                    "sasl.oauthbearer.jwks.endpoint.url": provider.jwks_url,
                    "sasl.oauthbearer.expected.issuer": ISSUER,
                    "sasl.oauthbearer.expected.audience": AUDIENCE,
                    "sasl.oauthbearer.token.endpoint.url": provider.token_url,
                    "sasl.oauthbearer.client.credentials.client.id": "node",
                    "sasl.oauthbearer.client.credentials.client.secret": CLIENTS["node"],
                    "authorizer.class.name": AUTHORIZER,
                    "super.users": "User:node;User:admin",
                },
            )

    @property
    def settings(self) -> dict[str, Any]:
        def give(_config: str) -> tuple[str, float]:
            return self.provider.token("admin"), time.time() + 600

        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": give,
            "log_level": 0,
        }


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Provider() as provider:
        provider.lifetime_s = TOKEN_LIFETIME_S
        made = Cluster(tmp_path, provider)
        with made.running(CLIENTS["node"], "eyJ"):
            yield made


def test_what_one_writes_the_others_have_while_tokens_end_and_keys_change(cluster: Cluster) -> None:
    provider = cluster.provider
    admin = AdminClient(cluster.settings)
    admin.create_topics([NewTopic("orders", 1, 3, config={"min.insync.replicas": "3"})])["orders"].result(40)
    until_all_are_in_sync(admin, "orders")
    sender = Producer(cluster.settings | {"acks": "all", "enable.idempotence": True})
    sent, until = 0, time.monotonic() + 3 * TOKEN_LIFETIME_S
    while time.monotonic() < until:
        if time.monotonic() > until - TOKEN_LIFETIME_S and len(provider.keys) == 1:
            provider.keys["two"] = provider.keys["one"]  # from now on tokens name another key
        rd.send(sender, "orders", [b"%d" % (sent + n) for n in range(10)])
        sent += 10
    rd.end_producer(sender)
    assert provider.asked.count("/token") >= 3 * 2
    killed = cluster.nodes[1]
    killed.kill()
    killed.start()
    until_all_are_in_sync(admin, "orders")
    reader = Consumer(cluster.settings | {"group.id": "g"})
    assert reader.get_watermark_offsets(TopicPartition("orders", 0), timeout=40) == (0, sent)
    reader.close()
    assert not any("does not let this node in" in node.log_text() for node in cluster.nodes)
