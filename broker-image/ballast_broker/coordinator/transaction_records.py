"""Encodes and decodes the records of `__transaction_state`: Kafka's keys and values. PURE.

Value version 1, which older brokers cannot read, is written if the cluster's transaction.version is at least 1. It is
also written for an end that bumped the epoch, requested by a client that has yet to learn of a lowered level: the next
leader must know that the epoch was bumped and which id the producer was told. Previous and next producer ids are stored
only where they differ; Apache Kafka 4.1 stores neither, but reads both. Coded by hand, since each transaction is
written three times.
"""

from __future__ import annotations

import struct

from ballast_broker.coordinator.transactions import (
    BUMPS_EPOCH,
    COMPLETE,
    NO_ID,
    PREPARED,
    STORED_STATES,
    TransactionMetadata,
    TransactionState,
)
from ballast_wire.fast import writer
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition, by_topic

KIND = 0  # key type
ENDS = PREPARED | COMPLETE
_short = struct.Struct(">h")
_long = struct.Struct(">q")
_start_of_value = struct.Struct(">hqhib")  # version, producer id, epoch, timeout, state
_times = struct.Struct(">qq")
_NO_ARRAY = struct.pack(">i", -1)
_PREVIOUS_ID, _NEXT_ID, _CLIENT_VERSION = b"\0\x08", b"\1\x08", b"\2\x02"  # tag and size


def key_of(transactional_id: str) -> bytes:
    return _short.pack(KIND) + writer.string(transactional_id, flexible=False)


def transactional_id_of(key: bytes) -> str | None:
    """None for a key of another type, which is ignored."""
    if _short.unpack_from(key)[0] != KIND:
        return None
    found: str = message("TransactionLogKey").decode(key).transactional_id
    return found


def value_of(standing: TransactionMetadata, cluster_version: int) -> bytes:
    flexible = cluster_version >= 1 or (standing.version >= BUMPS_EPOCH and standing.state in ENDS)
    status = STORED_STATES.index(standing.state)
    parts = [
        _start_of_value.pack(1 if flexible else 0, standing.producer_id, standing.epoch, standing.timeout_ms, status),
        _partitions(standing, flexible),
        _times.pack(standing.updated_ms, standing.started_ms),
    ]
    if flexible:
        parts.append(_tags(standing))
    return b"".join(parts)


def _partitions(standing: TransactionMetadata, flexible: bool) -> bytes:
    if standing.state is TransactionState.EMPTY:
        return b"\0" if flexible else _NO_ARRAY
    of_topic = by_topic(sorted(standing.partitions))
    parts = [writer.count(len(of_topic), flexible)]
    end = writer.NO_TAGS if flexible else b""
    for topic, numbers in of_topic.items():
        ids = struct.pack(f">{len(numbers)}i", *numbers)
        parts += (writer.string(topic, flexible), writer.count(len(numbers), flexible), ids, end)
    return b"".join(parts)


def _tags(standing: TransactionMetadata) -> bytes:
    """Fields with default values are left out."""
    found = []
    if standing.previous_id not in (NO_ID, standing.producer_id):
        found.append(_PREVIOUS_ID + _long.pack(standing.previous_id))
    if standing.next_id != NO_ID:
        found.append(_NEXT_ID + _long.pack(standing.next_id))
    if standing.version:
        found.append(_CLIENT_VERSION + _short.pack(standing.version))
    return bytes((len(found),)) + b"".join(found)


def standing_of(value: bytes) -> TransactionMetadata:
    v = message("TransactionLogValue").decode(value)
    if not 0 <= v.transaction_status < len(STORED_STATES):
        raise ValueError(f"state {v.transaction_status}")
    return TransactionMetadata(
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
