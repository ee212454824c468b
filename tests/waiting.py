"""Polls for conditions that raise no event."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def eventually(holds: Callable[[], Any], what: object = "", seconds: float = 30.0) -> Any:
    """Poll until `holds` returns something truthy, and return that; AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}; last answer: {found!r}"
        time.sleep(0.02)
    return found
