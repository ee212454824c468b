"""A cluster with TLS inside and users outside, with real brokers: clients, topics, restarts, renewed certificates."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from tests.certificates import Authority
from world import World

from ballast_local.workloads.addresses import Addresses
from ballast_operator.apply.kubernetes import path_of

pytestmark = [pytest.mark.timeout(240), pytest.mark.spec("OPR-40")]
VOLUMES = [{"name": name, "size": "4Gi"} for name in ("a", "b")]
LISTENERS = [
    {"name": name, "port": port, "tls": {"secretName": "demo-clients"}, "authentication": {"type": kind}}
    for name, port, kind in (("CLIENTS", 9092, "SCRAM-SHA-512"), ("CERTIFIED", 9094, "TLS"))
]
SECURITY = {"internal": {"tls": {"secretName": "demo-internal"}}}
SUBJECT = "/O=ballast/CN=demo-internal"


class Secured(World):
    """Its authorities, and what they issued: the addresses of the embedded pods are known before they are."""

    def __init__(self, data: Path) -> None:
        super().__init__(data / "world")
        self.folder = data
        self.inside, self.outside = Authority(data / "inside", "inside"), Authority(data / "outside", "outside")
        known = Addresses(data / "addresses.log", str(self.data))
        self.hosts = [known.take(f"pod/default/demo-{number}") for number in range(3)]
        self.names = ",".join(
            [f"DNS:demo-{n}.demo-brokers.default.svc" for n in range(3)] + [f"IP:{host}" for host in self.hosts]
        )
        self.admin = self.outside.issue("admin")
        self.clients = ",".join(f"{host}:9092" for host in self.hosts)

    def secret(self, name: str, authority: Authority, subject: str | None = None) -> None:
        """A new certificate each time."""
        whole = authority.issue(name, subject=subject, names=self.names)
        files = {"tls.key": whole.with_suffix(".key"), "tls.crt": whole.with_suffix(".crt"), "ca.crt": authority.ca}
        data = {key: base64.b64encode(path.read_bytes()).decode() for key, path in files.items()}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "kubernetes.io/tls"}
        self.api("apply", path_of("v1", "secrets", "default", name), body | {"data": data})

    def declare(self, **spec: Any) -> None:
        body = {"brokers": 3, "volumes": VOLUMES, "listeners": LISTENERS, "security": SECURITY, "resyncSeconds": 2}
        self.apply("KafkaCluster", "demo", body | spec)

    def user(self, name: str = "alice", password: str = "wonder") -> dict[str, str]:
        return {
            "bootstrap.servers": self.clients,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.outside.ca),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": name,
            "sasl.password": password,
        }

    def certified(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.clients.replace("9092", "9094"),
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.outside.ca),
            "ssl.certificate.location": str(self.admin.with_suffix(".crt")),
            "ssl.key.location": str(self.admin.with_suffix(".key")),
        }

    def pods(self) -> dict[str, dict[str, Any]]:
        found = self.objects("v1", "pods", "ballast.dev/cluster=demo")
        return {pod["metadata"]["name"]: pod for pod in found}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("secured")) as found:
        yield found


def produce(settings: Mapping[str, str], count: int, topic: str = "orders") -> None:
    failed: list[KafkaError] = []
    producer = Producer({**settings, "acks": "all", "message.timeout.ms": 60_000})
    for number in range(count):
        producer.produce(topic, f"{number}".encode(), callback=lambda error, _: error and failed.append(error))
    assert producer.flush(70) == 0
    assert failed == []


def consume(settings: Mapping[str, str], count: int, topic: str = "orders") -> None:
    consumer = Consumer({**settings, "group.id": f"readers-{os.urandom(4).hex()}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    seen = 0
    try:
        while seen < count:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            seen += 1
    finally:
        consumer.close()


def make_user(world: Secured, name: str = "alice", password: str = "wonder") -> None:
    admin = AdminClient(world.certified())
    how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted = UserScramCredentialUpsertion(name, how, password.encode())
    for answer in admin.alter_user_scram_credentials([wanted]).values():
        answer.result(30)


def test_it_waits_for_its_secrets_and_then_serves_clients_and_topics(world: Secured) -> None:
    world.secret("demo-clients", world.outside)
    world.declare()
    assert "Secret demo-internal does not exist" in world.until_reason("KafkaCluster", "demo", "SecretNotFound")
    assert world.pods() == {}
    world.secret("demo-internal", world.inside, SUBJECT)
    world.topic("orders", partitions=6, replicas=3)
    found = world.until_ready("KafkaCluster", "demo", 90)
    assert sorted(found["status"]["bootstrapServers"].split(",")) == sorted(world.clients.split(","))
    world.until_ready("KafkaTopic", "orders")
    make_user(world)
    produce(world.user(), 100)
    consume(world.user(), 100)
