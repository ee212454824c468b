"""Encodes and decodes messages in steps: coding thousands of entries at once would block the event loop too long.

The engine's coders are functions compiled from source that each field emits; here the same source gets a `yield` in
each loop. The result is the same, byte for byte. PURE.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cache
from typing import Any

from ballast_wire.messages import parts_of_coders

INDENT = "    "


@cache
def _stepping() -> Any:
    engine: Any = parts_of_coders()[0]

    class Stepping(engine):  # type: ignore[misc]
        def emit(self, indent: str, line: str) -> None:
            super().emit(indent, line)
            statement = line.lstrip()
            if statement.startswith("for ") and statement.endswith(":"):
                super().emit(indent + line[: len(line) - len(statement)] + INDENT, "yield")

    return Stepping


def encoding(message: Any, version: int) -> Generator[None, None, bytearray]:
    """Like `message.encode(version)`, in steps; the message must not change meanwhile."""
    out = parts_of_coders()[1]()
    kind: Any = type(message)
    yield from _encoder(kind, version)(message, out)
    result: bytearray = out.result()
    return result


def decoding(kind: Any, data: bytes, version: int) -> Generator[None, None, Any]:
    """Like `kind.decode(data, version=version)`, in steps."""
    found, _ = yield from _decoder(kind, version)(memoryview(data), 0)
    found._header = None
    return found


@cache
def _encoder(kind: Any, version: int) -> Any:
    context, flexible = _stepping()(), kind.flexible_version_q(version)
    context.lines.append("def _encode(item, out):")
    for line in ("buf = out.buf", "pos = out.pos", "_cap = len(buf)"):
        context.emit(INDENT, line)
    kind._struct.emit_encode_into(context, "item", INDENT, version=version, compact=flexible, tagged=flexible)
    context.emit(INDENT, "out.pos = pos")
    context.emit(INDENT, "yield")  # so that it is a generator even without a loop
    return _made(context, "_encode", f"{kind.__name__} {version}")


@cache
def _decoder(kind: Any, version: int) -> Any:
    context, flexible, struct = _stepping()(), kind.flexible_version_q(version), kind._struct
    context.lines.append("def _decode(data, pos):")
    held, struct._data_class = struct._data_class, kind
    try:
        struct.emit_decode_from(context, "obj", INDENT, version=version, compact=flexible, tagged=flexible)
    finally:
        struct._data_class = held
    context.emit(INDENT, "yield")
    context.emit(INDENT, "return obj, pos")
    return _made(context, "_decode", f"{kind.__name__} {version}")


def _made(context: Any, name: str, title: str) -> Any:
    exec(compile(context.source(), f"<{title} in steps>", "exec"), context.globs)
    return context.globs[name]
