"""The operator's clocks. The only module that reads the time.

Timestamps in objects (a pod's deletion deadline, the expiry of a spec) are the API server's. They are compared with the
Date header of its answers, so a wrong clock on the operator's machine makes nothing look lost or expired.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

log = logging.getLogger(__name__)
Now = Callable[[], str]
# The Date header has whole seconds and takes a while to arrive: smaller differences are noise.
SAME_SECONDS = 2.0
TOLD_SECONDS = 30.0


def monotonic() -> float:
    return time.monotonic()


class ServerClock:
    """The API server's time; the local clock until it has answered once."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._steady = steady
        self._began: float | None = None
        """The server's time when the steady clock was 0."""

    def now(self) -> str:
        return _written(self._wall() if self._began is None else self._began + self._steady())

    def heard(self, date: str | None) -> None:
        """Take the Date header of an answer that has just begun to arrive."""
        try:
            told = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return
        began = told - self._steady()
        if self._began is not None and abs(began - self._began) <= SAME_SECONDS:
            # Each estimate is early by the truncated fraction and the latency, so the latest one is the best.
            self._began = max(self._began, began)
            return
        self._began = began
        ahead = self._wall() - told
        if abs(ahead) > TOLD_SECONDS:
            way = "ahead of" if ahead > 0 else "behind"
            log.warning("the clock here is %.0f s %s the API server's, whose time counts", abs(ahead), way)


def _written(seconds: float) -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes times."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
