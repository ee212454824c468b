"""ReplicaSets and Deployments: so many pods of a template, and replacing one template by the next."""

import copy
import math

from ballast_local import meta
from ballast_local.errors import Obj
from ballast_local.workloads.controller import Controller, is_active, is_ready
from ballast_local.workloads.podset import claim_pods, create_pod, delete_pod, pod_from, template_hash

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"


class ReplicaSetController(Controller):
    primary = ("replicasets.apps",)
    owned = ("pods.",)
    kind = "ReplicaSet"

    def reconcile(self, namespace: str, name: str) -> float | None:
        owner = self.client.get("replicasets.apps", namespace, name)
        if owner is None or meta.is_deleting(owner):
            return None
        wanted = owner["spec"]["replicas"]
        pods = [pod for pod in claim_pods(self.client, owner) if is_active(pod)]
        template = owner["spec"]["template"]
        pods += [create_pod(self.client, owner, pod_from(template, owner)) for _ in range(wanted - len(pods))]
        # Those that are not ready go first, then the youngest.
        pods.sort(key=lambda pod: (is_ready(pod), pod["metadata"]["creationTimestamp"]))
        surplus = pods[: max(0, len(pods) - wanted)]
        for pod in surplus:
            delete_pod(self.client, owner, pod)
        kept = pods[len(surplus) :]
        ready = sum(is_ready(pod) for pod in kept)
        status = {"replicas": len(kept), "fullyLabeledReplicas": len(kept), "readyReplicas": ready,
                  "availableReplicas": ready, "observedGeneration": owner["metadata"]["generation"]}  # fmt: skip
        self.client.set_status("replicasets.apps", namespace, name, status)
        return None


def _share(value: int | str, total: int, up: bool) -> int:
    if isinstance(value, int):
        return value
    part = int(value.rstrip("%")) * total / 100
    return math.ceil(part) if up else math.floor(part)


