"""The load of a cluster as columns: brokers, directories, partitions and replicas.

A `ClusterLoad` is immutable and holds all the planner knows. Rows are sorted when it is built (brokers by id,
directories by broker and path, replicas by topic, partition and position), so the same cluster described in another
order gives the same arrays and therefore the same plan. Columns refer to each other by index, not by id.
PURE: no I/O, no clock, no randomness; safe to share between threads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NO_DIRECTORY = -1
NO_RACK = -1
# Bytes are summed in 64 bits, copies in flight included: totals of at most an exbibyte cannot overflow.
MOST_BYTES = 1 << 60


class LoadError(ValueError):
    """The description of the cluster contradicts itself or lacks something; nothing can be planned from it."""


class Broker(NamedTuple):
    id: int
    rack: str | None = None
    alive: bool = True
    cordoned: bool = False


class Directory(NamedTuple):
    """`used_bytes` counts everything on the volume, including what is not Kafka's."""

    broker: int
    path: str
    total_bytes: int
    used_bytes: int
    cordoned: bool = False
    online: bool = True

    def weighted(self, percent: int) -> Directory:
        """The same directory with its capacity scaled to `percent`; the bytes used stay."""
        return self._replace(total_bytes=self.total_bytes * percent // 100)


class Replica(NamedTuple):
    """`position` is the index in the partition's assignment; `log_dir` is None if no broker reported it.

    `bytes_in` and `bytes_out` (to consumers and followers) are the partition's rates per second; any one of its
    replicas, or all of them, may carry them.
    """

    topic: str
    partition: int
    broker: int
    log_dir: str | None
    size_bytes: int
    is_leader: bool = False
    position: int = 0
    bytes_in: float = 0.0
    bytes_out: float = 0.0


@dataclass(frozen=True, slots=True)
class Brokers:
    ids: Ints
    racks: tuple[str | None, ...]
    alive: Bools
    cordoned: Bools

    def rack_numbers(self) -> Ints:
        """A number for each broker's rack; all NO_RACK if a live broker has none: Kafka ignores racks then, too.

        The rack of a broker that is down may be unknown; that does not affect the others.
        """
        if any(rack is None for rack, alive in zip(self.racks, self.alive, strict=True) if alive):
            return np.full(len(self.racks), NO_RACK, dtype=np.int64)
        names = sorted({rack for rack in self.racks if rack is not None})
        numbers = [NO_RACK if rack is None else names.index(rack) for rack in self.racks]
        return np.array(numbers, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Directories:
    broker: Ints
    paths: tuple[str, ...]
    total: Ints
    used: Ints
    cordoned: Bools
    online: Bools


@dataclass(frozen=True, slots=True)
class Partitions:
    """`first[i]:first[i + 1]` are the replicas of partition i, in the order of its assignment."""

    topic: Ints
    number: Ints
    first: Ints
    bytes_in: Floats
    bytes_out: Floats


@dataclass(frozen=True, slots=True)
class Replicas:
    partition: Ints
    broker: Ints
    directory: Ints
    size: Ints
    leader: Bools


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    brokers: Brokers
    directories: Directories
    topics: tuple[str, ...]
    partitions: Partitions
    replicas: Replicas

    @staticmethod
    def from_rows(
        brokers: Iterable[Broker], directories: Iterable[Directory], replicas: Iterable[Replica]
    ) -> ClusterLoad:
        """Build from plain rows, in any order. Raises LoadError for rows that contradict each other."""
        rows = list(replicas)
        topics = sorted({row.topic for row in rows})
        topic_index = {topic: index for index, topic in enumerate(topics)}
        columns = ReplicaColumns(
            topic=np.fromiter((topic_index[row.topic] for row in rows), np.int64, len(rows)),
            partition=np.fromiter((row.partition for row in rows), np.int64, len(rows)),
            broker=np.fromiter((row.broker for row in rows), np.int64, len(rows)),
            directory=np.zeros(len(rows), np.int64),
            size=np.fromiter((row.size_bytes for row in rows), np.int64, len(rows)),
            leader=np.fromiter((row.is_leader for row in rows), np.bool_, len(rows)),
            position=np.fromiter((row.position for row in rows), np.int64, len(rows)),
            bytes_in=np.fromiter((row.bytes_in for row in rows), np.float64, len(rows)),
            bytes_out=np.fromiter((row.bytes_out for row in rows), np.float64, len(rows)),
        )
        broker_columns = _broker_columns(brokers)
        directory_columns = _directory_columns(broker_columns, directories)
        index_of = _directory_index(broker_columns, directory_columns)
        for index, row in enumerate(rows):
            columns.directory[index] = _resolve_directory(index_of, row)
        return _assemble(broker_columns, directory_columns, tuple(topics), columns)

    @staticmethod
    def from_columns(
        brokers: Iterable[Broker], directories: Iterable[Directory], topics: Sequence[str], columns: ReplicaColumns
    ) -> ClusterLoad:
        """Build from columns: `columns.topic` indexes `topics`, `columns.directory` indexes `directories` as given."""
        given = list(directories)
        broker_columns = _broker_columns(brokers)
        directory_columns = _directory_columns(broker_columns, given)
        index_of = _directory_index(broker_columns, directory_columns)
        renumber = np.array([index_of[row.broker, row.path] for row in given] + [NO_DIRECTORY], dtype=np.int64)
        topic_order = sorted(range(len(topics)), key=lambda index: topics[index])
        topic_rank = np.empty(len(topics), dtype=np.int64)
        topic_rank[topic_order] = np.arange(len(topics))
        sorted_columns = replace(
            columns, topic=topic_rank[columns.topic], directory=renumber[columns.directory.astype(np.int64)]
        )
        ordered_topics = tuple(topics[index] for index in topic_order)
        return _assemble(broker_columns, directory_columns, ordered_topics, sorted_columns)

    def with_cordons(self, brokers: Iterable[int]) -> ClusterLoad:
        """The same cluster with these brokers cordoned, so that they take no new replicas."""
        named = np.isin(self.brokers.ids, np.array(sorted(brokers), dtype=np.int64))
        return replace(self, brokers=replace(self.brokers, cordoned=self.brokers.cordoned | named))

    def directory_name(self, index: int) -> tuple[int, str]:
        """The (broker id, path) of a directory."""
        return int(self.brokers.ids[self.directories.broker[index]]), self.directories.paths[index]

    def directory_index(self) -> dict[tuple[int, str], int]:
        return _directory_index(self.brokers, self.directories)

    def partition_name(self, index: int) -> tuple[str, int]:
        return self.topics[int(self.partitions.topic[index])], int(self.partitions.number[index])

    def partition_index(self) -> dict[tuple[str, int], int]:
        return {self.partition_name(index): index for index in range(self.partitions.topic.size)}

    def partitions_of(self, topics: Collection[str]) -> Bools:
        """Which partitions are of these topics."""
        named = np.array([topic in topics for topic in self.topics], dtype=np.bool_)
        of_them: Bools = named[self.partitions.topic]
        return of_them

    def replica_counts(self) -> Ints:
        """How many replicas each directory has."""
        known = self.replicas.directory[self.replicas.directory >= 0]
        counts: Ints = np.bincount(known, minlength=self.directories.total.size)
        return counts


@dataclass(frozen=True, slots=True)
class ReplicaColumns:
    """Replicas before sorting: broker ids, not indexes; `directory` is -1 where it is unknown."""

    topic: Ints
    partition: Ints
    broker: Ints
    directory: Ints
    size: Ints
    leader: Bools
    position: Ints
    bytes_in: Floats
    bytes_out: Floats


def _broker_columns(rows: Iterable[Broker]) -> Brokers:
    ordered = sorted(rows, key=lambda row: row.id)
    ids = np.array([row.id for row in ordered], dtype=np.int64)
    if np.unique(ids).size != ids.size:
        raise LoadError("a broker id occurs twice")
    return Brokers(
        ids=ids,
        racks=tuple(row.rack for row in ordered),
        alive=np.array([row.alive for row in ordered], dtype=np.bool_),
        cordoned=np.array([row.cordoned for row in ordered], dtype=np.bool_),
    )


def _directory_columns(brokers: Brokers, rows: Iterable[Directory]) -> Directories:
    ordered = sorted(rows, key=lambda row: (row.broker, row.path))
    owners = np.array([row.broker for row in ordered], dtype=np.int64)
    index = np.searchsorted(brokers.ids, owners) if brokers.ids.size else np.zeros_like(owners)
    known = (index < brokers.ids.size) & (brokers.ids[np.minimum(index, brokers.ids.size - 1)] == owners)
    if not known.all():
        raise LoadError(f"directory of a broker that is not listed: {owners[~known][0]}")
    for row in ordered:
        if row.total_bytes <= 0 and row.online:
            raise LoadError(f"capacity of {row.path} on broker {row.broker} is not known")
        if row.used_bytes < 0:
            raise LoadError(f"used bytes of {row.path} on broker {row.broker} are negative")
    if len({(row.broker, row.path) for row in ordered}) != len(ordered):
        raise LoadError("a directory is listed twice")
    for what, sizes in (("have", [row.total_bytes for row in ordered]), ("hold", [row.used_bytes for row in ordered])):
        if sum(sizes) > MOST_BYTES:
            raise LoadError(f"the directories are said to {what} {sum(sizes):,} bytes, which nobody has")
    return Directories(
        broker=index.astype(np.int64),
        paths=tuple(row.path for row in ordered),
        total=np.array([max(row.total_bytes, 1) for row in ordered], dtype=np.int64),
        used=np.array([row.used_bytes for row in ordered], dtype=np.int64),
        cordoned=np.array([row.cordoned for row in ordered], dtype=np.bool_),
        online=np.array([row.online for row in ordered], dtype=np.bool_),
    )


def _directory_index(brokers: Brokers, directories: Directories) -> dict[tuple[int, str], int]:
    ids = [int(brokers.ids[owner]) for owner in directories.broker]
    return {(broker, path): index for index, (broker, path) in enumerate(zip(ids, directories.paths, strict=True))}


def _resolve_directory(index_of: dict[tuple[int, str], int], row: Replica) -> int:
    if row.log_dir is None:
        return NO_DIRECTORY
    try:
        return index_of[row.broker, row.log_dir]
    except KeyError:
        where = f"{row.log_dir} on broker {row.broker}"
        raise LoadError(f"{row.topic}-{row.partition} lies in {where}, which is not listed") from None


def _assemble(
    brokers: Brokers, directories: Directories, topics: tuple[str, ...], columns: ReplicaColumns
) -> ClusterLoad:
    order = np.lexsort((columns.position, columns.partition, columns.topic))
    topic, number = columns.topic[order], columns.partition[order]
    starts = np.ones(order.size, dtype=np.bool_)
    starts[1:] = (topic[1:] != topic[:-1]) | (number[1:] != number[:-1])
    partition = np.cumsum(starts) - 1
    first = np.append(np.flatnonzero(starts), order.size).astype(np.int64)
    count = first.size - 1
    broker = np.searchsorted(brokers.ids, columns.broker[order]).astype(np.int64)
    size = columns.size[order]
    _check_replicas(brokers, columns.broker[order], broker, partition, size)
    directory = columns.directory[order]
    placed = directory >= 0
    if (directories.broker[directory[placed]] != broker[placed]).any():
        raise LoadError("a replica is said to lie in another broker's directory")
    sums = np.zeros(directories.total.size, dtype=np.int64)
    np.add.at(sums, directory[placed], size[placed])
    rates = [np.zeros(count, dtype=np.float64) for _ in range(2)]
    for target, source in zip(rates, (columns.bytes_in, columns.bytes_out), strict=True):
        np.maximum.at(target, partition, source[order])
    return ClusterLoad(
        brokers=brokers,
        directories=replace(directories, used=np.maximum(directories.used, sums)),
        topics=topics,
        partitions=Partitions(topic[first[:-1]], number[first[:-1]], first, rates[0], rates[1]),
        replicas=Replicas(partition, broker, directory, size, columns.leader[order]),
    )


def _check_replicas(brokers: Brokers, ids: Ints, index: Ints, partition: Ints, size: Ints) -> None:
    if not ids.size:
        return
    known = (index < brokers.ids.size) & (brokers.ids[np.minimum(index, brokers.ids.size - 1)] == ids)
    if not known.all():
        raise LoadError(f"replica on a broker that is not listed: {ids[~known][0]}")
    if (size < 0).any():
        raise LoadError("a replica has a negative size")
    if (held := float(size.sum(dtype=np.float64))) > MOST_BYTES:
        raise LoadError(f"the replicas are said to have {held:,.0f} bytes, which nobody has")
    keys = partition * (brokers.ids.size + 1) + index
    if np.unique(keys).size != keys.size:
        raise LoadError("two replicas of one partition are said to be on one broker")
