"""Pods that a StatefulSet is to make and Kubernetes does not let it: nothing but the set's events says so or why.

Since when they are missing no object tells, so it is remembered; an operator that has just begun tells it later.
"""

from __future__ import annotations

from ballast_operator.clock import monotonic
from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.plan.kube import KubeFacts
from ballast_operator.resources import names
from ballast_operator.resources.names import BROKER_ROLE, CONTROLLER_ROLE
from ballast_operator.status import CLUSTER, Verdict

# A pod that restarts is missing for a moment.
TOLD_SECONDS = 30.0
SHOWN = 5


class MissingPods:
    """Of one cluster. Used by that cluster's worker only."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._sets: dict[str, str] = {}

    def look(self, cluster: KafkaCluster, kube: KubeFacts) -> None:
        """What is missing now, with the set that is to make it."""
        self._sets = {}
        for role, wanted, found, there in (
            (BROKER_ROLE, kube.replicas, kube.pods, kube.exists and not kube.deleting),
            (CONTROLLER_ROLE, kube.controller_replicas, kube.controllers, True),
        ):
            for ordinal in range(wanted if there else 0):
                if ordinal not in found:
                    self._sets[names.pod_name(cluster, ordinal, role)] = names.stateful_set(cluster, role)
        now = monotonic()
        self._since = {pod: self._since.get(pod, now) for pod in self._sets}

    @property
    def verdict(self) -> Verdict | None:
        """Where some have been missing for so long that they do not just restart."""
        now = monotonic()
        late = [pod for pod, since in self._since.items() if now - since >= TOLD_SECONDS]
        if not late:
            return None
        more = f" and {len(late) - SHOWN} more" if len(late) > SHOWN else ""
        return CLUSTER["PodsMissing"].says(pods=", ".join(late[:SHOWN]) + more, set=self._sets[late[0]])
