"""Measures how good a placement or a plan is, in numbers for people (REB-07). PURE."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ballast_planner.assemble import Copy
from ballast_planner.levels import Levels
from ballast_planner.model import ClusterLoad, Ints
from ballast_planner.options import PlanOptions
from ballast_planner.plan import Fill, Move, Placement, Quality


def fill_of(load: ClusterLoad, used: Ints, levels: Levels) -> Fill:
    """Fill levels over the directories that are levelled."""
    counts = levels.counts
    if not counts.any():
        return Fill(0.0, 0.0, 0.0, 0.0, 0)
    filled = used[counts] / load.directories.total[counts]
    out = (used > levels.upper) | (levels.open & (used < levels.lower))
    mean = float(filled.mean())
    return Fill(
        highest=float(filled.max()),
        lowest=float(filled.min()),
        spread=float(filled.max() - filled.min()),
        coefficient_of_variation=float(filled.std() / mean) if mean else 0.0,
        out_of_band=int((out & counts).sum()),
    )


def quality_of(
    load: ClusterLoad, before: Fill, after: Fill, moves: Sequence[Move], transient: float, options: PlanOptions
) -> Quality:
    return Quality(
        before=before,
        after=after,
        bytes_network=sum(move.bytes_network for move in moves),
        bytes_disk=sum(move.bytes_disk for move in moves),
        partitions=len(moves),
        replica_moves=sum(_changed(move) for move in moves),
        leader_changes=sum(move.changes_leader for move in moves),
        highest_transient=max(transient, before.highest),
        waves=max((move.wave for move in moves), default=-1) + 1,
        expected_seconds=expected_seconds(moves, options),
        on_more_racks=_on_more_racks(load, moves),
    )


def _on_more_racks(load: ClusterLoad, moves: Sequence[Move]) -> int:
    rack = dict(zip(load.brokers.ids.tolist(), load.brokers.rack_numbers().tolist(), strict=True))

    def racks(placement: Placement) -> int:
        return len({rack[broker] for broker in placement.replicas})

    return sum(racks(move.to) > racks(move.from_) for move in moves)


def expected_seconds(moves: Sequence[Move], options: PlanOptions) -> float | None:
    """Time under the throttles; None if bytes move without one. Waves run in sequence, brokers in parallel."""
    network: dict[tuple[int, int], int] = {}
    disk: dict[tuple[int, int], int] = {}
    for move in moves:
        before, after = move.from_.as_pairs(), move.to.as_pairs()
        arriving = [broker for broker in after if broker not in before]
        relocated = [broker for broker in after if broker in before and before[broker] != after[broker]]
        for group, total, sums in ((arriving, move.bytes_network, network), (relocated, move.bytes_disk, disk)):
            for broker in group:
                sums[move.wave, broker] = sums.get((move.wave, broker), 0) + total // len(group)
    seconds: dict[int, float] = {}
    limits = ((network, options.inter_broker_bytes_per_second), (disk, options.intra_broker_bytes_per_second))
    for sums, limit in limits:
        if sums and not limit:
            return None
        for (wave, _), size in sums.items():
            seconds[wave] = max(seconds.get(wave, 0.0), size / (limit or 1))
    return sum(seconds.values())


def _changed(move: Move) -> int:
    before = move.from_.as_pairs()
    return sum(before.get(broker) != path for broker, path in move.to.as_pairs().items())


def used_after(load: ClusterLoad, copies: Iterable[Copy]) -> Ints:
    """Bytes used per directory after these copies."""
    used = load.directories.used.copy()
    for copy in copies:
        if copy.source >= 0:
            used[copy.source] -= copy.freed
        if copy.target >= 0:
            used[copy.target] += copy.size
    return np.maximum(used, 0)
