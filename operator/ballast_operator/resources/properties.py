"""Builds the configuration file of each node of a cluster. PURE.

Nodes are addressed by the DNS names of their pods, so no file changes when pods move.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from ballast_operator.model.cluster import KafkaCluster, Listener, Metrics
from ballast_operator.model.fields import write
from ballast_operator.resources import names, security
from ballast_operator.resources.layout import Layout
from ballast_operator.resources.names import (
    BROKER_ROLE,
    CONTROLLER_LISTENER,
    CONTROLLER_PORT,
    CONTROLLER_ROLE,
    FIRST_CONTROLLER_ID,
    METADATA_VOLUME,
)

# What suits pods; spec.config overrides it.
DEFAULTS = {"auto.create.topics.enable": "false"}
TRANSACTION_LOG_REPLICAS = 3  # by default
# For a Java properties file, where an escaped comma in the subject of a certificate would lose its backslash.
ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\f": r"\f"})


def shared_properties(layout: Layout) -> dict[str, str]:
    """The properties that all nodes have in common; a change restarts them."""
    cluster = layout.cluster
    spec = cluster.spec
    metrics = spec.metrics or Metrics()
    replication = layout.identity.replication
    return {
        **DEFAULTS,
        "offsets.topic.replication.factor": str(replication),
        "default.replication.factor": str(replication),
        **_transaction_log(replication),
        "min.insync.replicas": str(max(1, replication - 1)),
        **spec.config,
        "cluster.id": layout.identity.cluster_id,
        **_quorum(layout),
        "controller.listener.names": CONTROLLER_LISTENER,
        "inter.broker.listener.name": security.endpoints(cluster)[0].name,
        "listener.security.protocol.map": security.protocol_map(cluster),
        **security.node_security(cluster, layout.principal),
        "metrics.port": str(metrics.port),
    }


def _transaction_log(replication: int) -> dict[str, str]:
    """Only where there are too few replicas for the defaults: elsewhere a change would restart all brokers."""
    if replication >= TRANSACTION_LOG_REPLICAS:
        return {}
    return {
        "transaction.state.log.replication.factor": str(replication),
        "transaction.state.log.min.isr": str(max(1, replication - 1)),
    }


def _quorum(layout: Layout) -> dict[str, str]:
    """Where nodes find the quorum: the static voters, or the bootstrap servers once the quorum is dynamic."""
    cluster, identity = layout.cluster, layout.identity
    chosen = identity.asked if identity.dynamic else identity.controllers
    at = {node: f"{names.node_host(cluster, node)}:{CONTROLLER_PORT}" for node in chosen}
    if identity.dynamic:
        return {"controller.quorum.bootstrap.servers": ",".join(at.values())}
    return {"controller.quorum.voters": ",".join(f"{node}@{place}" for node, place in at.items())}


def directory_properties(layout: Layout, metadata_only: bool = False) -> dict[str, str]:
    """log.dirs in the order of the volumes, and where the metadata log lives."""
    found = {}
    if not metadata_only:
        found["log.dirs"] = ",".join(names.log_dir(volume) for volume in layout.volume_names)
    if layout.cluster.spec.metadata_volume is not None or metadata_only:
        found["metadata.log.dir"] = names.log_dir(METADATA_VOLUME)
    return found


def node_properties(layout: Layout, ordinal: int, role: str) -> dict[str, str]:
    """The whole file of one node, but for `listeners`: only the pod knows the address to listen on."""
    cluster = layout.cluster
    if role == CONTROLLER_ROLE:
        own = {"node.id": str(FIRST_CONTROLLER_ID + ordinal), "process.roles": "controller"}
        if layout.identity.dynamic:
            own["advertised.listeners"] = _as_controller(cluster, FIRST_CONTROLLER_ID + ordinal)
        directories = directory_properties(layout, metadata_only=True)
        return {**shared_properties(layout), **directories, "log.dirs": names.log_dir(METADATA_VOLUME), **own}
    votes = ordinal in layout.identity.controllers and not layout.identity.dedicated
    advertised = [_advertised(cluster, listener, ordinal) for listener in security.endpoints(cluster)]
    if votes and layout.identity.dynamic:
        advertised.append(_as_controller(cluster, ordinal))
    own = {
        "node.id": str(ordinal),
        "process.roles": "broker,controller" if votes else "broker",
        "advertised.listeners": ",".join(advertised),
        **security.listener_security(cluster),
    }
    if ordinal in layout.racks:
        own["broker.rack"] = layout.racks[ordinal]
    return {**shared_properties(layout), **directory_properties(layout), **own}


def _as_controller(cluster: KafkaCluster, node: int) -> str:
    """The address of a controller in the metadata log: by name, since its IP address changes with each start."""
    return f"{CONTROLLER_LISTENER}://{names.node_host(cluster, node)}:{CONTROLLER_PORT}"


def _advertised(cluster: KafkaCluster, listener: Listener, ordinal: int) -> str:
    """Inside, the name of the pod; outside, a node and the port of this broker's own Service."""
    if listener.node_ports is not None:
        return f"{listener.name}://{names.address(listener.node_ports.host, listener.node_ports.first + ordinal)}"
    return f"{listener.name}://{names.host(cluster, names.pod_name(cluster, ordinal))}:{listener.port}"


def config_map_name(layout: Layout) -> str:
    """Each configuration has a name of its own: a container that restarts by itself finds the one that it had.

    Racks are not part of the name: they concern single brokers, which are restarted when theirs has changed.
    """
    content: list[object] = [shared_properties(layout), directory_properties(layout)]
    for_clients = security.listener_security(layout.cluster)
    if for_clients:
        content.append(for_clients)
    outside = {one.name: write(one.node_ports) for one in layout.cluster.spec.listeners if one.node_ports is not None}
    if outside:
        content.append(outside)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]
    return f"{layout.cluster.meta.name}-config-{digest}"


def config_map_data(layout: Layout, controllers: int) -> dict[str, str]:
    """One file per pod."""
    files = {
        f"{names.pod_name(layout.cluster, ordinal)}.properties": _text(node_properties(layout, ordinal, BROKER_ROLE))
        for ordinal in range(layout.brokers)
    }
    for ordinal in range(controllers):
        pod = names.pod_name(layout.cluster, ordinal, CONTROLLER_ROLE)
        files[f"{pod}.properties"] = _text(node_properties(layout, ordinal, CONTROLLER_ROLE))
    return files


def _text(properties: Mapping[str, str]) -> str:
    return "".join(f"{key}={value.translate(ESCAPES)}\n" for key, value in sorted(properties.items()))
