"""Places new replicas evenly over brokers, and over racks where brokers have them. PURE.

Without racks this is Kafka's classic rule: a list of brokers, a start index, and a shift that grows by one each time
the partitions have gone once around the list. With racks the list alternates between racks, and each replica goes to a
rack with the fewest replicas so far. Fenced brokers are used only if there are not enough others; cordoned ones never.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ballast_broker.seams import Random


class PlacementError(Exception):
    """The requested placement is impossible; the message tells the client why."""


@dataclass(frozen=True, slots=True)
class UsableBroker:
    id: int
    rack: str | None = None
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Where to start: index into the list, and shift. `choose_start` draws them at random."""

    index: int
    shift: int


def choose_start(broker_count: int, random: Random) -> Start:
    return Start(random.randrange(max(1, broker_count)), random.randrange(max(1, broker_count)))


def place_partitions(
    brokers: Iterable[UsableBroker], first_partition: int, count: int, replication_factor: int, start: Start
) -> list[list[int]]:
    """Replica lists for `count` partitions from `first_partition` on; the first replica is the preferred leader."""
    usable = list(brokers)
    _check(usable, replication_factor)
    live = [broker for broker in usable if not broker.fenced]
    fenced = [broker for broker in usable if broker.fenced]
    taken_from_live = min(replication_factor, len(live))
    rows = _spread(live, first_partition, count, taken_from_live, start)
    missing = replication_factor - taken_from_live
    if missing:
        reserve = _spread(fenced, first_partition, count, missing, start)
        rows = [row + more for row, more in zip(rows, reserve, strict=True)]
    return rows


def _check(usable: Sequence[UsableBroker], replication_factor: int) -> None:
    if replication_factor <= 0:
        raise PlacementError(
            f"Invalid replication factor {replication_factor}: the replication factor must be positive."
        )
    if not any(not broker.fenced for broker in usable):
        raise PlacementError("All brokers are currently fenced.")
    if replication_factor > len(usable):
        raise PlacementError(
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(usable)} broker(s) are registered."
        )


def _spread(
    brokers: Sequence[UsableBroker], first_partition: int, count: int, replication_factor: int, start: Start
) -> list[list[int]]:
    racks = {broker.id: broker.rack for broker in brokers}
    rack_aware = len(set(racks.values())) > 1 and None not in racks.values()
    ordered = _alternate_racks(brokers) if rack_aware else [broker.id for broker in brokers]
    shift = start.shift + (first_partition // len(ordered) if first_partition else 0)
    rows = []
    for partition in range(first_partition, first_partition + count):
        if partition > first_partition and partition % len(ordered) == 0:
            shift += 1
        first = (partition + start.index) % len(ordered)
        candidates = _walk(ordered, first, shift)
        rows.append(
            _with_racks(candidates, racks, replication_factor) if rack_aware else candidates[:replication_factor]
        )
    return rows


def _walk(ordered: Sequence[int], first: int, shift: int) -> list[int]:
    """All brokers in the order in which a partition prefers them."""
    size = len(ordered)
    if size == 1:
        return [ordered[first]]
    return [ordered[first]] + [ordered[(first + 1 + (shift + step) % (size - 1)) % size] for step in range(size - 1)]


def _with_racks(candidates: Sequence[int], racks: dict[int, str | None], replication_factor: int) -> list[int]:
    """Take candidates in order, always from a rack with the fewest replicas so far that has a broker left."""
    per_rack: dict[str | None, int] = dict.fromkeys(racks.values(), 0)
    left = list(candidates)
    chosen: list[int] = []
    while len(chosen) < replication_factor:
        fewest = min(per_rack[racks[broker]] for broker in left)
        broker = next(broker for broker in left if per_rack[racks[broker]] == fewest)
        left.remove(broker)
        chosen.append(broker)
        per_rack[racks[broker]] += 1
    return chosen


def _alternate_racks(brokers: Sequence[UsableBroker]) -> list[int]:
    """0, 1, 2 in rack A and 3, 4 in rack B become 0, 3, 1, 4, 2."""
    by_rack: dict[str, list[int]] = {}
    for broker in brokers:
        by_rack.setdefault(broker.rack or "", []).append(broker.id)
    lanes = [by_rack[rack] for rack in sorted(by_rack)]
    result: list[int] = []
    for position in range(max(len(lane) for lane in lanes)):
        result.extend(lane[position] for lane in lanes if position < len(lane))
    return result
