"""Reconciles the KafkaCluster itself: makes it reachable, observes it, writes its status.

For an external cluster that is all. For one that the operator runs, `managed` brings Kubernetes into line first.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError
from ballast_operator.apply.refused import TRY_AGAIN_SECONDS, answer_in, refusal_in, unserved
from ballast_operator.clock import monotonic
from ballast_operator.events import NORMAL, WARNING
from ballast_operator.handlers.managed import ManagedCluster
from ballast_operator.handlers.plans import observe_whole
from ballast_operator.handlers.rebalance import RebalanceJobs
from ballast_operator.kafka_client import KafkaConnection, KafkaUnavailableError
from ballast_operator.model.cluster import ClusterStatus, KafkaCluster
from ballast_operator.model.kafka import KafkaView
from ballast_operator.model.meta import Key
from ballast_operator.observe import observe_brokers
from ballast_operator.plan.claimed import as_claimed
from ballast_operator.plan.cluster_status import cluster_status, health
from ballast_operator.plan.dropped import OUTDATED, outdated_condition
from ballast_operator.plan.secured import Reach
from ballast_operator.status import (
    CLUSTER,
    IN_COURSE,
    SHARED,
    TRUE,
    NotServedError,
    Verdict,
    conditions,
    ready_condition,
)
from ballast_operator.tls_secrets import SecretMissingError
from ballast_operator.worker import Part, Requeue

if TYPE_CHECKING:
    from ballast_operator.cycle import Shared

log = logging.getLogger(__name__)
UNHEALTHY_LOOK_SECONDS = 1.0
# The longer a cluster stays unhealthy the less often it is looked at, as it may need a person. Its recovery is noticed
# after at most a quarter of the time that the trouble lasted.
UNHEALTHY_LOOK_MOST_SECONDS = 15.0
UNHEALTHY_SHARE = 0.25


class WrongClusterError(KafkaUnavailableError):
    """Another cluster answers at the address; nothing may be done to it."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


class Pace:
    """How soon to look again at an unhealthy cluster: the interval grows while there are no events and no changes."""

    def __init__(self) -> None:
        self._seen: object = None
        self._since = 0.0
        self._due = 0.0

    def seconds(self, seen: object, heard: bool) -> float:
        now = monotonic()
        if seen != self._seen or (heard and now < self._due):
            self._seen, self._since = seen, now
        found = max(UNHEALTHY_LOOK_SECONDS, UNHEALTHY_SHARE * (now - self._since))
        self._due = now + min(found, UNHEALTHY_LOOK_MOST_SECONDS)
        return self._due - now


