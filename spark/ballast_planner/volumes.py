"""Detects directories that share one volume. PURE."""

from __future__ import annotations

from collections.abc import Iterable

from ballast_planner.model import Directory

# Two directories whose free space agrees to a thousandth are on one disk, or else level enough.
SHARED_TOLERANCE = 0.001


def brokers_with_one_volume(directories: Iterable[Directory]) -> list[int]:
    """Brokers whose directories look like one volume: same size and nearly the same use."""
    of_broker: dict[int, list[Directory]] = {}
    for row in directories:
        if row.online:
            of_broker.setdefault(row.broker, []).append(row)
    return sorted(broker for broker, own in of_broker.items() if len(own) > 1 and _alike(own))


def _alike(own: list[Directory]) -> bool:
    free = [row.total_bytes - row.used_bytes for row in own]
    same_size = len({row.total_bytes for row in own}) == 1
    return same_size and min(free) > 0 and max(free) - min(free) < SHARED_TOLERANCE * own[0].total_bytes
