"""PersistentVolumeClaims: bound at once to a directory; grown by saying so; kept while a pod uses them."""

from collections.abc import Iterable
from pathlib import Path

from ballast_local import meta
from ballast_local.store import Change
from ballast_local.workloads.client import Client
from ballast_local.workloads.controller import Controller, Key
from ballast_local.workloads.volume import claim_directory, remove_tree

PROTECTION = "kubernetes.io/pvc-protection"
CLAIMS = "persistentvolumeclaims."


class ClaimController(Controller):
    primary = (CLAIMS,)
    owned = ("pods.",)

    def __init__(self, client: Client, volumes: Path) -> None:
        super().__init__(client)
        self._volumes = volumes

    def keys_of(self, change: Change) -> Iterable[Key]:
        if change.entry.resource == CLAIMS:
            if change.kind == "DELETED":
                # The directory is the claim's data: it goes with the claim (reclaim policy Delete).
                remove_tree(claim_directory(self._volumes, change.entry.object()))
                return
            yield change.entry.namespace, change.entry.name
        elif change.kind == "DELETED":
            for volume in change.entry.object()["spec"].get("volumes") or []:
                if "persistentVolumeClaim" in volume:
                    yield change.entry.namespace, volume["persistentVolumeClaim"]["claimName"]

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

            def bind(held: dict[str, object]) -> None:
                held["metadata"]["finalizers"] = sorted({*finalizers, PROTECTION})  # type: ignore[index]
                held["spec"].setdefault("volumeName", f"pvc-{claim['metadata']['uid']}")  # type: ignore[attr-defined]

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
        for pod in self.client.list("pods.", namespace):
            for volume in pod["spec"].get("volumes") or []:
                if (volume.get("persistentVolumeClaim") or {}).get("claimName") == name:
                    return True
        return False
