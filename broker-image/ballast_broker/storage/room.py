"""How much of a disk is kept free of what may as well lie elsewhere (DIR-45). PURE."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ballast_broker.seams import DiskUsage

GIB = 1 << 30


def reserve_bytes(configured: int | None, total_bytes: int) -> int:
    """As configured, else the larger of 1 GiB and 2 %, at most a tenth of a small disk."""
    if configured is not None:
        return configured
    return min(max(GIB, total_bytes // 50), total_bytes // 10)


def room_for(size: int, usage: DiskUsage | None, configured: int | None) -> bool:
    """Also where nobody can tell: who writes there finds out what is wrong."""
    return usage is None or usage.usable_bytes - size >= reserve_bytes(configured, usage.total_bytes)
