"""Implements the disk seam on the real file system, with a bounded thread pool for blocking calls.

Guarantees: no short write passes silently; a descriptor is closed once. Files may be used from any thread, but whoever
closes one must make sure that no other thread is using it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ballast_broker.seams import Bytes, DiskUsage, File, NotInMemory
from ballast_broker.storage.page_cache import Range, absent_ranges, begin_writing, give_back, within, write_back

T = TypeVar("T")
_fdatasync = getattr(os, "fdatasync", os.fsync)  # not on macOS
READ_AHEAD_BYTES = 8 << 20
WRITE_UNIT_BYTES = 1 << 20
NOWAIT = getattr(os, "RWF_NOWAIT", 0)
OF_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # macOS counts per process only


class _Hurry:
    """A context manager in which its thread (the event loop's) reads only what is in the page cache."""

    thread = 0

    def __enter__(self) -> None:
        self.thread = threading.get_ident() if NOWAIT else 0

    def __exit__(self, *_: object) -> None:
        self.thread = 0


_hurry = _Hurry()


def read_now(descriptor: int, path: str, size: int, position: int) -> bytes:
    """Read without waiting for the disk. NotInMemory if not all is in the page cache, or the file is too short."""
    data = bytearray(size)
    try:
        count = os.preadv(descriptor, [data], position, NOWAIT)
    except BlockingIOError as error:
        raise NotInMemory(path, position, size) from error
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return os.pread(descriptor, size, position)
    if count < size:
        raise NotInMemory(path, position, size)
    return bytes(data)


class RealFile:
    """One open descriptor."""

    __slots__ = ("_absent", "_descriptor", "_path", "_unwanted")

    def __init__(self, descriptor: int, path: str = "") -> None:
        self._descriptor = descriptor
        self._path = path
        # As the source of a copy: the ranges not cached before it. As the target: the ranges to drop from the page
        # cache once they are durable.
        self._absent: list[Range] | None = None
        self._unwanted: list[Range] = []

    def pread(self, size: int, position: int) -> bytes:
        if _hurry.thread == threading.get_ident():
            return self._pread_now(size, position)
        return os.pread(self._descriptor, size, position)

    def _pread_now(self, size: int, position: int) -> bytes:
        return read_now(self._descriptor, self._path, size, position)

    def pwrite(self, data: Bytes, position: int) -> None:
        written = os.pwrite(self._descriptor, data, position)
        if written != len(data):
            self._write_rest(memoryview(data)[written:], position + written)

    def _write_rest(self, data: memoryview, position: int) -> None:
        """A short write means a full disk or a signal; the next attempt tells which."""
        while data:
            written = os.pwrite(self._descriptor, data, position)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data, position = data[written:], position + written

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        unwanted, self._unwanted = self._unwanted, []
        _fdatasync(self._descriptor)
        give_back(self._descriptor, unwanted)

    def copied_to(self, target: RealFile, position: int, target_position: int, size: int) -> None:
        """Drop from the page cache what the copy brought in: here at once, at the target once it is durable."""
        if self._absent is None or self._descriptor < 0:
            return
        # Pages under read-ahead cannot be dropped, so drop a stretch before `position` once more.
        give_back(self._descriptor, within(self._absent, max(0, position - READ_AHEAD_BYTES), position + size))
        cold = within(self._absent, position, position + size)
        shift = target_position - position
        target._unwanted += [(start + shift, end + shift) for start, end in cold]

    def begin_writing(self, position: int, size: int) -> None:
        """Start writeback, of complete units only: the file system allocates space each time."""
        first, end = position - position % WRITE_UNIT_BYTES, position + size
        end -= end % WRITE_UNIT_BYTES
        if first < end:
            begin_writing(self._descriptor, first, end - first)

    def look_at_cache(self) -> None:
        """Note what is not cached. Once, before the first copy: read-ahead would distort a later look."""
        if self._absent is None:
            self._absent = absent_ranges(self._descriptor, self.size())

    def descriptor(self) -> int | None:
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            if self._absent:
                give_back(descriptor, self._absent)
            os.close(descriptor)


@dataclass(slots=True)
class RealDiskUsage:
    total_bytes: int
    usable_bytes: int


class RealDisk:
    """The operating system's file system."""

    _locked: frozenset[tuple[int, int]] = frozenset()
    _locking = threading.Lock()

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0) | os.O_CLOEXEC
        return RealFile(os.open(path, flags, 0o644), path)

    def empty_file(self, path: str) -> RealFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return RealFile(os.open(path, flags, 0o644), path)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def list(self, path: str) -> list[str]:
        return os.listdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def make_directory(self, path: str) -> bool:
        try:
            os.mkdir(path)
        except FileNotFoundError:
            os.makedirs(path, exist_ok=True)  # a parent may be created concurrently
        except FileExistsError:
            if not os.path.isdir(path):
                raise
            return False
        return True

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def write_back(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            write_back(descriptor)
        finally:
            os.close(descriptor)

    def waits(self) -> int:
        return resource.getrusage(OF_THREAD).ru_nvcsw

    def processor_time(self) -> Callable[[], float]:
        if not hasattr(time, "pthread_getcpuclockid"):  # macOS
            return time.monotonic
        return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))

    def read_bytes(self, path: str) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # One byte more than the size, so that usually a single read also sees the end; a larger buffer costs pages.
            wanted = os.fstat(descriptor).st_size + 1
            if _hurry.thread == threading.get_ident():
                return read_now(descriptor, path, wanted - 1, 0)
            data = os.read(descriptor, wanted)
            if len(data) < wanted <= 1 << 20:
                return data
            parts = [data]
            while part := os.read(descriptor, 1 << 20):
                parts.append(part)
            return b"".join(parts)
        finally:
            os.close(descriptor)

    def write_atomically(self, path: str, data: bytes) -> None:
        sibling = f"{path}.tmp"
        file = self.empty_file(sibling)
        try:
            file.pwrite(data, 0)
            file.sync()
        finally:
            file.close()
        os.rename(sibling, path)
        self.sync_directory(os.path.dirname(path))

    def copy_range(self, source: File, source_position: int, target: File, target_position: int, size: int) -> int:
        """Copy inside the kernel where possible; returns how many bytes were copied, fewer only at the source's end.

        Leaves the page cache as it was: what readers had in it stays, what only the copy brought in is dropped.
        """
        if isinstance(source, RealFile) and isinstance(target, RealFile):
            source.look_at_cache()
            copied = self._copy(source, source_position, target, target_position, size)
            target.begin_writing(target_position, copied)
            source.copied_to(target, source_position, target_position, copied)
            return copied
        return self._copy(source, source_position, target, target_position, size)

    def _copy(self, source: File, source_position: int, target: File, target_position: int, size: int) -> int:
        read_descriptor, write_descriptor = source.descriptor(), target.descriptor()
        if read_descriptor is None or write_descriptor is None:
            raise ValueError("both files must be real")
        copied = 0
        while copied < size:
            try:
                count = os.copy_file_range(
                    read_descriptor, write_descriptor, size - copied, source_position + copied, target_position + copied
                )
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
                return copied + self._copy_through_memory(
                    source, source_position + copied, target, target_position + copied, size - copied
                )
            if count == 0:
                break
            copied += count
        return copied

    def _copy_through_memory(
        self, source: File, source_position: int, target: File, target_position: int, size: int
    ) -> int:
        copied = 0
        while copied < size:
            piece = source.pread(min(1 << 20, size - copied), source_position + copied)
            if not piece:
                break
            target.pwrite(piece, target_position + copied)
            copied += len(piece)
        return copied

    def not_waiting(self) -> AbstractContextManager[None]:
        return _hurry

    def usage(self, path: str) -> DiskUsage:
        figures = os.statvfs(path)
        return RealDiskUsage(figures.f_blocks * figures.f_frsize, figures.f_bavail * figures.f_frsize)

    def lock(self, path: str) -> Callable[[], None]:
        """A POSIX record lock, as Java's FileChannel takes it: Apache Kafka and Ballast exclude each other.

        Such a lock does not exclude the own process, and is lost when the process closes any descriptor of the file.
        """
        with contextlib.suppress(FileNotFoundError):
            if _identity(os.stat(path)) in self._locked:
                raise BlockingIOError(errno.EAGAIN, "the same directory has another name")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise BlockingIOError(errno.EAGAIN, "another process has it") from error
        file = _identity(os.fstat(descriptor))
        with self._locking:
            if file in self._locked:  # by another thread just now; closing this descriptor would end its lock
                raise BlockingIOError(errno.EAGAIN, "the same directory has another name")
            self._locked |= {file}

        def release() -> None:
            with self._locking:
                self._locked -= {file}
            with contextlib.suppress(OSError):  # the descriptor is gone all the same; a failed disk may say anything
                os.close(descriptor)

        return release


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


class RealThreads:
    """A bounded pool; work beyond it waits in the pool's queue."""

    def __init__(self, count: int = 8) -> None:
        self._pool = ThreadPoolExecutor(max_workers=count, thread_name_prefix="ballast-io")

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
