"""Encodes DescribeConfigs responses by hand: most topics have the same configs, which are encoded only once.

With the general engine a response for a thousand topics would block the loop for a third of a second. PURE.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from ballast_wire.fast.writer import NO_TAGS, count, string
from ballast_wire.messages import message

FIRST_FLEXIBLE = 4


class DescribeConfigsResponse:
    """Has the part of a response's interface that the dispatcher needs."""

    def __init__(self, version: int, results: Sequence[bytes]) -> None:
        self.version = version
        flexible = version >= FIRST_FLEXIBLE
        self._results = results
        self.throttle_time_ms = 0
        self._head = count(len(results), flexible)
        self._tail = NO_TAGS if flexible else b""

    def encode(self, version: int) -> bytes:
        if version != self.version:
            raise ValueError(f"encoded for version {self.version}, not {version}")
        return b"".join((struct.pack(">i", self.throttle_time_ms), self._head, *self._results, self._tail))

    def error_codes(self) -> Iterator[int]:
        """The error codes that are not 0: each result begins with its code."""
        return (code for each in self._results if (code := int.from_bytes(each[:2], "big", signed=True)))


def encode_result(
    version: int, *, error: int, text: str | None, resource_type: int, resource_name: str, configs: bytes
) -> bytes:
    """`configs` comes from `encode_configs`."""
    flexible = version >= FIRST_FLEXIBLE
    head = struct.pack(">h", error) + string(text, flexible)
    head += struct.pack(">b", resource_type) + string(resource_name, flexible)
    return head + configs + (NO_TAGS if flexible else b"")


def encode_configs(version: int, configs: list[Any]) -> bytes:
    """The bytes of the configs in a result: encodes a response with only these by the engine, and cuts them out."""
    kind = message("DescribeConfigsResponse")
    around = encode_result(version, error=0, text="", resource_type=0, resource_name="", configs=b"")
    tags = 1 if version >= FIRST_FLEXIBLE else 0
    start = len(DescribeConfigsResponse(version, [around]).encode(version)) - 2 * tags
    alone = kind.DescribeConfigsResult(
        version=version, error_code=0, error_message="", resource_type=0, resource_name="", configs=configs
    )
    encoded = bytes(kind(version=version, results=[alone]).encode(version=version))
    return encoded[start : len(encoded) - 2 * tags]
