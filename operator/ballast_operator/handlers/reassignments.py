"""Carries out the Reassignments of one cluster, all of them from one snapshot, since they share brokers and throttles.

The order within a cycle makes a kill at any line harmless: plans are stored in ConfigMaps before their hash is written
to the status; statuses (with the former throttles) are written before anything is changed; throttles are set before the
first move starts; and what runs is always read from the cluster, never remembered.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ballast_operator.events import WARNING
from ballast_operator.handlers.finished import LOOK_SECONDS, Finished, nothing_to_undo
from ballast_operator.handlers.moving import start_moves, stop_moves
from ballast_operator.handlers.plans import Case, Plans
from ballast_operator.handlers.reassignment_statuses import IDLE_LOOK_SECONDS, ReassignmentStatuses
from ballast_operator.handlers.refusals import Refusals
from ballast_operator.handlers.throttling import Throttling
from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.model.kafka import BROKER, KafkaView, TopicPartition
from ballast_operator.model.meta import Key
from ballast_operator.model.quantity import some_of
from ballast_operator.model.reassignment import ENDS, MaxConcurrentMoves, Phase, Reassignment
from ballast_operator.observe import (
    observe_broker_configs,
    observe_brokers,
    observe_directories,
    observe_ongoing,
    observe_topic_configs,
    observe_topics,
)
from ballast_operator.plan.claimed import as_claimed
from ballast_operator.plan.lifecycle import ReassignmentFacts, holds_nothing, next_step
from ballast_operator.plan.moves import State
from ballast_operator.plan.starting import choose_starts, observe_traffic
from ballast_operator.plan.throttled_lists import LISTS
from ballast_operator.side_by_side import side_by_side
from ballast_operator.status import EVENTS, Verdict
from ballast_operator.worker import Requeue

if TYPE_CHECKING:
    from ballast_operator.cycle import Shared

# How soon to look again at running moves; the interval doubles while looks find nothing new.
FIRST_LOOK_SECONDS = 0.2
SHOWN_BROKERS = 20


class ReassignmentHandler:
    """The Reassignments of one cluster. Used by that cluster's worker only."""

    def __init__(self, cluster: Key, shared: Shared) -> None:
        self._cluster = cluster
        self._shared = shared
        self._plans = Plans(cluster, shared)
        self._refusals = Refusals(shared.events)
        self._finished = Finished(shared, self._plans, self._refusals)
        self._statuses = ReassignmentStatuses(shared, self._plans, self._refusals)
        self._throttling = Throttling(cluster, shared)
        # What brokers and controller refused at the last look.
        self._unmoved: dict[TopicPartition, str] = {}
        self._pace = FIRST_LOOK_SECONDS
        self._seen: object = None
        self.moved_topics: dict[str, str] = {}

    # Without Kafka.

    async def tell(
        self, verdict: Verdict | None, requeue: Requeue, cluster_gone: bool = False, leaving: bool = False
    ) -> None:
        """The cluster cannot be asked: report it, and release deleted ones that have nothing to undo (all if the
        cluster is gone). With `leaving` deleted ones are left to `handle`."""
        known = self._shared.cache.reassignments_of(self._cluster)
        self._refusals.look(one.meta.uid for one in known)

        async def tell_one(reassignment: Reassignment) -> None:
            status = reassignment.status
            if leaving and reassignment.meta.deleting:
                return
            goes = reassignment.meta.deleting and (cluster_gone or nothing_to_undo(reassignment))
            at_rest = status.phase in (*ENDS, Phase.STALE) and not status.holds_throttles
            if not goes and (at_rest or verdict is None or reassignment.unread):
                return
            if self._refusals.due(reassignment):
                with self._refusals.told(reassignment):
                    if goes:
                        # Before the release: afterwards no successor of this process would find the object.
                        self._tell_left(reassignment)
                        await self._finished.release(reassignment, requeue)
                    elif verdict is not None:
                        await self._statuses.tell(reassignment, verdict, requeue)
                    return
            self._refusals.come_back(reassignment, requeue)

        await side_by_side(known, tell_one)

    def _tell_left(self, reassignment: Reassignment) -> None:
        brokers = sorted(
            {int(one.name) for one in reassignment.status.throttle if one.resource == BROKER and one.name.isdigit()}
        )
        if nothing_to_undo(reassignment) or not brokers:
            return
        shown = some_of([str(broker) for broker in brokers], SHOWN_BROKERS)
        said = EVENTS["LeftInKafka"].says(cluster=self._cluster.name, brokers=shown)
        self._shared.events.send(reassignment, WARNING, said.reason, said.message)

    # With Kafka.

    async def handle(self, kafka: KafkaConnection, requeue: Requeue, leaving: bool = False) -> None:
        """One look at all Reassignments of the cluster, or with `leaving` only at those being deleted."""
        known = self._shared.cache.reassignments_of(self._cluster)
        known = [one for one in known if one.meta.deleting or not leaving]
        self._throttling.look()
        self._refusals.look(one.meta.uid for one in known)
        self._plans.forget_others(one.meta.uid for one in known)
        cases = []
        concluded = await side_by_side(known, lambda one: self._finished.conclude(one, requeue))
        for reassignment in (one for one, done in zip(known, concluded, strict=True) if not done):
            status = reassignment.status
            case = Case(reassignment, status=status, records=status.throttle, lists=status.throttled_lists)
            case.refused = reassignment.unread or self._refusals.of(reassignment) is not None
            cases.append(case)
        if not cases:
            self._publish((), requeue)
            return
        with self._shared.metrics.reconcile("Reassignment", len(cases)):
            await self._plans.load(cases)
            view = await self._observe(cases, kafka)
            await self._plans.make(cases, view, kafka)
            await self._carry_out(cases, view, kafka, requeue)

    # One look.

    async def _observe(self, cases: Sequence[Case], kafka: KafkaConnection) -> KafkaView:
        """Observe what the plans concern, and the configurations that statuses record."""
        topics = {topic for case in cases if case.plan for topic in case.plan.topics}
        records = [record for case in cases for record in case.records]
        topics |= {record.name for record in records if record.resource != BROKER}
        base = await observe_brokers(kafka)
        # Ongoing reassignments first: a move that ends between the two requests then still counts as running.
        ongoing = await observe_ongoing(kafka)
        views, missing, errors = await observe_topics(kafka, topics)
        online = [broker.id for broker in base.brokers.values() if broker.online]
        wanted = {name: view.partitions.keys() for name, view in views.items()}
        cluster = self._shared.cache.clusters.get(self._cluster)
        managed = cluster is not None and cluster.spec.external is None
        # `as_claimed` sums up all logs of a directory, not only those of the plans.
        directories, logs, described = await observe_directories(kafka, online, None if managed else wanted)
        throttled = [case for case in cases if case.status.holds_throttles or case.reassignment.spec.throttle]
        broker_configs = await observe_broker_configs(kafka, online) if throttled else {}
        topic_configs = await observe_topic_configs(kafka, views, LISTS) if throttled else {}
        view = replace(
            base, topics=views, missing=missing, topic_errors=errors, ongoing=ongoing, directories=directories,
            logs=logs, described=described, broker_configs=broker_configs, topic_configs=topic_configs,
        )  # fmt: skip
        return as_claimed(cluster, view) if cluster is not None else view

    async def _carry_out(self, cases: list[Case], view: KafkaView, kafka: KafkaConnection, requeue: Requeue) -> None:
        view = await self._observe_new(cases, view, kafka)
        self._decide(cases, view)
        self._choose(cases, view)
        # With many thousand partitions this computes for seconds, so it must not block the event loop.
        throttles = await asyncio.to_thread(self._throttling.plan, cases, view)
        for case in cases:
            case.records = throttles.records.get(str(case.reassignment.key), ())
            case.lists = throttles.lists.get(str(case.reassignment.key))
        order = sorted(cases, key=lambda case: case.refused)
        written = await side_by_side(order, lambda case: self._statuses.write(case, requeue))
        ready = [case for case, stands in zip(order, written, strict=True) if stands]
        settled = await self._throttling.apply(ready, cases, throttles, kafka)
        await stop_moves(ready, view, kafka)
        able = [case for case in ready if str(case.reassignment.key) in settled]
        self._unmoved = await start_moves(able, kafka)
        self._publish(cases, requeue)
        self._come_back(cases, requeue)

    async def _observe_new(self, cases: Sequence[Case], view: KafkaView, kafka: KafkaConnection) -> KafkaView:
        """Observe again if plans made in this cycle concern topics that were not observed."""
        known = view.topics.keys() | view.missing
        if any(case.plan and not case.plan.topics <= known for case in cases):
            return await self._observe(cases, kafka)
        return view

    def _decide(self, cases: Sequence[Case], view: KafkaView) -> None:
        """Decide on each step, running ones first, then by age: the first to claim a partition holds it. Those that
        Kubernetes does not let us change come after those that can go on."""
        claimed: dict[TopicPartition, str] = {}
        order = sorted(cases, key=lambda c: (holds_nothing(c.reassignment), c.refused, c.reassignment.meta.age_order))
        for case in order:
            if case.step is None and case.plan is not None:
                conflicts = {
                    claimed[tp] for m in case.plan.moves if (tp := TopicPartition(m.topic, m.partition)) in claimed
                }
                facts = ReassignmentFacts(
                    case.reassignment, case.plan, view, tuple(sorted(conflicts)), self._shared.now(),
                    case.status.holds_throttles,
                )  # fmt: skip
                case.step = next_step(facts)
            if case.step is not None and case.step.claims and case.plan is not None:
                for move in case.plan.moves:
                    claimed.setdefault(TopicPartition(move.topic, move.partition), case.reassignment.meta.name)

    def _choose(self, cases: Sequence[Case], view: KafkaView) -> None:
        """Choose which moves may start, and note why others wait, before the status is written; they start after."""
        running = [case for case in cases if _starts(case)]
        traffic = observe_traffic([state for case in running if case.step for state in case.step.states], view)
        for case in running:
            assert case.step is not None
            limits = case.reassignment.spec.max_concurrent_moves or MaxConcurrentMoves()
            starts, notes = choose_starts(case.step.states, view, limits, traffic)
            case.starts = tuple(starts)
            pending = {state.partition for state in case.step.states if state.state is State.PENDING}
            case.notes = {tp: note for tp, note in self._unmoved.items() if tp in pending} | notes
            why = self._throttling.why_not(case)
            if why is not None:
                case.notes |= {TopicPartition(move.topic, move.partition): why for move in case.starts}

    # Afterwards.

    def _publish(self, cases: Sequence[Case], requeue: Requeue) -> None:
        """Tell the topics which of them are being moved."""
        moved: dict[str, str] = defaultdict(str)
        for case in cases:
            if case.step is not None and case.step.claims and case.plan is not None:
                moved |= {
                    state.move.topic: case.reassignment.meta.name for state in case.step.states if not state.ended
                }
        before, self.moved_topics = self.moved_topics, dict(moved)
        ended = before.keys() - self.moved_topics.keys()
        requeue.topics |= {topic.key for topic in self._shared.cache.topics_of(self._cluster) if topic.topic in ended}

    def _come_back(self, cases: Sequence[Case], requeue: Requeue) -> None:
        seen = [
            (case.reassignment.key, case.reassignment.status.phase, len(case.starts), case.records, case.lists,
             sum(state.ended for state in case.step.states) if case.step else 0)
            for case in cases
        ]  # fmt: skip
        self._pace = FIRST_LOOK_SECONDS if seen != self._seen else min(LOOK_SECONDS, 2 * self._pace)
        self._seen = seen
        for case in cases:
            step = case.step
            held = bool(case.records) or case.lists is not None
            active = step is None or step.claims or step.replan or held or case.reassignment.meta.deleting
            if case.reassignment.unread or self._refusals.of(case.reassignment) is not None:
                active = not case.refused  # refused only now: what it held is free for others
            requeue.reassignments_within(self._pace if active else IDLE_LOOK_SECONDS)


def _starts(case: Case) -> bool:
    """Whether moves of it may start. After a refusal its status has to be written first."""
    return case.step is not None and (case.step.run or case.step.starts) and not case.refused
