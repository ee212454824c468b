"""PodDisruptionBudgets: how many pods may go, counted and written down. Nothing here evicts."""

from collections.abc import Iterable

from ballast_local.store import Change
from ballast_local.workloads.controller import Controller, Key, is_active, is_ready


class DisruptionController(Controller):
    primary = ("poddisruptionbudgets.policy",)
    owned = ("pods.",)

    def keys_of(self, change: Change) -> Iterable[Key]:
        if change.entry.resource in self.primary:
            yield change.entry.namespace, change.entry.name
            return
        for entry in self.client.store.entries(self.primary[0], change.entry.namespace):
            yield entry.namespace, entry.name

    def reconcile(self, namespace: str, name: str) -> float | None:
        budget = self.client.get(self.primary[0], namespace, name)
        if budget is None:
            return None
        spec = budget["spec"]
        pods = [pod for pod in self.client.find("pods.", namespace, spec.get("selector") or {}) if is_active(pod)]
        healthy, expected = sum(is_ready(pod) for pod in pods), len(pods)
        if "maxUnavailable" in spec:
            desired = max(0, expected - _count(spec["maxUnavailable"], expected))
        else:
            desired = _count(spec.get("minAvailable", 1), expected)
        status = {
            "observedGeneration": budget["metadata"]["generation"],
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "disruptionsAllowed": max(0, healthy - desired),
        }
        self.client.set_status(self.primary[0], namespace, name, status)
        return None


def _count(value: int | str, total: int) -> int:
    return value if isinstance(value, int) else -(-int(value.rstrip("%")) * total // 100)
