"""Creates the rebalance job of the kind that `spec.rebalance.job` chooses, deletes others, and reports its results.

The job writes `status.rebalance`; the condition Balanced is derived from it here, so that conditions have one writer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError
from ballast_operator.apply.refused import message_of
from ballast_operator.events import NORMAL, WARNING
from ballast_operator.handlers.kube_objects import KubeObjects
from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.meta import Condition
from ballast_operator.plan.balanced import BALANCED, balanced_condition, names_trouble
from ballast_operator.resources import names
from ballast_operator.resources.rebalance import KINDS, job_of, rebalance_object, refusal

if TYPE_CHECKING:
    from ballast_operator.cycle import Shared

log = logging.getLogger(__name__)


class RebalanceJobs:
    """The rebalance job of one cluster. Used by that cluster's worker only."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._objects = KubeObjects(shared)
        self._refused: str | None = None
        self._brought: int | None = None

    async def bring(self, cluster: KafkaCluster) -> None:
        """Apply the job as the spec says. A refusal is reported; the rest of the cluster goes on."""
        if cluster.meta.paused or cluster.meta.deleting:
            return
        self._refused = refusal(cluster)
        wanted = rebalance_object(cluster) if self._refused is None else None
        try:
            if self._brought != cluster.meta.generation:
                await self._drop_others(cluster, wanted["kind"] if wanted is not None else None)
            if wanted is not None:
                await self._objects.apply_owned(cluster, wanted)
        except (ApiError, ApiUnavailableError) as error:
            log.warning("cluster %s: the rebalance job could not be applied: %s", cluster.key, error)
            if job_of(cluster) is not None:
                self._refused = f"the job could not be created: {message_of(error).rstrip('.')}"
            return
        self._brought = cluster.meta.generation

    async def _drop_others(self, cluster: KafkaCluster, kept: str | None) -> None:
        for kind in KINDS.values():
            if kind != kept:
                await self._objects.drop_owned(cluster, kind, names.rebalance(cluster))

    def condition(self, cluster: KafkaCluster, now: str) -> Condition | None:
        """The condition Balanced: the result of the job's last run, or why there is no job."""
        before = balanced_before(cluster.status.conditions)
        return balanced_condition(cluster, self._refused, before, now)

    def tell(self, cluster: KafkaCluster, now: Condition | None) -> None:
        """Send an Event if the condition has a new reason."""
        before = balanced_before(cluster.status.conditions)
        if now is not None and (before is None or before.reason != now.reason):
            kind = WARNING if names_trouble(now) else NORMAL
            self._shared.events.send(cluster, kind, now.reason, now.message)


def balanced_before(found: Iterable[Condition]) -> Condition | None:
    return next((condition for condition in found if condition.type == BALANCED), None)
