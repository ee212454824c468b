"""Reads the Kubernetes objects of a cluster that the operator runs into facts. PURE."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ballast_operator.model.cluster import KafkaCluster, Volume
from ballast_operator.resources import names
from ballast_operator.resources.names import (
    ADDED,
    BROKER_ROLE,
    CONTROLLER_ROLE,
    DRAINED,
    METADATA_VOLUME,
    PRINCIPAL,
    RACKS,
    REVISION,
    ROLE_LABEL,
)
from ballast_operator.resources.pods import template_volumes
from ballast_operator.resources.security import internal_secrets

Object = Mapping[str, Any]
RESTARTED = "kubectl.kubernetes.io/restartedAt"
STARTING = ("ContainerCreating", "PodInitializing")
GROWTH_ERRORS = ("ControllerResizeError", "NodeResizeError")
GROWTH_STEPS = ("FileSystemResizePending", "Resizing")
LAST_WORDS = 300
ENDED = ("Succeeded", "Failed")
VOLUME_NAME = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class PodFacts:
    name: str
    uid: str
    ordinal: int
    ready: bool = False
    address: str | None = None
    revision: str | None = None
    deleting_since: str | None = None
    node: str | None = None
    claims: Mapping[str, str] = field(default_factory=dict)
    trouble: str | None = None
    config: str | None = None
    ports: tuple[int, ...] = ()
    starting: bool = False
    restarted_at: str | None = None
    ready_since: str | None = None
    held_by: tuple[str, ...] = ()
    """Finalizers that keep it although all its containers have ended."""
    kubelet_silent: bool = False
    """Not ready only because its kubelet is silent: its containers were ready when last heard of."""

    @property
    def port(self) -> int | None:
        """The port of the inter-broker listener; those for clients follow."""
        return self.ports[0] if self.ports else None


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    name: str
    uid: str
    volume: str
    pod: str
    size: str
    storage_class: str | None = None
    deleting: bool = False
    drained: bool = False
    resource_version: str = ""
    owners: tuple[Object, ...] = ()
    growing: str | None = None
    """What is left to do until it has the requested size, or what went wrong (`growth_failed`)."""
    growth_failed: bool = False
    lost: bool = False
    """The volume that it was bound to is gone."""

    @property
    def ordinal(self) -> int:
        return int(self.pod.rpartition("-")[2])


@dataclass(frozen=True, slots=True)
class KubeFacts:
    """`replicas` is that of the StatefulSet; without one, it is inferred from pods and claims that were not drained.

    `sets` are the uids of the existing StatefulSets, of brokers and of controllers. `internal` are the Secrets with
    which pods and sets speak TLS among themselves, "" being no TLS; `principal` is the name that nodes have by it.
    `tokens` stands for the wanted secret of delegation tokens. `waiting_to_be_added` and `waiting_to_restart`
    are brokers that wait for a node port that somebody else has.
    `controller_replicas` is that of the controllers' StatefulSet; without one, it is inferred from their pods.
    `restarted_at` and `controllers_restarted_at` are when somebody asked for restarts by `kubectl rollout restart`.
    """

    exists: bool = False
    deleting: bool = False
    replicas: int = 0
    volumes: Mapping[str, Volume] = field(default_factory=dict)
    added: tuple[int, ...] = ()
    pods: Mapping[int, PodFacts] = field(default_factory=dict)
    controllers: Mapping[int, PodFacts] = field(default_factory=dict)
    claims: tuple[ClaimFacts, ...] = ()
    controller_claims: tuple[ClaimFacts, ...] = ()
    racks: Mapping[int, str] = field(default_factory=dict)
    sets: frozenset[str] = frozenset()
    internal: frozenset[str] = frozenset()
    principal: str = ""
    tokens: str = ""
    controller_replicas: int = 0
    restarted_at: str | None = None
    controllers_restarted_at: str | None = None
    waiting_to_be_added: frozenset[int] = frozenset()
    waiting_to_restart: frozenset[int] = frozenset()

    @property
    def all_pods(self) -> tuple[PodFacts, ...]:
        """Those of controllers included."""
        return (*self.pods.values(), *self.controllers.values())

    @property
    def all_claims(self) -> tuple[ClaimFacts, ...]:
        return (*self.claims, *self.controller_claims)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of a node; `error` says why nothing is."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None


def kube_facts(
    cluster: KafkaCluster, stateful_set: Object | None, pods: Collection[Object], claims: Collection[Object]
) -> KubeFacts:
    brokers, controllers = (_members(cluster, role, pods) for role in (BROKER_ROLE, CONTROLLER_ROLE))
    claim_rows, controller_claims = (_claims(cluster, role, claims) for role in (BROKER_ROLE, CONTROLLER_ROLE))
    if stateful_set is None:
        filled = [claim for claim in claim_rows if not claim.drained and not claim.deleting]
        # Pods mount a drained volume until they are restarted. It must not count: the successor of an operator killed
        # while it recreated the set without that volume would put it back.
        emptied = {claim.name for claim in claim_rows if claim.drained}
        in_use = ((volume, claim) for pod in brokers.values() for volume, claim in pod.claims.items())
        found = {claim.volume for claim in filled} | {volume for volume, claim in in_use if claim not in emptied}
        first = [volume.name for volume in cluster.spec.volumes if volume.name in found]
        volumes = [*first, *sorted(found - {*first, METADATA_VOLUME})]
        return KubeFacts(
            replicas=max([*brokers, *(claim.ordinal for claim in filled)], default=-1) + 1,
            volumes={volume: _volume_of(volume, claim_rows) for volume in volumes},
            pods=brokers,
            controllers=controllers,
            claims=claim_rows,
            controller_claims=controller_claims,
            internal=_internal(cluster, None, pods),
        )
    annotations = stateful_set["metadata"].get("annotations") or {}
    return KubeFacts(
        exists=True,
        deleting=bool(stateful_set["metadata"].get("deletionTimestamp")),
        replicas=int(stateful_set["spec"]["replicas"]),
        volumes=template_volumes(dict(stateful_set)),
        added=tuple(int(one) for one in annotations.get(ADDED, "").split(",") if one.isdecimal()),
        pods=brokers,
        controllers=controllers,
        claims=claim_rows,
        controller_claims=controller_claims,
        racks=_read_racks(annotations.get(RACKS, "")) if cluster.spec.rack is not None else {},
        internal=_internal(cluster, stateful_set, pods),
        principal=annotations.get(PRINCIPAL, ""),
        restarted_at=restart_asked(stateful_set),
    )


def restart_asked(stateful_set: Object) -> str | None:
    """When somebody asked for a restart of its pods. The annotation is not ours, so it survives our applies."""
    template = stateful_set["spec"].get("template") or {}
    return ((template.get("metadata") or {}).get("annotations") or {}).get(RESTARTED)


def _internal(cluster: KafkaCluster, stateful_set: Object | None, pods: Iterable[Object]) -> frozenset[str]:
    specs = [pod["spec"] for role in (BROKER_ROLE, CONTROLLER_ROLE) for pod in _of_role(cluster, role, pods).values()]
    if stateful_set is not None:
        specs.append(stateful_set["spec"]["template"]["spec"])
    return internal_secrets(specs)


def _members(cluster: KafkaCluster, role: str, pods: Iterable[Object]) -> dict[int, PodFacts]:
    return {ordinal: pod_facts(pod) for ordinal, pod in _of_role(cluster, role, pods).items()}


def _of_role(cluster: KafkaCluster, role: str, pods: Iterable[Object]) -> dict[int, Object]:
    """The pods that are named as this role's StatefulSet names them: others may have the labels, too."""
    found = {}
    for pod in pods:
        stateful_set, _, ordinal = pod["metadata"]["name"].rpartition("-")
        labels = pod["metadata"].get("labels") or {}
        if labels.get(ROLE_LABEL) == role and stateful_set == names.stateful_set(cluster, role) and ordinal.isdecimal():
            found[int(ordinal)] = pod
    return found


