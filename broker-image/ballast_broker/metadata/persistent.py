"""An immutable map whose versions share what did not change. PURE.

Entries live in buckets of about 64; `changed` copies the buckets touched and the list of buckets, so one change among
100,000 entries copies some 1,600 pointers and one small dict: microseconds. The number of buckets follows the number of
entries, so a map of three entries is one dict. Every version remains valid forever.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")
Making = Generator[None, None, T]  # computed in steps; the generator's return value is the result

BUCKET_ENTRIES = 64
GROWTH = 8
STEP_ENTRIES = 32


def at_once(making: Making[T]) -> T:
    """Run all steps; return the result."""
    while True:
        try:
            next(making)
        except StopIteration as end:
            made: T = end.value
            return made


class _Items(ItemsView[K, V]):
    def __iter__(self) -> Iterator[tuple[K, V]]:
        for bucket in self._mapping._buckets:  # type: ignore[attr-defined]
            yield from bucket.items()


class _Values(ValuesView[V]):
    def __iter__(self) -> Iterator[V]:
        for bucket in self._mapping._buckets:  # type: ignore[attr-defined]
            yield from bucket.values()


class PersistentMap(Mapping[K, V]):
    """Iteration order is undefined; sort where order matters."""

    __slots__ = ("_buckets", "_count")

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._buckets: list[dict[K, V]] = [{}]
        self._count = 0
        if entries:
            self._fill(entries)

    def _fill(self, entries: Mapping[K, V]) -> None:
        buckets: list[dict[K, V]] = [{} for _ in range(_bucket_count(len(entries)))]
        mask = len(buckets) - 1
        for key, value in entries.items():
            buckets[hash(key) & mask][key] = value
        self._buckets = buckets
        self._count = len(entries)

    def __getitem__(self, key: K) -> V:
        buckets = self._buckets
        return buckets[hash(key) & (len(buckets) - 1)][key]

    def get(self, key: K, default: Any = None) -> Any:
        buckets = self._buckets
        return buckets[hash(key) & (len(buckets) - 1)].get(key, default)

    def __contains__(self, key: object) -> bool:
        buckets = self._buckets
        return key in buckets[hash(key) & (len(buckets) - 1)]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[K]:
        for bucket in self._buckets:
            yield from bucket

    def items(self) -> ItemsView[K, V]:
        return _Items(self)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self)!r})"

    def changed(self, updates: Mapping[K, V], removed: Iterable[K] = ()) -> PersistentMap[K, V]:
        """A new version with `updates` added and `removed` (absent keys allowed) removed."""
        return at_once(self.changing(updates, removed))

    def changing(self, updates: Mapping[K, V], removed: Iterable[K] = ()) -> Making[PersistentMap[K, V]]:
        """As `changed`, in steps. Neither the arguments nor this version may change meanwhile."""
        result: PersistentMap[K, V] = PersistentMap()
        result._buckets, result._count = list(self._buckets), self._count
        own: set[int] = set()  # buckets not shared with other versions
        if len(updates) > len(self._buckets) * BUCKET_ENTRIES * 2:
            own = yield from result._rehash(len(updates))
        done = 0
        for key in removed:
            if key in self:
                result._count -= result._bucket_to_edit(key, own).pop(key, None) is not None
            done += 1
            if not done % STEP_ENTRIES:
                yield
        for key, value in updates.items():
            bucket = result._bucket_to_edit(key, own)
            result._count += key not in bucket
            bucket[key] = value
            done += 1
            if not done % STEP_ENTRIES:
                yield
        if not own:
            return self
        if result._count > len(result._buckets) * BUCKET_ENTRIES:
            yield from result._rehash(result._count)
        return result

    def _bucket_to_edit(self, key: K, own: set[int]) -> dict[K, V]:
        slot = hash(key) & (len(self._buckets) - 1)
        if slot not in own:
            own.add(slot)
            self._buckets[slot] = dict(self._buckets[slot])
        return self._buckets[slot]

    def _rehash(self, entries: int) -> Making[set[int]]:
        """Redistribute into as many buckets as the entries need; return the slots not shared, i.e. all."""
        buckets: list[dict[K, V]] = [{} for _ in range(_bucket_count(entries))]
        mask = len(buckets) - 1
        for bucket in self._buckets:
            for done, (key, value) in enumerate(bucket.items(), 1):
                buckets[hash(key) & mask][key] = value
                if not done % STEP_ENTRIES:
                    yield
        self._buckets = buckets
        return set(range(len(buckets)))


def _bucket_count(entries: int) -> int:
    count = 1
    while count * BUCKET_ENTRIES < entries:
        count *= GROWTH
    return count
