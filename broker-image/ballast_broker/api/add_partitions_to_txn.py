"""AddPartitionsToTxn: adds partitions to a transaction, or verifies that they are in it.

Up to version 3 producers send it for themselves; from version 4 on brokers send it, batched over all transactions whose
records they are about to append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from ballast_broker.api.authorizer import CLUSTER, Operation, topic, transactional_id
from ballast_broker.api.context import RequestContext
from ballast_broker.api.placement_view import INTERNAL_TOPICS
from ballast_broker.api.services import BrokerServices
from ballast_broker.api.transaction_requests import understood
from ballast_broker.coordinator.transactions import ProducerIdentity
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

FIRST_FROM_BROKERS = 4
FIRST_WITH_FENCED = 2

Errors = dict[TopicPartition, ErrorCode]


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("AddPartitionsToTxnResponse")
    version = context.version
    if version < FIRST_FROM_BROKERS:
        producer = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        partitions = await _partitions(request.v3_and_below_topics)
        errors = await _of_client(request.v3_and_below_transactional_id, producer, partitions, context)
        return kind(results_by_topic_v3_and_below=await _by_topic(kind, errors))
    if not context.authorize(Operation.CLUSTER_ACTION, CLUSTER):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    found = await asyncio.gather(*(_of_broker(asked, context.broker) for asked in request.transactions))
    results = [
        kind.AddPartitionsToTxnResult(
            transactional_id=asked.transactional_id, topic_results=await _by_topic(kind, errors)
        )
        for asked, errors in zip(request.transactions, found, strict=True)
    ]
    return kind(error_code=ErrorCode.NONE, results_by_transaction=results)


async def _of_client(
    name: str, producer: ProducerIdentity, partitions: list[TopicPartition], context: RequestContext
) -> Errors:
    if not context.authorize(Operation.WRITE, transactional_id(name)):
        return dict.fromkeys(partitions, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    allowed = {
        name
        for name in {each.topic for each in partitions}
        if name not in INTERNAL_TOPICS and context.authorize(Operation.WRITE, topic(name))
    }
    refused = dict.fromkeys((p for p in partitions if p.topic not in allowed), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    errors = await _add(name, producer, partitions, refused, 0, context.broker, waits=True)
    return {partition: understood(error, context.version, FIRST_WITH_FENCED) for partition, error in errors.items()}


async def _of_broker(asked: Any, broker: BrokerServices) -> Errors:
    """Never wait for a busy transaction: other transactions' requests queue behind this one."""
    producer, partitions = ProducerIdentity(asked.producer_id, asked.producer_epoch), await _partitions(asked.topics)
    if asked.verify_only:
        return verify(broker, asked.transactional_id, producer, partitions)
    return await add(broker, asked.transactional_id, producer, partitions, waits=False)


def verify(broker: BrokerServices, name: str, producer: ProducerIdentity, partitions: list[TopicPartition]) -> Errors:
    """Whether the partitions are in the producer's open transaction."""
    unknown = _unknown(partitions, broker)
    if unknown:
        return _none_but(unknown, partitions)
    try:
        return broker.transactions.verify(name, producer, partitions)
    except ApiError as error:
        return dict.fromkeys(partitions, error.code)


async def add(
    broker: BrokerServices, name: str, producer: ProducerIdentity, partitions: list[TopicPartition], *, waits: bool
) -> Errors:
    """Add partitions on behalf of their leader, when their first records arrive."""
    return await _add(name, producer, partitions, {}, 2, broker, waits=waits)


async def _add(
    name: str,
    producer: ProducerIdentity,
    partitions: list[TopicPartition],
    refused: Errors,
    client_version: int,
    broker: BrokerServices,
    *,
    waits: bool,
) -> Errors:
    """Add all partitions or none."""
    refused = _unknown(partitions, broker) | refused
    if refused:
        return _none_but(refused, partitions)
    coordinator = broker.transactions
    adding = coordinator.add_partitions_when_free if waits else coordinator.add_partitions
    error = ErrorCode.NONE
    try:
        await adding(name, producer, partitions, client_version)
    except ApiError as failed:
        error = failed.code
    return dict.fromkeys(partitions, error)


def _unknown(partitions: Iterable[TopicPartition], broker: BrokerServices) -> Errors:
    topics = broker.image().topics
    images = {name: topics.by_name(name) for name in {each.topic for each in partitions}}
    return {
        each: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for each in partitions
        if (image := images[each.topic]) is None or each.partition not in image.partitions
    }


def _none_but(refused: Errors, partitions: Iterable[TopicPartition]) -> Errors:
    return {p: refused.get(p, ErrorCode.OPERATION_NOT_ATTEMPTED) for p in partitions}


async def _partitions(topics: Any) -> list[TopicPartition]:
    everything = (TopicPartition(each.name, number) for each in topics for number in each.partitions)
    return list(dict.fromkeys([each async for each in InTurns(everything)]))


async def _by_topic(kind: Any, errors: Errors) -> list[Any]:
    of_topic = kind.AddPartitionsToTxnResult.AddPartitionsToTxnTopicResult
    of_partition = of_topic.AddPartitionsToTxnPartitionResult
    topics: dict[str, list[Any]] = {}
    async for (name, number), error in InTurns(errors.items()):
        topics.setdefault(name, []).append(of_partition(partition_index=number, partition_error_code=error))
    return [of_topic(name=name, results_by_partition=found) for name, found in topics.items()]
