"""Time as the operator writes it. The only module that asks what time it is.

Times in objects are the API server's: when a pod was to end, when a spec expires. They are compared with the time that
the API server's answers tell, so that a wrong clock where the operator runs makes nothing seem lost or over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

log = logging.getLogger(__name__)
Now = Callable[[], str]
# Answers tell whole seconds and are a while on their way: what differs by no more is the same time.
SAME_SECONDS = 2.0
TOLD_SECONDS = 30.0


def monotonic() -> float:
    return time.monotonic()


class ServerClock:
    """The API server's time; until it has answered, that of this machine."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._steady = steady
        self._began: float | None = None
        """The server's time when the steady clock was 0."""

    def now(self) -> str:
        return _written(self._wall() if self._began is None else self._began + self._steady())

    def heard(self, date: str | None) -> None:
        """An answer with this header has begun to come just now."""
        try:
            told = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return
        began = told - self._steady()
        if self._began is not None and abs(began - self._began) <= SAME_SECONDS:
            # Each is early by the parts of a second and by its way, so the latest is the nearest.
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
