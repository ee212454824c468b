"""Reuses the buffers that requests are read into: fresh memory costs the kernel more than the read itself.

All connections read into one, the scratch buffer. If that ends with the beginning of a large frame, the connection
keeps the buffer until the rest has come (`adopt`), so that nothing is copied, and another one becomes the scratch
buffer. A handler must not use a frame after it returns. Bounded: at most `KEPT` free buffers of `BUFFER_BYTES` are
kept, and none of other sizes. Loop thread only.
"""

from __future__ import annotations

from typing import Final

BUFFER_BYTES: Final = 1024 * 1024  # a frame that only claims to be long costs no more memory than this
READ_BYTES: Final = 640 * 1024  # per read; the rest of the buffer is for the last, incomplete frame
WORTH_BYTES: Final = 64 * 1024  # smaller frames are cheaper to copy
KEPT: Final = 4


class FrameBuffers:
    def __init__(self, longest_read: int) -> None:
        self._free: list[bytearray] = []
        self.read_bytes = min(READ_BYTES, longest_read)
        self._buffer = bytearray(BUFFER_BYTES)
        self.scratch = memoryview(self._buffer)

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` (at most `BUFFER_BYTES`) bytes, with arbitrary content."""
        if size < WORTH_BYTES:
            return bytearray(size)
        return self._free.pop() if self._free else bytearray(BUFFER_BYTES)

    def adopt(self) -> bytearray:
        """Take over the scratch buffer with its content; others read into a new one from now on."""
        adopted, self._buffer = self._buffer, self.take(BUFFER_BYTES)
        self.scratch = memoryview(self._buffer)
        return adopted

    def give_back(self, buffer: bytearray) -> None:
        if len(buffer) == BUFFER_BYTES and len(self._free) < KEPT:
            self._free.append(buffer)