def _read_racks(text: str) -> dict[int, str]:
    """A malformed annotation is ignored, and rewritten from the nodes."""
    try:
        return {int(ordinal): str(rack) for ordinal, rack in json.loads(text or "{}").items()}
    except (ValueError, AttributeError, RecursionError):
        return {}


def with_racks(cluster: KafkaCluster, kube: KubeFacts, nodes: Mapping[str, NodeFacts]) -> KubeFacts:
    """Brokers are in the racks of the nodes that they run on; those without a node stay where they were last."""
    if cluster.spec.rack is None:
        return kube
    racks = dict(kube.racks)
    for ordinal, pod in kube.pods.items():
        node = nodes.get(pod.node or "")
        if node is None or node.error is not None:
            continue
        racks.pop(ordinal, None)
        if cluster.spec.rack.topology_key in node.labels:
            racks[ordinal] = node.labels[cluster.spec.rack.topology_key]
    return replace(kube, racks=racks)


def pod_facts(pod: Object) -> PodFacts:
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    ports = [port for container in spec.get("containers") or () for port in container.get("ports") or ()]
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    changed = {one["type"]: one.get("lastTransitionTime") for one in status.get("conditions") or ()}
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in spec.get("volumes") or ()
        if "persistentVolumeClaim" in volume and volume["name"] != METADATA_VOLUME
    }
    ready, stays = conditions.get("Ready") == "True", not meta.get("deletionTimestamp")
    return PodFacts(
        name=meta["name"],
        uid=meta["uid"],
        ordinal=int(meta["name"].rpartition("-")[2]),
        ready=ready and stays,
        kubelet_silent=not ready and stays and conditions.get("ContainersReady") == "True",
        ready_since=changed.get("Ready"),
        held_by=tuple(meta.get("finalizers") or ()) if status.get("phase") in ENDED else (),
        address=status.get("podIP"),
        revision=(meta.get("annotations") or {}).get(REVISION),
        deleting_since=meta.get("deletionTimestamp"),
        node=spec.get("nodeName"),
        claims=claims,
        trouble=_trouble(conditions, status),
        restarted_at=(meta.get("annotations") or {}).get(RESTARTED),
        starting=any(_waits_for(container) in STARTING for container in status.get("containerStatuses") or ()),
        config=next(
            (volume["configMap"]["name"] for volume in spec.get("volumes") or () if "configMap" in volume), None
        ),
        ports=tuple(port["containerPort"] for port in ports if re.fullmatch(r"kafka(-\d+)?", port.get("name", ""))),
    )


