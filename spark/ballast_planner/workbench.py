"""The planner's only mutable state: the placement from which a plan is made.

A workbench starts from a ClusterLoad and is changed only by `move` and `reorder`; each replica moves at most once. It
finds replicas of a wanted size quickly (each directory's replicas are kept sorted by size) and knows the hard rules:
no two replicas of a partition on one broker, no loss of racks. PURE; one plan, one thread.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ballast_planner.levels import Levels
from ballast_planner.model import NO_RACK, Bools, ClusterLoad, Floats, Ints

FIRST_WINDOW = 128
FOLLOWER_PREFERENCE = 0.9


class Workbench:
    def __init__(self, load: ClusterLoad, levels: Levels, movable: Bools) -> None:
        self.load = load
        self.levels = levels
        self.movable = movable.copy()
        self.total = load.directories.total
        self.owner = load.directories.broker
        self.used = load.directories.used.copy()
        self.size = load.replicas.size
        self.directory = load.replicas.directory.copy()
        self.count = load.replica_counts()
        self.broker = load.replicas.broker.copy()
        self.preferred_leader = _preferred_leaders(load)
        self.moved: list[int] = []
        self.swapped_order: dict[int, int] = {}
        self._rack = load.brokers.rack_numbers()
        self._first = load.partitions.first
        self._slots = _slot_matrix(load)
        self._slots_before = self._slots.copy()
        self._position = np.arange(self.size.size) - self._first[load.replicas.partition]
        self._order, self._start, self._sorted_size = _by_directory(load)
        self.directories_of = tuple(np.flatnonzero(self.owner == broker) for broker in range(load.brokers.ids.size))

    def per_broker(self, values: Ints) -> Ints:
        """Sum of a directory column per broker."""
        sums = np.zeros(self.load.brokers.ids.size, dtype=np.int64)
        np.add.at(sums, self.owner, values)
        return sums

    def excess(self, directory: int) -> int:
        return int(self.used[directory] - self.levels.upper[directory])

    def room(self, directory: int) -> int:
        """Bytes that fit under the band's upper end; 0 if the directory takes nothing."""
        if not self.levels.open[directory]:
            return 0
        return int(self.levels.upper[directory] - self.used[directory])

    def spare(self, directory: int) -> int:
        """Bytes that a directory can give without falling below its band."""
        return int(self.used[directory] - self.levels.lower[directory])

    def fill(self) -> Floats:
        """Each directory's fill level, as a fraction."""
        filled: Floats = self.used / self.total
        return filled

    def standing(self, directories: Ints, size: int) -> Floats:
        return standing(size, self.used[directories], self.count[directories], self.total[directories])

    def may_go(self, replicas: Ints, broker: int) -> Bools:
        """Which of these replicas the rules on brokers and racks allow on that broker."""
        partition = self.load.replicas.partition[replicas]
        slots = self._slots[partition]
        # Nor where one was at the start: the broker would keep that replica and at most move it between its disks.
        allowed: Bools = ((slots != broker) & (self._slots_before[partition] != broker)).all(axis=1)
        if (self._rack != NO_RACK).any() and allowed.any():
            racks = np.where(slots >= 0, self._rack[slots], -2)
            racks[np.arange(replicas.size), self._position[replicas]] = -2
            here = self._rack[self.broker[replicas]]
            fresh = (racks != self._rack[broker]).all(axis=1)
            # A dead broker's rack protects no data.
            living = (slots >= 0) & self.load.brokers.alive[slots]
            redundant = ((racks == here[:, None]) & living).any(axis=1)
            allowed &= fresh | redundant
        return allowed

    def partners(self, replica: int) -> Ints:
        """The brokers of the partition's other replicas."""
        slots = self._slots[self.load.replicas.partition[replica]]
        others = np.delete(slots, self._position[replica])
        return others[others >= 0]

    def residents(self, directory: int) -> Ints:
        """Replicas that were in this directory at the start, smallest first."""
        return self._order[self._start[directory] : self._start[directory + 1]]

    def largest(self, source: int, target: int, at_most: int) -> int | None:
        """The largest replica of `source` up to `at_most` that may go to `target`; a follower if nearly as large."""
        begin, end = int(self._start[source]), int(self._start[source + 1])
        stop = begin + int(np.searchsorted(self._sorted_size[begin:end], at_most, side="right"))
        width = FIRST_WINDOW
        while stop > begin:
            low = max(begin, stop - width)
            candidates = self._last_eligible(self._order[low:stop], source, target)
            if candidates.size:
                best = int(candidates[-1])
                followers = candidates[~self.preferred_leader[candidates]]
                if followers.size and self.size[followers[-1]] >= FOLLOWER_PREFERENCE * self.size[best]:
                    best = int(followers[-1])
                return best
            stop, width = low, width * 4
        return None

    def smallest(self, source: int, target: int, at_least: int, at_most: int) -> int | None:
        """The smallest replica of `source` within these sizes that may go to `target`."""
        begin, end = int(self._start[source]), int(self._start[source + 1])
        sizes = self._sorted_size[begin:end]
        start = begin + int(np.searchsorted(sizes, at_least, side="left"))
        stop = begin + int(np.searchsorted(sizes, at_most, side="right"))
        width = FIRST_WINDOW
        while start < stop:
            high = min(stop, start + width)
            candidates = self._eligible(self._order[start:high], source, target)
            if candidates.size:
                return int(candidates[0])
            start, width = high, width * 4
        return None

    def movable_in(self, directory: int) -> Ints:
        """Residents that may still be moved, smallest first."""
        residents = self.residents(directory)
        return residents[self.movable[residents]]

    def _last_eligible(self, window: Ints, source: int, target: int) -> Ints:
        """Eligible replicas nearest the end of the window; checks the rules only until it has found some."""
        window = window[self.movable[window]]
        width = FIRST_WINDOW
        while window.size:
            found = self._allowed(window[-width:], source, target)
            if found.size:
                return found
            window, width = window[:-width], width * 4
        return window

    def _eligible(self, window: Ints, source: int, target: int) -> Ints:
        return self._allowed(window[self.movable[window]], source, target)

    def _allowed(self, window: Ints, source: int, target: int) -> Ints:
        if window.size and self.owner[source] != self.owner[target]:
            window = window[self.may_go(window, int(self.owner[target]))]
        return window

    def move(self, replica: int, target: int) -> None:
        """Put a replica into a directory, for good."""
        if not self.movable[replica]:
            raise AssertionError(f"replica {replica} is not movable")
        source, size = int(self.directory[replica]), int(self.size[replica])
        if source >= 0:
            self.used[source] -= size
            self.count[source] -= 1
        self.used[target] += size
        self.count[target] += 1
        self.directory[replica] = target
        self.broker[replica] = self.owner[target]
        self._slots[self.load.replicas.partition[replica], self._position[replica]] = self.owner[target]
        self.movable[replica] = False
        self.moved.append(replica)

    def reorder(self, partition: int, position: int) -> None:
        """Make the replica at `position` of the assignment the preferred leader."""
        first = int(self._first[partition])
        before = first + self.swapped_order.get(partition, 0)
        self.preferred_leader[before] = False
        self.preferred_leader[first + position] = True
        self.swapped_order[partition] = position

    def partitions_touched(self) -> Ints:
        """Partitions that differ from the start, in order."""
        moved: Iterable[int] = (int(self.load.replicas.partition[replica]) for replica in self.moved)
        reordered = (partition for partition, position in self.swapped_order.items() if position)
        return np.array(sorted({*moved, *reordered}), dtype=np.int64)


def standing(size: int, used: Ints, count: Ints, total: Ints) -> Floats:
    """How full directories would be with a replica of this size in them; the lowest is the best place.

    Empty replicas go by replica count, as it is unknown what they will hold: by fill, all would go to one directory.
    """
    stand: Floats = (used + size if size else count) / total
    return stand


def _preferred_leaders(load: ClusterLoad) -> Bools:
    preferred = np.zeros(load.replicas.size.size, dtype=np.bool_)
    preferred[load.partitions.first[:-1]] = True
    return preferred


def _slot_matrix(load: ClusterLoad) -> Ints:
    counts = np.diff(load.partitions.first)
    slots = np.full((counts.size, int(counts.max(initial=1))), -1, dtype=np.int64)
    position = np.arange(load.replicas.size.size) - load.partitions.first[load.replicas.partition]
    slots[load.replicas.partition, position] = load.replicas.broker
    return slots


def _by_directory(load: ClusterLoad) -> tuple[Ints, Ints, Ints]:
    order = np.lexsort((load.replicas.size, load.replicas.directory))
    start = np.searchsorted(load.replicas.directory[order], np.arange(load.directories.total.size + 1))
    return order, start.astype(np.int64), load.replicas.size[order]
