"""Groups of the consumer protocol (KIP-848), as librdkafka plays it."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient, NewPartitions
from e2e.clients import place_of
from tests.clients.running import RunningBroker
from tests.clients.test_librdkafka import PATIENCE_S, admin, create, producer, send
from tests.waiting import eventually

pytestmark = [pytest.mark.spec("CLI-04"), pytest.mark.timeout(120)]

# Members are fast, but a machine that stalls for seconds puts nobody out: who is may read again what he has committed.
FAST = {
    "group_consumer_heartbeat_interval_ms": 100,
    "group_consumer_min_heartbeat_interval_ms": 100,
    "group_consumer_session_timeout_ms": 15_000,
    "group_consumer_min_session_timeout_ms": 1000,
}
CLASSIC = {"group.protocol": "classic", "partition.assignment.strategy": "cooperative-sticky"}
PASSING = (KafkaError.STALE_MEMBER_EPOCH, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR)


class Reader:
    """A member in a thread of its own: commits each message before it asks for the next one."""

    def __init__(self, broker: RunningBroker, group: str, topics: list[str], **config: Any) -> None:
        self.seen: list[tuple[str, int, int]] = []
        self.assigned: set[tuple[str, int]] = set()
        self.failures: list[BaseException] = []
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 500,
                **config,
            }
        )
        self._consumer.subscribe(topics, on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _assign(self, consumer: Consumer, partitions: list[Partition]) -> None:
        self.assigned |= {(each.topic, each.partition) for each in partitions}
        consumer.incremental_assign(partitions)

    def _revoke(self, consumer: Consumer, partitions: list[Partition]) -> None:
        self.assigned -= {(each.topic, each.partition) for each in partitions}
        consumer.incremental_unassign(partitions)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                message = self._consumer.poll(0.1)
                if message is not None and message.error() is None:
                    self.seen.append((message.topic() or "", *place_of(message)))
                    self._commit(message)
        except BaseException as error:
            self.failures.append(error)
        finally:
            self._consumer.close()

    def _commit(self, message: Any) -> None:
        while not self._stopping.is_set() or self.assigned:
            try:
                self._consumer.commit(message=message, asynchronous=False)
                return
            except KafkaException as error:
                if error.args[0].code() not in PASSING:
                    raise

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert not self.failures, self.failures


Join = Callable[..., Reader]


@pytest.fixture
def fast_broker(own_broker: Callable[..., RunningBroker]) -> RunningBroker:
    return own_broker(**FAST)


@pytest.fixture
def join(fast_broker: RunningBroker) -> Iterator[Join]:
    readers: list[Reader] = []

    def joined(group: str, topics: list[str], **config: Any) -> Reader:
        readers.append(Reader(fast_broker, group, topics, **config))
        return readers[-1]

    yield joined
    for reader in readers:
        reader.stop()


def shared(readers: list[Reader], topic: str, count: int) -> Callable[[], bool]:
    def reached() -> bool:
        every = [each for reader in readers for each in list(reader.assigned)]
        sizes = [len(reader.assigned) for reader in readers]
        return sorted(every) == [(topic, number) for number in range(count)] and max(sizes) - min(sizes) <= 1

    return reached


def write(broker: RunningBroker, topic: str, partitions: int, each: int) -> set[tuple[str, int, int]]:
    sender = producer(broker)
    sent = [m for number in range(partitions) for m in send(sender, topic, [b"v"] * each, partition=number)]
    return {(topic, *place_of(m)) for m in sent}


def all_seen(readers: list[Reader], wanted: set[tuple[str, int, int]]) -> Callable[[], bool]:
    return lambda: {one for reader in readers for one in list(reader.seen)} >= wanted


def test_members_come_and_go_and_every_message_is_read_once(fast_broker: RunningBroker, join: Join, topic: str) -> None:
    create(fast_broker, topic, partitions=6)
    wanted = write(fast_broker, topic, 6, 40)
    readers = [join("g", [topic])]
    eventually(shared(readers, topic, 6), "one has all")
    readers += [join("g", [topic]), join("g", [topic])]
    wanted |= write(fast_broker, topic, 6, 40)
    eventually(shared(readers, topic, 6), "three share")
    readers[0].stop()
    wanted |= write(fast_broker, topic, 6, 20)
    eventually(shared(readers[1:], topic, 6), "two go on")
    eventually(all_seen(readers, wanted), "all is read")
    for reader in readers[1:]:
        reader.stop()
    times = Counter(one for reader in readers for one in reader.seen)
    assert times == Counter(wanted)


def test_a_topic_that_grows_and_a_pattern_that_comes_to_mean_more(
    fast_broker: RunningBroker, join: Join, topic: str
) -> None:
    create(fast_broker, topic, partitions=2)
    by_name, by_pattern = join("names", [topic]), join("pattern", [f"^{topic}.*"])
    for reader in (by_name, by_pattern):
        eventually(shared([reader], topic, 2), "both partitions are read")
    admin(fast_broker).create_partitions([NewPartitions(topic, 5)])[topic].result(PATIENCE_S)
    for reader in (by_name, by_pattern):
        eventually(shared([reader], topic, 5), "the new partitions are read")
    wanted = write(fast_broker, topic, 5, 5)
    create(fast_broker, topic + "-more")
    wanted_more = write(fast_broker, topic + "-more", 1, 5)
    eventually(all_seen([by_name], wanted), "all is read by name")
    eventually(all_seen([by_pattern], wanted | wanted_more), "the new topic is read, too")
    client = admin(fast_broker)
    client.delete_topics([topic + "-more"])[topic + "-more"].result(PATIENCE_S)
    eventually(shared([by_pattern], topic, 5), "what is gone is given up")


def test_the_coordinator_is_killed_and_the_group_goes_on(fast_broker: RunningBroker, join: Join, topic: str) -> None:
    create(fast_broker, topic, partitions=4)
    wanted = write(fast_broker, topic, 4, 20)
    readers = [join("g", [topic]), join("g", [topic])]
    eventually(shared(readers, topic, 4), "they share")
    eventually(all_seen(readers, wanted), "all is read")
    before = described(fast_broker, "g")
    port = fast_broker.port
    fast_broker.kill()
    fast_broker._properties["listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
    fast_broker.start()
    wanted |= write(fast_broker, topic, 4, 20)
    eventually(all_seen(readers, wanted), "what came since is read")
    after = described(fast_broker, "g")
    assert {m.member_id for m in after.members} == {m.member_id for m in before.members}
    assert [set_of(m) for m in sorted(after.members, key=id_of)] == [
        set_of(m) for m in sorted(before.members, key=id_of)
    ]


def id_of(member: Any) -> str:
    return str(member.member_id)


def set_of(member: Any) -> set[tuple[str, int]]:
    return {(each.topic, each.partition) for each in member.assignment.topic_partitions}


def described(broker: RunningBroker, group: str) -> Any:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    return client.describe_consumer_groups([group])[group].result(PATIENCE_S)


def test_a_static_member_comes_back_to_what_it_had(fast_broker: RunningBroker, join: Join, topic: str) -> None:
    create(fast_broker, topic, partitions=4)
    static = {"group.instance.id": "one"}
    first, other = join("g", [topic], **static), join("g", [topic], **{"group.instance.id": "two"})
    eventually(shared([first, other], topic, 4), "they share")
    had, kept = set(first.assigned), set(other.assigned)
    first.stop()
    again = join("g", [topic], **static)
    eventually(lambda: again.assigned == had, "it has what it had")
    assert other.assigned == kept
    again.stop()
    eventually(shared([other], topic, 4), "after its session the other one has all", 60)


def test_groups_of_both_kinds_are_told_apart(fast_broker: RunningBroker, join: Join, topic: str) -> None:
    create(fast_broker, topic, partitions=2)
    wanted = write(fast_broker, topic, 2, 3)
    reader = join("new", [topic])
    eventually(all_seen([reader], wanted), "all is read")
    client = admin(fast_broker)
    group = described(fast_broker, "new")
    assert (group.state, group.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    assert [set_of(member) for member in group.members] == [{(topic, 0), (topic, 1)}]
    with urllib.request.urlopen(fast_broker.metrics) as page:
        told = page.read().decode()
    assert 'group="new",state="Stable"} 1' in told
    assert re.search(r'ballast_group_members\{.*group="new"\} 1\n', told)
    assert re.search(rf'ballast_group_lag\{{group="new".*topic="{topic}".*\}} 0\n', told)
    listed = client.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(PATIENCE_S).valid
    assert [each.group_id for each in listed] == ["new"]
    assert client.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result(PATIENCE_S).valid == []
    with pytest.raises(KafkaException) as caught:
        client.delete_consumer_groups(["new"])["new"].result(PATIENCE_S)
    assert caught.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    reader.stop()
    # Empty, it is anybody's, and the offsets stay where they were.
    more = write(fast_broker, topic, 2, 3)
    classic = join("new", [topic], **CLASSIC)
    eventually(all_seen([classic], more), "a classic member goes on")
    classic.stop()
    assert set(classic.seen) == more
    last = write(fast_broker, topic, 2, 3)
    third = join("new", [topic])
    eventually(all_seen([third], last), "and one of the consumer protocol after it")
    third.stop()
    assert set(third.seen) == last
    client.delete_consumer_groups(["new"])["new"].result(PATIENCE_S)
