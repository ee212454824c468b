"""Limits growth: deletes events after an hour, as in Kubernetes, and truncates logs that become too long."""

import asyncio
import contextlib
import logging
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ballast_local import meta
from ballast_local.errors import ApiError
from ballast_local.schema import is_date_time
from ballast_local.workloads.client import Client
from ballast_local.workloads.logs import previous_of

LOG = logging.getLogger("ballast.local")
EVENT_HOURS = 1.0
LOG_LIMIT_BYTES = 32 * 1024 * 1024
PERIOD_SECONDS = 30.0


def remove_old_events(client: Client, now: datetime) -> int:
    """Delete events last seen more than an hour ago; returns how many."""
    oldest = now - timedelta(hours=EVENT_HOURS)
    old: list[tuple[str, str]] = []
    for event in client.find("events."):
        seen = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
        if not is_date_time(seen) or meta.parse_time(seen) < oldest:
            old.append((event["metadata"]["namespace"], event["metadata"]["name"]))
    for namespace, name in old:
        client.delete("events.", namespace, name)
    return len(old)


def cut_logs(pods: Path, limit_bytes: int = LOG_LIMIT_BYTES) -> None:
    """Copy a log that is too long to the previous log, and truncate it; processes continue to append to it.

    Followers (`Run`) recognize this by the new inode of the previous log, which has the cut data at the same offsets.
    """
    for log in pods.glob("*/logs/*.log"):
        if log.name.endswith(".previous.log"):
            continue
        with contextlib.suppress(FileNotFoundError):  # its pod is gone
            if log.stat().st_size > limit_bytes:
                copied = log.with_suffix(".copy")
                with log.open("r+b", buffering=0) as file, copied.open("wb", buffering=0) as copy:
                    shutil.copyfileobj(file, copy)
                    copied.replace(previous_of(log))
                    copy.write(file.read())  # written meanwhile
                    file.truncate(0)


async def keep_house(client: Client, pods: Path) -> None:
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        try:
            remove_old_events(client, datetime.now(UTC))
            await asyncio.to_thread(cut_logs, pods)
        except (OSError, ApiError):
            LOG.exception("house is not kept; tried again in %.0f s", PERIOD_SECONDS)
