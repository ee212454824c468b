"""Sends one request to one broker, over a new connection: in these runs brokers come and go. Blocking."""

from __future__ import annotations

import socket
import struct
from typing import Any

TIMEOUT_S = 45.0  # a broker whose disk fails, on a machine that stalls, still answers
CLIENT = "e2e"


def message(name: str) -> Any:
    """The class of a request or response; imported lazily, since those who only start brokers need none."""
    from ballast_wire.messages import message as found

    return found(name)


def ask(address: str, request: Any, version: int, timeout_s: float = TIMEOUT_S) -> Any:
    """The response. Raises OSError if the broker is not there, or hangs up."""
    from ballast_wire.headers import frame_request, is_flexible

    name = type(request).__name__
    flexible = is_flexible(name, version)
    frame = frame_request(request.API_KEY, version, 1, CLIENT, request.encode(version=version), flexible=flexible)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        connection.settimeout(timeout_s)
        connection.sendall(frame)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", _exactly(stream, 4))
            answer = _exactly(stream, size)
    return message(name.removesuffix("Request") + "Response").decode(answer[5 if flexible else 4 :], version=version)


def _exactly(stream: Any, size: int) -> bytes:
    data: bytes = stream.read(size)
    if len(data) != size:
        raise ConnectionError("the broker hung up")
    return data
