"""Encodes and parses request and response headers; tells which message versions are flexible."""

from __future__ import annotations

import struct
from functools import cache
from typing import Final, NamedTuple

from ballast_wire.fast.reader import MalformedRequest, Reader
from ballast_wire.messages import message

API_VERSIONS_KEY: Final = 18
_START: Final = struct.Struct(">hhi")
_FRAME: Final = struct.Struct(">ii")


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    end: int  # where the body begins; in flexible versions the header's tags come first


def parse_request_header(frame: memoryview) -> RequestHeader:
    """The part common to all versions; the client id's length is 16 bits even if everything else is compact."""
    try:
        key, version, correlation_id = _START.unpack_from(frame)
        reader = Reader(frame, _START.size)
        client_id = reader.string(compact=False)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"request header: {error}") from error
    return RequestHeader(key, version, correlation_id, client_id, reader.position)


def skip_header_tags(frame: memoryview, position: int) -> int:
    reader = Reader(frame, position)
    try:
        reader.skip_tags()
    except IndexError as error:
        raise MalformedRequest("request header ends early") from error
    return reader.position


@cache
def is_flexible(request_name: str, version: int) -> bool:
    return bool(message(request_name).flexible_version_q(version))


def frame_response(api_key: int, correlation_id: int, body: bytes | bytearray, *, flexible: bool) -> bytes:
    """Length, response header, body. ApiVersions always has the old header: its reader knows no versions yet."""
    tagged = flexible and api_key != API_VERSIONS_KEY
    size = 4 + len(body) + (1 if tagged else 0)
    return _FRAME.pack(size, correlation_id) + (b"\x00" if tagged else b"") + body


def frame_request(
    api_key: int, version: int, correlation_id: int, client_id: str, body: bytes | bytearray, *, flexible: bool
) -> bytes:
    name = client_id.encode()
    head = _START.pack(api_key, version, correlation_id) + struct.pack(">h", len(name)) + name
    if flexible:
        head += b"\x00"
    return struct.pack(">i", len(head) + len(body)) + head + body
