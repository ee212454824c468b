"""A disk that stops for good at the nth mutating operation, as if the process were killed there.

Completed writes persist (the page cache outlives the process). The operation at which it stops is half done where that
is possible: half of a write, half of a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ballast_broker.seams import Bytes, DiskUsage
from ballast_broker.storage.disk import RealDisk, RealFile


class Killed(Exception):
    """Not an OSError, so that no code handles it."""


class StoppingFile:
    def __init__(self, disk: StoppingDisk, file: RealFile) -> None:
        self._disk = disk
        self.file = file

    def pread(self, size: int, position: int) -> bytes:
        self._disk.check()
        return self.file.pread(size, position)

    def pwrite(self, data: Bytes, position: int) -> None:
        half = memoryview(data)[: len(data) // 2]
        self._disk.change(
            f"write of {len(data)} bytes",
            lambda: self.file.pwrite(data, position),
            by_half=lambda: self.file.pwrite(half, position),
        )

    def size(self) -> int:
        self._disk.check()
        return self.file.size()

    def truncate(self, size: int) -> None:
        self._disk.change("truncate", lambda: self.file.truncate(size))

    def sync(self) -> None:
        self._disk.change("sync", self.file.sync)

    def descriptor(self) -> int | None:
        return self.file.descriptor()

    def close(self) -> None:
        self.file.close()


class StoppingDisk(RealDisk):
    def __init__(self) -> None:
        self.left: int | None = None  # operations until it stops; None: never
        self.done: list[str] = []
        self._stopped = False
        self._files: list[StoppingFile] = []
        self._lock = threading.Lock()

    @property
    def stopped(self) -> bool:
        return self._stopped

    def check(self) -> None:
        if self._stopped:
            raise Killed

    def change(self, what: str, work: Callable[[], Any], by_half: Callable[[], Any] = lambda: None) -> Any:
        with self._lock:
            self.check()
            self.done.append(what)
            if self.left == 0:
                self._stopped = True
                by_half()
                raise Killed(what)
            if self.left is not None:
                self.left -= 1
        return work()

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> StoppingFile:  # type: ignore[override]
        self.check()
        if create and not super().exists(path):
            opened = self.change(f"create {path}", lambda: RealDisk.open(self, path, create=True))
        else:
            opened = super().open(path, writable=writable)
        return self._counted(opened)

    def empty_file(self, path: str) -> StoppingFile:  # type: ignore[override]
        self.check()
        return self._counted(self.change(f"empty {path}", lambda: RealDisk.empty_file(self, path)))

    def _counted(self, opened: RealFile) -> StoppingFile:
        self._files.append(StoppingFile(self, opened))
        return self._files[-1]

    def close_files(self) -> None:
        """Close all files, as the kernel does when a process ends."""
        for file in self._files:
            file.close()

    def make_directory(self, path: str) -> bool:
        made: bool = self.change(f"mkdir {path}", lambda: RealDisk.make_directory(self, path))
        return made

    def rename(self, old: str, new: str) -> None:
        self.change(f"rename {old} to {new}", lambda: RealDisk.rename(self, old, new))

    def remove(self, path: str) -> None:
        self.change(f"remove {path}", lambda: RealDisk.remove(self, path))

    def remove_tree(self, path: str) -> None:
        self.change(f"remove {path}", lambda: RealDisk.remove_tree(self, path))

    def sync_directory(self, path: str) -> None:
        self.change(f"sync {path}", lambda: RealDisk.sync_directory(self, path))

    def write_atomically(self, path: str, data: bytes) -> None:
        def by_half() -> None:
            sibling = RealDisk.open(self, f"{path}.tmp", create=True)
            sibling.pwrite(data[: len(data) // 2], 0)
            sibling.close()

        self.change(f"replace {path}", lambda: _write_atomically(path, data), by_half)

    def copy_range(self, source: Any, source_position: int, target: Any, target_position: int, size: int) -> int:
        def copy(size: int) -> int:
            return RealDisk.copy_range(self, source.file, source_position, target.file, target_position, size)

        return int(self.change(f"copy {size} bytes", lambda: copy(size), lambda: copy(size // 2)))

    def usage(self, path: str) -> DiskUsage:
        self.check()
        return super().usage(path)


def _write_atomically(path: str, data: bytes) -> None:
    RealDisk().write_atomically(path, data)
