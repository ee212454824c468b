"""Elects the operator that acts, by a Lease that is renewed every 2 s and expires after 10 s.

The Lease is no fence: a process that was paused may still believe that it leads. So it gives up leadership 7 s after
its last renewal, and whatever it writes is conditional on what it observed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError, KubernetesApi, path_of
from ballast_operator.clock import monotonic

log = logging.getLogger(__name__)

LEASE_SECONDS = 10
RENEW_DEADLINE_SECONDS = 7.0
RETRY_SECONDS = 2.0
# A standby polls more often than the leader renews, so that it notices an expired Lease soon.
WAIT_SECONDS = 1.0


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class LeaseSeen:
    """Watches another holder's Lease for expiry, over repeated reads."""

    def __init__(self) -> None:
        self._seen: tuple[str, float] = ("", 0.0)

    def ran_out(self, spec: dict[str, Any], version: str) -> bool:
        """Whether, by our own clock, the holder has let it expire since we first saw this version."""
        now = monotonic()
        if self._seen[0] != version:
            self._seen = (version, now)
            return False
        return now - self._seen[1] > float(spec.get("leaseDurationSeconds") or LEASE_SECONDS)


class Leader:
    """Whether this process leads, while a task runs `run`; `changed` is called at each change."""

    def __init__(self, api: KubernetesApi, namespace: str, name: str, changed: Callable[[bool], None]) -> None:
        self._api = api
        self._path = path_of("coordination.k8s.io/v1", "leases", namespace, name)
        self._collection = path_of("coordination.k8s.io/v1", "leases", namespace)
        self._name = name
        self._changed = changed
        self.identity = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._renewed_at: float | None = None
        self._seen = LeaseSeen()
        self._told = False
        self._waits_for = ""
        self._trouble = ""

    @property
    def leads(self) -> bool:
        return self._renewed_at is not None and monotonic() - self._renewed_at < RENEW_DEADLINE_SECONDS

    async def run(self) -> None:
        try:
            while True:
                try:
                    async with asyncio.timeout(RENEW_DEADLINE_SECONDS - RETRY_SECONDS):
                        await self._try_once()
                    self._trouble = ""
                except TimeoutError:
                    self._tell_trouble(self._api.failure or "the API server does not answer")
                except (ApiError, ApiUnavailableError) as error:
                    self._tell_trouble(str(error))
                self._tell()
                await asyncio.sleep(RETRY_SECONDS if self.leads else WAIT_SECONDS)
        finally:
            await self._release()

    async def _try_once(self) -> None:
        lease = await self._api.find(self._path)
        now = monotonic()
        if lease is None:
            body = self._body(0, _micro_time())
            await self._api.create(self._collection, {**body, "metadata": {"name": self._name}})
            self._renewed_at = now
            return
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder != self.identity and holder and not self._seen.ran_out(spec, lease["metadata"]["resourceVersion"]):
            self._renewed_at = None
            self._tell_holder(holder)
            return
        taken = holder != self.identity
        transitions = int(spec.get("leaseTransitions") or 0) + taken
        since = _micro_time() if taken else str(spec.get("acquireTime") or _micro_time())
        # The resourceVersion guarantees that of two candidates only one takes it.
        await self._api.replace(self._path, {**self._body(transitions, since), "metadata": lease["metadata"]})
        self._renewed_at = now

    def _tell_trouble(self, trouble: str) -> None:
        """Log each trouble once, not at every attempt while it lasts."""
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("the Lease could not be renewed: %s", trouble)

    def _tell_holder(self, holder: str) -> None:
        if holder != self._waits_for:
            self._waits_for = holder
            log.info("this operator waits while %s leads", holder)

    def _body(self, transitions: int, since: str) -> dict[str, Any]:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": _micro_time(),
                "acquireTime": since,
                "leaseTransitions": transitions,
            },
        }

    def _tell(self) -> None:
        if self.leads != self._told:
            self._told = self.leads
            log.info("this operator %s", "leads" if self._told else "does not lead any more")
            self._changed(self._told)

    async def _release(self) -> None:
        """Give the Lease back, so that the next leader need not wait for it to expire."""
        if not self.leads:
            return
        try:
            lease = await self._api.find(self._path)
            if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self.identity:
                lease["spec"]["holderIdentity"] = ""
                await self._api.replace(self._path, lease)
        except (ApiError, ApiUnavailableError):
            log.info("the Lease could not be released; it runs out by itself")
        self._renewed_at = None
