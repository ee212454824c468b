"""A real broker that kills itself (SIGKILL) at the nth mutating file operation after it has begun a future log.

`BALLAST_TEST_KILL_AFTER=n python -m tests.moves.killed_broker FILE.properties`. The operation at which it dies is half
done where that is possible.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from ballast_broker import __main__
from ballast_broker.seams import Bytes
from ballast_broker.storage import disk
from ballast_broker.storage.disk import RealDisk, RealFile


class Countdown:
    """Counts operations down to the fatal one. Thread-safe."""

    def __init__(self) -> None:
        self._left = 0
        self._armed = False
        self._lock = threading.Lock()

    def begin(self, left: int) -> None:
        with self._lock:
            if not self._armed:
                self._armed, self._left = True, left

    def last(self) -> bool:
        """Whether the process ends with this operation."""
        with self._lock:
            if not self._armed:
                return False
            self._left -= 1
            return self._left < 0


COUNTDOWN = Countdown()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KillingFile(RealFile):
    def pwrite(self, data: Bytes, position: int) -> None:
        if COUNTDOWN.last():
            super().pwrite(memoryview(data)[: len(data) // 2], position)
            die()
        super().pwrite(data, position)

    def truncate(self, size: int) -> None:
        if COUNTDOWN.last():
            die()
        super().truncate(size)

    def sync(self) -> None:
        if COUNTDOWN.last():
            die()
        super().sync()


class KillingDisk(RealDisk):
    def open(self, path: str, *, create: bool = False, writable: bool = True) -> KillingFile:
        if create and not self.exists(path) and COUNTDOWN.last():
            die()
        return self._owned(super().open(path, create=create, writable=writable))

    def empty_file(self, path: str) -> KillingFile:
        return self._owned(self._change(super().empty_file, path))

    def _owned(self, real: RealFile) -> KillingFile:
        file = KillingFile(real.descriptor() or 0)
        real._descriptor = -1  # the descriptor has one owner
        return file

    def make_directory(self, path: str) -> bool:
        if path.endswith("-future"):
            COUNTDOWN.begin(int(os.environ["BALLAST_TEST_KILL_AFTER"]))
        made: bool = self._change(super().make_directory, path)
        return made

    def rename(self, old: str, new: str) -> None:
        self._change(super().rename, old, new)

    def remove(self, path: str) -> None:
        self._change(super().remove, path)

    def sync_directory(self, path: str) -> None:
        self._change(super().sync_directory, path)

    def write_atomically(self, path: str, data: bytes) -> None:
        if COUNTDOWN.last():
            with open(f"{path}.tmp", "wb") as sibling:
                sibling.write(data[: len(data) // 2])
            die()
        super().write_atomically(path, data)

    def copy_range(self, source: Any, source_position: int, target: Any, target_position: int, size: int) -> int:
        if COUNTDOWN.last():
            super().copy_range(source, source_position, target, target_position, size // 2)
            die()
        return super().copy_range(source, source_position, target, target_position, size)

    @staticmethod
    def _change(work: Any, *arguments: str) -> Any:
        if COUNTDOWN.last():
            die()
        return work(*arguments)


if __name__ == "__main__":
    disk.RealDisk = KillingDisk  # type: ignore[misc]
    sys.exit(__main__.main())
