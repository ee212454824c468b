"""Defines the names, labels and paths of a cluster's objects. PURE."""

from __future__ import annotations

import hashlib

from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.meta import CLUSTER_LABEL as CLUSTER_LABEL
from ballast_operator.model.meta import GROUP, MANAGED_BY

MANAGER = "ballast-operator"
ROLE_LABEL = f"{GROUP}/role"
BROKER_ROLE = "broker"
CONTROLLER_ROLE = "controller"
CONFIG_ROLE = "config"
REVISION = f"{GROUP}/revision"
ADDED = f"{GROUP}/added-brokers"
RACKS = f"{GROUP}/racks"
# On the brokers' StatefulSet: the subject of the certificate that the brokers accept as their own.
PRINCIPAL = f"{GROUP}/principal"
# On a pod: stands for the secret with which its node makes delegation tokens, without revealing it.
TOKENS = f"{GROUP}/delegation-tokens"
# On a claim: it was empty when its broker or volume was removed, and nothing has used it since.
DRAINED = f"{GROUP}/drained"
METADATA_VOLUME = "metadata"
MOUNT_ROOT = "/var/lib/ballast"
CONFIG_ROOT = "/etc/ballast"
CONTROLLER_PORT = 9093
CONTROLLER_LISTENER = "CONTROLLER"
# Ids of dedicated controllers begin here, out of the way of brokers.
FIRST_CONTROLLER_ID = 100_000
# 63 characters of a label, without "-rebalance", a dash and 19 digits.
LONGEST_BEFORE_REBALANCE = 33


def address(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address, or the port would look like a part of it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def labels(cluster: KafkaCluster, role: str | None = None) -> dict[str, str]:
    """The labels of all objects of a cluster; the selector of its pods is a part of them."""
    found = {
        "app.kubernetes.io/name": "ballast",
        MANAGED_BY: MANAGER,
        CLUSTER_LABEL: cluster.meta.name,
    }
    return found | ({ROLE_LABEL: role} if role else {})


def selector(cluster: KafkaCluster, role: str) -> dict[str, str]:
    return {CLUSTER_LABEL: cluster.meta.name, ROLE_LABEL: role}


def selector_text(cluster: KafkaCluster, role: str) -> str:
    return ",".join(f"{key}={value}" for key, value in selector(cluster, role).items())


def stateful_set(cluster: KafkaCluster, role: str = BROKER_ROLE) -> str:
    return cluster.meta.name if role == BROKER_ROLE else f"{cluster.meta.name}-controller"


def pod_name(cluster: KafkaCluster, ordinal: int, role: str = BROKER_ROLE) -> str:
    return f"{stateful_set(cluster, role)}-{ordinal}"


def headless_service(cluster: KafkaCluster) -> str:
    return f"{cluster.meta.name}-brokers"


def bootstrap_service(cluster: KafkaCluster) -> str:
    return f"{cluster.meta.name}-bootstrap"


def outside_service(cluster: KafkaCluster, broker: int, listener: str) -> str:
    """The Service by which one broker is reached from outside."""
    return f"{pod_name(cluster, broker)}-{listener.lower().replace('_', '-')}"


def identity(cluster: KafkaCluster) -> str:
    return f"{cluster.meta.name}-identity"


def service_account(cluster: KafkaCluster) -> str:
    return f"{cluster.meta.name}-broker"


def rebalance(cluster: KafkaCluster) -> str:
    """The object that runs the rebalance job. The name of a run is this with a time appended, in nanoseconds by the
    Spark operator, and has to fit into a label."""
    name = cluster.meta.name
    if len(name) > LONGEST_BEFORE_REBALANCE:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[: LONGEST_BEFORE_REBALANCE - 9].rstrip('-.')}-{digest}"
    return f"{name}-rebalance"


def host(cluster: KafkaCluster, pod: str) -> str:
    """The DNS name of a pod."""
    return f"{pod}.{headless_service(cluster)}.{cluster.meta.namespace}.svc"


def place_of(node: int) -> tuple[int, str]:
    """Ordinal and role of the pod of the node with this id."""
    return (node, BROKER_ROLE) if node < FIRST_CONTROLLER_ID else (node - FIRST_CONTROLLER_ID, CONTROLLER_ROLE)


def node_host(cluster: KafkaCluster, node: int) -> str:
    """The DNS name of its pod."""
    return host(cluster, pod_name(cluster, *place_of(node)))


def mount_path(volume: str) -> str:
    return f"{MOUNT_ROOT}/{volume}"


def log_dir(volume: str) -> str:
    """The log directory on a volume: below its root, where a file system may keep things of its own."""
    return f"{mount_path(volume)}/data"


def claim(volume: str, pod: str) -> str:
    """The name that a StatefulSet gives to the claim of a volume."""
    return f"{volume}-{pod}"


def volume_of(path: str, pod: str, volumes: tuple[str, ...]) -> str | None:
    """Which volume of a pod a directory is on, by the path that the broker reports.

    Where pods have no mounts of their own (the embedded Kubernetes) the directory is that of the claim.
    """
    for volume in volumes:
        if path == log_dir(volume) or path.endswith(f"/{claim(volume, pod)}/data"):
            return volume
    return None
