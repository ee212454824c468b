"""`flush.messages`: acknowledged records are on disk, and the event loop never waits for an fsync."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.broker.replication.cluster import Cluster, eventually

from ballast_broker.storage.disk import RealFile
from ballast_broker.storage.transactions import render_marker
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def synced_by_loop(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the event loop's thread has called fsync."""
    counted, sync, loop_thread = [0], RealFile.sync, threading.get_ident()

    def noted(file: RealFile) -> None:
        counted[0] += threading.get_ident() == loop_thread
        sync(file)

    monkeypatch.setattr(RealFile, "sync", noted)
    return counted


@pytest.mark.spec("LOG-30", "LOG-32")
async def test_leader_and_follower_sync_in_threads_before_they_answer(
    tmp_path: Path, synced_by_loop: list[int]
) -> None:
    async with Cluster(tmp_path) as cluster:
        leader, follower = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]], {"flush.messages": "1"})
        await eventually(lambda: ORDERS in follower.logs.logs)
        synced_by_loop[0] = 0  # a start does
        for number in range(3):
            info = await leader.replicas.append_own(ORDERS, encode_batch([Record(None, b"v", number)]), 1)
            assert leader.log(ORDERS).recovery_point == info.last_offset + 1 == number + 1
        await eventually(lambda: follower.log(ORDERS).recovery_point == 3)
        assert await leader.produce_to_all(ORDERS, "last") is ErrorCode.NONE
        assert follower.log(ORDERS).log_end_offset == follower.log(ORDERS).recovery_point == 4
        assert synced_by_loop == [0]


@pytest.mark.spec("LOG-04", "LOG-30", "LOG-32")
async def test_a_marker_is_synced_with_what_it_aborts(tmp_path: Path, synced_by_loop: list[int]) -> None:
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1)
        cluster.controller.create_topic("orders", [[1]], {"flush.messages": "1"})
        synced_by_loop[0] = 0
        sent = encode_batch([Record(None, b"v", 1)], transactional=True, producer_id=7, producer_epoch=0)
        await node.replicas.append_own(ORDERS, sent, 1)
        await node.replicas.append_own(ORDERS, render_marker(7, 0, 0, committed=False, now_ms=1), 1)
        log = node.log(ORDERS)
        assert log.recovery_point == log.log_end_offset == 2
        assert [(each.first_offset, each.last_offset) for each in log.aborted_transactions(0, 2)] == [(0, 1)]
        assert synced_by_loop == [0]


@pytest.mark.spec("LOG-30")
async def test_a_follower_that_becomes_leader_while_it_syncs_has_lost_nothing(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        first, second = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]], {"flush.messages": "1"})
        await eventually(lambda: ORDERS in second.logs.logs)
        assert await first.produce_to_all(ORDERS, "a", "b") is ErrorCode.NONE
        await first.crash()
        await eventually(lambda: second.state(ORDERS).is_leader)
        assert await second.produce_to_all(ORDERS, "c") is ErrorCode.NONE
        assert await second.consume(ORDERS) == ["a", "b", "c"]
