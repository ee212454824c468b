"""The leader's fetch sessions: unchanged partitions are not looked at, and no change is missed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.broker.replication.cluster import Cluster, Node, eventually

from ballast_broker.controller.commands.brokers import fence_broker
from ballast_broker.replication.reading import FetchEntry, FetchParams, FetchResult, give_back
from ballast_broker.replication.watching import Watch, Watched
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

FOLLOWER = 2


class Session:
    """Does with a session what the request handler does, without the wire format."""

    def __init__(self, node: Node, cluster: Cluster, count: int, *, replica_id: int = FOLLOWER) -> None:
        self.replicas = node.replicas
        self.params = FetchParams(replica_id=replica_id, max_bytes=1 << 20)
        self.watch = Watch()
        topic_id = cluster.topic_id("orders")
        self.entries = [
            Watched(TopicPartition("orders", number), topic_id, 0, log_start_offset=0, watch=self.watch)
            for number in range(count)
        ]
        for entry in self.entries:
            self.watch.mark(entry)

    def ask(self, number: int, offset: int) -> None:
        self.entries[number].fetch_offset = offset
        self.watch.mark(self.entries[number])

    def fetch(self, max_wait_ms: int = 0) -> Any:
        self.params.max_wait_ms = max_wait_ms
        return self.replicas.fetch_watched(self.params, self.watch)

    def told(self, results: list[FetchResult]) -> dict[int, tuple[ErrorCode, int, int, int]]:
        """(error, bytes, high watermark, log start offset) by partition, of those with news."""
        found = {}
        for result in results:
            entry = result.entry
            assert isinstance(entry, Watched)
            if entry.is_news(result):
                size = 0 if result.slice is None else result.slice.size
                found[result.topic_partition.partition] = (
                    result.error, size, result.high_watermark, result.log_start_offset,
                )  # fmt: skip
            entry.told(result)
            result.release()
        return found

    def look(self) -> dict[int, tuple[ErrorCode, int, int, int]]:
        return self.told(self.fetch())

    @property
    def due(self) -> list[int]:
        return [entry.topic_partition.partition for entry in self.watch.due]


async def two_brokers(tmp_path: Path, count: int, **settings: Any) -> tuple[Cluster, Node]:
    """The second broker is not real: the test itself sends its fetches."""
    cluster = Cluster(tmp_path, **settings)
    one, _ = await cluster.add(1, FOLLOWER)
    cluster.cuts.add(frozenset({1, FOLLOWER}))
    cluster.controller.create_topic("orders", [[1, FOLLOWER]] * count, {"min.insync.replicas": "1"})
    return cluster, one


@pytest.mark.spec("REP-03")
async def test_what_did_not_change_is_not_read_again(tmp_path: Path) -> None:
    cluster, one = await two_brokers(tmp_path, 20)
    async with cluster:
        session = Session(one, cluster, 20)
        assert len(session.look()) == 20
        assert session.look() == {}
        assert session.due == []
        one.produce(TopicPartition("orders", 7), "a")
        assert session.due == [7]
        assert session.look()[7][1] > 0
        assert session.due == [7], "until the follower asks for what comes next"
        session.ask(7, 1)
        assert session.look() == {7: (ErrorCode.NONE, 0, 1, 0)}
        assert session.look() == {}
        assert session.due == []


@pytest.mark.spec("REP-03", "REP-10")
async def test_what_is_not_committed_stays_due(tmp_path: Path) -> None:
    """Another replica has yet to fetch it, and time alone may settle it, so it is checked again and again."""
    cluster = Cluster(tmp_path)
    async with cluster:
        one, _, _ = await cluster.add(1, FOLLOWER, 3)
        cluster.cuts.update({frozenset({1, FOLLOWER}), frozenset({1, 3})})
        cluster.controller.create_topic("orders", [[1, FOLLOWER, 3]])
        session, other = Session(one, cluster, 1), Session(one, cluster, 1, replica_id=3)
        one.produce(TopicPartition("orders", 0), "a")
        session.ask(0, 1)
        session.look()
        assert session.due == [0]
        other.ask(0, 1)
        other.look()
        assert session.look() == {0: (ErrorCode.NONE, 0, 1, 0)}
        assert session.due == []


@pytest.mark.spec("REP-07", "REP-03")
async def test_a_moved_log_start_is_told(tmp_path: Path) -> None:
    cluster, one = await two_brokers(tmp_path, 2)
    async with cluster:
        session = Session(one, cluster, 2)
        orders = TopicPartition("orders", 1)
        one.produce(orders, "a", "b")
        session.ask(1, 2)
        session.look()
        session.look()
        assert session.due == []
        waiting = asyncio.ensure_future(one.replicas.delete_records({orders: 1}, 10_000))
        await asyncio.sleep(0)
        assert session.look() == {1: (ErrorCode.NONE, 0, 2, 1)}
        session.entries[1].log_start_offset = 1
        session.ask(1, 2)
        session.look()
        assert (await waiting)[orders] == (ErrorCode.NONE, 1)


@pytest.mark.spec("REP-05", "REP-03")
async def test_a_new_epoch_and_a_deleted_topic_are_told(tmp_path: Path) -> None:
    cluster, one = await two_brokers(tmp_path, 1)
    async with cluster:
        session = Session(one, cluster, 1)
        session.entries[0].current_leader_epoch = 0
        session.look()
        session.look()
        assert session.due == []
        controller = cluster.controller
        controller.commit(fence_broker(controller.context(), 1))
        assert [told[0] for told in session.look().values()] == [ErrorCode.FENCED_LEADER_EPOCH]
        assert session.due == [0], "an error is looked at again"
        controller.delete_topic("orders")
        assert [told[0] for told in session.look().values()] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.spec("REP-06", "REP-03")
async def test_a_waiting_session_is_woken_by_any_of_its_partitions(tmp_path: Path) -> None:
    cluster, one = await two_brokers(tmp_path, 5)
    async with cluster:
        session = Session(one, cluster, 5)
        session.look()
        session.look()
        waiting = session.fetch(max_wait_ms=60_000)
        assert not isinstance(waiting, list)
        one.produce(TopicPartition("orders", 3), "a")
        assert list(session.told(await asyncio.wait_for(waiting, 30))) == [3]


@pytest.mark.spec("REP-06", "REP-12")
async def test_a_consumer_waits_for_the_commit_and_not_for_the_append(tmp_path: Path) -> None:
    cluster, one = await two_brokers(tmp_path, 2)
    async with cluster:
        consumer, follower = Session(one, cluster, 2, replica_id=-1), Session(one, cluster, 2)
        consumer.look()
        consumer.look()
        follower.look()
        waiting = consumer.fetch(max_wait_ms=60_000)
        one.produce(TopicPartition("orders", 0), "a")
        assert consumer.due == []
        follower.look()
        follower.ask(0, 1)
        follower.look()
        [found] = consumer.told(await asyncio.wait_for(waiting, 30)).values()
        assert found[1] > 0


@pytest.mark.spec("REP-03")
async def test_what_a_lost_client_was_not_told_is_told_later(tmp_path: Path) -> None:
    cluster, one = await two_brokers(tmp_path, 2)
    async with cluster:
        session = Session(one, cluster, 2)
        session.look()
        session.look()
        one.produce(TopicPartition("orders", 1), "a")
        session.ask(1, 1)  # it has the record already: only the high watermark is news
        results = session.fetch()
        give_back(results, session.watch)
        assert session.look() == {1: (ErrorCode.NONE, 0, 1, 0)}


@pytest.mark.spec("REP-13", "REP-03")
async def test_a_follower_that_asks_for_nothing_new_keeps_up(tmp_path: Path) -> None:
    """Its fetches do not name the partition, yet it was caught up when the first record in a long time arrived."""
    cluster, one = await two_brokers(tmp_path, 1, replica_lag_time_max_ms=2_000)
    async with cluster:
        session = Session(one, cluster, 1)
        session.look()
        state = one.replicas.partition(TopicPartition("orders", 0))
        assert state is not None
        follower = state.followers[FOLLOWER]
        noted = follower.last_caught_up_ms
        session.look()
        await eventually(lambda: bool(session.look() == {} and session.watch.asked_ms > noted + 50))
        assert follower.last_caught_up_ms <= noted + 50, "nothing was written down for a partition that is settled"
        one.produce(TopicPartition("orders", 0), "a")
        assert follower.last_caught_up_ms == session.watch.asked_ms


@pytest.mark.spec("REP-13", "REP-03")
async def test_a_follower_whose_connection_ends_was_caught_up_until_its_last_fetch(tmp_path: Path) -> None:
    """Otherwise the first record in a long time, if it comes before the follower is back, puts it out of the ISR."""
    cluster, one = await two_brokers(tmp_path, 1, replica_lag_time_max_ms=2_000)
    async with cluster:
        session = Session(one, cluster, 1)
        session.look()
        follower = one.state(TopicPartition("orders", 0)).followers[FOLLOWER]
        noted = follower.last_caught_up_ms
        await eventually(lambda: bool(session.look() == {} and session.watch.asked_ms > noted + 50))
        session.entries[0].leave()
        one.produce(TopicPartition("orders", 0), "a")
        assert follower.last_caught_up_ms == session.watch.asked_ms


@pytest.mark.spec("REP-03", "REP-05")
async def test_a_follower_that_had_to_cut_its_log_is_told_the_high_watermark_again(tmp_path: Path) -> None:
    """It could not use the one that came with the order to cut, and there may be no further record for a long time."""
    cluster, one = await two_brokers(tmp_path, 1)
    async with cluster:
        one.produce(TopicPartition("orders", 0), "a", "b")
        session = Session(one, cluster, 1)
        session.ask(0, 2)
        session.look()
        session = Session(one, cluster, 1)
        session.entries[0].last_fetched_epoch = 0
        session.ask(0, 3)
        [result] = session.fetch()
        assert (result.diverging_epoch, result.high_watermark) == ((0, 2), 2)
        session.told([result])
        session.ask(0, 2)
        assert session.look() == {0: (ErrorCode.NONE, 0, 2, 0)}
        assert session.look() == {}


@pytest.mark.spec("REP-03", "REP-05")
async def test_a_follower_that_asks_in_a_new_epoch_is_told_all_again(tmp_path: Path) -> None:
    """It does not use an answer from the epoch before, and there may be no further record for a long time."""
    cluster = Cluster(tmp_path)
    async with cluster:
        one, _, _ = await cluster.add(1, FOLLOWER, 3)
        cluster.cuts.update({frozenset({1, FOLLOWER}), frozenset({1, 3})})
        cluster.controller.create_topic("orders", [[1, FOLLOWER, 3]])
        session, orders = Session(one, cluster, 1), TopicPartition("orders", 0)
        [entry] = session.entries
        entry.current_leader_epoch = 0
        assert session.look() == {0: (ErrorCode.NONE, 0, 0, 0)}
        cluster.controller.reassign("orders", [1, FOLLOWER])
        assert (cluster.leader(orders), one.state(orders).leader_epoch) == (1, 1)
        entry.ask(FetchEntry(orders, entry.topic_id, 0, current_leader_epoch=1, log_start_offset=0))
        session.watch.mark(entry)
        assert session.look() == {0: (ErrorCode.NONE, 0, 0, 0)}
        assert session.look() == {}


@pytest.mark.spec("REP-03", "REP-13")
async def test_a_follower_that_is_about_to_be_put_out_stays_due_and_comes_back(tmp_path: Path) -> None:
    """There may be no notice of the change and no further record: found by the simulation, seed 5649."""
    cluster, one = await two_brokers(tmp_path, 1)
    async with cluster:
        session = Session(one, cluster, 1)
        session.look()
        assert session.due == []
        [state] = one.replicas.partitions()
        state._propose(frozenset({1}))
        session.ask(0, 0)
        session.look()
        assert session.due == [0]
        without = replace(
            cluster.controller.registration(state.topic_partition), isr=(1,), partition_epoch=state.partition_epoch + 1
        )
        state.become(without, log_end_offset=0, high_watermark=0, now_ms=0)
        session.look()
        assert state.pending is not None
        assert set(state.pending.members) == {1, FOLLOWER}


@pytest.mark.spec("REP-03")
async def test_forgotten_partitions_are_let_go(tmp_path: Path) -> None:
    cluster, one = await two_brokers(tmp_path, 2)
    async with cluster:
        session = Session(one, cluster, 2)
        session.look()
        for entry in session.entries:
            entry.leave()
        one.produce(TopicPartition("orders", 0), "a")
        assert session.due == []
        assert session.look() == {}
