"""CreatePartitions: expands topics, each independently. PURE."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from ballast_broker.controller.commands.context import MAX_RECORDS_PER_BATCH, CommandContext, Outcome
from ballast_broker.controller.commands.pieces import one_by_one
from ballast_broker.controller.commands.replica_assignment import (
    INVALID,
    check_assignment,
    manual_registration,
    partition_records,
    place,
    replication_factor_of,
)
from ballast_broker.metadata.image import TopicImage
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message


def create_partitions(context: CommandContext, request: Any) -> Outcome:
    """`validate_only` checks everything and changes nothing. A topic named twice is rejected, the others are not."""
    response = message("CreatePartitionsResponse")(results=[], throttle_time_ms=0)
    counts = Counter(topic.name for topic in request.topics)
    topics = {topic.name: topic for topic in request.topics}

    def checked(now: CommandContext, wanted: Any) -> tuple[TopicImage, int]:
        if counts[wanted.name] > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        topic = _expandable(now, wanted)
        return topic, _additional(topic, wanted)

    def answer(wanted: Any) -> Any:
        result = type(response).CreatePartitionsTopicResult(name=wanted.name, error_code=0, error_message=None)
        response.results.append(result)
        return result

    def expand(now: CommandContext, wanted: Any) -> list[Any]:
        topic, additional = checked(now, wanted)
        now.take_mutations(additional)
        return _expand(now, topic, wanted, additional)

    total = 0
    for wanted in topics.values():
        with suppress(ApiError):
            total += checked(context, wanted)[1]
    if total > MAX_RECORDS_PER_BATCH:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    return one_by_one(context, [*topics.values()], answer, expand, response, only_looks=request.validate_only)


def _expandable(context: CommandContext, wanted: Any) -> TopicImage:
    topic = context.image.topics.by_name(wanted.name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    moving = context.image.topics.reassigning  # usually empty: saves checking every partition
    if moving and any((topic.id, number) in moving for number in topic.partitions):
        raise ApiError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"A partition reassignment is in progress for the topic '{topic.name}'.",
        )
    return topic


def _expand(context: CommandContext, topic: TopicImage, wanted: Any, additional: int) -> list[Any]:
    present, factor = len(topic.partitions), replication_factor_of(topic)
    if wanted.assignments is None:
        registrations = place(context, present, additional, factor)
    else:
        registrations = []
        for index, assignment in enumerate(wanted.assignments):
            check_assignment(context, assignment.broker_ids, factor)
            registrations.append(manual_registration(context, present + index, assignment.broker_ids))
    return partition_records(topic.id, present, registrations)


def _additional(topic: TopicImage, wanted: Any) -> int:
    present = len(topic.partitions)
    if wanted.count == present:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if wanted.count < present:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {present} partition(s); {wanted.count} would not be an increase.",
        )
    additional: int = wanted.count - present
    if wanted.assignments is not None and len(wanted.assignments) != additional:
        raise ApiError(
            INVALID,
            f"Attempted to add {additional} additional partition(s), but only {len(wanted.assignments)} "
            "assignment(s) were specified.",
        )
    return additional
