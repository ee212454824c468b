"""Brokers that replicate: commits, lag, the ISR, the loss of a leader. Real logs, in one event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.broker.replication.cluster import Cluster, Node, batch_of, eventually, told

from ballast_broker.replication import isr
from ballast_broker.replication.partition import IsrChange
from ballast_broker.replication.reading import FetchEntry, FetchParams, give_back
from ballast_broker.replication.replica import Replica
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition

ORDERS = TopicPartition("orders", 0)
MAGIC_POSITION = 16  # in a batch


@pytest.mark.spec("REP-14", "REP-12")
async def test_one_replica_commits_at_once(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1)
        cluster.controller.create_topic("orders", [[1]])
        info = node.replicas.append(ORDERS, None, batch_of("a", "b"), -1)
        assert (info.first_offset, info.last_offset) == (0, 1)
        assert node.replicas.await_committed(ORDERS, 2, 1000) is ErrorCode.NONE
        assert await node.consume(ORDERS) == ["a", "b"]


@pytest.mark.spec("REP-01", "REP-10", "REP-12", "REP-14")
async def test_acks_all_waits_for_all_in_sync_replicas(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, two, three = await cluster.add(1, 2, 3)
        cluster.controller.create_topic("orders", [[1, 2, 3]])
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        assert two.stored(ORDERS) == three.stored(ORDERS) == ["a"]
        assert await one.consume(ORDERS) == ["a"]
        await eventually(lambda: two.log(ORDERS).high_watermark == 1, "the follower hears of the commit")


@pytest.mark.spec("REP-12", "REP-14")
async def test_what_is_not_committed_is_not_seen(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, _ = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        cluster.cuts.add(frozenset({1, 2}))
        assert await one.produce_to_all(ORDERS, "b", timeout_ms=50) is ErrorCode.REQUEST_TIMED_OUT
        assert await one.consume(ORDERS) == ["a"]
        cluster.cuts.clear()
        await eventually(lambda: one.log(ORDERS).high_watermark == 2)
        assert await one.consume(ORDERS) == ["a", "b"]


@pytest.mark.spec("REP-13", "REP-14")
async def test_a_silent_follower_leaves_and_comes_back(tmp_path: Path) -> None:
    async with Cluster(tmp_path, replica_lag_time_max_ms=300) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]], {"min.insync.replicas": "2"})
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        cluster.cuts.add(frozenset({1, 2}))
        assert await one.produce_to_all(ORDERS, "b", timeout_ms=50) is ErrorCode.REQUEST_TIMED_OUT
        await eventually(lambda: cluster.isr(ORDERS) == {1}, "the ISR shrinks")
        with pytest.raises(ApiError) as refused:
            one.replicas.append(ORDERS, None, batch_of("c"), -1)
        assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert one.log(ORDERS).high_watermark == 1, "below min.insync.replicas it stands still"
        cluster.cuts.clear()
        await eventually(lambda: cluster.isr(ORDERS) == {1, 2}, "it has caught up and joins again")
        assert await one.produce_to_all(ORDERS, "d") is ErrorCode.NONE
        assert two.stored(ORDERS) == ["a", "b", "d"]
        assert (one.replication.isr_changes.shrinks, one.replication.isr_changes.expands) == (1, 1)


@pytest.mark.spec("REP-13")
async def test_a_change_of_the_isr_outlasts_the_controllers_absence(tmp_path: Path) -> None:
    async with Cluster(tmp_path, replica_lag_time_max_ms=100) as cluster:
        one, _ = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        cluster.controller.away = True
        cluster.cuts.add(frozenset({1, 2}))
        one.produce(ORDERS, "a")
        await eventually(lambda: one.replication.isr_changes.failed_updates > 1, "nobody takes the change")
        assert cluster.isr(ORDERS) == {1, 2}
        cluster.controller.away = False
        await eventually(lambda: cluster.isr(ORDERS) == {1}, "it is asked again until somebody does")


@pytest.mark.spec("REP-13", "CLI-09")
async def test_changes_of_many_isrs_are_asked_for_so_many_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the controller and this broker are blocked when a follower of thousands of partitions returns."""
    monkeypatch.setattr(isr, "MAXIMUM_PER_REQUEST", 5)
    async with Cluster(tmp_path) as cluster:
        _, two = await cluster.add(1, 2)
        controller = cluster.controller
        controller.create_topic("orders", [[1, 2]] * 12)
        numbers = [TopicPartition("orders", number) for number in range(12)]
        await two.crash()
        assert all(controller.registration(each).isr == (1,) for each in numbers)
        controller.calls.clear()
        await two.start()
        await eventually(lambda: all({*controller.registration(each).isr} == {1, 2} for each in numbers))
        asked = [call for call in controller.calls if type(call).__name__ == "AlterPartitionRequest"]
        sizes = [sum(len(topic.partitions) for topic in each.topics) for each in asked]
        assert sum(sizes) >= 12
        assert max(sizes) <= 5


