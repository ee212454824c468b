"""Converts times of Kubernetes (RFC 3339) to numbers, to compare them. PURE."""

from __future__ import annotations

from datetime import datetime


def seconds_of(text: str) -> float:
    """Seconds since 1970."""
    return datetime.fromisoformat(text.upper().replace("Z", "+00:00")).timestamp()


def is_time(text: str) -> bool:
    """Whether it can be converted."""
    try:
        seconds_of(text)
    except (ValueError, OverflowError):
        return False
    return True