def _trouble(conditions: Mapping[str, str], status: Object) -> str | None:
    """What a person would look for in kubectl describe pod. While an init container fails, the others just wait."""
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if _waits_for(container) not in (None, *STARTING):
            return f"{waiting['reason']}: {waiting.get('message') or 'see its logs'}{_last_end(container)}"
    if conditions.get("PodScheduled") == "False":
        unscheduled = next(one for one in status["conditions"] if one["type"] == "PodScheduled")
        return f"it cannot be scheduled: {unscheduled.get('message', '')}"
    return None


def _waits_for(container: Object) -> str | None:
    return ((container.get("state") or {}).get("waiting") or {}).get("reason")


def _last_end(container: Object) -> str:
    """How the container ended before, out of memory for instance, which its waiting state does not tell."""
    ended = (container.get("lastState") or {}).get("terminated") or {}
    if "exitCode" not in ended:
        return ""
    reason = f" ({ended['reason']})" if ended.get("reason") not in (None, "Error") else ""
    return f"; it ended last with exit code {ended['exitCode']}{reason}{_last_words(ended.get('message') or '')}"


def _last_words(message: str) -> str:
    """The last line of what the kubelet kept of its log."""
    lines = [line for line in message.splitlines() if line.strip()]
    if not lines:
        return ""
    shown = "".join(one if one.isprintable() else " " for one in lines[-1]).strip()
    return f", and said at last: {shown if len(shown) <= LAST_WORDS else shown[:LAST_WORDS] + '...'}"


def claim_facts(cluster: KafkaCluster, role: str, claim: Object) -> ClaimFacts | None:
    """None for one that is not named as the StatefulSet names its claims: a copy may have the labels, too."""
    meta = claim["metadata"]
    prefix, _, ordinal = meta["name"].rpartition("-")
    volume = prefix.removesuffix(f"-{names.stateful_set(cluster, role)}")
    if volume == prefix or not ordinal.isdecimal() or not VOLUME_NAME.fullmatch(volume):
        return None
    return ClaimFacts(
        name=meta["name"],
        uid=meta["uid"],
        volume=volume,
        pod=names.pod_name(cluster, int(ordinal), role),
        size=str(claim["spec"]["resources"]["requests"]["storage"]),
        storage_class=claim["spec"].get("storageClassName"),
        deleting=bool(meta.get("deletionTimestamp")),
        lost=(claim.get("status") or {}).get("phase") == "Lost",
        drained=DRAINED in (meta.get("annotations") or {}),
        resource_version=meta.get("resourceVersion") or "",
        owners=tuple(meta.get("ownerReferences") or ()),
        **_growth(claim),
    )


def _growth(claim: Object) -> dict[str, Any]:
    """The API server accepts any larger size; whether the storage can provide it shows later, in conditions."""
    found = {
        one["type"]: one.get("message") or one["type"]
        for one in (claim.get("status") or {}).get("conditions") or ()
        if one.get("status") == "True"
    }
    for kind in (*GROWTH_ERRORS, *GROWTH_STEPS):
        if kind in found:
            return {"growing": found[kind], "growth_failed": kind in GROWTH_ERRORS}
    return {}


def _claims(cluster: KafkaCluster, role: str, claims: Iterable[Object]) -> tuple[ClaimFacts, ...]:
    of_role = (one for one in claims if (one["metadata"].get("labels") or {}).get(ROLE_LABEL) == role)
    return tuple(row for one in of_role if (row := claim_facts(cluster, role, one)) is not None)


def _volume_of(name: str, claims: Iterable[ClaimFacts]) -> Volume:
    return Volume(name, next((claim.size for claim in claims if claim.volume == name), "1Gi"))
