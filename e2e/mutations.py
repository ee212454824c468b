"""Makes requests and record batches that are wrong in ways that a bug, or malice, might make them.

All randomness comes from one seeded generator. PURE but for that.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

from crc32c import crc32c

from ballast_broker.api.registry import BROKER_APIS
from ballast_wire.compression import compress
from ballast_wire.headers import frame_request, is_flexible
from ballast_wire.messages import message
from ballast_wire.records import CRC_FROM, CRC_POSITION, HEADER_BYTES, LOG_OVERHEAD, Record, encode_batch

# A mutation of these may be a valid request that removes the broker from its cluster, or deletes the topics.
LEFT_OUT = frozenset({"UnregisterBroker", "DeleteTopics"})
LIES = (
    b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x00\x00", b"\x7f\xff", b"\xff\xff",
    b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x7f" + b"\xff" * 7, b"\xff" * 8, b"\x00",
)  # fmt: skip
PRODUCE_VERSIONS = (3, 7, 8, 9, 11)
CODECS = range(5)
BATCHES_PER_FRAME = 2
WITHOUT_ANSWER = 0.02  # with acks=0 a refused produce request closes its connection
RIGHT_LENGTH = 0.9
RIGHT_CRC = 0.6
HEADER_POSITIONS = (0, 8, 12, 16, 17, 21, 23, 27, 35, 43, 51, 53, 57)


class Mutator:
    """`topics` are those that mutated requests name."""

    def __init__(self, seed: int, topics: list[str]) -> None:
        self._dice = random.Random(seed)
        self._topics = topics
        self._frames = [*_empty_frames(), *_full_frames(topics)]
        self._batches = list(_batches())

    def frames(self) -> list[bytes]:
        """For one connection: valid requests with corrupt batches, and last a frame that may end the connection."""
        return [*(self._produce() for _ in range(BATCHES_PER_FRAME)), self._frame()]

    def _frame(self) -> bytes:
        """A mutated frame, whole or with a wrong length."""
        dice = self._dice
        data = self._mutated(dice.choice(self._frames), first=4)
        if dice.random() < RIGHT_LENGTH:
            data[:4] = struct.pack(">i", len(data) - 4)
        return bytes(data)

    def _produce(self) -> bytes:
        dice = self._dice
        version = dice.choice(PRODUCE_VERSIONS)
        acks = 0 if dice.random() < WITHOUT_ANSWER else dice.choice((-1, 1))
        return produce_frame(version, dice.choice(self._topics), self._batch(), acks=acks)

    def _batch(self) -> bytes:
        dice = self._dice
        data = bytearray(dice.choice(self._batches))
        for _ in range(dice.randint(0, 3)):
            position, lie = dice.choice(HEADER_POSITIONS), dice.choice(LIES)
            data[position : position + len(lie)] = lie
        if dice.random() < 0.5:
            data = self._mutated(data, first=HEADER_BYTES)
        if len(data) >= HEADER_BYTES:
            if dice.random() < RIGHT_LENGTH:
                struct.pack_into(">i", data, 8, len(data) - LOG_OVERHEAD)
                data[16] = 2
            if dice.random() < RIGHT_CRC:
                struct.pack_into(">I", data, CRC_POSITION, crc32c(bytes(data[CRC_FROM:])))
        return bytes(data)

    def _mutated(self, sound: bytes | bytearray, first: int) -> bytearray:
        """A few bytes changed, removed, inserted or doubled; now and then the rest comes from another frame."""
        dice, data = self._dice, bytearray(sound)
        for _ in range(dice.randint(1, 4)):
            position = dice.randrange(first, len(data)) if len(data) > first else len(data)
            what = dice.random()
            if what < 0.3 and position < len(data):
                data[position] = dice.randrange(256)
            elif what < 0.45 and position < len(data):
                data[position] ^= 1 << dice.randrange(8)
            elif what < 0.6:
                del data[position : position + dice.randint(1, 8)]
            elif what < 0.8:
                lie = dice.choice(LIES)
                data[position : position + len(lie)] = lie
            elif what < 0.9:
                data[position:position] = dice.choice((*LIES, dice.randbytes(9)))
            elif what < 0.95:
                data[position:position] = data[position : position + dice.randint(1, 200)]
            else:
                data[position:] = dice.choice(self._frames)[position:]
        return data


def produce_frame(version: int, topic: str, batch: bytes, *, acks: int) -> bytes:
    kind = message("ProduceRequest")
    partition = kind.TopicProduceData.PartitionProduceData(index=0, records=batch)
    data = [kind.TopicProduceData(name=topic, partition_data=[partition])]
    return _frame("Produce", version, transactional_id=None, acks=acks, timeout_ms=1000, topic_data=data)


def _frame(name: str, version: int, **fields: Any) -> bytes:
    kind = message(name + "Request")
    body = kind(version=version, **fields).encode(version=version)
    flexible = is_flexible(name + "Request", version)
    return frame_request(kind.API_KEY, version, 7, "soak", bytes(body), flexible=flexible)


def _empty_frames() -> Iterator[bytes]:
    """Every API and version, as empty as the schema allows."""
    for api in BROKER_APIS.values():
        if api.name not in LEFT_OUT:
            for version in range(max(api.lowest, 0), api.highest + 1):
                yield _frame(api.name, version)


def _full_frames(topics: list[str]) -> Iterator[bytes]:
    """The most common requests, with content; one version each, so that none weighs more for having more."""
    asked = message("MetadataRequest").MetadataRequestTopic
    listed = message("ListOffsetsRequest").ListOffsetsTopic
    fetched = message("FetchRequest").FetchTopic
    committed = message("OffsetCommitRequest").OffsetCommitRequestTopic
    protocol = message("JoinGroupRequest").JoinGroupRequestProtocol
    deleted = message("DeleteRecordsRequest").DeleteRecordsTopic
    made = message("CreateTopicsRequest").CreatableTopic
    for topic in topics:
        yield _frame("Metadata", 12, topics=[asked(name=topic, topic_id=None)], allow_auto_topic_creation=False)
        offsets = listed.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
        yield _frame("ListOffsets", 7, replica_id=-1, topics=[listed(name=topic, partitions=[offsets])])
        wanted = fetched.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 16)
        yield _frame(
            "Fetch",
            11,
            max_wait_ms=10,
            min_bytes=0,
            max_bytes=1 << 16,
            topics=[fetched(topic=topic, partitions=[wanted])],
        )
        offset = committed.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="m")
        yield _frame("OffsetCommit", 8, group_id="g", topics=[committed(name=topic, partitions=[offset])])
        yield _frame(
            "DeleteRecords", 2, timeout_ms=100,
            topics=[deleted(name=topic, partitions=[deleted.DeleteRecordsPartition(partition_index=0, offset=0)])],
        )  # fmt: skip
    join = {"protocol_type": "consumer", "protocols": [protocol(name="range", metadata=b"\x00\x01")]}
    yield _frame("JoinGroup", 5, group_id="g", session_timeout_ms=6000, rebalance_timeout_ms=100, member_id="", **join)
    yield _frame("FindCoordinator", 4, key_type=0, coordinator_keys=["g", "h"])
    yield _frame("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000)
    new = made(name="new", num_partitions=1, replication_factor=1)
    yield _frame("CreateTopics", 7, topics=[new], timeout_ms=100, validate_only=True)


def _batches() -> Iterator[bytes]:
    records = [Record(b"key %d" % n, b"value " * 20, 1_700_000_000_000 + n) for n in range(5)]
    for count in (1, 5):
        sound = encode_batch(records[:count])
        yield bytes(sound)
        yield bytes(encode_batch(records[:count], producer_id=7, producer_epoch=0, base_sequence=0))
        for codec in CODECS[1:]:
            yield _compressed(sound, codec)


def _compressed(sound: bytes | bytearray, codec: int) -> bytes:
    data = bytearray(sound[:HEADER_BYTES]) + compress(codec, bytes(sound[HEADER_BYTES:]))
    struct.pack_into(">i", data, 8, len(data) - LOG_OVERHEAD)
    struct.pack_into(">h", data, CRC_FROM, codec)
    struct.pack_into(">I", data, CRC_POSITION, crc32c(bytes(data[CRC_FROM:])))
    return bytes(data)
