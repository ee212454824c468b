"""The `uniform` assignor for members with different subscriptions. PURE.

A member keeps what it had of the topics it still subscribes to. Unassigned partitions go, topic by topic, to the
subscribers with the fewest partitions. Then partitions move from subscribers with the most to those with the fewest,
until no two subscribers of a topic differ by more than one or, where subscriptions overlap unfavourably, a maximum
number of rounds is reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from ballast_broker.coordinator.consumers.group import Partitions
from ballast_broker.coordinator.consumers.hash_order import texts_in_order

MOST_ROUNDS = 16
NOBODY = -1


def assign_uniform_mixed(
    subscribed: Mapping[str, frozenset[UUID]], targets: Mapping[str, Partitions], partitions: Mapping[UUID, int]
) -> dict[str, Partitions]:
    names = texts_in_order(subscribed)
    state = _State([subscribed[name] for name in names], partitions)
    if not state.readers:
        return {}
    for member, name in enumerate(names):
        state.keep(member, targets[name])
    state.give_what_nobody_has()
    state.level()
    return dict(zip(names, state.of_members(), strict=True))


class _State:
    """The assignment being built; members are identified by index."""

    def __init__(self, subscribed: list[frozenset[UUID]], partitions: Mapping[UUID, int]) -> None:
        self._subscribed = subscribed
        self.sizes = [0] * len(subscribed)
        self.readers: dict[UUID, list[int]] = {}
        for member, topics in enumerate(subscribed):
            for topic_id in topics:
                self.readers.setdefault(topic_id, []).append(member)
        self._owners = {topic_id: [NOBODY] * partitions[topic_id] for topic_id in self.readers}

    def keep(self, member: int, target: Partitions) -> None:
        for topic_id in target.keys() & self._subscribed[member]:
            for number in target[topic_id]:
                self._owners[topic_id][number] = member
            self.sizes[member] += len(target[topic_id])

    def of_members(self) -> list[Partitions]:
        found: list[dict[UUID, set[int]]] = [{} for _ in self.sizes]
        for topic_id, owners in self._owners.items():
            for number, owner in enumerate(owners):
                if owner != NOBODY:
                    found[owner].setdefault(topic_id, set()).add(number)
        return [{topic_id: frozenset(numbers) for topic_id, numbers in each.items()} for each in found]

    def _in_order(self, topics: Iterable[UUID]) -> list[UUID]:
        """Topics with the most partitions per reader first, then those with the fewest readers."""

        def rank(topic_id: UUID) -> tuple[float, int, int, int]:
            readers = len(self.readers[topic_id])
            high, low = topic_id.int >> 64, topic_id.int & (2**64 - 1)
            return -len(self._owners[topic_id]) / readers, readers, _signed(high), _signed(low)

        return sorted(topics, key=rank)

    def _give(self, topic_id: UUID, number: int, member: int) -> None:
        owners = self._owners[topic_id]
        if owners[number] != NOBODY:
            self.sizes[owners[number]] -= 1
        owners[number] = member
        self.sizes[member] += 1

    def give_what_nobody_has(self) -> None:
        for topic_id in self._in_order(topic_id for topic_id, owners in self._owners.items() if NOBODY in owners):
            scale = _Scale(self.readers[topic_id], self.sizes)
            for number, owner in enumerate(self._owners[topic_id]):
                if owner == NOBODY:
                    self._give(topic_id, number, scale.next_least())

    def level(self) -> None:
        topics = self._in_order(topic_id for topic_id, readers in self.readers.items() if len(readers) > 1)
        last_moved = -1
        for _ in range(MOST_ROUNDS):
            for place, topic_id in enumerate(topics):
                if place == last_moved:
                    return
                if self._level_topic(topic_id) or last_moved == -1:
                    last_moved = place

    def _level_topic(self, topic_id: UUID) -> int:
        """Level one topic; return how many partitions moved."""
        readers = self.readers[topic_id]
        if max(self.sizes[each] for each in readers) - min(self.sizes[each] for each in readers) <= 1:
            return 0
        owned: dict[int, list[int]] = {}
        for number, owner in enumerate(self._owners[topic_id]):
            owned.setdefault(owner, []).append(number)
        scale, moved = _Scale(readers, self.sizes), 0
        while not scale.is_level():
            giver = scale.next_most()
            while giver is not None and not owned.get(giver):
                scale.leave_out()
                giver = scale.next_most()
            if giver is None:
                break
            number = owned[giver].pop()
            taker = scale.next_least()
            if scale.is_level():
                break
            self._give(topic_id, number, taker)
            moved += 1
        return moved


class _Scale:
    """A topic's readers sorted by size: hands out those with the least, level by level, and those with the most."""

    def __init__(self, readers: list[int], sizes: list[int]) -> None:
        self._sizes = sizes
        self._sorted = sorted(readers, key=lambda member: (sizes[member], member))
        self._least = sizes[self._sorted[0]] - 1
        self._most = sizes[self._sorted[-1]] + 1
        self._low_end = self._next_low = 0
        self._high_start = self._high_end = len(self._sorted)
        self._next_high = len(self._sorted) - 1

    def is_level(self) -> bool:
        return self._most - self._least <= 1

    def next_least(self) -> int:
        if self._next_low >= self._low_end:
            self._least += 1
            while self._low_end < len(self._sorted) and self._size_at(self._low_end) == self._least:
                self._low_end += 1
            self._next_low = 0
        self._next_low += 1
        return self._sorted[self._next_low - 1]

    def next_most(self) -> int | None:
        if self._next_high < self._high_start:
            empty = self._high_end <= self._high_start and self._high_start > 0
            self._most = self._size_at(self._high_start - 1) if empty else self._most - 1
            while self._high_start > 0 and self._size_at(self._high_start - 1) == self._most:
                self._high_start -= 1
            self._next_high = self._high_end - 1
        if self._next_high < 0:
            return None
        self._next_high -= 1
        return self._sorted[self._next_high + 1]

    def leave_out(self) -> None:
        """Skip the reader last returned by `next_most`: it has none of this topic to give."""
        self._high_end -= 1
        order, place = self._sorted, self._next_high + 1
        order[place], order[self._high_end] = order[self._high_end], order[place]

    def _size_at(self, place: int) -> int:
        return self._sizes[self._sorted[place]]


def _signed(half: int) -> int:
    """Java compares the halves of a UUID as signed numbers."""
    return half - (1 << 64) if half >= 1 << 63 else half
