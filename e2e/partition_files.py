"""Reads a partition's folder on disk: its batches in order over the segments, and whether its indexes are right.

Read-only, and needs no broker; a folder that a broker is writing to may be read as well, up to the last whole batch.
Whatever is wrong raises `Damaged`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ballast_wire.records import BatchView, CorruptBatch, iterate_batches

PIECE_BYTES = 8 * 1024 * 1024  # larger than any batch
INDEX_ENTRY = struct.Struct(">Ii")
TIME_INDEX_ENTRY = struct.Struct(">qI")


class Damaged(Exception):
    """What is on disk is not a valid log."""


@dataclass
class Cursor:
    """How far a reader has come: segment, position in it, and the next offset."""

    segment: int = 0
    position: int = 0
    next_offset: int = 0


def segments(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def log_path(folder: Path, segment: int, suffix: str = ".log") -> Path:
    return folder / f"{segment:020d}{suffix}"


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def beginning(folder: Path) -> Cursor:
    """At the first segment, which is not at offset 0 if the start of the log has been deleted."""
    return _at_segment(folder, 0)


def end_offset(folder: Path) -> int:
    """The log end offset; reads only the last segment."""
    cursor = _at_segment(folder, -1)
    for _ in read_batches(folder, cursor, whole=False):
        pass
    return cursor.next_offset


def _at_segment(folder: Path, index: int) -> Cursor:
    there = segments(folder)
    if not there:
        raise Damaged(f"{folder} has no log")
    return Cursor(there[index], 0, there[index])


def read_batches(folder: Path, cursor: Cursor, *, whole: bool) -> Iterator[BatchView]:
    """From the cursor to the end; the cursor moves along. `whole`: nothing may follow the last batch."""
    while True:
        # Look before reading the segment: only if there already is a later one has this one stopped growing.
        later = _segments_after(folder, cursor.segment)
        for batch in _segment_batches(log_path(folder, cursor.segment), cursor.position):
            if batch.base_offset != cursor.next_offset:
                raise Damaged(
                    f"{folder.name}: offset {batch.base_offset} comes where {cursor.next_offset} is due, "
                    f"at {cursor.position} in segment {cursor.segment}"
                )
            cursor.position += batch.size_bytes
            cursor.next_offset = batch.last_offset + 1
            yield batch
        left_over = log_path(folder, cursor.segment).stat().st_size - cursor.position
        if left_over and (whole or later):
            raise Damaged(
                f"{folder.name}: {left_over} bytes after offset {cursor.next_offset - 1} in segment {cursor.segment} "
                f"are no batch"
            )
        if later:
            if later[0] != cursor.next_offset:
                raise Damaged(f"{folder.name}: segment {later[0]} comes where offset {cursor.next_offset} is due")
            cursor.segment, cursor.position = later[0], 0
        elif not _segments_after(folder, cursor.segment):
            return


def _segments_after(folder: Path, segment: int) -> list[int]:
    return [base for base in segments(folder) if base > segment]


def _segment_batches(path: Path, position: int) -> Iterator[BatchView]:
    """Whole batches with a correct CRC; ends at the first bytes that are not one."""
    with path.open("rb") as file:
        while True:
            file.seek(position)
            piece = memoryview(file.read(PIECE_BYTES))
            start = position
            try:
                for batch in iterate_batches(piece, whole=False):
                    if not batch.crc_is_right():
                        return
                    position += batch.size_bytes
                    yield batch
            except CorruptBatch:
                return
            if position == start:
                return


def check_indexes(folder: Path, *, from_segment: int = 0) -> int:
    """Every entry of both indexes must agree with the log; returns how many entries were checked.

    The index of an active segment may end in zeros, as it is preallocated. An empty segment need not have one.
    """
    seen = 0
    for segment in segments(folder):
        if segment < from_segment:
            continue
        ends: dict[int, int] = {}  # position of a batch → its last offset
        newest: dict[int, int] = {}  # last offset of a batch → newest timestamp up to it
        position, highest = 0, -1
        for batch in _segment_batches(log_path(folder, segment), 0):
            highest = max(highest, batch.header.max_timestamp)
            ends[position] = batch.last_offset
            newest[batch.last_offset] = highest
            position += batch.size_bytes
        # The indexes are read after the log, and a broker may append meanwhile: ignore entries beyond what was read.
        offsets, times = log_path(folder, segment, ".index"), log_path(folder, segment, ".timeindex")
        if ends or offsets.exists():
            seen += _check_offset_index(offsets, segment, ends, position)
        if ends or times.exists():
            seen += _check_time_index(times, segment, newest)
    return seen


def _check_offset_index(path: Path, segment: int, ends: dict[int, int], size: int) -> int:
    previous, count = -1, 0
    for relative, position in _entries(path, INDEX_ENTRY):
        if position >= size:
            break
        if ends.get(position) != segment + relative or relative <= previous:
            raise Damaged(
                f"{path.parent.name}/{path.name} says that the batch at {position} ends with offset "
                f"{segment + relative}; the log says {ends.get(position, 'that none begins there')}"
            )
        previous, count = relative, count + 1
    return count


def _check_time_index(path: Path, segment: int, newest: dict[int, int]) -> int:
    previous, count = -1, 0
    last = max(newest, default=-1)
    for timestamp, relative in _entries(path, TIME_INDEX_ENTRY):
        if segment + relative > last:
            break
        if newest.get(segment + relative) != timestamp or timestamp <= previous:
            raise Damaged(
                f"{path.parent.name}/{path.name} says that offset {segment + relative} has timestamp {timestamp}; "
                f"the newest up to it is {newest.get(segment + relative, 'unknown')}"
            )
        previous, count = timestamp, count + 1
    return count


def _entries(path: Path, entry: struct.Struct) -> Iterator[tuple[int, int]]:
    data = path.read_bytes()
    end = len(data) - len(data) % entry.size
    empty = bytes(entry.size)
    for position in range(0, end, entry.size):
        if data[position : position + entry.size] == empty:
            if any(data[position:end]):
                raise Damaged(f"{path.parent.name}/{path.name} goes on after an empty entry at {position}")
            return
        first, second = entry.unpack_from(data, position)
        yield first, second
