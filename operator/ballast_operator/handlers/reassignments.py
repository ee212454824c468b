"""Carries out the Reassignments of one cluster, all of them from one snapshot, since they share brokers and throttles.

The order inside a cycle is what makes a kill at any line harmless: plans are kept in ConfigMaps before their hash is
told; statuses (with what throttles were) are written before anything is changed; throttles are set before the first
move starts; and what runs is always told from the cluster, never remembered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ballast_operator.apply import kafka as kafka_actions
from ballast_operator.events import NORMAL, WARNING
from ballast_operator.handlers.plans import Case, Plans
from ballast_operator.handlers.put_back import PutBackMemory
from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.model.actions import AlterReplicas
from ballast_operator.model.kafka import BROKER, KafkaView, Outcome, ReplicaId, TopicPartition
from ballast_operator.model.meta import Key
from ballast_operator.model.reassignment import (
    ENDS,
    MaxConcurrentMoves,
    Phase,
    Reassignment,
    ReassignmentStatus,
    RollbackStatus,
)
from ballast_operator.model.times import seconds_of
from ballast_operator.observe import (
    observe_broker_configs,
    observe_brokers,
    observe_directories,
    observe_ongoing,
    observe_topic_configs,
    observe_topics,
)
from ballast_operator.plan.claimed import as_claimed
from ballast_operator.plan.lifecycle import Goal, Scene, Step, goal_of, holds_nothing, next_step
from ballast_operator.plan.moves import MoveState, State, between_brokers, directory_changes
from ballast_operator.plan.progress import progress_of
from ballast_operator.plan.starting import choose_starts, observe_traffic
from ballast_operator.plan.throttled_lists import LISTS, Part
from ballast_operator.plan.throttles import Share, ThrottlePlan, plan_throttles, wanted_entries, wanted_rates
from ballast_operator.status import EVENTS, Verdict, conditions, ready_condition
from ballast_operator.worker import Again
from ballast_planner import Move

if TYPE_CHECKING:
    from ballast_operator.cycle import Shared

log = logging.getLogger(__name__)

# How soon to look again at what moves: soon while looks find something new, seldom while they do not.
FIRST_LOOK_SECONDS = 0.2
LOOK_SECONDS = 1.0
IDLE_LOOK_SECONDS = 15.0
PROGRESS_SECONDS = 3.0
# Every topic may own a Reassignment: a status does not name thousands.
MOST_NAMED = 100
GITOPS_MARKS = (
    "argocd.argoproj.io/tracking-id",
    "argocd.argoproj.io/instance",
    "app.kubernetes.io/instance",
    "kustomize.toolkit.fluxcd.io/name",
    "helm.toolkit.fluxcd.io/name",
)
# The destination does not have the replica yet: the broker keeps the directory in mind for when it gets it (DIR-13).
REMEMBERED = "REPLICA_NOT_AVAILABLE"


class ReassignmentHandler:
    """The Reassignments of one cluster. Used by that cluster's worker only."""

    def __init__(self, cluster: Key, shared: Shared) -> None:
        self._cluster = cluster
        self._shared = shared
        self._plans = Plans(cluster, shared)
        self._refusals: dict[TopicPartition, str] = {}
        # Why moves wait for their throttles, by Reassignment.
        self._unthrottled: dict[str, str] = {}
        self._put_back = PutBackMemory()
        self._pace = FIRST_LOOK_SECONDS
        self._seen: object = None
        self.moved_topics: dict[str, str] = {}

    # Without Kafka.

    async def tell(self, verdict: Verdict | None, again: Again, cluster_gone: bool = False) -> None:
        """The cluster cannot be asked: say so, and let those go that have nothing to put back."""
        for reassignment in self._shared.cache.reassignments_of(self._cluster):
            status = reassignment.status
            if reassignment.meta.deleting and (cluster_gone or _nothing_to_undo(reassignment)):
                await self._release(reassignment)
                continue
            if (status.phase in (*ENDS, Phase.STALE) and not status.holds_throttles) or verdict is None:
                continue
            wanted = replace(
                status,
                phase=status.phase or Phase.PLANNING,
                observed_generation=reassignment.meta.generation,
                conditions=self._conditions(reassignment, verdict),
            )
            if not await self._shared.writer.write_status(reassignment, wanted):
                again.reassignments_within(LOOK_SECONDS)

    # With Kafka.

    async def handle(self, kafka: KafkaConnection, again: Again) -> None:
        """One look at all Reassignments of the cluster."""
        self._put_back.look()
        self._plans.forget_others(one.meta.uid for one in self._shared.cache.reassignments_of(self._cluster))
        cases = []
        for reassignment in self._shared.cache.reassignments_of(self._cluster):
            if await self._at_rest(reassignment, again):
                continue
            status = reassignment.status
            cases.append(Case(reassignment, status=status, records=status.throttle, lists=status.throttled_lists))
        if not cases:
            self._publish((), again)
            return
        with self._shared.metrics.reconcile("Reassignment", len(cases)):
            await self._plans.load(cases)
            view = await self._observe(cases, kafka)
            await self._plans.make(cases, view, kafka)
            await self._carry_out(cases, view, kafka, again)

    async def _at_rest(self, reassignment: Reassignment, again: Again) -> bool:
        """Whether there is nothing to do with Kafka for this one; its last duties are done here."""
        status = reassignment.status
        if status.holds_throttles or (goal_of(reassignment) is not Goal.REST and not _stale_unplanned(reassignment)):
            return False
        if reassignment.meta.deleting:
            await self._release(reassignment)
            return True
        if status.phase in ENDS:
            if status.observed_generation != reassignment.meta.generation:
                generation = reassignment.meta.generation
                # Who waits for a condition goes by the generation that it names.
                said = tuple(replace(one, observed_generation=generation) for one in status.conditions)
                current = replace(status, observed_generation=generation, conditions=said)
                if await self._shared.writer.write_status(reassignment, current):
                    self._warn_of_ttl(reassignment)
            await self._expire(reassignment, again)
        self._plans.forget(reassignment)
        return True

    async def _expire(self, reassignment: Reassignment, again: Again) -> None:
        """ttlSecondsAfterFinished."""
        ttl, finished = reassignment.spec.ttl_seconds_after_finished, reassignment.status.finished_at
        if ttl is None or finished is None:
            return
        if _tracked_by(reassignment) is not None:
            return
        left = seconds_of(finished) + ttl - seconds_of(self._shared.now())
        if left > 0:
            again.reassignments_within(left)
        else:
            await self._shared.writer.delete_reassignment(reassignment)

    def _warn_of_ttl(self, reassignment: Reassignment) -> None:
        """Where it ends, or its spec changes after that: it may stay in Git for ever."""
        mark = _tracked_by(reassignment)
        if reassignment.spec.ttl_seconds_after_finished is not None and mark is not None:
            said = EVENTS["TtlIgnored"].says(mark=mark)
            self._shared.events.send(reassignment, WARNING, said.reason, said.message)

    async def _release(self, reassignment: Reassignment) -> None:
        if reassignment.meta.finalized:
            await self._shared.writer.set_finalizer(reassignment, False)
        self._plans.forget(reassignment)

    # One look.

    async def _observe(self, cases: Sequence[Case], kafka: KafkaConnection) -> KafkaView:
        """What concerns the plans, and the configurations that their statuses record."""
        topics = {topic for case in cases if case.plan for topic in case.plan.topics}
        records = [record for case in cases for record in case.records]
        topics |= {record.name for record in records if record.resource != BROKER}
        base = await observe_brokers(kafka)
        # What moves is asked first: a move that ends between the two questions is then still one that moves.
        ongoing = await observe_ongoing(kafka)
        views, missing, errors = await observe_topics(kafka, topics)
        online = [broker.id for broker in base.brokers.values() if broker.online]
        wanted = {name: view.partitions.keys() for name, view in views.items()}
        cluster = self._shared.cache.clusters.get(self._cluster)
        managed = cluster is not None and cluster.spec.external is None
        # Where claims count, a directory is as full as all its logs, not only those of the plans.
        directories, logs, described = await observe_directories(kafka, online, None if managed else wanted)
        throttled = [case for case in cases if case.status.holds_throttles or case.reassignment.spec.throttle]
        broker_configs = await observe_broker_configs(kafka, online) if throttled else {}
        topic_configs = await observe_topic_configs(kafka, views, LISTS) if throttled else {}
        view = replace(
            base, topics=views, missing=missing, topic_errors=errors, ongoing=ongoing, directories=directories,
            logs=logs, described=described, broker_configs=broker_configs, topic_configs=topic_configs,
        )  # fmt: skip
        return as_claimed(cluster, view) if cluster is not None else view

    async def _carry_out(self, cases: list[Case], view: KafkaView, kafka: KafkaConnection, again: Again) -> None:
        view = await self._observe_new(cases, view, kafka)
        self._decide(cases, view)
        self._choose(cases, view)
        # Of a plan of many thousand partitions this is computed for seconds: the loop goes on.
        throttles = await asyncio.to_thread(self._plan_throttles, cases, view)
        ready = []
        for case in cases:
            case.records = throttles.records.get(str(case.reassignment.key), ())
            case.lists = throttles.lists.get(str(case.reassignment.key))
            if await self._write(case, view, again):
                ready.append(case)
        settled = await self._apply_throttles(ready, cases, throttles, kafka)
        await self._stop_moves(ready, view, kafka)
        await self._start_moves([case for case in ready if str(case.reassignment.key) in settled], kafka)
        self._publish(cases, again)
        self._come_back(cases, again)

    async def _observe_new(self, cases: Sequence[Case], view: KafkaView, kafka: KafkaConnection) -> KafkaView:
        """Plans that were made in this cycle concern topics that were not observed with the others."""
        known = view.topics.keys() | view.missing
        if any(case.plan and not case.plan.topics <= known for case in cases):
            return await self._observe(cases, kafka)
        return view

    def _decide(self, cases: Sequence[Case], view: KafkaView) -> None:
        """The step of each, the running ones first, then by age; who comes first holds its partitions."""
        claimed: dict[TopicPartition, str] = {}
        order = sorted(cases, key=lambda c: (holds_nothing(c.reassignment), c.reassignment.meta.age_order))
        for case in order:
            if case.step is None and case.plan is not None:
                conflicts = {
                    claimed[tp] for m in case.plan.moves if (tp := TopicPartition(m.topic, m.partition)) in claimed
                }
                scene = Scene(
                    case.reassignment, case.plan, view, tuple(sorted(conflicts)), self._shared.now(),
                    case.status.holds_throttles,
                )  # fmt: skip
                case.step = next_step(scene)
            if case.step is not None and case.step.claims and case.plan is not None:
                for move in case.plan.moves:
                    claimed.setdefault(TopicPartition(move.topic, move.partition), case.reassignment.meta.name)

    def _choose(self, cases: Sequence[Case], view: KafkaView) -> None:
        """Which moves may start, and why others wait: known before the status is written, done after it."""
        running = [case for case in cases if case.step is not None and (case.step.run or case.step.starts)]
        traffic = observe_traffic([state for case in running if case.step for state in case.step.states], view)
        for case in running:
            assert case.step is not None
            limits = case.reassignment.spec.max_concurrent_moves or MaxConcurrentMoves()
            starts, notes = choose_starts(case.step.states, view, limits, traffic)
            case.starts = tuple(starts)
            pending = {state.partition for state in case.step.states if state.state is State.PENDING}
            case.notes = {tp: note for tp, note in self._refusals.items() if tp in pending} | notes
            why = self._unthrottled.get(str(case.reassignment.key))
            if why is not None:
                case.notes |= {TopicPartition(move.topic, move.partition): why for move in case.starts}

    def _plan_throttles(self, cases: Sequence[Case], view: KafkaView) -> ThrottlePlan:
        shares = [self._share(case) for case in cases if case.plan or case.records]
        cluster = self._shared.cache.clusters.get(self._cluster)
        asked = [one.spec.throttle for one in self._shared.cache.reassignments_of(self._cluster)]
        if cluster is not None and cluster.spec.rebalance is not None:
            asked.append(cluster.spec.rebalance.throttle)
        return plan_throttles(shares, view, self._put_back.known, self._put_back.suspected(asked))

    def _share(self, case: Case) -> Share:
        """What it needs and holds. Records of topics' lists, as operators wrote them before, need the plan, too."""
        name, throttle = str(case.reassignment.key), case.reassignment.spec.throttle
        held = case.step is not None and case.step.holds_throttles
        moves = [state.move for state in case.step.states] if case.step is not None and held else []
        if case.plan is None:
            return Share(name, wanted_rates(moves, throttle), case.records)
        former = [record for record in case.records if record.resource != BROKER]
        part = Part(name, wanted_entries(moves, throttle), case.plan.throttled_entries, case.lists, former)
        rates = [record for record in case.records if record.resource == BROKER]
        return Share(name, wanted_rates(moves, throttle), rates, part)

    # The status comes before the deeds.

    async def _write(self, case: Case, view: KafkaView, again: Again) -> bool:
        """Write what is about to happen. Only if that stands may it happen."""
        step, reassignment = case.step, case.reassignment
        if step is None:
            return False
        if (step.starts or step.holds_throttles) and not reassignment.meta.finalized and not reassignment.meta.deleting:
            if not await self._shared.writer.set_finalizer(reassignment, True):
                again.reassignments_within(0.0)
                return False
            reassignment = case.reassignment = self._shared.cache.reassignments.get(reassignment.key) or reassignment
        before = reassignment.status
        if step.replan:
            await self._plans.discard(reassignment)
        wanted = self._wanted_status(case, step)
        urgent = (
            before.phase != wanted.phase or before.throttle != wanted.throttle or before.plan != wanted.plan
            or before.throttled_lists != wanted.throttled_lists
            or _reason(before) != _reason(wanted) or before.observed_generation != wanted.observed_generation
        )  # fmt: skip
        if not urgent and not (_advanced(before, wanted) and self._progress_due(before)):
            return True
        if not await self._shared.writer.write_status(reassignment, wanted):
            again.reassignments_within(0.0)
            return False
        self._announce(reassignment, before, wanted)
        case.reassignment = self._shared.cache.reassignments.get(reassignment.key) or reassignment
        if case.reassignment.status.throttled_lists != wanted.throttled_lists:
            log.error("Reassignment %s waits: the API server has definitions of before this operator", reassignment.key)
            again.reassignments_within(IDLE_LOOK_SECONDS)
            return False
        return True

    def _wanted_status(self, case: Case, step: Step) -> ReassignmentStatus:
        reassignment, now = case.reassignment, self._shared.now()
        before = case.status
        if step.replan:
            before = replace(before, plan=None)
        started = before.started_at or (now if step.starts else None)
        ended = step.phase in ENDS or step.phase is Phase.STALE
        progress = before.progress
        if step.states:
            progress = progress_of(step.states, case.notes, before.progress, now)
        return replace(
            before,
            observed_generation=reassignment.meta.generation,
            phase=step.phase,
            progress=progress,
            throttle=case.records,
            throttled_lists=case.lists,
            rollback=self._rollback_status(before, started),
            waiting_for=step.waits_for[:MOST_NAMED],
            started_at=started,
            finished_at=(before.finished_at or now) if ended else None,
            conditions=self._conditions(reassignment, step.verdict),
        )

    def _rollback_status(self, before: ReassignmentStatus, started: str | None) -> RollbackStatus | None:
        if started is None or before.plan is None:
            return None
        return RollbackStatus(available=True, config_maps=before.plan.config_maps)

    def _conditions(self, reassignment: Reassignment, verdict: Verdict) -> tuple[Any, ...]:
        return conditions(reassignment.status.conditions, verdict, reassignment.meta.generation, self._shared.now())

    def _progress_due(self, before: ReassignmentStatus) -> bool:
        if before.progress is None or before.progress.measured_at is None:
            return True
        # One that is yet to come was told by a clock that was wrong.
        return abs(seconds_of(self._shared.now()) - seconds_of(before.progress.measured_at)) >= PROGRESS_SECONDS

    def _announce(self, reassignment: Reassignment, before: ReassignmentStatus, after: ReassignmentStatus) -> None:
        if before.phase == after.phase or after.phase is None:
            return
        said = ready_condition(after.conditions)
        bad = after.phase in (Phase.FAILED, Phase.STALE, Phase.CANCELLED)
        self._shared.events.send(
            reassignment, WARNING if bad else NORMAL, str(after.phase), said.message if said else str(after.phase)
        )
        if after.phase in ENDS:
            self._warn_of_ttl(reassignment)

    # Deeds.

    async def _apply_throttles(
        self, ready: Sequence[Case], cases: Sequence[Case], throttles: ThrottlePlan, kafka: KafkaConnection
    ) -> frozenset[str]:
        """Change what is recorded by now; the result names the Reassignments whose moves may start."""
        names = {str(case.reassignment.key) for case in ready}
        self._unthrottled = {}
        self._put_back.keep(throttles.put_back)
        if throttles.changes and len(ready) == len([case for case in cases if case.step is not None]):
            outcomes = await kafka_actions.alter_configs(kafka, throttles.changes)
            self._put_back.note(throttles, outcomes)
            failed = {key: outcome for key, outcome in outcomes.items() if not outcome.ok}
            for (resource, name), outcome in failed.items():
                log.warning(
                    "throttle of %s %s could not be changed: %s %s", resource, name, outcome.error, outcome.message
                )
            if failed:
                (resource, name), outcome = next(iter(failed.items()))
                why = f"its throttle was refused: {resource} {name} answers {outcome.error}"
                self._unthrottled = dict.fromkeys(throttles.unsettled, why)
            changed = {(change.resource, change.name) for change in throttles.changes}
            if not failed and changed <= outcomes.keys():
                return frozenset(names - throttles.unreadable)
        return frozenset(names - throttles.unsettled)

    async def _stop_moves(self, cases: Sequence[Case], view: KafkaView, kafka: KafkaConnection) -> None:
        stops = [move for case in cases if case.step is not None for move in case.step.stop]
        if not stops:
            return
        back: dict[ReplicaId, str] = {}
        for move in stops:
            for broker, path in directory_changes(move).items():
                replica = ReplicaId(move.topic, move.partition, broker)
                log_view = view.logs.get(replica)
                # A move to where the replica is already ends the one in progress (DIR-16).
                if log_view and log_view.future_path == path and log_view.path is not None:
                    back[replica] = log_view.path
        await kafka_actions.alter_log_dirs(kafka, back)
        running = [m for m in stops if TopicPartition(m.topic, m.partition) in view.ongoing]
        await kafka_actions.alter_reassignments(
            kafka, [AlterReplicas(TopicPartition(m.topic, m.partition), None) for m in running]
        )

    async def _start_moves(self, cases: Sequence[Case], kafka: KafkaConnection) -> None:
        """Directories first: a broker that gets a replica has to know where to put it before it does (DIR-13)."""
        directories: dict[ReplicaId, str] = {}
        for case in cases:
            if case.step is not None and (case.step.run or case.step.starts):
                directories |= {replica: path for state in case.step.states for replica, path in _corrections(state)}
            for move in case.starts:
                for broker, path in directory_changes(move).items():
                    directories[ReplicaId(move.topic, move.partition, broker)] = path
        refused = self._refused(await kafka_actions.alter_log_dirs(kafka, directories)) if directories else {}
        refused |= await self._reassign([move for case in cases for move in case.starts], refused, kafka)
        self._refusals = refused

    def _refused(self, outcomes: Mapping[ReplicaId, Outcome]) -> dict[TopicPartition, str]:
        return {
            replica.topic_partition: f"broker {replica.broker} answers {outcome.error}"
            for replica, outcome in outcomes.items()
            if not outcome.ok and outcome.error != REMEMBERED
        }

    async def _reassign(
        self, starts: Sequence[Move], refused: Mapping[TopicPartition, str], kafka: KafkaConnection
    ) -> dict[TopicPartition, str]:
        moves = {TopicPartition(move.topic, move.partition): move for move in starts if between_brokers(move)}
        actions = [
            AlterReplicas(partition, move.to.replicas) for partition, move in moves.items() if partition not in refused
        ]
        outcomes = await kafka_actions.alter_reassignments(kafka, actions)
        return {tp: f"Kafka answers {o.error}: {o.message}" for tp, o in outcomes.items() if not o.ok}

    # Afterwards.

    def _publish(self, cases: Sequence[Case], again: Again) -> None:
        """Tell the topics which of them are being moved."""
        moved: dict[str, str] = defaultdict(str)
        for case in cases:
            if case.step is not None and case.step.claims and case.plan is not None:
                moved |= {
                    state.move.topic: case.reassignment.meta.name for state in case.step.states if not state.ended
                }
        before, self.moved_topics = self.moved_topics, dict(moved)
        ended = before.keys() - self.moved_topics.keys()
        again.topics |= {topic.key for topic in self._shared.cache.topics_of(self._cluster) if topic.topic in ended}

    def _come_back(self, cases: Sequence[Case], again: Again) -> None:
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
            again.reassignments_within(self._pace if active else IDLE_LOOK_SECONDS)


