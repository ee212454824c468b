"""Opens and drops the logs of this broker's replicas, and tells the controller their directories; serves clients that
describe log directories or move replicas between them.

Errors are per entry: a refused entry changes nothing, and the others go ahead. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from ballast_broker.metadata.image import DIRECTORY_UNASSIGNED
from ballast_broker.replication.movers import Movers
from ballast_broker.replication.moves import Request, decide_request
from ballast_broker.replication.replica import Replica
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition

if TYPE_CHECKING:
    from ballast_broker.config.logs import LogConfig
    from ballast_broker.replication.assignments import Assignments
    from ballast_broker.replication.replicas import Replicas
    from ballast_broker.storage.directories import LogDirectory
    from ballast_broker.storage.log import Log
    from ballast_broker.storage.manager import LogManager

logger = logging.getLogger(__name__)

LONGEST_NAME = 255
FUTURE_NAME_EXTRA = len("." + "0" * 32 + "-future")


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    topic_partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirectoryInfo:
    """`total_bytes` and `usable_bytes` are -1 if unknown."""

    path: str
    error: ErrorCode
    replicas: list[ReplicaInfo]
    total_bytes: int = -1
    usable_bytes: int = -1
    cordoned: bool = False


class Directories:
    def __init__(self, logs: LogManager, replicas: Replicas, movers: Movers, assignments: Assignments) -> None:
        self._logs = logs
        self._replicas = replicas
        self._movers = movers
        self._assignments = assignments

    # -- the log of a replica -----------------------------------------------------------------------------------------
    def open_log(self, replica: Replica, assigned: UUID | None, config: LogConfig, *, is_new: bool) -> None:
        """Open the replica's log, or create it, unless the existing one may be in a directory that is offline."""
        topic_partition = replica.topic_partition
        known = None if assigned is None else self._logs.directory(assigned)
        self._logs.set_aside_namesakes(topic_partition, replica.topic_id)
        try:
            if self._logs.get_future(topic_partition) is not None:
                self._logs.use_lone_future(topic_partition)
                if self._logs.get(topic_partition) is None:
                    raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "only the copy of an unfinished move is here")
            opened = self._logs.get_or_create(
                topic_partition,
                replica.topic_id,
                config,
                is_new=is_new or (known is not None and known.online),
                assigned_directory=assigned,
            )
        except ApiError as error:
            logger.error("%s has no log on this broker, its replica here is offline: %s", topic_partition, error)
            replica.go_offline()
            raise
        replica.use(opened)
        replica.offline = False

    def settle(self, replica: Replica, assigned: UUID | None) -> None:
        """Resume a move that a restart interrupted; correct the controller if it has a wrong directory."""
        number = replica.topic_partition.partition
        directory = replica.online_log().directory
        if assigned is not None:
            self._assignments.known(replica.topic_id, number, assigned)
        move = self._movers.moves.get(replica.topic_partition)
        future = self._logs.get_future(replica.topic_partition)
        if move is None and future is not None:
            move = self._movers.start(replica, future.directory)
        if move is not None:
            self._movers.metadata_says(move, assigned)
        elif assigned == DIRECTORY_UNASSIGNED:
            self._assignments.assign_in_time(replica.topic_id, number, directory.id)
        elif assigned != directory.id:
            self._assignments.assign(replica.topic_id, number, directory.id)

    def delete_replica(self, replica: Replica) -> None:
        """The replica is no longer on this broker: delete its log."""
        move = self._movers.moves.get(replica.topic_partition)
        if move is not None:
            self._movers.cancel(move, assign_back=False)
        replica.leave()
        self._logs.delete(replica.topic_partition)

    def failed(self, directory: LogDirectory) -> None:
        self._movers.directory_failed(directory)
        self._assignments.hurry()

    # -- moving -------------------------------------------------------------------------------------------------------
    def alter(self, entries: Mapping[TopicPartition, str]) -> dict[TopicPartition, ErrorCode]:
        results = {}
        for topic_partition, path in entries.items():
            try:
                self._alter(topic_partition, path)
                results[topic_partition] = ErrorCode.NONE
            except ApiError as error:
                results[topic_partition] = error.code
        return results

    def _alter(self, topic_partition: TopicPartition, path: str) -> None:
        if len(str(topic_partition).encode()) + FUTURE_NAME_EXTRA > LONGEST_NAME:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        wanted = self._wanted(path)
        replica = self._replicas.find(topic_partition)
        if replica is None:
            self._refuse_cordoned(wanted)
            self._logs.set_preferred_directory(topic_partition, wanted.path)
            raise ApiError(ErrorCode.REPLICA_NOT_AVAILABLE)
        current = replica.online_log().directory
        move = self._movers.moves.get(topic_partition)
        request = decide_request(current.path, move.destination if move else None, wanted.path)
        if request is Request.NOTHING:
            return
        if request is not Request.CANCEL:
            self._refuse_cordoned(wanted)
        if move is not None:
            self._movers.cancel(move)
        if request is not Request.CANCEL:
            self._movers.start(replica, wanted)

    @staticmethod
    def _refuse_cordoned(wanted: LogDirectory) -> None:
        if wanted.cordoned:
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{wanted.path} is cordoned.")

    def _wanted(self, path: str) -> LogDirectory:
        found = self._logs.directory(posixpath.normpath(path)) if path.startswith("/") else None
        if found is None:
            raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND)
        if not found.online:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        return found

    # -- describing ---------------------------------------------------------------------------------------------------
    async def describe(self, wanted: Collection[TopicPartition] | None = None) -> list[LogDirectoryInfo]:
        """Describe every directory with the `wanted` replicas, or all of them; yields to the loop in between."""
        replicas: dict[str, list[ReplicaInfo]] = {directory.path: [] for directory in self._logs.directories}

        async def add(
            logs: Sequence[tuple[TopicPartition, Log]], lag_of: Callable[[Log], int], *, is_future: bool
        ) -> None:
            async for topic_partition, log in InTurns(logs):
                if wanted is None or topic_partition in wanted:
                    info = ReplicaInfo(topic_partition, log.size_bytes, max(0, lag_of(log)), is_future)
                    replicas[log.directory.path].append(info)

        def lag_of_future(future: Log) -> int:
            current = self._logs.get(future.topic_partition)
            return 0 if current is None else current.log_end_offset - future.log_end_offset

        logs, future_logs = list(self._logs.logs.items()), list(self._logs.future_logs.items())
        await add(logs, lambda log: log.high_watermark - log.log_end_offset, is_future=False)
        await add(future_logs, lag_of_future, is_future=True)
        await asyncio.gather(*(directory.learn_usage() for directory in self._logs.directories))
        return [_info(directory, replicas[directory.path]) for directory in self._logs.directories]


def _info(directory: LogDirectory, replicas: list[ReplicaInfo]) -> LogDirectoryInfo:
    if not directory.online:
        return LogDirectoryInfo(directory.path, ErrorCode.KAFKA_STORAGE_ERROR, [], cordoned=directory.cordoned)
    usage = directory.known_usage
    if usage is None:
        return LogDirectoryInfo(directory.path, ErrorCode.NONE, replicas, cordoned=directory.cordoned)
    return LogDirectoryInfo(
        directory.path, ErrorCode.NONE, replicas, usage.total_bytes, usage.usable_bytes, directory.cordoned
    )
