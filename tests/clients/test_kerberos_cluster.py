"""Three nodes that believe nobody without a ticket, each other neither; tickets end, and the KDC goes away."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from tests import kdc as kerberos
from tests.clients.kerberos import AUTHORIZER, SERVICE
from tests.clients.three_nodes import NODES, ThreeNodes
from tests.kdc import Kdc, login_module

pytestmark = [pytest.mark.java, pytest.mark.spec("CLI-12"), pytest.mark.timeout(150)]
TICKET_S = 8
JAAS = "listener.name.{}.gssapi.sasl.jaas.config"


class Cluster(ThreeNodes):
    """Between brokers and to controllers with tickets that hold for seconds, in sessions that hold for less."""

    def __init__(self, folder: Path, kdc: Kdc) -> None:
        super().__init__(folder, "OPEN", "SASL_PLAINTEXT", host="localhost")
        self.kdc = kdc
        keytab = kdc.keytab(SERVICE)
        self.client_keytab = kdc.keytab("admin")
        module = login_module(SERVICE, keytab)
        for number in NODES:
            self.has(
                number,
                {
                    "sasl.enabled.mechanisms": "GSSAPI",
                    "sasl.kerberos.service.name": "kafka",
                    "connections.max.reauth.ms": 3000,
                    JAAS.format("open"): module,
                    JAAS.format("controller"): module,
                    "authorizer.class.name": AUTHORIZER,
                    "super.users": "User:kafka;User:admin",
                },
            )

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "GSSAPI",
        }


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with kerberos.running(tmp_path / "kdc", ticket_life=f"{TICKET_S}s") as kdc:
        for name, value in kdc.environment.items():
            monkeypatch.setenv(name, value)
        made = Cluster(tmp_path, kdc)
        monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(made.client_keytab))
        monkeypatch.setenv("KRB5CCNAME", f"MEMORY:{uuid.uuid4()}")
        with made.running():
            yield made


def until_all_are_in_sync(admin: KafkaAdminClient, topic: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        (found,) = admin.describe_topics([topic])
        in_sync = {node for each in found["partitions"] for node in each["isr_nodes"]}
        if in_sync == set(NODES):
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_what_one_writes_the_others_have_while_tickets_end_and_one_comes_back(cluster: Cluster) -> None:
    admin = KafkaAdminClient(**cluster.settings)
    admin.create_topics([NewTopic("orders", 1, 3, topic_configs={"min.insync.replicas": "3"})])
    until_all_are_in_sync(admin, "orders")
    producer = KafkaProducer(**cluster.settings, acks="all")
    sent, until = 0, time.monotonic() + 2.5 * TICKET_S
    while time.monotonic() < until:
        assert producer.send("orders", b"%d" % sent).get(20).offset == sent
        sent += 1
    cluster.nodes[1].kill()
    cluster.nodes[1].start()
    until_all_are_in_sync(admin, "orders")
    # While no KDC answers, sessions are renewed with the tickets that are there.
    cluster.kdc.stop()
    assert producer.send("orders", b"%d" % sent).get(20).offset == sent
    cluster.kdc.start()
    producer.close()
    reader = KafkaConsumer(**cluster.settings)
    assert reader.end_offsets([TopicPartition("orders", 0)]) == {TopicPartition("orders", 0): sent + 1}
    reader.close()
    admin.close()
    assert cluster.kdc.tickets_given(SERVICE, f"krbtgt/{kerberos.REALM}") >= 2 * len(NODES)
    for node in cluster.nodes:
        assert "does not let us in" not in node.log_text(), node.log_text()
