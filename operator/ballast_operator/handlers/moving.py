"""Starts and stops the moves of a cluster's Reassignments by requests to the controller and the brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ballast_operator.apply import kafka as kafka_actions
from ballast_operator.handlers.plans import Case
from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.model.actions import AlterReplicas
from ballast_operator.model.kafka import KafkaView, Outcome, ReplicaId, TopicPartition
from ballast_operator.plan.moves import MoveState, State, between_brokers, directory_changes
from ballast_planner import Move

# The broker does not have the replica yet, and remembers the directory for when it does (DIR-13).
REMEMBERED = "REPLICA_NOT_AVAILABLE"


async def stop_moves(cases: Sequence[Case], view: KafkaView, kafka: KafkaConnection) -> None:
    stops = [move for case in cases if case.step is not None for move in case.step.stop]
    if not stops:
        return
    back: dict[ReplicaId, str] = {}
    for move in stops:
        for broker, path in directory_changes(move).items():
            replica = ReplicaId(move.topic, move.partition, broker)
            log_view = view.logs.get(replica)
            # Moving a replica to the directory that it is in cancels the move in progress (DIR-16).
            if log_view and log_view.future_path == path and log_view.path is not None:
                back[replica] = log_view.path
    await kafka_actions.alter_log_dirs(kafka, back)
    running = [m for m in stops if TopicPartition(m.topic, m.partition) in view.ongoing]
    await kafka_actions.alter_reassignments(
        kafka, [AlterReplicas(TopicPartition(m.topic, m.partition), None) for m in running]
    )


async def start_moves(cases: Sequence[Case], kafka: KafkaConnection) -> dict[TopicPartition, str]:
    """Start moves, directories first: a broker has to know where to put a replica before it gets it (DIR-13)."""
    directories: dict[ReplicaId, str] = {}
    for case in cases:
        if case.step is not None and (case.step.run or case.step.starts):
            directories |= {replica: path for state in case.step.states for replica, path in _corrections(state)}
        for move in case.starts:
            for broker, path in directory_changes(move).items():
                directories[ReplicaId(move.topic, move.partition, broker)] = path
    refused = _refused(await kafka_actions.alter_log_dirs(kafka, directories)) if directories else {}
    refused |= await _reassign([move for case in cases for move in case.starts], refused, kafka)
    return refused


def _refused(outcomes: Mapping[ReplicaId, Outcome]) -> dict[TopicPartition, str]:
    return {
        replica.topic_partition: f"broker {replica.broker} answers {outcome.error}"
        for replica, outcome in outcomes.items()
        if not outcome.ok and outcome.error != REMEMBERED
    }


async def _reassign(
    starts: Sequence[Move], refused: Mapping[TopicPartition, str], kafka: KafkaConnection
) -> dict[TopicPartition, str]:
    moves = {TopicPartition(move.topic, move.partition): move for move in starts if between_brokers(move)}
    actions = [
        AlterReplicas(partition, move.to.replicas) for partition, move in moves.items() if partition not in refused
    ]
    outcomes = await kafka_actions.alter_reassignments(kafka, actions)
    return {tp: f"Kafka answers {o.error}: {o.message}" for tp, o in outcomes.items() if not o.ok}


def _corrections(state: MoveState) -> list[tuple[ReplicaId, str]]:
    return list(state.correct) if state.state is State.MOVING else []
