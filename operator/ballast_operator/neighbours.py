"""Finds namespaces that have an operator of their own; an operator of several namespaces leaves those to it.

Both would act, since they hold different Leases. Two of the same version would do everything twice; two of different
versions would revert each other's changes and restart the brokers again and again. The operator that renews a Lease in
a namespace is in charge of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError, KubernetesApi, path_of
from ballast_operator.leader import LeaseSeen

log = logging.getLogger(__name__)
LOOK_SECONDS = 5.0
# With many namespaces the interval grows: ten requests a second at most.
LOOK_SECONDS_EACH = 0.1


class Neighbours:
    """Needs a task that runs `run`. `namespaces` returns those that this operator would act in, none while it does not
    lead; `given_back` is called with each namespace that becomes ours, for the first time or again."""

    def __init__(
        self,
        api: KubernetesApi,
        own: str,
        lease: str,
        namespaces: Callable[[], Iterable[str]],
        given_back: Callable[[str], None],
    ) -> None:
        self._api = api
        self._own = own
        self._lease = lease
        self._namespaces = namespaces
        self._given_back = given_back
        self._seen: dict[str, LeaseSeen] = {}
        self._holders: dict[str, str] = {}
        self._wake = asyncio.Event()

    def has(self, namespace: str) -> bool:
        """Whether to leave the namespace alone; also True until it has been looked at."""
        if namespace == self._own:
            return False
        if namespace not in self._holders:
            self._wake.set()
        return self._holders.get(namespace) != ""

    async def run(self) -> None:
        while True:
            self._wake.clear()
            await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(LOOK_SECONDS, len(self._holders) * LOOK_SECONDS_EACH)):
                    await self._wake.wait()

    async def look(self) -> None:
        """Read the Lease of each namespace once; on an error the previous finding stays."""
        namespaces = {*self._namespaces()} - {self._own}
        for former in self._holders.keys() - namespaces:
            del self._holders[former]
        if namespaces:  # else we do not lead, perhaps only briefly: keep counting how long a Lease has stood still
            self._seen = {namespace: self._seen[namespace] for namespace in self._seen.keys() & namespaces}
        for namespace in sorted(namespaces):
            try:
                self._note(namespace, await self._holder(namespace))
            except (ApiError, ApiUnavailableError) as error:
                log.info("the Lease in namespace %s could not be read: %s", namespace, error)

    async def _holder(self, namespace: str) -> str:
        try:
            lease = await self._api.find(path_of("coordination.k8s.io/v1", "leases", namespace, self._lease))
        except ApiError as error:
            if error.status != 403:
                raise
            return ""  # not permitted to read Leases there, yet configured to manage the namespace
        if lease is None:
            return ""
        spec = lease.get("spec") or {}
        seen = self._seen.setdefault(namespace, LeaseSeen())
        ran_out = seen.ran_out(spec, lease["metadata"]["resourceVersion"])
        return "" if ran_out else str(spec.get("holderIdentity") or "")

    def _note(self, namespace: str, holder: str) -> None:
        before = self._holders.get(namespace)
        self._holders[namespace] = holder
        if holder and not before:
            log.warning("namespace %s has an operator of its own, %s: it is left to that one", namespace, holder)
        elif before and not holder:
            log.warning("the operator of namespace %s is gone: this one looks after it again", namespace)
        if not holder and before != "":
            self._given_back(namespace)
