"""MirrorMaker 2 between a broker of Apache Kafka and one of ours, unchanged, with the properties of the page."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType
from e2e.processes import until
from tests.apache_java import java
from tests.clients.running import RunningBroker
from tests.clients.test_java_tools import run
from tests.clients.test_librdkafka import read
from tests.contract.nodes import Kafka
from tests.docs.commands import block, to_type

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.spec("CLI-14")]

PATIENCE_S = 60.0
RECORDS = 60  # of each partition, before each of the things that happen
HOUR_AGO_MS = int((time.time() - 3_600) * 1_000)
# Beside those of the page: one broker on each side, nobody waits for minutes, and a topic that goes back.
SHORTENED = """
replication.factor = 1
offset-syncs.topic.replication.factor = 1
checkpoints.topic.replication.factor = 1
config.storage.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
refresh.topics.interval.seconds = 1
refresh.groups.interval.seconds = 1
sync.topic.configs.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
sync.group.offsets.interval.seconds = 1
plugin.discovery = only_scan
old->new.topics = orders
new->old.enabled = true
new->old.topics = back
new.consumer.isolation.level = read_committed
"""
Seen = tuple[bytes | None, bytes | None, tuple[int, int], object]


class Side:
    """One of the clusters, as clients see it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def configs(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = self.admin.describe_configs([resource])[resource].result(PATIENCE_S)
        return {name: entry.value for name, entry in found.items() if entry.source == 1}

    def has(self, topic: str, partitions: int) -> bool:
        known = self.admin.list_topics(timeout=PATIENCE_S).topics.get(topic)
        return known is not None and len(known.partitions) == partitions

    def everything(self, topic: str, places: Mapping[int, int] | None = None) -> dict[int, list[Seen]]:
        """What readers of committed records are given, in its order; from these places on."""
        reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "unused", "enable.auto.commit": False,
                           "isolation.level": "read_committed", "enable.partition.eof": True})  # fmt: skip
        known = self.admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        reader.assign([TopicPartition(topic, number, (places or {}).get(number, 0)) for number in known])
        found: dict[int, list[Seen]] = {number: [] for number in known}
        ended: set[int | None] = set()
        try:
            while ended != set(known):
                for each in reader.consume(500, 0.2):
                    if each.error() is not None:
                        ended.add(each.partition())
                    else:
                        found[each.partition() or 0].append(seen(each))
        finally:
            reader.close()
        return found


def seen(record: Message) -> Seen:
    return record.key(), record.value(), record.timestamp(), record.headers()


def values(found: Mapping[int, list[Seen]]) -> set[bytes | None]:
    return {value for of_partition in found.values() for _, value, _, _ in of_partition}


@pytest.fixture
def sides(own_broker: Callable[..., RunningBroker], tmp_path: Path) -> Iterator[tuple[Side, Side, RunningBroker]]:
    """Apache Kafka, and ours."""
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        ours = pool.submit(own_broker)
        kafka = Kafka(tmp_path / "kafka")
        stack.callback(kafka.stop)
        ours.result().stays_where_it_is()
        kafka.await_ready()
        yield Side(f"localhost:{kafka.port}"), Side(ours.result().bootstrap), ours.result()


