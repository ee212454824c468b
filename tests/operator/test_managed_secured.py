"""A cluster with TLS inside and users outside, with real brokers: clients, topics, restarts, renewed certificates."""

from __future__ import annotations

import base64
import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.certificates import Authority
from tests.operator.world import World

from ballast_local.workloads.addresses import Addresses
from ballast_operator.apply.kubernetes import path_of

pytestmark = [pytest.mark.timeout(240), pytest.mark.spec("OPR-40")]
VOLUMES = [{"name": name, "size": "4Gi"} for name in ("a", "b")]
LISTENERS = [
    {"name": name, "port": port, "tls": {"secretName": "demo-clients"}, "authentication": {"type": kind}}
    for name, port, kind in (("CLIENTS", 9092, "SCRAM-SHA-512"), ("CERTIFIED", 9094, "TLS"))
]
SECURITY = {"internal": {"tls": {"secretName": "demo-internal"}}}
RIGHTS = {**SECURITY, "authorization": {"type": "Simple", "superUsers": ["CN=admin"]}}
REFUSED = r"alert|reset|EOF"
SUBJECT = "/O=ballast/CN=demo-internal"


class Secured(World):
    """Its authorities, and what they issued: the addresses of the embedded pods are known before they are."""

    def __init__(self, data: Path) -> None:
        super().__init__(data / "world")
        self.folder = data
        self.inside, self.outside = Authority(data / "inside", "inside"), Authority(data / "outside", "outside")
        known = Addresses(data / "addresses.log", str(self.data))
        self.hosts = [known.take(f"pod/default/demo-{number}") for number in range(3)]
        pods = [f"{name}-{number}" for name in ("demo", "demo-controller") for number in range(3)]
        names = [f"DNS:{pod}.demo-brokers.default.svc,IP:{known.take(f'pod/default/{pod}')}" for pod in pods]
        self.names = ",".join(names)
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
        config = {"group.initial.rebalance.delay.ms": 0}
        self.apply("KafkaCluster", "demo", {**body, "config": config, **spec})

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

    def pods(self) -> dict[str, str]:
        """Name → uid."""
        found = self.objects("v1", "pods", "ballast.dev/cluster=demo")
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}

    def shown(self, port: int, shows: Path | None = None) -> set[bytes | None]:
        """The certificates that the brokers show at this port to somebody with such a one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if shows is not None:
            context.load_cert_chain(shows.with_suffix(".crt"), shows.with_suffix(".key"))
        found = set()
        for host in self.hosts:
            with socket.create_connection((host, port), timeout=10) as plain, context.wrap_socket(plain) as secured:
                found.add(secured.getpeercert(binary_form=True))
                # With TLS 1.3 a certificate is refused after the handshake; what asks for nothing is not answered.
                secured.settimeout(0.3)
                try:
                    secured.recv(1)
                except TimeoutError:
                    continue
        return found

    def changed_since(self, before: Mapping[str, str]) -> bool:
        return bool(self.pods().items() - before.items())

    def until_new(self, before: Mapping[str, str], seconds: float) -> None:
        def new() -> bool:
            found = self.pods()
            return len(found) == len(before) and not set(found.values()) & set(before.values())

        self.until("all pods are new", new, seconds)

    def until_shown(self, port: int, name: str, authority: Authority) -> None:
        issued = ssl.PEM_cert_to_DER_cert((authority.folder / f"{name}.crt").read_text())
        shows = self.inside.folder / "demo-internal.pem" if port == 9091 else self.admin
        self.until(f"the new certificate is shown at {port}", lambda: self.shown(port, shows) == {issued})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("secured")) as found:
        found.secret("demo-clients", found.outside)
        found.declare()
        message = found.until_reason("KafkaCluster", "demo", "SecretNotFound")
        assert "Secret demo-internal does not exist" in message
        assert found.pods() == {}
        found.secret("demo-internal", found.inside, SUBJECT)
        found.topic("orders", partitions=6, replicas=3)
        found.until_ready("KafkaCluster", "demo", 90)
        found.until_ready("KafkaTopic", "orders")
        make_user(found)
        assert produce(found.user(), 100) == set()
        yield found


def produce(settings: Mapping[str, str], count: int, topic: str = "orders") -> set[str]:
    """The names of the errors."""
    failed: set[str] = set()

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.add(error.name())

    producer = Producer({**settings, "acks": "all", "message.timeout.ms": 60_000})
    for number in range(count):
        producer.produce(topic, f"{number}".encode(), callback=note)
    assert producer.flush(70) == 0
    return failed


@contextmanager
def producing(settings: Mapping[str, str]) -> Iterator[list[str]]:
    """One record after the other all the time; the list gets the errors."""
    errors: list[str] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            errors.extend(produce(settings, 20))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield errors
    finally:
        stop.set()
        thread.join(80)


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


def make_user(world: Secured) -> None:
    how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted = UserScramCredentialUpsertion("alice", how, b"wonder")
    admin = AdminClient({**world.certified()})
    for answer in admin.alter_user_scram_credentials([wanted]).values():
        answer.result(30)


def refused(settings: Mapping[str, str]) -> str:
    """What somebody is told who cannot come in."""
    said: list[KafkaError] = []
    producer = Producer({**settings, "error_cb": said.append})
    producer.poll(0)
    for _ in range(100):
        producer.poll(0.1)
        codes = [error.name() for error in said if error.name() != "_ALL_BROKERS_DOWN"]
        if codes:
            return codes[0]
    raise AssertionError("nobody was refused")


def test_it_waits_for_its_secrets_and_then_serves_clients_and_topics(world: Secured) -> None:
    status = (world.get("KafkaCluster", "demo") or {})["status"]
    assert sorted(status["bootstrapServers"].split(",")) == sorted(world.clients.split(","))
    consume(world.user(), 100)


def test_who_shows_nothing_or_the_wrong_thing_does_not_come_in(world: Secured) -> None:
    assert refused(world.user(password="guessed")) == "_AUTHENTICATION"
    for port in (9091, 9093):
        with pytest.raises(OSError, match=REFUSED):
            world.shown(port)
        with pytest.raises(OSError, match=REFUSED):
            world.shown(port, world.admin)
        assert len(world.shown(port, world.inside.folder / "demo-internal.pem")) == 1


@pytest.mark.spec("OPR-44", "CLI-06")
def test_rights_roll_in_while_clients_go_on_and_hold_afterwards(world: Secured) -> None:
    before = world.pods()
    with producing(world.certified()) as errors:
        world.declare(security=RIGHTS)
        world.until_new(before, 100)
        world.until_ready("KafkaCluster", "demo", 60)
    assert errors == []
    assert produce(world.user(), 1) == {"TOPIC_AUTHORIZATION_FAILED"}
    admin = AdminClient({**world.certified()})
    entries = [
        AclBinding(kind, "*", ResourcePatternType.LITERAL, "User:alice", "*", AclOperation.ALL, AclPermissionType.ALLOW)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP)
    ]
    for answer in admin.create_acls(entries).values():
        answer.result(30)
    world.until("alice may write", lambda: produce(world.user(), 1) == set())
    # The operator itself may do everything.
    world.topic("paid", partitions=3, replicas=3)
    world.until_ready("KafkaTopic", "paid")


def test_renewed_certificates_come_to_brokers_and_operator_without_a_restart(world: Secured) -> None:
    before = world.pods()
    world.secret("demo-clients", world.outside)
    world.secret("demo-internal", world.inside, SUBJECT)
    world.until_shown(9092, "demo-clients", world.outside)
    world.until_shown(9091, "demo-internal", world.inside)
    world.topic("renewed", partitions=3, replicas=3)
    world.until_ready("KafkaTopic", "renewed")
    assert produce(world.user(), 10) == set()
    assert world.pods() == before


def test_a_broker_that_is_killed_comes_back_among_the_others(world: Secured) -> None:
    uid = world.pods()["demo-1"]
    (record,) = (world.data / "pods" / uid / "pids").iterdir()
    with producing(world.user()) as errors:
        os.kill(int(record.read_text().split()[0]), signal.SIGKILL)
        world.until("its end is seen", lambda: world.condition("KafkaCluster", "demo")[0] == "False")
        world.until_ready("KafkaCluster", "demo", 60)
    assert errors == []


@pytest.mark.spec("OPR-41", "OPR-44")
def test_a_listener_gets_another_port_and_secrets_are_renewed_in_the_middle_of_that(world: Secured) -> None:
    """Whoever comes by the Service is led to the brokers at both ports until none has the former one."""

    def ports() -> dict[int, int | str]:
        found = world.api("get", path_of("v1", "services", "default", "demo-bootstrap"))["spec"]["ports"]
        return {port["port"]: port["targetPort"] for port in found}

    moved = [{**LISTENERS[0], "port": 9095}, LISTENERS[1]]
    anywhere = {"bootstrap.servers": f"{world.clients},{world.clients.replace('9092', '9095')}"}
    for listeners, port, former in ((moved, 9095, 9092), (LISTENERS, 9092, 9095)):
        before = world.pods()
        with producing(world.user() | anywhere) as errors:
            world.declare(listeners=listeners)
            world.until("one is restarted", partial(world.changed_since, before))
            assert ports() == {port: "kafka-2", former: "kafka-2", 9094: 9094}
            world.secret("demo-clients", world.outside)
            world.secret("demo-internal", world.inside, SUBJECT)
            world.until_new(before, 120)
            world.until_ready("KafkaCluster", "demo", 60)
        assert errors == []
        assert ports() == {port: port, 9094: 9094}
        world.until_shown(port, "demo-clients", world.outside)
        world.until_shown(9091, "demo-internal", world.inside)


@pytest.mark.simulation  # for its time
def test_a_certificate_of_somebody_else_is_told_before_brokers_lose_each_other(world: Secured) -> None:
    world.declare(security=RIGHTS)
    world.until_ready("KafkaCluster", "demo", 60)
    world.secret("demo-internal", world.inside, "/CN=stranger")
    message = world.until_reason("KafkaCluster", "demo", "SubjectChanged")
    assert "is of CN=stranger, and the brokers take only CN=demo-internal,O=ballast" in message
    world.secret("demo-internal", world.inside, SUBJECT)
    world.until_shown(9091, "demo-internal", world.inside)
    world.until_ready("KafkaCluster", "demo", 60)


@pytest.mark.simulation
@pytest.mark.spec("OPR-45")
def test_a_cluster_that_runs_is_not_torn_apart_by_another_way_to_speak_inside(world: Secured) -> None:
    """There and back: held while pods run, carried out when they were all stopped."""
    plain = {"security": None, "listeners": [{"name": "CLIENTS", "port": 9092}]}
    for wanted, settings in ((plain, {"bootstrap.servers": world.clients}), ({}, world.user())):
        before = world.pods()
        world.declare(**wanted)
        message = world.until_reason("KafkaCluster", "demo", "SecurityHeld")
        name = f"held-{len(wanted)}"
        world.topic(name, partitions=3, replicas=3)
        world.until_ready("KafkaTopic", name)
        assert world.pods() == before
        assert "delete StatefulSet demo:" in message
        world.api("delete", path_of("apps/v1", "statefulsets", "default", "demo"))
        world.until_new(before, 60)
        world.until_ready("KafkaCluster", "demo", 90)
        consume(settings, 100)
        world.until_ready("KafkaTopic", "orders")


@pytest.mark.simulation
@pytest.mark.spec("OPR-44")
def test_controllers_with_pods_of_their_own_speak_tls_as_well(tmp_path: Path) -> None:
    with Secured(tmp_path) as world:
        world.secret("demo-clients", world.outside)
        world.secret("demo-internal", world.inside, SUBJECT)
        dedicated = {"mode": "Dedicated", "count": 3}
        world.declare(controllers=dedicated, security=RIGHTS)
        world.topic("orders", partitions=6, replicas=3)
        world.until_ready("KafkaCluster", "demo", 90)
        world.until_ready("KafkaTopic", "orders")
        before = world.pods()
        assert len(before) == 6
        with producing(world.certified()) as errors:
            world.declare(controllers=dedicated, security=RIGHTS, config={"num.partitions": 2})
            world.until_new(before, 120)
            world.until_ready("KafkaCluster", "demo", 60)
        assert errors == []
