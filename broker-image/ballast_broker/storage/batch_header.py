"""Walks over the batches of a file by their headers alone, without decoding records.

PURE but for the file it is given. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ballast_broker.seams import File
from ballast_wire.records import HEADER, HEADER_BYTES, LOG_OVERHEAD, MAGIC, Header

MINIMUM_LENGTH: Final = HEADER_BYTES - LOG_OVERHEAD
READ_AHEAD: Final = 1 << 15
_new_tuple: Final = tuple.__new__  # half the price of `Header._make`


def header_at(file: File, position: int, end: int) -> Header | None:
    """The header of the batch at `position`; None if there is no whole batch that ends by `end`."""
    if position + HEADER_BYTES > end:
        return None
    data = file.pread(HEADER_BYTES, position)
    if len(data) < HEADER_BYTES:
        return None
    header = _new_tuple(Header, HEADER.unpack(data))
    whole = header.magic == MAGIC and header.length >= MINIMUM_LENGTH and position + header.length + LOG_OVERHEAD <= end
    return header if whole else None


def walk(file: File, position: int, end: int, ahead: int = HEADER_BYTES) -> Iterator[tuple[int, Header]]:
    """Position and header of every batch in [position, end). Stops early where no whole batch follows.

    `ahead` is the length of the first read: more than a header where short batches are expected.
    """
    chunk, chunk_start = b"", position
    while position + HEADER_BYTES <= end:
        inside = position - chunk_start
        if inside + HEADER_BYTES > len(chunk):
            chunk, chunk_start, inside = file.pread(min(ahead, end - position), position), position, 0
            if len(chunk) < HEADER_BYTES:
                return
        header = _new_tuple(Header, HEADER.unpack_from(chunk, inside))
        size = header.length + LOG_OVERHEAD
        if header.magic != MAGIC or header.length < MINIMUM_LENGTH or position + size > end:
            return
        yield position, header
        position += size
        ahead = READ_AHEAD if size < READ_AHEAD // 4 else HEADER_BYTES
