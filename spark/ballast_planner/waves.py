"""Groups moves into waves that may run together: no directory passes its high-water mark while both copies exist.

Within a wave every target already holds what arrives while every source still holds what leaves; at its end the
sources are freed. A directory above its mark takes nothing until it has sunk below it. If some steps find no room,
because others have taken what an exchange needs on its way, they go first in the next attempt. PURE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ballast_planner.assemble import Step
from ballast_planner.model import ClusterLoad, Floats, Ints

MAX_ATTEMPTS = 4

Ordered = tuple[list[tuple[Step, int]], list[Step], float]


def order_in_waves(load: ClusterLoad, steps: Sequence[Step], high_water: float) -> Ordered:
    """(steps with their wave, steps that never found room, highest transient fill)."""
    best = _in_waves(load, steps, high_water)
    left, order = best[1], list(steps)
    for _ in range(MAX_ATTEMPTS):
        if not left:
            break
        late = {id(step) for step in left}
        order = [*left, *(step for step in order if id(step) not in late)]
        again = _in_waves(load, order, high_water)
        left = again[1]
        if len(left) < len(best[1]):
            best = again
    return best


def _in_waves(load: ClusterLoad, steps: Sequence[Step], high_water: float) -> Ordered:
    used = load.directories.used.copy()
    mark = np.floor(load.directories.total * high_water).astype(np.int64)
    placed: list[tuple[Step, int]] = []
    waiting = list(steps)
    highest, wave = 0.0, 0
    while waiting:
        arriving, started, held = _fill_wave(used, mark, waiting)
        if not started:
            break
        highest = max(highest, _highest(load, used + arriving, arriving))
        used += arriving
        for step in started:
            _release(used, step)
            placed.append((step, wave))
        waiting, wave = held, wave + 1
    return placed, waiting, highest


def follow_waves(
    load: ClusterLoad, steps: Sequence[Step], high_water: float, waves: Mapping[tuple[str, int], int]
) -> Ordered:
    """The same with given waves; what does not fit in its wave is left out."""
    used = load.directories.used.copy()
    mark = np.floor(load.directories.total * high_water).astype(np.int64)
    placed: list[tuple[Step, int]] = []
    left: list[Step] = []
    highest = 0.0
    for wave in sorted(set(waves.values())):
        wanted = [step for step in steps if waves[step.topic, step.partition] == wave]
        arriving, started, held = _fill_wave(used, mark, wanted)
        highest = max(highest, _highest(load, used + arriving, arriving))
        used += arriving
        for step in started:
            _release(used, step)
            placed.append((step, wave))
        left += held
    return placed, left, highest


def _fill_wave(used: Ints, mark: Ints, waiting: Sequence[Step]) -> tuple[Ints, list[Step], list[Step]]:
    """First come, first served: (bytes arriving per directory, steps started, steps held back)."""
    arriving = np.zeros_like(used)
    started: list[Step] = []
    held: list[Step] = []
    for step in waiting:
        fits = all(used[c.target] + arriving[c.target] + c.size <= mark[c.target] for c in step.copies)
        if not fits:
            held.append(step)
            continue
        for copy in step.copies:
            arriving[copy.target] += copy.size
        started.append(step)
    return arriving, started, held


def _release(used: Ints, step: Step) -> None:
    for copy in (*step.copies, *step.removed):
        if copy.source >= 0:
            used[copy.source] -= copy.freed


def _highest(load: ClusterLoad, used: Ints, arriving: Ints) -> float:
    filled: Floats = (used / load.directories.total)[arriving > 0]
    return float(filled.max(initial=0.0))
