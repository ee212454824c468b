"""Hardens the message engine's decoders against untrusted bytes.

The decoders are compiled from source that each type emits. Four emitters are replaced, since the engine's accept a
varint of any length (at a growing cost), silently truncate fields that reach past the end, allow strings longer than a
record can store, and copy the rest of the message for each entry with tags. In one respect the engine is too strict:
invalid UTF-8 is now decoded as in Java, with replacement characters, instead of being refused.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

from ballast_wire.fast.reader import LONG_TEXT, MOST_TEXT_BYTES, MalformedRequest, check_text

LAST_SHIFT = 28


def make_strict(types: Any, struct_field: Any) -> None:
    """`types` is the engine's module of codecs, `struct_field` its class of struct fields."""
    types.UnsignedVarInt32.emit_decode_from = classmethod(_emit_varint)
    types.String.emit_decode_from = _emit_text
    types.Bytes.emit_decode_from = classmethod(_emit_bytes)
    struct_field._emit_tagged_decode = _emit_tags


def _emit_varint(_type: Any, context: Any, name: str, indent: str) -> None:
    context.globs["_rest_of_varint"] = _rest_of_varint
    context.emit(indent, f"{name} = data[pos]")
    context.emit(indent, "pos += 1")
    context.emit(indent, f"if {name} > 127: {name}, pos = _rest_of_varint(data, pos, {name})")


def _rest_of_varint(data: memoryview, position: int, value: int) -> tuple[int, int]:
    value &= 0x7F
    for shift in range(7, LAST_SHIFT + 1, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedRequest("varint is too long")


def _emit_text(text: Any, context: Any, name: str, indent: str, compact: bool = False) -> None:
    made = f'str({{}}, "{text.encoding}", "replace")'
    _emit_sized(context, name, indent, ("h", 2), compact, most=MOST_TEXT_BYTES, made=made)
    context.globs["_check_text"] = check_text
    context.emit(indent, f"if {name} is not None and len({name}) > {LONG_TEXT}: _check_text({name})")


def _emit_bytes(_type: Any, context: Any, name: str, indent: str, compact: bool = False) -> None:
    _emit_sized(context, name, indent, ("i", 4), compact, most=2**31 - 1, made="bytes({})")


def _emit_sized(
    context: Any, name: str, indent: str, fixed: tuple[str, int], compact: bool, *, most: int, made: str
) -> None:
    size = context.next_var("ln")
    if compact:
        _emit_varint(None, context, size, indent)
        context.emit(indent, f"{size} -= 1")
    else:
        form, width = fixed
        context.emit(indent, f'{size} = unpack_from(">{form}", data, pos)[0]')
        context.emit(indent, f"pos += {width}")
    context.globs["_check_size"] = _check_size
    context.emit(indent, f"if {size} < 0: {name} = None")
    context.emit(indent, "else:")
    context.emit(indent, f"    if {size} > {most} or pos + {size} > len(data): _check_size({size}, {most})")
    context.emit(indent, f"    {name} = {made.format(f'data[pos:pos + {size}]')}")
    context.emit(indent, f"    pos += {size}")


def _check_size(size: int, most: int) -> None:
    too_long = f"is longer than {most}" if size > most else "reaches past the end"
    raise MalformedRequest(f"a field of {size} bytes {too_long}")


def _emit_tags(struct: Any, context: Any, name: str, indent: str, version: int) -> None:
    known = context.next_var("tf")
    context.globs[known] = struct.tagged_fields(version)
    context.globs["_read_tags"] = _read_tags
    context.emit(indent, f"pos = _read_tags(data, pos, {known}, {version}, {name})")


def _read_tags(data: memoryview, position: int, known: Any, version: int, into: Any) -> int:
    """Read tagged fields; unknown ones are skipped."""
    count, position = _varint(data, position)
    for _ in range(count):
        tag, position = _varint(data, position)
        size, position = _varint(data, position)
        end = position + size
        if end > len(data):
            _check_size(size, 2**31 - 1)
        field = known._tags.get(tag)
        if field is not None:
            value = field.decode(BytesIO(data[position:end]), version=version, compact=True, tagged=None)
            into.tags = (into.tags or set()) | {field.name}
            setattr(into, field.name, value)
        position = end
    return position


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    byte = data[position]
    return (byte, position + 1) if byte < 0x80 else _rest_of_varint(data, position + 1, byte)
