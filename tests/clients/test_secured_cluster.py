"""Three nodes that believe nobody without a password, each other neither; one is killed and started again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from e2e.asking import ask, message
from tests.certificates import Authority
from tests.clients import test_librdkafka as rd
from tests.clients.secured import PLAIN, SCRAM
from tests.clients.three_nodes import NODES, ThreeNodes, until_all_are_in_sync
from tests.waiting import eventually

pytestmark = [pytest.mark.spec("CLI-06"), pytest.mark.timeout(120)]
LOGIN = 'username="node" password="s3cret"'


class SecuredCluster(ThreeNodes):
    """Between brokers by SCRAM; to controllers by PLAIN and a certificate."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "SAFE", "SASL_SSL")
        self.authority = Authority(folder / "ca")
        for number in NODES:
            self.has(
                number,
                {
                    "ssl.keystore.type": "PEM",
                    "ssl.keystore.location": str(self.authority.issue(f"node-{number}")),
                    "ssl.truststore.type": "PEM",
                    "ssl.truststore.location": str(self.authority.ca),
                    "listener.name.controller.ssl.client.auth": "required",
                    "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
                    "listener.name.controller.plain.sasl.jaas.config": f'{PLAIN} required {LOGIN} user_node="s3cret";',
                    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
                    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
                    "sasl.mechanism.controller.protocol": "PLAIN",
                    "listener.name.safe.plain.sasl.jaas.config": (
                        f'{PLAIN} required {LOGIN} user_node="s3cret" user_admin="admins";'
                    ),
                    "listener.name.safe.scram-sha-512.sasl.jaas.config": f"{SCRAM} required {LOGIN};",
                    "connections.max.reauth.ms": 2000,
                },
            )

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.ca),
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": "admins",
            "log_level": 0,
        }


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SecuredCluster]:
    made = SecuredCluster(tmp_path)
    with made.running("s3cret"):
        yield made


def test_what_one_writes_the_others_have_though_one_is_killed(cluster: SecuredCluster) -> None:
    admin = AdminClient(cluster.settings)
    # Until it is made, the brokers do not let each other in; an admin by PLAIN may.
    user = UserScramCredentialUpsertion("node", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"s3cret")
    admin.alter_user_scram_credentials([user])["node"].result(40)
    config = {"min.insync.replicas": "2"}
    admin.create_topics([NewTopic("orders", 1, 3, config=config)])["orders"].result(40)
    until_all_are_in_sync(admin, "orders")
    sender = Producer(cluster.settings | {"acks": "all", "enable.idempotence": True})
    values = [b"%d " % n + b"x" * 1000 for n in range(2000)]
    rd.send(sender, "orders", values[:1000])
    leader = admin.list_topics("orders", timeout=30).topics["orders"].partitions[0].leader
    killed = cluster.nodes[leader - 1]
    killed.kill()
    rd.send(sender, "orders", values[1000:])
    rd.end_producer(sender)
    killed.start()
    until_all_are_in_sync(admin, "orders")
    reader = Consumer(cluster.settings | {"group.id": "g", "auto.offset.reset": "earliest"})
    reader.assign([TopicPartition("orders", 0, 0)])
    assert [each.value() for each in rd.read(reader, len(values))] == values
    reader.close()


def test_a_controller_lets_nobody_in_who_has_only_a_clients_password(tmp_path: Path) -> None:
    made = SecuredCluster(tmp_path)
    node = made.nodes[0]
    controller = made.controllers[0]
    made.has(1, {"controller.quorum.voters": f"1@{controller}"})
    node.start()
    try:
        client = made.settings | {"bootstrap.servers": controller}
        heard: list[Any] = []
        for own in (
            {},
            {
                key: str(made.authority.folder / "node-2.pem")
                for key in ("ssl.certificate.location", "ssl.key.location")
            },
        ):
            admin = AdminClient(client | own | {"error_cb": heard.append})
            with pytest.raises(KafkaException, match=r"Failed to get metadata|timed out"):
                admin.list_topics(timeout=1)

        def is_told_why() -> bool:
            admin.poll(0.1)
            return any("Invalid username or password" in each.str() for each in heard)

        eventually(is_told_why, heard)  # the last one, who has a certificate
        with pytest.raises((ConnectionError, TimeoutError)):
            ask(controller, message("ApiVersionsRequest")(), 0, timeout_s=5)
    finally:
        node.kill()
