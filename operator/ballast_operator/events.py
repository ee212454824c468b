"""Sends Kubernetes Events for transitions that a person would want to see.

They are sent in the background from a bounded queue: an Event that cannot be sent is dropped and counted, since the
status says the same. A repeated Event is not sent again within ten minutes; after that, the existing Event's count is
updated, as Kubernetes' own components do ("x7 over 3h").
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from dataclasses import dataclass

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError, KubernetesApi, path_of
from ballast_operator.apply.writer import MANAGER, Resource, kind_of
from ballast_operator.clock import Now, monotonic
from ballast_operator.model.meta import API_VERSION, Meta, shortened
from ballast_operator.model.topic import KafkaTopic

log = logging.getLogger(__name__)

NORMAL = "Normal"
WARNING = "Warning"
MAX_WAITING = 1_000
# Thousands of topics may be refused for one reason; the rest of the queue is reserved for other objects' Events.
MAX_WAITING_TOPICS = MAX_WAITING // 2
REPEAT_SECONDS = 600.0
MAX_REMEMBERED = 20_000


@dataclass
class Told:
    """An Event that may recur: how often it has occurred, and when it was last sent."""

    name: str
    first: str
    count: int = 0
    at: float = -math.inf


class Events:
    """Queues Events; a task running `run` sends them."""

    def __init__(self, api: KubernetesApi, now: Now) -> None:
        self._api = api
        self._now = now
        self._queue: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        self._told: dict[tuple[str, str, str], Told] = {}
        self.dropped = 0

    def send(self, resource: Resource, kind: str, reason: str, message: str) -> None:
        """Queue an Event about an object; never waits."""
        mark, now = (resource.meta.uid, reason, message), monotonic()
        told = self._told.get(mark)
        if told is None:
            if len(self._told) >= MAX_REMEMBERED:
                self._told.clear()
            told = self._told[mark] = Told(_name(resource.meta, reason, message), self._now())
        told.count += 1
        if now - told.at < REPEAT_SECONDS:
            return
        told.at = now
        if self._queue.qsize() < (MAX_WAITING_TOPICS if isinstance(resource, KafkaTopic) else MAX_WAITING):
            self._queue.put_nowait(self._body(resource, kind, reason, message, told))
        else:
            self.dropped += 1

    async def run(self) -> None:
        while True:
            body = await self._queue.get()
            try:
                await self._post(body)
            except (ApiError, ApiUnavailableError) as error:
                self.dropped += 1
                log.info("an Event could not be sent: %s", error)

    async def _post(self, body: dict[str, object]) -> None:
        name, namespace = str(body["metadata"]["name"]), str(body["metadata"]["namespace"])  # type: ignore[index]
        if body["count"] != 1:
            again = {each: body[each] for each in ("count", "lastTimestamp")}
            try:
                await self._api.merge(path_of("v1", "events", namespace, name), again)
                return
            except ApiError as error:
                # Kubernetes deletes Events after an hour; 403: the Role of an older release allows only create.
                if not error.not_found and error.status != 403:
                    raise
        await self._api.create(path_of("v1", "events", namespace), body)

    def _body(self, resource: Resource, kind: str, reason: str, message: str, told: Told) -> dict[str, object]:
        meta = resource.meta
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": told.name, "namespace": meta.namespace},
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
            "firstTimestamp": told.first,
            "lastTimestamp": self._now(),
            "count": told.count,
        }


def _name(meta: Meta, reason: str, message: str) -> str:
    digest = hashlib.sha256(f"{meta.uid}{reason}{message}{monotonic()}".encode()).hexdigest()[:16]
    return f"{shortened(meta.name).rstrip('-')}.{digest}"
