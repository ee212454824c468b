"""Encodes and decodes metadata records: Kafka's framing around Kafka's record schemas. PURE.

A record's value is: frame version, API key and message version as unsigned varints, then the message. Unknown keys or
versions are errors: a node that cannot read a record must not continue as if it had.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any
from uuid import UUID

from ballast_broker.metadata.partition_records import BY_HAND
from ballast_wire.fast.writer import unsigned_varint
from ballast_wire.messages import message
from ballast_wire.names import ZERO_UUID
from ballast_wire.varint import read_unsigned_varint

FRAME_VERSION = 1

RECORD_NAMES: dict[int, str] = {
    0: "RegisterBrokerRecord",
    1: "UnregisterBrokerRecord",
    2: "TopicRecord",
    3: "PartitionRecord",
    4: "ConfigRecord",
    5: "PartitionChangeRecord",
    7: "FenceBrokerRecord",
    8: "UnfenceBrokerRecord",
    9: "RemoveTopicRecord",
    10: "DelegationTokenRecord",
    11: "UserScramCredentialRecord",
    12: "FeatureLevelRecord",
    14: "ClientQuotaRecord",
    15: "ProducerIdsRecord",
    17: "BrokerRegistrationChangeRecord",
    18: "AccessControlEntryRecord",
    19: "RemoveAccessControlEntryRecord",
    20: "NoOpRecord",
    22: "RemoveUserScramCredentialRecord",
    23: "BeginTransactionRecord",
    24: "EndTransactionRecord",
    25: "AbortTransactionRecord",
    26: "RemoveDelegationTokenRecord",
    27: "RegisterControllerRecord",
    28: "ClearElrRecord",
}
API_KEYS = {name: key for key, name in RECORD_NAMES.items()}
# The version in which each record is written; if not 0, that of metadata.version 4.1.
WRITTEN_VERSIONS = {
    "RegisterBrokerRecord": 3,
    "PartitionRecord": 2,
    "PartitionChangeRecord": 2,
    "BrokerRegistrationChangeRecord": 2,
}


class MalformedRecord(ValueError):
    """A metadata record that this release cannot read or apply."""


class EmptyRecord:
    """A record without fields, which the message engine cannot represent."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self).__name__)


class NoOpRecord(EmptyRecord):
    pass


class EndTransactionRecord(EmptyRecord):
    pass


EMPTY_RECORDS: dict[str, type[EmptyRecord]] = {
    "NoOpRecord": NoOpRecord,
    "EndTransactionRecord": EndTransactionRecord,
}


def record(kind: str, /, **fields: Any) -> Any:
    """A metadata record by its Kafka name, in the version written; omitted fields get their defaults."""
    if kind in BY_HAND:
        return BY_HAND[kind](**fields)
    if kind in EMPTY_RECORDS:
        return EMPTY_RECORDS[kind]()
    return message(kind)(version=WRITTEN_VERSIONS.get(kind, 0), **fields)


def name_of(metadata_record: Any) -> str:
    return type(metadata_record).__name__


def known_id(value: UUID | None) -> UUID:
    """The message engine decodes the zero id as None; in images an id is never None."""
    return ZERO_UUID if value is None else value


@cache
def _encoder(name: str, version: int) -> Any:
    kind = message(name)
    if not kind.valid_versions[0] <= version <= kind.valid_versions[1]:
        raise MalformedRecord(f"{name} has no version {version}")
    return kind._struct


@cache
def _decoder(name: str, version: int) -> Any:
    structure = _encoder(name, version)
    return structure.compiled_decode_from(version, compact=True, tagged=True, data_class=message(name))


def encode_record(metadata_record: Any) -> bytes:
    name = name_of(metadata_record)
    if name in BY_HAND:
        head = bytes((FRAME_VERSION, API_KEYS[name], WRITTEN_VERSIONS[name]))
        by_hand: bytes = head + metadata_record.encode()
        return by_hand
    if name in EMPTY_RECORDS:
        return unsigned_varint(FRAME_VERSION) + unsigned_varint(API_KEYS[name]) + b"\x00\x00"
    version = WRITTEN_VERSIONS.get(name, 0) if metadata_record.version is None else metadata_record.version
    if name == "BrokerRegistrationChangeRecord":
        version = _registration_change_version(metadata_record)
    body: bytes = _encoder(name, version).encode(metadata_record, version=version, compact=True, tagged=True)
    return unsigned_varint(FRAME_VERSION) + unsigned_varint(API_KEYS[name]) + unsigned_varint(version) + body


def _registration_change_version(change: Any) -> int:
    """As Kafka, write the lowest version that can represent the change."""
    if change.log_dirs:
        return 2
    return 1 if change.in_controlled_shutdown else 0


def decode_record(value: bytes | memoryview) -> Any:
    data = bytes(value)
    try:
        frame, position = read_unsigned_varint(data, 0)
        key, position = read_unsigned_varint(data, position)
        version, position = read_unsigned_varint(data, position)
        if frame != FRAME_VERSION:
            raise MalformedRecord(f"unknown frame version {frame}")
        name = RECORD_NAMES.get(key)
        if name is None:
            raise MalformedRecord(f"unknown metadata record {key}")
        if name in BY_HAND:
            return _decode_by_hand(name, data, position, version)
        if name in EMPTY_RECORDS:
            return EMPTY_RECORDS[name]()
        decoded, _ = _decoder(name, version)(memoryview(data)[position:], 0)
        return decoded
    except (IndexError, ValueError, struct.error) as error:
        if isinstance(error, MalformedRecord):
            raise
        raise MalformedRecord(f"cannot read metadata record: {error}") from error


def _decode_by_hand(name: str, data: bytes, position: int, version: int) -> Any:
    if version > WRITTEN_VERSIONS[name]:
        raise MalformedRecord(f"{name} has no version {version}")
    return BY_HAND[name].decode(data, position, version)
