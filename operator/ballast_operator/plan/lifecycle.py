"""Decides what a Reassignment does next, from its spec, its status and the state of its moves. PURE.

`next_step` is called at every look. It never starts what was not approved, never moves a replica whose `from` does not
hold any more, and ends only when nothing moves and its throttles have been put back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from ballast_operator.model.kafka import BROKER, KafkaView, ReplicaId, TopicPartition
from ballast_operator.model.quantity import bytes_text, counted, some_of
from ballast_operator.model.reassignment import ANY, ENDS, Approval, OnCancel, Phase, Reassignment
from ballast_operator.model.times import seconds_of
from ballast_operator.plan.moves import MoveState, State, assess_all, closed_directories, not_in_sync, unregistered
from ballast_operator.plan.stored import StoredPlan
from ballast_operator.status import REASSIGNMENT, SHARED, STALLED, Verdict, ready_condition
from ballast_planner import Move, Placement

SHOWN_ROWS = 10
# A broker that lags this far behind the others was fenced long ago.
LAG_SECONDS = 60.0


class Goal(Enum):
    """Where a Reassignment is to go."""

    STAY = auto()
    FORWARD = auto()
    STOP = auto()
    BACK = auto()


@dataclass(frozen=True, slots=True)
class Step:
    """What to do in this cycle. `states` are those of its moves in the current direction, forward or back."""

    phase: Phase
    verdict: Verdict
    states: Sequence[MoveState] = ()
    stop: Sequence[Move] = ()
    run: bool = False
    holds_throttles: bool = False
    replan: bool = False
    claims: bool = False
    starts: bool = False
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReassignmentFacts:
    """What a decision is made from. `conflicts` names the Reassignments that hold partitions of this one."""

    reassignment: Reassignment
    plan: StoredPlan
    view: KafkaView
    conflicts: tuple[str, ...] = ()
    now: str = ""
    throttles_held: bool = False


def goal_of(reassignment: Reassignment) -> Goal:
    """Where the spec wants it to go; an end that was reached is final, except for a rollback."""
    spec, status = reassignment.spec, reassignment.status
    if status.phase is Phase.ROLLED_BACK:
        return Goal.STAY
    if spec.rollback and status.started_at is not None and not _failed_for_good(reassignment):
        return Goal.BACK
    ended = status.phase in ENDS or _stale_for_good(reassignment)
    if spec.rollback and not ended:
        return Goal.BACK
    if reassignment.meta.deleting and not ended:
        return Goal.BACK if spec.on_cancel is OnCancel.ROLLBACK else Goal.STOP
    if spec.cancel and status.phase is not Phase.CANCELLED:
        if ended:
            return Goal.STAY
        return Goal.BACK if spec.on_cancel is OnCancel.ROLLBACK else Goal.STOP
    return Goal.STAY if ended else Goal.FORWARD


def _stale_for_good(reassignment: Reassignment) -> bool:
    """Whether it went stale after it had started: then only a change of its spec starts it again."""
    status = reassignment.status
    current = status.observed_generation == reassignment.meta.generation
    return status.phase is Phase.STALE and status.started_at is not None and current


def _failed_for_good(reassignment: Reassignment) -> bool:
    """Whether it failed with this spec. A rollback that fails is not retried forever: a deletion would wait for it."""
    status = reassignment.status
    return status.phase is Phase.FAILED and status.observed_generation == reassignment.meta.generation


def next_step(facts: ReassignmentFacts) -> Step:
    """The next step of a Reassignment that has a plan."""
    goal = goal_of(facts.reassignment)
    started = facts.reassignment.status.started_at is not None
    if goal in (Goal.STOP, Goal.BACK) and not started:
        return given_up(facts.reassignment, facts.plan.moves)
    states = assess_all(facts.plan.moves, facts.view)
    if facts.reassignment.meta.paused:
        return Step(Phase.PAUSED, SHARED["Paused"].says(), states, holds_throttles=started, claims=started)
    if goal is Goal.STOP:
        return _stop(facts, states)
    if started and facts.conflicts and holds_nothing(facts.reassignment):
        return _waiting(facts, states)
    if goal is Goal.BACK:
        return _back(facts, states)
    return _forward(facts, states) if started else _before_start(facts, states)


def given_up(reassignment: Reassignment, moves: Sequence[Move]) -> Step:
    """The end of one that has not started: even if a rollback is asked for, there is nothing to put back."""
    if reassignment.spec.rollback:
        return Step(Phase.ROLLED_BACK, REASSIGNMENT["RolledBack"].says(gone=""))
    return Step(Phase.CANCELLED, REASSIGNMENT["Cancelled"].says(done=0, total=_partitions(moves)))


def refused(step: Step, reassignment: Reassignment, verdict: Verdict) -> Step:
    """The step while Kubernetes refuses to record `step`: what runs goes on as it is, and nothing else starts."""
    started = reassignment.status.started_at is not None
    phase = step.phase if started else Phase.WAITING
    return Step(
        phase, verdict, step.states, holds_throttles=started and step.holds_throttles, claims=started and step.claims
    )


def holds_nothing(reassignment: Reassignment) -> bool:
    """Whether it has not started, or is at rest: others may hold its partitions."""
    status = reassignment.status
    said = ready_condition(status.conditions)
    free = said is not None and said.reason == REASSIGNMENT["ThrottlesLeft"].name
    return free or status.started_at is None or status.phase in (*ENDS, Phase.STALE, Phase.WAITING)


def without_place(reassignment: Reassignment) -> bool:
    """Whether its remaining moves have no destination any more: whoever created it creates another one."""
    said = ready_condition(reassignment.status.conditions)
    return said is not None and said.reason in (
        REASSIGNMENT["BrokersUnregistered"].name, REASSIGNMENT["DirectoriesClosed"].name
    )  # fmt: skip


def _before_start(facts: ReassignmentFacts, states: Sequence[MoveState]) -> Step:
    spec, plan, status = facts.reassignment.spec, facts.plan, facts.reassignment.status
    settled = status.phase is Phase.STALE and status.observed_generation == facts.reassignment.meta.generation
    if spec.plan_hash is not None and _bare(spec.plan_hash) != plan.hash:
        return Step(Phase.STALE, REASSIGNMENT["PlanHashDiffers"].says(hash=plan.hash, wanted=spec.plan_hash), states)
    if expired(facts):
        return Step(Phase.STALE, _expired(facts, states), states)
    stale = [state for state in states if state.state is State.STALE]
    closed = any(state.state is State.PENDING and closed_directories(state.move, facts.view) for state in states)
    if (stale or closed) and not spec.explicit:
        return _replanned(states)
    if stale and not settled and (facts.conflicts or _waited(facts.reassignment)):
        # What it waits for moves its partitions, as was to be expected. When that has ended it is planned again; rows
        # with a `from` that no longer holds go stale then.
        return _waiting(facts, states) if facts.conflicts else _replanned(states)
    if stale or (settled and spec.explicit):
        return Step(Phase.STALE, REASSIGNMENT["Stale"].says(rows=_rows(stale or states)), states)
    if not plan.moves:
        return _nothing_to_move(facts)
    if not approved(facts):
        verdict = REASSIGNMENT["AwaitingApproval"].says(
            moves=_partitions(plan.moves), bytes=bytes_text(plan.bytes), hash=plan.hash
        )
        return Step(Phase.AWAITING_APPROVAL, verdict, states)
    if spec.paused:
        return Step(Phase.PAUSED, REASSIGNMENT["Paused"].says(running=counted(0, "move")), states)
    if facts.conflicts:
        return _waiting(facts, states)
    if closed:  # the plan may have chosen the directory, where rows leave that open
        return _replanned(states)
    return Step(Phase.RUNNING, _running("Running", states), states, starts=True, claims=True, holds_throttles=True)


def _waiting(facts: ReassignmentFacts, states: Sequence[MoveState]) -> Step:
    verdict = REASSIGNMENT["Waiting"].says(others=", ".join(facts.conflicts))
    return Step(Phase.WAITING, verdict, states, waits_for=facts.conflicts)


def _waited(reassignment: Reassignment) -> bool:
    """Whether it was ready to start, but for others that held its partitions."""
    return reassignment.status.phase is Phase.WAITING and bool(reassignment.status.waiting_for)


def _replanned(states: Sequence[MoveState]) -> Step:
    return Step(Phase.PLANNING, REASSIGNMENT["Planning"].says(), states, replan=True)


def _nothing_to_move(facts: ReassignmentFacts) -> Step:
    if facts.plan.unplaced:
        return Step(Phase.FAILED, _incomplete(facts, ()))
    return Step(Phase.SUCCEEDED, REASSIGNMENT["NothingToMove"].says())


def _forward(facts: ReassignmentFacts, states: Sequence[MoveState]) -> Step:
    moving = [state for state in states if state.state is State.MOVING]
    left = [state for state in states if not state.ended and state.state is not State.STALE]
    if not left:
        return _finish(facts, states)
    if expired(facts):
        if moving:
            return Step(Phase.RUNNING, _running("Running", states), states, holds_throttles=True, claims=True)
        return _settle(facts, states, Phase.STALE, _expired(facts, states))
    if _all_without_place(facts, left):
        return _without_place(facts, states, left)
    if facts.reassignment.spec.paused:
        verdict = REASSIGNMENT["Paused"].says(running=counted(len(moving), "move"))
        return Step(Phase.PAUSED, verdict, states, holds_throttles=True, claims=True)
    return Step(Phase.RUNNING, _running("Running", states), states, run=True, holds_throttles=True, claims=True)


def _finish(facts: ReassignmentFacts, states: Sequence[MoveState]) -> Step:
    """Everything that can arrive has."""
    stale = [state for state in states if state.state is State.STALE]
    if stale:
        return _settle(facts, states, Phase.STALE, REASSIGNMENT["Stale"].says(rows=_rows(stale)))
    lagging = not_in_sync(states, facts.view)
    if lagging:
        waits = f"the new replicas of {some_of(lagging, SHOWN_ROWS)} are in sync"
        return Step(
            Phase.VERIFYING, REASSIGNMENT["Verifying"].says(waits=waits), states, holds_throttles=True, claims=True
        )
    if facts.plan.unplaced:
        return _settle(facts, states, Phase.FAILED, _incomplete(facts, states))
    moved = _partitions([state for state in states if state.state is State.DONE])
    return _settle(facts, states, Phase.SUCCEEDED, REASSIGNMENT["Succeeded"].says(done=moved, gone=_gone(states)))


def _settle(facts: ReassignmentFacts, states: Sequence[MoveState], phase: Phase, verdict: Verdict) -> Step:
    """An end is reported only when the throttles have been put back. If that may take long, the partitions are free
    before; otherwise they are held until then, or the moves of the next holder would make this one look stale."""
    if not facts.throttles_held:
        return Step(phase, verdict, states)
    lost = _lost_holders(facts)
    if lost:
        return Step(Phase.VERIFYING, REASSIGNMENT["ThrottlesLeft"].says(brokers=", ".join(map(str, lost))), states)
    waits = "the throttles are put back"
    return Step(Phase.VERIFYING, REASSIGNMENT["Verifying"].says(waits=waits), states, claims=True)


def _lost_holders(facts: ReassignmentFacts) -> list[int]:
    """Brokers that have a throttle of ours and are away."""
    held = {int(row.name) for row in facts.reassignment.status.throttle if row.resource == BROKER}
    known = facts.view.brokers
    return sorted(broker for broker in held if broker not in known or not known[broker].online)


def _stop(facts: ReassignmentFacts, states: Sequence[MoveState]) -> Step:
    moving = [state.move for state in states if state.under_way]
    if moving:
        return Step(
            Phase.RUNNING, REASSIGNMENT["Cancelling"].says(), states, stop=moving, holds_throttles=True, claims=True
        )
    done = sum(state.ended for state in states)
    return _settle(facts, states, Phase.CANCELLED, REASSIGNMENT["Cancelled"].says(done=done, total=_partitions(states)))


def _back(facts: ReassignmentFacts, forward: Sequence[MoveState]) -> Step:
    """Put everything back: stop what runs forward, then run the inverse moves."""
    moving = [state.move for state in forward if state.under_way]
    strayed = {replica for state in forward if state.strayed for replica, _ in state.correct}
    back = assess_all(inverse(facts.plan.moves, strayed), facts.view)
    turning = {state.partition for state in back if state.state is State.MOVING}
    stop = [move for move in moving if TopicPartition(move.topic, move.partition) not in turning]
    if stop:
        return Step(
            Phase.RUNNING, REASSIGNMENT["Cancelling"].says(), back, stop=stop, holds_throttles=True, claims=True
        )
    left = [state for state in back if not state.ended and state.state is not State.STALE]
    if _all_without_place(facts, left):
        if not (_stalled_for_long(facts) and all(_gone_for_good(state, facts.view) for state in left)):
            return _without_place(facts, back, left)
        return _settle(facts, back, Phase.FAILED, _no_place(facts, left))
    if left:
        return Step(Phase.RUNNING, _running("RollingBack", back), back, run=True, holds_throttles=True, claims=True)
    stale = [state for state in back if state.state is State.STALE]
    if stale:
        return _settle(facts, back, Phase.FAILED, REASSIGNMENT["Stale"].says(rows=_rows(stale)))
    return _settle(facts, back, Phase.ROLLED_BACK, REASSIGNMENT["RolledBack"].says(gone=_gone(back)))


def _all_without_place(facts: ReassignmentFacts, left: Sequence[MoveState]) -> bool:
    return bool(left) and all(
        unregistered(state.move, facts.view) or (state.lies_still and closed_directories(state.move, facts.view))
        for state in left
    )


def _gone_for_good(state: MoveState, view: KafkaView) -> bool:
    """Whether its destination is gone, not just cordoned, which may change."""
    closed = closed_directories(state.move, view)
    return bool(unregistered(state.move, view)) or any(where not in view.directories for where in closed)


def _without_place(facts: ReassignmentFacts, states: Sequence[MoveState], left: Sequence[MoveState]) -> Step:
    """All that is left is for brokers that are not registered any more, or for directories that are cordoned or gone.
    What runs would never arrive, so it is stopped; then nothing is held for what may never come back, and drains of
    these directories go on. If the destination does come back, so does this one."""
    verdict = _no_place(facts, left)
    stop = [state.move for state in left if state.under_way]
    if stop:
        return Step(Phase.RUNNING, verdict, states, stop=stop, holds_throttles=True, claims=True)
    return Step(Phase.WAITING, verdict, states)


def _no_place(facts: ReassignmentFacts, left: Sequence[MoveState]) -> Verdict:
    brokers = sorted({broker for state in left for broker in unregistered(state.move, facts.view)})
    if not brokers:
        closed = {state.partition: closed_directories(state.move, facts.view) for state in left}
        rows = [f"{tp}: {where[0].path} of broker {where[0].broker}" for tp, where in closed.items() if where]
        return REASSIGNMENT["DirectoriesClosed"].says(rows=some_of(rows, SHOWN_ROWS))
    rows = [str(state.partition) for state in left]
    gone = ", ".join(map(str, brokers))
    return REASSIGNMENT["BrokersUnregistered"].says(brokers=gone, rows=some_of(rows, SHOWN_ROWS))


def _stalled_for_long(facts: ReassignmentFacts) -> bool:
    """Whether this has lasted longer than a broker can lag: one that lags may not know yet that the other is back."""
    if not without_place(facts.reassignment):
        return False
    stalled = [one for one in facts.reassignment.status.conditions if one.type == STALLED]
    return any(seconds_of(facts.now) - seconds_of(one.last_transition_time) >= LAG_SECONDS for one in stalled)


def inverse(moves: Sequence[Move], strayed: Collection[ReplicaId] = ()) -> tuple[Move, ...]:
    """The moves that put everything back, the last wave first. Strayed replicas are moved from wherever they are."""
    last = max((move.wave for move in moves), default=0)
    return tuple(
        Move(m.topic, m.partition, _arrived(m, strayed), m.from_, m.bytes_network, m.bytes_disk, last - m.wave)
        for m in moves
    )


def _arrived(move: Move, strayed: Collection[ReplicaId]) -> Placement:
    paths = (
        ANY if ReplicaId(move.topic, move.partition, broker) in strayed else path
        for broker, path in move.to.as_pairs().items()
    )
    return Placement(move.to.replicas, tuple(paths)) if strayed else move.to


def approved(facts: ReassignmentFacts) -> bool:
    spec = facts.reassignment.spec
    if spec.approval is Approval.AUTOMATIC:
        return True
    return spec.approved_plan is not None and _bare(spec.approved_plan) == facts.plan.hash


def expired(facts: ReassignmentFacts) -> bool:
    at = facts.reassignment.spec.expires_at
    return at is not None and seconds_of(at) <= seconds_of(facts.now)


def _bare(text: str) -> str:
    return text.removeprefix("sha256:")


def _expired(facts: ReassignmentFacts, states: Sequence[MoveState]) -> Verdict:
    done = sum(state.ended for state in states)
    return REASSIGNMENT["Expired"].says(time=facts.reassignment.spec.expires_at, done=done, total=_partitions(states))


def _incomplete(facts: ReassignmentFacts, states: Sequence[MoveState]) -> Verdict:
    by_reason: dict[str, dict[str, None]] = defaultdict(dict)
    for row in facts.plan.unplaced:
        where = f" on broker {row.broker}" if row.broker is not None else ""
        by_reason[row.reason][f"{row.topic}-{row.partition}{where}"] = None
    rows = "; ".join(f"{some_of(list(names), SHOWN_ROWS)} ({reason})" for reason, names in by_reason.items())
    return REASSIGNMENT["Incomplete"].says(
        done=_partitions(states), left=counted(len(facts.plan.unplaced), "replica"), rows=rows
    )


def _partitions(each: Sequence[object]) -> str:
    return counted(len(each), "partition")


def _gone(states: Sequence[MoveState]) -> str:
    """The end of a sentence: which partitions were deleted meanwhile, and so have not moved."""
    gone = [str(state.partition) for state in states if state.state is State.GONE]
    return f"; not there any more: {some_of(gone, SHOWN_ROWS)}" if gone else ""


def _running(reason: str, states: Sequence[MoveState]) -> Verdict:
    done = sum(state.ended for state in states)
    trouble = [state for state in states if state.state in (State.BLOCKED, State.STALE)]
    more = f"; {len(trouble)} cannot go on: {_rows(trouble)}" if trouble else ""
    return REASSIGNMENT[reason].says(done=done, total=_partitions(states), more=more)


def _rows(states: Sequence[MoveState]) -> str:
    rows = [f"{state.partition}: {state.note}" if state.note else str(state.partition) for state in states]
    return some_of(rows, SHOWN_ROWS)
