"""The rules of REP-10 to REP-14, on the pure state machine."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ballast_broker.replication.partition import IsrAnswer, Partition, Transition
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

LAG_MS = 30_000


@dataclass(frozen=True)
class Metadata:
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()


def leader(*, replicas: tuple[int, ...] = (1, 2, 3), isr: tuple[int, ...] = (1, 2, 3), end: int = 0) -> Partition:
    partition = Partition(TopicPartition("orders", 0), 1, max_lag_ms=LAG_MS)
    partition.become(Metadata(replicas, isr, 1), log_end_offset=end, high_watermark=0, now_ms=0)
    return partition


@pytest.mark.spec("REP-10", "REP-11")
def test_a_record_is_committed_when_followers_ask_for_the_offset_after_it() -> None:
    partition = leader(replicas=(1, 2), isr=(1, 2))
    partition.follower_fetched(2, -1, 0, 0, now_ms=1)
    assert not partition.appended(1, now_ms=2)
    assert (partition.log_end_offset, partition.high_watermark) == (1, 0)
    assert partition.follower_fetched(2, -1, 1, 0, now_ms=3)
    assert partition.high_watermark == 1


@pytest.mark.spec("REP-10")
def test_the_slowest_member_of_the_isr_holds_the_high_watermark() -> None:
    partition = leader()
    partition.appended(10, now_ms=1)
    partition.follower_fetched(2, -1, 10, 0, now_ms=2)
    assert partition.high_watermark == 0
    partition.follower_fetched(3, -1, 4, 0, now_ms=3)
    assert partition.high_watermark == 4


@pytest.mark.spec("REP-10")
def test_a_replica_outside_of_the_isr_does_not_hold_it_unless_it_keeps_up() -> None:
    partition = leader(isr=(1, 2))
    partition.appended(10, now_ms=1)
    partition.follower_fetched(3, -1, 2, 0, now_ms=2)
    partition.follower_fetched(2, -1, 10, 0, now_ms=2)
    assert partition.high_watermark == 10
    partition.follower_fetched(3, -1, 10, 0, now_ms=3)
    partition.appended(11, now_ms=4)
    partition.follower_fetched(2, -1, 11, 0, now_ms=5)
    assert partition.high_watermark == 10


@pytest.mark.spec("REP-10")
def test_nobody_waits_for_a_replica_that_the_controller_has_put_out_of_the_isr_until_it_keeps_up_again() -> None:
    """Its disk has failed, while its broker is alive and had kept up until then."""
    partition = leader()
    partition.appended(10, now_ms=1)
    for broker_id in (2, 3):
        partition.follower_fetched(broker_id, -1, 10, 0, now_ms=2)
    without = Metadata((1, 2, 3), (1, 2), 1, partition_epoch=1)
    assert partition.become(without, log_end_offset=10, high_watermark=10, now_ms=3) is Transition.STILL_LEADER
    partition.appended(11, now_ms=4)
    assert partition.follower_fetched(2, -1, 11, 0, now_ms=5)
    assert partition.high_watermark == 11
    partition.follower_fetched(3, -1, 11, 0, now_ms=6)
    partition.appended(12, now_ms=7)
    partition.follower_fetched(2, -1, 12, 0, now_ms=8)
    assert partition.high_watermark == 11


@pytest.mark.spec("REP-10", "REP-14")
def test_below_min_insync_replicas_the_high_watermark_stands_still() -> None:
    partition = leader(isr=(1,))
    partition.min_insync_replicas = 2
    assert not partition.appended(5, now_ms=1)
    assert partition.high_watermark == 0
    assert partition.under_min_isr


@pytest.mark.spec("REP-14")
def test_what_is_committed_when_fewer_than_the_minimum_are_in_sync_is_not_acknowledged() -> None:
    partition = leader()
    partition.min_insync_replicas = 2
    partition.appended(5, now_ms=1)
    for broker_id in (2, 3):
        partition.follower_fetched(broker_id, -1, 5, 0, now_ms=2)
    assert partition.committed(5) is ErrorCode.NONE
    alone = Metadata((1, 2, 3), (1,), 1, partition_epoch=1)
    partition.become(alone, log_end_offset=5, high_watermark=5, now_ms=3)
    assert partition.high_watermark == 5
    assert partition.committed(5) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


@pytest.mark.spec("REP-14")
def test_min_insync_replicas_above_the_replication_factor_counts_as_the_factor() -> None:
    partition = leader(replicas=(1,), isr=(1,))
    partition.min_insync_replicas = 2
    assert partition.appended(5, now_ms=1)
    assert partition.committed(5) is ErrorCode.NONE


@pytest.mark.spec("REP-14")
def test_waiters_are_answered_in_order_of_their_offsets() -> None:
    partition = leader(replicas=(1, 2), isr=(1, 2))
    partition.appended(3, now_ms=1)
    first, third, duplicate, other = (Waiting() for _ in range(4))
    partition.waiting.add(1, first)
    partition.waiting.add(3, third)
    partition.waiting.add(2, duplicate)  # of an older batch
    partition.waiting.add(2, other)
    partition.follower_fetched(2, -1, 2, 0, now_ms=2)
    assert partition.take_committed() == [first, duplicate, other]
    assert partition.committed(3) is None
    assert partition.waiting.take_all() == [third]


@pytest.mark.spec("REP-14")
def test_waiters_whose_time_is_over_are_let_go_though_nothing_is_committed() -> None:
    partition = leader(replicas=(1, 2), isr=(1, 2))
    patient = [Waiting() for _ in range(10)]
    for number in range(10_000):
        waiter = patient[number // 1000] if number % 1000 == 500 else Waiting()
        partition.waiting.add(number % 7, waiter)
        if waiter not in patient:
            waiter.answered = True
            partition.waiting.gave_up()
        assert len(partition.waiting) <= 2 * len(patient) + 1
    assert set(partition.waiting.take_all()) >= set(patient)


class Waiting:
    answered = False

    def answer(self, error: ErrorCode) -> None:
        raise AssertionError("nobody answers here")


@pytest.mark.spec("REP-13")
def test_a_silent_follower_leaves_the_isr_and_the_high_watermark_goes_on() -> None:
    partition = leader(replicas=(1, 2), isr=(1, 2))
    partition.follower_fetched(2, 7, 0, 0, now_ms=100)
    partition.appended(5, now_ms=200)
    assert partition.propose_shrink(now_ms=100 + LAG_MS) is None
    change = partition.propose_shrink(now_ms=101 + LAG_MS)
    assert change is not None
    assert change.isr == ((1, -1),)
    assert partition.propose_shrink(now_ms=500 + LAG_MS) is None, "one proposal at a time"
    assert partition.maximal_isr == {1, 2}, "it counts as a member until the controller has agreed"
    answer = partition.isr_answered(change, ErrorCode.NONE, isr=(1,), leader_epoch=0, partition_epoch=1)
    assert answer is IsrAnswer.WAIT
    assert partition.maximal_isr == {1, 2}, "until the metadata has come as far, and with it what is asked of an ISR"
    partition.become(
        Metadata((1, 2), (1,), 1, partition_epoch=1), log_end_offset=5, high_watermark=0, now_ms=102 + LAG_MS
    )
    assert partition.high_watermark == 5
    assert partition.pending is None


@pytest.mark.spec("REP-13")
def test_a_follower_that_keeps_asking_but_never_reaches_the_end_is_in_sync_by_its_previous_fetch() -> None:
    partition = leader(replicas=(1, 2), isr=(1, 2))
    now_ms = 0
    for step in range(1, 10):
        now_ms = step * LAG_MS // 2
        partition.appended(step * 10, now_ms)
        # It always fetches from what was the log end offset at its previous fetch.
        partition.follower_fetched(2, -1, (step - 1) * 10, 0, now_ms)
    assert partition.propose_shrink(now_ms) is None


@pytest.mark.spec("REP-13")
def test_a_follower_joins_when_it_reached_the_high_watermark_and_the_start_of_the_epoch() -> None:
    partition = leader(replicas=(1, 2), isr=(1,), end=10)
    assert partition.high_watermark == 10
    partition.follower_fetched(2, 7, 9, 0, now_ms=1)
    assert partition.propose_expand(2) is None
    partition.follower_fetched(2, 7, 10, 0, now_ms=2)
    change = partition.propose_expand(2)
    assert change is not None
    assert change.isr == ((1, -1), (2, 7))
    partition.appended(11, now_ms=3)
    assert partition.high_watermark == 10, "one that is about to join is waited for"


@pytest.mark.spec("REP-13")
def test_a_follower_that_has_all_that_is_committed_but_not_all_of_earlier_epochs_does_not_join() -> None:
    """From there on its log may have diverged from the leader's."""
    partition = Partition(TopicPartition("orders", 0), 1, max_lag_ms=LAG_MS)
    partition.become(Metadata((1, 2, 3), (1, 2), 1), log_end_offset=10, high_watermark=5, now_ms=0)
    assert partition.high_watermark == 5
    partition.follower_fetched(3, 7, 7, 0, now_ms=1)
    assert partition.propose_expand(3) is None
    partition.follower_fetched(3, 7, 10, 0, now_ms=2)
    assert partition.propose_expand(3) is not None


