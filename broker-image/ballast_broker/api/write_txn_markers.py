"""WriteTxnMarkers: a transaction coordinator, or `kafka-transactions`, ends transactions in the partitions led here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any

from ballast_broker.api.authorizer import CLUSTER, Operation
from ballast_broker.api.context import RequestContext
from ballast_broker.api.services import BrokerServices
from ballast_broker.coordinator.store import OFFSETS_TOPIC
from ballast_broker.storage.errors import DirectoryStalls
from ballast_broker.storage.transactions import render_marker
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

ACKS_ALL = -1
COORDINATOR = "coordinator"
MARKERS_PER_TURN = 100  # some milliseconds of work, then others have their turn

Outcomes = dict[int, dict[TopicPartition, ErrorCode]]


async def handle(request: Any, context: RequestContext) -> Any:
    if not context.may(Operation.ALTER, CLUSTER) and not context.authorize(Operation.CLUSTER_ACTION, CLUSTER):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    outcomes: Outcomes = {}
    later: list[tuple[int, TopicPartition, Awaitable[ErrorCode]]] = []
    for written, (marker, partition) in enumerate(_asked(request)):
        if written % MARKERS_PER_TURN == MARKERS_PER_TURN - 1:
            await asyncio.sleep(0)
        told = outcomes.setdefault(marker.producer_id, {})
        outcome = _write(context.broker, partition, marker)
        told[partition] = outcome if isinstance(outcome, ErrorCode) else ErrorCode.NONE
        if not isinstance(outcome, ErrorCode):
            later.append((marker.producer_id, partition, outcome))
    for (producer_id, partition, _), outcome in zip(
        later, await asyncio.gather(*[waiting for _, _, waiting in later]), strict=True
    ):
        outcomes[producer_id][partition] = outcome
    return _response(outcomes, context.version)


def _asked(request: Any) -> Iterator[tuple[Any, TopicPartition]]:
    for marker in request.markers:
        for topic in marker.topics:
            for number in topic.partition_indexes:
                yield marker, TopicPartition(topic.name, number)


def _write(broker: BrokerServices, partition: TopicPartition, marker: Any) -> ErrorCode | Awaitable[ErrorCode]:
    """All are written, in the order of the request, before any is waited for."""
    if broker.replicas.local_log(partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    batch = render_marker(
        marker.producer_id, marker.producer_epoch, marker.coordinator_epoch,
        committed=marker.transaction_result, now_ms=broker.clock.wall_ms(),
    )  # fmt: skip
    try:
        info = broker.replicas.append(partition, None, batch, ACKS_ALL, origin=COORDINATOR)
    except DirectoryStalls:
        return asyncio.ensure_future(_write_by_thread(broker, partition, marker, batch))
    except ApiError as refused:
        return refused.code
    outcome = _commit(broker, partition, info.last_offset)
    if partition.topic == OFFSETS_TOPIC:
        return asyncio.ensure_future(_tell_groups(broker, partition, marker, outcome))
    return outcome


async def _write_by_thread(
    broker: BrokerServices, partition: TopicPartition, marker: Any, batch: bytearray
) -> ErrorCode:
    try:
        info = await broker.replicas.append_by_thread(partition, batch, ACKS_ALL, origin=COORDINATOR)
    except ApiError as refused:
        return refused.code
    outcome = _commit(broker, partition, info.last_offset)
    if partition.topic == OFFSETS_TOPIC:
        return await _tell_groups(broker, partition, marker, outcome)
    return outcome if isinstance(outcome, ErrorCode) else await outcome


def _commit(
    broker: BrokerServices, partition: TopicPartition, last_offset: int
) -> ErrorCode | asyncio.Future[ErrorCode]:
    return broker.replicas.await_committed(partition, last_offset + 1, broker.config.request_timeout_ms)


async def _tell_groups(
    broker: BrokerServices, partition: TopicPartition, marker: Any, outcome: ErrorCode | asyncio.Future[ErrorCode]
) -> ErrorCode:
    """Offsets committed in the transaction are in force, or forgotten, once its end is committed."""
    code = outcome if isinstance(outcome, ErrorCode) else await outcome
    if code is not ErrorCode.NONE:
        return code
    return await broker.groups.transaction_ended(partition.partition, marker.producer_id, marker.transaction_result)


def _response(outcomes: Outcomes, version: int) -> Any:
    kind = message("WriteTxnMarkersResponse")
    result_kind = kind.WritableTxnMarkerResult
    topic_kind = result_kind.WritableTxnMarkerTopicResult
    partition_kind = topic_kind.WritableTxnMarkerPartitionResult
    markers = []
    for producer_id, told in outcomes.items():
        topics: dict[str, list[Any]] = {}
        for partition, code in told.items():
            answer = partition_kind(version=version, partition_index=partition.partition, error_code=code)
            topics.setdefault(partition.topic, []).append(answer)
        answers = [topic_kind(version=version, name=name, partitions=found) for name, found in topics.items()]
        markers.append(result_kind(version=version, producer_id=producer_id, topics=answers))
    return kind(version=version, markers=markers)
