"""The follower's fetch sessions, truncation, and what another history does to an old log. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_broker.replication.following import Asked, Backoff, FetchSession, truncation_offset
from ballast_broker.storage.epochs import LeaderEpochs

A, B = "a", "b"


def asked(offset: int, epoch: int = 0) -> Asked:
    return Asked(offset, -1, epoch, 0)


@pytest.mark.spec("REP-03")
def test_only_changes_travel_after_the_first_request() -> None:
    session: FetchSession[str] = FetchSession()
    session.want(A, asked(0))
    session.want(B, asked(0))
    assert session.next() == ({A: asked(0), B: asked(0)}, [])
    session.answered(77)
    assert (session.session_id, session.epoch) == (77, 1)
    session.want(A, asked(5))
    session.want(B, asked(0))
    assert session.next() == ({A: asked(5)}, [])
    session.answered(77)
    session.want(B, None)
    assert session.next() == ({}, [B])
    session.answered(77)
    assert session.next() == ({}, [])


@pytest.mark.spec("REP-03")
def test_a_lost_session_begins_again_with_everything() -> None:
    session: FetchSession[str] = FetchSession()
    session.want(A, asked(0))
    session.next()
    session.answered(77)
    session.want(B, asked(3))
    session.reset()
    assert session.next() == ({A: asked(0), B: asked(3)}, [])
    session.answered(0)  # a leader that keeps no sessions
    assert session.next() == ({A: asked(0), B: asked(3)}, [])
    session.answered(5)
    session.answered(6)  # somebody else's
    assert session.epoch == 0


def test_the_epoch_of_a_session_turns_over_to_one() -> None:
    session: FetchSession[str] = FetchSession()
    session.answered(1)
    session.epoch = 2**31 - 1
    session.answered(1)
    assert session.epoch == 1


def test_a_failing_partition_waits_longer_each_time() -> None:
    backoff = Backoff(1000)
    assert [backoff.failed(A) for _ in range(6)] == [50, 100, 200, 400, 800, 1000]
    assert backoff.failed(B) == 50
    backoff.worked(A)
    assert backoff.failed(A) == 50


class History:
    """A log reduced to the epoch of each record."""

    def __init__(self, epochs: list[int]) -> None:
        self.epochs = epochs
        self._cache = LeaderEpochs()
        for offset, epoch in enumerate(epochs):
            self._cache.assign(epoch, offset)

    @property
    def log_end_offset(self) -> int:
        return len(self.epochs)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        return self._cache.end_offset(epoch, len(self.epochs))

    def last_epoch(self) -> int:
        return self.epochs[-1] if self.epochs else -1


HISTORY = st.lists(st.integers(0, 9), max_size=12).map(sorted)


@pytest.mark.spec("REP-21")
@given(common=HISTORY, mine=HISTORY, theirs=HISTORY)
def test_any_two_histories_find_their_common_part(common: list[int], mine: list[int], theirs: list[int]) -> None:
    """Each epoch has one leader: after the first difference no epoch is in both logs."""
    base = max(common, default=0)
    follower = History(common + [base + 1 + 2 * epoch for epoch in mine])
    leader = History(common + [base + 30 + 2 * epoch for epoch in theirs])
    for _ in range(50):
        last, end = follower.last_epoch(), follower.log_end_offset
        if last < 0:
            break
        epoch, epoch_end = leader.epoch_end_offset(last)
        if epoch_end < 0:
            follower = History([])  # OFFSET_OUT_OF_RANGE: the leader cannot tell, it is older than all it knows
            break
        if not (epoch < last or epoch_end < end):
            break
        cut = truncation_offset(follower, epoch, epoch_end)
        assert cut < end, "each answer brings it nearer"
        follower = History(follower.epochs[:cut])
    if leader.epochs and not (follower.epochs == [] and common):
        assert follower.epochs == leader.epochs[: len(follower.epochs)]
        assert len(follower.epochs) >= len(common) or not theirs
