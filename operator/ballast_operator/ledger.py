"""A write-ahead record of what the operator is about to do to topics.

Without it, a topic created by an operator that was killed before it wrote the status would look like somebody else's.
One ConfigMap per cluster holds the intents of a whole batch, so the cost is one write per batch, not one per topic. An
entry is dropped once the status of its object says the same. Writes are conditional on the version read: of two
operators that both believe they lead, one fails before it touches Kafka, and observes again before it retries.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from ballast_operator.apply.kubernetes import ApiError, KubernetesApi, path_of
from ballast_operator.apply.refused import refusal_told
from ballast_operator.apply.writer import MANAGER
from ballast_operator.cache import Cache
from ballast_operator.clock import monotonic
from ballast_operator.model import cluster as cluster_model
from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.meta import MANAGED_BY, owner_reference
from ballast_operator.model.topic import KafkaTopic
from ballast_operator.plan.topics import Intent
from ballast_operator.status import TOPIC, NotServedError

KEY = "intents.json"
# Below the 1 MiB limit of a ConfigMap.
MOST_BYTES = 900_000
WITHDRAWALS = 5


class Ledger:
    """The intents for one cluster's topics, by the uid of the KafkaTopic."""

    def __init__(self, api: KubernetesApi, cluster: KafkaCluster) -> None:
        self._api = api
        self._cluster = cluster
        self._name = f"{cluster.meta.name}-ballast-intents"
        self._path = path_of("v1", "configmaps", cluster.meta.namespace, self._name)
        self._resource_version: str | None = None
        self._intents: dict[str, Intent] | None = None
        self._heard: dict[str, float] = {}
        # Entries withdrawn but not yet removed; whether the ConfigMap still has any of them.
        self._refused: frozenset[str] = frozenset()
        self._owes = False

    @property
    def uid(self) -> str:
        return self._cluster.meta.uid

    async def load(self) -> Mapping[str, Intent]:
        """The recorded intents; read from the API once."""
        if self._intents is None:
            with refusal_told(TOPIC["LedgerUnusable"], name=self._name):
                found = await self._api.find(self._path)
            self._resource_version = found["metadata"]["resourceVersion"] if found else None
            text = ((found or {}).get("data") or {}).get(KEY, "{}")
            try:
                self._keep({uid: _read(entry) for uid, entry in json.loads(text).items()})
            except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
                said = TOPIC["LedgerUnusable"].says(name=self._name, error=f"its {KEY} is not what was written there")
                raise NotServedError(said) from error
        assert self._intents is not None
        return self._intents

    def age_s(self, uid: str) -> float:
        """How long this operator has known the intent, which may be older: a former operator's."""
        return monotonic() - self._heard.get(uid, monotonic())

    def _keep(self, intents: dict[str, Intent]) -> None:
        now = monotonic()
        self._owes = not self._refused.isdisjoint(intents)
        self._intents = intents = {uid: one for uid, one in intents.items() if uid not in self._refused}
        self._heard = {uid: self._heard.get(uid, now) for uid in intents}

    async def record(self, intents: Mapping[str, Intent], cache: Cache) -> frozenset[str]:
        """Record these intents before they are carried out, and drop those that a status confirms by now.

        Returns those that do not fit: they must not be carried out until others are confirmed and dropped.
        """
        known = await self.load()
        self._refused -= intents.keys()
        merged = self._unresolved(known, cache)
        room = MOST_BYTES - len(_text(merged))
        crowded = set()
        for uid, intent in intents.items():
            entry = joined(merged.get(uid), intent)
            if merged.get(uid) == entry:
                continue
            size = len(_text({uid: entry}))
            if size > room:
                crowded.add(uid)
                continue
            room -= size
            merged[uid] = entry
        await self._bring(known, merged)
        return frozenset(crowded)

    async def withdraw(self, uids: Collection[str]) -> None:
        """Drop intents that Kafka has definitely refused: a topic that later appears under that name is not ours, even
        if the ConfigMap cannot be updated just now."""
        self._refused |= (await self.load()).keys() & set(uids)
        for attempt in range(1, WITHDRAWALS + 1):
            known = await self.load()
            try:
                await self._bring(known, {uid: intent for uid, intent in known.items() if uid not in uids})
                return
            except ApiError as error:
                if not error.conflict or attempt == WITHDRAWALS:
                    raise

    async def prune(self, cache: Cache) -> None:
        """Drop the intents that a status confirms by now."""
        known = await self.load()
        try:
            await self._bring(known, self._unresolved(known, cache))
        except ApiError as error:
            if not error.conflict:  # on a conflict the next load reads it again; pruning can wait
                raise

    async def _bring(self, known: Mapping[str, Intent], wanted: dict[str, Intent]) -> None:
        if wanted != known or self._owes:
            await self._save(wanted)

    def _unresolved(self, intents: Mapping[str, Intent], cache: Cache) -> dict[str, Intent]:
        """The intents that no status confirms and whose object is not known to be deleted (not listed yet is not
        deleted)."""
        if not intents:
            return {}  # the common case: no need to scan ten thousand topics
        gone = cache.gone_topics(self._cluster.meta.namespace, intents)
        known = {topic.meta.uid: topic for topic in cache.topics_of(self._cluster.key)}
        return {
            uid: intent
            for uid, intent in intents.items()
            if uid not in gone and not (uid in known and confirmed_by_status(intent, known[uid]))
        }

    async def _save(self, intents: dict[str, Intent]) -> None:
        body = self._body(intents)
        try:
            with refusal_told(TOPIC["LedgerUnusable"], name=self._name):
                if self._resource_version is None:
                    collection = path_of("v1", "configmaps", self._cluster.meta.namespace)
                    answer = await self._api.create(collection, body)
                else:
                    body["metadata"]["resourceVersion"] = self._resource_version
                    answer = await self._api.replace(self._path, body)
        except Exception:
            self._intents = None
            raise
        self._resource_version = answer["metadata"]["resourceVersion"]
        self._refused = frozenset()
        self._keep(intents)

    def _body(self, intents: Mapping[str, Intent]) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self._name,
                "namespace": self._cluster.meta.namespace,
                "labels": {MANAGED_BY: MANAGER},
                "ownerReferences": [owner_reference(cluster_model.KIND, self._cluster.meta)],
            },
            "data": {KEY: _text(intents)},
        }


def _text(intents: Mapping[str, Intent]) -> str:
    return json.dumps({uid: _write(intent) for uid, intent in intents.items()}, sort_keys=True, separators=(",", ":"))


def joined(before: Intent | None, now: Intent) -> Intent:
    """Merge two intents for one object: until the status is written, nothing else records that a topic is ours."""
    if before is None or before.topic != now.topic:
        return now
    config = tuple(sorted({*before.config, *now.config}))
    return Intent(now.topic, before.create or now.create, config, now.former if now.create else before.former)


def confirmed_by_status(intent: Intent, topic: KafkaTopic) -> bool:
    """Whether the object's status says everything that the intent does."""
    created = topic.status.topic_id not in (None, intent.former) or not intent.create
    return created and set(intent.config) <= set(topic.status.managed_config)


def _write(intent: Intent) -> dict[str, Any]:
    entry: dict[str, Any] = {"topic": intent.topic}
    if intent.create:
        entry["create"] = True
    if intent.former is not None:
        entry["former"] = intent.former
    if intent.config:
        entry["config"] = list(intent.config)
    return entry


def _read(entry: Mapping[str, Any]) -> Intent:
    return Intent(entry["topic"], bool(entry.get("create")), tuple(entry.get("config") or ()), entry.get("former"))
