"""From records to images: Kafka's own log, equivalent snapshots, and costs in proportion to the change."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker import turning

from ballast_broker.metadata.batches import read_batches
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.features import METADATA_VERSION_LEVEL
from ballast_broker.metadata.gate import whole
from ballast_broker.metadata.image import EMPTY_IMAGE, MetadataImage, PartitionRegistration
from ballast_broker.metadata.loader import MetadataLoader
from ballast_broker.metadata.persistent import PersistentMap, at_once
from ballast_broker.metadata.records import (
    RECORD_NAMES,
    WRITTEN_VERSIONS,
    MalformedRecord,
    decode_record,
    encode_record,
    record,
)
from ballast_broker.metadata.snapshot import image_records, partition_record
from ballast_wire.records import decode_records, iterate_batches

KAFKA_LOG = Path(__file__).parent / "apache-kafka-4.1.1-metadata.log"


@pytest.mark.spec("CLU-03")
def test_records_of_apache_kafka_come_out_byte_for_byte() -> None:
    count = 0
    for batch in iterate_batches(memoryview(KAFKA_LOG.read_bytes())):
        if batch.is_control:
            continue
        for each in decode_records(batch):
            assert each.value is not None
            assert encode_record(decode_record(each.value)) == each.value
            count += 1
    assert count > 15


@pytest.mark.spec("CLU-03")
def test_what_is_written_at_the_level_of_27_is_what_every_node_of_that_level_reads() -> None:
    """A node of another release stops at a record that it cannot read: a change here needs a new level."""
    assert METADATA_VERSION_LEVEL == 27
    assert sorted(RECORD_NAMES) == [*range(6), *range(7, 13), 14, 15, *range(17, 21), *range(22, 29)]
    assert WRITTEN_VERSIONS == {
        "RegisterBrokerRecord": 3,
        "PartitionRecord": 2,
        "PartitionChangeRecord": 2,
        "BrokerRegistrationChangeRecord": 2,
    }


@pytest.mark.spec("CLU-03")
def test_apache_kafkas_log_makes_an_image() -> None:
    image = kafka_image()
    assert image.features.level("metadata.version") == 27
    topic = image.topics.by_name("foo")
    assert topic is not None
    assert [each.replicas for _, each in topic.sorted_partitions()] == [(1,), (1,)]
    broker = image.cluster.brokers[1]
    assert broker.listeners["PLAINTEXT"].host == "localhost"
    assert image.configs.of(4, "") == {"min.insync.replicas": "1"}


def kafka_image() -> MetadataImage:
    loader = MetadataLoader()
    for batch in read_batches(KAFKA_LOG.read_bytes()):
        turning.at_one_go(loader.apply(batch.records, batch.last_offset, batch.epoch))
    return loader.image


@pytest.mark.spec("CLU-03")
def test_a_snapshot_says_what_the_log_said() -> None:
    image = kafka_image()
    again = MetadataLoader()
    records = [decode_record(encode_record(each)) for each in image_records(image)]
    turning.at_one_go(again.load_snapshot(records, image.offset, image.epoch))
    assert again.image == image


def topic_records(name: str, partitions: int, seed: int = 1) -> list[Any]:
    topic_id = uuid.UUID(int=seed * 1000 + 100)
    records = [record("TopicRecord", name=name, topic_id=topic_id)]
    for index in range(partitions):
        place = (uuid.UUID(int=500),)
        records.append(partition_record(topic_id, index, PartitionRegistration((1,), place, (1,), leader=1)))
    return records


def test_publishers_see_each_batch_and_what_changed_in_it() -> None:
    seen: list[tuple[set[str], set[str]]] = []

    def publish(delta: MetadataDelta, image: MetadataImage) -> None:
        changed = {each.name for each in delta.topics_changed.values()}
        seen.append((changed, {each.name for each in delta.topics_deleted.values()}))
        assert all(image.topics.by_name(name) is not None for name in changed)

    loader = MetadataLoader([publish])
    turning.at_one_go(loader.apply(topic_records("a", 2), 2, 1))
    turning.at_one_go(loader.apply(topic_records("b", 1, seed=2), 4, 1))
    turning.at_one_go(loader.apply([record("RemoveTopicRecord", topic_id=uuid.UUID(int=1100))], 5, 1))
    assert seen == [({"a"}, set()), ({"b"}, set()), (set(), {"a"})]


@pytest.mark.spec("CLI-09")
def test_records_are_replayed_one_in_a_step_and_seen_all_at_once() -> None:
    seen: list[MetadataImage] = []
    loader = MetadataLoader([lambda _delta, image: seen.append(image)])
    records = topic_records("a", 9)
    for steps in (loader.apply(records, 9, 1), loader.load_snapshot(topic_records("b", 9, seed=2), 9, 1)):
        before, told = loader.image, len(seen)
        for _ in records:
            next(steps)
            assert loader.image is before
            assert len(seen) == told
        turning.at_one_go(steps)
        assert seen[told:] == [loader.image]
    assert [topic.name for topic in loader.image.topics] == ["b"]


@pytest.mark.spec("CLI-09")
def test_an_image_of_many_topics_is_made_in_steps_and_so_are_its_differences() -> None:
    topics = [each for number in range(300) for each in topic_records(f"t.{number}", 1, seed=number + 1)]
    configs = [
        record("ConfigRecord", resource_type=2, resource_name=f"t.{number}", name="retention.ms", value="1")
        for number in range(300)
    ]
    records = [*topics, *configs]
    loader = MetadataLoader()
    for offset in (999, 1999):
        steps, before = loader.load_snapshot(records, offset, 1), loader.image
        for done in range(len(records) + 4 * 300):  # replayed, then looked at by all that makes the image of them
            next(steps)
            assert loader.image is before, f"after {done} steps"
        turning.at_one_go(steps)
        assert (len(loader.image.topics), loader.image.offset) == (300, offset)
    assert len(list(whole(loader.image))) == 600


@pytest.mark.spec("CLI-09")
def test_a_transaction_of_many_records_ends_in_steps() -> None:
    loader = MetadataLoader()
    turning.at_one_go(loader.apply([record("BeginTransactionRecord", name="x"), *topic_records("a", 50)], 51, 1))
    steps = loader.apply([record("EndTransactionRecord")], 52, 1)
    for _ in range(50):
        next(steps)
        assert loader.image.topics.by_name("a") is None
    turning.at_one_go(steps)
    assert loader.image.topics.by_name("a") is not None


def test_a_snapshot_over_an_older_image_tells_what_went() -> None:
    loader = MetadataLoader()
    turning.at_one_go(loader.apply([*topic_records("old", 1), *topic_records("kept", 1, seed=2)], 3, 1))
    deltas: list[MetadataDelta] = []
    loader.publishers.append(lambda delta, _image: deltas.append(delta))
    turning.at_one_go(loader.load_snapshot([*topic_records("kept", 1, seed=2), *topic_records("new", 1, seed=3)], 9, 2))
    assert [each.name for each in deltas[0].topics_deleted.values()] == ["old"]
    assert {each.name: each.is_new for each in deltas[0].topics_changed.values()} == {"kept": False, "new": True}
    assert [topic.name for topic in loader.image.topics] == ["kept", "new"]


def test_a_transaction_becomes_visible_at_its_end_or_never() -> None:
    loader = MetadataLoader()
    turning.at_one_go(loader.apply([record("BeginTransactionRecord", name="t"), *topic_records("a", 1)], 2, 1))
    assert len(loader.image.topics) == 0
    turning.at_one_go(loader.apply([record("EndTransactionRecord")], 3, 1))
    assert len(loader.image.topics) == 1
    turning.at_one_go(loader.apply([record("BeginTransactionRecord"), *topic_records("b", 1, seed=2)], 6, 1))
    turning.at_one_go(loader.apply([record("AbortTransactionRecord", reason="no")], 7, 1))
    assert len(loader.image.topics) == 1


def test_a_record_that_fits_nothing_is_an_error() -> None:
    delta = MetadataDelta(EMPTY_IMAGE)
    with pytest.raises(MalformedRecord, match="does not exist"):
        delta.replay(record("PartitionChangeRecord", topic_id=uuid.UUID(int=700), partition_id=0))
    with pytest.raises(MalformedRecord, match="unknown metadata record 99"):
        decode_record(b"\x01\x63\x00\x00")
    with pytest.raises(MalformedRecord, match="unknown frame version"):
        decode_record(b"\x02\x02\x00\x00")
    with pytest.raises(MalformedRecord):
        decode_record(encode_record(record("TopicRecord", name="abc", topic_id=uuid.UUID(int=700)))[:-9])


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 300)), max_size=300), st.integers(1, 150))
def test_a_persistent_map_is_a_map_and_old_versions_stay(edits: list[tuple[bool, int]], step: int) -> None:
    model: dict[int, int] = {}
    current: PersistentMap[int, int] = PersistentMap()
    versions: list[tuple[PersistentMap[int, int], dict[int, int]]] = []
    for start in range(0, len(edits), step):
        piece = edits[start : start + step]
        updates = {key: start for put, key in piece if put}
        removed = [key for put, key in piece if not put and key not in updates]
        for key in removed:
            model.pop(key, None)
        model.update(updates)
        before = dict(current)
        making = current.changing(updates, removed)
        for _ in making:
            assert dict(current) == before, "changed while the next version is made"
        current = at_once(current.changing(updates, removed))
        assert dict(current.changed(updates, removed)) == dict(current)
        versions.append((current, dict(model)))
    for version, expected in versions:
        assert dict(version) == dict(version.items()) == expected
        assert sorted(version.values()) == sorted(expected.values())
        assert len(version) == len(expected)


def test_one_change_among_many_partitions_costs_little() -> None:
    loader = MetadataLoader()
    records = [each for number in range(1_000) for each in topic_records(f"t{number}", 20, seed=number + 1)]
    turning.at_one_go(loader.apply(records, len(records) - 1, 1))
    change = record("PartitionChangeRecord", topic_id=uuid.UUID(int=1100), partition_id=3, leader=2)
    best = float("inf")
    for offset in range(50):
        began = time.perf_counter()
        turning.at_one_go(loader.apply([change], 30_000 + offset, 1))
        best = min(best, time.perf_counter() - began)
    assert best < 0.001
    topic = loader.image.topics.by_name("t0")
    assert topic is not None
    assert topic.partitions[3].leader_epoch == 50