@pytest.mark.spec("REP-13")
def test_a_fenced_or_restarted_follower_does_not_join() -> None:
    partition = leader(replicas=(1, 2), isr=(1,))
    partition.follower_fetched(2, 7, 0, 0, now_ms=1)
    partition.update_eligible({1: 5})
    assert partition.propose_expand(2) is None
    partition.update_eligible({1: 5, 2: 8})
    assert partition.propose_expand(2) is None, "it fetched in an earlier life"
    partition.update_eligible({1: 5, 2: 7})
    assert partition.propose_expand(2) is not None


@pytest.mark.spec("REP-10", "REP-13")
def test_who_may_be_in_the_isr_by_now_holds_the_high_watermark() -> None:
    """It has only what is committed, and the controller's response is still on its way."""
    partition = leader(isr=(1, 2))
    partition.appended(10, now_ms=1)
    partition.follower_fetched(2, -1, 4, 0, now_ms=2)
    partition.follower_fetched(3, -1, 4, 0, now_ms=2)
    change = partition.propose_expand(3)
    assert change is not None
    assert not partition.follower_fetched(2, -1, 10, 0, now_ms=3)
    assert partition.high_watermark == 4
    assert partition.isr_answered(change, ErrorCode.INELIGIBLE_REPLICA, isr=(), leader_epoch=-1, partition_epoch=-1)
    assert partition.advance_high_watermark(now_ms=4)
    assert partition.high_watermark == 10


