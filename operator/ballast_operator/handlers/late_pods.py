"""Detects pods that Kubernetes does not create, or creates but does not start: only Events explain why.

No object tells since when, so the operator remembers it; after a restart of the operator it is reported later.
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

# A pod that restarts is missing for a moment; pulling a large image takes a while.
MISSING_SECONDS = 30.0
STARTING_SECONDS = 300.0
# A pod in a crash loop runs for a moment in between.
TROUBLE_SECONDS = 30.0
SHOWN = 5


class LatePods:
    """The late pods of one cluster. Used by that cluster's worker only."""

    def __init__(self) -> None:
        self._missing: dict[str, float] = {}
        self._starting: dict[tuple[str, str], float] = {}
        self._sets: dict[str, str] = {}
        self._troubled: dict[tuple[str, str], tuple[float, str]] = {}

    def look(self, cluster: KafkaCluster, kube: KubeFacts) -> None:
        """Note which pods are missing or not started now."""
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
        """The pods, where those that are not ready keep the trouble that they had a moment ago."""
        now = monotonic()
        seen = {(pod.name, pod.uid): (now, pod.trouble) for pod in pods.values() if pod.trouble is not None}
        kept = {pod: found for pod, found in self._troubled.items() if now - found[0] < TROUBLE_SECONDS}
        self._troubled = kept | seen
        return {n: pod if pod.ready else replace(pod, trouble=self._trouble_of(pod)) for n, pod in pods.items()}

    def _trouble_of(self, pod: PodFacts) -> str | None:
        return pod.trouble or self._troubled.get((pod.name, pod.uid), (0.0, None))[1]

    @property
    def verdict(self) -> Verdict | None:
        """What to report once it has lasted for longer than a restart takes."""
        now = monotonic()
        missing = [pod for pod, since in self._missing.items() if now - since >= MISSING_SECONDS]
        if missing:
            return CLUSTER["PodsMissing"].says(pods=some_of(missing, SHOWN), set=self._sets[missing[0]])
        late = [pod for (pod, _), since in self._starting.items() if now - since >= STARTING_SECONDS]
        return CLUSTER["PodsNotStarting"].says(pods=some_of(late, SHOWN), pod=late[0]) if late else None


def _missing(cluster: KafkaCluster, role: str, wanted: int, found: Mapping[int, PodFacts]) -> dict[str, str]:
    """The missing pods, each with the StatefulSet that should create it."""
    lacking: Iterable[int] = (ordinal for ordinal in range(wanted) if ordinal not in found)
    return {names.pod_name(cluster, ordinal, role): names.stateful_set(cluster, role) for ordinal in lacking}
