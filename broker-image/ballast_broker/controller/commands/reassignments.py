"""AlterPartitionReassignments and ListPartitionReassignments. PURE.

During a reassignment the replica list is the target followed by the replicas to be removed; adding_replicas and
removing_replicas are kept beside it. The original replicas are therefore the replicas without the added ones: a
cancellation restores them, and a second reassignment starts from them. `PartitionChange` completes the reassignment
when the added replicas are in sync.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ballast_broker.controller.commands.context import CommandContext, Outcome
from ballast_broker.controller.commands.partition_change import PartitionChange, change_of
from ballast_broker.controller.commands.pieces import piecewise
from ballast_broker.controller.commands.replica_assignment import check_assignment
from ballast_broker.metadata.image import PartitionRegistration, TopicImage
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message


def alter_partition_reassignments(context: CommandContext, request: Any) -> Outcome:
    """Handle each partition independently, in pieces; a null target cancels."""
    response = message("AlterPartitionReassignmentsResponse")(
        responses=[],
        error_code=0,
        error_message=None if request.topics else "",  # as by Apache Kafka
        throttle_time_ms=0,
        allow_replication_factor_change=request.allow_replication_factor_change,
    )
    kind = type(response).ReassignableTopicResponse
    asked: list[tuple[Any, Any]] = []
    for wanted in request.topics:
        answer = kind(name=wanted.name, partitions=[])
        response.responses.append(answer)
        asked += ((answer, each) for each in wanted.partitions)

    def alter(now: CommandContext, some: Sequence[tuple[Any, Any]]) -> list[Any]:
        records: dict[tuple[str, int], Any] = {}
        for answer, each in some:
            result = kind.ReassignablePartitionResponse(
                partition_index=each.partition_index, error_code=0, error_message=None
            )
            answer.partitions.append(result)
            try:
                built = _alter(now, answer.name, each, request.allow_replication_factor_change)
            except ApiError as error:
                result.error_code, result.error_message = int(error.code), error.message
            else:
                if built is not None:
                    records[answer.name, each.partition_index] = built
        return list(records.values())

    return piecewise(context, asked, alter, response=response)


def _alter(context: CommandContext, name: str, wanted: Any, allow_factor_change: bool) -> Any | None:
    topic = context.image.topics.by_name(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    before = topic.partitions.get(wanted.partition_index)
    if before is None:
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{wanted.partition_index}."
        )
    if wanted.replicas is None:
        return _cancel(context, topic, wanted.partition_index, before)
    return _begin(context, topic, wanted, before, allow_factor_change)


def original_replicas(partition: PartitionRegistration) -> list[int]:
    return [replica for replica in partition.replicas if replica not in partition.adding_replicas]


def _cancel(context: CommandContext, topic: TopicImage, partition_id: int, before: PartitionRegistration) -> Any:
    if not before.is_reassigning:
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    originals = original_replicas(before)
    isr = [replica for replica in before.isr if replica in originals]
    if not isr and not context.unclean_election_enabled(topic.name):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Unable to revert partition assignment for {topic.name}:{partition_id} because it would require an "
            "unclean leader election.",
        )
    change = change_of(context, topic, partition_id)
    _assign(context, topic, change, originals, isr)
    return change.build()


def _begin(
    context: CommandContext, topic: TopicImage, wanted: Any, before: PartitionRegistration, allow_factor_change: bool
) -> Any | None:
    target = list(wanted.replicas)
    check_assignment(context, target, None)
    originals = original_replicas(before)
    if not allow_factor_change and len(target) != len(originals):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(originals)} to {len(target)}",
        )
    # Replicas an earlier reassignment was adding but this one does not want go at once, unless the ISR would be empty.
    dropped = [each for each in before.adding_replicas if each not in target]
    isr = [replica for replica in before.isr if replica not in dropped]
    if not isr:
        dropped, isr = [], list(before.isr)
    present = [each for each in before.replicas if each not in dropped]
    removing = [each for each in present if each not in target]
    change = change_of(context, topic, wanted.partition_index)
    _assign(context, topic, change, target + removing, isr)
    change.removing = removing
    change.adding = [each for each in target if each not in originals]
    return change.build()


def _assign(
    context: CommandContext, topic: TopicImage, change: PartitionChange, replicas: list[int], isr: list[int]
) -> None:
    change.replicas = replicas
    change.isr = isr
    change.removing, change.adding = [], []
    change.min_isr = context.min_insync_replicas(topic.name, len(replicas))


def list_partition_reassignments(context: CommandContext, request: Any) -> Any:
    response = message("ListPartitionReassignmentsResponse")(
        topics=[], error_code=0, error_message=None, throttle_time_ms=0
    )
    kind = type(response).OngoingTopicReassignment
    image = context.image.topics
    wanted = _wanted(request)
    by_topic: dict[str, list[Any]] = {}
    for topic_id, partition_id in image.reassigning:
        topic = image.topics_by_id[topic_id]
        if wanted is not None and (topic.name, partition_id) not in wanted:
            continue
        partition = topic.partitions[partition_id]
        by_topic.setdefault(topic.name, []).append(
            kind.OngoingPartitionReassignment(
                partition_index=partition_id,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding_replicas),
                removing_replicas=list(partition.removing_replicas),
            )
        )
    for name in sorted(by_topic):
        ongoing = sorted(by_topic[name], key=lambda each: int(each.partition_index))
        response.topics.append(kind(name=name, partitions=ongoing))
    return response


def _wanted(request: Any) -> set[tuple[str, int]] | None:
    if request.topics is None:
        return None
    return {(each.name, partition) for each in request.topics for partition in each.partition_indexes}
