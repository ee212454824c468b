"""What must not grow for ever: events go after an hour, as in Kubernetes, and logs are cut when they get long."""

import asyncio
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ballast_local import meta
from ballast_local.workloads.client import Client

EVENT_HOURS = 1.0
LOG_LIMIT_BYTES = 32 * 1024 * 1024
PERIOD_SECONDS = 30.0


def remove_old_events(client: Client, now: datetime) -> int:
    """Deletes events last seen more than an hour ago; returns how many."""
    oldest = now - timedelta(hours=EVENT_HOURS)
    old: list[tuple[str, str]] = []
    for event in client.find("events."):
        seen = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
        if meta.parse_time(seen) < oldest:
            old.append((event["metadata"]["namespace"], event["metadata"]["name"]))
    for namespace, name in old:
        client.delete("events.", namespace, name)
    return len(old)


def cut_logs(pods: Path, limit_bytes: int = LOG_LIMIT_BYTES) -> None:
    """A log that is too long becomes the previous one. Processes write in append mode, so they go on at the start."""
    for log in pods.glob("*/logs/*.log"):
        if not log.name.endswith(".previous.log") and log.stat().st_size > limit_bytes:
            shutil.copyfile(log, log.with_name(log.name.removesuffix(".log") + ".previous.log"))
            with log.open("r+b") as file:
                file.truncate(0)


async def keep_house(client: Client, pods: Path) -> None:
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        remove_old_events(client, datetime.now(UTC))
        await asyncio.to_thread(cut_logs, pods)
