"""Decides what to do for one KafkaTopic. PURE.

`plan_topic` compares the spec with what was observed and returns the next actions; it is called again after they were
carried out, until nothing is left. Nothing is ever deleted or changed because something could not be read: unknown
facts lead to waiting.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from ballast_operator.model.actions import AlterConfig, CreateTopic, ExpandTopic
from ballast_operator.model.fields import write
from ballast_operator.model.kafka import TOPIC as TOPIC_RESOURCE
from ballast_operator.model.kafka import OngoingView, TopicView
from ballast_operator.model.meta import shortened
from ballast_operator.model.quantity import counted, some_of
from ballast_operator.model.reassignment import ENDS, STOPPED, Phase, Reassignment, Throttle
from ballast_operator.model.topic import AdoptionPolicy, ConfigPolicy, DeletionPolicy, KafkaTopic, TopicStatus
from ballast_operator.plan.lifecycle import without_place
from ballast_operator.status import SHARED, TOPIC, Verdict, why_it_failed

# Reassignments write these; they are never drift (OPR-21).
THROTTLED_REPLICAS = frozenset({"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"})
OWNED_REASSIGNMENT_TTL_SECONDS = 3_600
MAX_ROWS = 1_000
SHOWN_PARTITIONS = 20
# The topic id that brokers before Kafka 2.8 report.
NO_ID = "00000000-0000-0000-0000-000000000000"
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Intent:
    """What the ledger says we were about to do for an object, perhaps written by an operator that was killed since.

    `former` is the topic id that the status had before a creation: once it has another, the creation is recorded there.
    """

    topic: str
    create: bool = False
    config: tuple[str, ...] = ()
    former: str | None = None


@dataclass(frozen=True, slots=True)
class Unreachable:
    since: str
    error: str


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What is known about one topic. `view` None and `missing` False means that it could not be read."""

    cluster_found: bool = True
    unreachable: Unreachable | None = None
    view: TopicView | None = None
    missing: bool = False
    error: str | None = None
    config: Mapping[str, str] | None = None
    config_error: str | None = None
    ongoing: Mapping[int, OngoingView] = field(default_factory=dict)
    rival: KafkaTopic | None = None
    others: bool = False
    intent: Intent | None = None
    creation_may_come: bool = False  # its creation was requested a moment ago: that it is missing says nothing yet
    deleted: bool = False  # the controller said so, or that no topic has this id
    reassignment: Reassignment | None = None
    worth_another: bool = False  # `reassignment` has failed, and another one would move something now
    moved_by: str | None = None
    throttle: Throttle | None = None
    brokers: frozenset[int] | None = None  # those that are registered; observed only where `needs_brokers`
    min_insync: int | None = None  # the effective value, of the topic or inherited


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The actions, and what the status says unless they fail. `intent` has to be in the ledger before them."""

    verdict: Verdict
    status: TopicStatus
    create: CreateTopic | None = None
    expand: ExpandTopic | None = None
    alter: AlterConfig | None = None
    delete_id: str | None = None
    reassign: Mapping[str, Any] | None = None
    replace_reassignment: str | None = None
    add_finalizer: bool = False
    remove_finalizer: bool = False
    intent: Intent | None = None
    look_again: bool = False

    @property
    def acts_on_kafka(self) -> bool:
        return any((self.create, self.expand, self.alter, self.delete_id is not None))


def plan_topic(topic: KafkaTopic, facts: TopicFacts) -> TopicPlan:
    """The next actions for one topic."""
    if topic.meta.deleting:
        return _plan_deletion(topic, facts)
    waits = _reason_to_wait(topic, facts)
    if waits is not None:
        return TopicPlan(waits, _kept_status(topic))
    if facts.rival is not None:
        return _plan_duplicate(topic, facts.rival)
    finalizer = topic.spec.deletion_policy is DeletionPolicy.DELETE
    if finalizer and not topic.meta.finalized:
        return TopicPlan(TOPIC["Creating"].says(), _kept_status(topic), add_finalizer=True)
    plan = _plan_creation(topic) if facts.view is None else _plan_existing(topic, facts, facts.view)
    if topic.meta.finalized and not finalizer:
        plan = replace(plan, remove_finalizer=True)
    return plan


def _kept_status(topic: KafkaTopic) -> TopicStatus:
    """What stays in the status while nothing new is known."""
    old = topic.status
    return TopicStatus(
        topic.meta.generation,
        topic.topic,
        old.topic_id,
        old.partitions,
        old.replicas,
        old.managed_config,
        old.reassignment,
    )


def _reason_to_wait(topic: KafkaTopic, facts: TopicFacts) -> Verdict | None:
    name = topic.spec.cluster_ref.name
    if topic.meta.paused:
        return SHARED["Paused"].says()
    if not facts.cluster_found:
        return SHARED["ClusterNotFound"].says(cluster=name)
    if facts.unreachable is not None:
        return SHARED["ClusterUnreachable"].says(
            cluster=name, since=facts.unreachable.since, error=facts.unreachable.error
        )
    if facts.rival is None and facts.view is None and not facts.missing:
        return topic_error(facts.error or "", "the topic could not be read")
    return None


def _plan_duplicate(topic: KafkaTopic, rival: KafkaTopic) -> TopicPlan:
    # The id is kept so that this object can take the topic over when the older one goes, whatever its adoptionPolicy.
    status = TopicStatus(topic.meta.generation, topic.topic, rival.status.topic_id)
    verdict = TOPIC["Duplicate"].says(other=rival.meta.name, topic=topic.topic)
    return TopicPlan(verdict, status, remove_finalizer=topic.meta.finalized)


def _plan_creation(topic: KafkaTopic) -> TopicPlan:
    spec = topic.spec
    create = CreateTopic(
        topic.topic, spec.partitions or -1, spec.replicas or -1, spec.replica_assignment, dict(spec.config)
    )
    intent = Intent(topic.topic, create=True, config=tuple(sorted(spec.config)), former=topic.status.topic_id)
    return TopicPlan(TOPIC["Creating"].says(), _kept_status(topic), create=create, intent=intent)


def _plan_existing(topic: KafkaTopic, facts: TopicFacts, view: TopicView) -> TopicPlan:
    refused = _refuse_foreign(topic, facts, view)
    if refused is not None:
        return TopicPlan(refused, _kept_status(topic))
    managed = _managed_keys(topic, facts)
    alter = _config_change(topic, facts, managed)
    status = TopicStatus(
        observed_generation=topic.meta.generation,
        topic_name=topic.topic,
        topic_id=view.id,
        partitions=len(view.partitions),
        replicas=view.replication_factor,
        managed_config=tuple(sorted({*topic.spec.config, *(managed if alter else ())})),
    )
    new_keys = set(topic.spec.config) - set(topic.status.managed_config)
    intent = Intent(topic.topic, config=tuple(sorted(new_keys))) if alter and new_keys else None
    plan = _plan_shape(topic, facts, view, TopicPlan(TOPIC["Ready"].says(), status, alter=alter, intent=intent))
    if alter and plan.verdict.reason == "Ready":
        plan = replace(plan, verdict=TOPIC["Changing"].says())
    # The topic may have been deleted a moment ago: then the next look finds it missing.
    if facts.config_error is not None and plan.verdict.reason == "Ready":
        verdict = topic_error(facts.config_error, "the configuration could not be read")
        plan = replace(plan, verdict=verdict, look_again=not verdict.stalled)
    if plan.verdict.reason == "Ready" and 0 < view.replication_factor < (facts.min_insync or 0):
        verdict = TOPIC["TooFewReplicas"].says(
            found=counted(view.replication_factor, "replica"), wanted=facts.min_insync
        )
        plan = replace(plan, verdict=verdict)
    return plan


def _refuse_foreign(topic: KafkaTopic, facts: TopicFacts, view: TopicView) -> Verdict | None:
    """Why the topic is not ours to change, if it is not."""
    known, adopts = topic.status.topic_id, topic.spec.adoption_policy is AdoptionPolicy.ADOPT
    if adopts or known == view.id or _creation_untold(topic, facts):
        return None
    if known is None:
        return TOPIC["TopicExists"].says(topic=topic.topic)
    return TOPIC["TopicReplaced"].says(topic=topic.topic, found=view.id, expected=known)


def _creation_untold(topic: KafkaTopic, facts: TopicFacts) -> bool:
    """Whether a topic with another id than the status has may be the one that we were about to create."""
    return is_begun(topic, facts.intent)


def is_begun(topic: KafkaTopic, intent: Intent | None) -> bool:
    """Whether the topic was to be created, and the status does not have the outcome yet."""
    return (
        intent is not None and intent.create and intent.topic == topic.topic and intent.former == topic.status.topic_id
    )


def _managed_keys(topic: KafkaTopic, facts: TopicFacts) -> frozenset[str]:
    intended = facts.intent.config if facts.intent else ()
    return frozenset(topic.status.managed_config) | frozenset(intended)


def _config_change(topic: KafkaTopic, facts: TopicFacts, managed: frozenset[str]) -> AlterConfig | None:
    if facts.config is None:
        return None
    wanted = {key: value for key, value in topic.spec.config.items() if key not in THROTTLED_REPLICAS}
    values: dict[str, str | None] = {
        key: value for key, value in wanted.items() if not same_setting(value, facts.config.get(key))
    }
    removable = facts.config.keys() if topic.spec.config_policy is ConfigPolicy.EXACT else managed & facts.config.keys()
    values |= dict.fromkeys(sorted(removable - wanted.keys() - THROTTLED_REPLICAS))
    return AlterConfig(TOPIC_RESOURCE, topic.topic, values) if values else None


def same_setting(wanted: str, found: str | None) -> bool:
    """Whether Kafka has what is wanted: it reports values as it parsed them, `0.5` for `0.50`."""
    return wanted == found or (found is not None and _understood(wanted) == _understood(found))


def _understood(text: str) -> list[str | Decimal]:
    parts = (part.strip() for part in text.split(","))
    return [
        Decimal(part) if NUMBER.fullmatch(part) else part.lower() if part.lower() in ("true", "false") else part
        for part in parts
    ]


def wanted_config_keys(topic: KafkaTopic, intent: Intent | None) -> tuple[str, ...] | None:
    """Which configurations have to be read to plan: all (None) or these."""
    if topic.spec.config_policy is ConfigPolicy.EXACT:
        return None
    intended = intent.config if intent else ()
    return tuple(sorted({*topic.spec.config, *topic.status.managed_config, *intended}))


def _plan_shape(topic: KafkaTopic, facts: TopicFacts, view: TopicView, plan: TopicPlan) -> TopicPlan:
    """Partitions and replicas."""
    spec, found = topic.spec, len(view.partitions)
    wanted = spec.partitions or len(spec.replica_assignment) or found
    if facts.ongoing or facts.moved_by:
        return _wait_for_moves(topic, facts, view, plan, wanted)
    if found > wanted:
        return replace(plan, verdict=TOPIC["PartitionsAboveSpec"].says(found=found, wanted=wanted))
    if found < wanted:
        expand = ExpandTopic(topic.topic, wanted, spec.replica_assignment[found:wanted])
        return replace(plan, verdict=TOPIC["Changing"].says(), expand=expand)
    target = _reassignment_spec(topic, facts, view)
    if target is not None:
        return _without_brokers(topic, facts, view, plan) or _plan_reassignment(topic, facts, plan, target)
    own = facts.reassignment
    if own is not None and own.status.phase in STOPPED and not own.meta.deleting:
        # The stopped one is not needed any more, and would be in the way once the same is wanted again.
        plan = replace(plan, replace_reassignment=own.meta.name)
    offline = [str(index) for index, part in sorted(view.partitions.items()) if part.leader < 0]
    if offline:
        return replace(plan, verdict=TOPIC["PartitionsOffline"].says(partitions=some_of(offline, SHOWN_PARTITIONS)))
    return plan


def _wait_for_moves(topic: KafkaTopic, facts: TopicFacts, view: TopicView, plan: TopicPlan, wanted: int) -> TopicPlan:
    """While replicas move, nothing else is changed; a topic that needs nothing else stays Ready."""
    own = facts.reassignment
    at_it = own is not None and own.status.phase not in (*ENDS, Phase.STALE)
    if at_it and _reassignment_spec(topic, facts, view) is not None:
        return _plan_reassignment(topic, facts, plan, _reassignment_spec(topic, facts, view) or {})
    if len(view.partitions) == wanted and _reassignment_spec(topic, facts, view) is None:
        return plan
    by = f" by Reassignment {facts.moved_by}" if facts.moved_by else ""
    return replace(plan, verdict=TOPIC["ReassignmentInProgress"].says(by=by))


def _reassignment_spec(topic: KafkaTopic, facts: TopicFacts, view: TopicView) -> dict[str, Any] | None:
    """The Reassignment that brings existing partitions to the spec, if they are not there."""
    spec = topic.spec
    if spec.replica_assignment:
        rows = [
            {"topic": topic.topic, "partition": index, "replicas": list(row)}
            for index, row in enumerate(spec.replica_assignment)
            if index in view.partitions and _final_replicas(facts, view, index) != row
        ]
        return {"partitions": rows[:MAX_ROWS]} if rows else None
    if spec.replicas is None:
        return None
    if all(len(_final_replicas(facts, view, index)) == spec.replicas for index in view.partitions):
        return None
    return {"replicationFactor": [{"topic": topic.topic, "replicas": spec.replicas}]}


def needs_brokers(topic: KafkaTopic, view: TopicView) -> bool:
    """Whether it matters which brokers are registered: some are to get a replica."""
    more = (len(part.replicas) < (topic.spec.replicas or 0) for part in view.partitions.values())
    return bool(_arriving(topic, view)) or (not topic.spec.replica_assignment and any(more))


def _arriving(topic: KafkaTopic, view: TopicView) -> set[int]:
    """Brokers that the spec names for a partition of which they have no replica."""
    found: set[int] = set()
    for index, row in enumerate(topic.spec.replica_assignment):
        if index in view.partitions:
            found |= set(row).difference(view.partitions[index].replicas)
    return found


def _without_brokers(topic: KafkaTopic, facts: TopicFacts, view: TopicView, plan: TopicPlan) -> TopicPlan | None:
    """If brokers that the spec asks for do not exist, nothing is moved; it goes on when they come."""
    own, wanted = facts.reassignment, topic.spec.replicas or 0
    if facts.brokers is None or not needs_brokers(topic, view) or (own is not None and own.status.phase not in ENDS):
        return None
    missing = sorted(_arriving(topic, view) - facts.brokers)
    if missing:
        verdict = TOPIC["InvalidReplicaAssignment"].says(error=f"brokers {missing} are not registered.")
    elif not topic.spec.replica_assignment and wanted > len(facts.brokers):
        error = f"{wanted} replicas need as many brokers; registered: {len(facts.brokers)}."
        verdict = TOPIC["InvalidReplicationFactor"].says(error=error)
    else:
        return None
    failed = own is not None and own.status.phase is Phase.FAILED and not own.meta.deleting
    return replace(plan, verdict=verdict, replace_reassignment=own.meta.name if own is not None and failed else None)


def _final_replicas(facts: TopicFacts, view: TopicView, index: int) -> tuple[int, ...]:
    # While a partition moves, its replicas are those of source and target together; the target counts.
    ongoing = facts.ongoing.get(index)
    return ongoing.target if ongoing else view.partitions[index].replicas


def reassignment_name(topic: KafkaTopic, target: Mapping[str, Any]) -> str:
    """The same target has the same name, so an operator that was killed finds what it created."""
    digest = hashlib.sha256(json.dumps([topic.meta.uid, target], sort_keys=True).encode()).hexdigest()
    return f"{shortened(topic.meta.name)}-{digest[:8]}"


def _plan_reassignment(topic: KafkaTopic, facts: TopicFacts, plan: TopicPlan, target: Mapping[str, Any]) -> TopicPlan:
    name = reassignment_name(topic, target)
    plan = replace(plan, status=replace(plan.status, reassignment=name), verdict=TOPIC["Reassigning"].says(name=name))
    own = facts.reassignment
    if own is None or own.meta.name != name:
        return replace(plan, reassign=_owned_reassignment(topic, facts, name, target))
    if own.stopped:
        return replace(plan, verdict=TOPIC["ReassignmentStopped"].says(name=name))
    if own.status.phase is Phase.FAILED and not facts.worth_another:
        error = why_it_failed(own.status.conditions) or "see there"
        return replace(plan, verdict=TOPIC["ReassignmentFailed"].says(name=name, error=error))
    if (own.status.phase in (*ENDS, Phase.STALE) or without_place(own)) and not own.meta.deleting:
        # It ended, yet the topic differs: it has drifted since then, or since the planning; or the plan's destination
        # is gone by now; or the cause of the failure is. A new one takes its place.
        return replace(plan, replace_reassignment=name)
    return plan


def _owned_reassignment(topic: KafkaTopic, facts: TopicFacts, name: str, target: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "clusterRef": {"name": topic.spec.cluster_ref.name},
        "approval": "Automatic",
        "ttlSecondsAfterFinished": OWNED_REASSIGNMENT_TTL_SECONDS,
        **target,
    }
    if facts.throttle is not None:
        spec["throttle"] = write(facts.throttle)
    return {"name": name, "spec": spec}


def _plan_deletion(topic: KafkaTopic, facts: TopicFacts) -> TopicPlan:
    """The object goes; the topic goes with it only if it is surely ours and no other object describes it."""
    status = _kept_status(topic)
    gone = TopicPlan(TOPIC["Deleting"].says(), status, remove_finalizer=topic.meta.finalized)
    if not topic.meta.finalized or topic.spec.deletion_policy is DeletionPolicy.RETAIN:
        return gone
    if not facts.cluster_found or facts.rival is not None or facts.others:
        return gone
    if topic.status.topic_id is None and not (facts.intent and facts.intent.create):
        return gone
    waits = _reason_to_wait(topic, facts)
    if waits is not None:
        return TopicPlan(waits, status)
    if facts.deleted:
        return gone
    ours = topic.status.topic_id
    if facts.view is None and ours is not None and ours != NO_ID:
        # A broker that lags may not know of it yet: the controller does.
        return TopicPlan(TOPIC["Deleting"].says(), status, delete_id=ours)
    if facts.view is None:
        may_come = facts.creation_may_come and ours is None
        return TopicPlan(TOPIC["Deleting"].says(), status, look_again=True) if may_come else gone
    if ours is not None and ours != facts.view.id and not _creation_untold(topic, facts):
        return gone
    return TopicPlan(TOPIC["Deleting"].says(), status, delete_id=facts.view.id)


def of_deletion(topic: KafkaTopic, verdict: Verdict) -> Verdict:
    """The verdict to report: if the deletion waits for something, it says how the object can go all the same."""
    if not topic.meta.deleting or verdict.reason == "Deleting":
        return verdict
    return TOPIC["DeletionWaits"].says(error=verdict.message)._replace(stalled=verdict.stalled)


_ERRORS: Mapping[str, str] = {
    "INVALID_CONFIG": "InvalidConfig",
    "INVALID_REPLICATION_FACTOR": "InvalidReplicationFactor",
    "INVALID_REPLICA_ASSIGNMENT": "InvalidReplicaAssignment",
    "INVALID_PARTITIONS": "InvalidTopic",
    "INVALID_TOPIC_EXCEPTION": "InvalidTopic",
    "INVALID_REQUEST": "InvalidTopic",
    "POLICY_VIOLATION": "PolicyViolation",
    "TOPIC_AUTHORIZATION_FAILED": "NotAuthorized",
    "CLUSTER_AUTHORIZATION_FAILED": "NotAuthorized",
}


def refused(error: str | None) -> bool:
    """Whether Kafka has rejected the request for good, so that nothing was done and nothing will be."""
    return error in _ERRORS


def topic_error(error: str, message: str) -> Verdict:
    """What an error of Kafka means for a topic's condition."""
    if error == "REASSIGNMENT_IN_PROGRESS":
        return TOPIC["ReassignmentInProgress"].says(by="")
    text = f"{error}: {message}" if message else error
    return TOPIC[_ERRORS.get(error, "KafkaError")].says(error=text if text.endswith(".") else text + ".")
