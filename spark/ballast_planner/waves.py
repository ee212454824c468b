"""Waves: which moves may run together, so that no directory passes its high-water mark while both copies exist.

Within a wave every target already holds what arrives while every source still holds what leaves; at its end the
sources are freed. A directory that stands above its mark takes nothing until it has sunk. PURE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ballast_planner.assemble import Step
from ballast_planner.model import ClusterLoad, Floats, Ints


def order_in_waves(
    load: ClusterLoad, steps: Sequence[Step], high_water: float
) -> tuple[list[tuple[Step, int]], list[Step], float]:
    """(steps with their wave, steps for which there never was room, highest transient fill)."""
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
) -> tuple[list[tuple[Step, int]], list[Step], float]:
    """The same with waves that somebody else decided on; what does not fit in its wave is left out."""
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
