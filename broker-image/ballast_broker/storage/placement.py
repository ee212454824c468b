"""Chooses the directory for a new replica: the preferred, the assigned, else the one with fewest logs that has space.

Loop thread only.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Collection, Sequence
from uuid import UUID

from ballast_broker.storage.checkpoint import uuid_text
from ballast_broker.storage.directories import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    LogDirectory,
)
from ballast_broker.storage.room import room_for
from ballast_wire.names import TopicPartition

logger = logging.getLogger(__name__)
_NO_PLACE = frozenset({UNASSIGNED_DIRECTORY, LOST_DIRECTORY, MIGRATING_DIRECTORY})
# More than a broker ever gets at once. Without a limit, preferences of replicas that never come would pile up.
MOST_PREFERRED = 100_000


class Placement:
    """`cordoned` and `reserve`: from the configuration file."""

    def __init__(self, directories: Sequence[LogDirectory], cordoned: Collection[str], reserve: int | None) -> None:
        self._directories = directories
        self._cordoned = cordoned
        self._reserve = reserve
        self._counts: Counter[str] = Counter()  # future logs too
        self._preferred: dict[TopicPartition, str] = {}
        self.cordon(None)

    def directory(self, path_or_id: str | UUID) -> LogDirectory | None:
        """By path (absolute) or by id."""
        for directory in self._directories:
            if path_or_id in (directory.id, directory.path):
                return directory
        return None

    def comes(self, directory: LogDirectory) -> None:
        """A log was added to this directory."""
        self._counts[directory.path] += 1

    def goes(self, directory: LogDirectory) -> None:
        self._counts[directory.path] -= 1

    def cordon(self, paths: str | None) -> None:
        """Set the directories that take no new replicas; None: as the configuration file says."""
        named = self._cordoned if paths is None else {path.strip() for path in paths.split(",")}
        cordoned = {os.path.abspath(path) for path in named if path and path != "*"}
        for directory in self._directories:
            directory.cordoned = "*" in named or directory.path in cordoned

    def has_room(self, directory: LogDirectory, size: int) -> bool:
        """Whether `size` more bytes fit without touching the reserve, by what the disk said last: let it be asked
        (`ask_usage`) before."""
        return room_for(size, directory.known_usage, self._reserve)

    def candidates(self, topic_partition: TopicPartition, assigned: UUID | None) -> list[LogDirectory]:
        """The directories to try in order: preferred, else assigned, else (also if that one is silent) the one with
        fewest logs that has space; then the rest, silent ones last. Asks on the loop how full a disk is: the log will
        be created there on the loop, too.
        """
        by_count = sorted(
            (directory for directory in self._directories if directory.online and not directory.cordoned),
            key=lambda directory: (directory.threads.silent, self._counts[directory.path]),
        )
        preferred = self._preferred.get(topic_partition)
        named = None if preferred is None else self.directory(preferred)
        if named is not None and named.cordoned:  # cordoned since
            named = None
        if named is None and assigned is not None and assigned not in _NO_PLACE:
            named = self.directory(assigned)
            if named is None:
                logger.warning(
                    "%s begins empty: it was in the directory with id %s, which none of log.dirs has",
                    topic_partition, uuid_text(assigned),
                )  # fmt: skip
        if named is None or not named.online or named.threads.silent:
            answering = (directory for directory in by_count if not directory.threads.silent)
            named = next((each for each in answering if room_for(0, each.usage(), self._reserve)), None)
        if named is None:
            return by_count
        return [named, *(directory for directory in by_count if directory is not named)]

    def prefer(self, topic_partition: TopicPartition, path: str) -> None:
        """Remember until the replica is created; if too many are pending, the oldest preference is dropped."""
        self._preferred.pop(topic_partition, None)
        if len(self._preferred) >= MOST_PREFERRED:
            del self._preferred[next(iter(self._preferred))]
        self._preferred[topic_partition] = path

    def preferred(self, topic_partition: TopicPartition) -> str | None:
        return self._preferred.get(topic_partition)

    def forget_preference(self, topic_partition: TopicPartition) -> None:
        self._preferred.pop(topic_partition, None)