class ClusterHandler:
    """One KafkaCluster. Used by that cluster's worker only."""

    def __init__(self, key: Key, shared: Shared) -> None:
        self._key = key
        self._shared = shared
        self._managed = ManagedCluster(key, shared)
        self._rebalance = RebalanceJobs(shared)
        self._pace = Pace()
        self._uid: str | None = None
        self._refused_until = 0.0

    async def prepare(self, cluster: KafkaCluster, look: bool, requeue: Requeue) -> Reach | None:
        """How to reach the brokers, or None while there is no way yet."""
        if self._uid not in (None, cluster.meta.uid):
            await self.forget()  # deleted and recreated so fast that it looked like one object
        self._uid = cluster.meta.uid
        if cluster.spec.external is not None:
            return Reach(cluster.spec.external.bootstrap_servers)
        return await self._managed.prepare(cluster, look, requeue)

    async def observe(
        self, cluster: KafkaCluster, kafka: KafkaConnection, look: bool, heard: bool, requeue: Requeue
    ) -> bool:
        """Observe Kafka and write the status. False if there was no reason to look."""
        if not look:
            return False
        with self._shared.metrics.reconcile("KafkaCluster"):
            view = await observe_brokers(kafka)
            self._refuse_other_cluster(cluster, view)
            view = as_claimed(cluster, await observe_whole(kafka, view))
            await self._rebalance.bring(cluster)
            pods = self._managed.pods if cluster.spec.external is None else {}
            status = cluster_status(view, cluster.status, pods)
            if cluster.spec.external is not None:
                verdict = SHARED["Paused"].says() if cluster.meta.paused else health(view)
                status = replace(status, bootstrap_servers=cluster.spec.external.bootstrap_servers)
            else:
                verdict, status = await self._managed.finish(cluster, kafka, view, status, requeue)
        if verdict.reason in IN_COURSE:
            self._pace = Pace()
            if verdict.ready != TRUE:
                requeue.cluster_within(UNHEALTHY_LOOK_SECONDS)
        else:
            requeue.cluster_within(self._pace.seconds((cluster.meta.generation, verdict, status.drains), heard))
        await self._write(cluster, status, verdict, requeue)
        return True

    def _refuse_other_cluster(self, cluster: KafkaCluster, view: KafkaView) -> None:
        known = cluster.status.cluster_id
        if known is not None and view.cluster_id != known:
            raise WrongClusterError(CLUSTER["WrongCluster"].says(found=view.cluster_id, expected=known))

    async def unobserved(
        self, cluster: KafkaCluster, kafka: KafkaConnection, error: ApiError | ApiUnavailableError, requeue: Requeue
    ) -> None:
        """Kubernetes could not be read: keep the known status, but check that the same cluster still answers."""
        self._refuse_other_cluster(cluster, await observe_brokers(kafka))
        verdict = unserved(error)
        current = self._shared.cache.clusters.get(self._key)
        if verdict is not None and current is not None:
            await self._write(current, current.status, verdict, requeue)

    async def unreachable(self, cluster: KafkaCluster, since: str, error: Exception, requeue: Requeue) -> None:
        """Report that the cluster does not answer; the rest of its status stays."""
        text = str(error) if str(error).endswith(".") else f"{error}."
        verdict = CLUSTER["Unreachable"].says(since=since, error=text)
        if isinstance(error, WrongClusterError):
            verdict = error.verdict
        if isinstance(error, SecretMissingError):
            verdict = CLUSTER["SecretNotFound"].says(error=error)
        if cluster.spec.external is None:
            self._managed.silent()
            verdict = self._managed.explain() or verdict
        if isinstance(error, NotServedError):
            verdict = error.verdict
        current = self._shared.cache.clusters.get(self._key) or cluster
        await self._write(current, current.status, verdict, requeue)

    async def starting(self, cluster: KafkaCluster, requeue: Requeue) -> None:
        """The cluster has no address yet."""
        self._managed.silent()
        verdict = self._managed.explain() or CLUSTER["Starting"].says(online=0, brokers=cluster.spec.brokers)
        current = self._shared.cache.clusters.get(self._key) or cluster
        await self._write(current, current.status, verdict, requeue)
        requeue.cluster_within(1.0)

    async def forget(self) -> None:
        self._managed = ManagedCluster(self._key, self._shared)
        self._rebalance = RebalanceJobs(self._shared)

    async def _write(self, cluster: KafkaCluster, status: ClusterStatus, verdict: Verdict, requeue: Requeue) -> None:
        current = self._shared.cache.clusters.get(self._key)
        if current is None or current.meta.uid != cluster.meta.uid:
            return
        before = ready_condition(current.status.conditions)
        said = conditions(current.status.conditions, verdict, cluster.meta.generation, self._shared.now())
        balanced = self._rebalance.condition(current, self._shared.now())
        if balanced is not None:
            said = (*said, balanced)
        known = current.status.conditions
        dropped = self._shared.definitions.dropped
        outdated = outdated_condition(dropped, known, cluster.meta.generation, self._shared.now())
        if outdated is not None:
            said = (*said, outdated)
        wanted = replace(
            status,
            observed_generation=cluster.meta.generation,
            conditions=said,
            # The job's own field: what it wrote stays.
            rebalance=current.status.rebalance,
        )
        if monotonic() < self._refused_until:
            requeue.cluster_within(self._refused_until - monotonic())
            return
        try:
            written = await self._shared.writer.write_status(current, wanted)
        except (ApiError, ApiUnavailableError) as error:
            self._tell_refused(current, error, requeue)
            return
        if not written:
            requeue.cluster_within(0.0)
        elif before is None or before.reason != verdict.reason:
            kind = NORMAL if verdict.reason in IN_COURSE else WARNING
            self._shared.events.send(current, kind, verdict.reason, verdict.message)
        self._rebalance.tell(current, balanced)
        if outdated is not None and all(one.type != OUTDATED for one in known):
            self._shared.events.send(current, WARNING, outdated.reason, outdated.message)

    def _tell_refused(self, cluster: KafkaCluster, error: ApiError | ApiUnavailableError, requeue: Requeue) -> None:
        """The status could not be written; the cluster, its topics and its moves do not wait for that. The cause may be
        a policy, an API server that does not answer, or one before Kubernetes 1.30, which refuses a status while the
        spec violates a validation rule that is newer than it."""
        if answer_in(error) is None:
            log.warning("cluster %s: its status was not written: %s", self._key, error)
            requeue.failed.add(Part.CLUSTER)
            requeue.cluster_within(0.0)
            return
        refusal = refusal_in(error)
        if refusal is None:
            raise error
        log.warning("cluster %s: its status was not written: %s", self._key, error)
        said = CLUSTER["KubernetesRefused"].says(error=refusal)
        self._shared.events.send(cluster, WARNING, said.reason, said.message)
        self._refused_until = monotonic() + TRY_AGAIN_SECONDS
        requeue.cluster_within(TRY_AGAIN_SECONDS)
