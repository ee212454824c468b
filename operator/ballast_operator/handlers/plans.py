"""Makes the plans of a cluster's Reassignments, keeps them in ConfigMaps, and reads them back after a restart.

A plan is stored before its hash is written to the status, so the moves for any hash in a status can be found. Used by
that cluster's worker only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError, path_of
from ballast_operator.apply.refused import LONGEST_SECONDS, answer_in
from ballast_operator.clock import monotonic
from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.model.kafka import KafkaView, TopicPartition
from ballast_operator.model.meta import Key, owner_reference, shortened
from ballast_operator.model.quantity import counted
from ballast_operator.model.reassignment import (
    KIND,
    Phase,
    PlanStatus,
    Reassignment,
    ReassignmentStatus,
    ThrottledLists,
    ThrottleRecord,
)
from ballast_operator.model.times import seconds_of
from ballast_operator.observe import observe_directories, observe_topics
from ballast_operator.plan.claimed import as_claimed
from ballast_operator.plan.lifecycle import Goal, Step, given_up, goal_of
from ballast_operator.plan.load import undescribed_partitions
from ballast_operator.plan.making import (
    BrokersAwayError,
    InvalidPlanError,
    PlanMissingError,
    StalePlanError,
    TopicMissingError,
    make_plan,
)
from ballast_operator.plan.stored import StoredPlan, StoredPlanError, decode, encode, keep, preview
from ballast_operator.plan.volumes import directory_weights, mounted_paths
from ballast_operator.side_by_side import side_by_side
from ballast_operator.status import REASSIGNMENT, SHARED
from ballast_planner import Move, Plan

if TYPE_CHECKING:
    from ballast_operator.cache import Cache
    from ballast_operator.cycle import Shared

log = logging.getLogger(__name__)
# No restart of a broker takes longer.
AWAY_SECONDS = 600.0
# How long after its Reassignment a topic without a KafkaTopic may be created.
TOPIC_SECONDS = 600.0


@dataclass
class Case:
    """One Reassignment in this cycle. `refused`: Kubernetes refused the last attempt to change it, or its spec cannot
    be read."""

    reassignment: Reassignment
    plan: StoredPlan | None = None
    step: Step | None = None
    status: ReassignmentStatus = field(default_factory=ReassignmentStatus)
    records: tuple[ThrottleRecord, ...] = ()
    lists: ThrottledLists | None = None
    notes: dict[TopicPartition, str] = field(default_factory=dict)
    starts: tuple[Move, ...] = ()
    refused: bool = False


class Plans:
    """What is known of the plans of one cluster's Reassignments."""

    def __init__(self, cluster: Key, shared: Shared) -> None:
        self._cluster = cluster
        self._shared = shared
        self._known: dict[str, StoredPlan] = {}
        # Plans are large, and computing several at once would finish none of them sooner.
        self._computing = asyncio.Lock()

    def forget(self, reassignment: Reassignment) -> None:
        self._known.pop(reassignment.meta.uid, None)

    def forget_others(self, uids: Iterable[str]) -> None:
        """Keep the plans of these only: nothing else forgets Reassignments that were deleted before they started."""
        self._known = {uid: self._known[uid] for uid in uids if uid in self._known}

    async def discard(self, reassignment: Reassignment) -> None:
        """Delete a plan that went stale before it started: otherwise ConfigMaps would pile up with each new plan."""
        self.forget(reassignment)
        plan, namespace = reassignment.status.plan, reassignment.meta.namespace
        for name in plan.config_maps if plan is not None else ():
            found = await self._config_map(reassignment, name)
            if found is not None and _is_owned(reassignment, found):
                path = path_of("v1", "configmaps", namespace, name)
                await self._shared.api.delete(path, uid=found["metadata"]["uid"])

    async def load(self, cases: Sequence[Case]) -> None:
        """Get the plans from memory, else from the ConfigMaps that the status names."""
        await side_by_side(cases, self._load)

    async def _load(self, case: Case) -> None:
        told = case.reassignment.status.plan
        known = self._known.get(case.reassignment.meta.uid)
        if told is None or told.hash is None:
            return
        if known is not None and known.hash == told.hash:
            case.plan = known
            return
        try:
            maps = [await self._config_map(case.reassignment, name) for name in told.config_maps]
            case.plan = await asyncio.to_thread(decode, [m for m in maps if m is not None], told.hash)
            self._known[case.reassignment.meta.uid] = case.plan
        except StoredPlanError as error:
            await self._lost_plan(case, str(error))

    async def _lost_plan(self, case: Case, error: str) -> None:
        if case.reassignment.status.started_at is None:
            return
        log.error("Reassignment %s: its plan is lost: %s", case.reassignment.key, error)
        case.step = Step(Phase.FAILED, REASSIGNMENT["PlanLost"].says(error=error))

    async def _config_map(self, reassignment: Reassignment, name: str) -> dict[str, Any] | None:
        return await self._shared.api.find(path_of("v1", "configmaps", reassignment.meta.namespace, name))

    async def make(self, cases: Sequence[Case], view: KafkaView, kafka: KafkaConnection) -> None:
        """Make the plans of those that have none yet."""
        lacking = [case for case in cases if case.plan is None and case.step is None and not case.reassignment.unread]
        for case in lacking:
            if case.reassignment.meta.paused:
                case.step = Step(Phase.PLANNING, SHARED["Paused"].says())
        lacking = [case for case in lacking if case.step is None]
        lacking = [
            case for case in lacking if goal_of(case.reassignment) is Goal.FORWARD or self._cancel_unplanned(case)
        ]
        lacking = [case for case in lacking if case.step is None]
        if not lacking:
            return
        whole = self._as_claimed(await observe_whole(kafka, view))
        began = monotonic()

        async def make_one(case: Case) -> None:
            if monotonic() - began > LONGEST_SECONDS:
                # First write the statuses of those planned: an operator killed before that has to plan all again.
                case.step = Step(Phase.PLANNING, REASSIGNMENT["Planning"].says(), replan=True)
                return
            try:
                await self._make_plan(case, whole)
            except (ApiError, ApiUnavailableError) as error:
                # For instance an exhausted quota: it concerns this one only, and the others go on.
                answer = answer_in(error)
                if answer is None:
                    raise
                why = f"Kubernetes does not keep its plan: {answer.message.rstrip('.')}."
                case.step = Step(Phase.PLANNING, REASSIGNMENT["WaitingForCluster"].says(error=why))

        await side_by_side(lacking, make_one)

    def _cancel_unplanned(self, case: Case) -> bool:
        case.step = given_up(case.reassignment, ())
        return False

    async def _make_plan(self, case: Case, whole: KafkaView) -> None:
        reassignment = case.reassignment
        plan = await self._worked_out(case, whole)
        if plan is None:
            return
        away = self._worth_waiting_for(reassignment, whole) if plan.unplaced else []
        if away:
            left = counted(len(plan.unplaced), "replica")
            why = f"brokers {away} are away, and without them {left} would find no place."
            case.step = Step(Phase.PLANNING, REASSIGNMENT["WaitingForCluster"].says(error=why))
            return
        try:
            await self._keep(case, plan)
        except StoredPlanError as error:
            case.step = Step(Phase.FAILED, REASSIGNMENT["InvalidPlan"].says(error=str(error)))

    async def _worked_out(self, case: Case, whole: KafkaView) -> StoredPlan | None:
        """The plan; if there is none, `case.step` says why."""
        unknown = not_known(whole)
        if unknown:
            case.step = Step(Phase.PLANNING, REASSIGNMENT["WaitingForCluster"].says(error=f"{unknown}."))
            return None
        names = [source.config_map_ref.name for source in case.reassignment.spec.plan_from]
        maps = {name: found for name in names if (found := await self._config_map(case.reassignment, name)) is not None}
        try:
            async with self._computing:
                return keep(await work_out(self._shared.cache, case.reassignment, whole, maps))
        except BrokersAwayError as error:
            case.step = Step(Phase.PLANNING, REASSIGNMENT["WaitingForCluster"].says(error=f"{error}."))
        except PlanMissingError as error:
            case.step = Step(Phase.PLANNING, REASSIGNMENT["PlanMissing"].says(error=str(error)))
        except StalePlanError as error:
            case.step = Step(Phase.STALE, REASSIGNMENT["Stale"].says(rows=str(error)))
        except TopicMissingError as error:
            case.step = self._without_topic(case.reassignment, error)
        except InvalidPlanError as error:
            case.step = Step(Phase.FAILED, REASSIGNMENT["InvalidPlan"].says(error=str(error)))
        return None

    def _without_topic(self, reassignment: Reassignment, error: TopicMissingError) -> Step:
        """The topic may have been applied together with the Reassignment. Without a KafkaTopic it is waited for only a
        while: its name may be misspelled."""
        described = all(self._shared.cache.topics_named(self._cluster, topic) for topic in error.topics)
        if described or self._age(reassignment) < TOPIC_SECONDS:
            return Step(Phase.PLANNING, REASSIGNMENT["TopicMissing"].says(error=str(error)))
        return Step(Phase.FAILED, REASSIGNMENT["InvalidPlan"].says(error=str(error)))

    def _age(self, reassignment: Reassignment) -> float:
        return seconds_of(self._shared.now()) - seconds_of(reassignment.meta.creation_timestamp)

    async def _keep(self, case: Case, plan: StoredPlan) -> None:
        """Store the plan in ConfigMaps first, then in the status."""
        meta = case.reassignment.meta
        contents = await asyncio.to_thread(encode, plan)
        name = f"{shortened(meta.name)}-plan-{plan.hash[:10]}"
        config_maps = tuple(f"{name}-{index}" for index in range(len(contents)))
        found = [await self._own_config_map(case.reassignment, config_map) for config_map in config_maps]
        kept = await self._kept_before(found, plan)
        if kept is None:
            owner = owner_reference(KIND, meta)
            for config_map, content, present in zip(config_maps, contents, found, strict=True):
                if present is None or present.get("binaryData") != content["binaryData"]:
                    await self._shared.writer.keep_config_map(meta, config_map, owner, content)
        plan = kept or plan
        case.plan = self._known[meta.uid] = plan
        told = PlanStatus(
            hash=plan.hash,
            moves=len(plan.moves),
            waves=plan.waves,
            bytes=plan.bytes,
            planned_at=self._shared.now(),
            config_maps=config_maps,
            preview=preview(plan.moves),
        )
        case.status = replace(case.status, plan=told)

    async def _kept_before(self, found: Sequence[Mapping[str, Any] | None], plan: StoredPlan) -> StoredPlan | None:
        """The same moves, stored by an operator that was killed before it wrote the status; sizes may have differed.
        If each one wrote them again, operators killed at every write would never get to the status."""
        there = [one for one in found if one is not None]
        if len(there) < len(found):
            return None
        try:
            kept = await asyncio.to_thread(decode, there, plan.hash)
        except StoredPlanError:
            return None
        return kept if kept.unplaced == plan.unplaced else None

    async def _own_config_map(self, reassignment: Reassignment, name: str) -> Mapping[str, Any] | None:
        found = await self._config_map(reassignment, name)
        return found if found is not None and _is_owned(reassignment, found) else None

    def _worth_waiting_for(self, reassignment: Reassignment, whole: KafkaView) -> list[int]:
        """Brokers that may only be restarting. What can be moved does not wait forever for one that may be lost."""
        away = {broker.id for broker in whole.brokers.values() if not broker.online}
        young = self._age(reassignment) < AWAY_SECONDS
        return sorted(away.difference(reassignment.spec.drain_brokers)) if young else []

    def _as_claimed(self, view: KafkaView) -> KafkaView:
        cluster = self._shared.cache.clusters.get(self._cluster)
        return as_claimed(cluster, view) if cluster is not None else view


