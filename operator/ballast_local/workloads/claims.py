"""PersistentVolumeClaims: bound at once to a directory; resized only in their status; kept while a pod uses them."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from ballast_local import meta
from ballast_local.errors import ApiError, Obj
from ballast_local.store import Change, Entry
from ballast_local.workloads.client import Client
from ballast_local.workloads.controller import LOG, Controller, Key
from ballast_local.workloads.volume import claim_directory, remove_tree, restore, retire, retired

PROTECTION = "kubernetes.io/pvc-protection"
CLAIMS = "persistentvolumeclaims."


class ClaimController(Controller):
    primary = (CLAIMS,)
    owned = ("pods.",)

    def __init__(self, client: Client, volumes: Path) -> None:
        super().__init__(client)
        self._volumes = volumes
        self._removals: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        super().start()
        for aside in retired(self._volumes):
            claim = self.client.store.by_uid(aside.name)
            if claim is None:
                self._remove(aside)
            elif not restore(aside, claim_directory(self._volumes, claim.object())):
                LOG.error("the data of claim %s/%s is in %s", claim.namespace, claim.name, aside)

    def keys_of(self, change: Change) -> Iterable[Key]:
        if change.entry.resource == CLAIMS:
            if change.kind == "DELETED":
                self._reclaim(change.entry)
                return
            yield change.entry.namespace, change.entry.name
        elif change.kind == "DELETED":
            for volume in change.entry.object()["spec"].get("volumes") or []:
                if "persistentVolumeClaim" in volume:
                    yield change.entry.namespace, volume["persistentVolumeClaim"]["claimName"]

    def _reclaim(self, entry: Entry) -> None:
        """Remove the data of a deleted claim (reclaim policy Delete)."""
        try:
            aside = retire(claim_directory(self._volumes, entry.object()), entry.uid)
        except OSError:
            LOG.exception("the data of claim %s/%s is left behind", entry.namespace, entry.name)
            return
        if aside is not None:
            self._remove(aside)

    def _remove(self, aside: Path) -> None:
        self._removals.add(removal := asyncio.create_task(self._remove_for_good(aside)))
        removal.add_done_callback(self._removals.discard)

    async def _remove_for_good(self, aside: Path) -> None:
        """Remove the data once the claim's deletion is durable: otherwise the claim could be back after a restart."""
        try:
            await self.client.store.flush()
        except ApiError:
            return
        await asyncio.to_thread(remove_tree, aside)

    async def stop(self) -> None:
        await super().stop()
        await asyncio.gather(*self._removals)

    def reconcile(self, namespace: str, name: str) -> float | None:
        claim = self.client.get(CLAIMS, namespace, name)
        if claim is None:
            return None
        finalizers = claim["metadata"].get("finalizers") or []
        if meta.is_deleting(claim):
            if PROTECTION in finalizers and not self._in_use(namespace, name):
                rest = [one for one in finalizers if one != PROTECTION]
                self.client.change(CLAIMS, namespace, name, lambda held: held["metadata"].update(finalizers=rest))
            return None
        if PROTECTION not in finalizers or not claim["spec"].get("volumeName"):

            def bind(held: Obj) -> None:
                held["metadata"]["finalizers"] = sorted({*finalizers, PROTECTION})
                held["spec"].setdefault("volumeName", f"pvc-{held['metadata']['uid']}")

            self.client.change(CLAIMS, namespace, name, bind)
        claim_directory(self._volumes, claim).mkdir(parents=True, exist_ok=True)
        status = {
            "phase": "Bound",
            "accessModes": claim["spec"]["accessModes"],
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
        }
        self.client.set_status(CLAIMS, namespace, name, status)
        return None

    def _in_use(self, namespace: str, name: str) -> bool:
        for pod in self.client.find("pods.", namespace):
            for volume in pod["spec"].get("volumes") or []:
                if (volume.get("persistentVolumeClaim") or {}).get("claimName") == name:
                    return True
        return False
