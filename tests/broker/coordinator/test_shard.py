"""The offsets that are being written in one partition of `__consumer_offsets`."""

from __future__ import annotations

import pytest

from ballast_broker.coordinator.offsets import CommittedOffset, Offsets
from ballast_broker.coordinator.shard import Shard
from ballast_wire.names import TopicPartition

pytestmark = pytest.mark.spec("CLI-04")
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def offset(number: int) -> CommittedOffset:
    return CommittedOffset(number, -1, "", 0)


class Counted(TopicPartition):
    """A partition that counts how often it is compared with others."""

    looked_for = 0

    def __hash__(self) -> int:
        Counted.looked_for += 1
        return super().__hash__()


@pytest.mark.spec("CLI-09")
def test_what_is_committed_of_thousands_of_partitions_is_taken_over_as_a_whole() -> None:
    shard = Shard(0, loaded=True)
    offsets: Offsets = {Counted("t", number): offset(number) for number in range(100)}
    Counted.looked_for = 0
    shard.begin_write("g", offsets)
    shard.end_write("g", offsets)
    shard.apply_commit("g", offsets)
    assert Counted.looked_for == 0, "each of them was gone through"
    assert shard.offsets["g"] == offsets


def test_a_partition_is_being_written_until_each_commit_of_it_is_settled() -> None:
    shard = Shard(0, loaded=True)
    first, second, alike = (
        {T0: offset(1), T1: offset(1)},
        {T1: offset(2), T2: offset(2)},
        {T1: offset(2), T2: offset(2)},
    )
    for each in (first, second, alike):
        shard.begin_write("g", each)
    assert shard.being_written("g") == shard.known_offsets("g") == {T0, T1, T2}
    shard.end_write("g", second)
    shard.end_write("g", first)
    assert shard.being_written("g") == {T1, T2}
    shard.end_write("g", alike)
    assert shard.being_written("g") == set()
    assert not shard.writes


def test_a_commit_outside_a_transaction_counts_over_what_is_pending_of_the_same_partition_only() -> None:
    shard = Shard(0, loaded=True)
    for partition in (T0, T1):
        shard.add_pending(11, "g", partition, offset(5))
        shard.add_pending(11, "other", partition, offset(5))
    shard.apply_commit("g", {T0: offset(9), T2: offset(9)})
    shard.end_transaction(11, committed=True)
    assert shard.offsets == {
        "g": {T0: offset(9), T1: offset(5), T2: offset(9)},
        "other": {T0: offset(5), T1: offset(5)},
    }
