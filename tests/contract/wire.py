"""A minimal client: one connection, one request at a time."""

from __future__ import annotations

import socket
import struct
from typing import Any

from ballast_wire.messages import message

TIMEOUT_S = 30.0


class WireClient:
    """`call` returns the decoded response; ConnectionError if the broker closes the connection."""

    def __init__(self, host: str, port: int, own_host: str = "127.0.0.1", client_id: str = "contract") -> None:
        self._client_id = client_id
        self._socket = socket.create_connection((host, port), timeout=TIMEOUT_S, source_address=(own_host, 0))
        self._correlation_id = 0

    def close(self) -> None:
        self._socket.close()

    def call(self, request: Any, version: int) -> Any:
        self._correlation_id += 1
        request.API_VERSION = version
        request.with_header(correlation_id=self._correlation_id, client_id=self._client_id)
        self._socket.sendall(request.encode(header=True, framed=True))
        name = type(request).__name__.removesuffix("Request") + "Response"
        return self._receive(message(name), version)

    def _receive(self, kind: Any, version: int) -> Any:
        frame = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        (correlation_id,) = struct.unpack_from(">i", frame)
        if correlation_id != self._correlation_id:
            raise AssertionError(f"answer {correlation_id} to request {self._correlation_id}")
        # ApiVersions alone has the old response header in every version.
        header_size = 5 if kind.flexible_version_q(version) and kind.API_KEY != 18 else 4
        return kind.decode(frame[header_size:], version=version)

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            piece = self._socket.recv(size - len(parts))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            parts += piece
        return bytes(parts)
