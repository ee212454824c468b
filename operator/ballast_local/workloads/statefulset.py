"""StatefulSets: stable names and claims, ordered or parallel management, rolling updates from the highest ordinal."""

import copy

from ballast_local import meta
from ballast_local.errors import Obj
from ballast_local.workloads.controller import Controller, is_ready, soonest, until_available
from ballast_local.workloads.podset import create_pod, delete_pod, pod_from, settle_ownership, template_hash

REVISION = "controller-revision-hash"
REVISIONS = "controllerrevisions.apps"
CLAIMS = "persistentvolumeclaims."
LOOK_AGAIN_SECONDS = 0.2


class StatefulSetController(Controller):
    primary = ("statefulsets.apps",)
    owned = ("pods.",)
    kind = "StatefulSet"

    def reconcile(self, namespace: str, name: str) -> float | None:
        owner = self.client.get("statefulsets.apps", namespace, name)
        if owner is None or meta.is_deleting(owner):
            return None
        spec = owner["spec"]
        revision = f"{name}-{template_hash(spec['template'])}"
        start = (spec.get("ordinals") or {}).get("start", 0)
        found = settle_ownership(self.client, owner, fits=lambda pod_name: pod_name == f"{name}-{_ordinal(pod_name)}")
        pods = {pod["metadata"]["name"]: pod for pod in found}
        wanted = [f"{name}-{ordinal}" for ordinal in range(start, start + spec["replicas"])]
        self._keep_revision(owner, revision)
        again = self._converge(owner, revision, wanted, pods)
        return soonest((again, self._write_status(owner, revision, wanted)))

    # revisions

    def _keep_revision(self, owner: Obj, revision: str) -> None:
        """Keep the template as a revision, for pods below the partition and `kubectl rollout undo`; trim old ones."""
        namespace, uid = owner["metadata"]["namespace"], owner["metadata"]["uid"]
        kept = sorted(self.client.owned(uid, REVISIONS), key=lambda one: int(one["revision"]))
        if not kept or kept[-1]["metadata"]["name"] != revision:
            number = kept[-1]["revision"] + 1 if kept else 1
            self._write_revision(owner, revision, number)
        pods = self.client.owned(uid, "pods.")
        used = {pod["metadata"].get("labels", {}).get(REVISION) for pod in pods}
        used |= {revision, (owner.get("status") or {}).get("currentRevision")}
        old = [one["metadata"]["name"] for one in kept if one["metadata"]["name"] not in used]
        for name in old[: max(0, len(old) - owner["spec"]["revisionHistoryLimit"])]:
            self.client.delete(REVISIONS, namespace, name)

    def _write_revision(self, owner: Obj, revision: str, number: int) -> None:
        """Write the newest revision. Its name identifies the template, so an existing one (also of an earlier set of
        this name) is renumbered."""
        namespace, template = owner["metadata"]["namespace"], owner["spec"]["template"]
        owners = [meta.owner_reference(owner)]

        def renew(held: Obj) -> None:
            held["metadata"]["ownerReferences"], held["revision"] = owners, number

        if self.client.change(REVISIONS, namespace, revision, renew) is None:
            metadata = {"name": revision, "labels": template["metadata"].get("labels") or {}, "ownerReferences": owners}
            data = {"spec": {"template": template | {"$patch": "replace"}}}
            self.client.create(REVISIONS, namespace, {"metadata": metadata, "data": data, "revision": number})

    def _template(self, owner: Obj, pod_name: str, revision: str) -> tuple[Obj, str]:
        """The template of a pod and its revision: below the partition still the current (old) revision."""
        spec, before = owner["spec"], (owner.get("status") or {}).get("currentRevision", revision)
        if _ordinal(pod_name) >= _partition(spec) or before == revision:
            return spec["template"], revision
        held = self.client.get(REVISIONS, owner["metadata"]["namespace"], before)
        if held is None:
            return spec["template"], revision
        template = held["data"]["spec"]["template"]
        return {key: value for key, value in template.items() if key != "$patch"}, before

    # making it so

    def _converge(self, owner: Obj, revision: str, wanted: list[str], pods: dict[str, Obj]) -> float | None:
        """Do what can be done now; returns the seconds after which to retry the rest, or None."""
        parallel, again = owner["spec"]["podManagementPolicy"] == "Parallel", None
        for pod_name in wanted:
            pod = pods.get(pod_name)
            if not self._claims(owner, pod_name) and pod is None:
                # A new pod would keep the claim in use, whose deletion then would never complete.
                return LOOK_AGAIN_SECONDS
            if (
                pod is not None
                and pod.get("status", {}).get("phase") in ("Failed", "Succeeded")
                and not meta.is_deleting(pod)
            ):
                delete_pod(self.client, owner, pod)
                pod = self.client.get("pods.", owner["metadata"]["namespace"], pod_name)
            if pod is None and not self._create(owner, pod_name, revision):
                again = LOOK_AGAIN_SECONDS
            if not parallel and (pod is None or not _is_available(owner, pod)):
                return again
            if pod is not None and not _has_claims(owner, pod):
                # The real controller tries to add the claim to the pod, which is impossible, and stops here, too.
                return again
        surplus = sorted((name for name in pods if name not in wanted), key=_ordinal, reverse=True)
        for pod_name in surplus:
            for held in self._held_claims(owner, pod_name):
                self._settle_owner(owner, held, pod_name, pods[pod_name])
        for pod_name in surplus:
            if not meta.is_deleting(pods[pod_name]):
                delete_pod(self.client, owner, pods[pod_name])
            if not parallel:
                return again
        if not surplus:
            self._roll(owner, revision, wanted, pods)
        return again

    def _create(self, owner: Obj, pod_name: str, revision: str) -> bool:
        """Create a pod; returns False while a foreign pod has its name. Retry then: its end triggers no reconcile."""
        spec = owner["spec"]
        if self.client.get("pods.", owner["metadata"]["namespace"], pod_name) is not None:
            return False
        template, revision = self._template(owner, pod_name, revision)
        labels = {
            REVISION: revision,
            "statefulset.kubernetes.io/pod-name": pod_name,
            "apps.kubernetes.io/pod-index": str(_ordinal(pod_name)),
        }
        pod = pod_from(template, owner, pod_name, labels)
        volumes = pod["spec"].setdefault("volumes", [])
        for wanted in spec.get("volumeClaimTemplates") or []:
            volume = wanted["metadata"]["name"]
            pod["spec"]["volumes"] = volumes = [one for one in volumes if one["name"] != volume]
            volumes.append({"name": volume, "persistentVolumeClaim": {"claimName": f"{volume}-{pod_name}"}})
        pod["spec"]["hostname"] = pod_name
        if spec.get("serviceName"):
            pod["spec"]["subdomain"] = spec["serviceName"]
        create_pod(self.client, owner, pod)
        return True

    def _held_claims(self, owner: Obj, pod_name: str) -> list[Obj]:
        names = [one["metadata"]["name"] for one in owner["spec"].get("volumeClaimTemplates") or []]
        namespace = owner["metadata"]["namespace"]
        held = [self.client.get(CLAIMS, namespace, f"{name}-{pod_name}") for name in names]
        return [one for one in held if one is not None]

    def _settle_owner(self, owner: Obj, held: Obj, pod_name: str, surplus: Obj | None) -> None:
        """Set a claim's owner by the retention policy: a surplus pod (whenScaled), the set (whenDeleted), or none."""
        policy = owner["spec"]["persistentVolumeClaimRetentionPolicy"]
        references = held["metadata"].get("ownerReferences") or []
        uid = owner["metadata"]["uid"]
        wanted = [one for one in references if one["uid"] != uid and (one["kind"], one["name"]) != ("Pod", pod_name)]
        if surplus is not None and policy.get("whenScaled") == "Delete":
            wanted.append(meta.owner_reference(surplus) | {"controller": False, "blockOwnerDeletion": False})
        elif policy.get("whenDeleted") == "Delete":
            wanted.append(meta.owner_reference(owner) | {"controller": False})
        if {one["uid"] for one in wanted} != {one["uid"] for one in references}:
            metadata = held["metadata"]
            self.client.change(
                CLAIMS, metadata["namespace"], metadata["name"],
                lambda claim: claim["metadata"].update(ownerReferences=wanted),
            )  # fmt: skip

    def _was_left(self, held: Obj) -> bool:
        """Whether the garbage collector will delete the claim, because an owner (a surplus pod) is gone."""
        owners = held["metadata"].get("ownerReferences") or []
        return any(self.client.store.by_uid(one["uid"]) is None for one in owners)

    def _claims(self, owner: Obj, pod_name: str) -> bool:
        """Create missing claims; returns False while a claim of the same name is being deleted."""
        namespace = owner["metadata"]["namespace"]
        free = True
        for template in owner["spec"].get("volumeClaimTemplates") or []:
            claim_name = f"{template['metadata']['name']}-{pod_name}"
            held = self.client.get(CLAIMS, namespace, claim_name)
            if held is not None:
                if meta.is_deleting(held) or self._was_left(held):
                    free = False
                else:
                    self._settle_owner(owner, held, pod_name, None)
                continue
            metadata = copy.deepcopy(template["metadata"]) | {"name": claim_name}
            labels = owner["spec"]["selector"].get("matchLabels") or {}
            metadata["labels"] = (metadata.get("labels") or {}) | labels
            metadata.pop("creationTimestamp", None)
            if owner["spec"]["persistentVolumeClaimRetentionPolicy"].get("whenDeleted") == "Delete":
                metadata["ownerReferences"] = [meta.owner_reference(owner) | {"controller": False}]
            claim = {"metadata": metadata, "spec": copy.deepcopy(template["spec"])}
            self.client.create(CLAIMS, namespace, claim)
            message = f"create Claim {claim_name} Pod {pod_name} in StatefulSet {owner['metadata']['name']} success"
            self.client.event(owner, "Normal", "SuccessfulCreate", message)
        return free

    def _roll(self, owner: Obj, revision: str, wanted: list[str], pods: dict[str, Obj]) -> None:
        strategy = owner["spec"]["updateStrategy"]
        if strategy["type"] != "RollingUpdate":
            return
        partition = _partition(owner["spec"])
        for pod_name in reversed(wanted):
            pod = pods.get(pod_name)
            if _ordinal(pod_name) < partition or pod is None:
                return
            if pod["metadata"].get("labels", {}).get(REVISION) != revision and not meta.is_deleting(pod):
                delete_pod(self.client, owner, pod)
                return
            if not _is_available(owner, pod):
                return

    # status

    def _write_status(self, owner: Obj, revision: str, wanted: list[str]) -> float | None:
        """Write the status; returns the seconds until the next pod becomes available, or None."""
        namespace, name = owner["metadata"]["namespace"], owner["metadata"]["name"]
        uid = owner["metadata"]["uid"]
        pods = [pod for pod in self.client.owned(uid, "pods.") if not meta.is_deleting(pod)]
        ready = sum(is_ready(pod) for pod in pods)
        waits = [until_available(pod, owner["spec"].get("minReadySeconds", 0)) for pod in pods]
        updated = [pod for pod in pods if pod["metadata"].get("labels", {}).get(REVISION) == revision]
        old = owner.get("status") or {}
        done = len(updated) == len(pods) == len(wanted) and ready == len(wanted)
        current = revision if done or not old.get("currentRevision") else old["currentRevision"]
        count = sum(pod["metadata"].get("labels", {}).get(REVISION) == current for pod in pods)
        status = {
            "observedGeneration": owner["metadata"]["generation"],
            "replicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": waits.count(0.0),
            "currentReplicas": count,
            "updatedReplicas": len(updated),
            "currentRevision": current,
            "updateRevision": revision,
            "collisionCount": 0,
        }
        self.client.set_status("statefulsets.apps", namespace, name, status)
        return soonest(waits)


def _is_available(owner: Obj, pod: Obj) -> bool:
    return until_available(pod, owner["spec"].get("minReadySeconds", 0)) == 0.0


def _partition(spec: Obj) -> int:
    strategy = spec["updateStrategy"]
    return int((strategy.get("rollingUpdate") or {}).get("partition", 0)) if strategy["type"] == "RollingUpdate" else 0


def _has_claims(owner: Obj, pod: Obj) -> bool:
    volumes = {volume["name"] for volume in pod["spec"].get("volumes") or [] if "persistentVolumeClaim" in volume}
    return all(claim["metadata"]["name"] in volumes for claim in owner["spec"].get("volumeClaimTemplates") or [])


def _ordinal(pod_name: str) -> int:
    text = pod_name.rpartition("-")[2]
    return int(text) if text.isdecimal() else -1
