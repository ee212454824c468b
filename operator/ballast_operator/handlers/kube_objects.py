"""Reads and applies the Kubernetes objects of a cluster that the operator runs. Decides nothing."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import uuid
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError, path_of
from ballast_operator.apply.refused import answer_in, message_of
from ballast_operator.handlers.recreation import Recreation
from ballast_operator.model.cluster import KIND, KafkaCluster
from ballast_operator.model.meta import CLUSTER_LABEL, GROUP, MANAGED_BY, owner_reference
from ballast_operator.plan.kube import ClaimFacts, KubeFacts, NodeFacts, PodFacts, kube_facts, restart_asked, with_racks
from ballast_operator.plan.layouts import same_templates, with_present, without_added
from ballast_operator.plan.ownership import goes_with_another
from ballast_operator.resources import names, others, pods
from ballast_operator.resources.layout import (
    Identity,
    Layout,
    new_identity,
    read_identity,
    restored_identity,
    write_identity,
)
from ballast_operator.resources.names import BROKER_ROLE, CONFIG_ROLE, CONTROLLER_ROLE, ROLE_LABEL
from ballast_operator.resources.pods import claim_templates
from ballast_operator.resources.properties import config_map_name
from ballast_operator.resources.security import internal_secrets
from ballast_operator.side_by_side import side_by_side
from ballast_operator.status import CLUSTER, NotServedError

if TYPE_CHECKING:
    from ballast_operator.cycle import Shared

log = logging.getLogger(__name__)

BELOW = ("pods", "persistentvolumeclaims")
APPLIED = f"{GROUP}/applied"
PLURALS = {
    "ConfigMap": ("v1", "configmaps"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "PodMonitor": ("monitoring.coreos.com/v1", "podmonitors"),
    "CronJob": ("batch/v1", "cronjobs"),
    "Deployment": ("apps/v1", "deployments"),
    "ScheduledSparkApplication": ("sparkoperator.k8s.io/v1beta2", "scheduledsparkapplications"),
}


class LayoutRefusals(NamedTuple):
    """Why Kubernetes refused Services for clients outside, and the brokers that wait for these: `waiting_to_be_added`
    could not be reached from outside; `waiting_to_restart` would, once restarted, advertise a node port that they do
    not have. And what failed besides, for which nobody waits."""

    refused: str | None = None
    waiting_to_be_added: frozenset[int] = frozenset()
    waiting_to_restart: frozenset[int] = frozenset()
    failed: ApiError | ApiUnavailableError | None = None


class KubeObjects:
    """The objects of one cluster. Used by that cluster's worker only."""

    def __init__(self, shared: Shared) -> None:
        self._api = shared.api
        self._recreation = Recreation(shared.api, self.apply_owned)
        self._identity: Identity | None = None
        self._identity_version = ""
        self._outside: frozenset[str] | None = None
        self._monitored = True  # an earlier process may have created a PodMonitor
        self._lagging: tuple[str, ...] | None = None
        self.nodes: dict[str, NodeFacts] = {}

    async def identity(self, cluster: KafkaCluster) -> Identity:
        """The cluster's identity, created on first use. Like the claims it outlives the KafkaCluster."""
        if self._identity is not None:
            return self._identity
        namespace, name = cluster.meta.namespace, names.identity(cluster)
        found = await self._api.find(path_of("v1", "configmaps", namespace, name))
        if found is None:
            cluster_id = cluster.status.cluster_id or base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            born = restored_identity(cluster) or new_identity(cluster, cluster_id)
            found = await self._api.create(path_of("v1", "configmaps", namespace), others.identity(cluster, born))
        _refuse_garbage(cluster, f"ConfigMap {name}", found)
        try:
            self._identity = read_identity(found.get("data") or {})
        except (KeyError, ValueError) as error:
            said = CLUSTER["IdentityUnreadable"].says(name=name, error=f"{type(error).__name__} {error}")
            raise NotServedError(said) from error
        self._identity_version = found["metadata"].get("resourceVersion") or ""
        self._recreation.read(found)
        return self._identity

    async def change_identity(self, cluster: KafkaCluster, before: Identity, after: Identity) -> None:
        """Replace `before` by `after`, unless somebody else has changed it. Either way it is read again next time."""
        self._identity = None
        if await self.identity(cluster) == before:
            path = path_of("v1", "configmaps", cluster.meta.namespace, names.identity(cluster))
            self._identity = None
            meta = {"resourceVersion": self._identity_version}
            await self._api.merge(path, {"metadata": meta, "data": write_identity(after)})

    async def facts(self, cluster: KafkaCluster) -> KubeFacts:
        """Read which objects exist now."""
        dedicated = self._identity is not None and self._identity.dedicated
        roles = (BROKER_ROLE, CONTROLLER_ROLE) if dedicated else (BROKER_ROLE,)
        (found_pods, claims), found_sets = await asyncio.gather(
            side_by_side(BELOW, partial(self._listed, cluster)),
            side_by_side(roles, partial(self._stateful_set, cluster)),
        )
        for claim in claims:
            _refuse_garbage(cluster, f"PersistentVolumeClaim {claim['metadata']['name']}", claim)
        sets = {
            role: found or self._recreation.begun(cluster, names.stateful_set(cluster, role))
            for role, found in zip(roles, found_sets, strict=True)
        }
        facts = kube_facts(cluster, sets[BROKER_ROLE], found_pods, claims)
        controllers = max(facts.controllers, default=-1) + 1
        of_controllers = sets.get(CONTROLLER_ROLE)
        if of_controllers is not None:
            controllers = int(of_controllers["spec"]["replicas"])
            template = of_controllers["spec"]["template"]["spec"]
            facts = replace(facts, internal=facts.internal | internal_secrets([template]))
            facts = replace(facts, controllers_restarted_at=restart_asked(of_controllers))
        uids = frozenset(one["metadata"]["uid"] for one in found_sets if one is not None)
        facts = replace(facts, sets=uids, controller_replicas=controllers)
        names_ = {pod.node for pod in facts.pods.values() if pod.node} if cluster.spec.rack is not None else set()
        self.nodes = {node.name: node for node in await side_by_side(sorted(names_), self._node)}
        return with_racks(cluster, facts, self.nodes)

    async def _listed(self, cluster: KafkaCluster, plural: str) -> list[dict[str, Any]]:
        path = path_of("v1", plural, cluster.meta.namespace)
        return [one async for one in self._api.items(path, f"{CLUSTER_LABEL}={cluster.meta.name}")]

    async def _stateful_set(self, cluster: KafkaCluster, role: str) -> dict[str, Any] | None:
        """The StatefulSet of this role, unless one of its name belongs to somebody else."""
        found = await self._api.find(
            self._path("StatefulSet", cluster.meta.namespace, names.stateful_set(cluster, role))
        )
        return found if found is not None and _is_ours(cluster, found) else None

    async def _node(self, name: str) -> NodeFacts:
        """Nodes are cluster-scoped, so reading them takes a permission of its own, which may be missing."""
        try:
            found = await self._api.find(path_of("v1", "nodes", None, name))
        except (ApiError, ApiUnavailableError) as error:
            return NodeFacts(name, error=message_of(error))
        if found is None:
            return NodeFacts(name, error=f"node {name} does not exist")
        return NodeFacts(name, found["metadata"].get("labels") or {})

    async def apply_layout(self, layout: Layout, kube: KubeFacts) -> LayoutRefusals:
        """Apply all objects of the layout. Configuration is created before the pods that read it and removed after
        them: otherwise the successor of an operator killed in between would restore it."""
        cluster = layout.cluster
        served = with_present(layout, kube)
        first = [others.service_account(cluster), others.headless_service(cluster), others.config_map(served)]
        first.append(others.bootstrap_service(cluster, [pod.ports for pod in kube.pods.values()]))
        await side_by_side(first, lambda body: self.apply_owned(cluster, body))
        refusals = await self._apply_outside_services(served, kube)
        try:
            await self._apply_budget(cluster)
        except (ApiError, ApiUnavailableError) as error:
            refusals = refusals._replace(failed=error)
        if layout.identity.dedicated:
            await self._apply_stateful_set(layout, CONTROLLER_ROLE)
        if not kube.deleting:
            await self._apply_stateful_set(without_added(layout, kube, refusals.waiting_to_be_added), BROKER_ROLE)
        return refusals

    async def _apply_budget(self, cluster: KafkaCluster) -> None:
        """Until Kafka has told which nodes lag, keep the budget that an earlier operator process applied."""
        wanted = others.disruption_budget(cluster, self._lagging or ())
        path = self._path(wanted["kind"], cluster.meta.namespace, wanted["metadata"]["name"])
        if self._lagging is not None or await self._api.find(path) is None:
            await self.apply_owned(cluster, wanted)

    async def hold_evictions(self, cluster: KafkaCluster, lagging: Collection[int]) -> None:
        """While these catch up no other node may be evicted, as when Kubernetes nodes are drained in a row."""
        found = tuple(names.pod_name(cluster, *names.place_of(node)) for node in sorted(lagging))
        if found != self._lagging:
            self._lagging = found
            await self.apply_owned(cluster, others.disruption_budget(cluster, found))

    async def apply_monitor(self, cluster: KafkaCluster) -> None:
        """Apply or delete the PodMonitor, a kind of the Prometheus operator, which need not be installed."""
        monitor = others.pod_monitor(cluster)
        if monitor is not None:
            await self.apply_owned(cluster, monitor)
        elif self._monitored:
            await self.drop_owned(cluster, "PodMonitor", names.stateful_set(cluster))
        self._monitored = monitor is not None

    async def _apply_outside_services(self, layout: Layout, kube: KubeFacts) -> LayoutRefusals:
        """Apply the Services for clients outside. Only one Service can have a node port: unwanted Services are deleted
        first, and refused ones are retried while others succeed, since these may release the port."""
        cluster = layout.cluster
        running = {ordinal: pod.ports for ordinal, pod in kube.pods.items()}
        left = others.outside_services(cluster, layout.brokers, running)
        await self._keep_former_node_ports(layout, kube, left)
        wanted = frozenset(service["metadata"]["name"] for service in left)
        if self._outside != wanted:
            await self._drop_services(cluster, wanted)
            self._outside = wanted

        async def refusal(service: dict[str, Any]) -> str | None:
            try:
                await self.apply_owned(cluster, service)
            except ApiError as error:
                return error.message
            return None

        while left:
            said = await side_by_side(left, refusal)
            if None not in said:
                return await self._port_refusals(cluster, kube, str(said[-1]), left)
            left = [service for service, why in zip(left, said, strict=True) if why is not None]
        return LayoutRefusals()

    async def _port_refusals(
        self, cluster: KafkaCluster, kube: KubeFacts, why: str, refused: list[dict[str, Any]]
    ) -> LayoutRefusals:
        """The result when none of these Services could get its node port."""
        waiting = {others.broker_of(service) for service in refused}
        added = {broker for broker in waiting if kube.exists and broker >= kube.replicas > 0}
        moving = set()
        for service, found in zip(refused, await side_by_side(refused, self._found_service), strict=True):
            ours = found is not None and _is_ours(cluster, found)
            if found is not None and ours and set(others.node_ports(found)).isdisjoint(others.node_ports(service)[:1]):
                moving.add(others.broker_of(service))
        return LayoutRefusals(why, frozenset(added), frozenset(moving))

    async def _keep_former_node_ports(self, layout: Layout, kube: KubeFacts, services: list[dict[str, Any]]) -> None:
        """Also keep the current node ports of brokers that still run with another configuration."""
        wanted = {number for service in services for number in others.node_ports(service)}
        present = config_map_name(layout)
        outdated = {pod.name for pod in kube.pods.values() if pod.config != present}
        kept = [service for service in services if service["spec"]["selector"][others.POD_NAME] in outdated]
        for service, found in zip(kept, await side_by_side(kept, self._found_service), strict=True):
            if found is not None and _is_ours(layout.cluster, found):
                others.keep_former_node_ports(service, found, wanted)

    async def _found_service(self, service: dict[str, Any]) -> dict[str, Any] | None:
        return await self._api.find(
            self._path("Service", service["metadata"]["namespace"], service["metadata"]["name"])
        )

    async def _drop_services(self, cluster: KafkaCluster, outside: frozenset[str]) -> None:
        """Delete the Services of brokers and listeners that no longer exist."""
        kept = {names.headless_service(cluster), names.bootstrap_service(cluster), *outside}
        path = path_of("v1", "services", cluster.meta.namespace)
        async for found in self._api.items(path, f"{CLUSTER_LABEL}={cluster.meta.name}"):
            meta = found["metadata"]
            owned = any(owner.get("uid") == cluster.meta.uid for owner in meta.get("ownerReferences") or ())
            if owned and meta["name"] not in kept:
                await self._api.delete(f"{path}/{meta['name']}", uid=meta["uid"])

    async def forget_recreation(self, cluster: KafkaCluster) -> None:
        """Drop the notes for recreating StatefulSets: none has to be recreated any more."""
        await self._recreation.forget(cluster)

    async def drop_old_configs(self, layout: Layout, kube: KubeFacts) -> None:
        """Delete the configurations that no pod uses any more."""
        cluster = layout.cluster
        used = {pod.config for pod in kube.all_pods}
        label = f"{CLUSTER_LABEL}={cluster.meta.name},{ROLE_LABEL}={CONFIG_ROLE}"
        namespace = cluster.meta.namespace
        async for found in self._api.items(path_of("v1", "configmaps", namespace), label):
            meta = found["metadata"]
            if meta["name"] != config_map_name(layout) and meta["name"] not in used:
                await self._api.delete(path_of("v1", "configmaps", namespace, meta["name"]), uid=meta["uid"])

    async def _apply_stateful_set(self, layout: Layout, role: str) -> None:
        wanted = pods.stateful_set(layout, role)
        found = await self._stateful_set(layout.cluster, role)
        if found is not None and role == CONTROLLER_ROLE:
            # Without a metadataVolume they have the class of the first volume, which may be another one by now.
            pods.keep_classes(wanted, found)
        if found is not None and not same_templates(claim_templates(wanted).values(), claim_templates(found)):
            await self._recreation.make(layout.cluster, found, wanted)
        else:
            await self.apply_owned(layout.cluster, wanted)
            await self._recreation.end(layout.cluster, wanted["metadata"]["name"], found)

    async def apply_owned(self, owner: KafkaCluster, body: dict[str, Any]) -> None:
        """Server-side apply, skipped if the object already holds exactly this. Fields that others have added stay,
        unless they defeat ours."""
        meta = body["metadata"]
        meta["ownerReferences"] = [owner_reference(KIND, owner.meta)]
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
        meta.setdefault("annotations", {})[APPLIED] = digest
        path = self._path(body["kind"], meta["namespace"], meta["name"])
        found = await self._api.find(path)
        if found is not None and not _is_ours(owner, found):
            message = (
                f"{body['kind']} {meta['name']} exists already and does not belong to KafkaCluster {owner.meta.name}"
            )
            raise ApiError(409, "AlreadyExists", message)
        patch = others.without_others_fields(body, found) if found is not None else {}
        if not patch and found is not None and _holds(body, found):
            return
        try:
            if patch:
                await self._api.merge(path, patch)
            await self._api.apply(path, body)
        except (ApiError, ApiUnavailableError) as error:
            answer = answer_in(error)
            if answer is None:
                raise
            message = f"{body['kind']} {meta['name']}: {answer.message}"
            raise ApiError(answer.status, answer.reason, message) from error

    async def drop_owned(self, cluster: KafkaCluster, kind: str, name: str) -> None:
        """Delete the object of this name if it belongs to the cluster."""
        path = self._path(kind, cluster.meta.namespace, name)
        found = await self._api.find(path)
        if found is None or found["metadata"].get("deletionTimestamp"):
            return
        owners = found["metadata"].get("ownerReferences") or ()
        if any(owner.get("uid") == cluster.meta.uid for owner in owners):
            await self._api.delete(path, uid=found["metadata"]["uid"])

    def _path(self, kind: str, namespace: str, name: str) -> str:
        api_version, plural = PLURALS[kind]
        return path_of(api_version, plural, namespace, name)

    async def restart(self, cluster: KafkaCluster, pod: PodFacts) -> None:
        """Delete a pod, if it is still the one that was observed; its StatefulSet recreates it."""
        await self._api.delete(path_of("v1", "pods", cluster.meta.namespace, pod.name), uid=pod.uid)

    async def evict(self, cluster: KafkaCluster, pod: PodFacts) -> bool:
        """Like `restart`, within the disruption budget: False if that allows no eviction now. Where eviction is not
        possible at all (an older Role, a second budget for the pod), the pod is deleted."""
        try:
            return await self._api.evict(path_of("v1", "pods", cluster.meta.namespace, pod.name), pod.uid)
        except ApiError as error:
            log.warning("cluster %s: pod %s is deleted, as it cannot be evicted: %s", cluster.key, pod.name, error)
            await self.restart(cluster, pod)
            return True

    async def grow_claim(self, cluster: KafkaCluster, claim: str, size: str) -> str | None:
        """Request a larger volume. Returns the error, if for instance the storage class does not allow it."""
        path = path_of("v1", "persistentvolumeclaims", cluster.meta.namespace, claim)
        try:
            await self._api.merge(path, {"spec": {"resources": {"requests": {"storage": size}}}})
        except ApiError as error:
            return error.message
        return None

    async def mark_claim(self, cluster: KafkaCluster, claim: ClaimFacts, drained: bool) -> None:
        """Record on the claim whether it is known to be empty."""
        path = path_of("v1", "persistentvolumeclaims", cluster.meta.namespace, claim.name)
        mark = {"uid": claim.uid, "annotations": {names.DRAINED: "true" if drained else None}}
        await self._api.merge(path, {"metadata": mark})

    async def delete_claim(self, cluster: KafkaCluster, claim: str, uid: str) -> None:
        await self._api.delete(path_of("v1", "persistentvolumeclaims", cluster.meta.namespace, claim), uid=uid)


