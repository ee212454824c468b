"""Hand-written codecs of PartitionRecord and PartitionChangeRecord: losing a broker writes tens of thousands. PURE.

Field names are those of the message engine, bytes are Kafka's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from ballast_wire.fast.writer import unsigned_varint
from ballast_wire.names import ZERO_UUID
from ballast_wire.varint import read_unsigned_varint

Ints = Sequence[int]
LEADER_UNCHANGED = -2
RECOVERY_STATE_UNCHANGED = -1

_ID = struct.Struct(">i16s")
_LEADER = struct.Struct(">iii")
_INT = struct.Struct(">i")


@dataclass(slots=True)
class PartitionRecord:
    partition_id: int = -1
    topic_id: UUID = ZERO_UUID
    replicas: Ints = ()
    isr: Ints = ()
    removing_replicas: Ints = ()
    adding_replicas: Ints = ()
    leader: int = -1
    leader_recovery_state: int = 0
    leader_epoch: int = -1
    partition_epoch: int = -1
    directories: Sequence[UUID] = ()
    eligible_leader_replicas: Ints | None = None
    last_known_elr: Ints | None = None
    version: int = 2

    def encode(self) -> bytes:
        out = bytearray(_ID.pack(self.partition_id, self.topic_id.bytes))
        for values in (self.replicas, self.isr, self.removing_replicas, self.adding_replicas):
            out += _ints(values)
        out += _LEADER.pack(self.leader, self.leader_epoch, self.partition_epoch)
        out += _ids(self.directories)
        tags: list[tuple[int, bytes]] = []
        if self.leader_recovery_state:
            tags.append((0, bytes((self.leader_recovery_state & 0xFF,))))
        if self.eligible_leader_replicas is not None:
            tags.append((1, _ints(self.eligible_leader_replicas)))
        if self.last_known_elr is not None:
            tags.append((2, _ints(self.last_known_elr)))
        _put_tags(out, tags)
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes, position: int, version: int) -> PartitionRecord:
        partition_id, topic_id = _ID.unpack_from(data, position)
        position += _ID.size
        replicas, position = _read_ints(data, position)
        isr, position = _read_ints(data, position)
        removing, position = _read_ints(data, position)
        adding, position = _read_ints(data, position)
        leader, leader_epoch, partition_epoch = _LEADER.unpack_from(data, position)
        position += _LEADER.size
        directories: Sequence[UUID] = ()
        if version >= 1:
            directories, position = _read_ids(data, position)
        recovery, elr, last_known = 0, None, None
        for tag, start in _read_tags(data, position):
            if tag == 0:
                recovery = _signed_byte(data[start])
            elif tag == 1:
                elr = _read_ints(data, start)[0]
            elif tag == 2:
                last_known = _read_ints(data, start)[0]
        return cls(
            partition_id,
            _id(topic_id),
            replicas,
            isr,
            removing,
            adding,
            leader,
            recovery,
            leader_epoch,
            partition_epoch,
            directories,
            elr,
            last_known,
            version,
        )


@dataclass(slots=True)
class PartitionChangeRecord:
    """None (or -2 for the leader, -1 for the recovery state) leaves a field as it is."""

    partition_id: int = -1
    topic_id: UUID = ZERO_UUID
    isr: Ints | None = None
    leader: int = LEADER_UNCHANGED
    replicas: Ints | None = None
    removing_replicas: Ints | None = None
    adding_replicas: Ints | None = None
    leader_recovery_state: int = RECOVERY_STATE_UNCHANGED
    eligible_leader_replicas: Ints | None = None
    last_known_elr: Ints | None = None
    directories: Sequence[UUID] | None = None
    version: int = 2

    def encode(self) -> bytes:
        out = bytearray(_ID.pack(self.partition_id, self.topic_id.bytes))
        tags: list[tuple[int, bytes]] = []
        if self.isr is not None:
            tags.append((0, _ints(self.isr)))
        if self.leader != LEADER_UNCHANGED:
            tags.append((1, _INT.pack(self.leader)))
        for tag, values in ((2, self.replicas), (3, self.removing_replicas), (4, self.adding_replicas)):
            if values is not None:
                tags.append((tag, _ints(values)))
        if self.leader_recovery_state != RECOVERY_STATE_UNCHANGED:
            tags.append((5, bytes((self.leader_recovery_state & 0xFF,))))
        for tag, values in ((6, self.eligible_leader_replicas), (7, self.last_known_elr)):
            if values is not None:
                tags.append((tag, _ints(values)))
        if self.directories is not None:
            tags.append((8, _ids(self.directories)))
        _put_tags(out, tags)
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes, position: int, version: int) -> PartitionChangeRecord:
        partition_id, topic_id = _ID.unpack_from(data, position)
        change = cls(partition_id, _id(topic_id), version=version)
        for tag, start in _read_tags(data, position + _ID.size):
            if tag == 1:
                change.leader = _INT.unpack_from(data, start)[0]
            elif tag == 5:
                change.leader_recovery_state = _signed_byte(data[start])
            elif tag == 8:
                change.directories = _read_ids(data, start)[0]
            elif tag in _CHANGED_INTS:
                setattr(change, _CHANGED_INTS[tag], _read_ints(data, start)[0])
        return change


_CHANGED_INTS = {
    0: "isr",
    2: "replicas",
    3: "removing_replicas",
    4: "adding_replicas",
    6: "eligible_leader_replicas",
    7: "last_known_elr",
}
BY_HAND: dict[str, type[PartitionRecord] | type[PartitionChangeRecord]] = {
    "PartitionRecord": PartitionRecord,
    "PartitionChangeRecord": PartitionChangeRecord,
}


@lru_cache(maxsize=65_536)
def _id(data: bytes) -> UUID:
    """Intern ids: directories repeat in every partition, topic ids in all their partitions."""
    return UUID(bytes=data)


@lru_cache(maxsize=65_536)
def _ints_of(data: bytes) -> tuple[int, ...]:
    """Intern equal lists: 100,000 partitions have few distinct ones."""
    return struct.unpack(f">{len(data) // 4}i", data)


@lru_cache(maxsize=65_536)
def _ids_of(data: bytes) -> tuple[UUID, ...]:
    """Intern directory lists: partitions whose replicas are in the same directories share one."""
    return tuple([_id(data[at : at + 16]) for at in range(0, len(data), 16)])


def _signed_byte(value: int) -> int:
    return value - 256 if value > 127 else value


def _length(count: int) -> bytes:
    return bytes((count,)) if count < 0x80 else unsigned_varint(count)


def _ints(values: Ints) -> bytes:
    count = len(values)
    return _length(count + 1) + struct.pack(f">{count}i", *values)


def _ids(values: Sequence[UUID]) -> bytes:
    return _length(len(values) + 1) + b"".join([value.bytes for value in values])


def _put_tags(out: bytearray, tags: list[tuple[int, bytes]]) -> None:
    out.append(len(tags))
    for tag, data in tags:
        out.append(tag)
        out += _length(len(data))
        out += data


def _read_ints(data: bytes, position: int) -> tuple[Ints, int]:
    count, position = read_unsigned_varint(data, position)
    if count <= 1:
        return (), position
    end = position + 4 * (count - 1)
    if end > len(data):
        raise ValueError("array reaches past its record")
    return _ints_of(data[position:end]), end


def _read_ids(data: bytes, position: int) -> tuple[Sequence[UUID], int]:
    count, position = read_unsigned_varint(data, position)
    end = position + 16 * max(0, count - 1)
    if end > len(data):
        raise ValueError("array reaches past its record")
    return _ids_of(data[position:end]), end


def _read_tags(data: bytes, position: int) -> list[tuple[int, int]]:
    """Each tag with the position of its value; unknown tags are included, for the caller to ignore."""
    count, position = read_unsigned_varint(data, position)
    found = []
    for _ in range(count):
        tag, position = read_unsigned_varint(data, position)
        size, position = read_unsigned_varint(data, position)
        found.append((tag, position))
        position += size
        if position > len(data):
            raise ValueError("tagged field reaches past its record")
    return found
