"""Brings a batch of KafkaTopics of one cluster to their specs, with a few requests for all of them.

Each round observes the batch, plans every topic from that one snapshot, and carries the actions out together; a topic
leaves the rounds when its plan holds no more actions. What is about to be created is recorded in the ledger first. The
statuses of one batch are written while Kafka already works on the next.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from ballast_operator.apply import kafka as kafka_actions
from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError
from ballast_operator.apply.refused import LONGEST_SECONDS, TRY_AGAIN_SECONDS
from ballast_operator.apply.writer import Writer
from ballast_operator.cache import Cache, claim_order
from ballast_operator.clock import monotonic
from ballast_operator.events import Events
from ballast_operator.handlers.plans import observe_whole
from ballast_operator.handlers.second_tries import SecondTries
from ballast_operator.handlers.topic_statuses import Batch, TopicStatuses, refusal
from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.ledger import Ledger
from ballast_operator.model.kafka import KafkaView, OngoingView, Outcome, TopicView
from ballast_operator.model.meta import Key
from ballast_operator.model.topic import KafkaTopic
from ballast_operator.observe import (
    MIN_INSYNC,
    Settings,
    observe_brokers,
    observe_ongoing,
    observe_settings,
    observe_topics,
)
from ballast_operator.plan.claimed import as_claimed
from ballast_operator.plan.topics import (
    Intent,
    TopicFacts,
    TopicPlan,
    Unreachable,
    is_begun,
    needs_brokers,
    plan_topic,
    refused,
    topic_error,
    wanted_config_keys,
)
from ballast_operator.side_by_side import side_by_side
from ballast_operator.status import SHARED, Verdict
from ballast_operator.worker import Requeue

log = logging.getLogger(__name__)

BATCH = 250
MAX_ROUNDS = 5
MAX_POLLS = 30
POLL_SECONDS = 0.1
# Errors that only mean that a controller or broker has not caught up yet, or that the action was already done.
BENIGN = frozenset({"TOPIC_ALREADY_EXISTS", "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID"})


class TopicHandler:
    """The topics of one cluster. Used by that cluster's worker only."""

    def __init__(self, cluster: Key, cache: Cache, writer: Writer, events: Events) -> None:
        self._cluster = cluster
        self._cache = cache
        self._writer = writer
        self._second_tries = SecondTries(cache)
        self._statuses = TopicStatuses(cache, writer, events)
        # Topics whose replicas a running Reassignment moves, with its name, as the reassignment handler found them.
        self.moved_topics: Mapping[str, str] = {}

    async def handle(
        self,
        keys: Iterable[Key],
        now: str,
        requeue: Requeue,
        kafka: KafkaConnection | None = None,
        ledger: Ledger | None = None,
        blocked: Verdict | None = None,
    ) -> None:
        """Reconcile these topics; `requeue` gets those to look at soon. Without Kafka only statuses are written."""
        waiting = iter([(key, topic) for key in keys if (topic := self._cache.topics.get(key)) is not None])
        writing: asyncio.Task[None] | None = None
        refused: set[Key] = set()
        try:
            while topics := dict(islice(waiting, BATCH)):
                batch = Batch(topics)
                try:
                    if kafka is None or ledger is None:
                        self._plan_without_kafka(batch, blocked)
                    else:
                        await self._rounds(batch, kafka, ledger)
                except Exception:
                    # Write no status about unfinished actions: the failure is reported in a moment.
                    batch.plans = {key: plan for key, plan in batch.plans.items() if not _acts(plan)}
                    raise
                finally:
                    if writing is not None:
                        await writing
                    writing = asyncio.create_task(self._conclude(batch, now, requeue, refused), name="topic statuses")
        finally:
            if writing is not None:
                await writing
            if requeue.topics and requeue.topics <= refused:
                requeue.topics_seconds = TRY_AGAIN_SECONDS

    async def _conclude(self, batch: Batch, now: str, requeue: Requeue, refused: set[Key]) -> None:
        try:
            await self._statuses.write(batch, now)
        finally:
            requeue.topics |= batch.retry
            refused |= batch.refused
            if batch.created_reassignments:
                requeue.reassignments_within(0.0)

    def _plan_without_kafka(self, batch: Batch, blocked: Verdict | None) -> None:
        clusters = self._cache.clusters
        found = clusters.get(self._cluster) is not None or self._cluster in clusters.broken
        for key, topic in batch.topics.items():
            facts = TopicFacts(cluster_found=found, unreachable=Unreachable("", ""))
            plan = plan_topic(topic, replace(facts, **self._claims(topic)))
            if blocked is not None and plan.verdict.reason == "ClusterUnreachable":
                plan = replace(plan, verdict=blocked)
            batch.plans[key] = plan

    async def _rounds(self, batch: Batch, kafka: KafkaConnection, ledger: Ledger) -> None:
        pending = dict(batch.topics)
        for _ in range(MAX_ROUNDS):
            intents = await ledger.load()
            facts = await self._observe(pending, batch.fresh, kafka, intents)
            plans = {
                key: plan_topic(
                    topic,
                    replace(facts[key], creation_may_come=_is_young(ledger, topic), deleted=key in batch.deleted),
                )
                for key, topic in pending.items()
            }
            batch.plans.update(plans)
            batch.retry |= {key for key, plan in plans.items() if plan.look_again}
            acting = {key: plan for key, plan in plans.items() if _acts(plan)}
            if not acting:
                return
            try:
                done = await self._act(batch, acting, kafka, ledger)
            except ApiError as error:
                if not error.conflict:
                    raise
                # Somebody else has written the ledger: observe and plan again.
                log.info("cluster %s: the ledger has changed meanwhile: %s", self._cluster, error)
                done = set(acting)
            pending = {key: topic for key in done if (topic := self._cache.topics.get(key)) is not None}
            batch.topics.update(pending)
            if not pending:
                return
        batch.retry |= pending.keys()

    # What is observed.

    async def _observe(
        self, topics: Mapping[Key, KafkaTopic], fresh: set[Key], kafka: KafkaConnection, intents: Mapping[str, Intent]
    ) -> dict[Key, TopicFacts]:
        names = {topic.topic for topic in topics.values()}
        views, missing, errors = await self._observe_settled(
            names, {topics[key].topic for key in fresh & topics.keys()}, kafka
        )
        settings, config_errors = await self._observe_settings(topics, views, kafka, intents)
        ongoing: dict[str, dict[int, OngoingView]] = defaultdict(dict)
        for partition, view in (await observe_ongoing(kafka)).items():
            ongoing[partition.topic][partition.partition] = view
        cluster = self._cache.clusters.get(self._cluster)
        throttle = cluster.spec.rebalance.throttle if cluster and cluster.spec.rebalance else None
        brokers = None
        if any(topic.topic in views and needs_brokers(topic, views[topic.topic]) for topic in topics.values()):
            brokers = frozenset((await observe_brokers(kafka)).brokers)
        claims = {key: self._claims(topic) for key, topic in topics.items()}
        owned = [claim["reassignment"] for claim in claims.values() if claim["reassignment"] is not None]
        worth_it = await self._second_tries.worth_it(owned, lambda: self._whole(kafka))
        return {
            key: replace(
                TopicFacts(cluster_found=cluster is not None),
                view=views.get(topic.topic),
                missing=topic.topic in missing,
                error=errors.get(topic.topic),
                config=settings[topic.topic].own if topic.topic in settings else None,
                config_error=config_errors.get(topic.topic),
                ongoing=ongoing.get(topic.topic, {}),
                intent=intents.get(topic.meta.uid),
                throttle=throttle,
                brokers=brokers,
                min_insync=settings[topic.topic].min_insync if topic.topic in settings else None,
                worth_another=claims[key]["reassignment"] in worth_it,
                **claims[key],
            )
            for key, topic in topics.items()
        }

    async def _whole(self, kafka: KafkaConnection) -> KafkaView:
        cluster = self._cache.clusters.get(self._cluster)
        view = await observe_whole(kafka, await observe_brokers(kafka))
        return as_claimed(cluster, view) if cluster is not None else view

    async def _observe_settled(
        self, names: set[str], fresh: set[str], kafka: KafkaConnection
    ) -> tuple[dict[str, TopicView], frozenset[str], dict[str, str]]:
        """Observe the topics; those created or expanded a moment ago get some time to appear and have leaders."""
        views, missing, errors = await observe_topics(kafka, names)
        for _ in range(MAX_POLLS):
            unsettled = {name for name in fresh if name in missing or not _led(views.get(name))}
            if not unsettled:
                break
            await asyncio.sleep(POLL_SECONDS)
            more, still, _ = await observe_topics(kafka, unsettled)
            views |= more
            missing = (missing - unsettled) | still
        return views, missing, errors

    async def _observe_settings(
        self,
        topics: Mapping[Key, KafkaTopic],
        views: Mapping[str, TopicView],
        kafka: KafkaConnection,
        intents: Mapping[str, Intent],
    ) -> tuple[dict[str, Settings], dict[str, str]]:
        """The configurations that their plans need, and the errors of those topics whose plans need any."""
        keys: dict[str, Collection[str] | None] = {}
        for topic in topics.values():
            own = wanted_config_keys(topic, intents.get(topic.meta.uid))
            if topic.topic in views:
                before = keys.get(topic.topic, ())
                keys[topic.topic] = None if own is None or before is None else {*before, *own}
        asked = {name: None if own is None else {*own, MIN_INSYNC} for name, own in keys.items()}
        read, errors = await observe_settings(kafka, asked)
        return read, {name: error for name, error in errors.items() if keys[name] is None or keys[name]}

    def _claims(self, topic: KafkaTopic) -> dict[str, Any]:
        """The facts about who else claims the topic: older and younger objects, and Reassignments."""
        claimants = [one for one in self._cache.topics_named(topic.cluster, topic.topic) if one.key != topic.key]
        older = [one for one in claimants if claim_order(one) < claim_order(topic)]
        owned = None
        for one in self._cache.reassignments_of(topic.cluster):
            if any(owner.uid == topic.meta.uid for owner in one.meta.owner_references):
                owned = one if owned is None or one.meta.name == topic.status.reassignment else owned
        return {
            "rival": older[0] if older else None,
            "others": any(not one.meta.deleting for one in claimants),
            "reassignment": owned,
            "moved_by": self.moved_topics.get(topic.topic),
        }

    # What is done.

    async def _act(
        self, batch: Batch, plans: Mapping[Key, TopicPlan], kafka: KafkaConnection, ledger: Ledger
    ) -> set[Key]:
        """Carry out one round. Returns the topics to observe again."""
        refused_here = await self._finalizers(batch, plans)
        for key, verdict in refused_here.items():
            batch.plans[key] = replace(plans[key], verdict=verdict)
        plans = {key: plan for key, plan in plans.items() if key not in refused_here}
        intents = {batch.topics[key].meta.uid: plan.intent for key, plan in plans.items() if plan.intent is not None}
        known = await ledger.load()
        begun = {key for key in plans if is_begun(batch.topics[key], known.get(batch.topics[key].meta.uid))}
        if intents:
            crowded = await ledger.record(intents, self._cache)
            waiting = {key for key in plans if batch.topics[key].meta.uid in crowded}
            batch.retry |= waiting
            plans = {key: plan for key, plan in plans.items() if key not in waiting}
        outcomes, unset = await self._act_on_kafka(batch.topics, plans, kafka)
        never_made = [
            key
            for key, plan in plans.items()
            if plan.create and _not_by_us(outcomes.get(key, Outcome()), attempted=key in begun)
        ]
        # An earlier attempt may have been carried out.
        unset = {key for key in unset if batch.topics[key].meta.uid not in known}
        await ledger.withdraw({batch.topics[key].meta.uid for key in (*never_made, *unset)})
        plans = {key: _without_claims(batch.topics[key], plan) if key in unset else plan for key, plan in plans.items()}
        refused_here = await self._reassignments(batch, plans)
        done = set()
        for key, plan in plans.items():
            if key in refused_here:
                batch.plans[key] = replace(plan, verdict=refused_here[key])
                continue
            outcome = outcomes.get(key, Outcome())
            # It may have been done all the same: look once more before reporting it.
            late = outcome.error == "REQUEST_TIMED_OUT" and key not in batch.late
            if late:
                batch.late.add(key)
            benign = outcome.error in BENIGN or (plan.expand and outcome.error == "INVALID_PARTITIONS")
            if outcome.ok or benign or late:
                done.add(key)
                if plan.delete_id is not None and not late:
                    batch.deleted.add(key)
                if plan.create or plan.expand:
                    batch.fresh.add(key)
                continue
            batch.plans[key] = replace(plan, verdict=topic_error(str(outcome.error), outcome.message))
            if not batch.plans[key].verdict.stalled:
                batch.retry.add(key)
        return done - batch.retry

    async def _act_on_kafka(
        self, topics: Mapping[Key, KafkaTopic], plans: Mapping[Key, TopicPlan], kafka: KafkaConnection
    ) -> tuple[dict[Key, Outcome], set[Key]]:
        """(outcomes, topics whose configuration change Kafka has refused as a whole)."""
        key_of = {topics[key].topic: key for key in plans}
        results: dict[Key, Outcome] = {}
        created = await kafka_actions.create_topics(kafka, [p.create for p in plans.values() if p.create])
        deleted = await kafka_actions.delete_topics_by_id(
            kafka, {topics[key].topic: uuid.UUID(p.delete_id) for key, p in plans.items() if p.delete_id is not None}
        )
        altered = await kafka_actions.alter_configs(kafka, [p.alter for p in plans.values() if p.alter])
        expanded = await kafka_actions.create_partitions(kafka, [p.expand for p in plans.values() if p.expand])
        by_topic = [created, deleted, expanded, {name: outcome for (_, name), outcome in altered.items()}]
        for outcomes in by_topic:
            for name, outcome in outcomes.items():
                key = key_of.get(name)
                if key is not None and results.get(key, Outcome()).ok:
                    results[key] = outcome
        unset = {key_of[name] for (_, name), outcome in altered.items() if name in key_of and refused(outcome.error)}
        return results, unset

    async def _finalizers(self, batch: Batch, plans: Mapping[Key, TopicPlan]) -> dict[Key, Verdict]:
        async def finalize(key: Key, plan: TopicPlan) -> None:
            if plan.add_finalizer and not await self._writer.set_finalizer(batch.topics[key], True):
                batch.retry.add(key)

        return await self._each(batch, plans, finalize)

    async def _reassignments(self, batch: Batch, plans: Mapping[Key, TopicPlan]) -> dict[Key, Verdict]:
        async def bring(key: Key, plan: TopicPlan) -> None:
            await self._reassignment(batch, key, plan)

        return await self._each(batch, plans, bring)

    async def _each(
        self, batch: Batch, plans: Mapping[Key, TopicPlan], change: Callable[[Key, TopicPlan], Awaitable[None]]
    ) -> dict[Key, Verdict]:
        """Change something in Kubernetes for each topic. A refusal (by a policy, for an exhausted quota) is reported on
        that topic, which is then left alone; the others go on."""
        refused: dict[Key, Verdict] = {}
        began = monotonic()

        async def one(each: tuple[Key, TopicPlan]) -> None:
            key, plan = each
            if refused and monotonic() - began > LONGEST_SECONDS:
                refused[key] = plan.verdict  # a webhook may be slow to fail: this one is for the next look
                batch.retry.add(key)
                return
            try:
                await change(key, plan)
            except (ApiError, ApiUnavailableError) as error:
                if isinstance(error, ApiUnavailableError) and error.answer is None:
                    raise
                refused[key] = refusal(error)
                batch.retry.add(key)
                batch.refused.add(key)

        await side_by_side(plans.items(), one)
        return refused

    async def _reassignment(self, batch: Batch, key: Key, plan: TopicPlan) -> None:
        topic = batch.topics[key]
        if plan.replace_reassignment is not None:
            old = self._cache.reassignments.get(Key(key.namespace, plan.replace_reassignment))
            if old is not None:
                await self._writer.delete_reassignment(old)
            batch.retry.add(key)
        elif plan.reassign is not None:
            await self._writer.create_reassignment(
                topic, plan.reassign["name"], plan.reassign["spec"], topic.spec.cluster_ref.name
            )
            batch.created_reassignments = True


