"""A broker's log directories for tests, on a disk that fails under chosen paths."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from ballast_broker.config.logs import LogConfig
from ballast_broker.seams import Disk, Random
from ballast_broker.storage.context import StorageConfig
from ballast_broker.storage.disk import RealDisk, RealFile, RealThreads
from ballast_broker.storage.log import Log
from ballast_broker.storage.manager import LogManager
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

if TYPE_CHECKING:
    from tests.broker.storage.conftest import Clock

T = TypeVar("T")
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
TOPIC_ID = UUID("0123456789abcdef0123456789abcdef")


class BadDisk(RealDisk):
    """A disk that fails under the paths in `bad`."""

    def __init__(self) -> None:
        self.bad: tuple[str, ...] = ()
        self.bad_renames: tuple[str, ...] = ()

    def _check(self, path: str) -> None:
        if path.startswith(self.bad or ("//",)):
            raise OSError(5, "Input/output error", path)

    def open(self, path: str, **keywords: Any) -> RealFile:
        self._check(path)
        return super().open(path, **keywords)

    def empty_file(self, path: str) -> RealFile:
        self._check(path)
        return super().empty_file(path)

    def make_directory(self, path: str) -> bool:
        self._check(path)
        return super().make_directory(path)

    def write_atomically(self, path: str, data: bytes) -> None:
        self._check(path)
        super().write_atomically(path, data)

    def rename(self, old: str, new: str) -> None:
        self._check(old)
        if old in self.bad_renames:
            raise OSError(5, "Input/output error", old)
        super().rename(old, new)


class World:
    def __init__(self, root: Path, clock: Clock, random: Random, directories: int = 3) -> None:
        self.paths = [str(root / f"d{number}") for number in range(directories)]
        self.clock, self.random = clock, random
        self.bad_disk = BadDisk()
        self.disk: Disk = self.bad_disk
        self.threads = RealThreads(2)
        self.managers: list[LogManager] = []
        self.defaults = LogConfig()

    def manager(self, **config: Any) -> LogManager:
        keywords: dict[str, Any] = {"node_id": 1, "log_dirs": tuple(self.paths), "cluster_id": CLUSTER} | config
        manager = LogManager(
            self.disk,
            self.clock,
            self.threads,
            StorageConfig(**keywords),
            self.random,
            config_of=lambda _: self.defaults,
        )
        self.managers.append(manager)
        return manager

    async def started(self, **config: Any) -> LogManager:
        """Start the broker's log manager, for the first time or again."""
        manager = self.manager(**config)
        await manager.start()
        return manager

    def kill(self, manager: LogManager) -> None:
        """As if the process had died: write nothing, release locks and file descriptors."""
        for log in [*manager.logs.values(), *manager.future_logs.values()]:
            for segment in log.segments:
                segment.close()
        for directory in manager.all_directories:
            directory.unlock()


def partition(number: int = 0, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


def create(manager: LogManager, number: int = 0, **keywords: Any) -> Log:
    return manager.get_or_create(partition(number), TOPIC_ID, LogConfig(), is_new=True, **keywords)


def write(log: Log, count: int = 1) -> None:
    for _ in range(count):
        log.append_as_leader(encode_batch([Record(b"k", b"v" * 50, 1_750_000_000_000)]), 0, now_ms=1_750_000_000_000)
    log.update_high_watermark(log.log_end_offset)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class SideBySide:
    """Counts how many threads are inside at once; each stays a while, or until another enters."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self._another = threading.Event()
        self._inside = 0
        self.most = 0

    def __enter__(self) -> None:
        self._inside += 1
        self.most = max(self.most, self._inside)
        self.begun.set()
        if self._inside > 1:
            self._another.set()
        self._another.wait(0.1)

    def __exit__(self, *failure: object) -> None:
        self._inside -= 1