@pytest.mark.spec("REP-13")
def test_an_earlier_life_of_a_follower_is_known_by_its_epoch() -> None:
    partition = leader(replicas=(1, 2), isr=(1,))
    follower = partition.followers[2]
    partition.update_eligible({1: 5, 2: 8})
    assert [follower.has_outlived(epoch) for epoch in (-1, 7, 8, 9)] == [False, True, False, False]
    partition.follower_fetched(2, 9, 0, 0, now_ms=1)  # which it knows of before the metadata has come here
    assert follower.has_outlived(8)
    partition.update_eligible({1: 5})
    assert follower.has_outlived(8), "who is fenced now has not come back from an earlier life"


@pytest.mark.spec("REP-13")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ErrorCode.INELIGIBLE_REPLICA, IsrAnswer.UNDONE),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, IsrAnswer.UNDONE),
        (ErrorCode.FENCED_LEADER_EPOCH, IsrAnswer.WAIT),
        (ErrorCode.INVALID_UPDATE_VERSION, IsrAnswer.WAIT),
        (ErrorCode.UNKNOWN_SERVER_ERROR, IsrAnswer.RETRY),
    ],
)
def test_what_a_refusal_by_the_controller_means(error: ErrorCode, expected: IsrAnswer) -> None:
    partition = leader(replicas=(1, 2), isr=(1,))
    partition.follower_fetched(2, 7, 0, 0, now_ms=1)
    change = partition.propose_expand(2)
    assert change is not None
    assert partition.isr_answered(change, error, isr=(), leader_epoch=-1, partition_epoch=-1) is expected
    assert partition.isr == {1}
    assert (partition.pending is None) == (expected is IsrAnswer.UNDONE)


@pytest.mark.spec("REP-13")
def test_newer_metadata_overtakes_a_proposal() -> None:
    partition = leader(replicas=(1, 2), isr=(1,))
    partition.follower_fetched(2, 7, 0, 0, now_ms=1)
    change = partition.propose_expand(2)
    assert change is not None
    metadata = Metadata((1, 2), (1, 2), 1, partition_epoch=1)
    assert partition.become(metadata, log_end_offset=0, high_watermark=0, now_ms=2) is Transition.STILL_LEADER
    assert partition.pending is None
    answer = partition.isr_answered(change, ErrorCode.NONE, isr=(1,), leader_epoch=0, partition_epoch=1)
    assert answer is IsrAnswer.WAIT
    assert partition.isr == {1, 2}


