"""Responses about logs: offsets, epochs, producers, directories; on real replicas and real files."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from tests.broker import turning
from tests.broker.api.asking import Asker
from tests.broker.controller.scene import Scene
from tests.broker.replication.cluster import Cluster, Node, eventually

from ballast_broker.real_world import RealClock
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

ORDERS = TopicPartition("orders", 0)
COMPACTED = TopicPartition("compacted", 0)


@asynccontextmanager
async def brokers(folder: Path, count: int = 1, **options: Any) -> AsyncIterator[tuple[Cluster, list[Node], Asker]]:
    async with Cluster(folder, **options) as cluster:
        nodes = await cluster.add(*range(1, count + 1), directories=2)
        cluster.controller.create_topic("orders", [[1], [1]] if count == 1 else [[1, 2]])
        asker = Asker(Scene(()), replicas=nodes[0].replicas, image=lambda: cluster.controller.image)
        asker.services.directories = nodes[0].replication.directories
        yield cluster, nodes, asker


def entry(timestamp: int, partition: int = 0, epoch: int = -1) -> dict[str, int]:
    return {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": timestamp}


async def offsets(
    asker: Asker, version: int, *entries: dict[str, int], topic: str = "orders", isolation: int = 0
) -> Any:
    topics = [{"name": topic, "partitions": list(entries)}]
    answer = await asker.ask("ListOffsets", version, replica_id=-1, isolation_level=isolation, topics=topics)
    return [(each["error_code"], each["offset"]) for each in answer["topics"][0]["partitions"]]


@pytest.mark.parametrize("version", range(1, 12))
async def test_special_offsets_from_the_version_that_knows_them(tmp_path: Path, version: int) -> None:
    async with brokers(tmp_path) as (_, nodes, asker):
        nodes[0].produce(ORDERS, "a", "b", "c")
        assert await offsets(asker, version, entry(-1)) == [(0, 3)]
        assert await offsets(asker, version, entry(-2)) == [(0, 0)]
        unsupported = [(ErrorCode.UNSUPPORTED_VERSION, -1)]
        assert await offsets(asker, version, entry(-3)) == ([(0, 0)] if version >= 7 else unsupported)
        assert await offsets(asker, version, entry(-4)) == ([(0, 0)] if version >= 8 else unsupported)
        assert await offsets(asker, version, entry(-5)) == ([(0, -1)] if version >= 9 else unsupported)
        assert await offsets(asker, version, entry(-6)) == ([(0, -1)] if version >= 11 else unsupported)
        assert await offsets(asker, version, entry(-7)) == unsupported


async def test_offsets_by_time(tmp_path: Path) -> None:
    async with brokers(tmp_path) as (_, nodes, asker):
        now = time.time_ns() // 1_000_000
        for at, value in ((now - 2000, b"a"), (now - 1000, b"b")):
            nodes[0].replicas.append(ORDERS, None, encode_batch([Record(value=value, timestamp=at)]), 1)
        assert await offsets(asker, 7, entry(now - 2000)) == [(0, 0)]
        assert await offsets(asker, 7, entry(now - 1999)) == [(0, 1)]
        assert await offsets(asker, 7, entry(now)) == [(0, -1)]


async def test_offsets_that_are_refused(tmp_path: Path) -> None:
    async with brokers(tmp_path) as (_, _nodes, asker):
        assert await offsets(asker, 7, entry(-1), topic="nowhere") == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
        assert await offsets(asker, 7, entry(-1, 9)) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
        assert await offsets(asker, 7, entry(-1, 0, 5)) == [(ErrorCode.UNKNOWN_LEADER_EPOCH, -1)]
        assert await offsets(asker, 7, entry(-1), entry(-2)) == [(ErrorCode.INVALID_REQUEST, -1)]
        assert await offsets(asker, 7, entry(-1), isolation=5) == [(ErrorCode.UNKNOWN_SERVER_ERROR, -1)]


async def test_offsets_of_many_partitions_are_looked_up_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turning.end_at_once(monkeypatch)
    async with brokers(tmp_path) as (_, nodes, asker):
        nodes[0].produce(ORDERS, "a", "b")
        told, turns = await turning.beside(offsets(asker, 8, *(entry(0, number) for number in range(1000))))
        assert turns >= 1000
        assert told == [(0, 0), (0, -1), *[(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)] * 998]


async def test_who_does_not_hold_a_partition_sends_to_who_does(tmp_path: Path) -> None:
    async with brokers(tmp_path, 2) as (cluster, _nodes, asker):
        cluster.controller.create_topic("elsewhere", [[2]])
        assert await offsets(asker, 7, entry(-1), topic="elsewhere") == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
        topics = [{"topic": "elsewhere", "partitions": [{"partition": 0, "leader_epoch": 0}]}]
        answer = await asker.ask("OffsetForLeaderEpoch", 4, replica_id=-1, topics=topics)
        assert answer["topics"][0]["partitions"][0]["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        removal = [{"name": "elsewhere", "partitions": [{"partition_index": 0, "offset": 0}]}]
        deleted = await asker.ask("DeleteRecords", 2, topics=removal, timeout_ms=1000)
        assert deleted["topics"][0]["partitions"][0]["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        asked = [{"name": "elsewhere", "partition_indexes": [0]}]
        producers = await asker.ask("DescribeProducers", 0, topics=asked)
        assert producers["topics"][0]["partitions"][0]["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_topic_of_which_nothing_is_asked_is_not_answered(tmp_path: Path) -> None:
    async with brokers(tmp_path) as (_, _, asker):
        topics = [{"name": "orders", "partitions": []}, {"name": "orders", "partitions": [entry(-1)]}]
        answer = await asker.ask("ListOffsets", 7, replica_id=-1, isolation_level=0, topics=topics)
        assert [len(each["partitions"]) for each in answer["topics"]] == [1]
        answer = await asker.ask("ListOffsets", 7, replica_id=-1, isolation_level=0, topics=topics[:1])
        assert answer["topics"] == []


@pytest.mark.parametrize("version", range(2, 5))
async def test_where_an_epoch_ended(tmp_path: Path, version: int) -> None:
    async with brokers(tmp_path) as (_, nodes, asker):
        nodes[0].produce(ORDERS, "a", "b")

        async def ended(leader_epoch: int, current: int = -1) -> tuple[int, int, int]:
            asked = [{"partition": 0, "current_leader_epoch": current, "leader_epoch": leader_epoch}]
            topics = [{"topic": "orders", "partitions": asked}]
            answer = await asker.ask("OffsetForLeaderEpoch", version, replica_id=-1, topics=topics)
            found = answer["topics"][0]["partitions"][0]
            return found["error_code"], found["leader_epoch"], found["end_offset"]

        assert await ended(0) == (0, 0, 2)
        assert await ended(7) == (0, -1, -1)
        assert await ended(0, 3) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
        assert await ended(0, -2) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)


async def deleted(asker: Asker, offset: int, topic: str = "orders", partition: int = 0) -> tuple[int, int]:
    topics = [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}]
    answer = await asker.ask("DeleteRecords", 2, topics=topics, timeout_ms=5000)
    found = answer["topics"][0]["partitions"][0]
    return found["error_code"], found["low_watermark"]


async def test_records_of_many_partitions_are_deleted_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turning.end_at_once(monkeypatch)
    async with brokers(tmp_path) as (cluster, nodes, asker):
        cluster.controller.create_topic("many", [[1]] * 300)
        nodes[0].produce(TopicPartition("many", 299), "a", "b")
        partitions = [{"partition_index": number, "offset": -1} for number in range(300)]
        topics = [{"name": "many", "partitions": partitions}]
        told, turns = await turning.beside(asker.ask("DeleteRecords", 2, topics=topics, timeout_ms=5000))
        assert turns >= 300
        found = [(each["error_code"], each["low_watermark"]) for each in told["topics"][0]["partitions"]]
        assert found == [(0, 0)] * 299 + [(0, 2)]


@pytest.mark.spec("TOP-26")
async def test_records_are_deleted_on_all_replicas_before_it_is_said(tmp_path: Path) -> None:
    async with brokers(tmp_path, 2) as (cluster, nodes, asker):
        await eventually(lambda: cluster.isr(ORDERS) == {1, 2})
        assert await nodes[0].produce_to_all(ORDERS, "a", "b", "c") is ErrorCode.NONE
        assert await deleted(asker, 2) == (0, 2)
        assert [node.log(ORDERS).log_start_offset for node in nodes] == [2, 2]
        assert await deleted(asker, -1) == (0, 3)


async def test_records_that_are_not_deleted(tmp_path: Path) -> None:
    async with brokers(tmp_path) as (cluster, nodes, asker):
        nodes[0].produce(ORDERS, "a")
        cluster.controller.create_topic("__consumer_offsets", [[1]])
        assert await deleted(asker, 5) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert await deleted(asker, -2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert await deleted(asker, 0, "nowhere") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert await deleted(asker, 0, "orders", 9) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert await deleted(asker, 0, "__consumer_offsets") == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


async def test_idempotent_producers_are_described(tmp_path: Path) -> None:
    async with brokers(tmp_path) as (_, nodes, asker):
        now = time.time_ns() // 1_000_000
        records = [Record(value=b"a", timestamp=now), Record(value=b"b", timestamp=now)]
        batch = encode_batch(records, producer_id=77, producer_epoch=3, base_sequence=0)
        nodes[0].replicas.append(ORDERS, None, batch, 1)
        topics = [
            {"name": "orders", "partition_indexes": [0, 9]},
            {"name": "nowhere", "partition_indexes": [0]},
            {"name": "not possible", "partition_indexes": [0]},
        ]
        answer = await asker.ask("DescribeProducers", 0, topics=topics)
        first, missing = answer["topics"][0]["partitions"]
        told = {key: first["active_producers"][0][key] for key in ("producer_id", "producer_epoch", "last_sequence")}
        assert told == {"producer_id": 77, "producer_epoch": 3, "last_sequence": 1}
        assert first["active_producers"][0]["last_timestamp"] == now
        assert missing["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        errors = [each["partitions"][0]["error_code"] for each in answer["topics"][1:]]
        assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION]


@pytest.mark.spec("DIR-32")
@pytest.mark.parametrize("version", range(1, 6))
async def test_directories_are_described(tmp_path: Path, version: int) -> None:
    async with brokers(tmp_path) as (_, nodes, asker):
        nodes[0].produce(ORDERS, "a")
        answer = await asker.ask("DescribeLogDirs", version, topics=None)
        assert [each["log_dir"] for each in answer["results"]] == [str(each) for each in nodes[0].directories]
        held = {
            (topic["name"], each["partition_index"]): each["partition_size"]
            for result in answer["results"]
            for topic in result["topics"]
            for each in topic["partitions"]
        }
        assert held == {("orders", 0): nodes[0].log(ORDERS).size_bytes, ("orders", 1): 0}
        if version >= 4:
            assert all(each["total_bytes"] > each["usable_bytes"] > 0 for each in answer["results"])
        some = await asker.ask("DescribeLogDirs", version, topics=[{"topic": "orders", "partitions": [1, 7]}])
        named = [topic["name"] for result in some["results"] for topic in result["topics"]]
        assert named == ["orders"]


@pytest.mark.spec("DIR-41", "DIR-32")
async def test_a_directory_that_failed_says_so(tmp_path: Path) -> None:
    async with brokers(tmp_path) as (_, nodes, asker):
        nodes[0].logs.directories[1].fail(OSError("gone"))
        answer = await asker.ask("DescribeLogDirs", 4, topics=None)
        assert [each["error_code"] for each in answer["results"]] == [0, ErrorCode.KAFKA_STORAGE_ERROR]
        assert answer["results"][1]["topics"] == []


async def move(asker: Asker, path: str, topic: str = "orders", partition: int = 0) -> int:
    dirs = [{"path": path, "topics": [{"name": topic, "partitions": [partition]}]}]
    answer = await asker.ask("AlterReplicaLogDirs", 2, dirs=dirs)
    error: int = answer["results"][0]["partitions"][0]["error_code"]
    return error


@pytest.mark.spec("DIR-13", "DIR-15", "DIR-16")
async def test_moves_between_directories_are_asked_for(tmp_path: Path) -> None:
    async with brokers(tmp_path, 2) as (cluster, nodes, asker):
        here = nodes[0].log(ORDERS).directory.path
        other = next(str(each) for each in nodes[0].directories if str(each) != here)
        cluster.controller.create_topic("elsewhere", [[2]])
        assert await move(asker, "relative") == ErrorCode.LOG_DIR_NOT_FOUND
        assert await move(asker, "/nowhere") == ErrorCode.LOG_DIR_NOT_FOUND
        assert await move(asker, here, "nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await move(asker, here, "elsewhere") == ErrorCode.REPLICA_NOT_AVAILABLE
        assert await move(asker, here) == 0
        assert await move(asker, other) == 0
        await eventually(lambda: nodes[0].log(ORDERS).directory.path == other)


@pytest.mark.spec("DIR-20")
async def test_a_replica_whose_first_records_are_deleted_moves_too(tmp_path: Path) -> None:
    async with brokers(tmp_path) as (_, nodes, asker):
        nodes[0].produce(ORDERS, "a", "b", "c")
        assert await deleted(asker, 2) == (0, 2)
        here = nodes[0].log(ORDERS).directory.path
        other = next(str(each) for each in nodes[0].directories if str(each) != here)
        assert await move(asker, other) == 0
        await eventually(lambda: nodes[0].log(ORDERS).directory.path == other)
        assert nodes[0].log(ORDERS).log_start_offset == 2
        assert nodes[0].produce(ORDERS, "d") == 3


@pytest.mark.spec("CLI-04", "CLI-10")
async def test_a_topic_id_of_zeros_is_answered_as_one_that_nobody_knows() -> None:
    zeros = "00000000-0000-0000-0000-000000000000"
    asker = Asker(Scene(()))
    asker.services.groups = SimpleNamespace(fetch_offsets=lambda *_: {})
    asker.services.clock = RealClock()
    asked = [{"group_id": "g", "topics": [{"topic_id": UUID(zeros), "partition_indexes": [3]}]}]
    fetched = await asker.ask("OffsetFetch", 10, groups=asked)
    [topic] = fetched["groups"][0]["topics"]
    assert topic["partitions"][0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
    partition = {"partition_index": 3, "committed_offset": 5, "committed_metadata": ""}
    committed = await asker.ask(
        "OffsetCommit", 10, group_id="g", topics=[{"topic_id": UUID(zeros), "partitions": [partition]}]
    )
    [topic] = committed["topics"]
    assert topic["partitions"] == [{"partition_index": 3, "error_code": ErrorCode.UNKNOWN_TOPIC_ID}]


MANY = 40
NUMBERS = list(range(MANY))
EPOCHS = [{"partition": number, "leader_epoch": 0, "current_leader_epoch": -1} for number in NUMBERS]
ASKED_OF_MANY: list[tuple[str, int, dict[str, Any]]] = [
    ("DescribeLogDirs", 4, {"topics": None}),
    ("DescribeProducers", 0, {"topics": [{"name": "many", "partition_indexes": NUMBERS}]}),
    ("OffsetForLeaderEpoch", 4, {"replica_id": -1, "topics": [{"topic": "many", "partitions": EPOCHS}]}),
]


@pytest.mark.spec("CLI-09")
@pytest.mark.parametrize(("name", "version", "fields"), ASKED_OF_MANY, ids=[each[0] for each in ASKED_OF_MANY])
async def test_many_partitions_are_told_of_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: int, fields: dict[str, Any]
) -> None:
    async with brokers(tmp_path) as (cluster, _, asker):
        cluster.controller.create_topic("many", [[1]] * MANY)
        turning.end_at_once(monkeypatch)
        told, turns = await turning.beside(asker.ask(name, version, **fields))
        assert turns >= MANY
        assert str(told).count("partition_index" if name != "OffsetForLeaderEpoch" else "end_offset") >= MANY
