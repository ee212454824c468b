"""Writes the statuses of a batch of KafkaTopics concurrently; what cannot be written is reported and tried again."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from dataclasses import dataclass, field, replace

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError
from ballast_operator.apply.refused import LONGEST_SECONDS, answer_in, refusal_in
from ballast_operator.apply.writer import Writer
from ballast_operator.cache import Cache
from ballast_operator.clock import monotonic
from ballast_operator.events import NORMAL, WARNING, Events
from ballast_operator.kafka_client import KafkaUnavailableError
from ballast_operator.logs import about
from ballast_operator.model.meta import Key
from ballast_operator.model.topic import KafkaTopic, TopicStatus
from ballast_operator.plan.topics import TopicPlan, of_deletion
from ballast_operator.side_by_side import AT_ONCE
from ballast_operator.status import EVENTS, TOPIC, TRUE, Verdict, conditions, ready_condition

log = logging.getLogger(__name__)


@dataclass
class Batch:
    """What a pass over some topics has found so far. `retry` are those to look at again soon, `refused` those of them
    that Kubernetes refuses to change."""

    topics: dict[Key, KafkaTopic]
    plans: dict[Key, TopicPlan] = field(default_factory=dict)
    retry: set[Key] = field(default_factory=set)
    refused: set[Key] = field(default_factory=set)
    fresh: set[Key] = field(default_factory=set)
    late: set[Key] = field(default_factory=set)
    deleted: set[Key] = field(default_factory=set)
    created_reassignments: bool = False


class TopicStatuses:
    """The topic statuses of one cluster. Used by that cluster's worker only."""

    def __init__(self, cache: Cache, writer: Writer, events: Events) -> None:
        self._cache = cache
        self._writer = writer
        self._events = events

    async def write(self, batch: Batch, now: str) -> None:
        turn, began = asyncio.Semaphore(AT_ONCE), monotonic()
        down: list[ApiUnavailableError] = []
        answered: list[ApiUnavailableError] = []

        async def write(key: Key, plan: TopicPlan) -> bool:
            async with turn:
                if answered and monotonic() - began > LONGEST_SECONDS:
                    return False  # a webhook may be slow to fail: the rest is for the next look
                if down:  # each timeout takes seconds: in sequence they would make the operator look stuck
                    raise down[0]
                try:
                    return await self._write_one(key, plan, now)
                except ApiUnavailableError as error:
                    (down if error.answer is None else answered).append(error)
                    raise

        # A recreated object of the same name has its own turn: what was planned here does not concern it.
        plans = {key: plan for key, plan in batch.plans.items() if self._is_same(batch.topics[key])}
        results = await asyncio.gather(*(write(*each) for each in plans.items()), return_exceptions=True)
        unwritten: defaultdict[Exception, list[Key]] = defaultdict(list)
        for key, result in zip(plans, results, strict=True):
            if isinstance(result, (ApiError, ApiUnavailableError, KafkaUnavailableError)):
                unwritten[result].append(key)
                batch.retry.add(key)
                if not isinstance(result, KafkaUnavailableError) and refusal_in(result) is not None:
                    self._tell_refused(batch, key, result)
            elif isinstance(result, BaseException):
                raise result
            elif not result:
                batch.retry.add(key)
            batch.retry |= self._heirs_to_tell(key, batch)
        for error, keys in unwritten.items():  # an outage is one error for all of them
            where = about("KafkaTopic", keys[0])
            more = f" and {len(keys) - 1} more" if keys[1:] else ""
            log.warning("KafkaTopic %s%s: status was not written: %s", keys[0], more, error, extra=where)

    def _tell_refused(self, batch: Batch, key: Key, error: ApiError | ApiUnavailableError) -> None:
        """Send as an Event what the status cannot say, since it could not be written."""
        batch.refused.add(key)
        verdict = refusal(error)
        self._events.send(batch.topics[key], WARNING, verdict.reason, verdict.message)

    def _is_same(self, topic: KafkaTopic) -> bool:
        current = self._cache.topics.get(topic.key)
        return current is not None and current.meta.uid == topic.meta.uid

    def _heirs_to_tell(self, key: Key, batch: Batch) -> set[Key]:
        """Younger objects for the same topic, if its id has changed: they keep it, to take over when this one goes."""
        topic = self._cache.topics.get(key)
        if topic is None or topic.status.topic_id == batch.topics[key].status.topic_id:
            return set()
        return {one.key for one in self._cache.topics_named(topic.cluster, topic.topic) if one.key != key}

    async def _write_one(self, key: Key, plan: TopicPlan, now: str) -> bool:
        topic = self._cache.topics.get(key)
        if topic is None:
            return True
        if plan.remove_finalizer and topic.meta.finalized:
            written = await self._writer.set_finalizer(topic, False)
            if topic.meta.deleting or not written:
                return written
            topic = self._cache.topics.get(key) or topic
        if topic.meta.deleting and not topic.meta.finalized:
            return True
        told, generation = of_deletion(topic, plan.verdict), plan.status.observed_generation or 0
        said = conditions(topic.status.conditions, told, generation, now)
        written = await self._writer.write_status(topic, replace(plan.status, conditions=said))
        if written:
            _tell_made_anew(self._events, topic, plan.status)
            _tell_stalled(self._events, topic, told)
        return written


def refusal(error: ApiError | ApiUnavailableError) -> Verdict:
    """The verdict for a refusal, which concerns one topic only."""
    answer = answer_in(error)
    assert answer is not None
    return TOPIC["KubernetesRefused"].says(error=answer.message.rstrip("."))


def _tell_made_anew(events: Events, topic: KafkaTopic, now: TopicStatus) -> None:
    """Send an Event if the topic was recreated: nobody would notice from the status, where only the id differs, that
    it is empty now."""
    before = topic.status
    if None not in (before.topic_id, before.partitions, now.partitions) and now.topic_id != before.topic_id:
        said = EVENTS["TopicMadeAnew"].says(topic=topic.topic, before=before.topic_id, now=now.topic_id)
        events.send(topic, WARNING, said.reason, said.message)


def _tell_stalled(events: Events, topic: KafkaTopic, told: Verdict) -> None:
    """Send an Event when a person has to act, and when that is resolved; not for what concerns all of a cluster."""
    before = ready_condition(topic.status.conditions)
    if told.reason not in TOPIC or (before is not None and before.message == told.message):
        return
    if told.stalled:
        events.send(topic, WARNING, told.reason, told.message)
    elif told.ready == TRUE and before is not None and before.reason in TOPIC and TOPIC[before.reason].stalled:
        events.send(topic, NORMAL, told.reason, told.message)