def _is_owned(reassignment: Reassignment, config_map: Mapping[str, Any]) -> bool:
    owners = config_map["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == reassignment.meta.uid for owner in owners)


async def work_out(
    cache: Cache, reassignment: Reassignment, whole: KafkaView, maps: Mapping[str, Mapping[str, Any]]
) -> Plan:
    """The plan from the current state. It is CPU-bound, so it is computed in a thread."""
    cluster = cache.clusters.get(reassignment.cluster)
    paths = mounted_paths(cluster, whole) if cluster is not None else {}
    weights = directory_weights(cluster, whole) if cluster is not None else {}
    pinned = cache.pinned_topics(reassignment.cluster)
    return await asyncio.to_thread(make_plan, reassignment.spec, maps, whole, paths, weights, pinned)


def not_known(whole: KafkaView) -> str | None:
    """What a plan would have to guess, if anything."""
    silent = sorted(b.id for b in whole.brokers.values() if b.online and b.id not in whole.described)
    if silent:
        return f"brokers {silent} do not describe their directories"
    sizeless = undescribed_partitions(whole)
    if sizeless:
        few = ", ".join(f"{each.topic}-{each.partition}" for each in sizeless[:5])
        return f"no broker says the size of {counted(len(sizeless), 'partition')}: {few}"
    return None


async def observe_whole(kafka: KafkaConnection, view: KafkaView) -> KafkaView:
    """Everything that planning needs: all topics, and all directories with all replicas."""
    topics, missing, errors = await observe_topics(kafka, None)
    online = [broker.id for broker in view.brokers.values() if broker.online]
    directories, logs, described = await observe_directories(kafka, online)
    whole = replace(
        view,
        topics=topics,
        missing=missing,
        topic_errors=errors,
        directories=directories,
        logs=logs,
        described=described,
    )
    return whole.with_absent()
