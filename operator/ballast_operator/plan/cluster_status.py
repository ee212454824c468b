"""Builds the part of a KafkaCluster's status that comes from Kafka: brokers, directories, fill levels. PURE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ballast_operator.model.cluster import BrokerStatus, ClusterStatus, DirectoryStatus, KafkaCluster
from ballast_operator.model.kafka import DirectoryId, DirectoryView, KafkaView
from ballast_operator.plan.kube import KubeFacts, PodFacts
from ballast_operator.resources import names, security
from ballast_operator.status import CLUSTER, Verdict

# A change of the fill level by less than this share of the volume is not reported, so idle clusters cause no writes.
TOLD_CHANGE = 0.01


def cluster_status(view: KafkaView, before: ClusterStatus, pods: Mapping[int, str] | None = None) -> ClusterStatus:
    """What was observed, as status; conditions and what Kubernetes tells are added by the caller."""
    old = {broker.id: broker for broker in before.brokers}
    brokers = tuple(_broker(view, broker, old.get(broker), (pods or {}).get(broker)) for broker in sorted(view.brokers))
    online = sum(bool(broker.online) for broker in brokers)
    fills = [d.fill_percent for broker in brokers for d in broker.directories if d.fill_percent is not None]
    return ClusterStatus(
        cluster_id=view.cluster_id,
        controller=view.controller if view.controller in view.brokers else before.controller,
        broker_count=len(brokers),
        brokers_online=online,
        brokers_text=f"{online}/{len(brokers)}",
        fullest_text=f"{max(fills)}%" if fills else None,
        brokers=brokers,
    )


def _broker(view: KafkaView, broker: int, before: BrokerStatus | None, pod: str | None) -> BrokerStatus:
    known = view.brokers[broker]
    old = {directory.path: directory for directory in before.directories} if before else {}
    counts = Counter(log.path for replica, log in view.logs.items() if replica.broker == broker)
    directories = tuple(
        _directory(where, found, counts[where.path], old.get(where.path))
        for where, found in sorted(view.directories.items())
        if where.broker == broker
    )
    held = leads = 0
    for topic in view.topics.values():
        for part in topic.partitions.values():
            held += broker in part.replicas
            leads += part.leader == broker
    return BrokerStatus(
        id=broker,
        address=names.address(known.host, known.port) if known.host else None,
        rack=known.rack,
        pod=pod,
        online=known.online,
        replicas=held,
        leaders=leads,
        directories=directories or (before.directories if before else ()),
    )


def _directory(
    where: DirectoryId, found: DirectoryView, replicas: int, before: DirectoryStatus | None
) -> DirectoryStatus:
    if found.total_bytes <= 0 or found.usable_bytes < 0:
        return DirectoryStatus(where.path, found.online, found.error, replicas=replicas)
    used, total = found.total_bytes - found.usable_bytes, found.total_bytes
    same_volume = before is not None and before.total_bytes == total and before.used_bytes is not None
    if before is not None and same_volume and abs(used - (before.used_bytes or 0)) < total * TOLD_CHANGE:
        used = before.used_bytes or 0
    return DirectoryStatus(where.path, found.online, found.error, total, used, round(100 * used / total), replicas)


def client_addresses(cluster: KafkaCluster, kube: KubeFacts, view: KafkaView) -> list[str]:
    """The client address of each online broker: during a rolling restart some listen at other ports than the spec's."""
    wanted = cluster.spec.listeners[0].port
    first = len(security.endpoints(cluster)) - len(cluster.spec.listeners)
    ports = {ordinal: pod.ports[first] for ordinal, pod in kube.pods.items() if len(pod.ports) > first}
    brokers = (broker for broker in view.brokers.values() if broker.online and broker.host)
    return [names.address(broker.host, ports.get(broker.id, wanted)) for broker in brokers]


def failed_directories(view: KafkaView) -> list[DirectoryId]:
    return sorted(where for where, found in view.directories.items() if not found.online)


def troubled(pods: Iterable[PodFacts]) -> Verdict | None:
    """What Kubernetes knows about brokers that do not come up."""
    found = [pod for pod in pods if pod.trouble is not None]
    if not found:
        return None
    told = CLUSTER["BrokersOffline"].says(ids=", ".join(str(pod.ordinal) for pod in found))
    return told._replace(message=f"{told.message} Pod {found[0].name}: {found[0].trouble}")


def health(view: KafkaView, expected: int | None = None) -> Verdict:
    """What Kafka itself says about the cluster's health; `expected` is the number of brokers wanted, if it is known."""
    held = {b for topic in view.topics.values() for part in topic.partitions.values() for b in part.replicas}
    # A broker that is gone and not wanted any more does not count, unless it holds replicas.
    wanted = [one for one in view.brokers.values() if expected is None or one.id < expected or one.id in held]
    offline = [broker.id for broker in wanted if not broker.online]
    online = len(wanted) - len(offline)
    if expected is not None and len(wanted) < expected:
        return CLUSTER["Starting"].says(online=online, brokers=expected)
    if offline:
        return CLUSTER["BrokersOffline"].says(ids=", ".join(map(str, sorted(offline))))
    failed = failed_directories(view)
    if failed:
        named = ", ".join(f"{where.path} of broker {where.broker}" for where in failed[:10])
        return CLUSTER["DirectoryFailed"].says(directories=named)
    return CLUSTER["Ready"].says(brokers=online)
