"""Reads Kafka's primitive types from a buffer, for messages that are parsed by hand.

Bounded by the buffer: anything that reaches past its end raises `MalformedRequest`. No memory is allocated by a count
that was read, and a request may have at most `MOST_ENTRIES` entries.
"""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from ballast_wire.names import uuid_of

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")

# Array elements and tags in one request. Handling this many blocks the loop for a few seconds.
MOST_ENTRIES: Final = 200_000
MOST_TEXT_BYTES: Final = 32_767  # Kafka's own limit; the length field of the older encoding allows no more
LONG_TEXT: Final = MOST_TEXT_BYTES // 4  # a longer text must be checked: replacing invalid UTF-8 may have made it grow


class MalformedRequest(ValueError):
    """The bytes do not follow the schema of the request's version."""


class Reader:
    __slots__ = ("buffer", "end", "entries", "position")

    def __init__(self, buffer: memoryview, position: int = 0) -> None:
        self.buffer = buffer
        self.position = position
        self.end = len(buffer)
        self.entries = 0

    def int8(self) -> int:
        value = self.buffer[self.position]
        self.position += 1
        return value - 256 if value > 127 else value

    def int16(self) -> int:
        (value,) = _SHORT.unpack_from(self.buffer, self.position)
        self.position += 2
        return int(value)

    def int32(self) -> int:
        (value,) = _INT.unpack_from(self.buffer, self.position)
        self.position += 4
        return int(value)

    def int64(self) -> int:
        (value,) = _LONG.unpack_from(self.buffer, self.position)
        self.position += 8
        return int(value)

    def uuid(self) -> UUID:
        return uuid_of(bytes(self.take(16)))

    def unsigned_varint(self) -> int:
        buffer, position = self.buffer, self.position
        byte = buffer[position]
        position += 1
        if byte < 0x80:
            self.position = position
            return byte
        value, shift = byte & 0x7F, 7
        while True:
            byte = buffer[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.position = position
                return value
            shift += 7
            if shift > 28:
                raise MalformedRequest("varint is too long")

    def take(self, size: int) -> memoryview:
        position = self.position
        if size < 0 or position + size > self.end:
            raise MalformedRequest("a field reaches past the end of the request")
        self.position = position + size
        return self.buffer[position : position + size]

    def string(self, compact: bool) -> str | None:
        size = self.unsigned_varint() - 1 if compact else self.int16()
        if size > MOST_TEXT_BYTES:
            raise MalformedRequest(f"a field of {size} bytes is longer than {MOST_TEXT_BYTES}")
        if size < 0:
            return None
        text = str(self.take(size), "utf-8", "replace")  # invalid UTF-8 is replaced, as in Java
        if len(text) > LONG_TEXT:
            check_text(text)
        return text

    def bytes_view(self, compact: bool) -> memoryview | None:
        size = self.unsigned_varint() - 1 if compact else self.int32()
        return None if size < 0 else self.take(size)

    def count(self, compact: bool) -> int:
        """The number of elements of an array; -1 for null. Cannot be more than the bytes left."""
        count = self.unsigned_varint() - 1 if compact else self.int32()
        if count > self.end - self.position:
            raise MalformedRequest("an array has more elements than the request has bytes")
        self._note_entries(count)
        return count

    def _note_entries(self, count: int) -> None:
        self.entries += count
        if self.entries > MOST_ENTRIES:
            raise MalformedRequest(f"the request names more than {MOST_ENTRIES} things")

    def skip_tags(self) -> None:
        if self.buffer[self.position] == 0:
            self.position += 1
            return
        for _ in range(self._tag_count()):
            self.unsigned_varint()
            self.take(self.unsigned_varint())

    def tags(self) -> list[tuple[int, memoryview]]:
        return [(self.unsigned_varint(), self.take(self.unsigned_varint())) for _ in range(self._tag_count())]

    def _tag_count(self) -> int:
        count = self.unsigned_varint()
        self._note_entries(count)
        return count


def check_text(text: str) -> None:
    """Refuse a text that could not be encoded again."""
    size = len(text.encode())
    if size > MOST_TEXT_BYTES:
        raise MalformedRequest(f"a text of {size} bytes is longer than {MOST_TEXT_BYTES}")
