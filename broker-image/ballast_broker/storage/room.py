"""Computes the disk reserve: space kept free of data that could be placed elsewhere (DIR-45). PURE."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ballast_broker.seams import DiskUsage

GIB = 1 << 30


def reserve_bytes(configured: int | None, total_bytes: int) -> int:
    """As configured, else the larger of 1 GiB and 2 %, but at most a tenth of the disk."""
    if configured is not None:
        return configured
    return min(max(GIB, total_bytes // 50), total_bytes // 10)


def room_for(size: int, usage: DiskUsage | None, configured: int | None) -> bool:
    """Whether `size` bytes fit beside the reserve. True if the usage is unknown: the write will find out."""
    return usage is None or usage.usable_bytes - size >= reserve_bytes(configured, usage.total_bytes)
