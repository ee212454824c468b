"""Bounds the wait for work that an unresponsive disk may block forever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

LONGEST_WAIT_S = 10.0
log = logging.getLogger(__name__)


async def patiently(work: Awaitable[Any], what: str) -> None:
    """Wait until it is done, at most LONGEST_WAIT_S; after that it continues by itself."""
    working = asyncio.ensure_future(work)
    await asyncio.wait([working], timeout=LONGEST_WAIT_S)
    if working.done():
        working.result()
    else:
        log.error(
            "%s did not end within %g s, perhaps a disk does not answer: no longer waited for", what, LONGEST_WAIT_S
        )
