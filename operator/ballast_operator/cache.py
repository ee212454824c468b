"""Caches the objects of the three kinds as the watch reports them: one per key, parsed once. Event loop only.

An event that is not newer than the cached object (the answer to a write came first) is ignored. An object that cannot
be parsed is kept as a `Broken`, so that it can be reported and is not mistaken for a deleted one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from ballast_operator.model.cluster import KafkaCluster, read_cluster
from ballast_operator.model.fields import FieldError
from ballast_operator.model.meta import Key, Meta, read_meta
from ballast_operator.model.reassignment import Reassignment, read_held, read_reassignment
from ballast_operator.model.topic import KafkaTopic, read_claim, read_topic

T = TypeVar("T", KafkaCluster, KafkaTopic, Reassignment)
# Late answers about a deleted object have arrived long before this many others are deleted.
MAX_GONE = 10_000
H = TypeVar("H", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Broken:
    """An object whose spec cannot be read."""

    meta: Meta
    error: str
    conditions: tuple[Mapping[str, Any], ...]


def version_number(resource_version: str) -> int:
    return int(resource_version) if resource_version.isdigit() else -1


class ObjectStore(Generic[T]):
    """All objects of one kind."""

    def __init__(self, reader: Callable[[Mapping[str, Any]], T]) -> None:
        self._reader: Callable[[Mapping[str, Any]], T] = reader
        self._objects: dict[Key, T] = {}
        self.broken: dict[Key, Broken] = {}
        self.listed: set[str | None] = set()
        """The namespaces that were listed, None for all of them."""
        self._gone: dict[str, None] = {}

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def whole(self, namespace: str) -> bool:
        """Whether all in this namespace were listed: before, one that is not here need not be gone."""
        return not self.listed.isdisjoint((namespace, None))

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def metas(self) -> Iterator[Meta]:
        """The metadata of all objects, including those that cannot be parsed."""
        yield from [one.meta for one in self._objects.values()]
        yield from [one.meta for one in self.broken.values()]

    def put(self, body: Mapping[str, Any]) -> tuple[T | None, T | None]:
        """(the object before, the object now); the same object twice if the event was no news."""
        meta = read_meta(body)
        before = self._objects.get(meta.key)
        if meta.uid in self._gone:
            return before, before  # a late answer about an object that is already deleted
        known = self._known(meta.key)
        if known is not None and known.uid == meta.uid and _not_newer(meta, known):
            return before, before
        try:
            now = self._reader(body)
        except FieldError as error:
            self._objects.pop(meta.key, None)
            found = (body.get("status") or {}).get("conditions") or ()
            self.broken[meta.key] = Broken(meta, str(error), tuple(found))
            return before, None
        self.broken.pop(meta.key, None)
        self._objects[meta.key] = now
        return before, now

    def gone(self) -> frozenset[str]:
        """The uids of the most recently deleted objects (`MAX_GONE`)."""
        return frozenset(self._gone)

    def accept_rollback(self, meta: Meta) -> None:
        """A restored backup took the API server back in time: accept its present version of this object as new."""
        self._gone.pop(meta.uid, None)
        known = self._objects.get(meta.key)
        if known is not None:
            self._objects[meta.key] = replace(known, meta=replace(known.meta, resource_version=""))
        elif meta.key in self.broken:
            self.broken[meta.key] = replace(self.broken[meta.key], meta=replace(meta, resource_version=""))

    def remove(self, key: Key, uid: str) -> T | None:
        """Forget a deleted object, unless the name belongs to a newer object by now."""
        if uid:
            self._gone[uid] = None
            if len(self._gone) > MAX_GONE:
                del self._gone[next(iter(self._gone))]
        known = self._known(key)
        if known is not None and uid and known.uid != uid:
            return None
        self.broken.pop(key, None)
        return self._objects.pop(key, None)

    def _known(self, key: Key) -> Meta | None:
        found = self._objects.get(key) or self.broken.get(key)
        return found.meta if found is not None else None


def older(meta: Meta, known: Meta) -> bool:
    return 0 <= version_number(meta.resource_version) < version_number(known.resource_version)


def _not_newer(meta: Meta, known: Meta) -> bool:
    new, old = version_number(meta.resource_version), version_number(known.resource_version)
    return 0 <= new <= old


def claim_order(topic: KafkaTopic) -> tuple[str, bool, str]:
    """Sort key: the first of several KafkaTopics for one topic owns it. The oldest wins; of those created in the same
    second, the one whose status has `partitions` (a topic id is no proof: the others are told it, too)."""
    return (topic.meta.creation_timestamp, topic.status.partitions is None, topic.meta.uid)


class Cache:
    """The three kinds, and which topics and reassignments belong to which cluster."""

    def __init__(self) -> None:
        self.clusters: ObjectStore[KafkaCluster] = ObjectStore(read_cluster)
        self.topics: ObjectStore[KafkaTopic] = ObjectStore(read_topic)
        self.reassignments: ObjectStore[Reassignment] = ObjectStore(read_reassignment)
        self._topics_by_cluster: dict[Key, dict[Key, KafkaTopic]] = defaultdict(dict)
        self._topics_by_name: dict[tuple[Key, str], dict[Key, KafkaTopic]] = defaultdict(dict)
        # KafkaTopics that cannot be read, as far as it is known which topics they describe.
        self._unread: dict[Key, KafkaTopic] = {}
        self._reassignments_by_cluster: dict[Key, dict[Key, Reassignment]] = defaultdict(dict)
        # Reassignments that cannot be read and are under way.
        self._unread_held: dict[Key, Reassignment] = {}

    def put_topic(self, body: Mapping[str, Any]) -> tuple[KafkaTopic | None, KafkaTopic | None]:
        before, now = self.topics.put(body)
        if before is not now:
            self._unlink_topic(before)
            if now is not None:
                self._topics_by_cluster[now.cluster][now.key] = now
                self._topics_by_name[now.cluster, now.topic][now.key] = now
        self._keep_claim(body)
        return before, now

    def _keep_claim(self, body: Mapping[str, Any]) -> None:
        """While an object cannot be read, no other one may take its topic over, or delete it."""
        if not self.topics.broken and not self._unread:
            return
        meta = read_meta(body)
        broken, known = self.topics.broken.get(meta.key), self._unread.get(meta.key)
        if broken is None:
            self._forget_claim(meta.key)
        elif broken.meta == meta and (known is None or known.meta != meta):
            self._forget_claim(meta.key)
            with suppress(FieldError):
                claim = self._unread[meta.key] = read_claim(body)
                self._topics_by_name[claim.cluster, claim.topic][claim.key] = claim

    def _forget_claim(self, key: Key) -> KafkaTopic | None:
        claim = self._unread.pop(key, None)
        if claim is not None and self._topics_by_name.get((claim.cluster, claim.topic), {}).get(key) is claim:
            _drop(self._topics_by_name, (claim.cluster, claim.topic), key)
        return claim

    def remove_topic(self, key: Key, uid: str) -> KafkaTopic | None:
        gone = self.topics.remove(key, uid)
        self._unlink_topic(gone)
        unread = self._forget_claim(key) if key not in self.topics.broken else None
        return gone or unread

    def put_reassignment(self, body: Mapping[str, Any]) -> tuple[Reassignment | None, Reassignment | None]:
        before, now = self.reassignments.put(body)
        if before is not now:
            self._unlink_reassignment(before)
            if now is not None:
                self._reassignments_by_cluster[now.cluster][now.key] = now
        self._keep_held(body)
        return before, now

    def _keep_held(self, body: Mapping[str, Any]) -> None:
        """While one under way cannot be read, no other one may move its partitions, or take its throttles for what was
        there before."""
        if not self.reassignments.broken and not self._unread_held:
            return
        meta = read_meta(body)
        broken, known = self.reassignments.broken.get(meta.key), self._unread_held.get(meta.key)
        if broken is None:
            self._forget_held(meta.key)
        elif broken.meta == meta and (known is None or known.meta != meta):
            self._forget_held(meta.key)
            with suppress(FieldError):
                held = read_held(body)
                if held.under_way:
                    self._unread_held[meta.key] = held
                    self._reassignments_by_cluster[held.cluster][held.key] = held

    def _forget_held(self, key: Key) -> Reassignment | None:
        held = self._unread_held.pop(key, None)
        if held is not None and self._reassignments_by_cluster.get(held.cluster, {}).get(key) is held:
            _drop(self._reassignments_by_cluster, held.cluster, key)
        return held

    def remove_reassignment(self, key: Key, uid: str) -> Reassignment | None:
        gone = self.reassignments.remove(key, uid)
        self._unlink_reassignment(gone)
        unread = self._forget_held(key) if key not in self.reassignments.broken else None
        return gone or unread

    def gone_topics(self, namespace: str, uids: Iterable[str]) -> frozenset[str]:
        """Those of these uids, of this namespace, whose KafkaTopic is certainly deleted."""
        if not self.topics.whole(namespace):
            return frozenset()
        known = {topic.meta.uid for topic in self.topics} | {one.meta.uid for one in self.topics.broken.values()}
        return frozenset(uids) - known

    def knows(self, cluster: Key) -> bool:
        """Whether any object of this cluster is cached."""
        described = cluster in self.clusters.broken or self.clusters.get(cluster) is not None
        return described or cluster in self._topics_by_cluster or cluster in self._reassignments_by_cluster

    def topics_of(self, cluster: Key) -> list[KafkaTopic]:
        return list(self._topics_by_cluster.get(cluster, {}).values())

    def pinned_topics(self, cluster: Key) -> frozenset[str]:
        """Topics whose KafkaTopic names the brokers of each partition."""
        return frozenset(topic.topic for topic in self.topics_of(cluster) if topic.spec.replica_assignment)

    def topics_named(self, cluster: Key, topic: str) -> list[KafkaTopic]:
        """All KafkaTopics for this topic in `claim_order`; one that is being deleted counts until it is gone."""
        found = self._topics_by_name.get((cluster, topic), {}).values()
        return sorted(found, key=claim_order)

    def reassignments_of(self, cluster: Key) -> list[Reassignment]:
        found = self._reassignments_by_cluster.get(cluster, {}).values()
        return sorted(found, key=lambda one: one.meta.age_order)

    def _unlink_topic(self, topic: KafkaTopic | None) -> None:
        if topic is None:
            return
        _drop(self._topics_by_cluster, topic.cluster, topic.key)
        _drop(self._topics_by_name, (topic.cluster, topic.topic), topic.key)

    def _unlink_reassignment(self, reassignment: Reassignment | None) -> None:
        if reassignment is not None:
            _drop(self._reassignments_by_cluster, reassignment.cluster, reassignment.key)


def _drop(held: dict[H, dict[Key, T]], by: H, key: Key) -> None:
    """Remove an entry, and its bucket once empty: else one bucket would stay for every cluster and topic ever seen."""
    if by in held:
        held[by].pop(key, None)
        if not held[by]:
            del held[by]
