"""Tells which nodes of a cluster that the operator runs are up, coming up, or lost. PURE."""

from __future__ import annotations

from collections.abc import Mapping

from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.kafka import KafkaView
from ballast_operator.model.times import seconds_of
from ballast_operator.plan.kube import KubeFacts, NodeFacts, PodFacts

# deletionTimestamp already includes the grace period.
LOST_SECONDS = 60.0
# A broker that is ready but fenced for longer than this is in trouble.
COMING_SECONDS = 30.0


def is_up(pod: PodFacts, view: KafkaView, now_seconds: float) -> bool:
    """A broker that went down a moment ago is still online to Kafka; its pod tells sooner, if its kubelet answers."""
    return view.is_online(pod.ordinal) if pod.kubelet_silent else pod.ready and not comes(pod, view, now_seconds)


def comes(pod: PodFacts, view: KafkaView, now_seconds: float) -> bool:
    """Whether its broker is about to be online: a pod is ready as soon as it listens."""
    if view.is_online(pod.ordinal) or pod.ready_since is None:
        return False
    return now_seconds - seconds_of(pod.ready_since) < COMING_SECONDS


def is_on_its_way(broker: int, kube: KubeFacts, view: KafkaView, now_seconds: float) -> bool:
    """Whether a broker that does not answer is about to. A pod that stays away is reported as such."""
    pod = kube.pods.get(broker)
    if pod is None or not pod.ready:
        return pod is None or pod.trouble is None
    return view.is_online(broker) or comes(pod, view, now_seconds)


def lost_pods(kube: KubeFacts, now_seconds: float) -> list[PodFacts]:
    """Pods whose end is overdue: their node does not answer, so nobody can know whether they still run."""
    return [pod for pod in kube.all_pods if pod.node and not pod.held_by and _is_overdue(pod, now_seconds)]


def kept_pods(kube: KubeFacts, now_seconds: float) -> list[PodFacts]:
    """Pods that have ended but are kept by somebody's finalizers."""
    return [pod for pod in kube.all_pods if pod.held_by and _is_overdue(pod, now_seconds)]


def _is_overdue(pod: PodFacts, now_seconds: float) -> bool:
    return pod.deleting_since is not None and now_seconds - seconds_of(pod.deleting_since) > LOST_SECONDS


def racks_unknown(cluster: KafkaCluster, kube: KubeFacts, nodes: Mapping[str, NodeFacts]) -> tuple[list[int], str]:
    """(brokers that run and have no rack, why)."""
    if cluster.spec.rack is None:
        return [], ""
    lacking = [ordinal for ordinal, pod in sorted(kube.pods.items()) if pod.node and ordinal not in kube.racks]
    for ordinal in lacking:
        node = nodes.get(kube.pods[ordinal].node or "")
        if node is not None:
            return lacking, node.error or f"node {node.name} has no label {cluster.spec.rack.topology_key}"
    return [], ""