def test_a_replica_that_is_only_being_added_is_not_missed() -> None:
    """A reassignment may take long, and a replica that is only being added takes nothing away from safety."""
    partition = leader(replicas=(1, 2), isr=(1, 2))
    joining = Metadata((1, 2, 3), (1, 2), 1, partition_epoch=1, adding_replicas=(3,))
    partition.become(joining, log_end_offset=0, high_watermark=0, now_ms=0)
    missed = [partition.under_replicated]
    lost = Metadata((1, 2, 3), (1,), 1, partition_epoch=2, adding_replicas=(3,))
    partition.become(lost, log_end_offset=0, high_watermark=0, now_ms=0)
    missed.append(partition.under_replicated)
    partition.become(
        Metadata((1, 2, 3), (1, 2), 1, partition_epoch=3, adding_replicas=(3,)),
        log_end_offset=0, high_watermark=0, now_ms=0,
    )  # fmt: skip
    assert partition.take_epoch(Metadata((1, 2, 3), (1, 2), 1, partition_epoch=4)), "nobody has another role"
    missed.append(partition.under_replicated)
    assert missed == [False, True, True], "in the end it was added, and is not in sync"


def test_where_replicas_lie_is_taken_in_without_looking_at_the_role_again() -> None:
    partition = leader(replicas=(1, 2), isr=(1, 2))
    assert partition.take_epoch(Metadata((1, 2), (1, 2), 1, partition_epoch=3))
    assert partition.partition_epoch == 3
    assert not partition.take_epoch(Metadata((1, 2), (1, 2), 1, partition_epoch=2)), "older"
    assert partition.partition_epoch == 3


@pytest.mark.parametrize(
    "metadata",
    [
        Metadata((1, 2), (1,), 1, partition_epoch=1),
        Metadata((1, 2, 3), (1, 2), 1, partition_epoch=1),
        Metadata((1, 2), (1, 2), 1, leader_epoch=1, partition_epoch=1),
        Metadata((1, 2), (1, 2), 2, leader_epoch=1, partition_epoch=1),
    ],
)
def test_a_change_of_role_or_isr_is_more_than_an_epoch(metadata: Metadata) -> None:
    partition = leader(replicas=(1, 2), isr=(1, 2))
    assert not partition.take_epoch(metadata)
    assert partition.partition_epoch == 0


@pytest.mark.spec("REP-13")
def test_a_proposal_under_way_is_overtaken_by_any_newer_epoch() -> None:
    partition = leader(replicas=(1, 2), isr=(1,))
    partition.follower_fetched(2, 7, 0, 0, now_ms=1)
    assert partition.propose_expand(2) is not None
    assert not partition.take_epoch(Metadata((1, 2), (1,), 1, partition_epoch=1))


@pytest.mark.spec("REP-20")
def test_older_metadata_is_ignored() -> None:
    partition = leader(replicas=(1, 2), isr=(1, 2))
    newer = Metadata((1, 2), (1, 2), 2, leader_epoch=4, partition_epoch=4)
    assert partition.become(newer, log_end_offset=0, high_watermark=0, now_ms=1) is Transition.NEW_FOLLOWER
    older = Metadata((1, 2), (1, 2), 1, leader_epoch=3, partition_epoch=3)
    assert partition.become(older, log_end_offset=0, high_watermark=0, now_ms=2) is Transition.STALE
    assert not partition.is_leader


@pytest.mark.spec("REP-10")
def test_a_followers_high_watermark_is_the_smaller_of_its_end_and_the_leaders() -> None:
    partition = Partition(TopicPartition("orders", 0), 2, max_lag_ms=LAG_MS)
    partition.become(Metadata((1, 2), (1, 2), 1), log_end_offset=0, high_watermark=0, now_ms=0)
    assert partition.follow_high_watermark(5, log_end_offset=3) == 3
    assert partition.follow_high_watermark(2, log_end_offset=4) == 3, "it does not go back"
    assert partition.committed(1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
