"""Determines the state of each move of a plan from what was observed and nothing else. PURE.

No move is remembered as started, so an operator that was killed between any two requests goes on as if it had not been.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from ballast_operator.model.kafka import (
    DirectoryId,
    KafkaView,
    OngoingView,
    PartitionView,
    ReplicaId,
    TopicPartition,
)
from ballast_operator.model.reassignment import ANY
from ballast_planner import Move


class State(StrEnum):
    PENDING = "Pending"
    MOVING = "Moving"
    DONE = "Done"
    BLOCKED = "Blocked"
    STALE = "Stale"
    GONE = "Gone"


class MoveState(NamedTuple):
    """`correct` names replicas that arrived in the wrong directory, and the right one, to which they are moved on.

    `strayed`: such replicas are all that is left to do, and nothing moves.
    """

    move: Move
    state: State
    note: str = ""
    bytes_done: int = 0
    correct: tuple[tuple[ReplicaId, str], ...] = ()
    strayed: bool = False

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.move.topic, self.move.partition)

    @property
    def ended(self) -> bool:
        return self.state in (State.DONE, State.GONE)

    @property
    def lies_still(self) -> bool:
        """Whether no broker works on it, and there is something to do."""
        return self.state is State.PENDING or self.strayed

    @property
    def under_way(self) -> bool:
        """Whether brokers work on it, so that there is something to stop. Strayed replicas lie still."""
        return self.state is State.MOVING and not self.strayed


def move_bytes(move: Move) -> int:
    return move.bytes_network + move.bytes_disk


def between_brokers(move: Move) -> bool:
    """Whether the assignment changes, be it only its order."""
    return move.from_.replicas != move.to.replicas


def adding(move: Move) -> tuple[int, ...]:
    """Brokers that get a replica that they do not have."""
    return tuple(broker for broker in move.to.replicas if broker not in move.from_.replicas)


def unregistered(move: Move, view: KafkaView) -> tuple[int, ...]:
    """Brokers that the move needs but that are not registered any more."""
    needed = {*adding(move), *directory_changes(move)}
    return tuple(broker for broker in sorted(needed) if view.is_missing_from_full_list(broker))


def closed_directories(move: Move, view: KafkaView) -> list[DirectoryId]:
    """Directories that the move needs but that are cordoned, or not there any more, as their brokers report."""
    told = [where for where in target_directories(move) if where.broker in view.described]
    return [where for where in told if where not in view.directories or view.directories[where].cordoned]


def directory_changes(move: Move) -> dict[int, str]:
    """Broker → directory, for replicas that are to be in a given directory other than the one they are in."""
    before = move.from_.as_pairs()
    return {broker: path for broker, path in move.to.as_pairs().items() if path != ANY and before.get(broker) != path}


def assess_all(moves: Iterable[Move], view: KafkaView) -> tuple[MoveState, ...]:
    return tuple(assess(move, view) for move in moves)


def assess(move: Move, view: KafkaView) -> MoveState:
    """Where this move stands."""
    partition = TopicPartition(move.topic, move.partition)
    part = view.partition(*partition)
    if part is None:
        if move.topic in view.missing or move.topic in view.topics:
            return MoveState(move, State.GONE, "the partition does not exist any more")
        return MoveState(move, State.BLOCKED, "the topic could not be read")
    ongoing = view.ongoing.get(partition)
    if ongoing is not None:
        return _assess_ongoing(move, view, ongoing)
    if part.replicas == move.to.replicas:
        return _assess_directories(move, view)
    if part.replicas == move.from_.replicas:
        return _assess_source(move, view)
    if _on_the_way(move, part):
        return MoveState(move, State.MOVING, "", copied_bytes(move, view))
    return MoveState(move, State.STALE, f"its replicas are {list(part.replicas)}")


def _on_the_way(move: Move, part: PartitionView) -> bool:
    """Whether the replicas are those of source and target together: the broker that was asked lags behind the
    controller, which has started or ended the move."""
    found, before, after = set(part.replicas), set(move.from_.replicas), set(move.to.replicas)
    return found <= before | after and (found > after or found > before)


def _assess_ongoing(move: Move, view: KafkaView, ongoing: OngoingView) -> MoveState:
    if ongoing.target == move.to.replicas:
        return MoveState(move, State.MOVING, "", copied_bytes(move, view))
    return MoveState(move, State.BLOCKED, f"another reassignment to {list(ongoing.target)} is in progress")


def _assess_source(move: Move, view: KafkaView) -> MoveState:
    """Nothing has started: the replicas have to be in the directories that the plan was made from."""
    if not between_brokers(move):
        return MoveState(move, State.PENDING)
    for broker, path in move.from_.as_pairs().items():
        log = view.logs.get(ReplicaId(move.topic, move.partition, broker))
        wanted = move.to.as_pairs().get(broker)
        if path != ANY and log is not None and log.path not in (None, path, wanted):
            return MoveState(move, State.STALE, f"its replica on broker {broker} is in {log.path}")
    return MoveState(move, State.PENDING)


def _assess_directories(move: Move, view: KafkaView) -> MoveState:
    """The brokers are right; now each replica has to be in its directory."""
    within = not between_brokers(move)
    before = move.from_.as_pairs()
    correct: list[tuple[ReplicaId, str]] = []
    moving = False
    for broker, path in directory_changes(move).items():
        replica = ReplicaId(move.topic, move.partition, broker)
        log = view.logs.get(replica)
        if broker not in view.described or log is None or log.path is None:
            return MoveState(move, State.BLOCKED, f"broker {broker} does not tell where its replica is")
        if log.path == path:
            continue
        if log.future_path == path:
            moving = True
        elif within and before[broker] not in (ANY, log.path):
            return MoveState(move, State.STALE, f"its replica on broker {broker} is in {log.path}")
        else:
            correct.append((replica, path))
    if moving:
        return MoveState(move, State.MOVING, "", copied_bytes(move, view), tuple(correct))
    if correct and within:
        return MoveState(move, State.PENDING)
    if correct:
        note = "arrived in another directory"
        return MoveState(move, State.MOVING, note, copied_bytes(move, view), tuple(correct), strayed=True)
    if gone := unregistered(move, view):
        return MoveState(move, State.BLOCKED, f"broker {gone[0]} is not registered any more")
    return MoveState(move, State.DONE, "", move_bytes(move))


def copied_bytes(move: Move, view: KafkaView) -> int:
    """Bytes of this move that have been copied."""
    copied = 0
    for broker in adding(move):
        log = view.logs.get(ReplicaId(move.topic, move.partition, broker))
        copied += log.size_bytes if log else 0
    for broker, path in directory_changes(move).items():
        log = view.logs.get(ReplicaId(move.topic, move.partition, broker))
        if log is None or broker not in move.from_.replicas:
            continue
        copied += log.size_bytes if log.path == path else log.future_size_bytes if log.future_path == path else 0
    return min(copied, move_bytes(move))


def target_directories(move: Move) -> list[DirectoryId]:
    return [DirectoryId(broker, path) for broker, path in directory_changes(move).items()]


def not_in_sync(states: Sequence[MoveState], view: KafkaView) -> list[str]:
    """Partitions that have arrived but whose new replicas are not in the ISR yet. Their other replicas do not matter:
    those brokers may have been away for long."""
    waiting = []
    for state in states:
        part = view.partition(*state.partition)
        if state.state is State.DONE and part is not None and not set(adding(state.move)) <= set(part.isr):
            waiting.append(str(state.partition))
    return waiting
