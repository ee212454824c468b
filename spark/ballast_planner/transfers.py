"""Moves bytes between two directories: single transfers and swaps that keep both ends inside their bands.

Shared by the goals. Each function makes at most one transfer or one swap and returns whether it did.
PURE.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ballast_planner.model import Ints
from ballast_planner.workbench import Workbench

SMALL_OVERSHOOT = 0.02
TINY_STEP = 64
CHECKED_PAIRS = 32


def transfer(bench: Workbench, source: int, target: int, need: int, spare: int, room: int) -> bool:
    """Move one replica: the largest up to `need`, or one a little larger that meets the need at once.

    `spare` is the most that the source may give, `room` the most that the target may take.
    """
    limit = min(spare, room)
    if need <= 0 or limit <= 0:
        return False
    below = bench.largest(source, target, min(need, limit))
    size = int(bench.size[below]) if below is not None else 0
    if size < need and limit >= need:
        above = bench.smallest(source, target, need, limit)
        if above is not None and _prefers_above(size, int(bench.size[above]), need):
            below = above
    if below is None:
        return False
    bench.move(below, target)
    return True


def _prefers_above(below: int, above: int, need: int) -> bool:
    return below == 0 or above - need <= SMALL_OVERSHOOT * need or below * TINY_STEP < need


def first_transfer(bench: Workbench, source: int, targets: Iterable[int], need: int) -> bool:
    """Transfer from `source` to the first of `targets` that can take something."""
    allowed = bench.spare(source)
    return any(transfer(bench, source, int(target), need, allowed, bench.room(int(target))) for target in targets)


def swap(bench: Workbench, source: int, target: int, need: int, limit: int) -> bool:
    """Exchange a replica of `source` for a smaller one of `target`, to shift `need` bytes and never more than `limit`.

    Prefers the pair of fewest bytes that meets the need, else the pair that comes nearest to it. Pairs whose larger
    replica has no room in `target` until the smaller one has left come last.
    """
    large, small = bench.movable_in(source), bench.movable_in(target)
    both_take = bench.levels.open[source] and bench.levels.open[target]
    if need <= 0 or limit <= 0 or not both_take or not large.size or not small.size:
        return False
    large_size, small_size = bench.size[large], bench.size[small]
    on_the_way = int(bench.levels.mark[target] - bench.used[target])
    if need <= limit:
        index = np.searchsorted(large_size, small_size + need, side="left")
        fits = index < large.size
        pairs = np.flatnonzero(fits)
        gain = large_size[index[pairs]] - small_size[pairs]
        pairs = pairs[gain <= limit]
        leaving = large_size[index[pairs]]
        order = pairs[np.lexsort((leaving + small_size[pairs], leaving > on_the_way))]
        if _swap_first(bench, large, small, index, order[:CHECKED_PAIRS], source, target):
            return True
    index = np.searchsorted(large_size, small_size + min(need, limit), side="right") - 1
    gain = np.where(index >= 0, large_size[np.maximum(index, 0)] - small_size, 0)
    pairs = np.flatnonzero(gain * 20 > need)
    order = pairs[np.lexsort((-gain[pairs], large_size[index[pairs]] > on_the_way))]
    return _swap_first(bench, large, small, index, order[:CHECKED_PAIRS], source, target)


def _swap_first(bench: Workbench, large: Ints, small: Ints, index: Ints, order: Ints, source: int, target: int) -> bool:
    for pair in order:
        out, back = int(large[index[pair]]), int(small[pair])
        if bench.owner[source] != bench.owner[target] and not _may_exchange(bench, out, back, source, target):
            continue
        bench.move(out, target)
        bench.move(back, source)
        return True
    return False


def _may_exchange(bench: Workbench, out: int, back: int, source: int, target: int) -> bool:
    if bench.load.replicas.partition[out] == bench.load.replicas.partition[back]:
        return False
    there = bench.may_go(np.array([out]), int(bench.owner[target]))[0]
    return bool(there and bench.may_go(np.array([back]), int(bench.owner[source]))[0])
