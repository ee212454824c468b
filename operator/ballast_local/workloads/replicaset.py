"""ReplicaSets, which keep a number of pods of a template, and Deployments, which roll out new templates."""

import copy
import math
from datetime import UTC, datetime
from functools import partial

from ballast_local import last_applied, meta
from ballast_local.errors import Obj
from ballast_local.workloads.controller import Controller, is_active, is_ready, soonest, until_available
from ballast_local.workloads.podset import create_pod, delete_pod, pod_from, settle_ownership, template_hash

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
        pods = [pod for pod in settle_ownership(self.client, owner) if is_active(pod)]
        template = owner["spec"]["template"]
        pods += [create_pod(self.client, owner, pod_from(template, owner)) for _ in range(wanted - len(pods))]
        # Pods that are not ready are deleted first, then the youngest.
        pods.sort(key=lambda pod: pod["metadata"]["creationTimestamp"], reverse=True)
        pods.sort(key=is_ready)
        surplus = pods[: max(0, len(pods) - wanted)]
        for pod in surplus:
            delete_pod(self.client, owner, pod)
        kept = pods[len(surplus) :]
        ready = sum(is_ready(pod) for pod in kept)
        waits = [until_available(pod, owner["spec"].get("minReadySeconds", 0)) for pod in kept]
        status = {
            "replicas": len(kept),
            "fullyLabeledReplicas": len(kept),
            "readyReplicas": ready,
            "availableReplicas": waits.count(0.0),
            "observedGeneration": owner["metadata"]["generation"],
        }
        self.client.set_status("replicasets.apps", namespace, name, status)
        return soonest(waits)


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
        sets = settle_ownership(self.client, owner, "replicasets.apps")
        current = next((one for one in sets if one["metadata"].get("labels", {}).get(HASH) == digest), None)
        if not owner["spec"].get("paused") or current is not None:
            if current is None:
                current = self._create(owner, digest, sets)
            self._mark(owner, current, sets)
            seconds = owner["spec"].get("minReadySeconds", 0)
            if current["spec"].get("minReadySeconds", 0) != seconds:
                self.client.change(
                    "replicasets.apps", namespace, current["metadata"]["name"],
                    lambda held: held["spec"].update(minReadySeconds=seconds),
                )  # fmt: skip
        if not owner["spec"].get("paused"):
            assert current is not None
            older = [one for one in sets if one["metadata"]["uid"] != current["metadata"]["uid"]]
            self._roll(owner, current, older)
            self._forget(owner, older)
        elif len(active := [one for one in sets if one["spec"]["replicas"]]) == 1:
            self._scale(active[0], owner["spec"]["replicas"])
        return self._write_status(owner, current)

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
            "spec": {
                "replicas": 0,
                "minReadySeconds": spec.get("minReadySeconds", 0),
                "selector": selector,
                "template": template,
            },
        }
        created = self.client.create("replicasets.apps", owner["metadata"]["namespace"], made)
        self.client.event(owner, "Normal", "ScalingReplicaSet", f"Scaled up replica set {name}")
        return created

    def _mark(self, owner: Obj, current: Obj, sets: list[Obj]) -> None:
        """Annotate both with the current revision, and the set with the annotations that `rollout history` shows."""
        newest = max(
            (_revision(one) for one in sets if one["metadata"]["uid"] != current["metadata"]["uid"]), default=0
        )
        number = {REVISION: str(max(newest + 1, _revision(current)))}
        said = owner["metadata"].get("annotations") or {}
        told = {name: value for name, value in said.items() if name not in (REVISION, last_applied.ANNOTATION)}
        for key, obj, wanted in (("replicasets.apps", current, told | number), ("deployments.apps", owner, number)):
            held = obj["metadata"].get("annotations") or {}
            if held | wanted != held:
                change = partial(_annotate, wanted)
                self.client.change(key, owner["metadata"]["namespace"], obj["metadata"]["name"], change)

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

    def _write_status(self, owner: Obj, current: Obj | None) -> float | None:
        namespace, name = owner["metadata"]["namespace"], owner["metadata"]["name"]
        sets = self.client.owned(owner["metadata"]["uid"], "replicasets.apps")
        total, ready, available = (
            sum(one.get("status", {}).get(field, 0) for one in sets)
            for field in ("replicas", "readyReplicas", "availableReplicas")
        )
        fresh = self.client.get("replicasets.apps", namespace, current["metadata"]["name"]) if current else None
        updated = (fresh or {}).get("status", {}).get("replicas", 0)
        wanted = owner["spec"]["replicas"]
        rolling = owner["spec"]["strategy"].get("rollingUpdate") or {"maxUnavailable": 0}
        enough = available >= wanted - _share(rolling["maxUnavailable"], wanted, False)
        status = {
            "observedGeneration": owner["metadata"]["generation"],
            "replicas": total,
            "updatedReplicas": updated,
            "readyReplicas": ready,
            "availableReplicas": available,
            "unavailableReplicas": max(0, wanted - available),
        }
        progressing, again = _progress(owner, status, fresh["metadata"]["name"] if fresh else "")
        minimum = "has" if enough else "does not have"
        reason = f"MinimumReplicas{'A' if enough else 'Una'}vailable"
        said = f"Deployment {minimum} minimum availability."
        status["conditions"] = [_condition(owner, "Available", enough, reason, said), progressing]
        self.client.set_status("deployments.apps", namespace, name, status)
        return again


