"""The base class of level-triggered controllers: a coalescing queue of keys and one task that reconciles them in turn.

Reconciling is synchronous on purpose: it reads and writes the store without yielding, so no controller ever sees
another's half-done work. Failures are logged and retried with exponential back-off.
"""

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime

from ballast_local import meta
from ballast_local.errors import ApiError, Obj
from ballast_local.store import Change
from ballast_local.workloads.client import Client

LOG = logging.getLogger("ballast.local")
Key = tuple[str, str]
MAX_BACKOFF_SECONDS = 30.0


class Controller:
    """Subclasses set `primary`, `owned` and `kind`, and implement `reconcile`."""

    # resources whose objects are reconciled
    primary: tuple[str, ...] = ()
    # resources whose changes reconcile the controlling owner (if it is of `kind`)
    owned: tuple[str, ...] = ()
    kind = ""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._dirty: dict[Key, None] = {}
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timers: dict[Key, asyncio.TimerHandle] = {}

    def reconcile(self, namespace: str, name: str) -> float | None:
        """Bring about the desired state; returns the seconds after which to reconcile again, or None."""
        raise NotImplementedError

    def keys_of(self, change: Change) -> Iterable[Key]:
        """The keys to reconcile after a change of a primary or owned resource."""
        if change.entry.resource in self.primary:
            yield change.entry.namespace, change.entry.name
            return
        for entry in (change.entry, change.previous):
            if entry is not None and entry.owners:
                owner = meta.controller_of(entry.object())
                if owner is not None and owner["kind"] == self.kind:
                    yield entry.namespace, owner["name"]

    def start(self) -> None:
        for resource in (*self.primary, *self.owned):
            self.client.listen(resource, self._changed)
        for resource in self.primary:
            for namespace, name in self.client.store.keys(resource):
                self.enqueue((namespace, name))
        self._task = asyncio.create_task(self._run(), name=type(self).__name__)

    async def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def enqueue(self, key: Key) -> None:
        self._dirty[key] = None
        self._wake.set()

    def _changed(self, change: Change) -> None:
        for key in self.keys_of(change):
            self.enqueue(key)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._dirty:
                key = next(iter(self._dirty))
                del self._dirty[key]
                self._one(key)
                await asyncio.sleep(0)

    def _one(self, key: Key) -> None:
        try:
            again = self.reconcile(*key)
            self._failures.pop(key, None)
        except Exception as fault:
            count = self._failures[key] = self._failures.get(key, 0) + 1
            again = min(0.1 * 2 ** min(count, 12), MAX_BACKOFF_SECONDS)
            expected = isinstance(fault, ApiError)
            LOG.log(logging.INFO if expected else logging.ERROR, "%s %s: %s", type(self).__name__, key, fault,
                    exc_info=None if expected else fault)  # fmt: skip
        if again is not None:
            self._later(key, again)

    def _later(self, key: Key, seconds: float) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(max(seconds, 0.01), self._due, key)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.enqueue(key)


def is_active(pod: Obj) -> bool:
    phase = pod.get("status", {}).get("phase")
    return phase not in ("Succeeded", "Failed") and not meta.is_deleting(pod)


def until_available(pod: Obj, seconds: float) -> float | None:
    """The seconds for which a pod still has to stay ready (minReadySeconds); None if it is not ready."""
    if not is_ready(pod):
        return None
    since = next(one["lastTransitionTime"] for one in pod["status"]["conditions"] if one["type"] == "Ready")
    return max(0.0, seconds - (datetime.now(UTC) - meta.parse_time(since)).total_seconds()) if seconds else 0.0


def soonest(waits: Iterable[float | None]) -> float | None:
    """The smallest of the waits that are neither None nor 0; None if there is none."""
    return min((one for one in waits if one), default=None)


def is_ready(pod: Obj) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions) and not meta.is_deleting(pod)