def _acts(plan: TopicPlan) -> bool:
    return (
        plan.acts_on_kafka or plan.add_finalizer or plan.reassign is not None or plan.replace_reassignment is not None
    )


def _without_claims(topic: KafkaTopic, plan: TopicPlan) -> TopicPlan:
    """The plan without new managed keys: a config that we failed to set may be somebody else's, not ours to remove."""
    return replace(plan, status=replace(plan.status, managed_config=topic.status.managed_config))


def _not_by_us(outcome: Outcome, attempted: bool) -> bool:
    """Whether we surely created nothing. A topic that exists at our first attempt was created by somebody else."""
    if outcome.error == "TOPIC_ALREADY_EXISTS":
        return not attempted and not outcome.doubtful
    return refused(outcome.error)


def _is_young(ledger: Ledger, topic: KafkaTopic) -> bool:
    """Whether a creation that a killed operator requested may still happen: brokers carry it out until its timeout."""
    return ledger.age_s(topic.meta.uid) < kafka_actions.TIMEOUT_MS / 1000


def _led(view: TopicView | None) -> bool:
    return view is not None and all(part.leader >= 0 for part in view.partitions.values())


def unreachable_verdict(cluster: str, since: str, error: str) -> Verdict:
    text = error if error.endswith(".") else error + "."
    return SHARED["ClusterUnreachable"].says(cluster=cluster, since=since, error=text)