def _annotate(wanted: dict[str, str], held: Obj) -> None:
    held["metadata"].setdefault("annotations", {}).update(wanted)


def _revision(replica_set: Obj) -> int:
    return int((replica_set["metadata"].get("annotations") or {}).get(REVISION, 0))


def _held(owner: Obj, kind: str) -> Obj:
    return next((one for one in owner.get("status", {}).get("conditions") or [] if one["type"] == kind), {})


def _progress(owner: Obj, status: Obj, current: str) -> tuple[Obj, float | None]:
    """The condition Progressing, and the seconds until progressDeadlineSeconds may be exceeded."""
    wanted, seconds = owner["spec"]["replicas"], owner["spec"]["progressDeadlineSeconds"]
    held, before = _held(owner, "Progressing"), owner.get("status") or {}
    mine = f'ReplicaSet "{current}" '
    same = bool(held) and held["message"].startswith(mine)
    if status["updatedReplicas"] == status["replicas"] == status["availableReplicas"] == wanted:
        said = mine + "has successfully progressed."
        return _condition(owner, "Progressing", True, "NewReplicaSetAvailable", said), None
    if same and held["reason"] == "NewReplicaSetAvailable" and status["updatedReplicas"] == status["replicas"]:
        return held, None  # already rolled out: pods lost since then do not matter
    old_left, left = (one.get("replicas", 0) - one.get("updatedReplicas", 0) for one in (before, status))
    counts = ("updatedReplicas", "readyReplicas", "availableReplicas")
    moved = not same or left < old_left or any(status[field] > before.get(field, 0) for field in counts)
    said = mine + "is progressing."
    if moved or owner["spec"].get("paused") or held["reason"] == "NewReplicaSetAvailable":
        return _condition(owner, "Progressing", True, "ReplicaSetUpdated", said, touch=moved), float(seconds)
    rest = seconds - (datetime.now(UTC) - meta.parse_time(held["lastUpdateTime"])).total_seconds()
    if held["reason"] == "ProgressDeadlineExceeded" or rest <= 0:
        said = mine + "has timed out progressing."
        return _condition(owner, "Progressing", False, "ProgressDeadlineExceeded", said), None
    return _condition(owner, "Progressing", True, "ReplicaSetUpdated", said), rest


def _condition(owner: Obj, kind: str, holds: bool, reason: str, message: str, touch: bool = False) -> Obj:
    held = _held(owner, kind)
    status, now = "True" if holds else "False", meta.now()
    same = held.get("status") == status
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": held["lastTransitionTime"] if same else now,
        "lastUpdateTime": held["lastUpdateTime"] if same and held.get("message") == message and not touch else now,
    }
