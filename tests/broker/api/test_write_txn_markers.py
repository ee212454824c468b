"""Ends of transactions in partitions: markers, and what readers get before and after them (CLI-05, REP-12)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker import turning
from tests.broker.api.asking import Asker, Peer
from tests.broker.api.test_produce_by_thread import Gate
from tests.broker.controller.scene import Scene
from tests.broker.replication.cluster import Cluster, Node, eventually

from ballast_broker.api import write_txn_markers
from ballast_broker.api.fetch import Fetch
from ballast_broker.api.fetch_sessions import FetchSessions
from ballast_broker.metrics.requests import RequestMetrics
from ballast_broker.metrics.traffic import Traffic
from ballast_broker.net_reply import Pending
from ballast_broker.real_world import RealRandom
from ballast_broker.replication.reading import READ_COMMITTED, READ_UNCOMMITTED
from ballast_broker.storage import directory_threads
from ballast_broker.storage.producers import NOT_ASKED
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

ORDERS, GROUPS = TopicPartition("orders", 0), TopicPartition("__consumer_offsets", 0)
NONE = ErrorCode.NONE


class Groups:
    def __init__(self) -> None:
        self.told: list[tuple[int, int, bool]] = []

    async def transaction_ended(self, partition: int, producer_id: int, committed: bool) -> ErrorCode:
        self.told.append((partition, producer_id, committed))
        return NONE


class Desk(Asker):
    """Broker 1, the leader."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        super().__init__(Scene(()), replicas=node.replicas, image=lambda: cluster.controller.image)
        self.node, self.groups = node, Groups()
        self.services.groups = self.groups
        self.services.clock = SimpleNamespace(wall_ms=lambda: time.time_ns() // 1_000_000)
        self.services.traffic = Traffic()
        self.services.replicas = node.replicas
        random: Any = RealRandom()
        self.fetches = Fetch(self.services, FetchSessions(10, random, time.monotonic), RequestMetrics())

    def write(
        self, producer: int, sequence: int, count: int = 1, *, partition: TopicPartition = ORDERS, epoch: int = 0
    ) -> int:
        records = [Record(value=b"x", timestamp=time.time_ns() // 1_000_000)] * count
        batch = encode_batch(
            records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )
        origin = "transaction" if partition == ORDERS else "coordinator"
        info = self.node.replicas.append(partition, None, batch, 1, origin=origin, verified=NOT_ASKED)
        return int(info.first_offset)

    async def end(
        self, producer: int, *partitions: TopicPartition, committed: bool, epoch: int = 0, coordinator_epoch: int = 0,
        version: int | None = None,
    ) -> list[ErrorCode]:  # fmt: skip
        """`version` is the transaction.version, which only the newest request version contains."""
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        marker = {
            "producer_id": producer, "producer_epoch": epoch, "transaction_result": committed,
            "coordinator_epoch": coordinator_epoch,
            "topics": [{"name": name, "partition_indexes": found} for name, found in topics.items()],
        }  # fmt: skip
        if version is not None:
            marker["transaction_version"] = version
        answer = await self.ask("WriteTxnMarkers", 1 if version is None else 2, markers=[marker])
        [told] = answer["markers"]
        assert told["producer_id"] == producer
        return [ErrorCode(each["error_code"]) for topic in told["topics"] for each in topic["partitions"]]

    def fetch(
        self, offset: int, *, isolation: int = READ_COMMITTED, max_wait_ms: int = 0, session: bool = False
    ) -> Any:
        kind = message("FetchRequest")
        asked = kind.FetchTopic.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = kind(
            version=12, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=isolation,
            session_epoch=0 if session else -1, topics=[kind.FetchTopic(topic="orders", partitions=[asked])],
        )  # fmt: skip
        frame = memoryview(b"\0" + bytes(request.encode(version=12)))
        return self.fetches.handle(frame, 0, 12, 7, Peer())


def told(reply: Any) -> tuple[int, int, list[tuple[int, int]] | None, int]:
    """(high watermark, last stable offset, aborted transactions, number of bytes)."""
    data = b"".join(part if isinstance(part, bytes) else part.read() for part in reply)
    [topic] = message("FetchResponse").decode(data[9:], version=12).responses
    [found] = topic.partitions
    aborted = found.aborted_transactions
    return (
        found.high_watermark, found.last_stable_offset,
        None if aborted is None else [(each.producer_id, each.first_offset) for each in aborted],
        len(found.records or b""),
    )  # fmt: skip


@asynccontextmanager
async def desk(folder: Path, replicas: list[int], **configs: str) -> AsyncIterator[tuple[Cluster, Desk]]:
    async with Cluster(folder) as cluster:
        nodes = await cluster.add(*replicas)
        cluster.controller.create_topic("orders", [replicas], configs)
        cluster.controller.create_topic("__consumer_offsets", [replicas])
        if len(replicas) > 1:
            await eventually(lambda: cluster.isr(ORDERS) == set(replicas))
        yield cluster, Desk(cluster, nodes[0])


@pytest.mark.spec("CLI-05")
@pytest.mark.spec("REP-12")
@pytest.mark.parametrize("session", [False, True])
async def test_readers_of_committed_records_are_told_when_and_what(tmp_path: Path, session: bool) -> None:
    async with desk(tmp_path, [1]) as (_, broker):
        broker.write(7, 0, 2)
        high, stable, aborted, size = told(broker.fetch(0, isolation=READ_UNCOMMITTED))
        assert (high, stable, aborted, size > 0) == (2, 0, None, True)
        assert told(broker.fetch(0)) == (2, 0, [], 0)
        waiting = broker.fetch(0, max_wait_ms=30_000, session=session)
        assert isinstance(waiting, Pending)
        broker.write(8, 0)
        assert not waiting.future.done()
        assert await broker.end(7, ORDERS, committed=False) == [NONE]
        high, stable, aborted, size = told(await waiting.future)
        assert (high, stable, aborted, size > 0) == (4, 2, [(7, 0)], True)
        assert await broker.end(8, ORDERS, committed=True) == [NONE]
        assert told(broker.fetch(0))[:3] == (5, 5, [(7, 0)])
        assert told(broker.fetch(4))[:3] == (5, 5, [])
        assert told(broker.fetch(0, isolation=READ_UNCOMMITTED))[:3] == (5, 5, None)


@pytest.mark.spec("CLI-05")
async def test_the_latest_offset_is_the_last_stable_one_to_them(tmp_path: Path) -> None:
    async with desk(tmp_path, [1]) as (_, broker):
        broker.write(7, 0, 2)

        async def latest(isolation: int) -> int:
            asked = [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
            answer = await broker.ask("ListOffsets", 8, replica_id=-1, isolation_level=isolation, topics=asked)
            return int(answer["topics"][0]["partitions"][0]["offset"])

        assert [await latest(READ_UNCOMMITTED), await latest(READ_COMMITTED)] == [2, 0]
        await broker.end(7, ORDERS, committed=True)
        assert [await latest(READ_UNCOMMITTED), await latest(READ_COMMITTED)] == [3, 3]


@pytest.mark.spec("CLI-05")
async def test_open_transactions_are_described(tmp_path: Path) -> None:
    async with desk(tmp_path, [1]) as (_, broker):
        broker.write(7, 0)
        broker.write(8, 0)
        await broker.end(7, ORDERS, committed=True, coordinator_epoch=4)
        topics = [{"name": "orders", "partition_indexes": [0]}]
        answer = await broker.ask("DescribeProducers", 0, topics=topics)
        found = answer["topics"][0]["partitions"][0]["active_producers"]
        described = [(p["producer_id"], p["current_txn_start_offset"], p["coordinator_epoch"]) for p in found]
        assert described == [(7, -1, 4), (8, 1, -1)]


@pytest.mark.spec("CLI-05")
async def test_each_partition_has_its_own_answer(tmp_path: Path) -> None:
    async with desk(tmp_path, [1]) as (cluster, broker):
        await cluster.add(2)
        cluster.controller.create_topic("elsewhere", [[2, 1]])
        broker.write(7, 0)
        nowhere, elsewhere = TopicPartition("nowhere", 3), TopicPartition("elsewhere", 0)
        said = await broker.end(7, ORDERS, nowhere, elsewhere, committed=True, epoch=2, coordinator_epoch=5)
        assert said == [NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert await broker.end(7, ORDERS, committed=True, epoch=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        stale = await broker.end(7, ORDERS, committed=True, epoch=2, coordinator_epoch=4)
        assert stale == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
        assert (await broker.ask("WriteTxnMarkers", 1, markers=[]))["markers"] == []


@pytest.mark.spec("CLI-05")
@pytest.mark.parametrize("stalls", [False, True])
async def test_a_marker_that_comes_again_late_does_not_end_the_next_transaction(tmp_path: Path, stalls: bool) -> None:
    """What a coordinator sent on a closed connection may arrive long after what it sent on the next one."""
    async with desk(tmp_path, [1]) as (_, broker):
        log = broker.node.log(ORDERS)
        slow_until = asyncio.get_running_loop().time() + 3600 if stalls else 0.0
        broker.write(7, 0, epoch=0)
        broker.write(7, 0, epoch=0, partition=GROUPS)
        log.directory.slow_until = slow_until
        for _ in range(2):  # while nothing else is open it may
            assert await broker.end(7, ORDERS, GROUPS, committed=True, epoch=1, version=2) == [NONE, NONE]
        log.directory.slow_until = 0.0
        broker.write(7, 0, epoch=1)
        broker.write(7, 0, epoch=1, partition=GROUPS)
        log.directory.slow_until = slow_until
        began, told = log.last_stable_offset, list(broker.groups.told)
        late = await broker.end(7, ORDERS, GROUPS, committed=True, epoch=1, version=2)
        assert late == [ErrorCode.INVALID_PRODUCER_EPOCH] * 2
        assert (log.last_stable_offset, broker.groups.told) == (began, told)
        assert await broker.end(7, ORDERS, GROUPS, committed=False, epoch=2, version=2) == [NONE, NONE]
        assert [each.first_offset for each in log.aborted_transactions(0, log.log_end_offset)] == [began]


@pytest.mark.spec("CLI-05")
@pytest.mark.parametrize("version", [None, 0, 1])
async def test_an_end_that_leaves_the_epoch_ends_what_began_with_it(tmp_path: Path, version: int | None) -> None:
    async with desk(tmp_path, [1]) as (_, broker):
        for first in (0, 1):
            broker.write(7, first)
            assert await broker.end(7, ORDERS, committed=True, version=version) == [NONE]
        log = broker.node.log(ORDERS)
        assert log.last_stable_offset == log.log_end_offset


@pytest.mark.spec("CLI-05")
async def test_a_marker_is_committed_before_anybody_is_told(tmp_path: Path) -> None:
    async with desk(tmp_path, [1, 2], **{"min.insync.replicas": "2"}) as (cluster, broker):
        follower = cluster.nodes[2]
        broker.write(7, 0)
        broker.write(7, 0, partition=GROUPS)
        await eventually(lambda: follower.log(ORDERS).log_end_offset == 1)
        cluster.cuts.add(frozenset({1, 2}))
        ending = asyncio.ensure_future(broker.end(7, ORDERS, GROUPS, committed=False))
        log = broker.node.log(ORDERS)
        await eventually(lambda: log.log_end_offset == 2)
        assert not ending.done()
        assert (log.last_stable_offset, broker.groups.told) == (0, [])
        cluster.cuts.clear()
        assert await ending == [NONE, NONE]
        assert log.last_stable_offset == 2
        assert broker.groups.told == [(0, 7, False)]
        theirs = follower.log(ORDERS)
        await eventually(lambda: theirs.high_watermark == 2)
        assert theirs.last_stable_offset == 2
        assert theirs.aborted_transactions(0, 2) == log.aborted_transactions(0, 2) != []
        await follower.crash()
        await eventually(lambda: cluster.isr(ORDERS) == {1})
        assert await broker.end(7, ORDERS, committed=False) == [ErrorCode.NOT_ENOUGH_REPLICAS]


@pytest.mark.spec("CLI-05")
@pytest.mark.spec("LOG-32")
async def test_markers_while_the_disk_stalls(tmp_path: Path) -> None:
    async with desk(tmp_path, [1]) as (_, broker):
        broker.write(7, 0)
        broker.write(7, 0, partition=GROUPS)
        directory = broker.node.log(ORDERS).directory
        directory.slow_until = asyncio.get_running_loop().time() + 3600
        assert await broker.end(7, ORDERS, GROUPS, committed=False) == [NONE, NONE]
        log = broker.node.log(ORDERS)
        assert log.last_stable_offset == 2
        assert [each.producer_id for each in log.aborted_transactions(0, 2)] == [7]
        assert broker.groups.told == [(0, 7, False)]


@pytest.mark.spec("CLI-05")
@pytest.mark.spec("LOG-32")
async def test_the_markers_of_other_directories_do_not_wait_for_one_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_threads, "SILENT_AFTER_S", 0.2)
    monkeypatch.setattr(write_txn_markers, "LOOK_AGAIN_S", 0.01)
    bills = TopicPartition("bills", 0)
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1, directories=2)
        for name in ("orders", "bills"):
            cluster.controller.create_topic(name, [[1]])
        broker, log = Desk(cluster, node), node.log(ORDERS)
        assert log.directory is not node.log(bills).directory
        broker.write(7, 0)
        broker.write(7, 0, partition=bills)
        log.directory.slow_until = asyncio.get_running_loop().time() + 3600
        gate = Gate(monkeypatch)
        try:
            async with asyncio.timeout(10):
                assert await broker.end(7, ORDERS, bills, committed=True) == [ErrorCode.REQUEST_TIMED_OUT, NONE]
                for _ in range(3):
                    assert await broker.end(7, ORDERS, committed=True) == [ErrorCode.REQUEST_TIMED_OUT]
        finally:
            gate.open.set()
        await eventually(lambda: not log.directory.threads.silent)
        assert await broker.end(7, ORDERS, committed=True) == [NONE]
        assert (log.last_stable_offset, log.log_end_offset) == (3, 3)  # the first marker and the last


@pytest.mark.spec("CLI-05")
async def test_many_markers_are_written_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turning.end_at_once(monkeypatch)
    async with desk(tmp_path, [1]) as (_, broker):
        markers = [
            {
                "producer_id": number, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0,
                "topics": [{"name": "orders", "partition_indexes": [0]}],
            }
            for number in range(1000)
        ]  # fmt: skip
        answer, turns = await turning.beside(broker.ask("WriteTxnMarkers", 1, markers=markers))
        assert turns >= 1000
        assert [told["producer_id"] for told in answer["markers"]] == list(range(1000))
        assert broker.node.log(ORDERS).log_end_offset == 1000
