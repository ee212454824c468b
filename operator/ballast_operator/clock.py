"""Time as the operator writes it. The only module that asks what time it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

Now = Callable[[], str]


def utc_now() -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def monotonic() -> float:
    return time.monotonic()