def _refuse_garbage(cluster: KafkaCluster, what: str, found: dict[str, Any]) -> None:
    """An object that is about to be garbage collected with a former KafkaCluster must not become part of this one."""
    if goes_with_another(cluster, found["metadata"].get("ownerReferences") or ()):
        raise NotServedError(CLUSTER["FormerGoes"].says(what=what))


def _is_ours(cluster: KafkaCluster, found: dict[str, Any]) -> bool:
    """Whether an object with a name of ours belongs to this cluster, or is an orphan of a cluster of this name."""
    meta = found["metadata"]
    owner = next((one for one in meta.get("ownerReferences") or () if one.get("controller")), None)
    if owner is not None:
        return bool(owner.get("uid") == cluster.meta.uid)
    labels = meta.get("labels") or {}
    return labels.get(MANAGED_BY) == names.MANAGER and labels.get(CLUSTER_LABEL) == cluster.meta.name


def _holds(wanted: Any, found: Any) -> bool:
    """Whether everything wanted is there; what the API server or others added does not matter.

    Values that the server normalizes (quantities) count as different; then the object is applied again, which changes
    nothing.
    """
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and _holds(value, found[key]) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(wanted) == len(found)
            and all(_holds(one, other) for one, other in zip(wanted, found, strict=True))
        )
    return bool(wanted == found)