def _corrections(state: MoveState) -> list[tuple[ReplicaId, str]]:
    return list(state.correct) if state.state is State.MOVING else []


def _tracked_by(reassignment: Reassignment) -> str | None:
    """The mark of the GitOps that would create it again."""
    marks = {**reassignment.meta.labels, **reassignment.meta.annotations}
    return next((mark for mark in GITOPS_MARKS if mark in marks), None)


def _stale_unplanned(reassignment: Reassignment) -> bool:
    """Rows that were stale when the plan was to be made stay so until the spec changes."""
    status, meta = reassignment.status, reassignment.meta
    current = status.observed_generation == meta.generation and not meta.deleting
    return status.phase is Phase.STALE and status.plan is None and current


def _nothing_to_undo(reassignment: Reassignment) -> bool:
    status = reassignment.status
    return not status.holds_throttles and (status.started_at is None or status.phase in ENDS)


def _advanced(before: ReassignmentStatus, wanted: ReassignmentStatus) -> bool:
    """Whether there is anything to tell but the time."""
    if before.progress is None or wanted.progress is None:
        return before != wanted
    same_look = replace(
        wanted.progress,
        measured_at=before.progress.measured_at,
        bytes_per_second=before.progress.bytes_per_second,
        eta=before.progress.eta,
    )
    return replace(wanted, progress=same_look) != before


def _reason(status: ReassignmentStatus) -> str:
    said = ready_condition(status.conditions)
    return said.reason if said else ""
