"""Builds StatefulSets and the templates of their pods. PURE."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ballast_operator.model.cluster import KafkaCluster, Metrics, Volume
from ballast_operator.resources import names, security
from ballast_operator.resources.layout import Layout
from ballast_operator.resources.names import (
    ADDED,
    BROKER_ROLE,
    CONFIG_ROOT,
    CONTROLLER_LISTENER,
    CONTROLLER_PORT,
    CONTROLLER_ROLE,
    METADATA_VOLUME,
    PRINCIPAL,
    RACKS,
    REVISION,
    TOKENS,
)
from ballast_operator.resources.properties import config_map_name

USER = 10_001
GRACE_SECONDS = 60


def stateful_set(layout: Layout, role: str) -> dict[str, Any]:
    """The StatefulSet of brokers, or of dedicated controllers."""
    cluster = layout.cluster
    replicas = layout.brokers if role == BROKER_ROLE else layout.controller_pods
    annotations = _annotations(layout) if role == BROKER_ROLE else {}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": names.stateful_set(cluster, role),
            "namespace": cluster.meta.namespace,
            "labels": names.labels(cluster, role),
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {
            "replicas": replicas,
            "serviceName": names.headless_service(cluster),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            # Sets are recreated, or deleted by mistake: neither must delete claims.
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "selector": {"matchLabels": names.selector(cluster, role)},
            "template": pod_template(layout, role),
            "volumeClaimTemplates": [_claim(cluster, volume, role) for volume in _volumes(layout, role)],
        },
    }


def _annotations(layout: Layout) -> dict[str, str]:
    """What later cycles have to know."""
    found = {ADDED: ",".join(map(str, layout.added))} if layout.added else {}
    if layout.principal and layout.cluster.spec.authorization is not None:
        found[PRINCIPAL] = layout.principal
    if layout.racks:
        found[RACKS] = json.dumps({str(ordinal): rack for ordinal, rack in sorted(layout.racks.items())})
    return found


def _volumes(layout: Layout, role: str) -> list[Volume]:
    metadata = layout.cluster.spec.metadata_volume
    first = layout.cluster.spec.volumes[0]
    if role == CONTROLLER_ROLE:
        size, storage_class = (
            (metadata.size, metadata.storage_class_name) if metadata else ("5Gi", first.storage_class_name)
        )
        return [Volume(METADATA_VOLUME, size, storage_class)]
    own = [Volume(METADATA_VOLUME, metadata.size, metadata.storage_class_name)] if metadata else []
    return [*own, *layout.volumes]


def _claim(cluster: KafkaCluster, volume: Volume, role: str) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": volume.size}},
    }
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    return {"metadata": {"name": volume.name, "labels": names.labels(cluster, role)}, "spec": spec}


def revision(layout: Layout, role: str) -> str:
    """Changes when the pods have to be restarted: with their template or with their configuration."""
    return hashlib.sha256(json.dumps(_pod_body(layout, role), sort_keys=True).encode()).hexdigest()[:16]


def pod_template(layout: Layout, role: str) -> dict[str, Any]:
    body = _pod_body(layout, role)
    body["metadata"]["annotations"][REVISION] = revision(layout, role)
    # Not part of the revision: new pods get it, but none is restarted for it.
    body["spec"]["containers"][0]["terminationMessagePolicy"] = "FallbackToLogsOnError"
    return body


def _pod_body(layout: Layout, role: str) -> dict[str, Any]:
    cluster = layout.cluster
    extra = cluster.spec.pod_template
    labels = {**(extra.labels if extra else {}), **names.labels(cluster, role)}
    annotations = dict(extra.annotations) if extra else {}
    if layout.tokens:
        annotations[TOKENS] = layout.tokens
    # Helm templates leave null for a field that is not set.
    own = {key: value for key, value in extra.spec.items() if value is not None} if extra else {}
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "affinity": _spread(cluster, role),
        **own,
        "serviceAccountName": names.service_account(cluster),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(layout, role)],
        "volumes": [
            {"name": "config", "configMap": {"name": config_map_name(layout)}},
            {"name": "scratch", "emptyDir": {}},
            *security.volumes(cluster, role),
        ],
    }
    if cluster.spec.rack is not None:
        spec["topologySpreadConstraints"] = [*spec.get("topologySpreadConstraints", []), _rack_spread(cluster, role)]
        spec["affinity"] = {"nodeAffinity": _in_a_rack(cluster), **spec["affinity"]}
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def _spread(cluster: KafkaCluster, role: str) -> dict[str, Any]:
    """Pods on different Kubernetes nodes, where that is possible."""
    term = {
        "labelSelector": {"matchLabels": names.selector(cluster, role)},
        "topologyKey": "kubernetes.io/hostname",
    }
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _rack_spread(cluster: KafkaCluster, role: str) -> dict[str, Any]:
    assert cluster.spec.rack is not None
    return {
        "maxSkew": 1,
        "topologyKey": cluster.spec.rack.topology_key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.selector(cluster, role)},
    }


def _in_a_rack(cluster: KafkaCluster) -> dict[str, Any]:
    """Only nodes that have a rack; the spread decides which one. A nodeAffinity of podTemplate overrides this."""
    assert cluster.spec.rack is not None
    term = {"matchExpressions": [{"key": cluster.spec.rack.topology_key, "operator": "Exists"}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}


def _container(layout: Layout, role: str) -> dict[str, Any]:
    cluster = layout.cluster
    spec = cluster.spec
    listeners, metrics = security.endpoints(cluster), spec.metrics or Metrics()
    addresses = [f"{CONTROLLER_LISTENER}://$(POD_IP):{CONTROLLER_PORT}"]
    ports = [{"name": "metrics", "containerPort": metrics.port}]
    if role == BROKER_ROLE:
        addresses = [f"{one.name}://$(POD_IP):{one.port}" for one in listeners] + addresses
        ports += [{"name": security.port_name(at), "containerPort": one.port} for at, one in enumerate(listeners)]
    ports.append({"name": "controller", "containerPort": CONTROLLER_PORT})
    probe_port = listeners[0].port if role == BROKER_ROLE else CONTROLLER_PORT
    container: dict[str, Any] = {
        "name": "broker" if role == BROKER_ROLE else "controller",
        "image": spec.image,
        "command": ["ballast", "broker", f"{CONFIG_ROOT}/$(POD_NAME).properties"],
        "args": ["--override", f"listeners={','.join(addresses)}"],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "ports": ports,
        "readinessProbe": {"tcpSocket": {"port": probe_port}, "periodSeconds": 3, "timeoutSeconds": 2},
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_ROOT, "readOnly": True},
            {"name": "scratch", "mountPath": "/tmp"},
            *security.mounts(cluster, role),
            *({"name": v.name, "mountPath": names.mount_path(v.name)} for v in _volumes(layout, role)),
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if spec.resources:
        container["resources"] = dict(spec.resources)
    if spec.image_pull_policy is not None:
        container["imagePullPolicy"] = str(spec.image_pull_policy)
    return container


def template_volumes(stateful_set: dict[str, Any]) -> dict[str, Volume]:
    """The data volumes that a StatefulSet found in Kubernetes gives its pods."""
    return {name: volume for name, volume in claim_templates(stateful_set).items() if name != METADATA_VOLUME}


def claim_templates(stateful_set: dict[str, Any]) -> dict[str, Volume]:
    """All volumes that a StatefulSet gives its pods, by name."""
    found = {}
    for claim in stateful_set["spec"].get("volumeClaimTemplates") or ():
        name, size = claim["metadata"]["name"], claim["spec"]["resources"]["requests"]["storage"]
        found[name] = Volume(name, str(size), claim["spec"].get("storageClassName"))
    return found


def keep_classes(stateful_set: dict[str, Any], found: dict[str, Any]) -> None:
    """Keep the storage classes of the claims of an existing set, whichever volume the class came from."""
    there = claim_templates(found)
    for claim in stateful_set["spec"]["volumeClaimTemplates"]:
        volume = there.get(claim["metadata"]["name"])
        if volume is not None:
            claim["spec"].pop("storageClassName", None)
            if volume.storage_class_name is not None:
                claim["spec"]["storageClassName"] = volume.storage_class_name
