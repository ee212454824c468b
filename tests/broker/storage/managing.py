"""A broker's directories for tests, with a disk that fails where it is told to."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from uuid import UUID

from ballast_broker.log_config import LogConfig
from ballast_broker.storage.context import StorageConfig
from ballast_broker.storage.disk import RealDisk, RealThreads
from ballast_broker.storage.manager import LogManager
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
TOPIC_ID = UUID("0123456789abcdef0123456789abcdef")


class BadDisk(RealDisk):
    """Fails under some paths."""

    def __init__(self):
        self.bad = ()

    def _check(self, path):
        if path.startswith(self.bad or ("//",)):
            raise OSError(5, "Input/output error", path)

    def open(self, path, **keywords):
        self._check(path)
        return super().open(path, **keywords)

    def empty_file(self, path):
        self._check(path)
        return super().empty_file(path)

    def make_directory(self, path):
        self._check(path)
        return super().make_directory(path)

    def write_atomically(self, path, data):
        self._check(path)
        super().write_atomically(path, data)

    def rename(self, old, new):
        self._check(old)
        super().rename(old, new)


class World:
    def __init__(self, root: Path, clock, random, directories=3) -> None:
        self.paths = [str(root / f"d{number}") for number in range(directories)]
        self.clock, self.random = clock, random
        self.disk = BadDisk()
        self.threads = RealThreads(2)
        self.managers: list[LogManager] = []

    def manager(self, **config) -> LogManager:
        keywords = {"node_id": 1, "log_dirs": tuple(self.paths), "cluster_id": CLUSTER} | config
        manager = LogManager(self.disk, self.clock, self.threads, StorageConfig(**keywords), self.random)
        self.managers.append(manager)
        return manager

    def kill(self, manager: LogManager) -> None:
        """As if the process had died: nothing is written, locks and descriptors go."""
        for log in [*manager.logs.values(), *manager.future_logs.values()]:
            for segment in log.segments:
                segment.close()
        for directory in manager.all_directories:
            directory.unlock()


def partition(number=0, topic="t"):
    return TopicPartition(topic, number)


def create(manager, number=0, **keywords):
    return manager.get_or_create(partition(number), TOPIC_ID, LogConfig(), is_new=True, **keywords)


def write(log, count=1):
    for _ in range(count):
        log.append_as_leader(encode_batch([Record(b"k", b"v" * 50, 1_750_000_000_000)]), 0, now_ms=1_750_000_000_000)
    log.update_high_watermark(log.log_end_offset)


def run(work):
    return asyncio.run(work)


class SideBySide:
    """How many are in it at once; each stays a while, or until another comes."""

    def __init__(self):
        self.begun = threading.Event()
        self._another = threading.Event()
        self._inside = 0
        self.most = 0

    def __enter__(self):
        self._inside += 1
        self.most = max(self.most, self._inside)
        self.begun.set()
        if self._inside > 1:
            self._another.set()
        self._another.wait(0.1)

    def __exit__(self, *failure):
        self._inside -= 1
