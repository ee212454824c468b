"""How many processors this process may use."""

from __future__ import annotations

import os
from pathlib import Path

CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # a container's own, as it sees it


def usable() -> float:
    """Those of the machine, or what a container's limit leaves of them."""
    try:
        quota, period = CPU_LIMIT.read_text().split()
        limit = float("inf") if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):  # none, or none that is known
        limit = float("inf")
    return min(limit, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
