"""ListOffsets: the offset for a timestamp, or one of the special offsets that negative timestamps name."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from ballast_broker.api.authorizer import Operation, topic
from ballast_broker.api.context import RequestContext
from ballast_broker.api.placement_view import absence
from ballast_broker.replication.offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    FoundOffset,
)
from ballast_broker.turns import Turn
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.fast.offsets import ListOffsetsResponse
from ballast_wire.names import TopicPartition

EARLIEST_PENDING_UPLOAD = -6
FIRST_VERSION_OF = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
ISOLATION_LEVELS = (0, 1)
FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE = 5
FIRST_VERSION_WITH_EPOCH = 4
NOTHING = (-1, -1, -1)
Answer = tuple[ErrorCode, int, int, int]  # error, timestamp, offset, leader epoch


async def handle(request: Any, context: RequestContext) -> ListOffsetsResponse:
    if request.isolation_level not in ISOLATION_LEVELS:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)  # as Kafka answers it
    times = Counter((asked.name, p.partition_index) for asked in request.topics for p in asked.partitions)
    topics: dict[str, dict[int, Answer]] = {}
    response = ListOffsetsResponse(context.version)
    turn = Turn()
    later: list[tuple[dict[int, Answer], int, asyncio.Task[FoundOffset]]] = []  # need a thread to read first
    for asked in request.topics:
        if not context.authorize(Operation.DESCRIBE, topic(asked.name)):
            _refuse(response, asked)
            continue
        answers = topics.setdefault(asked.name, {})
        for each in asked.partitions:
            if times[asked.name, each.partition_index] > 1:
                answer: Answer = (ErrorCode.INVALID_REQUEST, *NOTHING)
            else:
                found = _look_up(TopicPartition(asked.name, each.partition_index), each, request, context)
                answer = (ErrorCode.NONE, *NOTHING)
                if isinstance(found, asyncio.Task):
                    later.append((answers, each.partition_index, found))
                else:
                    answer = found
            answers[each.partition_index] = answer
            await turn.ends_if_long()
    for answers, index, task in later:
        try:
            answers[index] = _told(await task)
        except ApiError as error:
            answers[index] = (_error_for(error.code, context.version), *NOTHING)
    for name, answers in topics.items():
        if answers:  # topics without partitions are left out, as in Kafka
            for index, answer in answers.items():
                response.add(index, *answer)
            response.end_topic(name)
    return response


def _refuse(response: ListOffsetsResponse, asked: Any) -> None:
    for each in asked.partitions:
        response.add(each.partition_index, ErrorCode.TOPIC_AUTHORIZATION_FAILED, *NOTHING)
    response.end_topic(asked.name)


def _look_up(
    topic_partition: TopicPartition, asked: Any, request: Any, context: RequestContext
) -> Answer | asyncio.Task[FoundOffset]:
    timestamp = asked.timestamp
    if timestamp < 0 and context.version < FIRST_VERSION_OF.get(timestamp, context.version + 1):
        return (ErrorCode.UNSUPPORTED_VERSION, *NOTHING)
    if absence(context.broker.image(), topic_partition) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, *NOTHING)
    if context.broker.replicas.partition(topic_partition) is None:
        return (ErrorCode.NOT_LEADER_OR_FOLLOWER, *NOTHING)
    # There is no tiered storage, so nothing is pending upload.
    looked_for = LATEST_TIERED if timestamp == EARLIEST_PENDING_UPLOAD else timestamp
    epoch = asked.current_leader_epoch if context.version >= FIRST_VERSION_WITH_EPOCH else -1
    try:
        found = context.broker.replicas.list_offset(
            topic_partition, looked_for, request.isolation_level, epoch, request.replica_id
        )
    except ApiError as error:
        return (_error_for(error.code, context.version), *NOTHING)
    return found if isinstance(found, asyncio.Task) else _told(found)


def _told(found: FoundOffset) -> Answer:
    return (ErrorCode.NONE, found.timestamp, found.offset, found.leader_epoch)


def _error_for(code: ErrorCode, version: int) -> ErrorCode:
    if code is ErrorCode.OFFSET_NOT_AVAILABLE and version < FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return code