@contextlib.contextmanager
def mirroring(folder: Path, old: Side, new: Side) -> Iterator[None]:
    page = block("docs/migrate.md", "clusters = old, new")
    properties = page.replace("OLD:9092", old.bootstrap).replace("NEW:9092", new.bootstrap) + SHORTENED
    file = folder / "mirror.properties"
    file.write_text(properties)
    (command,) = [each for each in to_type(HERE) if each.startswith("connect-mirror-maker.sh")]
    with (folder / "mirror.log").open("w") as log:
        program = java("org.apache.kafka.connect.mirror.MirrorMaker", *command.split()[1:])
        process = subprocess.Popen(program, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.kill()
        process.wait(PATIENCE_S)


HERE = "tests/clients/test_mirrormaker.py::test_topics_and_groups_go_over_as_the_page_says"


def write(sender: Producer, topic: str, name: str, partitions: int) -> None:
    for number in range(RECORDS * partitions):
        sender.produce(
            topic, f"{name} {number}", f"key {number}", number % partitions, timestamp=HOUR_AGO_MS + number,
            headers=[("n", b"%d" % number), ("n", b""), ("null", None)],
        )  # fmt: skip
    sender.flush()


def write_to(side: Side, name: str, partitions: int) -> None:
    sender = Producer({"bootstrap.servers": side.bootstrap, "enable.idempotence": True})
    write(sender, "orders", name, partitions)
    sender.close()


def committed_and_aborted(side: Side, topic: str) -> None:
    sender = Producer({"bootstrap.servers": side.bootstrap, "transactional.id": topic})
    sender.init_transactions(PATIENCE_S)
    for number, ends in enumerate((sender.abort_transaction, sender.commit_transaction, sender.abort_transaction)):
        sender.begin_transaction()
        write(sender, topic, f"{number} in a transaction", 2)
        ends(PATIENCE_S)


def typed(text: str, old: Side, new: Side) -> str:
    """What the tool says to a command of the page."""
    for word, instead in (("OLD:9092", old.bootstrap), ("NEW:9092", new.bootstrap), ("GROUP", "shop"),
                          ("TOPIC", "orders"), ("10000", "3000")):  # fmt: skip
        text = text.replace(word, instead)
    program, *words = text.split()
    return run(program.removeprefix("kafka-").removesuffix(".sh"), *words)


def committed(told: str) -> dict[int, int]:
    """By what the tool says of the group, where it goes on in each partition."""
    places = re.findall(r"^shop +orders +(\d+) +(\d+) ", told, re.MULTILINE)
    return {int(partition): int(offset) for partition, offset in places}


def ends_of(told: str) -> dict[str, int]:
    return {number: int(end) for number, end in re.findall(r"^orders:(\d+):(\d+)$", told, re.MULTILINE)}


def last_mirrored(told: str) -> dict[str, int]:
    found = re.findall(r'"partition":(\d+),"topic":"orders"}]\t{"offset":(\d+)}', told)
    return {number: int(offset) for number, offset in found}  # the last one counts


def test_topics_and_groups_go_over_as_the_page_says(sides: tuple[Side, Side, RunningBroker], tmp_path: Path) -> None:
    old, new, ours = sides
    of_both = {"retention.ms": "-1", "max.message.bytes": "2000000", "cleanup.policy": "compact,delete"}
    of_old = {"min.insync.replicas": "1", "local.retention.ms": "-2"}
    for side, topic, configs in ((old, "orders", of_both | of_old), (new, "back", {})):
        side.admin.create_topics([NewTopic(topic, 2, 1, config=configs)])[topic].result(PATIENCE_S)
        committed_and_aborted(side, topic)
    settings = {"group.id": "shop", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    done: set[bytes | None] = set()

    def read_on(records: int) -> None:
        first = Consumer({"bootstrap.servers": old.bootstrap, "enable.auto.commit": False, **settings})
        first.subscribe(["orders"])
        done.update(each.value() for each in read(first, records))
        first.commit(asynchronous=False)
        first.close()

    read_on(RECORDS + RECORDS // 2)
    with mirroring(tmp_path, old, new):
        assert until(lambda: new.has("orders", 2), PATIENCE_S), (tmp_path / "mirror.log").read_text()
        write_to(old, "early", 2)
        assert until(lambda: new.everything("orders") == old.everything("orders"), PATIENCE_S)
        assert until(lambda: old.has("back", 2) and old.everything("back") == new.everything("back"), PATIENCE_S)
        ours.kill()
        write_to(old, "meanwhile", 2)
        old.admin.create_partitions([NewPartitions("orders", 3)])["orders"].result(PATIENCE_S)
        ours.start()
        write_to(old, "late", 3)
        assert until(lambda: new.has("orders", 3), PATIENCE_S)
        assert until(lambda: new.everything("orders") == old.everything("orders"), PATIENCE_S)
        of_old_group, of_new_group, ends, mirrored = to_type(HERE)[1:]

        def carried_over() -> bool:
            """A group that stopped before the first place that MirrorMaker noted has to read on, as the page says."""
            stopped_in = committed(typed(of_old_group, old, new)).keys()
            if committed(typed(of_new_group, old, new)).keys() == stopped_in:
                return True
            read_on(RECORDS)
            return False

        assert until(carried_over, PATIENCE_S)
        ended = ends_of(typed(ends, old, new))
        last = {number: end - 1 for number, end in ended.items()}
        assert until(lambda: last_mirrored(typed(mirrored, old, new)) == last, PATIENCE_S)
        assert len(ended) == 3
    assert new.configs("orders") == of_both
    goes_on_at = committed(typed(of_new_group, old, new))
    assert min(goes_on_at.values()) > 0
    left = values(new.everything("orders", goes_on_at))
    assert left | done == values(new.everything("orders"))
    there = Consumer({"bootstrap.servers": new.bootstrap, **settings})
    for number, found in new.everything("orders").items():
        _, end = there.get_watermark_offsets(TopicPartition("orders", number), timeout=PATIENCE_S)
        assert end > len(found), "there are no markers: without transactions a worker that dies writes records again"
    there.subscribe(["orders"])
    assert {each.value() for each in read(there, len(left))} == left
    there.close()
