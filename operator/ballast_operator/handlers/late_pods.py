"""Pods that Kubernetes does not make, or makes and does not start: nothing but events says so or why.

Since when that is so no object tells, so it is remembered; an operator that has just begun tells it later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ballast_operator.clock import monotonic
from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.quantity import some_of
from ballast_operator.plan.kube import KubeFacts, PodFacts
from ballast_operator.resources import names
from ballast_operator.resources.names import BROKER_ROLE, CONTROLLER_ROLE
from ballast_operator.status import CLUSTER, Verdict

# A pod that restarts is missing for a moment; a large image takes its time to come.
MISSING_SECONDS = 30.0
STARTING_SECONDS = 300.0
# One that fails again and again runs for a moment in between.
TROUBLE_SECONDS = 30.0
SHOWN = 5


class LatePods:
    """Of one cluster. Used by that cluster's worker only."""

    def __init__(self) -> None:
        self._missing: dict[str, float] = {}
        self._starting: dict[tuple[str, str], float] = {}
        self._sets: dict[str, str] = {}
        self._troubled: dict[tuple[str, str], tuple[float, str]] = {}

    def look(self, cluster: KafkaCluster, kube: KubeFacts) -> None:
        """What is missing or not started now."""
        brokers = kube.replicas if kube.exists and not kube.deleting else 0
        self._sets = {
            **_missing(cluster, BROKER_ROLE, brokers, kube.pods),
            **_missing(cluster, CONTROLLER_ROLE, kube.controller_replicas, kube.controllers),
        }
        now = monotonic()
        self._missing = {pod: self._missing.get(pod, now) for pod in self._sets}
        starting = [(pod.name, pod.uid) for pod in kube.all_pods if pod.starting]
        self._starting = {pod: self._starting.get(pod, now) for pod in starting}

    def as_before(self, pods: Mapping[int, PodFacts]) -> dict[int, PodFacts]:
        """With the trouble of a moment ago, of those that are not ready since."""
        now = monotonic()
        seen = {(pod.name, pod.uid): (now, pod.trouble) for pod in pods.values() if pod.trouble is not None}
        kept = {pod: found for pod, found in self._troubled.items() if now - found[0] < TROUBLE_SECONDS}
        self._troubled = kept | seen
        return {n: pod if pod.ready else replace(pod, trouble=self._trouble_of(pod)) for n, pod in pods.items()}

    def _trouble_of(self, pod: PodFacts) -> str | None:
        return pod.trouble or self._troubled.get((pod.name, pod.uid), (0.0, None))[1]

    @property
    def verdict(self) -> Verdict | None:
        """Where that has been so for so long that they do not just restart."""
        now = monotonic()
        missing = [pod for pod, since in self._missing.items() if now - since >= MISSING_SECONDS]
        if missing:
            return CLUSTER["PodsMissing"].says(pods=some_of(missing, SHOWN), set=self._sets[missing[0]])
        late = [pod for (pod, _), since in self._starting.items() if now - since >= STARTING_SECONDS]
        return CLUSTER["PodsNotStarting"].says(pods=some_of(late, SHOWN), pod=late[0]) if late else None


def _missing(cluster: KafkaCluster, role: str, wanted: int, found: Mapping[int, PodFacts]) -> dict[str, str]:
    """The pods that there are not, with the StatefulSet that is to make each."""
    lacking: Iterable[int] = (ordinal for ordinal in range(wanted) if ordinal not in found)
    return {names.pod_name(cluster, ordinal, role): names.stateful_set(cluster, role) for ordinal in lacking}
