"""WriteTxnMarkers: a transaction coordinator, or `kafka-transactions`, ends transactions in partitions led here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from ballast_broker.api.authorizer import CLUSTER, Operation
from ballast_broker.api.context import RequestContext
from ballast_broker.api.services import BrokerServices
from ballast_broker.coordinator.markers import Marking, Outcomes
from ballast_broker.coordinator.store import OFFSETS_TOPIC
from ballast_broker.coordinator.transactions import BUMPS_EPOCH
from ballast_broker.storage.directories import LOOK_AGAIN_S
from ballast_broker.storage.errors import DirectoryStalls
from ballast_broker.storage.transactions import render_marker
from ballast_broker.storage.validation import END_WITH_NEW_EPOCH
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

ACKS_ALL = -1
COORDINATOR = "coordinator"
SILENT = ErrorCode.REQUEST_TIMED_OUT


async def handle(request: Any, context: RequestContext) -> Any:
    if not context.may(Operation.ALTER, CLUSTER) and not context.authorize(Operation.CLUSTER_ACTION, CLUSTER):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return _response(await write_markers(context.broker, _asked(request)))


def _asked(request: Any) -> Iterator[Marking]:
    for marker in request.markers:
        said = marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, marker.transaction_result
        for topic in marker.topics:
            for number in topic.partition_indexes:
                yield Marking(*said, marker.transaction_version, TopicPartition(topic.name, number))


async def write_markers(broker: BrokerServices, markings: Iterable[Marking]) -> Outcomes:
    """Append all markers in this order before waiting for any.

    Those for a silent directory are to be sent again: other transactions' markers would wait for it as well.
    """
    outcomes: Outcomes = {}
    later: list[tuple[Marking, asyncio.Future[ErrorCode]]] = []
    async for marking in InTurns(markings):
        outcome = _write(broker, marking)
        outcomes[marking.producer_id, marking.partition] = outcome if isinstance(outcome, ErrorCode) else ErrorCode.NONE
        if not isinstance(outcome, ErrorCode):
            later.append((marking, outcome))
    while going := [each for marking, each in later if not each.done() and _answers(broker, marking.partition)]:
        await asyncio.wait(going, timeout=LOOK_AGAIN_S)
    for marking, found in later:
        outcomes[marking.producer_id, marking.partition] = found.result() if found.done() else SILENT
    return outcomes


def _answers(broker: BrokerServices, partition: TopicPartition) -> bool:
    log = broker.replicas.local_log(partition)
    return log is not None and not log.directory.threads.silent


def _write(broker: BrokerServices, marking: Marking) -> ErrorCode | asyncio.Future[ErrorCode]:
    partition = marking.partition
    if broker.replicas.local_log(partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    batch = render_marker(
        marking.producer_id, marking.epoch, marking.coordinator_epoch,
        committed=marking.committed, now_ms=broker.clock.wall_ms(),
    )  # fmt: skip
    try:
        info = broker.replicas.append(partition, None, batch, ACKS_ALL, origin=_origin(marking))
    except DirectoryStalls:
        if not _answers(broker, partition):
            return SILENT
        return asyncio.ensure_future(_write_by_thread(broker, marking, batch))
    except ApiError as refused:
        return refused.code
    outcome = _commit(broker, partition, info.last_offset)
    if partition.topic == OFFSETS_TOPIC:
        return asyncio.ensure_future(_tell_groups(broker, marking, outcome))
    return outcome


async def _write_by_thread(broker: BrokerServices, marking: Marking, batch: bytearray) -> ErrorCode:
    partition = marking.partition
    try:
        info = await broker.replicas.append_by_thread(partition, batch, ACKS_ALL, origin=_origin(marking))
    except ApiError as refused:
        return refused.code
    outcome = _commit(broker, partition, info.last_offset)
    if partition.topic == OFFSETS_TOPIC:
        return await _tell_groups(broker, marking, outcome)
    return outcome if isinstance(outcome, ErrorCode) else await outcome


def _origin(marking: Marking) -> str:
    return END_WITH_NEW_EPOCH if marking.version >= BUMPS_EPOCH else COORDINATOR


def _commit(
    broker: BrokerServices, partition: TopicPartition, last_offset: int
) -> ErrorCode | asyncio.Future[ErrorCode]:
    return broker.replicas.await_committed(partition, last_offset + 1, broker.config.request_timeout_ms)


async def _tell_groups(
    broker: BrokerServices, marking: Marking, outcome: ErrorCode | asyncio.Future[ErrorCode]
) -> ErrorCode:
    """Once the marker is committed, tell the group coordinator to apply or drop the transaction's offsets."""
    code = outcome if isinstance(outcome, ErrorCode) else await outcome
    if code is not ErrorCode.NONE:
        return code
    shard = marking.partition.partition
    return await broker.groups.transaction_ended(shard, marking.producer_id, marking.committed)


def _response(outcomes: Outcomes) -> Any:
    kind = message("WriteTxnMarkersResponse")
    result_kind = kind.WritableTxnMarkerResult
    topic_kind = result_kind.WritableTxnMarkerTopicResult
    partition_kind = topic_kind.WritableTxnMarkerPartitionResult
    producers: dict[int, dict[str, list[Any]]] = {}
    for (producer_id, partition), code in outcomes.items():
        answer = partition_kind(partition_index=partition.partition, error_code=code)
        producers.setdefault(producer_id, {}).setdefault(partition.topic, []).append(answer)
    markers = []
    for producer_id, topics in producers.items():
        answers = [topic_kind(name=name, partitions=found) for name, found in topics.items()]
        markers.append(result_kind(producer_id=producer_id, topics=answers))
    return kind(markers=markers)
