"""Reads and writes varints, zigzag (records) and unsigned (flexible messages). Overlong varints are refused."""

from __future__ import annotations

MAX_SHIFT = 63


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The value and the position after it. IndexError past the end, ValueError if it has too many bytes."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    raw, shift = byte & 0x7F, 7
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
        if shift > MAX_SHIFT:
            raise ValueError("varint is too long")


def write_varint(out: bytearray, value: int) -> None:
    raw = (value << 1) ^ (value >> 63)
    raw &= 0xFFFFFFFFFFFFFFFF
    while raw > 0x7F:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)


def read_unsigned_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """At most 32 bits; the value and the position after it. Errors as above."""
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise ValueError("varint too long")
