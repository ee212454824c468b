"""Quotas of time, of partitions made and deleted, and of new connections: real clients before a real broker."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from e2e.asking import ask, message
from e2e.processes import free_ports
from kafka import KafkaAdminClient
from kafka.errors import NodeNotReadyError, ThrottlingQuotaExceededError
from tests.clients import test_librdkafka as rd
from tests.clients.running import RunningBroker
from tests.clients.test_quotas import change_quotas
from tests.contract.wire import WireClient
from tests.waiting import eventually

from ballast_wire.records import Record, encode_batch

VALUE = bytes(range(250)) * 40  # 10 kB
COUNT = 300
OVER = 89  # THROTTLING_QUOTA_EXCEEDED
SMALLEST = 1e-7  # percent: any request is too much


@pytest.fixture
def quotas(broker: RunningBroker) -> Iterator[Callable[..., None]]:
    """Sets some, and takes them away after the test."""
    made: list[tuple[dict[str, str | None], list[str]]] = []

    def change(entity: dict[str, str | None], **limits: float) -> None:
        made.append((entity, [*limits]))
        change_quotas(broker, entity, **limits)

    yield change
    for entity, keys in made:
        change_quotas(broker, entity, **dict.fromkeys(keys))


def counted(broker: RunningBroker, name: str, **labels: str) -> float:
    """The sum of what the page has under this name."""
    with urllib.request.urlopen(broker.metrics, timeout=10) as page:
        lines = page.read().decode().splitlines()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    found = [line for line in lines if line.startswith(name + "{") and all(each in line for each in wanted)]
    assert found, f"{name} is not on the page"
    return sum(float(line.rpartition(" ")[2]) for line in found)


# -- time -------------------------------------------------------------------------------------------------------------
@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(90)
def test_every_answer_tells_who_has_taken_too_much_time(
    broker: RunningBroker, topic: str, quotas: Callable[..., None]
) -> None:
    """And nothing is read from that connection for as long; one window at most."""
    rd.create(broker, topic)
    quotas({"client-id": "busy"}, request_percentage=SMALLEST)
    before = counted(broker, "ballast_quota_throttles_total", quota="request")
    host, _, port = broker.bootstrap.rpartition(":")
    with closing(WireClient(host, int(port), client_id="busy")) as client:
        for name, version, fields in (
            ("ApiVersions", 3, {"client_software_name": "a", "client_software_version": "1"}),
            ("Metadata", 9, {"topics": [], "allow_auto_topic_creation": False}),
            ("ListGroups", 4, {"states_filter": []}),
            ("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": ["g"]}),
            ("DescribeClientQuotas", 1, {"components": [], "strict": False}),
        ):
            began = time.monotonic()
            answer = client.call(message(name + "Request")(version=version, **fields), version)
            assert answer.throttle_time_ms == 1000, name
            again = client.call(message("ListGroupsRequest")(version=4, states_filter=[]), 4)
            assert again.throttle_time_ms == 1000
            assert time.monotonic() - began > 0.9, name
    assert counted(broker, "ballast_quota_throttles_total", quota="request") >= before + 10
    with closing(WireClient(host, int(port), client_id="idle")) as client:
        assert client.call(message("ListGroupsRequest")(version=4, states_filter=[]), 4).throttle_time_ms == 0


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(90)
def test_producers_and_consumers_are_told_and_get_everything(
    broker: RunningBroker, topic: str, quotas: Callable[..., None]
) -> None:
    rd.create(broker, topic)
    quotas({"client-id": "busy"}, request_percentage=SMALLEST)
    told: list[float] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap,
        "client.id": "busy",
        "throttle_cb": lambda event: told.append(event.throttle_time),
    }
    sender = Producer(settings | {"linger.ms": 50})
    broker.on_end.append(lambda: rd.end_producer(sender))
    began = time.monotonic()
    rd.send(sender, topic, [VALUE] * 10)
    assert told
    assert max(told) == 1.0
    reader = rd.consumer(broker, **{"client.id": "busy"})
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = rd.read(reader, 10)
    reader.close()
    assert [each.value() for each in found] == [VALUE] * 10
    assert time.monotonic() - began > 1.0


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(90)
def test_a_quota_that_is_enough_holds_nobody_up(broker: RunningBroker, topic: str, quotas: Callable[..., None]) -> None:
    rd.create(broker, topic)
    # So much, because time counts in which a broker that is at work is given no processor.
    quotas({"client-id": None}, request_percentage=10_000.0)
    before = counted(broker, "ballast_quota_throttles_total", quota="request")
    rd.send(rd.producer(broker), topic, [VALUE] * COUNT)
    reader = rd.consumer(broker)
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert len(rd.read(reader, COUNT)) == COUNT
    reader.close()
    assert counted(broker, "ballast_quota_throttles_total", quota="request") == before


def calls_in(broker: RunningBroker, client_id: str, seconds: float) -> int:
    host, _, port = broker.bootstrap.rpartition(":")
    request = message("MetadataRequest")(version=9, topics=None, allow_auto_topic_creation=False)
    count, ends = 0, time.monotonic() + seconds
    with closing(WireClient(host, int(port), client_id=client_id)) as client:
        while time.monotonic() < ends:
            client.call(request, 9)
            count += 1
    return count


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(90)
def test_who_may_have_little_time_gets_little_done(broker: RunningBroker, quotas: Callable[..., None]) -> None:
    quotas({"client-id": "busy"}, request_percentage=0.1)  # 10 ms at once, and a millisecond a second
    few = calls_in(broker, "busy", 2.0)
    eventually(lambda: calls_in(broker, "idle", 2.0) > 4 * few, "many more, once the machine does not stall")


# -- partitions made and deleted --------------------------------------------------------------------------------------
def outcome_of(future: Any) -> int:
    try:
        future.result(30)
    except KafkaException as error:
        return int(error.args[0].code())
    return 0


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(90)
def test_librdkafka_knows_nothing_of_it_and_is_held(
    broker: RunningBroker, topic: str, quotas: Callable[..., None]
) -> None:
    """Its versions are old: what it asks for is done, and it waits for its next answer."""
    quotas({"client-id": "maker"}, controller_mutation_rate=1.0)  # 11 at once
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "client.id": "maker"})
    before = counted(broker, "ballast_quota_throttles_total", quota="mutation")
    assert outcome_of(admin.create_topics([NewTopic(topic, 11, 1)])[topic]) == 0
    assert outcome_of(admin.create_partitions([NewPartitions(topic, 17)])[topic]) == 0
    began = time.monotonic()
    assert outcome_of(admin.delete_topics([topic])[topic]) == 0
    assert time.monotonic() - began > 1.0, "6 partitions beyond what is in the bucket"
    assert counted(broker, "ballast_quota_throttles_total", quota="mutation") >= before + 2


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(90)
def test_kafka_python_is_refused_waits_and_has_its_topic_then(
    broker: RunningBroker, topic: str, quotas: Callable[..., None]
) -> None:
    quotas({"client-id": "maker"}, controller_mutation_rate=1.0)  # 11 at once
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap, client_id="maker")
    try:
        admin.create_topics({topic: {"num_partitions": 21, "replication_factor": 1}})
        refusals: list[Exception] = []

        def is_made() -> bool:
            try:
                admin.create_topics({topic + "-2": {"num_partitions": 1, "replication_factor": 1}})
            except (ThrottlingQuotaExceededError, NodeNotReadyError) as error:  # it keeps to what it was told, too
                refusals.append(error)
                return False
            return True

        eventually(is_made, "the debt is paid")
        assert any(isinstance(each, ThrottlingQuotaExceededError) for each in refusals)
    finally:
        admin.close()
    assert topic + "-2" in rd.admin(broker).list_topics(timeout=10).topics


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(90)
def test_versions_that_know_nothing_of_it_are_carried_out_and_held(
    broker: RunningBroker, topic: str, quotas: Callable[..., None]
) -> None:
    quotas({"client-id": "maker"}, controller_mutation_rate=1.0)  # 11 at once
    host, _, port = broker.bootstrap.rpartition(":")
    kind = message("CreateTopicsRequest")
    new = kind.CreatableTopic(name=topic, num_partitions=21, replication_factor=1, assignments=[], configs=[])
    with closing(WireClient(host, int(port), client_id="maker")) as client:
        answer = client.call(kind(version=5, topics=[new], timeout_ms=9000, validate_only=False), 5)
        assert [each.error_code for each in answer.topics] == [0]
        assert 1000 < answer.throttle_time_ms <= 10_000  # making them takes of it
        began = time.monotonic()
        client.call(message("ListGroupsRequest")(version=4, states_filter=[]), 4)
        assert time.monotonic() - began > 0.9


def creation(name: str) -> Any:
    kind = message("CreateTopicsRequest")
    new = kind.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
    return kind(version=7, topics=[new], timeout_ms=9000, validate_only=False)


def answer_to_one(broker: RunningBroker, topic: str) -> int:
    """What is said of a topic of one partition."""
    with closing(WireClient("127.0.0.1", broker.port, client_id="maker")) as client:
        (answer,) = client.call(creation(topic), 7).topics
    return int(answer.error_code)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[RunningBroker]]:
    """A controller and two brokers, each in a process of its own."""
    ports = free_ports(3)
    shared: dict[str, str | int] = {
        "cluster.id": "MkU3OEVBNTcwNTJENDM2Qg",
        "controller.quorum.voters": f"9@127.0.0.1:{ports[0]}",
        "controller.listener.names": "CONTROLLER",
    }
    roles = ("controller", "broker", "broker")
    nodes = [
        RunningBroker(
            tmp_path / f"node-{port}",
            **shared
            | {
                "node.id": node_id,
                "process.roles": role,
                "listeners": f"{'PLAINTEXT' if role == 'broker' else 'CONTROLLER'}://127.0.0.1:{port}",
            },
        )
        for node_id, role, port in zip((9, 1, 2), roles, ports, strict=True)
    ]
    try:
        yield [node.start() for node in nodes]
    finally:
        for node in nodes:
            node.kill()


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(120)
def test_a_controller_in_another_process_knows_who_asks(cluster: list[RunningBroker]) -> None:
    """One bucket for all brokers, and the topics that clients make by asking for them count as well."""
    _, first, second = cluster
    change_quotas(first, {"client-id": "maker"}, controller_mutation_rate=0.01)
    deadline = time.monotonic() + 30
    made = 0
    while answer_to_one(first, f"a-{made}") == 0:
        made += 1
        assert time.monotonic() < deadline, "the controller has not heard of the quota"
    assert answer_to_one(first, "b") == OVER
    assert answer_to_one(second, "b") == OVER
    host, _, port = second.bootstrap.rpartition(":")
    asked = message("MetadataRequest")
    wish = asked(version=9, topics=[asked.MetadataRequestTopic(name="c")], allow_auto_topic_creation=True)
    with closing(WireClient(host, int(port), client_id="maker")) as client:
        client.call(wish, 9)
    free = AdminClient({"bootstrap.servers": first.bootstrap})
    assert outcome_of(free.create_topics([NewTopic("d", 3, 1)])["d"]) == 0
    eventually(lambda: "d" in free.list_topics(timeout=10).topics, "the broker has heard of the topic")
    assert set(free.list_topics(timeout=10).topics) == {"d", *(f"a-{number}" for number in range(made))}
    # At the controller itself, too, where nobody is held up but who asks.
    with closing(WireClient("127.0.0.1", cluster[0].port, client_id="maker")) as client:
        answer = client.call(creation("e"), 7)
        assert [each.error_code for each in answer.topics] == [OVER]
        assert answer.throttle_time_ms > 1000


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(120)
def test_what_nodes_say_to_each_other_is_beyond_any_quota(cluster: list[RunningBroker], topic: str) -> None:
    """Where nobody may take any time: heartbeats and the quorum go on, and followers follow."""
    controller, first, second = cluster
    admin = AdminClient({"bootstrap.servers": first.bootstrap})
    assert outcome_of(admin.create_topics([NewTopic(topic, 1, 2)])[topic]) == 0
    del admin  # it would ask for metadata now and then
    for entity in ({"client-id": None}, {"user": None}, {"user": None, "client-id": None}):
        change_quotas(first, entity, request_percentage=SMALLEST, consumer_byte_rate=1, controller_mutation_rate=0.001)
    (described,) = [
        each for each in ask(first.bootstrap, message("MetadataRequest")(version=12, topics=None), 12).topics
        if each.name == topic
    ]  # fmt: skip
    leader = first if described.partitions[0].leader_id == 1 else second
    asked = message("ListGroupsRequest")(version=4, states_filter=[])
    eventually(
        lambda: all(ask(each.bootstrap, asked, 4).throttle_time_ms == 1000 for each in (first, second)),
        "both brokers have heard of the quotas",
    )
    pages = {node.metrics: told_by(node) for node in cluster}
    kind = message("ProduceRequest")
    part = kind.TopicProduceData.PartitionProduceData(index=0, records=bytes(encode_batch([Record(value=b"v")])))
    with closing(WireClient("127.0.0.1", leader.port, client_id="writer")) as client:
        for _ in range(4):  # longer than a session lasts without a heartbeat every two seconds
            data = [kind.TopicProduceData(name=topic, partition_data=[part])]
            answer = client.call(kind(transactional_id=None, acks=-1, timeout_ms=5000, topic_data=data), 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
            assert answer.throttle_time_ms == 1000
    pages[leader.metrics] += 4
    assert {node.metrics: told_by(node) for node in cluster} == pages
    assert counted(controller, "ballast_request_duration_seconds_count", api="BrokerHeartbeat") > 2


def told_by(node: RunningBroker) -> float:
    """How often a node has told anybody to wait."""
    return counted(node, "ballast_quota_throttles_total")


# -- connections ------------------------------------------------------------------------------------------------------
def served(port: int) -> bool:
    """Whether a connection that is made now is let in."""
    with closing(WireClient("127.0.0.1", port, client_id="caller")) as client:
        try:
            client.call(message("ListGroupsRequest")(version=4, states_filter=[]), 4)
        except (OSError, EOFError):
            return False
        return True


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(90)
def test_an_address_makes_no_more_connections_than_its_quota_has(own_broker: Callable[..., RunningBroker]) -> None:
    broker = own_broker(**{"quota.window.num": 3})
    with closing(WireClient("127.0.0.1", broker.port, client_id="early")) as early:
        change_quotas(broker, {"ip": "127.0.0.1"}, connection_creation_rate=2)
        began = time.monotonic()
        outcomes = [served(broker.port) for _ in range(8)]
        assert outcomes[0]
        while all(outcomes):  # if the machine stalled meanwhile
            outcomes.append(served(broker.port))
        while not outcomes[-1]:  # who comes again later is let in
            outcomes.append(served(broker.port))
        assert time.monotonic() - began > 0.9
        kind = message("AlterClientQuotasRequest")
        entry = kind.EntryData(
            entity=[kind.EntryData.EntityData(entity_type="ip", entity_name="127.0.0.1")],
            ops=[kind.EntryData.OpData(key="connection_creation_rate", value=0.0, remove=True)],
        )
        answer = early.call(kind(version=1, entries=[entry], validate_only=False), 1)
        assert [each.error_code for each in answer.entries] == [0]
        while not served(broker.port):
            pass
        assert all(served(broker.port) for _ in range(20))
    assert counted(broker, "ballast_connections_refused_total") > 0


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(90)
def test_over_the_brokers_own_rate_all_wait_and_are_served(own_broker: Callable[..., RunningBroker]) -> None:
    """Of the file, and changed while it runs."""
    broker = own_broker(**{"quota.window.num": 2, "max.connection.creation.rate": 1000})
    assert all(served(broker.port) for _ in range(8))
    assert counted(broker, "ballast_connections_delayed_total") == 0
    kind = message("IncrementalAlterConfigsRequest")
    config = kind.AlterConfigsResource.AlterableConfig(
        name="max.connection.creation.rate", config_operation=0, value="4"
    )
    resource = kind.AlterConfigsResource(resource_type=4, resource_name="1", configs=[config])
    (answer,) = ask(broker.bootstrap, kind(resources=[resource], validate_only=False), 1).responses
    assert not answer.error_code, answer.error_message
    while (delayed := counted(broker, "ballast_connections_delayed_total")) == 0:
        served(broker.port)
    began = time.monotonic()
    assert all(served(broker.port) for _ in range(16))
    assert time.monotonic() - began > 0.9
    assert counted(broker, "ballast_connections_delayed_total") > delayed


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(90)
def test_a_socket_that_says_nothing_counts_like_any_other(own_broker: Callable[..., RunningBroker]) -> None:
    broker = own_broker(**{"quota.window.num": 2, "max.connection.creation.rate": 3})
    silent = [socket.create_connection(("127.0.0.1", broker.port), 10) for _ in range(18)]
    began = time.monotonic()
    assert served(broker.port)
    assert time.monotonic() - began > 0.9
    for each in silent:
        each.close()
