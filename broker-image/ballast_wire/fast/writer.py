"""Writes Kafka's primitive types, for messages encoded by hand; flexible versions have compact ones. PURE."""

from __future__ import annotations

import struct
from typing import Final

NO_TAGS: Final = b"\x00"


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def count(number: int, flexible: bool) -> bytes:
    return unsigned_varint(number + 1) if flexible else struct.pack(">i", number)


def string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\x00" if flexible else struct.pack(">h", -1)
    raw = text.encode()
    return (unsigned_varint(len(raw) + 1) if flexible else struct.pack(">h", len(raw))) + raw
