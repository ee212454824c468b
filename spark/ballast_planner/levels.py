"""Computes the level that the disks can be brought to, and the band around it.

The level is where the bytes would stand if they were water: directories whose unmovable content is higher stick out
of it, and the others share the rest. A directory's band is level * (1 ± band), capped at its high-water mark; one that
takes nothing new has no lower end. A rack that must hold too much to come into that band (one replica of everything,
where there are as many racks as replicas) has a level and a band of its own. PURE.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballast_planner.model import NO_RACK, Bools, ClusterLoad, Floats, Ints

MAX_ROUNDS = 16


@dataclass(frozen=True, slots=True)
class Levels:
    """Per directory, in bytes: both ends of the band and the high-water `mark`.

    `counts` marks the directories that are levelled, `open` those that may take replicas.
    """

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
    """Directories whose replicas can be read: online, on a live broker."""
    readable: Bools = load.directories.online & load.brokers.alive[load.directories.broker]
    return readable


def readable_in(load: ClusterLoad, directory: Ints) -> Bools:
    """Which replicas can be read, given the directory of each; those whose directory is unknown cannot."""
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
    """Levels over all readable directories but the `evacuated` ones, which are to lose all movable replicas.

    `used` and `directory` (of each replica) describe a placement other than the current one.
    """
    total = load.directories.total.astype(np.float64)
    used = load.directories.used if used is None else used
    directory = load.replicas.directory if directory is None else directory
    gone = np.zeros(total.size, np.bool_) if evacuated is None else evacuated
    readable, receiving = readable_directories(load), receiving_directories(load) & ~gone
    counts = readable & ~gone
    fixed, largest = _fixed_bytes(load, movable, used, directory)
    moving_in = float((used - fixed)[gone].sum()) + float(load.replicas.size[movable & (directory < 0)].sum())
    # A directory that takes nothing new cannot rise; unmovable content (`fixed`) cannot sink.
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
    """Bytes that every rack must hold: what the others cannot take when each partition is spread evenly over all."""
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
    """The level of each directory: the common one, or its rack's own if the rack cannot come into the common band."""
    found = np.full(counts.size, level)
    if not needed:
        return found
    rack_of = load.brokers.rack_numbers()[load.directories.broker]
    total = load.directories.total.astype(np.float64)
    for rack in range(int(rack_of.max()) + 1):
        inside = counts & (rack_of == rack)
        # Giants stick out of their rack's water, too, which lowers the level of the rest.
        own = _water_level(total, floor, ceiling, needed + float(fixed[inside].sum()), inside)
        if own > (1 + band) * level:
            found[inside] = own
    return found


def _level_and_floor(
    total: Floats, fixed: Floats, largest: Floats, ceiling: Floats, amount: float, counts: Bools, band: float
) -> tuple[float, Floats]:
    """The level, and the floors as raised by giants: replicas too large for the band of any directory.

    A giant makes its directory stick out of the water wherever it is. That lowers the level of the rest, which may
    turn more replicas into giants; hence the rounds.
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
    """Per directory: the bytes that no plan can move, and the largest replica that one can."""
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
