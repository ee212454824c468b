"""Kafka's primitive types to bytes, for responses written by hand; flexible versions have compact ones. PURE."""

from __future__ import annotations

import struct

from ballast_wire.fast.reader import unsigned_varint

NO_TAGS = b"\x00"


def count(number: int, flexible: bool) -> bytes:
    return unsigned_varint(number + 1) if flexible else struct.pack(">i", number)


def string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\x00" if flexible else struct.pack(">h", -1)
    raw = text.encode()
    return (unsigned_varint(len(raw) + 1) if flexible else struct.pack(">h", len(raw))) + raw
