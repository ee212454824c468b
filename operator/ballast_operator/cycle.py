"""Runs one cycle of a cluster's worker: connect, run the three handlers, say when to come back.

The order matters: the cluster first (it may be what makes Kafka reachable), then reassignments, then topics.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError, KubernetesApi
from ballast_operator.apply.refused import refusal_told
from ballast_operator.apply.writer import Writer
from ballast_operator.cache import Broken, Cache
from ballast_operator.clock import Now, monotonic
from ballast_operator.connections import Connections
from ballast_operator.definitions import Definitions
from ballast_operator.events import Events
from ballast_operator.handlers.clusters import ClusterHandler
from ballast_operator.handlers.reassignments import ReassignmentHandler
from ballast_operator.handlers.topics import TopicHandler, unreachable_verdict
from ballast_operator.kafka_client import KafkaConnection, KafkaUnavailableError
from ballast_operator.ledger import Ledger
from ballast_operator.logs import CLUSTER
from ballast_operator.metrics import Metrics
from ballast_operator.model.cluster import External, KafkaCluster
from ballast_operator.model.meta import Key
from ballast_operator.status import CLUSTER as CLUSTER_REASONS
from ballast_operator.status import SHARED, NotServedError, Verdict
from ballast_operator.tls_secrets import SecretMissingError
from ballast_operator.worker import Part, Requeue, Work

log = logging.getLogger(__name__)

# A shorter outage is reported only on topics that are being reconciled anyway.
OUTAGE_TOLD_SECONDS = 15.0
LIST_SECONDS = 0.5
# How long after the KafkaCluster is gone, deleted objects may still undo their changes in Kafka.
LEAVE_SECONDS = 60.0


@dataclass(frozen=True)
class Shared:
    """What all workers share."""

    api: KubernetesApi
    cache: Cache
    writer: Writer
    events: Events
    metrics: Metrics
    now: Now
    definitions: Definitions = field(default_factory=Definitions)


@dataclass
class Outage:
    since: str
    started: float
    error: str
    told: bool = False


class ClusterCycle:
    """Everything about one KafkaCluster key; the object may be deleted and recreated meanwhile."""

    def __init__(self, key: Key, shared: Shared) -> None:
        self._key = key
        self._shared = shared
        self._connections = Connections(shared.api)
        self._ledger: Ledger | None = None
        self._outage: Outage | None = None
        self._resync_at = 0.0
        # Which KafkaCluster the connection is to.
        self._reached: tuple[str, External | None] | None = None
        # The connection to an external cluster, to be used after its KafkaCluster is gone; and since when it is gone.
        self._left: KafkaConnection | None = None
        self._left_at: float | None = None
        self._topics = TopicHandler(key, shared.cache, shared.writer, shared.events)
        self._reassignments = ReassignmentHandler(key, shared)
        self._clusters = ClusterHandler(key, shared)

    async def close(self) -> None:
        await self._connections.close()

    async def run(self, work: Work) -> Requeue:
        CLUSTER.set(str(self._key))
        cluster = self._shared.cache.clusters.get(self._key)
        if cluster is None:
            broken = self._shared.cache.clusters.broken.get(self._key)
            if broken is None and not self._shared.cache.clusters.whole(self._key.namespace):
                return self._not_listed_yet(work)
            return await (self._without_cluster(work) if broken is None else self._unreadable(work, broken))
        heard = work.cluster and monotonic() < self._resync_at
        self._left, self._left_at = None, None
        self._start_resync(work, cluster)
        requeue = Requeue()
        kafka, blocked = None, None
        try:
            try:
                kafka = await self._reach(cluster, work, heard, requeue)
            except (ApiError, ApiUnavailableError) as error:
                log.warning("cluster %s: its objects in Kubernetes cannot be read or changed: %s", self._key, error)
                kafka = self._as_before(cluster)
                if kafka is None:
                    requeue.all_of(work)
                    return requeue
                requeue.failed.add(Part.CLUSTER)
                requeue.cluster_within(0.0)
                await self._clusters.unobserved(cluster, kafka, error, requeue)
        except (KafkaUnavailableError, SecretMissingError, NotServedError) as error:
            blocked = await self._lost(cluster, error, requeue)
        self._left = kafka if cluster.spec.external is not None else None
        if kafka is None and blocked is None:
            await self._clusters.starting(cluster, requeue)
            blocked = SHARED["ClusterStarting"].says(cluster=cluster.meta.name)
        try:
            await self._serve(work, requeue, kafka, blocked, cluster)
        except KafkaUnavailableError as error:
            verdict = await self._lost(cluster, error, requeue)
            await self._tell_topics(work, requeue, verdict)
        self._come_back(requeue)
        return requeue

    def _as_before(self, cluster: KafkaCluster) -> KafkaConnection | None:
        """The connection to go on with after a Kubernetes error. The cluster itself is left alone until it can be
        observed completely; topics and moves go on as long as Kafka answers at the same address."""
        stands = self._outage is None and self._reached == (cluster.meta.uid, cluster.spec.external)
        return self._connections.current if stands else None

    def _start_resync(self, work: Work, cluster: KafkaCluster) -> None:
        """Reconcile everything every `resync_seconds`, even without any event."""
        if monotonic() >= self._resync_at:
            self._resync_at = monotonic() + cluster.spec.resync_seconds
            work.topics |= {topic.key for topic in self._shared.cache.topics_of(self._key)}
            work.cluster = work.reassignments = True

    async def _reach(self, cluster: KafkaCluster, work: Work, heard: bool, requeue: Requeue) -> KafkaConnection | None:
        """The connection, if the cluster answers; None while it is still starting."""
        with refusal_told(CLUSTER_REASONS["KubernetesRefused"]):
            reach = await self._clusters.prepare(cluster, work.cluster, requeue)
        if reach is None:
            return None
        kafka = await self._connections.get(cluster, reach)
        # After an outage, first check that the cluster answers and is still the same cluster.
        look = work.cluster or self._outage is not None
        if await self._clusters.observe(cluster, kafka, look, heard, requeue) and self._outage is not None:
            log.info("cluster %s answers again", self._key)
            self._outage = None
            work.topics |= {topic.key for topic in self._shared.cache.topics_of(self._key)}
        self._reached = (cluster.meta.uid, cluster.spec.external)
        return kafka

    async def _serve(
        self,
        work: Work,
        requeue: Requeue,
        kafka: KafkaConnection | None,
        blocked: Verdict | None,
        cluster: KafkaCluster,
    ) -> None:
        if kafka is None:
            await self._tell_topics(work, requeue, blocked)
            with self._isolate_errors(Part.REASSIGNMENTS, work, requeue):
                await self._reassignments.tell(blocked, requeue)
            return
        if self._ledger is None or self._ledger.uid != cluster.meta.uid:
            self._ledger = Ledger(self._shared.api, cluster)
        if work.reassignments:
            with self._isolate_errors(Part.REASSIGNMENTS, work, requeue):
                await self._reassignments.handle(kafka, requeue)
            self._topics.moved_topics = self._reassignments.moved_topics
        if work.topics:
            with self._isolate_errors(Part.TOPICS, work, requeue):
                await self._serve_topics(work, requeue, kafka, self._ledger)

    async def _serve_topics(self, work: Work, requeue: Requeue, kafka: KafkaConnection, ledger: Ledger) -> None:
        with self._shared.metrics.reconcile("KafkaTopic", len(work.topics)):
            try:
                await self._topics.handle(work.topics, self._shared.now(), requeue, kafka, ledger)
            except NotServedError as error:
                requeue.failed.add(Part.TOPICS)
                requeue.topics |= work.topics
                await self._topics.handle(work.topics, self._shared.now(), requeue, blocked=error.verdict)
        if not requeue.topics:
            await ledger.prune(self._shared.cache)

    @contextmanager
    def _isolate_errors(self, part: Part, work: Work, requeue: Requeue) -> Iterator[None]:
        """Confine a Kubernetes error to this part of the cycle: it may last until somebody fixes its cause."""
        try:
            yield
        except (ApiError, ApiUnavailableError) as error:
            log.warning("cluster %s: the %s part of a cycle failed; it is tried again: %s", self._key, part, error)
            requeue.failed.add(part)
            if part is Part.TOPICS:
                requeue.topics |= work.topics
            else:
                requeue.reassignments_within(0.0)

    async def _tell_topics(self, work: Work, requeue: Requeue, verdict: Verdict | None) -> None:
        outage = self._outage
        if outage is not None and not outage.told and monotonic() - outage.started >= OUTAGE_TOLD_SECONDS:
            outage.told = True
            work.topics |= {topic.key for topic in self._shared.cache.topics_of(self._key)}
        with self._isolate_errors(Part.TOPICS, work, requeue):
            await self._topics.handle(work.topics, self._shared.now(), requeue, blocked=verdict)
        requeue.topics |= work.topics

    def _not_listed_yet(self, work: Work) -> Requeue:
        """After a start the KafkaCluster may just not be listed yet, so no deletion that waits for it is released."""
        requeue = Requeue(topics=set(work.topics), topics_seconds=LIST_SECONDS)
        requeue.cluster_within(LIST_SECONDS)
        if work.reassignments:
            requeue.reassignments_within(LIST_SECONDS)
        return requeue

    async def _without_cluster(self, work: Work) -> Requeue:
        """The KafkaCluster does not exist: report it, and block no deletion."""
        self._ledger, self._outage, self._resync_at = None, None, 0.0
        requeue = Requeue()
        leaving = await self._take_leave(requeue)
        work.topics |= {topic.key for topic in self._shared.cache.topics_of(self._key)}
        await self._topics.handle(work.topics, self._shared.now(), requeue)
        verdict = SHARED["ClusterNotFound"].says(cluster=self._key.name)
        await self._reassignments.tell(verdict, requeue, cluster_gone=True, leaving=leaving)
        await self._clusters.forget()
        return requeue

    async def _take_leave(self, requeue: Requeue) -> bool:
        """Whether reassignments being deleted can still undo their changes. When a whole namespace is deleted, the
        KafkaCluster may go first; its external brokers live on and would keep throttles that nobody knows of."""
        now = monotonic()
        self._left_at = now if self._left_at is None else self._left_at
        rest = self._left_at + LEAVE_SECONDS - now
        if self._left is not None and rest > 0:
            try:
                await self._reassignments.handle(self._left, requeue, leaving=True)
            except KafkaUnavailableError as error:
                log.warning("the KafkaCluster %s is gone, and its brokers do not answer: %s", self._key, error)
            else:
                requeue.cluster_within(rest)
                return True
        self._left = None
        await self._connections.close()
        return False

    async def _unreadable(self, work: Work, broken: Broken) -> Requeue:
        """The KafkaCluster exists but cannot be parsed: it is not gone, and what waits for it goes on waiting."""
        outage = self._outage = self._outage or Outage(self._shared.now(), monotonic(), broken.error)
        verdict = unreachable_verdict(self._key.name, outage.since, f"the object cannot be read: {broken.error}")
        requeue = Requeue()
        await self._topics.handle(work.topics, self._shared.now(), requeue, blocked=verdict)
        await self._reassignments.tell(verdict, requeue)
        return requeue

    async def _lost(self, cluster: KafkaCluster, error: Exception, requeue: Requeue) -> Verdict:
        if self._outage is None:
            log.warning("cluster %s does not answer: %s", self._key, error)
            self._outage = Outage(self._shared.now(), monotonic(), str(error))
        requeue.failed |= set(Part)
        requeue.cluster_within(0.0)
        requeue.reassignments_within(0.0)
        await self._clusters.unreachable(cluster, self._outage.since, error, requeue)
        return unreachable_verdict(cluster.meta.name, self._outage.since, self._outage.error)

    def _come_back(self, requeue: Requeue) -> None:
        """Let the worker sleep at most until the next resync."""
        requeue.cluster_within(max(0.1, self._resync_at - monotonic()))
