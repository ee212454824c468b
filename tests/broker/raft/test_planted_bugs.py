"""The simulation proves itself: its invariants find each bug that is planted into the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from tests.broker.raft import simulator
from tests.broker.raft.simulator import SimLog, Violation, World
from tests.broker.raft.test_core_simulation import changing, spoilt

from ballast_broker.raft import voter_changes
from ballast_broker.raft.core import RaftCore
from ballast_broker.raft.leader import Leadership
from ballast_broker.raft.messages import Fetch, FetchReply, Persist, Vote
from ballast_broker.raft.terms import LogView, Role
from ballast_broker.raft.voters import VoterHistory, VoterSet
from ballast_wire.errors import ApiError, ErrorCode


def votes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grants its vote to every candidate of an epoch."""
    original = RaftCore._may_grant

    def grant(self: RaftCore, now: float, request: Vote) -> bool:
        if not request.pre_vote and self.role is Role.UNATTACHED:
            self.voted_for = -1
        return original(self, now, request)

    monkeypatch.setattr(RaftCore, "_may_grant", grant)


def forgets_its_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vote does not survive a restart."""
    original = simulator.World._carry_out

    def carry_out(self: World, node: simulator.SimNode, core: RaftCore, effect: object) -> None:
        if isinstance(effect, Persist):
            effect = Persist(effect.epoch, -1, effect.leader)
        original(self, node, core, effect)

    monkeypatch.setattr(simulator.World, "_carry_out", carry_out)


def forgets_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    original = simulator.World._carry_out

    def carry_out(self: World, node: simulator.SimNode, core: RaftCore, effect: object) -> None:
        if not isinstance(effect, Persist) or node.persisted.epoch == 0:
            original(self, node, core, effect)

    monkeypatch.setattr(simulator.World, "_carry_out", carry_out)


def votes_for_short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does not check that the candidate's log is as up to date as its own."""
    original = RaftCore._may_grant

    def grant(self: RaftCore, now: float, request: Vote) -> bool:
        return original(self, now, Vote(request.epoch, request.candidate, 1 << 30, 1 << 30, request.pre_vote))

    monkeypatch.setattr(RaftCore, "_may_grant", grant)


def commits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the longest log instead of the majority's."""

    def advance(self: Leadership) -> bool:
        end = max(progress.end_offset for progress in self.voters.values())
        if end <= self.epoch_start_offset or end <= self.high_watermark:
            return False
        self.high_watermark = end
        return True

    monkeypatch.setattr(Leadership, "advance_high_watermark", advance)


def counts_what_is_not_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leader and followers acknowledge records that a crash can lose."""

    def appended(self: RaftCore, now: float) -> None:
        self.flushed(now, self._log.end_offset)

    original = simulator.World._flush_later

    def flush_later(self: World, node: simulator.SimNode) -> None:
        original(self, node)
        if node.core is not None:
            node.core.flushed(self.now, node.log.end_offset)

    monkeypatch.setattr(RaftCore, "appended", appended)
    monkeypatch.setattr(simulator.World, "_flush_later", flush_later)


def never_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends to its own log where it should truncate a divergent tail."""
    original = RaftCore._misfit

    def misfit(self: RaftCore, request: Fetch) -> FetchReply | None:
        found = original(self, request)
        return None if found is not None and found.diverging is not None else found

    monkeypatch.setattr(RaftCore, "_misfit", misfit)


BUGS = [
    votes_again,
    forgets_its_vote,
    forgets_its_epoch,
    votes_for_short_logs,
    commits_alone,
    counts_what_is_not_flushed,
    never_cuts,
]


def counts_the_voters_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a leader, goes on committing with the voters of its election."""
    original = Leadership.follow_voters

    def follow(self: Leadership, voters: VoterSet) -> None:
        original(self, voters)
        vars(self).setdefault("elected_by", list(self.voters.values()))

    def advance(self: Leadership) -> bool:
        ends = sorted((each.end_offset for each in vars(self)["elected_by"]), reverse=True)
        end = ends[len(ends) // 2]
        if end <= self.epoch_start_offset or end <= self.high_watermark:
            return False
        self.high_watermark = end
        return True

    monkeypatch.setattr(Leadership, "follow_voters", follow)
    monkeypatch.setattr(Leadership, "advance_high_watermark", advance)


def changes_twice_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepts a second change before the first is committed."""

    def check(leadership: Leadership, log: LogView) -> None:
        if leadership.high_watermark <= leadership.epoch_start_offset:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    monkeypatch.setattr(voter_changes, "check_committed", check)


