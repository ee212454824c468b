"""Keeps a message that may come with every request from flooding the log. Loop thread only."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

TELL_AGAIN_S = 60.0
MOST_KEPT = 1_000  # beyond that all may be told anew


class Seldom:
    """Says whether to log something: the first time, and again once TELL_AGAIN_S have passed."""

    def __init__(self) -> None:
        self._told_at_s: dict[Hashable, float] = {}

    def is_due(self, what: Hashable) -> bool:
        now_s, told_at_s = asyncio.get_running_loop().time(), self._told_at_s.get(what)
        if told_at_s is not None and now_s < told_at_s + TELL_AGAIN_S:
            return False
        if len(self._told_at_s) >= MOST_KEPT:
            self._told_at_s.clear()
        self._told_at_s[what] = now_s
        return True