@pytest.mark.spec("REP-20", "REP-21")
async def test_a_new_leader_goes_on_where_the_old_one_was(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, two, three = await cluster.add(1, 2, 3)
        cluster.controller.create_topic("orders", [[1, 2, 3]])
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        await one.crash()
        assert cluster.leader(ORDERS) == 2
        assert await two.produce_to_all(ORDERS, "b") is ErrorCode.NONE
        assert three.stored(ORDERS) == ["a", "b"]
        assert two.log(ORDERS).epoch_end_offset(0) == (0, 1)
        await one.start()
        await eventually(lambda: cluster.isr(ORDERS) == {1, 2, 3})
        assert one.stored(ORDERS) == ["a", "b"]
        assert one.log(ORDERS).epochs.entries == two.log(ORDERS).epochs.entries


@pytest.mark.spec("REP-14", "REP-20")
async def test_waiting_producers_hear_that_the_leadership_is_lost(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, _ = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        cluster.cuts.add(frozenset({1, 2}))
        one.produce(ORDERS, "a")
        waiting = one.replicas.await_committed(ORDERS, 1, 60_000)
        assert not isinstance(waiting, ErrorCode)
        publish = one.replication.roles.publish
        cluster.controller.lose(1)  # fenced, but it still gets the metadata
        told(publish, *cluster.controller.last)
        assert await waiting is ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(ApiError) as refused:
            one.produce(ORDERS, "b")
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.spec("REP-14", "REP-20")
async def test_producers_wait_on_where_their_leader_leads_a_new_epoch(tmp_path: Path) -> None:
    """As when a replica is removed: a producer that got an error would write again what is in the log already."""
    async with Cluster(tmp_path) as cluster:
        one, _, _ = await cluster.add(1, 2, 3)
        cluster.controller.create_topic("orders", [[1, 2, 3]])
        cluster.cuts |= {frozenset({1, 2}), frozenset({1, 3})}
        one.produce(ORDERS, "a")
        waiting = one.replicas.await_committed(ORDERS, 1, 60_000)
        assert not isinstance(waiting, ErrorCode)
        cluster.controller.reassign("orders", [1, 2])
        partition = one.state(ORDERS)
        assert (partition.leader_id, partition.leader_epoch) == (1, 1)
        await asyncio.sleep(0)
        assert not waiting.done()
        cluster.cuts.clear()
        assert await waiting is ErrorCode.NONE
        assert one.stored(ORDERS) == ["a"]


@pytest.mark.spec("REP-14")
async def test_requests_that_took_too_long_are_forgotten_while_a_follower_is_stuck(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, _ = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        cluster.controller.away = True  # so the follower stays in the ISR
        cluster.cuts.add(frozenset({1, 2}))
        replica = one.replicas._replicas[ORDERS]
        for _ in range(20):
            assert await one.produce_to_all(ORDERS, "b", timeout_ms=1) is ErrorCode.REQUEST_TIMED_OUT
            deleted = await one.replicas.delete_records({ORDERS: 1}, 1)
            assert deleted == {ORDERS: (ErrorCode.REQUEST_TIMED_OUT, -1)}
        assert (len(replica.state.waiting), len(replica.delete_waiters)) == (0, 0)
        waiting = asyncio.ensure_future(one.produce_to_all(ORDERS, "c"))
        cluster.cuts.clear()
        assert await waiting is ErrorCode.NONE


@pytest.mark.spec("REP-07")
async def test_a_follower_that_is_behind_the_leaders_start_begins_again_there(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        await two.crash()
        for value in "bcd":
            assert await one.produce_to_all(ORDERS, value) is ErrorCode.NONE
        assert await one.replicas.delete_records({ORDERS: 3}, 1000) == {ORDERS: (ErrorCode.NONE, 3)}
        await two.start()
        await eventually(lambda: cluster.isr(ORDERS) == {1, 2})
        assert (two.log(ORDERS).log_start_offset, two.stored(ORDERS)) == (3, ["d"])


@pytest.mark.spec("REP-07")
async def test_a_follower_begins_inside_of_a_batch_where_the_leader_does(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        await two.crash()
        assert await one.produce_to_all(ORDERS, "b", "c", "d") is ErrorCode.NONE
        assert await one.replicas.delete_records({ORDERS: 2}, 1000) == {ORDERS: (ErrorCode.NONE, 2)}
        await two.start()
        await eventually(lambda: cluster.isr(ORDERS) == {1, 2})
        assert await one.produce_to_all(ORDERS, "e") is ErrorCode.NONE
        log = two.log(ORDERS)
        assert (log.log_start_offset, log.bases, log.log_end_offset) == (2, [1], 5), "the batch is kept whole"
        assert two.stored(ORDERS) == one.stored(ORDERS) == ["b", "c", "d", "e"]
        await two.crash()
        await two.start()
        await eventually(lambda: two.log(ORDERS).log_start_offset == 2, "the leader says so again")
        assert two.stored(ORDERS) == ["b", "c", "d", "e"]


@pytest.mark.spec("REP-07", "TOP-10")
async def test_one_that_ends_where_the_leader_begins_inside_of_a_batch_begins_again_there(tmp_path: Path) -> None:
    """What it has is not needed: all records before the leader's start have been deleted."""
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        cluster.cuts.add(frozenset({1, 2}))
        one.produce(ORDERS, "lost", "lost", "lost")
        await one.crash()
        cluster.cuts.clear()
        await eventually(lambda: cluster.leader(ORDERS) == 2)
        two.produce(ORDERS, "b", "c")
        two.produce(ORDERS, "d", "e", "f")
        assert await two.replicas.delete_records({ORDERS: 4}, 1000) == {ORDERS: (ErrorCode.NONE, 4)}
        await one.start()
        await eventually(lambda: cluster.isr(ORDERS) == {1, 2})
        assert await two.produce_to_all(ORDERS, "g") is ErrorCode.NONE
        assert (one.log(ORDERS).log_start_offset, one.log(ORDERS).bases) == (4, [3])
        assert one.stored(ORDERS) == two.stored(ORDERS)[-4:] == ["d", "e", "f", "g"]


@pytest.mark.spec("REP-07")
async def test_records_are_deleted_on_all_replicas(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        for value in "abc":
            assert await one.produce_to_all(ORDERS, value) is ErrorCode.NONE
        assert await one.replicas.delete_records({ORDERS: -1}, 5000) == {ORDERS: (ErrorCode.NONE, 3)}
        assert two.log(ORDERS).log_start_offset == 3


@pytest.mark.spec("REP-02")
async def test_a_follower_whose_log_begins_later_by_its_own_retention_goes_on(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        for value in "abc":
            assert await one.produce_to_all(ORDERS, value) is ErrorCode.NONE
        await eventually(lambda: two.log(ORDERS).high_watermark == 3)
        two.log(ORDERS).advance_log_start_offset(2)
        assert await one.produce_to_all(ORDERS, "d", timeout_ms=2000) is ErrorCode.NONE
        assert two.stored(ORDERS)[-1] == "d"


@pytest.mark.spec("REP-01")
async def test_a_partition_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2], [1, 2]])
        other = TopicPartition("orders", 1)
        two.log(ORDERS).append_as_follower(memoryview(leader_batch("from nowhere")))
        assert await one.produce_to_all(other, "a") is ErrorCode.NONE
        assert two.stored(other) == ["a"]


def leader_batch(*values: str) -> bytearray:
    batch = batch_of(*values)
    batch[12:16] = (0).to_bytes(4, "big")  # partition leader epoch
    return batch


@pytest.mark.spec("REP-04")
async def test_a_follower_that_lags_asks_again_without_a_pause(tmp_path: Path) -> None:
    """Twenty batches, one per fetch: it would take minutes if each of these fetches waited at the leader."""
    async with Cluster(tmp_path, replica_fetch_wait_max_ms=20_000, replica_fetch_max_bytes=1) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        assert await one.produce_to_all(ORDERS, "first") is ErrorCode.NONE
        cluster.cuts.add(frozenset({1, 2}))
        for number in range(20):
            one.produce(ORDERS, str(number))
        before = len(cluster.fetches)
        cluster.cuts.clear()
        await eventually(lambda: len(two.stored(ORDERS)) == 21)
        assert len(cluster.fetches) - before >= 19, "the first may come by a fetch that waited at the leader already"


@pytest.mark.spec("REP-05")
async def test_a_follower_is_told_why_it_gets_nothing(tmp_path: Path) -> None:
    """The errors come in this order: unknown partition, wrong epoch, and only then a wrong offset."""
    async with Cluster(tmp_path) as cluster:
        one, _ = await cluster.add(1, 2)
        topic_id = cluster.controller.create_topic("orders", [[1, 2]])
        one.produce(ORDERS, "a")
        epoch = one.state(ORDERS).leader_epoch
        follower = FetchParams(replica_id=2, replica_epoch=cluster.nodes[2].epoch, max_wait_ms=0)

        def told(partition: TopicPartition, current_leader_epoch: int) -> ErrorCode:
            entry = FetchEntry(partition, topic_id, 1, current_leader_epoch=current_leader_epoch)
            results = one.replicas.fetch(follower, [entry])
            assert isinstance(results, list)
            return results[0].error

        assert told(TopicPartition("orders", 7), epoch + 1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert told(ORDERS, epoch + 1) is ErrorCode.UNKNOWN_LEADER_EPOCH
        assert told(ORDERS, epoch) is ErrorCode.NONE


@pytest.mark.spec("CLU-01", "REP-05", "REP-10")
async def test_a_fetch_of_an_earlier_life_that_comes_late_counts_for_nothing(tmp_path: Path) -> None:
    """The broker may have lost since what it had then: such a fetch must not commit anything."""
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        topic_id = cluster.controller.create_topic("orders", [[1, 2]])
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        earlier = two.epoch
        await two.crash()
        await two.start()
        await eventually(lambda: cluster.isr(ORDERS) == {1, 2})
        cluster.cuts.add(frozenset({1, 2}))
        assert await one.produce_to_all(ORDERS, "b", timeout_ms=1) is ErrorCode.REQUEST_TIMED_OUT
        late = FetchParams(replica_id=2, replica_epoch=earlier, max_wait_ms=0)
        results = one.replicas.fetch(late, [FetchEntry(ORDERS, topic_id, 2)])
        assert isinstance(results, list)
        assert results[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert one.state(ORDERS).high_watermark == 1


@pytest.mark.spec("REP-06")
async def test_nothing_happens_while_nothing_happens(tmp_path: Path) -> None:
    """An idle follower fetches once per `replica.fetch.wait.max.ms`, not more often."""
    async with Cluster(tmp_path, replica_fetch_wait_max_ms=200) as cluster:
        one, _ = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        before = len(cluster.fetches)
        began = one.replicas._clock.monotonic()
        await eventually(lambda: one.replicas._clock.monotonic() > began + 1.0)
        assert 3 <= len(cluster.fetches) - before <= 7


@pytest.mark.spec("REP-06")
async def test_the_first_record_of_a_new_topic_does_not_wait_for_an_idle_fetch_to_end(tmp_path: Path) -> None:
    async with Cluster(tmp_path, replica_fetch_wait_max_ms=8000) as cluster:
        one, _ = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        cluster.controller.create_topic("other", [[1, 2]])
        assert await one.produce_to_all(TopicPartition("other", 0), "b", timeout_ms=4000) is ErrorCode.NONE


@pytest.mark.spec("REP-20", "REP-21")
async def test_metadata_older_than_the_log_changes_nothing(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        old = cluster.controller.last
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        await one.crash()
        assert await two.produce_to_all(ORDERS, "b") is ErrorCode.NONE
        await one.start()
        await eventually(lambda: cluster.isr(ORDERS) == {1, 2})
        epochs = one.log(ORDERS).epochs.entries
        await one.stop()
        await one.open()
        told(one.replication.roles.publish, *old)  # the broker reads an early part of the metadata log again
        assert one.log(ORDERS).epochs.entries == epochs
        with pytest.raises(ApiError):
            one.produce(ORDERS, "with a dead epoch")


@pytest.mark.spec("REP-01", "LOG-33")
async def test_of_a_partition_that_failed_and_is_followed_no_more_nothing_is_kept(tmp_path: Path) -> None:
    """The leader usually learns first that a topic is deleted, and refuses the follower's fetches until it learns it,
    too."""
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        for name in ("orders", "kept"):
            cluster.controller.create_topic(name, [[1, 2]])
        cluster.cuts.add(frozenset({1, 2}))
        one.replication.roles._stop(ORDERS, one.replicas._replicas[ORDERS].topic_id)
        cluster.cuts.clear()
        [group] = {*two.replication.fetchers._groups.values()}
        await eventually(lambda: bool(group._aside), "the leader refuses it")
        cluster.controller.delete_topic("orders")
        assert not group._backoff._failures


@pytest.mark.spec("REP-06", "REP-11")
async def test_a_consumer_that_waits_hears_at_once_of_what_a_lost_follower_has_committed(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, _ = await cluster.add(1, 2)
        topic_id = cluster.controller.create_topic("orders", [[1, 2]])
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        cluster.cuts.add(frozenset({1, 2}))
        one.produce(ORDERS, "b")
        waiting = one.replicas.fetch(FetchParams(max_wait_ms=60_000), [FetchEntry(ORDERS, topic_id, 1)])
        assert isinstance(waiting, asyncio.Future)
        cluster.controller.lose(2)
        await eventually(waiting.done, "the fetch is answered", timeout_s=5.0)
        [result] = waiting.result()
        assert (result.high_watermark, result.slice is not None) == (2, True)
        result.release()


@pytest.mark.spec("REP-11", "REP-14")
async def test_what_waits_for_min_insync_replicas_is_committed_when_fewer_are_asked_for(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]], {"min.insync.replicas": "2"})
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        await two.crash()
        one.produce(ORDERS, "b")
        assert await one.consume(ORDERS) == ["a"]
        cluster.controller.configure(2, "orders", {"min.insync.replicas": "1"})
        assert await one.consume(ORDERS) == ["a", "b"]


@pytest.mark.spec("REP-11", "REP-14")
@pytest.mark.parametrize("fenced_first", [True, False])
async def test_nobody_waits_for_a_follower_that_died_before_it_could_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fenced_first: bool
) -> None:
    """What a producer writes meanwhile waits for the follower, which may be in the ISR already, until it cannot be."""
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        controller = cluster.controller
        controller.create_topic("orders", [[1, 2]])
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        await two.crash()
        controller.away = True
        await two.start()
        state = one.replicas.partition(ORDERS)
        assert state is not None
        await eventually(lambda: state.pending is not None, "the follower is about to join")
        await two.crash(noticed=False)
        producing = asyncio.ensure_future(one.produce_to_all(ORDERS, "b", timeout_ms=60_000))
        await asyncio.sleep(0)
        assert state.high_watermark == 1
        if fenced_first:
            controller.lose(2)
            controller.away = False
        else:
            refused = controller.call

            async def refuse(request: Any, version: int) -> Any:
                response = await refused(request, version)
                for partition in [each for topic in response.topics for each in topic.partitions]:
                    partition.error_code = int(ErrorCode.OPERATION_NOT_ATTEMPTED)
                return response

            monkeypatch.setattr(controller, "call", refuse)
            with monkeypatch.context() as patched:
                patched.setattr(controller, "commit", lambda outcome: outcome.response)
                controller.away = False
                await eventually(lambda: state.pending is None, "the change is refused")
            assert not producing.done()
            controller.lose(2)
        await eventually(producing.done, "the record is committed", timeout_s=5.0)
        assert producing.result() is ErrorCode.NONE


@pytest.mark.spec("REP-07")
async def test_deleted_records_are_told_of_when_the_follower_that_was_waited_for_is_gone(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, _ = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        cluster.cuts.add(frozenset({1, 2}))
        deleting = asyncio.ensure_future(one.replicas.delete_records({ORDERS: 1}, 60_000))
        await asyncio.sleep(0)
        assert not deleting.done()
        cluster.controller.lose(2)
        await eventually(deleting.done, "nobody else is waited for", timeout_s=5.0)
        assert deleting.result() == {ORDERS: (ErrorCode.NONE, 1)}


@pytest.mark.spec("REP-24", "LOG-41")
async def test_what_a_disk_has_spoiled_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    """A batch header in the leader's log is corrupt. Readers from there on get an error; a follower that took the next
    file instead would join the ISR, and lead, with a gap."""
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        topic_id = cluster.controller.create_topic("orders", [[1, 2]], {"segment.bytes": "1000"})
        log, totals = one.log(ORDERS), two.replication.fetchers.totals
        while len(log.segments) < 3:
            assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        cluster.cuts.add(frozenset({1, 2}))
        spoiled, offset = log.active, log.log_end_offset
        position = spoiled.size
        while len(log.segments) < 5:
            one.produce(ORDERS, "b")
        spoil(spoiled.path(), position + MAGIC_POSITION)
        log.known_positions.clear()
        assert await asked(one, topic_id, offset) is ErrorCode.CORRUPT_MESSAGE
        cluster.cuts.clear()
        await eventually(lambda: totals.failed > 2, "the follower asks again and again")
        assert two.log(ORDERS).log_end_offset == offset
        assert await asked(one, topic_id, spoiled.base_offset) is ErrorCode.NONE
        assert await asked(one, topic_id, log.bases[-1]) is ErrorCode.NONE, "what lies in other files can be read"


@pytest.mark.spec("REP-13")
@pytest.mark.parametrize("bug", ["looking", "asking"])
async def test_a_bug_in_one_change_of_an_isr_does_not_end_all_of_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    """Otherwise producers with acks=all would wait for followers that are gone."""
    odd = TopicPartition("odd", 0)
    async with Cluster(tmp_path, replica_lag_time_max_ms=200) as cluster:
        one, _ = await cluster.add(1, 2)
        for topic in ("odd", "orders"):
            cluster.controller.create_topic(topic, [[1, 2]])
        submit, call, failures = one.replication.isr_changes.submit, cluster.controller.call, []

        def submitting(replica: Replica, change: IsrChange) -> None:
            if replica.topic_partition == odd:
                failures.append("looking")
                raise RuntimeError("a bug")
            submit(replica, change)

        async def calling(request: Any, version: int) -> Any:
            if not failures:
                failures.append("asking")
                raise RuntimeError("a bug")
            return await call(request, version)

        if bug == "looking":
            monkeypatch.setattr(one.replication.isr_changes, "submit", submitting)
        else:
            monkeypatch.setattr(cluster.controller, "call", calling)
        cluster.cuts.add(frozenset({1, 2}))
        one.produce(odd, "a")
        one.produce(ORDERS, "a")
        await eventually(lambda: cluster.isr(ORDERS) == {1}, "the ISR shrinks all the same", timeout_s=5.0)
        assert failures
        assert "a bug" in caplog.text


def spoil(path: str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(b"\x7f")


async def asked(node: Node, topic_id: UUID, offset: int) -> ErrorCode:
    """The error of a fetch at this offset by a client that may read up to the log end offset."""
    results = node.replicas.fetch(FetchParams(replica_id=2), [FetchEntry(ORDERS, topic_id, offset)])
    assert isinstance(results, list)
    give_back(results)
    return results[0].error
