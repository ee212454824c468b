"""What a directory's checkpoints still say of logs that are gone from it, or were cut, until they are written anew.

A checkpoint names partitions, and the next log of a name may be another one: of a topic that was made again, or that
came back from another directory. As long as a checkpoint may speak of the one before, the folder of the log that is
there has a mark with that checkpoint's name, and a start after a crash does not believe it. No clock is asked: files
bear the times of clocks, and those are set back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ballast_broker.seams import Disk
from ballast_broker.storage.checkpoint import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from ballast_wire.names import TopicPartition

CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, CLEANER_OFFSETS)
OUTDATED_SUFFIX = ".outdated"


class Outdated:
    """Of one directory. On the loop's thread, but for `add` at a start."""

    def __init__(self) -> None:
        self._changes = 0
        self._since: dict[str, dict[TopicPartition, int]] = {name: {} for name in CHECKPOINTS}

    def add(self, topic_partition: TopicPartition, names: Iterable[str] = CHECKPOINTS) -> None:
        self._changes += 1
        for name in names:
            self._since[name][topic_partition] = self._changes

    def checkpoints_of(self, topic_partition: TopicPartition) -> list[str]:
        return [name for name, since in self._since.items() if topic_partition in since]

    def now(self) -> int:
        """What `written` is told by whoever begins to collect what a checkpoint is to say."""
        return self._changes

    def written(self, name: str, collected: int) -> Sequence[TopicPartition]:
        """The checkpoint says what was true when it was collected; of these nothing in it is outdated any more."""
        since = self._since[name]
        right = [topic_partition for topic_partition, change in since.items() if change <= collected]
        for topic_partition in right:
            del since[topic_partition]
        return right


def mark(disk: Disk, folder: str, names: Iterable[str]) -> None:
    for name in names:
        disk.open(f"{folder}/{name}{OUTDATED_SUFFIX}", create=True).close()


def is_marked(disk: Disk, folder: str, name: str) -> bool:
    return disk.exists(f"{folder}/{name}{OUTDATED_SUFFIX}")


def marked(names_in_folder: Iterable[str]) -> list[str]:
    """The checkpoints that marks among these are for."""
    found = [name.removesuffix(OUTDATED_SUFFIX) for name in names_in_folder if name.endswith(OUTDATED_SUFFIX)]
    return [name for name in found if name in CHECKPOINTS]
