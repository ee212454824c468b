"""Builds the Services, ConfigMaps, disruption budget, service account and monitor of a cluster. PURE."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ballast_operator.model.cluster import KafkaCluster, Listener, Metrics
from ballast_operator.resources import names, security
from ballast_operator.resources.layout import Identity, Layout, write_identity
from ballast_operator.resources.names import BROKER_ROLE, CONFIG_ROLE, CONTROLLER_PORT
from ballast_operator.resources.properties import config_map_data, config_map_name

POD_NAME = "statefulset.kubernetes.io/pod-name"
# The ports of a running broker's listeners, in their order.
Ports = tuple[int, ...]


def _metadata(cluster: KafkaCluster, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": cluster.meta.namespace, "labels": names.labels(cluster)}


def identity(cluster: KafkaCluster, born: Identity) -> dict[str, Any]:
    """The ConfigMap that outlives the KafkaCluster with its claims: without it nobody could read these."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(cluster, names.identity(cluster)),
        "data": write_identity(born),
    }


def headless_service(cluster: KafkaCluster) -> dict[str, Any]:
    """Gives every pod its name, also before it is ready: a broker has to find the others to become ready."""
    metrics = cluster.spec.metrics or Metrics()
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(cluster, names.headless_service(cluster)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.CLUSTER_LABEL: cluster.meta.name},
            "ports": [
                _port("kafka", security.endpoints(cluster)[0].port),
                {"name": "controller", "port": CONTROLLER_PORT, "targetPort": CONTROLLER_PORT},
                {"name": "metrics", "port": metrics.port, "targetPort": metrics.port},
            ],
        },
    }


def bootstrap_service(cluster: KafkaCluster, running: Collection[Ports] = ()) -> dict[str, Any]:
    """`running` are the ports of the running brokers: while a rolling restart changes a port, clients reach restarted
    brokers by the new one, and the others by the former one."""
    inside = [(at, one.port) for at, one in _client_listeners(cluster) if one.node_ports is None]
    ports = [
        {"name": f"kafka-{n}" if n > 1 else "kafka", "port": port, "targetPort": _target(cluster, at, port, running)}
        for n, (at, port) in enumerate(inside, 1)
    ]
    whole = len(security.endpoints(cluster))
    former = {row[at]: at for at, port in inside for row in running if len(row) == whole and row[at] != port}
    ports += [
        {"name": f"former-{port}", "port": port, "targetPort": security.port_name(at)}
        for port, at in sorted(former.items())
        if port not in {known for _, known in inside}
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(cluster, names.bootstrap_service(cluster)),
        "spec": {
            "selector": names.selector(cluster, BROKER_ROLE),
            "ports": ports,
        },
    }


def _client_listeners(cluster: KafkaCluster) -> list[tuple[int, Listener]]:
    """Each with its index among all listeners of a broker."""
    first = len(security.endpoints(cluster)) - len(cluster.spec.listeners)
    return list(enumerate(cluster.spec.listeners, first))


def _target(cluster: KafkaCluster, at: int, port: int, running: Collection[Ports]) -> int | str:
    """A listener's targetPort: the number, or the name, by which each pod gets its own, and pods without it none."""
    whole = len(security.endpoints(cluster))

    def named(row: Ports) -> bool:
        return len(row) <= at or row[at] == port or (port not in row and len(row) == whole)

    rows = [row for row in running if row]
    by_name = not all(port in row for row in rows) and all(named(row) for row in rows)
    return security.port_name(at) if by_name else port


def _port(name: str, port: int) -> dict[str, Any]:
    return {"name": name, "port": port, "targetPort": port}


def outside_services(cluster: KafkaCluster, brokers: int, running: Mapping[int, Ports] = {}) -> list[dict[str, Any]]:
    """A NodePort Service for each broker and each listener that has node ports."""
    return [
        _outside_service(cluster, broker, one, _target(cluster, at, one.port, [running.get(broker, ())]))
        for at, one in _client_listeners(cluster)
        if one.node_ports is not None
        for broker in range(brokers)
    ]


