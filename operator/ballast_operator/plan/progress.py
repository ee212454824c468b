"""Computes how far a Reassignment has come, for its status and the columns of kubectl. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ballast_operator.model.kafka import TopicPartition
from ballast_operator.model.quantity import bytes_text, duration_text
from ballast_operator.model.reassignment import Progress, Remaining
from ballast_operator.model.times import seconds_of
from ballast_operator.plan.moves import MoveState, State, move_bytes

SHOWN = 10
SMOOTHING = 0.5


def progress_of(
    states: Sequence[MoveState], notes: Mapping[TopicPartition, str], before: Progress | None, now: str
) -> Progress:
    """The progress at this look; the rate is smoothed over the looks before."""
    total = sum(move_bytes(state.move) for state in states)
    done = sum(move_bytes(state.move) if state.ended else state.bytes_done for state in states)
    arrived = sum(state.ended for state in states)
    rate = _rate(before, done, now)
    moving = [state for state in states if state.state is State.MOVING]
    waves = [state.move.wave for state in states if not state.ended]
    return Progress(
        percent=_percent(done, total, arrived, len(states)),
        moves_done=arrived,
        moves_running=len(moving),
        moves_total=len(states),
        moves_text=f"{arrived}/{len(states)}",
        wave=min(waves, default=max((state.move.wave for state in states), default=0)) + 1,
        bytes_done=done,
        bytes_total=total,
        bytes_done_text=bytes_text(done),
        bytes_total_text=bytes_text(total),
        bytes_per_second=rate,
        eta=duration_text((total - done) // rate) if rate and done < total else None,
        measured_at=now,
        remaining=tuple(_remaining(state, notes) for state in _worth_showing(states, notes)[:SHOWN]),
    )


def _percent(done: int, total: int, arrived: int, count: int) -> int:
    if count == arrived:
        return 100
    share = done / total if total else arrived / count
    return min(99, int(share * 100))


def _rate(before: Progress | None, done: int, now: str) -> int | None:
    if before is None or before.measured_at is None or before.bytes_done is None:
        return None
    seconds = seconds_of(now) - seconds_of(before.measured_at)
    if seconds <= 0:
        return before.bytes_per_second
    rate = max(0, done - before.bytes_done) / seconds
    if before.bytes_per_second is not None:
        rate = SMOOTHING * rate + (1 - SMOOTHING) * before.bytes_per_second
    return int(rate)


def _worth_showing(states: Sequence[MoveState], notes: Mapping[TopicPartition, str]) -> list[MoveState]:
    """What is left, with the trouble first."""
    left = [state for state in states if not state.ended]
    order = {State.STALE: 0, State.BLOCKED: 1, State.MOVING: 3, State.PENDING: 4}
    return sorted(
        left,
        key=lambda s: (
            2 if s.partition in notes and s.state is State.PENDING else order[s.state],
            s.move.wave,
            s.partition,
        ),
    )


def _remaining(state: MoveState, notes: Mapping[TopicPartition, str]) -> Remaining:
    note = notes.get(state.partition) or state.note or None
    shown = State.BLOCKED if state.state is State.PENDING and state.partition in notes else state.state
    return Remaining(state.move.topic, state.move.partition, str(shown), note)
