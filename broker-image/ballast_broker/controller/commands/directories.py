"""AssignReplicasToDirs: a broker reports which directory holds each of its replicas. PURE."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ballast_broker.controller.commands.brokers import check_broker_epoch
from ballast_broker.controller.commands.context import CommandContext, Outcome
from ballast_broker.controller.commands.partition_change import change_of, leader_acceptor
from ballast_broker.metadata.image import (
    DIRECTORY_UNASSIGNED,
    NO_LEADER,
    BrokerImage,
    PartitionRegistration,
    TopicImage,
)
from ballast_broker.metadata.records import known_id
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message


def assign_replicas_to_directories(context: CommandContext, request: Any) -> Outcome:
    broker = check_broker_epoch(context, request.broker_id, request.broker_epoch)
    response = message("AssignReplicasToDirsResponse")(error_code=0, throttle_time_ms=0, directories=[])
    kind = type(response).DirectoryData
    records: dict[tuple[UUID, int], Any] = {}
    for wanted in request.directories:
        directory = known_id(wanted.id)
        answer = kind(id=directory, topics=[])
        response.directories.append(answer)
        for wanted_topic in wanted.topics:
            topic_id = known_id(wanted_topic.topic_id)
            topic_answer = kind.TopicData(topic_id=topic_id, partitions=[])
            answer.topics.append(topic_answer)
            topic = context.image.topics.by_id(topic_id)
            for each in wanted_topic.partitions:
                error, built = _assign(context, broker, topic, each.partition_index, directory)
                topic_answer.partitions.append(
                    kind.TopicData.PartitionData(partition_index=each.partition_index, error_code=int(error))
                )
                if built is not None:
                    records[topic_id, each.partition_index] = built
    return Outcome(list(records.values()), response, atomic=False)


def _assign(
    context: CommandContext, broker: BrokerImage, topic: TopicImage | None, partition_id: int, directory: UUID
) -> tuple[ErrorCode, Any | None]:
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID, None
    before = topic.partitions.get(partition_id)
    if before is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    if broker.id not in before.replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
    offline = directory != DIRECTORY_UNASSIGNED and not broker.has_directory(directory)
    without = broker.id if offline else -1
    change = change_of(context, topic, partition_id, acceptable=_acceptor(context, before, broker.id, without))
    change.directories[broker.id] = directory
    leaves = offline
    if len(before.replicas) > 1 and _is_made_anew(before, broker, directory):
        change.lost_replicas = frozenset((broker.id,))
        # Without ELR the last member stayed in the ISR when it went. (With a leader it may have caught up since.)
        leaves = leaves or (not context.elr_enabled and before.leader == NO_LEADER)
    if leaves:
        change.isr = [each for each in before.isr if each != broker.id]
    return ErrorCode.NONE, change.build()


def _is_made_anew(before: PartitionRegistration, broker: BrokerImage, directory: UUID) -> bool:
    """The replica was recreated empty: its old directory is gone from the broker, so nothing was copied from it."""
    present = before.directory_of(broker.id)
    return present is not None and present != directory and not broker.has_directory(present)


def _acceptor(context: CommandContext, before: PartitionRegistration, broker_id: int, without: int) -> Any:
    """Judge the reporting broker by the new directory: a replica moved to a healthy disk may lead again."""
    by_old = leader_acceptor(context, before, without=without)
    broker = context.image.cluster.brokers[broker_id]

    def acceptable(candidate: int) -> bool:
        if candidate == broker_id:
            return without != broker_id and broker.active
        return by_old(candidate)

    return acceptable
