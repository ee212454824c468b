"""Manages log directories: identity (`meta.properties`), the `.lock`, the clean-shutdown mark, health, folder names.

Guarantees: a directory of another cluster or broker, or one that another process has locked, is refused with the
reason; a directory that failed stays offline until restart. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from ballast_broker.handles import advice, are_out
from ballast_broker.seams import Disk, DiskUsage, Random, Threads
from ballast_broker.storage.checkpoint import parse_properties, parse_uuid, render_properties, uuid_text
from ballast_broker.storage.context import StorageConfig
from ballast_broker.storage.directory_threads import SILENT_AFTER_S, DirectoryThreads
from ballast_broker.storage.errors import (
    CorruptFile,
    DirectoryRefused,
    LogDirectoryFailure,
    OutOfHandles,
)
from ballast_broker.storage.outdated_checkpoints import Checkpoints
from ballast_wire.names import TopicPartition

META_PROPERTIES = "meta.properties"
LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
METADATA_TOPIC = "__cluster_metadata"

UNASSIGNED_DIRECTORY = UUID(int=0)
LOST_DIRECTORY = UUID(int=1)
MIGRATING_DIRECTORY = UUID(int=2)
_RESERVED_IDS = 100
logger = logging.getLogger(__name__)

SLOW_WRITE_S = 0.005
_WINDOW_S = 1.0
_SLOW_FOR_S = 5.0
USAGE_WAIT_S = 0.5
LOOK_AGAIN_S = 1.0  # how often to check whether a directory has fallen silent

DELETE_SUFFIX = "-delete"
FUTURE_SUFFIX = "-future"
STRAY_SUFFIX = "-stray"
_MAXIMUM_NAME = 255
_MARKED_NAME = re.compile(r"^(?P<name>\S+)\.(?P<unique>[0-9a-f]{32})(?P<suffix>-delete|-future|-stray)$")
_PLAIN_NAME = re.compile(r"^(?P<topic>\S+)-(?P<partition>\d+)$")


class FolderName(NamedTuple):
    """A folder's meaning in a log directory: whose log it is, and in which role ('' is the current one)."""

    topic_partition: TopicPartition
    suffix: str


def parse_folder_name(name: str) -> FolderName | None:
    """None if the name is not that of a partition's folder."""
    suffix = ""
    if marked := _MARKED_NAME.match(name):
        name, suffix = marked["name"], marked["suffix"]
    plain = _PLAIN_NAME.match(name)
    if plain is None or int(plain["partition"]) > 2**31 - 1:
        return None
    return FolderName(TopicPartition(plain["topic"], int(plain["partition"])), suffix)


def marked_folder_name(topic_partition: TopicPartition, unique: str, suffix: str) -> str:
    """`topic-partition.uniqueId-suffix`; a long topic name is cut (as in Kafka), except for future logs."""
    end = f".{unique}{suffix}"
    if suffix == FUTURE_SUFFIX:
        return f"{topic_partition}{end}"
    number = f"-{topic_partition.partition}"
    return f"{topic_partition.topic[: _MAXIMUM_NAME - len(end) - len(number)]}{number}{end}"


def name_of_move(broker_epoch: int, number: int, random: Random) -> str:
    """The unique id of a future log, which orders moves by their start: by broker epoch, since clocks can go back."""
    return f"{max(0, broker_epoch):016x}{number & 0xFFFFFFFF:08x}{random.bytes_of(4).hex()}"


def order_of_move(folder: str) -> int:
    """-1 for a copy begun by Apache Kafka: its ids are random, and hardly ever as small as an epoch."""
    marked = _MARKED_NAME.match(os.path.basename(folder))
    return int(marked["unique"][:24], 16) if marked and marked["unique"].startswith("0000") else -1


