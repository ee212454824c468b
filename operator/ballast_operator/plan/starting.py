"""Chooses the moves that may start now: wave by wave, within the limits, never filling a directory too far. PURE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ballast_operator.model.kafka import DirectoryId, KafkaView, TopicPartition
from ballast_operator.model.reassignment import MaxConcurrentMoves
from ballast_operator.plan.load import partition_size
from ballast_operator.plan.moves import (
    MoveState,
    State,
    adding,
    between_brokers,
    directory_changes,
    move_bytes,
    target_directories,
)
from ballast_planner import Move

HIGH_WATER = 0.95
MAX_STARTS_PER_CYCLE = 500


@dataclass
class Traffic:
    """What moves in the whole cluster, whoever started it."""

    per_broker: Counter[int] = field(default_factory=Counter)
    per_directory: Counter[DirectoryId] = field(default_factory=Counter)
    arriving_bytes: Counter[DirectoryId] = field(default_factory=Counter)

    def add(self, move: Move, bytes_left: int) -> None:
        if between_brokers(move):
            self.per_broker.update(_participants(move))
        for directory in target_directories(move):
            self.per_directory[directory] += 1
            self.arriving_bytes[directory] += bytes_left


def observe_traffic(states: Iterable[MoveState], view: KafkaView) -> Traffic:
    """Count our own running moves and the reassignments that somebody else started."""
    traffic = Traffic()
    ours: set[TopicPartition] = set()
    for state in states:
        if state.state is State.MOVING:
            ours.add(state.partition)
            traffic.add(state.move, max(0, move_bytes(state.move) - state.bytes_done))
    for partition, ongoing in view.ongoing.items():
        if partition not in ours:
            traffic.per_broker.update({*ongoing.adding, *ongoing.removing})
    return traffic


def _participants(move: Move) -> set[int]:
    arriving = adding(move)
    return {*arriving, move.from_.replicas[0]} if arriving else set()


def choose_starts(
    states: Sequence[MoveState], view: KafkaView, limits: MaxConcurrentMoves, traffic: Traffic
) -> tuple[list[Move], dict[TopicPartition, str]]:
    """(moves to start, why others of the wave wait). A wave starts when nothing of the previous one can go on."""
    starts: list[Move] = []
    notes: dict[TopicPartition, str] = {}
    blocked: dict[TopicPartition, str] = {
        state.partition: note
        for state in states
        if state.state in (State.PENDING, State.MOVING) and (note := lost_parts(state.move, view)) is not None
    }
    able = [state for state in states if state.partition not in blocked]
    moving = {state.move.wave for state in able if state.state is State.MOVING}
    pending = [state for state in able if state.state is State.PENDING]
    for wave in sorted({state.move.wave for state in pending}):
        if starts or any(earlier < wave for earlier in moving):
            break
        limited = False
        for state in pending:
            if state.move.wave != wave or len(starts) >= MAX_STARTS_PER_CYCLE:
                continue
            note = _no_place(state.move, view, limits, traffic)
            if note is None:
                starts.append(state.move)
                traffic.add(state.move, partition_size(view, state.partition, state.move.from_.replicas))
            elif note:
                notes[state.partition] = note
            limited |= note == ""
        if limited:
            break
    return starts, notes | blocked


def lost_parts(move: Move, view: KafkaView) -> str | None:
    """Why the move cannot run at all in the current state of the cluster, if so."""
    for broker in {*adding(move), *directory_changes(move)}:
        known = view.brokers.get(broker)
        if known is None or not known.online:
            return f"broker {broker} is not online"
    for directory in target_directories(move):
        found = view.directories.get(directory)
        if found is None and directory.broker in view.described:
            return f"broker {directory.broker} has no directory {directory.path}"
        if found is None:
            return f"broker {directory.broker} does not describe its directories"
        if not found.online:
            return f"directory {directory.path} of broker {directory.broker} has failed ({found.error})"
    return None


def _no_place(move: Move, view: KafkaView, limits: MaxConcurrentMoves, traffic: Traffic) -> str | None:
    """Why the move has to wait: "" for a limit, words for a lack of room."""
    if between_brokers(move) and any(traffic.per_broker[b] >= limits.per_broker for b in _participants(move)):
        return ""
    size = partition_size(view, TopicPartition(move.topic, move.partition), move.from_.replicas)
    for directory in target_directories(move):
        if traffic.per_directory[directory] >= limits.per_directory:
            return ""
        found = view.directories[directory]
        if found.usable_bytes < 0 or found.total_bytes <= 0:
            continue
        left = found.usable_bytes - traffic.arriving_bytes[directory] - size
        if left < found.total_bytes * (1 - HIGH_WATER) and size > 0:
            mark = f"{HIGH_WATER * 100:.0f} %"
            return f"directory {directory.path} of broker {directory.broker} would be more than {mark} full"
    return None
