"""Manages all logs of a broker in its directories: startup, creation, deletion, swapping in moved logs, shutdown.

Guarantees: one current log per partition; a failed directory takes only its own partitions offline; a log unknown to
the metadata is never deleted unasked. Loop thread only; blocking work goes through `Threads`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from uuid import UUID

from ballast_broker.config.logs import LogConfig
from ballast_broker.handles import advice
from ballast_broker.seams import Clock, Disk, Random, Threads
from ballast_broker.storage import startup_watchdog
from ballast_broker.storage.cleaner_process import CleanerProcess, CleanerRunner
from ballast_broker.storage.closing import close_directories
from ballast_broker.storage.compaction import Compactor
from ballast_broker.storage.context import LogContext, StorageConfig
from ballast_broker.storage.deleted_folders import DeletedFolders
from ballast_broker.storage.directories import (
    DELETE_SUFFIX,
    STRAY_SUFFIX,
    LogDirectory,
    identify,
)
from ballast_broker.storage.errors import DirectoryRefused, LogDirectoryFailure, OutOfHandles
from ballast_broker.storage.folders import Folders
from ballast_broker.storage.found_logs import FoundLogs
from ballast_broker.storage.held_logs import HeldLogs
from ballast_broker.storage.loading import create_log, write_topic_id
from ballast_broker.storage.log import Log
from ballast_broker.storage.maintenance import Maintenance
from ballast_broker.storage.open_files import OpenFiles
from ballast_broker.storage.placement import Placement
from ballast_broker.storage.starting import load_directory, load_metadata_log
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import ZERO_UUID, TopicPartition

MAKE_ROOM_EVERY_S = 1.0
logger = logging.getLogger(__name__)


class LogManager:
    """`config_of(topic)`: the topic's configuration as far as it is known at startup; the metadata updates it later.
    `cleaner`: by default a process of its own, which works only with the real disk."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        threads: Threads,
        config: StorageConfig,
        random: Random,
        *,
        config_of: Callable[[str], LogConfig] = lambda topic: LogConfig(),
        cleaner: CleanerRunner | None = None,
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.threads = threads
        self.random = random
        self.config = config
        self.config_of = config_of
        self.cluster_id = config.cluster_id
        self.directories = [LogDirectory(path, disk, threads) for path in config.log_dirs]
        path = os.path.abspath(config.metadata_log_dir or config.log_dirs[0])
        among = next((directory for directory in self.directories if directory.path == path), None)
        self._metadata_directory = among or LogDirectory(path, disk, threads)
        # A metadata directory outside `log.dirs` holds the metadata log alone: no replica is ever placed there.
        self._apart = [] if among else [self._metadata_directory]
        self.on_directory_failure: list[Callable[[LogDirectory], None]] = []
        self.held = HeldLogs()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._made_room_s = float("-inf")
        self._strays: dict[str, TopicPartition] = {}
        self.placement = Placement(self.directories, config.cordoned_log_dirs, config.log_dir_reserve_bytes)
        self.maintenance = Maintenance(self)
        self._deleted_folders = DeletedFolders(disk, self.maintenance.remove_later, config_of)
        self._folders = Folders(disk, random, self.maintenance)
        self._found = FoundLogs(self.held, self.placement, self._folders, self._deleted_folders, self._set_aside)
        self.compactor = Compactor(self, cleaner or CleanerProcess())
        self.context = LogContext(
            disk,
            clock,
            OpenFiles(config.maximum_open_files, self._could_not_close),
            self.maintenance.remove_later,
            self.maintenance.flush_later,
        )
        for directory in self.all_directories:
            directory.on_failure.append(self._directory_failed)
            directory.on_shortage.append(self._out_of_handles)

    # Facts

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        return self.held.current

    @property
    def future_logs(self) -> Mapping[TopicPartition, Log]:
        return self.held.future

    @property
    def strays(self) -> Mapping[str, TopicPartition]:
        """Folders renamed `-stray`, by path."""
        return MappingProxyType(self._strays)

    def get(self, topic_partition: TopicPartition) -> Log | None:
        return self.held.current.get(topic_partition)

    def get_future(self, topic_partition: TopicPartition) -> Log | None:
        return self.held.future.get(topic_partition)

    @property
    def all_directories(self) -> list[LogDirectory]:
        """Those of `log.dirs`, and that of the metadata log if it is a separate one."""
        return [*self.directories, *self._apart]

    def directory(self, path_or_id: str | UUID) -> LogDirectory | None:
        """By path (absolute) or by id."""
        return self.placement.directory(path_or_id)

    def directory_around(self, path: str) -> LogDirectory:
        """Where this file or folder is. Directories may be inside of one another: the innermost."""
        around = [each for each in self.all_directories if path.startswith(each.path + "/")]
        return max(around, key=lambda each: len(each.path))

    def online_directories(self) -> list[LogDirectory]:
        return [directory for directory in self.directories if directory.online]

    # Start

    async def start(self) -> None:
        """Lock, identify and load all directories in parallel. A directory that fails, or hangs while the others do
        not, goes offline; raises if none is left, or if one belongs to another cluster, broker or process."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        await self._ask_all(self._enter)
        if not self.online_directories():
            why = "; ".join(str(directory.error) for directory in self.directories)
            raise DirectoryRefused(f"None of the log directories can be used: {why}")
        self.cluster_id = identify(
            [directory for directory in self.all_directories if directory.online],
            self.disk,
            self.random,
            self.config,
            metadata_directory=self._metadata_directory,
            generate=self.config.generate_cluster_id and not any(each.given_up for each in self.directories),
        )
        await self._ask_all(partial(self._load, asyncio.Lock()))
        self._found.settle_older_copies()
        self._finish_interrupted_swaps()
        self._deleted_folders.remove_those_of(self.held.current)

    async def _ask_all(self, work: Callable[[LogDirectory, Threads], Awaitable[None]]) -> None:
        online = [directory for directory in self.all_directories if directory.online]
        await startup_watchdog.run_on_all(online, self._metadata_directory, self.disk, self.threads, work)

    async def _enter(self, directory: LogDirectory, threads: Threads) -> None:
        def enter() -> None:
            self.disk.make_directory(directory.path)
            directory.lock()
            directory.read_properties()

        try:
            await threads.run(enter)
        except OSError as error:
            directory.fail_to_start(error)

    async def _load(self, turn: asyncio.Lock, directory: LogDirectory, threads: Threads) -> None:
        try:
            found = await load_directory(
                self.context,
                directory,
                threads,
                self.config.num_recovery_threads_per_data_dir,
                self.config_of,
                turn,
            )
        except OSError as error:
            directory.fail_to_start(error)
            return
        for log in found.logs:
            self._found.current(log)
            if log.recovery_point < log.active.base_offset:
                self.maintenance.flush_later(log)  # so that the next start need not scan it again
        for log in found.futures:
            self._found.copy(log)
        self._strays.update(found.strays)
        self._deleted_folders.found(dict(found.deleted))

    def _finish_interrupted_swaps(self) -> None:
        """DIR-31: if the current log was renamed `-delete` but the future one not yet renamed, the future log was
        complete: make it the current one. Without that trace it may be incomplete, and waits until the metadata wants a
        replica here. So it does while a directory is offline: the current log may be there, and the trace be older."""
        deleted_folders = self._deleted_folders.partitions()
        for partition in list(self.held.future):
            if partition in deleted_folders:
                with contextlib.suppress(LogDirectoryFailure):  # it is offline now, as if it had failed while loading
                    self.use_lone_future(partition)

    def use_lone_future(self, topic_partition: TopicPartition) -> None:
        """Make the future log the current one, unless there is a current one, or may be in an offline directory."""
        if topic_partition in self.held.current or len(self.online_directories()) < len(self.directories):
            return
        self._folders.rename(self.held.future[topic_partition], "")
        self.held.use_future(topic_partition)

    # Creating and choosing a directory

    def get_or_create(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        *,
        is_new: bool = False,
        assigned_directory: UUID | None = None,
    ) -> Log:
        existing = self.held.current.get(topic_partition)
        if existing is not None:
            if existing.topic_id == ZERO_UUID and topic_id != ZERO_UUID:
                with existing.disk_faults():
                    write_topic_id(existing, topic_id)
            return existing
        offline = [directory.path for directory in self.directories if not directory.online]
        if not is_new and offline:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"Can not create log for {topic_partition} because log directories {','.join(offline)} are offline",
            )
        log = self._create_somewhere(topic_partition, topic_id, config, assigned_directory)
        self.held.add(log)
        self.placement.comes(log.directory)
        self.placement.forget_preference(topic_partition)
        return log

    def _create_somewhere(
        self, topic_partition: TopicPartition, topic_id: UUID, config: LogConfig, assigned: UUID | None
    ) -> Log:
        tried = []
        for directory in self.placement.candidates(topic_partition, assigned):
            path = f"{directory.path}/{topic_partition}"
            try:
                return create_log(self.context, directory, path, topic_partition, topic_id, config)
            except OSError as error:
                tried.append(directory.path)
                refusal = directory.failure_for(error)
                if isinstance(refusal, OutOfHandles):
                    raise refusal from error
        raise ApiError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"No log directories available for {topic_partition}. Tried {', '.join(tried) or 'none'}",
        )

    def set_preferred_directory(self, topic_partition: TopicPartition, path: str) -> None:
        """Remember the directory until the replica is created; ignored if its current or future log is there."""
        here = (self.get(topic_partition), self.get_future(topic_partition))
        if any(log is not None and log.directory.path == path for log in here):
            return
        self.placement.prefer(topic_partition, path)

    # Moves: the file side

    def create_future(self, topic_partition: TopicPartition, directory: LogDirectory, broker_epoch: int = 0) -> Log:
        """Create an empty future log for the current one, in another directory. `broker_epoch`: of the registration."""
        current = self.held.current[topic_partition]
        if topic_partition in self.held.future:
            raise ValueError(f"{topic_partition} has a future log already")
        name = self._folders.name_of_copy(topic_partition, broker_epoch)
        try:
            log = create_log(
                self.context,
                directory,
                f"{directory.path}/{name}",
                topic_partition,
                current.topic_id,
                current.config,
                current.bases[0],
            )
        except OSError as error:
            raise directory.failure_for(error) from error
        self.held.add_future(log)
        self.placement.comes(directory)
        self.placement.forget_preference(topic_partition)
        return log

    def abort_future(self, topic_partition: TopicPartition) -> None:
        """Discard the future log, if there is one."""
        log = self.held.take_future(topic_partition)
        if log is not None:
            self.placement.goes(log.directory)
            self._folders.discard(log)

    def swap_future(self, topic_partition: TopicPartition) -> Callable[[], None]:
        """Make the future log the current one. Returns a function for a thread, which makes the renames durable.

        The old folder is renamed first: a crash in between leaves `-delete` and `-future`, and the next start completes
        the swap.
        """
        future, current = self.held.future[topic_partition], self.held.current[topic_partition]
        if current.directory.online:
            self._folders.rename(current, DELETE_SUFFIX)
        try:
            self._folders.rename(future, "")
        except LogDirectoryFailure:
            # The destination failed at the last moment: keep the current log where it was.
            if current.directory.online:
                self._folders.rename(current, "")
            raise
        self._folders.retire(current)
        self._log_is_gone(topic_partition)
        self.held.use_future(topic_partition)
        self.placement.goes(current.directory)
        parents = (current.directory, future.directory)

        def make_durable() -> None:
            for directory in parents:
                if directory.online:
                    try:
                        self.disk.sync_directory(directory.path)
                    except OSError as error:
                        directory.failure_for(error)

        return make_durable

    # Deleting

    def delete(self, topic_partition: TopicPartition) -> None:
        """Rename the log `-delete`; it is removed after `file.delete.delay.ms`. A future log goes first: alone it would
        look like an interrupted swap. A failing disk takes its directory offline, but this does not raise."""
        self.abort_future(topic_partition)
        self.placement.forget_preference(topic_partition)
        log = self.held.take(topic_partition)
        if log is not None:
            self._discard(log)

    def delete_only(self, topic_partition: TopicPartition, topic_id: UUID) -> None:
        """Delete the logs that belong to this topic id, and none of other topics with the same name."""
        for log in self.held.take_topic(topic_partition, topic_id):
            self._discard(log)

    def _discard(self, log: Log) -> None:
        self.placement.goes(log.directory)
        self._folders.discard(log)
        self._log_is_gone(log.topic_partition)

    def set_aside_namesakes(self, topic_partition: TopicPartition, topic_id: UUID) -> None:
        """TOP-24: keep only logs of this topic id under this name. Set aside those of another topic, which was deleted
        while this broker or one of its directories was offline."""
        for log in self.held.take_others(topic_partition, topic_id):
            logger.warning("%s is set aside: it is of a deleted topic that had this name before", log.folder.path)
            self._set_aside(log)

    def set_aside_the_unclaimed(self, is_here: Callable[[TopicPartition, UUID], bool]) -> list[TopicPartition]:
        """Call once the metadata is known: namesakes not claimed until then belong to no replica of this broker."""
        self._strays.update(self._deleted_folders.settle(is_here))
        unclaimed = self.held.take_namesakes()
        for log in itertools.chain.from_iterable(unclaimed.values()):
            self._set_aside(log)
        return list(unclaimed)

    def rename_stray(self, topic_partition: TopicPartition) -> None:
        """LOG-34: the metadata does not know the partition: set its logs aside, listed, never deleted unasked."""
        for log in (self.held.take_future(topic_partition), self.held.take(topic_partition)):
            if log is not None:
                self._set_aside(log)

    def _set_aside(self, log: Log) -> None:
        self.placement.goes(log.directory)
        with contextlib.suppress(LogDirectoryFailure):
            with contextlib.suppress(OutOfHandles):  # whoever loads it later has to recover it
                log.close()
            self._folders.rename(log, STRAY_SUFFIX)
            self._strays[log.folder.path] = log.topic_partition
            log.directory.checkpoints.gone(log.topic_partition)
            self._log_is_gone(log.topic_partition)

    def _log_is_gone(self, topic_partition: TopicPartition) -> None:
        """Forget what was learned about the log, so that it is not applied to a namesake."""
        self.compactor.forget(topic_partition)
        self.maintenance.log_is_gone()

    # Failure

    def _out_of_handles(self, error: OSError) -> None:
        """Any thread. Comes in bursts, so act at most once a second."""
        now_s = self.clock.monotonic()
        if now_s - self._made_room_s < MAKE_ROOM_EVERY_S:
            return
        self._made_room_s = now_s
        logger.error("no more files can be opened (%s), what needs one is refused: %s", error, advice(error))
        self._on_loop(self.context.open_files.make_room)

    def _could_not_close(self, path: str, error: OSError) -> None:
        """Its directory fails once the log that needed room, perhaps one of another directory, has its file."""
        assert self._loop is not None
        directory = self.directory_around(path)
        self._loop.call_soon_threadsafe(directory.fail, error)

    def _directory_failed(self, directory: LogDirectory) -> None:
        """Any thread. The callbacks run on the loop, at once if called there."""
        logger.error("log directory %s is offline: %s", directory.path, directory.error)
        self._on_loop(partial(self._tell, directory))

    def _on_loop(self, tell: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None and threading.get_ident() != self._thread and not loop.is_closed():
            loop.call_soon_threadsafe(tell)
        else:
            tell()

    def _tell(self, directory: LogDirectory) -> None:
        for callback in self.on_directory_failure:
            callback(directory)
        self.context.open_files.abandon(lambda path: self.directory_around(path) is directory)
        directory.unlock()

    # The metadata log

    async def open_raft_log(self, config: LogConfig, no_copy_below: int = 0) -> Log:
        """Open `__cluster_metadata-0` in `metadata.log.dir` (default: the first of `log.dirs`), for Raft. CorruptFile
        if records below this offset, of which there is no copy, would be cut off."""
        directory, path = self._metadata_directory, self._metadata_directory.path
        if not directory.online:
            raise DirectoryRefused(f"metadata.log.dir {path} is not an online log directory")
        log = self.held.of_metadata = await load_metadata_log(
            self.context, directory, self.threads, config, no_copy_below
        )
        return log

    # Going on and stopping

    async def run_maintenance(self) -> None:
        """Run the periodic work and the cleaner until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.maintenance.run())
            if self.config.log_cleaner_enable:
                group.create_task(self.compactor.run())

    async def shutdown(self, broker_epoch: int = -1) -> None:
        await close_directories(self, broker_epoch)
        for directory in self.all_directories:  # failed ones, too
            directory.unlock()