def _outside_service(cluster: KafkaCluster, broker: int, listener: Listener, target: int | str) -> dict[str, Any]:
    assert listener.node_ports is not None
    name = names.outside_service(cluster, broker, listener.name)
    node_port = listener.node_ports.first + broker
    port = {"name": "kafka", "port": listener.port, "targetPort": target, "nodePort": node_port}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(cluster, name),
        "spec": {
            "type": "NodePort",
            # A client must reach a broker that is not ready yet but leads partitions already.
            "publishNotReadyAddresses": True,
            "selector": {POD_NAME: names.pod_name(cluster, broker)},
            "ports": [port],
        },
    }


def broker_of(outside_service: Mapping[str, Any]) -> int:
    return int(outside_service["spec"]["selector"][POD_NAME].rpartition("-")[2])


def node_ports(service: Mapping[str, Any]) -> list[int]:
    return [port["nodePort"] for port in service["spec"].get("ports") or () if "nodePort" in port]


def keep_former_node_ports(service: dict[str, Any], found: Mapping[str, Any], wanted: Collection[int]) -> None:
    """Keep the node ports that a broker advertises until it is restarted, unless another Service is to get them."""
    (port,) = service["spec"]["ports"]
    for number in sorted({*node_ports(found)} - {*wanted, port["port"]}):
        former = {"name": f"former-{number}", "port": number, "targetPort": port["targetPort"], "nodePort": number}
        service["spec"]["ports"].append(former)


def service_account(cluster: KafkaCluster) -> dict[str, Any]:
    """Brokers do not use the Kubernetes API; the account exists so that they do not run as the namespace's default."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(cluster, names.service_account(cluster)),
        "automountServiceAccountToken": False,
    }


def disruption_budget(cluster: KafkaCluster, lagging: Collection[str] = ()) -> dict[str, Any]:
    """One node at a time, and while one catches up, only that one: its pod is ready long before. `lagging` are pods."""
    selector: dict[str, Any] = {"matchLabels": {names.CLUSTER_LABEL: cluster.meta.name}}
    if len(lagging) == 1:
        selector["matchExpressions"] = [{"key": POD_NAME, "operator": "NotIn", "values": list(lagging)}]
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(cluster, names.stateful_set(cluster)),
        "spec": {
            "maxUnavailable": 0 if lagging else 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": selector,
        },
    }


def without_others_fields(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """A patch that removes fields of others that defeat ours: a Service with one more selector key leads nowhere, a
    budget with `minAvailable` is refused whatever we apply. All else stays: others have good reason to extend templates
    and metadata."""
    if wanted["kind"] not in ("Service", "PodDisruptionBudget"):
        return {}
    spec = _beyond(wanted["spec"], found.get("spec") or {}, "selector")
    if wanted["kind"] == "PodDisruptionBudget" and "minAvailable" in found["spec"]:
        spec["minAvailable"] = None
    return {"spec": spec} if spec else {}


def _beyond(wanted: Mapping[str, Any], found: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """A patch with None for all that only `found` has, under these keys or all."""
    patch: dict[str, Any] = {}
    for key in keys or found:
        if key not in wanted:
            patch[key] = None
        elif isinstance(wanted[key], Mapping) and isinstance(found.get(key), Mapping):
            inner = _beyond(wanted[key], found[key])
            patch |= {key: inner} if inner else {}
    return patch


def config_map(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name(layout),
            "namespace": layout.cluster.meta.namespace,
            "labels": names.labels(layout.cluster, CONFIG_ROLE),
        },
        "data": config_map_data(layout, layout.controller_pods),
    }


def _of_cluster(cluster: KafkaCluster) -> list[dict[str, Any]]:
    """Relabelings that keep the nodes of a cluster, and its rebalance Deployment, which has a label of its own."""
    label, name = "__meta_kubernetes_pod_label_ballast_dev_", cluster.meta.name
    both = [f"{label}cluster", f"{label}rebalances"]
    return [
        {"sourceLabels": both, "regex": f"{name};|;{name}", "action": "keep"},
        {"sourceLabels": both[1:], "regex": "(.+)", "targetLabel": "job"},
    ]


def pod_monitor(cluster: KafkaCluster) -> dict[str, Any] | None:
    metrics = cluster.spec.metrics or Metrics()
    if not metrics.pod_monitor:
        return None
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": _metadata(cluster, names.stateful_set(cluster)),
        "spec": {
            "jobLabel": names.CLUSTER_LABEL,
            "selector": {"matchLabels": {"app.kubernetes.io/name": "ballast"}},
            "podMetricsEndpoints": [{"port": "metrics", "relabelings": _of_cluster(cluster)}],
        },
    }
