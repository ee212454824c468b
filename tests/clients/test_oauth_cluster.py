"""Three nodes that believe nobody without a token, each other neither; and the one who gives tokens goes away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from e2e.processes import free_ports
from tests.clients import test_librdkafka as rd
from tests.clients.oauth import AUTHORIZER
from tests.clients.running import RunningBroker
from tests.clients.test_secured_cluster import CLUSTER_ID, NODES, until_all_are_in_sync
from tests.identity_provider import AUDIENCE, CLIENTS, ISSUER, Provider

pytestmark = [pytest.mark.spec("CLI-06"), pytest.mark.timeout(120)]
TOKEN_LIFETIME_S = 6


class Cluster:
    """Between brokers and to controllers with tokens that hold for seconds."""

    def __init__(self, folder: Path, provider: Provider) -> None:
        self.provider = provider
        self.ports = free_ports(6)
        voters = ",".join(f"{each}@127.0.0.1:{self.ports[each + 2]}" for each in NODES)
        self.nodes = [RunningBroker(folder / f"node-{each}") for each in NODES]
        for number, node in zip(NODES, self.nodes, strict=True):
            own, controller = self.ports[number - 1], self.ports[number + 2]
            node._properties |= {
                "node.id": number,
                "cluster.id": CLUSTER_ID,
                "process.roles": "broker,controller",
                "listeners": f"OPEN://127.0.0.1:{own},CONTROLLER://127.0.0.1:{controller}",
                "listener.security.protocol.map": "OPEN:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
                "inter.broker.listener.name": "OPEN",
                "controller.quorum.voters": voters,
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
                "offsets.topic.replication.factor": 3,
                "replica.lag.time.max.ms": 5000,
                "broker.session.timeout.ms": 3000,
            }

    def start(self) -> Cluster:
        with ThreadPoolExecutor(len(NODES)) as pool:
            list(pool.map(RunningBroker.start, self.nodes))
        return self

    @property
    def settings(self) -> dict[str, Any]:
        def give(_config: str) -> tuple[str, float]:
            return self.provider.token("admin"), time.time() + 600

        return {
            "bootstrap.servers": ",".join(f"127.0.0.1:{each}" for each in self.ports[:3]),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": give,
            "log_level": 0,
        }


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Provider() as provider:
        provider.lifetime_s = TOKEN_LIFETIME_S
        made = Cluster(tmp_path, provider).start()
        yield made
        for node in made.nodes:
            node.kill()
    for node in made.nodes:
        assert "Traceback" not in node.log_text(), node.log_text()
        assert CLIENTS["node"] not in node.log_text()
        assert "eyJ" not in node.log_text()


def test_what_one_writes_the_others_have_while_tokens_end_and_keys_change(cluster: Cluster) -> None:
    provider = cluster.provider
    admin = AdminClient(cluster.settings)
    admin.create_topics([NewTopic("orders", 1, 3, config={"min.insync.replicas": "3"})])["orders"].result(20)
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
    assert reader.get_watermark_offsets(TopicPartition("orders", 0), timeout=20) == (0, sent)
    reader.close()
    assert not any("does not let us in" in node.log_text() for node in cluster.nodes)
