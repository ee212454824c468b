"""PodDisruptionBudgets: keeps their status, and decides whether a pod may be evicted."""

from collections.abc import Iterable

from ballast_local import meta
from ballast_local.errors import Obj
from ballast_local.selectors import selector_matches
from ballast_local.store import Change, Entry, Store
from ballast_local.workloads.controller import Controller, Key, is_active, is_ready

BUDGETS = "poddisruptionbudgets.policy"


class DisruptionController(Controller):
    primary = (BUDGETS,)
    owned = ("pods.", "deployments.apps", "replicasets.apps", "statefulsets.apps")

    def keys_of(self, change: Change) -> Iterable[Key]:
        if change.entry.resource in self.primary:
            yield change.entry.namespace, change.entry.name
            return
        for entry in self.client.store.entries(BUDGETS, change.entry.namespace):
            yield entry.namespace, entry.name

    def reconcile(self, namespace: str, name: str) -> float | None:
        budget = self.client.get(BUDGETS, namespace, name)
        if budget is not None:
            status = {"observedGeneration": budget["metadata"]["generation"], **_counts(self.client.store, budget)}
            self.client.set_status(BUDGETS, namespace, name, status)
        return None


def blocking_budget(store: Store, entry: Entry) -> str:
    """The name of a budget that forbids to evict this pod now; empty if none does.

    Counts pods instead of reading the budget's status: concurrent evictions have to see each other."""
    pod = entry.object()
    if not is_active(pod) or pod.get("status", {}).get("phase") == "Pending":
        return ""
    for held in store.entries(BUDGETS, entry.namespace):
        budget = held.object()
        if not _covers(budget, entry):
            continue
        counts = _counts(store, budget)
        if counts["disruptionsAllowed"]:
            continue
        # Evicting a pod that is not ready does not reduce the number of healthy pods.
        enough = counts["currentHealthy"] >= counts["desiredHealthy"] > 0
        if is_ready(pod) or not (enough or budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow"):
            return held.name
    return ""


def _covers(budget: Obj, pod: Entry) -> bool:
    """Whether the budget covers the pod. An empty selector covers all pods of the namespace."""
    selector = budget["spec"].get("selector")
    return selector is not None and (not selector or selector_matches(selector, pod.labels))


def _counts(store: Store, budget: Obj) -> Obj:
    spec, namespace = budget["spec"], budget["metadata"]["namespace"]
    pods = [entry.object() for entry in store.entries("pods.", namespace) if _covers(budget, entry)]
    healthy = sum(is_ready(pod) for pod in pods)
    limit = spec.get("maxUnavailable", spec.get("minAvailable", 1))
    by_controllers = "maxUnavailable" in spec or isinstance(limit, str)
    expected = _wanted(store, pods) if by_controllers else sum(map(is_active, pods))
    desired = _share(limit, expected)
    if "maxUnavailable" in spec:
        desired = max(0, expected - desired)
    return {
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "disruptionsAllowed": max(0, healthy - desired),
    }


def _wanted(store: Store, pods: list[Obj]) -> int:
    """The number of pods that there should be, by their controllers' replicas: missing pods count as well."""
    count, controllers = 0, dict[str, int]()
    for pod in pods:
        owner = _above(store, pod)
        if owner["kind"] == "ReplicaSet":
            owner = _above(store, owner)  # its Deployment, if any, so that old and new ReplicaSets count once
        replicas = (owner.get("spec") or {}).get("replicas") if owner is not pod else None
        if replicas is not None:
            controllers[owner["metadata"]["uid"]] = replicas
        else:
            count += is_active(pod)
    return count + sum(controllers.values())


def _above(store: Store, obj: Obj) -> Obj:
    """The controller of an object, or itself if it has none."""
    entry = store.by_uid((meta.controller_of(obj) or {}).get("uid", ""))
    return entry.object() if entry is not None else obj


def _share(value: int | str, total: int) -> int:
    return value if isinstance(value, int) else -(-int(value.rstrip("%")) * total // 100)
