"""The simulation proves itself: cores with a mistake put into them are found out by the invariants."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.broker.raft import simulator
from tests.broker.raft.simulator import Violation, World

from ballast_broker.raft.core import RaftCore
from ballast_broker.raft.leader import Leadership
from ballast_broker.raft.messages import Vote
from ballast_broker.raft.terms import Role


def votes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grants every vote of its epoch, whoever got it before."""
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
        if isinstance(effect, simulator.Persist):
            effect = simulator.Persist(effect.epoch, -1, effect.leader)
        original(self, node, core, effect)

    monkeypatch.setattr(simulator.World, "_carry_out", carry_out)


def forgets_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    original = simulator.World._carry_out

    def carry_out(self: World, node: simulator.SimNode, core: RaftCore, effect: object) -> None:
        if not isinstance(effect, simulator.Persist) or node.persisted.epoch == 0:
            original(self, node, core, effect)

    monkeypatch.setattr(simulator.World, "_carry_out", carry_out)


def votes_for_short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does not ask whether the candidate's log is as long as its own."""
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
    """Leader and followers vouch for records that a crash can take."""

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
    """Goes on after its own tail where the leader's log differs."""
    original = RaftCore._misfit

    def misfit(self: RaftCore, request: simulator.Fetch) -> object:
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


def rough(seed: int) -> World:
    """More elections and more lost logs than usual: what mistakes need to show themselves."""
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


def test_without_a_bug_the_same_histories_hold() -> None:
    many(20)
