"""Buffers for frames that did not come whole, used again: new memory costs the kernel more than what is read into it.

Whoever handles a frame is done with it when the handler returns, as with frames in the shared scratch buffer. Bounded:
`KEPT` buffers of `FRAME_STEP_BYTES`; what is longer is not kept. Loop thread only.
"""

from __future__ import annotations

FRAME_STEP_BYTES = 1024 * 1024  # a length that is only claimed costs no more memory than this
WORTH_BYTES = 64 * 1024  # less than this costs no more new than used
KEPT = 4


class FrameBuffers:
    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """At least `size` bytes (which are `FRAME_STEP_BYTES` at most), of whatever was there before."""
        if size < WORTH_BYTES:
            return bytearray(size)
        return self._free.pop() if self._free else bytearray(FRAME_STEP_BYTES)

    def give_back(self, buffer: bytearray) -> None:
        if len(buffer) == FRAME_STEP_BYTES and len(self._free) < KEPT:
            self._free.append(buffer)