def forgets_to_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that is truncated still counts, until the next one."""
    original = VoterHistory.cut

    def cut(self: VoterHistory, end_offset: int) -> None:
        latest = self.latest
        original(self, end_offset)
        self.latest = latest

    monkeypatch.setattr(VoterHistory, "cut", cut)


def elects_by_committed_voters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates ask the voters of the last set that they know to be committed."""

    def voters(self: RaftCore) -> tuple[int, ...]:
        assert isinstance(self._log, simulator.SimLog)
        known = self._log.history.before(self.high_watermark) or self._log.history._base
        return known.ids

    monkeypatch.setattr(RaftCore, "voters", property(voters))


def counts_a_removed_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that is not a voter any more still counts its own log."""

    def advance(self: Leadership) -> bool:
        voters = list(self.voters.values())
        ends = sorted((p.end_offset for p in {id(p): p for p in [*voters, self.own]}.values()), reverse=True)
        end = ends[len(voters) // 2]
        if end <= self.epoch_start_offset or end <= self.high_watermark:
            return False
        self.high_watermark = end
        return True

    monkeypatch.setattr(Leadership, "advance_high_watermark", advance)


OF_CHANGES = [
    counts_the_voters_of_before,
    changes_twice_at_once,
    elects_by_committed_voters,
    counts_a_removed_leader,
    forgets_to_undo,
]


def rough(seed: int) -> World:
    """More elections and lost log ends than usual, so that bugs show."""
    slow_network = seed % 2 == 0
    faults = simulator.Faults(
        loss=0.1,
        slow=0.15,
        delay_s=0.3 if slow_network else 0.01,
        flush_s=0.1,
        crash_after_vote=0.2,
        power_failure=0.4,
        crash_every_s=0.7,
        partition_every_s=2.5,
    )
    world = World(seed, 3 if seed % 4 < 2 else 5, 1, faults)
    world.run(60.0)
    return world


def many(count: int) -> None:
    for seed in range(count):
        rough(seed)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises(Violation):
        many(200)


@pytest.mark.timeout(120)
def test_logs_that_do_not_match_are_found_before_anything_of_it_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    never_cuts(monkeypatch)
    with pytest.raises(Violation, match=r"at \(offset, epoch\)"):
        rough(0)


@pytest.mark.timeout(240)
@pytest.mark.spec("CLU-05")
@pytest.mark.parametrize("bug", OF_CHANGES)
def test_a_mistake_in_changing_voters_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(Violation, match=r"(is|was) committed|two leaders|in common"):
        many_changes(300)


def many_changes(count: int) -> None:
    for seed in range(count):
        changing(seed).run(40.0)


def does_not_know_what_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimLog, "spoil", SimLog.truncate)


def votes_by_what_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    original = RaftCore._may_grant

    def grant(self: RaftCore, now: float, request: Vote) -> bool:
        log = cast(SimLog, self._log)
        lacks, log.lacks = log.lacks, None
        granted = original(self, now, request)
        log.lacks = lacks
        return granted

    monkeypatch.setattr(RaftCore, "_may_grant", grant)


def stands_with_what_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftCore, "may_stand", RaftCore.is_voter)


@pytest.mark.timeout(240)
@pytest.mark.spec("CLU-06")
@pytest.mark.parametrize("bug", [does_not_know_what_it_lost, votes_by_what_it_has_left, stands_with_what_it_has_left])
def test_a_mistake_of_who_has_lost_the_end_of_its_log_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(Violation, match="is committed"):
        many_spoilt(300)


def many_spoilt(count: int) -> None:
    for seed in range(count):
        spoilt(seed).run(30.0)


def test_without_a_bug_the_same_histories_hold() -> None:
    many(20)
