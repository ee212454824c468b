"""What the coordinator keeps in `__transaction_state`: Kafka's keys and values, to bytes and back. PURE.

Version 1 of a value is written where the cluster's transaction.version is 1 or more: older brokers cannot read it.
Of the ids before and after this one only what differs is said; Apache Kafka 4.1 stores neither, and reads both.
"""

from __future__ import annotations

import struct

from ballast_broker.coordinator.transactions import NO_ID, STORED_STATES, Standing, TransactionState
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

KIND = 0  # what a key begins with
_short = struct.Struct(">h")


def key_of(transactional_id: str) -> bytes:
    return bytes(message("TransactionLogKey")(transactional_id=transactional_id).encode(KIND))


def transactional_id_of(key: bytes) -> str | None:
    """None for a key of another kind: it is left alone."""
    if _short.unpack_from(key)[0] != KIND:
        return None
    found: str = message("TransactionLogKey").decode(key).transactional_id
    return found


def value_of(standing: Standing, cluster_version: int) -> bytes:
    kind = message("TransactionLogValue")
    partitions = None
    if standing.state is not TransactionState.EMPTY:
        of_topic: dict[str, list[int]] = {}
        for topic, number in sorted(standing.partitions):
            of_topic.setdefault(topic, []).append(number)
        partitions = [kind.PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in of_topic.items()]
    value = kind(
        producer_id=standing.producer_id,
        previous_producer_id=NO_ID if standing.previous_id == standing.producer_id else standing.previous_id,
        next_producer_id=standing.next_id,
        producer_epoch=standing.epoch,
        transaction_timeout_ms=standing.timeout_ms,
        transaction_status=STORED_STATES.index(standing.state),
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=standing.updated_ms,
        transaction_start_timestamp_ms=standing.started_ms,
        client_transaction_version=standing.version,
    )
    return bytes(value.encode(1 if cluster_version >= 1 else 0))


def standing_of(value: bytes) -> Standing:
    v = message("TransactionLogValue").decode(value)
    if not 0 <= v.transaction_status < len(STORED_STATES):
        raise ValueError(f"state {v.transaction_status}")
    return Standing(
        producer_id=v.producer_id,
        previous_id=v.previous_producer_id,
        next_id=v.next_producer_id,
        epoch=v.producer_epoch,
        timeout_ms=v.transaction_timeout_ms,
        state=STORED_STATES[v.transaction_status],
        partitions=frozenset(
            TopicPartition(of_topic.topic, number)
            for of_topic in v.transaction_partitions or ()
            for number in of_topic.partition_ids
        ),
        started_ms=v.transaction_start_timestamp_ms,
        updated_ms=v.transaction_last_update_timestamp_ms,
        version=v.client_transaction_version,
    )