class LogDirectory:
    """One of `log.dirs`."""

    def __init__(self, path: str, disk: Disk, threads: Threads) -> None:
        self.path = os.path.abspath(path)
        self.threads = DirectoryThreads(threads, self._heard)
        self.id = UNASSIGNED_DIRECTORY
        self.online = True
        self.given_up = False  # it did not answer at startup
        self.cordoned = False
        self.error: BaseException | None = None
        self.was_clean = False
        self.lost_some = False  # a log lacks records that it had at the clean shutdown
        self.is_settled = True  # nothing was left undone at shutdown
        self.previous_broker_epoch = -1
        self.checkpoints = Checkpoints()
        self.writes = 0  # total, for metrics and for the share of slow ones
        self.slow_writes = 0
        self.slow_until = 0.0
        self.suspected_until = 0.0  # after a slow write: check whether the next slow one waits for the disk
        self._window = (0.0, 0, 0)  # its start, and `writes` and `slow_writes` then
        self.known_usage: DiskUsage | None = None  # None while offline or unknown
        self._asking: asyncio.Task[None] | None = None
        self.on_failure: list[Callable[[LogDirectory], None]] = []
        self.on_silence: list[Callable[[LogDirectory], None]] = []
        self.on_shortage: list[Callable[[OSError], None]] = []
        self.properties: dict[str, str] | None = None  # `meta.properties` as found at startup
        self.has_metadata_log = False
        self._disk = disk
        self._unlock: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"LogDirectory({self.path}, {'online' if self.online else 'offline'})"

    def usage(self) -> DiskUsage | None:
        """None while unknown; for a silent directory the last known value. May block as long as the disk does."""
        if self.online and not self.threads.silent:
            self.note_usage(self.look_at_usage())
        return self.known_usage

    def look_at_usage(self) -> DiskUsage | None:
        """For any thread. Hand the result to `note_usage` on the loop."""
        try:
            return self._disk.usage(self.path)
        except OSError:
            return None

    def note_usage(self, usage: DiskUsage | None) -> None:
        self.known_usage = usage if self.online else None

    async def learn_usage(self) -> None:
        """Update `known_usage` without blocking the loop; a disk that does not answer soon is not waited for."""
        if self.online and not self.threads.silent:
            await asyncio.wait({self.ask_usage()}, timeout=USAGE_WAIT_S)

    def ask_usage(self) -> asyncio.Task[None]:
        """Update `known_usage` in a thread; the task is done when the disk has answered."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_usage())
        return self._asking

    async def _ask_usage(self) -> None:
        try:
            self.note_usage(await self.threads.run(self.look_at_usage))
        finally:
            self._asking = None

    def check_that_it_is_there(self) -> None:
        """For any thread. Raises if its volume was emptied or unmounted: a mount point stays and can be written to."""
        if not any(self._disk.exists(f"{self.path}/{name}") for name in (META_PROPERTIES, LOCK)):
            raise FileNotFoundError(errno.ENOENT, f"{META_PROPERTIES} and {LOCK} are gone", self.path)

    def fail(self, error: BaseException) -> None:
        """Take the directory offline and call `on_failure`, once."""
        if not self.online:
            return
        self.online = False
        self.known_usage = None
        self.error = error
        for callback in list(self.on_failure):
            callback(self)

    def failure_for(self, error: OSError) -> LogDirectoryFailure:
        """The exception to raise for an OSError that left nothing half done. Fails the directory, except when only file
        descriptors were lacking."""
        if are_out(error):
            for callback in self.on_shortage:
                callback(error)
            return OutOfHandles(self, error)
        self.fail(error)
        return LogDirectoryFailure(self, error)

    def fail_to_start(self, error: OSError) -> None:
        """Abort the start if file descriptors are lacking: to go on without the directory would recreate its replicas
        elsewhere."""
        if are_out(error):
            raise DirectoryRefused(f"{self.path} cannot be read: {error}; {advice(error)}") from error
        self.fail(error)

    def note_slow_write(self, now_s: float, *, waited: bool = True) -> None:
        """A write took over 5 ms. If more than 1 % of the writes within a second are slow (and more than one), appends
        go through threads for a while, which each further slow write prolongs.

        Not `waited`: the thread only lacked CPU time, which another thread would lack as well.
        """
        self.suspected_until = now_s + _WINDOW_S
        if not waited:
            return
        self.slow_writes += 1
        began_s, writes, slow = self._window
        if now_s - began_s > _WINDOW_S:
            self._window = (now_s, self.writes, self.slow_writes - 1)
            if now_s > self.slow_until:
                return
        elif now_s > self.slow_until and (self.slow_writes - slow) * 100 <= max(100, self.writes - writes):
            return
        self.slow_until = max(self.slow_until, now_s + _SLOW_FOR_S)

    def _heard(self, silent: bool, now_s: float) -> None:
        """While the directory is silent, no append is made on the loop."""
        if silent:
            logger.error("log directory %s has not answered for %g s", self.path, SILENT_AFTER_S)
        else:
            logger.warning("log directory %s answers again", self.path)
        self.slow_until = float("inf") if silent else now_s + _SLOW_FOR_S
        for callback in self.on_silence if silent else ():
            callback(self)

    def waits(self) -> int:
        """A counter that moves when the thread blocks; compare it before and after a write."""
        return self._disk.waits()

    # Start and stop

    def lock(self) -> None:
        try:
            self._unlock = self._disk.lock(f"{self.path}/{LOCK}")
        except BlockingIOError as error:
            raise DirectoryRefused(
                f"Failed to acquire lock on file {LOCK} in {self.path}. "
                f"A Kafka instance in another process or thread is using this directory ({error.strerror})."
            ) from error

    def unlock(self) -> None:
        """A directory given up at startup stays locked until the process ends: closing its file might hang as well, and
        a thread may still be working there."""
        if self.given_up:
            return
        release, self._unlock = self._unlock, None
        if release is not None:
            release()

    def read_properties(self) -> None:
        path = f"{self.path}/{META_PROPERTIES}"
        if self._disk.exists(path):
            self.properties = parse_properties(self._disk.read_bytes(path))
        self.has_metadata_log = self._disk.exists(f"{self.path}/{METADATA_TOPIC}-0")

    def read_clean_shutdown_mark(self) -> bool:
        """Whether the last shutdown was clean. `remove_clean_shutdown_mark` takes the mark away."""
        path = f"{self.path}/{CLEAN_SHUTDOWN}"
        if not self._disk.exists(path):
            return False
        try:
            content = json.loads(self._disk.read_bytes(path) or b"{}")
            self.previous_broker_epoch = int(content.get("brokerEpoch", -1))
        except (ValueError, AttributeError):
            self.previous_broker_epoch = -1
        self.was_clean = True
        return True

    def remove_clean_shutdown_mark(self) -> None:
        path = f"{self.path}/{CLEAN_SHUTDOWN}"
        if self._disk.exists(path):
            self._disk.remove(path)
            self._disk.sync_directory(self.path)

    def write_clean_shutdown_mark(self, broker_epoch: int) -> None:
        content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        self._disk.write_atomically(f"{self.path}/{CLEAN_SHUTDOWN}", content.encode())


async def all_but_silent(tasks: Mapping[LogDirectory, asyncio.Task[Any]]) -> None:
    """Wait until all tasks are done, except those of silent directories."""
    while going := [each for directory, each in tasks.items() if not each.done() and not directory.threads.silent]:
        await asyncio.wait(going, timeout=LOOK_AGAIN_S)


def random_directory_id(random: Random) -> UUID:
    """A version 4 UUID that is none of Kafka's reserved ids and whose text does not begin with a dash."""
    while True:
        raw = bytearray(random.bytes_of(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        candidate = UUID(bytes=bytes(raw))
        if candidate.int >= _RESERVED_IDS and not uuid_text(candidate).startswith("-"):
            return candidate


def identify(
    directories: list[LogDirectory],
    disk: Disk,
    random: Random,
    config: StorageConfig,
    *,
    metadata_directory: LogDirectory,
    generate: bool = False,
) -> str:
    """Check every directory's `meta.properties`, or write it; returns the cluster id that they share.

    No `cluster_id` configured: take it from the directories, else generate it if told to, else `DirectoryRefused`.
    """
    _refuse_nested(directory.path for directory in directories)
    if metadata_directory.online and not metadata_directory.has_metadata_log:
        _refuse_to_begin_anew(directories, metadata_directory, alone=config.alone_has_metadata)
    cluster_id = config.cluster_id
    for directory in directories:
        if directory.properties is not None:
            cluster_id = _check(directory, directory.properties, cluster_id, config.node_id)
    if cluster_id is None and generate:
        cluster_id = uuid_text(random_directory_id(random))
    if cluster_id is None:
        raise DirectoryRefused(
            "log.dirs have no cluster id yet and cluster.id is not set: give every node of the cluster the same one"
        )
    used: dict[UUID, LogDirectory] = {}
    for directory in sorted(directories, key=lambda each: each is not metadata_directory):
        try:
            _adopt(directory, disk, random, cluster_id, config.node_id)
        except OSError as error:
            directory.fail_to_start(error)
            continue
        if used.setdefault(directory.id, directory) is not directory:
            raise DirectoryRefused(
                f"Found multiple metadata.properties directories with ID {uuid_text(directory.id)}: "
                f"one of {used[directory.id].path} and {directory.path} is a copy of the other"
            )
    return cluster_id


def _refuse_nested(paths: Iterable[str]) -> None:
    """A log directory inside of what looks like a partition's folder would be deleted with that partition."""
    for outer, inner in itertools.permutations(paths, 2):
        if inner.startswith(f"{outer}/") and parse_folder_name(inner[len(outer) + 1 :].split("/")[0]):
            raise DirectoryRefused(f"log.dirs: {inner} lies in what {outer} takes for the folder of a partition")


def _refuse_to_begin_anew(directories: list[LogDirectory], home: LogDirectory, *, alone: bool) -> None:
    """Refuse to create an empty metadata log if another directory has one, or if this node had the only copy."""
    where = f"metadata.log.dir (by default the first of log.dirs) is {home.path}"
    elsewhere = next((directory for directory in directories if directory.has_metadata_log), None)
    if elsewhere is not None:
        raise DirectoryRefused(f"{where}, but the metadata log is in {elsewhere.path}: set metadata.log.dir to that")
    used = next((directory for directory in directories if directory.properties is not None), None)
    if alone and used is not None and home.properties is None:
        raise DirectoryRefused(
            f"{where}, which has never been used, but {used.path} has: is the right disk mounted there? To begin a new "
            f"cluster, which knows no topic of the old one, remove {META_PROPERTIES} from the others"
        )


def _check(directory: LogDirectory, properties: dict[str, str], cluster_id: str | None, node_id: int) -> str:
    where = f"{directory.path}/{META_PROPERTIES}"
    if properties.get("version") not in ("0", "1"):
        raise DirectoryRefused(f"{where} has version {properties.get('version')!r}; 1 is expected")
    theirs = properties.get("cluster.id")
    if not theirs:
        raise DirectoryRefused(f"{where} has no cluster.id")
    if cluster_id is not None and theirs != cluster_id:
        raise DirectoryRefused(f"Stored cluster id {theirs} in {where} doesn't match the expected one {cluster_id}")
    stored = properties.get("node.id", properties.get("broker.id"))
    if stored is None or stored != str(node_id):
        raise DirectoryRefused(f"Stored node id {stored} in {where} doesn't match previous or configured id {node_id}")
    return theirs


def _adopt(directory: LogDirectory, disk: Disk, random: Random, cluster_id: str, node_id: int) -> None:
    properties = directory.properties
    if properties is not None and "directory.id" in properties:
        try:
            directory.id = parse_uuid(properties["directory.id"])
        except CorruptFile as error:
            raise DirectoryRefused(f"{directory.path}/{META_PROPERTIES}: {error}") from error
        return
    directory.id = random_directory_id(random)
    values = {
        "cluster.id": cluster_id,
        "directory.id": uuid_text(directory.id),
        "node.id": str(node_id),
        "version": "1",
    }
    _sync_parents(directory, disk)
    disk.write_atomically(f"{directory.path}/{META_PROPERTIES}", render_properties(values))


def _sync_parents(directory: LogDirectory, disk: Disk) -> None:
    """Make sure that a directory created just now, or by a process that died, survives a power failure.

    A parent that cannot be opened or synced was not created by us.
    """
    parent = directory.path
    while (above := os.path.dirname(parent)) != parent:
        parent = above
        with contextlib.suppress(OSError):
            disk.sync_directory(parent)
