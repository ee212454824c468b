"""A cluster that the operator runs: Kubernetes objects, scaling, volumes, restarts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.model.cluster import ClusterStatus, KafkaCluster
from ballast_operator.model.kafka import KafkaView
from ballast_operator.model.meta import Key
from ballast_operator.plan.cluster_status import health
from ballast_operator.status import Verdict
from ballast_operator.worker import Again

if TYPE_CHECKING:
    from ballast_operator.cycle import Shared


class ManagedCluster:
    def __init__(self, key: Key, shared: Shared) -> None:
        self._key = key
        self._shared = shared
        self.pods: Mapping[int, str] = {}

    async def prepare(self, cluster: KafkaCluster, look: bool, again: Again) -> str | None:
        raise NotImplementedError("clusters run by the operator are not there yet")

    async def finish(
        self, cluster: KafkaCluster, kafka: KafkaConnection, view: KafkaView, status: ClusterStatus, again: Again
    ) -> tuple[Verdict, ClusterStatus]:
        return health(view, cluster.spec.brokers), status

    def explain(self, cluster: KafkaCluster) -> Verdict | None:
        return None
