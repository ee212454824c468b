"""What the watch has told about the three kinds: one object per key, parsed once. Touched from the loop only.

An event that is not newer than what is known (after a write whose answer came first) changes nothing. An object that
cannot be read is kept as a `Broken`, so that it can be told and does not vanish, which would look like a deletion.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ballast_operator.model.cluster import KafkaCluster, read_cluster
from ballast_operator.model.fields import FieldError
from ballast_operator.model.meta import Key, Meta, read_meta
from ballast_operator.model.reassignment import Reassignment, read_reassignment
from ballast_operator.model.topic import KafkaTopic, read_topic

T = TypeVar("T", KafkaCluster, KafkaTopic, Reassignment)


@dataclass(frozen=True, slots=True)
class Broken:
    """An object whose spec cannot be read."""

    meta: Meta
    error: str
    conditions: tuple[Mapping[str, Any], ...]


def version_number(resource_version: str) -> int:
    return int(resource_version) if resource_version.isdigit() else -1


class Kind(Generic[T]):
    """All objects of one kind."""

    def __init__(self, reader: Callable[[Mapping[str, Any]], T]) -> None:
        self._reader: Callable[[Mapping[str, Any]], T] = reader
        self._objects: dict[Key, T] = {}
        self.broken: dict[Key, Broken] = {}

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, body: Mapping[str, Any]) -> tuple[T | None, T | None]:
        """(the object before, the object now); the same one twice if the event told nothing new."""
        meta = read_meta(body)
        before = self._objects.get(meta.key)
        known = before.meta if before else (self.broken[meta.key].meta if meta.key in self.broken else None)
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

    def remove(self, key: Key, uid: str) -> T | None:
        """Forget a deleted object; the deletion of a former object of that name changes nothing."""
        found = self._objects.get(key)
        if found is not None and uid and found.meta.uid != uid:
            return None
        self.broken.pop(key, None)
        return self._objects.pop(key, None)


def _not_newer(meta: Meta, known: Meta) -> bool:
    new, old = version_number(meta.resource_version), version_number(known.resource_version)
    return 0 <= new <= old


def claim_order(topic: KafkaTopic) -> tuple[str, bool, str]:
    """Who describes a topic by right: the oldest; of those made in the same second, the one that has the topic."""
    return (topic.meta.creation_timestamp, topic.status.topic_id is None, topic.meta.uid)


class Cache:
    """The three kinds, and which topics and reassignments belong to which cluster."""

    def __init__(self) -> None:
        self.clusters: Kind[KafkaCluster] = Kind(read_cluster)
        self.topics: Kind[KafkaTopic] = Kind(read_topic)
        self.reassignments: Kind[Reassignment] = Kind(read_reassignment)
        self.whole = False
        """Whether all topics were listed: before, one that is not here need not be gone."""
        self._topics_by_cluster: dict[Key, dict[Key, KafkaTopic]] = defaultdict(dict)
        self._topics_by_name: dict[tuple[Key, str], dict[Key, KafkaTopic]] = defaultdict(dict)
        self._reassignments_by_cluster: dict[Key, dict[Key, Reassignment]] = defaultdict(dict)

    def put_topic(self, body: Mapping[str, Any]) -> tuple[KafkaTopic | None, KafkaTopic | None]:
        before, now = self.topics.put(body)
        if before is not now:
            self._unlink_topic(before)
            if now is not None:
                self._topics_by_cluster[now.cluster][now.key] = now
                self._topics_by_name[now.cluster, now.topic][now.key] = now
        return before, now

    def remove_topic(self, key: Key, uid: str) -> KafkaTopic | None:
        gone = self.topics.remove(key, uid)
        self._unlink_topic(gone)
        return gone

    def put_reassignment(self, body: Mapping[str, Any]) -> tuple[Reassignment | None, Reassignment | None]:
        before, now = self.reassignments.put(body)
        if before is not now:
            self._unlink_reassignment(before)
            if now is not None:
                self._reassignments_by_cluster[now.cluster][now.key] = now
        return before, now

    def remove_reassignment(self, key: Key, uid: str) -> Reassignment | None:
        gone = self.reassignments.remove(key, uid)
        self._unlink_reassignment(gone)
        return gone

    def gone_topics(self, uids: Iterable[str]) -> frozenset[str]:
        """Those of these KafkaTopics that are deleted for certain."""
        if not self.whole:
            return frozenset()
        known = {topic.meta.uid for topic in self.topics} | {one.meta.uid for one in self.topics.broken.values()}
        return frozenset(uids) - known

    def topics_of(self, cluster: Key) -> list[KafkaTopic]:
        return list(self._topics_by_cluster.get(cluster, {}).values())

    def topics_named(self, cluster: Key, topic: str) -> list[KafkaTopic]:
        """All objects that describe this topic, the oldest first; one that is being deleted counts until it is gone."""
        found = self._topics_by_name.get((cluster, topic), {}).values()
        return sorted(found, key=claim_order)

    def reassignments_of(self, cluster: Key) -> list[Reassignment]:
        found = self._reassignments_by_cluster.get(cluster, {}).values()
        return sorted(found, key=lambda one: one.meta.age_order)

    def _unlink_topic(self, topic: KafkaTopic | None) -> None:
        if topic is None:
            return
        self._topics_by_cluster[topic.cluster].pop(topic.key, None)
        names = self._topics_by_name[topic.cluster, topic.topic]
        names.pop(topic.key, None)
        if not names:
            del self._topics_by_name[topic.cluster, topic.topic]

    def _unlink_reassignment(self, reassignment: Reassignment | None) -> None:
        if reassignment is not None:
            self._reassignments_by_cluster[reassignment.cluster].pop(reassignment.key, None)
