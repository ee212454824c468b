"""AlterPartition: a leader proposes a new ISR; stale proposals are rejected. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ballast_broker.controller.commands.brokers import check_broker_epoch
from ballast_broker.controller.commands.context import CommandContext, Outcome
from ballast_broker.controller.commands.partition_change import change_of
from ballast_broker.metadata.image import RECOVERED, RECOVERING, PartitionRegistration, TopicImage
from ballast_broker.metadata.partition_merge import merge_change
from ballast_broker.metadata.records import known_id
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

ANY_EPOCH = -1


def alter_partition(context: CommandContext, request: Any) -> Outcome:
    check_broker_epoch(context, request.broker_id, request.broker_epoch)
    response = message("AlterPartitionResponse")(topics=[], error_code=0, throttle_time_ms=0)
    topic_kind = type(response).TopicData
    records: list[Any] = []
    for wanted in request.topics:
        topic = context.image.topics.by_id(known_id(wanted.topic_id))
        answer = topic_kind(topic_id=wanted.topic_id, partitions=[])
        response.topics.append(answer)
        for data in wanted.partitions:
            result = topic_kind.PartitionData(partition_index=data.partition_index)
            answer.partitions.append(result)
            if topic is None:
                result.error_code = int(ErrorCode.UNKNOWN_TOPIC_ID)
            else:
                records.extend(_alter(context, request.broker_id, topic, data, result))
    # Duplicate entries for a partition were checked against the same state: only the first may count.
    return Outcome(_first_per_partition(records), response, atomic=False)


def _alter(context: CommandContext, broker_id: int, topic: TopicImage, data: Any, result: Any) -> list[Any]:
    partition = topic.partitions.get(data.partition_index)
    new_isr = _new_isr(data)
    error = _refusal(context, broker_id, partition, data, new_isr)
    if error is not ErrorCode.NONE or partition is None:
        result.error_code = int(error)
        return []
    change = change_of(context, topic, data.partition_index)
    change.isr = [replica for replica, _ in new_isr]
    change.recovery_state = data.leader_recovery_state
    built = change.build()
    after = partition if built is None else merge_change(partition, built)
    if after.leader not in (broker_id, partition.leader):
        # The change completed a reassignment that removes the requesting leader.
        result.error_code = int(ErrorCode.NEW_LEADER_ELECTED)
    else:
        result.leader_id = after.leader
        result.isr = list(after.isr)
        result.leader_recovery_state = after.leader_recovery_state
        result.leader_epoch = after.leader_epoch
        result.partition_epoch = after.partition_epoch
    return [] if built is None else [built]


def _new_isr(data: Any) -> list[tuple[int, int]]:
    if data.new_isr_with_epochs:
        return [(each.broker_id, each.broker_epoch) for each in data.new_isr_with_epochs]
    return [(replica, ANY_EPOCH) for replica in data.new_isr or ()]


def _refusal(
    context: CommandContext,
    broker_id: int,
    partition: PartitionRegistration | None,
    data: Any,
    new_isr: Sequence[tuple[int, int]],
) -> ErrorCode:
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if data.leader_epoch > partition.leader_epoch or data.partition_epoch > partition.partition_epoch:
        # The leader has newer metadata: we are no longer the controller.
        return ErrorCode.NOT_CONTROLLER
    if data.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if data.partition_epoch != partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    members = [replica for replica, _ in new_isr]
    valid = bool(members) and len(set(members)) == len(members) and set(members) <= set(partition.replicas)
    if not valid or broker_id not in members:
        return ErrorCode.INVALID_REQUEST
    if data.leader_recovery_state == RECOVERING and len(members) > 1:
        return ErrorCode.INVALID_REQUEST
    if partition.leader_recovery_state == RECOVERED and data.leader_recovery_state == RECOVERING:
        return ErrorCode.INVALID_REQUEST
    if not all(_eligible(context, replica, epoch) for replica, epoch in new_isr):
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _eligible(context: CommandContext, broker_id: int, epoch: int) -> bool:
    """Whether the broker may join an ISR: registered, live, and the incarnation that the leader saw."""
    broker = context.image.cluster.brokers.get(broker_id)
    return broker is not None and broker.active and epoch in (ANY_EPOCH, broker.epoch)


def _first_per_partition(records: list[Any]) -> list[Any]:
    return list({(each.topic_id, each.partition_id): each for each in reversed(records)}.values())[::-1]
