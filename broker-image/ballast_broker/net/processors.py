"""Tells how many CPUs this process may use."""

from __future__ import annotations

import os
from pathlib import Path

CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # the container's limit, as seen from inside


def usable() -> float:
    """The machine's CPUs, or a container's limit if that is less."""
    try:
        quota, period = CPU_LIMIT.read_text().split()
        limit = float("inf") if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):  # no limit, or none that we can read
        limit = float("inf")
    return min(limit, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
