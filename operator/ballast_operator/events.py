"""Kubernetes Events for transitions that a person would want to see.

They are sent in the background from a bounded queue: an Event that cannot be sent is dropped and counted, since the
status says the same. The same Event about the same object is not sent again within ten minutes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError, KubernetesApi, path_of
from ballast_operator.apply.writer import MANAGER, Resource, kind_of
from ballast_operator.clock import Now, monotonic
from ballast_operator.model.meta import API_VERSION, shortened

log = logging.getLogger(__name__)

NORMAL = "Normal"
WARNING = "Warning"
MAX_WAITING = 1_000
REPEAT_SECONDS = 600.0
MAX_REMEMBERED = 20_000


class Events:
    """Sends Events; `run` has to run."""

    def __init__(self, api: KubernetesApi, now: Now) -> None:
        self._api = api
        self._now = now
        self._queue: asyncio.Queue[dict[str, object]] = asyncio.Queue(MAX_WAITING)
        self._sent: dict[tuple[str, str, str], float] = {}
        self.dropped = 0

    def send(self, resource: Resource, kind: str, reason: str, message: str) -> None:
        """Queue an Event about an object; never waits."""
        mark = (resource.meta.uid, reason, message)
        now = monotonic()
        if now - self._sent.get(mark, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return
        if len(self._sent) >= MAX_REMEMBERED:
            self._sent.clear()
        self._sent[mark] = now
        try:
            self._queue.put_nowait(self._body(resource, kind, reason, message))
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        while True:
            body = await self._queue.get()
            namespace = str(body["metadata"]["namespace"])  # type: ignore[index]
            try:
                await self._api.create(path_of("v1", "events", namespace), body)
            except (ApiError, ApiUnavailableError) as error:
                self.dropped += 1
                log.info("an Event could not be sent: %s", error)

    def _body(self, resource: Resource, kind: str, reason: str, message: str) -> dict[str, object]:
        meta, time = resource.meta, self._now()
        digest = hashlib.sha256(f"{meta.uid}{reason}{message}{monotonic()}".encode()).hexdigest()[:16]
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{shortened(meta.name).rstrip('-')}.{digest}", "namespace": meta.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": kind_of(resource),
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
            },
            "type": kind,
            "reason": reason,
            "message": message[:1_000],
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
            "reportingInstance": MANAGER,
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        }
