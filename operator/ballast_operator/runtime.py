"""Wires the operator together, without Kopf: cache, workers, leader election, events.

The only place that constructs these. A watch only has to call `heard`, `vanished` and `changed_below`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError, KubernetesApi, path_of
from ballast_operator.apply.writer import Writer
from ballast_operator.cache import Cache, ObjectStore, older
from ballast_operator.clock import monotonic
from ballast_operator.cycle import ClusterCycle, Shared
from ballast_operator.events import Events
from ballast_operator.kubeconfig import ApiAccess
from ballast_operator.leader import Leader
from ballast_operator.logs import about
from ballast_operator.metrics import Metrics
from ballast_operator.model import cluster as cluster_model
from ballast_operator.model import reassignment as reassignment_model
from ballast_operator.model import topic as topic_model
from ballast_operator.model.meta import API_VERSION, Key, Meta, read_meta
from ballast_operator.neighbours import Neighbours
from ballast_operator.status import READY, SHARED, STALLED
from ballast_operator.worker import Worker

log = logging.getLogger(__name__)

LEASE = "ballast-operator"
STUCK_SECONDS = 180.0
RELIST_SECONDS = 300.0
RELIST_AGAIN_SECONDS = 5.0
PLURALS = {
    cluster_model.KIND: cluster_model.PLURAL,
    topic_model.KIND: topic_model.PLURAL,
    reassignment_model.KIND: reassignment_model.PLURAL,
}


class Runtime:
    """Everything of one operator process."""

    def __init__(
        self,
        access: ApiAccess,
        namespaces: Iterable[str] = (),
        lease_namespace: str | None = None,
        relist_seconds: float = RELIST_SECONDS,
    ) -> None:
        self.api = KubernetesApi(access)
        self.cache = Cache()
        self.namespaces = tuple(namespaces)
        self._relist_seconds = relist_seconds
        self._relist_at = monotonic() + relist_seconds
        self.writer = Writer(self.api, self.cache)
        self._now = self.api.clock.now
        self.events = Events(self.api, self._now)
        self.metrics = Metrics()
        # A separate session: a Lease renewal must not wait behind a thousand status writes.
        self._lease_api = KubernetesApi(access)
        own = lease_namespace or access.namespace
        self.leader = Leader(self._lease_api, own, LEASE, self._leadership_changed)
        self.neighbours = Neighbours(self._lease_api, own, LEASE, self._namespaces_wanted, self._given_back)
        self._shared = Shared(self.api, self.cache, self.writer, self.events, self.metrics, self._now)
        self._workers: dict[Key, tuple[Worker, asyncio.Task[None]]] = {}
        # Those that were cancelled and have not ended yet: closing a connection waits for the call that it is in.
        self._ending: set[asyncio.Task[None]] = set()
        self._background: list[asyncio.Task[None]] = []
        self._telling: set[asyncio.Task[None]] = set()
        self._beat = monotonic()
        self.metrics.watch(
            self.depth, self.oldest_seconds, lambda: self.leader.leads, lambda: self.writer.status_writes,
            lambda: self.api.requests, lambda: len(self._shared.definitions.dropped),
        )  # fmt: skip

    async def start(self) -> None:
        """Start the background tasks."""
        for run in (self.leader.run, self.neighbours.run, self.events.run, self._keep_house):
            self._background.append(asyncio.create_task(run(), name=run.__qualname__))

    def end_workers(self) -> None:
        """Cancel all workers, so that no cycle begins any more."""
        for _, task in self._workers.values():
            task.cancel()

    async def stop(self) -> None:
        """End all tasks. Work in progress is left as it is; the next operator observes it."""
        workers = [*self._ending, *(task for _, task in self._workers.values())]
        tasks = [*self._background, *self._telling, *workers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.api.close()
        await self._lease_api.close()

    # Called by the watches.

    def heard(self, kind: str, body: Mapping[str, Any]) -> None:
        """An object was added or changed, or was listed initially."""
        self.metrics.event(kind)
        if kind == topic_model.KIND:
            before, now = self.cache.put_topic(body)
        elif kind == reassignment_model.KIND:
            before, now = self.cache.put_reassignment(body)  # type: ignore[assignment]
        else:
            self._heard_cluster(body)
            return
        if now is None:
            self._tell_broken(kind, body)
            return
        if before is now or self._our_own(kind, before, now):
            return
        self._mark(kind, now)
        if before is not None and before.cluster != now.cluster:
            self._mark(kind, before)

    def vanished(self, kind: str, body: Mapping[str, Any]) -> None:
        """An object was deleted."""
        meta = body["metadata"]
        key, uid = Key(meta.get("namespace") or "default", meta["name"]), str(meta.get("uid") or "")
        if kind == topic_model.KIND:
            gone = self.cache.remove_topic(key, uid)
            if gone is not None:
                heirs = self.cache.topics_named(gone.cluster, gone.topic)
                self._worker(gone.cluster).add(topics=[heir.key for heir in heirs])
        elif kind == reassignment_model.KIND:
            ended = self.cache.remove_reassignment(key, uid)
            if ended is not None:
                self._worker(ended.cluster).add(reassignments=True, topics=self._owners(ended.meta))
        else:
            unread = key in self.cache.clusters.broken
            former = self.cache.clusters.remove(key, uid)
            if former is not None and former.spec.external is None:
                self.metrics.clusters.heard(key, deleted=True)
            if former is not None or unread:
                self._worker(key).add(cluster=True, reassignments=True)

    def changed_below(self, cluster: Key) -> None:
        """Something that belongs to a cluster (a pod, a claim) changed."""
        if self.cache.clusters.get(cluster) is not None:
            self._worker(cluster).add(cluster=True)

    def _heard_cluster(self, body: Mapping[str, Any]) -> None:
        before, now = self.cache.clusters.put(body)
        if now is not None and now.spec.external is None:
            self.metrics.clusters.heard(now.key, deleted=False)
        if now is None:
            self._tell_broken(cluster_model.KIND, body)
        elif before is not now and not self._our_own(cluster_model.KIND, before, now):
            topics = [topic.key for topic in self.cache.topics_of(now.key)] if before is None else []
            self._worker(now.key).add(cluster=True, reassignments=True, topics=topics)

    def _our_own(self, kind: str, before: Any, now: Any) -> bool:
        """Whether the event only echoes a status that we are writing ourselves."""
        if before is None or (PLURALS[kind], now.key) not in self.writer.in_flight:
            return False
        return bool(before.spec == now.spec and _essence(before.meta) == _essence(now.meta))

    def _mark(self, kind: str, resource: Any) -> None:
        worker = self._worker(resource.cluster)
        if kind == topic_model.KIND:
            worker.add(topics=[one.key for one in self.cache.topics_named(resource.cluster, resource.topic)])
            worker.add(topics=[resource.key])
        else:
            worker.add(reassignments=True, topics=self._owners(resource.meta))

    def _owners(self, meta: Meta) -> list[Key]:
        names = [owner.name for owner in meta.owner_references if owner.kind == topic_model.KIND]
        return [Key(meta.namespace, name) for name in names]

    def _tell_broken(self, kind: str, body: Mapping[str, Any]) -> None:
        task = asyncio.create_task(self._write_broken(kind, body))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _write_broken(self, kind: str, body: Mapping[str, Any]) -> None:
        """Report an unreadable spec in the status; this happens only if the API server lacks the schema."""
        meta = body["metadata"]
        key = Key(meta["namespace"], meta["name"])
        broken = self._store(kind).broken.get(key)
        if broken is None or not self._acts_in(key.namespace):
            return
        verdict = SHARED["InvalidSpec"].says(error=broken.error)
        before = {one.get("type"): one for one in broken.conditions}
        said = [
            {
                "type": name, "status": status, "reason": verdict.reason, "message": verdict.message,
                "observedGeneration": broken.meta.generation,
            }
            for name, status in ((READY, "False"), (STALLED, "True"))
        ]  # fmt: skip
        if [{key: before.get(one["type"], {}).get(key) for key in one} for one in said] == said:
            return
        full = [
            {**one, "lastTransitionTime": _since(before.get(one["type"]), one["status"]) or self._now()} for one in said
        ]
        path = path_of(API_VERSION, PLURALS[kind], key.namespace, key.name, "status")
        try:
            await self.api.merge(path, {"status": {"observedGeneration": broken.meta.generation, "conditions": full}})
        except (ApiError, ApiUnavailableError) as error:
            log.warning("%s %s: status was not written: %s", kind, key, error, extra=about(kind, key))

    # Workers.

    def _worker(self, cluster: Key) -> Worker:
        if cluster not in self._workers:
            cycle = ClusterCycle(cluster, self._shared)
            worker = Worker(cluster, cycle, lambda: self._acts_in(cluster.namespace), monotonic)
            self._workers[cluster] = (worker, asyncio.create_task(worker.run(), name=f"worker {cluster}"))
        return self._workers[cluster][0]

    def _leadership_changed(self, leads: bool) -> None:
        if not leads:
            return
        # The cache has what the former leader did, except for lost watch events: relist first to find those.
        for kind in PLURALS:
            self._store(kind).listed = set()  # a list that is being read does not count
        self._relist_at = monotonic()
        self._look_at_all()

    def _acts_in(self, namespace: str) -> bool:
        return self.leader.leads and not self.neighbours.has(namespace)

    def _namespaces_wanted(self) -> set[str]:
        return {cluster.namespace for cluster in self._workers} if self.leader.leads else set()

    def _given_back(self, namespace: str) -> None:
        self._relist_at = monotonic()
        self._look_at_all(namespace)

    def _look_at_all(self, namespace: str | None = None) -> None:
        """Mark everything dirty, or everything in one namespace."""
        for kind in (self.cache.topics, self.cache.reassignments):
            for resource in kind:
                if namespace in (None, resource.meta.namespace):
                    self._worker(resource.cluster).add(
                        topics=[resource.key] if kind is self.cache.topics else [], reassignments=True, cluster=True
                    )
        self._look_at_clusters(namespace)

    def _look_at_clusters(self, namespace: str | None = None) -> None:
        for cluster in self.cache.clusters:
            if namespace in (None, cluster.meta.namespace):
                self._worker(cluster.key).add(cluster=True, reassignments=True)

    # Probes.

    def depth(self) -> float:
        """The queue depth where this process acts; a standby marks everything dirty but works on nothing."""
        acting = (w for cluster, (w, _) in self._workers.items() if self._acts_in(cluster.namespace))
        return float(sum(worker.depth for worker in acting))

    def oldest_seconds(self) -> float:
        now = monotonic()
        return max((now - w.busy_since for w, _ in self._workers.values() if w.busy_since is not None), default=0.0)

    def alive(self) -> str | None:
        """What is stuck; None while all is well."""
        if monotonic() - self._beat > STUCK_SECONDS:
            return "the loop is stuck"
        for task in self._background:
            if task.done():
                return f"{task.get_name()} has ended"
        for cluster, (worker, task) in self._workers.items():
            if task.done():
                return f"the worker of {cluster} has ended"
            if worker.busy_since is not None and monotonic() - worker.pulse.at > STUCK_SECONDS:
                return f"the worker of {cluster} is stuck"
        return None

    # Housekeeping.

    async def _keep_house(self) -> None:
        pause = RELIST_AGAIN_SECONDS
        while True:
            await asyncio.sleep(1.0)
            self._beat = monotonic()
            if monotonic() >= self._relist_at:
                self._relist_at = monotonic() + self._relist_seconds
                failed = False
                for look in (self.relist, self._look_at_definitions):
                    try:
                        await look()
                    except (ApiError, ApiUnavailableError) as error:
                        # Retry soon: some decisions, such as on deletions after a start, wait for a complete list.
                        self._relist_at = monotonic() + min(pause, self._relist_seconds)
                        failed = True
                        log.warning("the objects could not be listed: %s", error)
                pause = min(2 * pause, self._relist_seconds) if failed else RELIST_AGAIN_SECONDS

    async def _look_at_definitions(self) -> None:
        if await self._shared.definitions.look(self.api):
            self._look_at_clusters()

    def begin_anew(self) -> None:
        """Recover from failed watches: relist to find missed deletions, and restart the workers that Kopf cancelled.

        Kopf cancels every task of the loop that began after itself, the workers among them. One that has not ended
        yet takes no more work either.
        """
        for cluster, (_, task) in list(self._workers.items()):
            if task.done() or task.cancelling():
                del self._workers[cluster]
                self._leave_to_end(task)
        self._leadership_changed(self.leader.leads)
        self._relist_at = monotonic()

    def _end_workers(self) -> None:
        """End the workers of clusters of which no object is left; one that returns gets a new worker."""
        for cluster, (worker, task) in list(self._workers.items()):
            if worker.idle and not self.cache.knows(cluster):
                del self._workers[cluster]
                task.cancel()
                self._leave_to_end(task)

    def _leave_to_end(self, task: asyncio.Task[None]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def relist(self) -> None:
        """Compare the cache with the API: an object whose deletion the watch missed would otherwise stay forever.

        A kind or namespace that cannot be listed does not hold up the others, nor what waits for their list."""
        failed: list[ApiError | ApiUnavailableError] = []
        for kind, plural in PLURALS.items():
            for namespace in self.namespaces or (None,):
                try:
                    await self._relist(kind, plural, namespace)
                except (ApiError, ApiUnavailableError) as error:
                    failed.append(error)
        if failed:
            raise failed[0]
        self._end_workers()

    async def _relist(self, kind: str, plural: str, namespace: str | None) -> None:
        gone, listed = self._store(kind).gone(), self._store(kind).listed
        known = {meta.key: meta for meta in self._store(kind).metas() if namespace in (None, meta.namespace)}
        async for body in self.api.items(path_of(API_VERSION, plural, namespace)):
            now = read_meta(body)
            before = known.pop(now.key, None)
            # The list is no older than its first request, and we already knew this version then.
            if now.uid in gone or (before is not None and before.uid == now.uid and older(now, before)):
                log.warning("%s %s is older than it was: was a backup restored?", kind, now.key)
                self._store(kind).accept_rollback(now)
            self.heard(kind, body)
        for key, meta in known.items():
            # The object may be newer than the list: only a GET of its own proves that it is gone.
            found = await self.api.find(path_of(API_VERSION, plural, key.namespace, key.name))
            if found is None or found["metadata"]["uid"] != meta.uid:
                log.info("%s %s was deleted unheard", kind, key, extra=about(kind, key))
                self.vanished(kind, {"metadata": {"name": key.name, "namespace": key.namespace, "uid": meta.uid}})
                if found is not None:
                    self.heard(kind, found)
        listed.add(namespace)

    def _store(self, kind: str) -> ObjectStore[Any]:
        if kind == topic_model.KIND:
            return self.cache.topics
        return self.cache.reassignments if kind == reassignment_model.KIND else self.cache.clusters


def _since(before: Mapping[str, Any] | None, status: object) -> str | None:
    """Since when a condition has this status, if it had it before."""
    return before.get("lastTransitionTime") if before is not None and before.get("status") == status else None


def _essence(meta: Meta) -> tuple[object, ...]:
    """The metadata that may require an action."""
    return (meta.uid, meta.generation, meta.deletion_timestamp, meta.finalizers, meta.annotations, meta.labels)
