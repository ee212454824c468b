"""Spark's own connector: batch reads and writes, and queries that end by themselves, checked record by record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions
from tests.clients.running import RunningBroker
from tests.clients.running_spark import Record, RunningSpark, SparkFailure
from tests.clients.test_librdkafka import PATIENCE_S, admin, consumer, create, from_beginning, producer, read
from tests.clients.test_transactions import transactional

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.spec("CLI-03")]

PARTITIONS = 3
EACH = 20
BEGUN_MS = 1_700_000_000_000
STEP_MS = 1_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSpark]:
    with RunningSpark(tmp_path_factory.mktemp("spark") / "driver.log") as running:
        yield running


Reading = Callable[..., list[Record]]


@pytest.fixture
def found(spark: RunningSpark, broker: RunningBroker) -> Reading:
    """What a batch read with these options finds, in its order within each partition."""

    def find(**options: str) -> list[Record]:
        chosen = {"includeHeaders": "true", "kafka.fetch.max.wait.ms": "20", **options}
        return in_order(spark.read(broker.bootstrap, **chosen))

    return find


def fill(
    sender: Producer, topic: str, count: int = EACH, partitions: Iterable[int] = range(PARTITIONS)
) -> list[Record]:
    """So many into each partition, with all that a record may have and lack; as Spark is to find them."""
    records: list[Record] = [
        {
            "topic": topic, "partition": partition, "offset": number,
            "key": None if number % 3 == 0 else f"key {number}",
            "value": None if number % 5 == 4 else f"value {partition} {number}",
            "headers": [["a", str(number)], ["a", "ä"], ["none", None]] if number % 2 else None,
            "timestamp_ms": BEGUN_MS + number * STEP_MS + partition, "timestampType": 0,
        }
        for partition in partitions for number in range(count)
    ]  # fmt: skip
    for each in records:
        sender.produce(
            topic, each["value"], each["key"], each["partition"], timestamp=each["timestamp_ms"],
            headers=[tuple(header) for header in each["headers"] or ()],
        )  # fmt: skip
    assert sender.flush(PATIENCE_S) == 0
    return records


def per_partition(topic: str, *values: int) -> str:
    return json.dumps({topic: {str(partition): value for partition, value in enumerate(values)}})


def test_all_that_is_in_a_record_is_read_however_it_was_compressed(
    broker: RunningBroker, found: Reading, topic: str
) -> None:
    create(broker, topic, len(CODECS), retention_ms="-1")
    records = [
        each
        for partition, codec in enumerate(CODECS)
        for each in fill(producer(broker, compression_type=codec), topic, EACH, [partition])
    ]
    assert found(subscribe=topic) == records


def test_ranges_by_offset_and_by_time(broker: RunningBroker, found: Reading, topic: str) -> None:
    create(broker, topic, PARTITIONS, retention_ms="-1")
    records = fill(producer(broker), topic)

    def of(*ranges: range) -> list[Record]:
        return [each for each in records if each["offset"] in ranges[each["partition"]]]

    offsets = {"startingOffsets": per_partition(topic, -2, 5, 7)}
    assert found(subscribe=topic, **offsets) == of(range(EACH), range(5, EACH), range(7, EACH))
    offsets["endingOffsets"] = per_partition(topic, 3, -1, 8)
    assert found(assign=json.dumps({topic: [0, 1, 2]}), **offsets) == of(range(3), range(5, EACH), range(7, 8))
    times = {
        "startingOffsetsByTimestamp": per_partition(topic, *[BEGUN_MS + (n + 2) * STEP_MS for n in range(3)]),
        "endingOffsetsByTimestamp": per_partition(topic, *[BEGUN_MS + 10 * STEP_MS + 1] * 3),
    }
    assert found(subscribe=topic, **times) == of(range(2, 11), range(3, 10), range(4, 10))
    since = {"startingTimestamp": str(BEGUN_MS + 18 * STEP_MS + 1)}
    assert found(subscribePattern=f"{topic[:-1]}.", **since) == of(range(19, EACH), range(18, EACH), range(18, EACH))
    late = {"startingTimestamp": str(BEGUN_MS + EACH * STEP_MS)}
    with pytest.raises(SparkFailure, match="No offset matched"):
        found(subscribe=topic, **late, **{"fetchOffset.numRetries": "1"})
    assert found(subscribe=topic, startingOffsetsByTimestampStrategy="latest", **late) == []


def test_one_partition_read_in_many_pieces(broker: RunningBroker, found: Reading, topic: str) -> None:
    create(broker, topic, PARTITIONS, retention_ms="-1")
    records = fill(producer(broker, batch_num_messages=7), topic, 500)
    pieces = {"minPartitions": "16", "kafka.max.poll.records": "11", "kafka.max.partition.fetch.bytes": "900"}
    assert found(subscribe=topic, **pieces) == records


def test_what_is_committed_is_read(broker: RunningBroker, found: Reading, topic: str) -> None:
    create(broker, topic)
    sender, other = transactional(broker, topic), transactional(broker, f"{topic}-other")
    values = []
    for number in range(6):
        sender.begin_transaction()
        sender.produce(topic, f"{number}", partition=0)
        sender.flush(PATIENCE_S)
        if number % 2:
            sender.abort_transaction(PATIENCE_S)
        else:
            sender.commit_transaction(PATIENCE_S)
            values.append(f"{number}")
    other.begin_transaction()
    other.produce(topic, "open", partition=0)
    other.flush(PATIENCE_S)
    sender.begin_transaction()
    sender.produce(topic, "behind", partition=0)
    sender.commit_transaction(PATIENCE_S)

    def read_values(isolation: str) -> list[str]:
        return [each["value"] for each in found(subscribe=topic, **{"kafka.isolation.level": isolation})]

    assert read_values("read_committed") == values
    assert read_values("read_uncommitted") == ["0", "1", "2", "3", "4", "5", "open", "behind"]
    other.commit_transaction(PATIENCE_S)
    assert read_values("read_committed") == [*values, "open", "behind"]


def test_records_that_are_gone_are_told_or_passed_over(
    spark: RunningSpark, broker: RunningBroker, found: Reading, topic: str, tmp_path: Path
) -> None:
    create(broker, topic, PARTITIONS, retention_ms="-1")
    records = fill(producer(broker), topic)
    deleted = admin(broker).delete_records([TopicPartition(topic, 1, 9)])
    assert [each.result(PATIENCE_S).low_watermark for each in deleted.values()] == [9]
    left = [each for each in records if each["partition"] != 1 or each["offset"] >= 9]
    assert found(subscribe=topic) == left
    wanted = {"subscribe": topic, "startingOffsets": per_partition(topic, 0, 4, 0)}
    with pytest.raises(SparkFailure, match=r"(?i)data ?loss"):
        found(**wanted)
    assert found(failOnDataLoss="false", **wanted) == left


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_is_written(spark: RunningSpark, broker: RunningBroker, topic: str, codec: str) -> None:
    create(broker, topic, PARTITIONS)
    records = [
        {"topic": topic, "partition": number % PARTITIONS, "key": f"{number}" if number % 2 else None,
         "value": f"value {number}" if number % 7 else None,
         "headers": [["n", str(number)], ["none", None]] if number % 3 else None}
        for number in range(300)
    ]  # fmt: skip
    options = {"kafka.bootstrap.servers": broker.bootstrap, "kafka.compression.type": codec, "includeHeaders": "true"}
    spark.do("write", options=options, sent=records)
    assert by_number(stored(broker, topic, 300)) == by_number(records)


def in_order(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: (record["partition"], record["offset"]))


def by_number(records: list[Record]) -> list[str]:
    return sorted(json.dumps(record, sort_keys=True) for record in records)


def stored(broker: RunningBroker, topic: str, count: int) -> list[Record]:
    """What another client finds."""
    reader = consumer(broker)
    reader.assign(from_beginning(topic, PARTITIONS))
    messages = read(reader, count)
    reader.close()
    return [
        {"topic": topic, "partition": each.partition(), "key": text(each.key()), "value": text(each.value()),
         "headers": headers_of(each)}
        for each in messages
    ]  # fmt: skip


def headers_of(message: Message) -> list[list[str | None]] | None:
    headers = message.headers()
    if headers is None:
        return None
    assert isinstance(headers, list)
    return [[name, text(value)] for name, value in headers]


def text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def test_queries_that_take_what_is_there_and_end(
    spark: RunningSpark, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """From a time on, each run from where the last one ended, with partitions that were not there before."""
    create(broker, topic, PARTITIONS - 1, retention_ms="-1")
    sender = producer(broker)
    records = [each for each in fill(sender, topic, EACH, range(PARTITIONS - 1)) if each["offset"] >= 6]
    source = {
        "kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "includeHeaders": "true",
        "startingTimestamp": str(BEGUN_MS + 6 * STEP_MS), "maxOffsetsPerTrigger": "10",
    }  # fmt: skip
    sink = {"path": str(tmp_path / "files"), "checkpointLocation": str(tmp_path / "checkpoint")}

    def run() -> list[Record]:
        spark.do("stream", name=topic, source=source, form="parquet", sink=sink, trigger={"availableNow": True})
        spark.do("end", name=topic)
        return in_order(spark.do("files", path=sink["path"]))

    assert run() == in_order(records)
    assert run() == in_order(records)
    admin(broker).create_partitions([NewPartitions(topic, PARTITIONS)])[topic].result(PATIENCE_S)
    records += fill(producer(broker), topic, EACH, [PARTITIONS - 1])
    assert run() == in_order(records)
