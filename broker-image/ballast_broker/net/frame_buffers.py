"""Buffers that requests come into, used again: new memory costs the kernel more than what is read into it.

All connections read into one, the scratch buffer. Where it ends with the beginning of a large frame, the connection
keeps that buffer until the rest has come (`adopt`), so that nothing is copied, and the next scratch buffer is another.
Whoever handles a frame is done with it when the handler returns. Bounded: `KEPT` buffers of `BUFFER_BYTES` are free at
most; what is of another length is not kept. Loop thread only.
"""

from __future__ import annotations

from typing import Final

BUFFER_BYTES: Final = 1024 * 1024  # a length that is only claimed costs no more memory than this
READ_BYTES: Final = 640 * 1024  # of one read; what is left of the buffer is for the frame that comes last in it
WORTH_BYTES: Final = 64 * 1024  # less than this costs no more to copy than to keep
KEPT: Final = 4


class FrameBuffers:
    def __init__(self, longest_read: int) -> None:
        self._free: list[bytearray] = []
        self.read_bytes = min(READ_BYTES, longest_read)
        self._buffer = bytearray(BUFFER_BYTES)
        self.scratch = memoryview(self._buffer)

    def take(self, size: int) -> bytearray:
        """At least `size` bytes (which are `BUFFER_BYTES` at most), of whatever was there before."""
        if size < WORTH_BYTES:
            return bytearray(size)
        return self._free.pop() if self._free else bytearray(BUFFER_BYTES)

    def adopt(self) -> bytearray:
        """What is in the scratch buffer stays where it is; others read into another one from now on."""
        adopted, self._buffer = self._buffer, self.take(BUFFER_BYTES)
        self.scratch = memoryview(self._buffer)
        return adopted

    def give_back(self, buffer: bytearray) -> None:
        if len(buffer) == BUFFER_BYTES and len(self._free) < KEPT:
            self._free.append(buffer)
