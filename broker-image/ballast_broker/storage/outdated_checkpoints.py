"""Tracks what a directory's checkpoint files say, and marks the entries that do not apply to the present log.

A checkpoint names partitions, but the next log of that name may be a different one: of a topic created again, or of a
replica that came back from another directory. So whoever creates or truncates a log leaves a mark in its folder for
each offset that a checkpoint has for that partition at this moment: `CHECKPOINT.OFFSET.INSTEAD.outdated`. Recovery
after a crash then uses INSTEAD: 0, or where the log was truncated. Any other offset in the checkpoint it believes: that
was written later, by this broker or by a program that had the directory in between and does not know marks. File times
cannot decide this, since clocks can be set back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ballast_broker.seams import Disk
from ballast_broker.storage.checkpoint import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    read_offsets,
)
from ballast_wire.names import TopicPartition

CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, CLEANER_OFFSETS)
NOTHING = -1
_MARK = re.compile(rf"^(?P<name>{'|'.join(CHECKPOINTS)})\.(?P<offset>\d+)\.(?P<instead>\d+)\.outdated$")


class OutdatedMark(NamedTuple):
    """Where the checkpoint `name` says `offset`, `instead` is right."""

    name: str
    offset: int
    instead: int

    @property
    def file_name(self) -> str:
        return f"{self.name}.{self.offset}.{self.instead}.outdated"


_Marked = dict[TopicPartition, set[OutdatedMark]]


class Checkpoint:
    """One checkpoint file. Loop thread only, except at startup."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.written_s = float("-inf")
        self._may_say: list[Mapping[TopicPartition, int]] = [{}]  # possible contents: several while it is being written
        self._marked: _Marked = {}
        self._fresh: _Marked = {}  # marked since the write began
        self._writing = False
        self._changed: set[TopicPartition] | None = None

    # At a start

    def load(self, said: Mapping[TopicPartition, int]) -> None:
        self._may_say = [said]

    def says(self, partition: TopicPartition) -> int:
        return self._may_say[-1].get(partition, NOTHING)

    def found(self, partition: TopicPartition, mark: OutdatedMark) -> None:
        """The mark was found in the log's folder, and applies."""
        self._marked.setdefault(partition, set()).add(mark)

    # A log is made, cut, or gone

    def mark_outdated(self, partition: TopicPartition, end: int) -> set[OutdatedMark]:
        """The marks for every offset beyond `end` that the file may have for the partition."""
        offsets = {said.get(partition, NOTHING) for said in self._may_say}
        marks = {OutdatedMark(self.name, offset, end) for offset in offsets if offset > end}
        if marks:
            (self._fresh if self._writing else self._marked).setdefault(partition, set()).update(marks)
        return marks

    def changed(self, partition: TopicPartition) -> None:
        """The value collected for the partition, to be written next, is outdated."""
        if self._changed is not None:
            self._changed.add(partition)

    # It is written anew, by one at a time

    def begin_to_collect(self) -> None:
        self._changed = set()

    def collected(self) -> Iterable[TopicPartition]:
        """The partitions whose values have to be collected again."""
        changed, self._changed = self._changed or (), None
        return changed

    def begin_to_write(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Whether the file has to be written. After a cancelled writer its content is unknown, so yes."""
        self.settled()
        self._writing = True
        if self._may_say == [offsets]:
            return False
        self._may_say.append(offsets)
        return True

    @property
    def is_written(self) -> bool:
        """False if the last write is not done, or could not be."""
        return len(self._may_say) == 1

    def written(self, now_s: float) -> None:
        self._may_say = self._may_say[-1:]
        self.written_s = now_s

    def marked(self) -> list[TopicPartition]:
        return list(self._marked)

    def outdated_marks(self, partition: TopicPartition) -> set[OutdatedMark]:
        """The marks made before the write began: the file speaks of the present log now, so they can go."""
        return self._marked.get(partition, set()) - self._fresh.get(partition, set())

    def removed(self, partition: TopicPartition) -> None:
        self._marked.pop(partition, None)

    def settled(self) -> None:
        self._writing = False
        for partition, marks in self._fresh.items():
            self._marked.setdefault(partition, set()).update(marks)
        self._fresh = {}


class Checkpoints:
    """The checkpoint files of one directory."""

    def __init__(self) -> None:
        self._files = {name: Checkpoint(name) for name in CHECKPOINTS}

    def __getitem__(self, name: str) -> Checkpoint:
        return self._files[name]

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._files.values())

    def load(self, disk: Disk, directory: str) -> None:
        for file in self:
            file.load(read_offsets(disk, f"{directory}/{file.name}"))

    def changed(self, partition: TopicPartition) -> None:
        for file in self:
            file.changed(partition)

    def gone(self, partition: TopicPartition) -> None:
        """The partition's folder is gone, and the marks in it."""
        for file in self:
            file.removed(partition)


def mark_outdated(disk: Disk, folder: str, checkpoints: Checkpoints, partition: TopicPartition, end: int = 0) -> None:
    """Mark what the checkpoints say beyond `end`, the log's end now. Call before anything else is appended to it."""
    for file in checkpoints:
        for mark in file.mark_outdated(partition, end):
            disk.open(f"{folder}/{mark.file_name}", create=True).close()


def _marks_among(names: Iterable[str]) -> Iterator[OutdatedMark]:
    for found in filter(None, map(_MARK.match, names)):
        yield OutdatedMark(found["name"], int(found["offset"]), int(found["instead"]))


def effective_offsets(
    names_in_folder: Iterable[str], checkpoints: Checkpoints, partition: TopicPartition
) -> dict[str, int]:
    """Checkpoint name → offset to use: what the file says, corrected by the marks; 0 if it says nothing."""
    result = {file.name: max(0, file.says(partition)) for file in checkpoints}
    for mark in _marks_among(names_in_folder):
        if mark.offset == checkpoints[mark.name].says(partition):
            result[mark.name] = min(result[mark.name], mark.instead)
    return result


def settle_marks(
    disk: Disk, folder: str, names: Iterable[str], checkpoints: Checkpoints, partition: TopicPartition, *, clean: bool
) -> None:
    """At startup: remove the marks that no longer apply, before a checkpoint rightly has that offset again."""
    for mark in list(_marks_among(names)):
        if not clean and checkpoints[mark.name].says(partition) == mark.offset:
            checkpoints[mark.name].found(partition, mark)
        else:
            disk.remove(f"{folder}/{mark.file_name}")
