"""Encodes and decodes transaction markers and the entries of `.txnindex` files. PURE.

A marker is a control batch of one record; an aborted transaction is an entry of a segment's `.txnindex`, in Kafka's
format (version 0). An entry belongs to the segment that has the marker, so entries ascend by their last offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ballast_broker.storage.errors import CorruptFile
from ballast_wire.records import BatchView, CorruptBatch, Record, decode_records, encode_batch

ABORT = 0
COMMIT = 1
_KEY = struct.Struct(">hh")  # version, type
_VALUE = struct.Struct(">hi")  # version, coordinator epoch
_VERSION = 0
_INDEX_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
_LAST_OFFSET_POSITION = 18
_offset_at = struct.Struct(">q").unpack_from


class Marker(NamedTuple):
    committed: bool
    coordinator_epoch: int


class EndedTransaction(NamedTuple):
    """`last_offset` is the marker's; `last_stable_offset` is what was stable once it had ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    aborted: bool = True


def render_marker(
    producer_id: int, producer_epoch: int, coordinator_epoch: int, *, committed: bool, now_ms: int
) -> bytearray:
    """The control batch that ends a producer's transaction."""
    key = _KEY.pack(_VERSION, COMMIT if committed else ABORT)
    record = Record(key, _VALUE.pack(_VERSION, coordinator_epoch), now_ms)
    return encode_batch(
        [record], control=True, transactional=True, producer_id=producer_id, producer_epoch=producer_epoch
    )


def read_marker(batch: memoryview) -> Marker | None:
    """None for a control batch that the cleaner has emptied, or that does not end a transaction."""
    try:
        for record in decode_records(BatchView(batch)):
            if record.key is None or len(record.key) < _KEY.size:
                return None
            kind = _KEY.unpack_from(record.key)[1]
            if kind not in (ABORT, COMMIT) or record.value is None or len(record.value) < _VALUE.size:
                return None
            return Marker(kind == COMMIT, _VALUE.unpack_from(record.value)[1])
    except CorruptBatch:
        return None
    return None


# The entries of a `.txnindex`


def render_entries(entries: Iterable[EndedTransaction]) -> bytes:
    return b"".join([_ENTRY.pack(_INDEX_VERSION, *entry[:4]) for entry in entries])


def parse_entries(data: bytes | bytearray) -> Iterator[EndedTransaction]:
    for _, *fields in _ENTRY.iter_unpack(data):
        yield EndedTransaction(*fields)


def check_entries(data: bytes | bytearray, base_offset: int) -> None:
    """Raise `CorruptFile` for impossible entries."""
    if len(data) % ENTRY_BYTES:
        raise CorruptFile("a transaction index is cut")
    before = base_offset - 1
    for version, _, first, last, _ in _ENTRY.iter_unpack(data):
        if version != _INDEX_VERSION or first > last or last <= before:
            raise CorruptFile("a transaction index has a wrong entry")
        before = last


def entries_before(data: bytes | bytearray, offset: int) -> int:
    """Size in bytes of the entries whose markers lie before `offset`."""
    low, high = 0, len(data) // ENTRY_BYTES
    while low < high:
        middle = (low + high) // 2
        if _offset_at(data, middle * ENTRY_BYTES + _LAST_OFFSET_POSITION)[0] < offset:
            low = middle + 1
        else:
            high = middle
    return low * ENTRY_BYTES


class CleanedTransactions:
    """Tracks, while a log is cleaned from its beginning, which transactions still have records.

    `aborted`: all that have records in the part that is read. Given every batch in order it tells what may be removed,
    and collects in `index` the entries for the cleaned segment's transaction index.
    """

    __slots__ = ("_aborted", "_committed", "_going_on", "_seen", "index")

    def __init__(self, aborted: Iterable[EndedTransaction]) -> None:
        self._aborted = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._going_on: dict[int, EndedTransaction] = {}
        self._seen: set[int] = set()  # producers whose current aborted transaction still has records
        self._committed: set[int] = set()
        self.index: list[EndedTransaction] = []

    def _reach(self, offset: int) -> None:
        while self._aborted and self._aborted[-1].first_offset <= offset:
            entry = self._aborted.pop()
            self._going_on.setdefault(entry.producer_id, entry)

    def is_aborted(self, batch: BatchView) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        self._reach(batch.last_offset)
        if not batch.is_transactional:
            return False
        producer_id = batch.header.producer_id
        if producer_id in self._going_on:
            self._seen.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def ends_nothing(self, batch: BatchView) -> bool:
        """Whether the transaction of this control batch had no records left before this cleaning."""
        self._reach(batch.last_offset)
        if not batch.header.record_count:
            return True  # emptied before
        marker, producer_id = read_marker(batch.bytes_view), batch.header.producer_id
        if marker is None:
            return False
        if marker.committed:
            had_records = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_records
        entry, had_records = self._going_on.pop(producer_id, None), producer_id in self._seen
        self._seen.discard(producer_id)
        if entry is None or not had_records:
            return True
        self.index.append(entry)
        return False


def select(data: bytes | bytearray, offset: int, upper_offset: int, found: list[EndedTransaction]) -> bool:
    """Add those with records in [offset, upper_offset) to `found`; True if later segments have no more."""
    start = entries_before(data, offset)
    for _, *fields in _ENTRY.iter_unpack(memoryview(data)[start:]):
        entry = EndedTransaction(*fields)
        if entry.first_offset < upper_offset:
            found.append(entry)
        if entry.last_stable_offset >= upper_offset:
            return True
    return False
