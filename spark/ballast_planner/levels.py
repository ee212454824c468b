"""The level that the disks can be brought to, and the band around it.

The level is where water would stand if replicas were water: directories whose unmovable content lies higher stand
out of it and the rest shares what is left. A directory's band is level * (1 ± band), cut at its high-water mark; one
that takes nothing new has no lower end. A rack that has to hold so much that it cannot come into that band (one replica
of everything, where there are as many racks as replicas) has a level and a band of its own. PURE.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballast_planner.model import NO_RACK, Bools, ClusterLoad, Floats, Ints

MAX_ROUNDS = 16


@dataclass(frozen=True, slots=True)
class Levels:
    """In bytes per directory: both ends of the band and the high-water `mark`; `counts` says which are levelled."""

    level: float
    band: float
    counts: Bools
    open: Bools
    upper: Ints
    lower: Ints
    mark: Ints


def receiving_directories(load: ClusterLoad) -> Bools:
    """Directories that may take replicas: online, not cordoned, on a live broker that is not cordoned."""
    brokers, directories = load.brokers, load.directories
    broker_open = brokers.alive & ~brokers.cordoned
    open_: Bools = directories.online & ~directories.cordoned & broker_open[directories.broker]
    return open_


def readable_directories(load: ClusterLoad) -> Bools:
    """Directories whose replicas can be copied from where they are."""
    readable: Bools = load.directories.online & load.brokers.alive[load.directories.broker]
    return readable


def readable_in(load: ClusterLoad, directory: Ints) -> Bools:
    """Which replicas can be read, by the directory of each: not where that is unknown."""
    readable: Bools = np.append(readable_directories(load), False)[directory]
    return readable


def find_levels(
    load: ClusterLoad,
    band: float,
    high_water: float,
    movable: Bools,
    evacuated: Bools | None = None,
    used: Ints | None = None,
    directory: Ints | None = None,
) -> Levels:
    """Levels over all readable directories; `evacuated` ones shall end empty of movable replicas.

    `used` and `directory` (of each replica) describe a placement other than the present one.
    """
    total = load.directories.total.astype(np.float64)
    used = load.directories.used if used is None else used
    directory = load.replicas.directory if directory is None else directory
    gone = np.zeros(total.size, np.bool_) if evacuated is None else evacuated
    readable, receiving = readable_directories(load), receiving_directories(load) & ~gone
    counts = readable & ~gone
    fixed, largest = _fixed_bytes(load, movable, used, directory)
    moving_in = float((used - fixed)[gone].sum()) + float(load.replicas.size[movable & (directory < 0)].sum())
    # What takes nothing new can sink but not rise; what cannot be moved can rise but not sink.
    ceiling = np.where(receiving, np.inf, used.astype(np.float64))
    amount = float(used[counts].sum()) + moving_in
    level, floor = _level_and_floor(total, fixed, largest, ceiling, amount, counts, band)
    needed = _needed_per_rack(load, movable)
    level_of = _levels_of_racks(load, needed, fixed, floor, ceiling, counts, level, band)
    upper = np.minimum((1 + band) * level_of, high_water) * total
    upper = np.where(counts, np.maximum(upper, floor), 0.0)
    lower = np.where(receiving, np.minimum((1 - band) * level_of, high_water) * total, 0.0)
    return Levels(
        level=level,
        band=band,
        counts=counts,
        open=receiving,
        upper=np.floor(upper).astype(np.int64),
        lower=np.ceil(np.minimum(lower, upper)).astype(np.int64),
        mark=np.floor(high_water * total).astype(np.int64),
    )


def _needed_per_rack(load: ClusterLoad, movable: Bools) -> float:
    """Bytes that every rack has to hold: what the others cannot take when each partition is spread over all of them."""
    racks = int(load.brokers.rack_numbers().max(initial=NO_RACK)) + 1
    if racks < 1 or not movable.any():
        return 0.0
    number = np.diff(load.partitions.first)
    must = np.maximum(number - (racks - 1) * -(-number // racks), 0)
    size = np.zeros(number.size)
    np.maximum.at(size, load.replicas.partition[movable], load.replicas.size[movable].astype(np.float64))
    return float((must * size).sum())


def _levels_of_racks(
    load: ClusterLoad, needed: float, fixed: Floats, floor: Floats, ceiling: Floats, counts: Bools, level: float,
    band: float,
) -> Floats:  # fmt: skip
    """The level of each directory: that of all, or its rack's own where the rack cannot come into the band."""
    found = np.full(counts.size, level)
    if not needed:
        return found
    rack_of = load.brokers.rack_numbers()[load.directories.broker]
    total = load.directories.total.astype(np.float64)
    for rack in range(int(rack_of.max()) + 1):
        inside = counts & (rack_of == rack)
        # Giants stand out of the water of their rack, too, and leave the rest of it lower.
        own = _water_level(total, floor, ceiling, needed + float(fixed[inside].sum()), inside)
        if own > (1 + band) * level:
            found[inside] = own
    return found


def _level_and_floor(
    total: Floats, fixed: Floats, largest: Floats, ceiling: Floats, amount: float, counts: Bools, band: float
) -> tuple[float, Floats]:
    """The level, and the floors that giants make: replicas larger than every directory's band.

    A giant makes its directory stand out of the water wherever it is; the rest then stands lower, which may make
    giants of others, hence the rounds.
    """
    floor, widest = fixed, float(np.max(total[counts], initial=0.0))
    level = _water_level(total, floor, ceiling, amount, counts)
    for _ in range(MAX_ROUNDS):
        giant = counts & (largest > 0) & (fixed + largest > (1 + band) * level * widest)
        raised = np.where(giant, fixed + largest, fixed)
        if (raised == floor).all():
            break
        floor = raised
        level = _water_level(total, floor, ceiling, amount, counts)
    return level, floor


def _fixed_bytes(load: ClusterLoad, movable: Bools, used: Ints, directory: Ints) -> tuple[Floats, Floats]:
    """Per directory: bytes that no plan moves, and the largest replica that one could."""
    size = load.directories.total.size
    can_go = movable & (directory >= 0)
    where, sizes = directory[can_go], load.replicas.size[can_go]
    moving = np.bincount(where, weights=sizes, minlength=size)
    largest = np.zeros(size)
    np.maximum.at(largest, where, sizes.astype(np.float64))
    return np.maximum(used - moving, 0.0), largest


def _water_level(total: Floats, floor: Floats, ceiling: Floats, amount: float, counts: Bools) -> float:
    """The fraction at which `amount` stands when no directory sinks below its floor or rises above its ceiling."""
    if not counts.any():
        return 0.0
    low, high = 0.0, max(1.0, amount / float(total[counts].sum())) * 2
    for _ in range(60):
        middle = (low + high) / 2
        held = np.maximum(np.minimum(middle * total, ceiling), floor)[counts].sum()
        low, high = (middle, high) if held < amount else (low, middle)
    return high
