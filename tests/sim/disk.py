"""An in-memory file system that loses what was not synced when the power fails: `seams.Disk` for the simulation.

When a process dies, the page cache survives: nothing is lost. A machine that loses power keeps what was synced plus,
for each file, a random prefix of the writes since, the last of them possibly torn, and, for each directory, a random
prefix of the creations, renames and removals since its last sync. Faults: a directory tree may return EIO or be full.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from ballast_broker.seams import Disk, File, NotInMemory

DEFAULT_CAPACITY = 1 << 34
COLD_EVERY = 5


class Crashed(BaseException):
    """Code of a dead process touched the disk and must not continue."""


class Usage(NamedTuple):
    total_bytes: int
    usable_bytes: int


@dataclass(slots=True, eq=False)
class Inode:
    """A file. Between the end of `data` and `size` it is zeros: index files are preallocated at their maximum size."""

    data: bytearray = field(default_factory=bytearray)
    size: int = 0
    durable: tuple[bytes, int] = (b"", 0)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # (position, data), or (size, None): truncate
    modified_ms: int = 0

    def read(self, size: int, position: int) -> bytes:
        found = bytes(self.data[position : position + size])
        return found + bytes(max(0, min(size, self.size - position) - len(found)))

    def write(self, data: bytes, position: int) -> None:
        if len(self.data) < position:
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(data)] = data
        self.size = max(self.size, position + len(data))
        self.pending.append((position, data))

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.size = size
        self.pending.append((size, None))

    def sync(self) -> None:
        self.durable = bytes(self.data), self.size
        self.pending.clear()

    def lose_power(self, rng: random.Random) -> None:
        count, lost = rng.randint(0, len(self.pending)), self.pending
        data, size = self.durable
        self.data, self.size, self.pending = bytearray(data), size, []
        for position, written in lost[:count]:
            if written is None:
                self.truncate(position)
            else:
                self.write(written, position)
        if count < len(lost):
            position, written = lost[count]
            if written and rng.random() < 0.5:
                self.write(written[: rng.randint(0, len(written))], position)
        self.sync()


@dataclass(slots=True, eq=False)
class Folder:
    entries: dict[str, Inode | Folder] = field(default_factory=dict)
    durable: dict[str, Inode | Folder] = field(default_factory=dict)
    history: list[dict[str, Inode | Folder]] = field(default_factory=list)  # entries after each change since the sync

    def changed(self) -> None:
        self.history.append(dict(self.entries))

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.history.clear()

    def lose_power(self, rng: random.Random) -> None:
        states = [self.durable, *self.history]
        self.entries = dict(states[rng.randrange(len(states))])
        self.sync()
        for entry in self.entries.values():
            entry.lose_power(rng)


class Store:
    """The contents of a machine's disks; they outlive the processes that use them."""

    def __init__(self, rng: random.Random, wall_ms: Callable[[], int]) -> None:
        self.root = Folder()
        self.rng = rng
        self.wall_ms = wall_ms
        self.failing: dict[str, int] = {}  # path prefix → errno
        self.capacity: dict[str, int] = {}
        self.locks: set[str] = set()

    def lose_power(self) -> None:
        self.root.lose_power(self.rng)

    def fail(self, path: str, code: int = errno.EIO) -> None:
        self.failing[path] = code

    def heal(self, path: str) -> None:
        self.failing.pop(path, None)
        self.capacity.pop(path, None)

    def empty(self, path: str) -> None:
        """Replace the disk by an empty one."""
        folder = self.find(path)
        assert isinstance(folder, Folder)
        folder.entries.clear()
        folder.sync()

    def used(self, path: str) -> int:
        entry = self.find(path)
        return _size_of(entry) if entry is not None else 0

    def find(self, path: str) -> Inode | Folder | None:
        entry: Inode | Folder | None = self.root
        for part in _parts(path):
            if not isinstance(entry, Folder):
                return None
            entry = entry.entries.get(part)
        return entry


@lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    assert path.startswith("/"), f"not absolute: {path}"
    return tuple(part for part in path.split("/") if part)


def _size_of(entry: Inode | Folder) -> int:
    if isinstance(entry, Inode):
        return entry.size
    size = 0
    for child in entry.entries.values():
        size += child.size if isinstance(child, Inode) else _size_of(child)
    return size


class Hurry:
    """The context of `not_waiting`: within it, each fifth read is of data that is not in memory."""

    def __init__(self) -> None:
        self._inside = False
        self._asked = 0

    def __enter__(self) -> None:
        self._inside = True

    def __exit__(self, *_: object) -> None:
        self._inside = False

    def check(self, path: str, position: int, size: int) -> None:
        if self._inside:
            self._asked += 1
            if self._asked % COLD_EVERY == 0:
                raise NotInMemory(path, position, size)


class SimDisk(Disk):
    """One process's view of a store; after `kill` every call raises `Crashed`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._alive = True
        self._held: set[str] = set()
        self.calls = 0
        self.hurry = Hurry()
        self.crash_at: int | None = None  # die at this call: crash points
        self.on_crash: Callable[[], None] = lambda: None

    def kill(self) -> None:
        self._alive = False
        self._store.locks -= self._held

    def touch(self, path: str, growth: int = 0, *, reading: bool = False) -> None:
        """Every call passes through here: is the process alive, does the disk work, is there room?

        A file system that became read-only can still be read.
        """
        if not self._alive:
            raise Crashed
        self.calls += 1
        if self.crash_at is not None and self.calls >= self.crash_at:
            self.kill()
            self.on_crash()
            raise Crashed
        for prefix, code in self._store.failing.items():
            if (path == prefix or path.startswith(prefix + "/")) and not (reading and code == errno.EROFS):
                raise OSError(code, errno.errorcode[code], path)
        if growth > 0:
            for prefix, capacity in self._store.capacity.items():
                if path.startswith(prefix + "/") and self._store.used(prefix) + growth > capacity:
                    raise OSError(errno.ENOSPC, "ENOSPC", path)

    def write_back(self, path: str) -> None:
        self.touch(path)  # makes nothing durable

    def waits(self) -> int:
        return self.calls  # each call counts as blocking

    def processor_time(self) -> Callable[[], float]:
        return lambda: float(self.calls)

    def _find(self, path: str) -> Inode | Folder:
        entry = self._store.find(path)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return entry

    def _file(self, path: str) -> Inode:
        entry = self._find(path)
        if isinstance(entry, Folder):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return entry

    def _folder(self, path: str) -> Folder:
        entry = self._find(path)
        if isinstance(entry, Inode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return entry

    def _parent(self, path: str) -> tuple[Folder, str]:
        head, _, name = path.rstrip("/").rpartition("/")
        return self._folder(head or "/"), name

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> SimFile:
        self.touch(path, reading=not (create or writable))
        entry = self._store.find(path)
        if entry is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            folder, name = self._parent(path)
            entry = folder.entries[name] = Inode(modified_ms=self._store.wall_ms())
            folder.changed()
        if isinstance(entry, Folder):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return SimFile(self, self._store, path, entry)

    def empty_file(self, path: str) -> SimFile:
        file = self.open(path, create=True)
        file.truncate(0)
        return file

    def exists(self, path: str) -> bool:
        self.touch(path, reading=True)
        return self._store.find(path) is not None

    def is_directory(self, path: str) -> bool:
        self.touch(path, reading=True)
        return isinstance(self._store.find(path), Folder)

    def list(self, path: str) -> list[str]:
        self.touch(path, reading=True)
        return sorted(self._folder(path).entries)

    def size(self, path: str) -> int:
        self.touch(path, reading=True)
        return self._file(path).size

    def modified_ms(self, path: str) -> int:
        self.touch(path, reading=True)
        return self._file(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.touch(path)
        self._file(path).modified_ms = modified_ms

    def make_directory(self, path: str) -> bool:
        self.touch(path)
        folder, made = self._store.root, False
        for part in _parts(path):
            child = folder.entries.get(part)
            if child is None:
                child = folder.entries[part] = Folder()
                folder.changed()
                made = True
            if isinstance(child, Inode):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            folder = child
        return made

    def rename(self, old: str, new: str) -> None:
        self.touch(old)
        self.touch(new)
        entry = self._find(old)
        source, source_name = self._parent(old)
        target, target_name = self._parent(new)
        standing = target.entries.get(target_name)
        if isinstance(standing, Folder) and standing.entries:
            raise OSError(errno.ENOTEMPTY, "not empty", new)
        del source.entries[source_name]
        target.entries[target_name] = entry
        if source is not target:
            target.changed()
        source.changed()

    def remove(self, path: str) -> None:
        self.touch(path)
        self._file(path)
        folder, name = self._parent(path)
        del folder.entries[name]
        folder.changed()

    def remove_tree(self, path: str) -> None:
        self.touch(path)
        self._find(path)
        folder, name = self._parent(path)
        del folder.entries[name]
        folder.changed()

    def sync_directory(self, path: str) -> None:
        self.touch(path)
        self._folder(path).sync()

    def read_bytes(self, path: str) -> bytes:
        self.touch(path, reading=True)
        file = self._file(path)
        self.hurry.check(path, 0, file.size)
        return file.read(file.size, 0)

    def write_atomically(self, path: str, data: bytes) -> None:
        beside = path + ".tmp"
        file = self.open(beside, create=True)
        file.truncate(0)
        file.pwrite(data, 0)
        file.sync()
        self.rename(beside, path)
        self.sync_directory(path.rpartition("/")[0] or "/")

    def copy_range(self, source: File, source_position: int, target: File, target_position: int, size: int) -> int:
        data = source.pread(size, source_position)
        target.pwrite(data, target_position)
        return len(data)

    def not_waiting(self) -> AbstractContextManager[None]:
        return self.hurry

    def usage(self, path: str) -> Usage:
        self.touch(path, reading=True)
        for prefix, total in self._store.capacity.items():
            if path == prefix or path.startswith(prefix + "/"):
                return Usage(total, max(0, total - self._store.used(prefix)))
        return Usage(DEFAULT_CAPACITY, max(0, DEFAULT_CAPACITY - self._store.used(path)))

    def lock(self, path: str) -> Callable[[], None]:
        self.touch(path)
        if path in self._store.locks:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        self._store.locks.add(path)
        self._held.add(path)

        def release() -> None:
            self._held.discard(path)
            self._store.locks.discard(path)

        return release


class SimFile:
    def __init__(self, disk: SimDisk, store: Store, path: str, inode: Inode) -> None:
        self._disk = disk
        self._store = store
        self._path = path
        self._inode = inode
        self._closed = False

    def _touch(self, *, reading: bool = False, growth: int = 0) -> None:
        self._disk.touch(self._path, reading=reading, growth=growth)
        if self._closed:
            raise OSError(errno.EBADF, "closed", self._path)

    def pread(self, size: int, position: int) -> bytes:
        self._touch(reading=True)
        self._disk.hurry.check(self._path, position, size)
        return self._inode.read(size, position)

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        self._touch(growth=position + len(data) - self._inode.size)
        self._inode.write(bytes(data), position)
        self._inode.modified_ms = self._store.wall_ms()

    def size(self) -> int:
        self._touch(reading=True)
        return self._inode.size

    def truncate(self, size: int) -> None:
        self._touch()
        self._inode.truncate(size)

    def sync(self) -> None:
        self._touch()
        self._inode.sync()

    def descriptor(self) -> int | None:
        return None

    def close(self) -> None:
        self._closed = True