class DeploymentController(Controller):
    primary = ("deployments.apps",)
    owned = ("replicasets.apps",)
    kind = "Deployment"

    def reconcile(self, namespace: str, name: str) -> float | None:
        owner = self.client.get("deployments.apps", namespace, name)
        if owner is None or meta.is_deleting(owner):
            return None
        digest = template_hash(owner["spec"]["template"])
        sets = self.client.owned(owner["metadata"]["uid"], "replicasets.apps")
        current = next((one for one in sets if one["metadata"].get("labels", {}).get(HASH) == digest), None)
        if not owner["spec"].get("paused") or current is not None:
            if current is None:
                current = self._create(owner, digest, sets)
            self._mark(owner, current, sets)
            if not owner["spec"].get("paused"):
                self._roll(
                    owner, current, [one for one in sets if one["metadata"]["uid"] != current["metadata"]["uid"]]
                )
        self._write_status(owner, current)
        return None

    def _create(self, owner: Obj, digest: str, sets: list[Obj]) -> Obj:
        spec = owner["spec"]
        template = copy.deepcopy(spec["template"])
        template["metadata"].setdefault("labels", {})[HASH] = digest
        selector = copy.deepcopy(spec["selector"])
        selector.setdefault("matchLabels", {})[HASH] = digest
        name = f"{owner['metadata']['name']}-{digest}"
        made = {
            "metadata": {
                "name": name,
                "labels": dict(template["metadata"]["labels"]),
                "annotations": {REVISION: str(1 + max((_revision(one) for one in sets), default=0))},
                "ownerReferences": [meta.owner_reference(owner)],
            },
            "spec": {"replicas": 0, "selector": selector, "template": template},
        }
        created = self.client.create("replicasets.apps", owner["metadata"]["namespace"], made)
        self.client.event(owner, "Normal", "ScalingReplicaSet", f"Scaled up replica set {name}")
        return created

    def _mark(self, owner: Obj, current: Obj, sets: list[Obj]) -> None:
        """The revision number of the current template, on both."""
        newest = max(
            (_revision(one) for one in sets if one["metadata"]["uid"] != current["metadata"]["uid"]), default=0
        )
        number = str(max(newest + 1, _revision(current)))
        namespace = owner["metadata"]["namespace"]
        for key, obj in (("replicasets.apps", current), ("deployments.apps", owner)):
            if (obj["metadata"].get("annotations") or {}).get(REVISION) != number:
                self.client.change(
                    key, namespace, obj["metadata"]["name"],
                    lambda held: held["metadata"].setdefault("annotations", {}).update({REVISION: number}),
                )  # fmt: skip

    def _roll(self, owner: Obj, current: Obj, older: list[Obj]) -> None:
        wanted, strategy = owner["spec"]["replicas"], owner["spec"]["strategy"]
        old_total = sum(one["spec"]["replicas"] for one in older)
        if strategy["type"] == "Recreate":
            for one in older:
                self._scale(one, 0)
            if not any(self.client.owned(one["metadata"]["uid"], "pods.") for one in older):
                self._scale(current, wanted)
            return
        rolling = strategy["rollingUpdate"]
        surge = _share(rolling["maxSurge"], wanted, True)
        unavailable = _share(rolling["maxUnavailable"], wanted, False)
        if surge == unavailable == 0:
            unavailable = 1
        room = wanted + surge - old_total
        target = min(wanted, room) if older and old_total else wanted
        self._scale(current, max(target, min(current["spec"]["replicas"], wanted)))
        available = sum(one.get("status", {}).get("availableReplicas", 0) for one in [current, *older])
        spare = max(0, available - (wanted - unavailable))
        for one in sorted(older, key=_revision):
            count = one["spec"]["replicas"]
            broken = count - one.get("status", {}).get("availableReplicas", 0)
            step = min(count, spare + max(0, broken))
            spare -= max(0, step - max(0, broken))
            self._scale(one, count - step)
        self._forget(owner, older)

    def _scale(self, replica_set: Obj, count: int) -> None:
        if replica_set["spec"]["replicas"] != count:
            metadata = replica_set["metadata"]
            self.client.change(
                "replicasets.apps",
                metadata["namespace"],
                metadata["name"],
                lambda held: held["spec"].update(replicas=count),
            )
            replica_set["spec"]["replicas"] = count

    def _forget(self, owner: Obj, older: list[Obj]) -> None:
        empty = [one for one in older if not one["spec"]["replicas"] and not one.get("status", {}).get("replicas")]
        empty.sort(key=_revision)
        for one in empty[: max(0, len(empty) - owner["spec"]["revisionHistoryLimit"])]:
            self.client.delete("replicasets.apps", one["metadata"]["namespace"], one["metadata"]["name"])

    def _write_status(self, owner: Obj, current: Obj | None) -> None:
        namespace, name = owner["metadata"]["namespace"], owner["metadata"]["name"]
        sets = self.client.owned(owner["metadata"]["uid"], "replicasets.apps")
        total, ready = (
            sum(one.get("status", {}).get(field, 0) for one in sets) for field in ("replicas", "readyReplicas")
        )
        fresh = self.client.get("replicasets.apps", namespace, current["metadata"]["name"]) if current else None
        updated = (fresh or {}).get("status", {}).get("replicas", 0)
        wanted = owner["spec"]["replicas"]
        rolling = owner["spec"]["strategy"].get("rollingUpdate") or {"maxUnavailable": 0}
        available = ready >= wanted - _share(rolling["maxUnavailable"], wanted, False)
        complete = updated == total == wanted and ready >= wanted
        status = {
            "observedGeneration": owner["metadata"]["generation"],
            "replicas": total,
            "updatedReplicas": updated,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(0, wanted - ready),
            "conditions": [
                _condition(owner, "Available", available, f"MinimumReplicas{'A' if available else 'Una'}vailable"),
                _condition(owner, "Progressing", True, "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated"),
            ],
        }  # fmt: skip
        self.client.set_status("deployments.apps", namespace, name, status)


def _revision(replica_set: Obj) -> int:
    return int((replica_set["metadata"].get("annotations") or {}).get(REVISION, 0))


def _condition(owner: Obj, kind: str, holds: bool, reason: str) -> Obj:
    held: Obj = next((one for one in owner.get("status", {}).get("conditions") or [] if one["type"] == kind), {})
    status, now = "True" if holds else "False", meta.now()
    same = held.get("status") == status
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": reason,
        "lastTransitionTime": held["lastTransitionTime"] if same else now,
        "lastUpdateTime": held["lastUpdateTime"] if same and held.get("reason") == reason else now,
    }
