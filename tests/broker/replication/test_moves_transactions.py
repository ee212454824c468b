"""A move takes transactions along: open ones, aborted ones, and pending verifications (DIR-28, CLI-05)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.broker.replication.cluster import Cluster, Node, eventually, records_of
from tests.broker.replication.test_moves_by_file import Hurried, ask, entries, holding, moved

from ballast_broker.storage.producers import NOT_ASKED, Verification
from ballast_broker.storage.transactions import render_marker
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

ORDERS = TopicPartition("orders", 0)


class Writer:
    """Transactions of several producers, one batch after the other."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.sequences: dict[int, int] = {}

    def write(self, producer: int, verified: Verification | None = NOT_ASKED) -> None:
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + 1
        batch = encode_batch(
            [Record(None, b"x" * 3000, 1)], transactional=True, producer_id=producer, producer_epoch=0,
            base_sequence=sequence,
        )  # fmt: skip
        self.node.replicas.append(ORDERS, None, batch, 1, origin="transaction", verified=verified)

    def end(self, producer: int, *, committed: bool) -> None:
        marker = render_marker(producer, 0, 3, committed=committed, now_ms=1)
        self.node.replicas.append(ORDERS, None, marker, 1, origin="coordinator")

    def fill(self, rounds: int) -> None:
        for number in range(rounds):
            for producer in (1, 2):
                self.write(producer)
            self.end(number % 3, committed=number % 2 == 0)


@pytest.mark.spec("DIR-28", "CLI-05")
@pytest.mark.parametrize("segment_bytes", ["1000000000", "60000"])
async def test_what_is_open_and_what_was_aborted_comes_along(tmp_path: Path, segment_bytes: str) -> None:
    async with Cluster(tmp_path) as cluster:
        node = await holding(cluster, 0, **{"segment.bytes": segment_bytes})
        writer = Writer(node)
        writer.write(9)
        writer.fill(60)
        source = node.log(ORDERS)
        end = source.log_end_offset
        before, index = source.aborted_transactions(0, end), entries(source.folder.path, "txnindex")
        assert len(before) >= 18
        held = source.producers.verify(8, 0, 0, adds=True, now_ms=0)
        assert held is not None
        await moved(node, ask(node))
        log = node.log(ORDERS)
        assert log is not source
        assert log.last_stable_offset == 0
        assert log.aborted_transactions(0, end) == before
        assert entries(log.folder.path, "txnindex") == index
        writer.write(8, held)  # the coordinator's answer came after the move
        for producer in (1, 2, 8, 9):
            writer.end(producer, committed=producer == 8)
        assert log.last_stable_offset == log.log_end_offset
        told = [each[:2] for each in log.aborted_transactions(0, log.log_end_offset)]
        assert told[: len(before)] == [each[:2] for each in before]
        assert (9, 0) in told
        await node.crash()
        await node.start()
        again = node.log(ORDERS)
        assert [each[:2] for each in again.aborted_transactions(0, again.log_end_offset)] == told
        assert again.last_stable_offset == again.high_watermark


@pytest.mark.spec("DIR-28", "CLI-05")
async def test_transactions_end_while_a_segment_is_copied(tmp_path: Path) -> None:
    """Transactions that end after the part that is being copied arrive by appends, and are not counted twice."""
    async with Cluster(tmp_path) as cluster:
        threads = cluster.threads = Hurried()
        node = await holding(cluster, 0)
        writer = Writer(node)
        writer.fill(40)
        source = node.log(ORDERS)
        rounds = 0

        def meanwhile() -> None:
            nonlocal rounds
            if rounds < 12:
                rounds += 1
                writer.fill(1)
                writer.end(1, committed=False)

        threads.meanwhile = meanwhile
        target = ask(node)
        await moved(node, target)
        assert rounds
        log, end = node.log(ORDERS), source.log_end_offset
        assert log.log_end_offset >= end
        assert log.aborted_transactions(0, end) == source.aborted_transactions(0, end)
        assert log.last_stable_offset == log.producers.first_unstable < log.log_end_offset
        assert records_of(log)[: len(records_of(source))] == records_of(source)


@pytest.mark.spec("REP-12", "CLI-05")
async def test_a_new_leader_goes_on_with_what_is_open(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        first, second = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        await eventually(lambda: cluster.isr(ORDERS) == {1, 2})
        writer = Writer(first)
        writer.write(1)
        writer.write(2)
        writer.end(1, committed=False)
        theirs = second.log(ORDERS)
        await eventually(lambda: theirs.high_watermark == 3)
        assert theirs.last_stable_offset == 1
        writer.end(2, committed=True)
        await eventually(lambda: theirs.log_end_offset == 4)
        await first.crash()
        await eventually(lambda: cluster.leader(ORDERS) == 2)
        await eventually(lambda: theirs.last_stable_offset == 4)
        assert [each[:3] for each in theirs.aborted_transactions(0, 4)] == [(1, 0, 2)]
        writer.node = second
        writer.write(2)
        assert theirs.last_stable_offset == 4
        await first.start()
        ours = first.log(ORDERS)
        await eventually(lambda: ours.log_end_offset == 5)
        await asyncio.sleep(0)
        assert ours.aborted_transactions(0, 5) == theirs.aborted_transactions(0, 5)
        await eventually(lambda: ours.last_stable_offset == 4)
