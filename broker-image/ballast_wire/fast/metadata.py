"""Encodes Metadata responses by hand: for ten thousand partitions the engine would block the loop for half a second.

`encode_partition` and `encode_topic` make the bytes of one partition and of one topic with the bytes of its partitions,
so that the caller can yield to the event loop in between. PURE.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple
from uuid import UUID

from ballast_wire.fast.writer import NO_TAGS, count, string

FIRST_WITH_RACK = 1
FIRST_WITH_CLUSTER_ID = 2
FIRST_WITH_THROTTLE = 3
FIRST_WITH_OFFLINE = 5
FIRST_WITH_EPOCH = 7
FIRST_WITH_OPERATIONS = 8
FIRST_FLEXIBLE = 9
FIRST_WITH_ID = 10
FIRST_WITHOUT_CLUSTER_OPERATIONS = 11
FIRST_WITH_ERROR = 13
MOST_IN_ONE_BYTE = 126


class Partition(NamedTuple):
    error: int
    number: int
    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int]


class Broker(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


class MetadataResponse:
    """Has the part of a response's interface that the dispatcher needs."""

    def __init__(
        self,
        version: int,
        brokers: Iterable[Broker],
        cluster_id: str,
        controller_id: int,
        topics: Sequence[bytes],
        cluster_operations: int,
    ) -> None:
        self.version = version
        self.throttle_time_ms = 0
        flexible = version >= FIRST_FLEXIBLE
        head = bytearray()
        listed = list(brokers)
        head += count(len(listed), flexible)
        for each in listed:
            head += struct.pack(">i", each.node_id) + string(each.host, flexible) + struct.pack(">i", each.port)
            if version >= FIRST_WITH_RACK:
                head += string(each.rack, flexible)
            head += NO_TAGS if flexible else b""
        if version >= FIRST_WITH_CLUSTER_ID:
            head += string(cluster_id, flexible)
        if version >= FIRST_WITH_RACK:
            head += struct.pack(">i", controller_id)
        head += count(len(topics), flexible)
        tail = b""
        if FIRST_WITH_OPERATIONS <= version < FIRST_WITHOUT_CLUSTER_OPERATIONS:
            tail += struct.pack(">i", cluster_operations)
        if version >= FIRST_WITH_ERROR:
            tail += bytes(2)
        self._parts = (bytes(head), *topics, tail + (NO_TAGS if flexible else b""))

    def encode(self, version: int) -> bytes:
        if version != self.version:
            raise ValueError(f"encoded for version {self.version}, not {version}")
        throttle = struct.pack(">i", self.throttle_time_ms) if version >= FIRST_WITH_THROTTLE else b""
        return b"".join((throttle, *self._parts))

    def error_codes(self) -> Iterator[int]:
        """The topics' error codes that are not 0: the first field of each."""
        for topic in self._parts[1:-1]:
            code = int.from_bytes(topic[:2], "big", signed=True)
            if code:
                yield code


def encode_topic(
    version: int,
    *,
    error: int,
    name: str | None,
    topic_id: UUID,
    internal: bool,
    partitions: Sequence[bytes],
    operations: int,
) -> bytes:
    flexible = version >= FIRST_FLEXIBLE
    out = bytearray(struct.pack(">h", error))
    out += string(name, flexible)
    if version >= FIRST_WITH_ID:
        out += topic_id.bytes
    if version >= FIRST_WITH_RACK:
        out += b"\x01" if internal else b"\x00"
    out += count(len(partitions), flexible)
    out += b"".join(partitions)
    if version >= FIRST_WITH_OPERATIONS:
        out += struct.pack(">i", operations)
    return bytes(out + NO_TAGS if flexible else out)


def encode_partition(each: Partition, version: int) -> bytes:
    """Uses a single `pack` if the counts of replicas fit into one byte, as they nearly always do."""
    flexible = version >= FIRST_FLEXIBLE
    head = [each.error, each.number, each.leader]
    if version >= FIRST_WITH_EPOCH:
        head.append(each.leader_epoch)
    lists = [each.replicas, each.isr]
    if version >= FIRST_WITH_OFFLINE:
        lists.append(each.offline)
    if flexible and any(len(ids) > MOST_IN_ONE_BYTE for ids in lists):
        out = bytearray(struct.pack(f">h{len(head) - 1}i", *head))
        for ids in lists:
            out += count(len(ids), flexible) + struct.pack(f">{len(ids)}i", *ids)
        return bytes(out + NO_TAGS)
    more = 1 if flexible else 0
    for ids in lists:
        head.append(len(ids) + more)
        head += ids
    if flexible:
        head.append(0)
    return _layout(version >= FIRST_WITH_EPOCH, flexible, *map(len, lists)).pack(*head)


@cache
def _layout(with_epoch: bool, flexible: bool, *sizes: int) -> struct.Struct:
    number = "B" if flexible else "i"
    lists = "".join(f"{number}{size}i" for size in sizes)
    return struct.Struct(f">hii{'i' if with_epoch else ''}{lists}{'B' if flexible else ''}")
