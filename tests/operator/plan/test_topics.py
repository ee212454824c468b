"""What is planned for one KafkaTopic, from its spec and what was observed."""

import re
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.operator.making import NOW, TOPIC_ID, reassignment, topic, topic_view

from ballast_operator.apply.kubernetes import KubernetesApi
from ballast_operator.events import Events
from ballast_operator.model.kafka import OngoingView
from ballast_operator.model.meta import FINALIZER, shortened
from ballast_operator.plan.topics import (
    Intent,
    TopicFacts,
    Unreachable,
    needs_brokers,
    of_deletion,
    plan_topic,
    reassignment_name,
    topic_error,
    wanted_config_keys,
)

MISSING = TopicFacts(missing=True, config={})
THREE = TopicFacts(view=topic_view((0, 1), (1, 2), (2, 0)), config={})
OURS = {"topicId": TOPIC_ID}
GONE = {"deletionTimestamp": NOW, "finalizers": [FINALIZER]}


@pytest.mark.spec("OPR-21")
def test_a_topic_that_is_missing_is_created_as_the_spec_says_and_the_intention_is_kept() -> None:
    plan = plan_topic(topic(partitions=3, replicas=2, config={"retention.ms": 1}), MISSING)
    assert plan.create is not None
    assert (plan.create.partitions, plan.create.replicas, plan.create.config) == (3, 2, {"retention.ms": "1"})
    assert plan.intent == Intent("orders", create=True, config=("retention.ms",))
    assert plan.verdict.reason == "Creating"


@pytest.mark.spec("OPR-20")
def test_numbers_that_are_not_given_are_left_to_the_cluster() -> None:
    plan = plan_topic(topic(), MISSING)
    assert plan.create is not None
    assert (plan.create.partitions, plan.create.replicas) == (-1, -1)
    assert plan_topic(topic(status=OURS), THREE).verdict.reason == "Ready"


@pytest.mark.spec("OPR-08")
def test_a_topic_that_could_not_be_read_is_neither_created_nor_deleted() -> None:
    unread = TopicFacts(error="TOPIC_AUTHORIZATION_FAILED")
    assert plan_topic(topic(partitions=3), unread).create is None
    deleting = plan_topic(topic(status=OURS, meta=GONE, deletionPolicy="Delete"), unread)
    assert deleting.delete_id is None
    assert not deleting.remove_finalizer


@pytest.mark.spec("OPR-20")
def test_a_topic_that_existed_before_is_left_alone_unless_the_spec_adopts_it() -> None:
    refused = plan_topic(topic(partitions=6), THREE)
    assert refused.verdict.reason == "TopicExists"
    assert not refused.acts_on_kafka
    adopted = plan_topic(topic(partitions=6, adoptionPolicy="Adopt"), THREE)
    assert adopted.expand is not None
    assert adopted.status.topic_id == TOPIC_ID


@pytest.mark.spec("OPR-04")
def test_a_topic_that_we_created_before_we_could_say_so_is_ours() -> None:
    killed = replace(THREE, intent=Intent("orders", create=True))
    assert plan_topic(topic(partitions=3), killed).verdict.reason == "Ready"
    other_name = replace(THREE, intent=Intent("other", create=True))
    assert plan_topic(topic(partitions=3), other_name).verdict.reason == "TopicExists"


@pytest.mark.spec("OPR-04", "OPR-08")
def test_what_was_made_anew_is_ours_until_that_is_told_and_what_somebody_makes_after_that_is_not() -> None:
    lost = topic(partitions=3, status={"topicId": "former"})
    anew = plan_topic(lost, MISSING).intent
    assert anew is not None
    assert plan_topic(lost, replace(THREE, intent=anew)).verdict.reason == "Ready"
    going = topic(partitions=3, status={"topicId": "former"}, meta=GONE, deletionPolicy="Delete")
    assert plan_topic(going, replace(THREE, intent=anew)).delete_id == TOPIC_ID
    told = topic(partitions=3, status={"topicId": "11111111-ab5f-4d0a-a08b-0d2ab0ee0a11"})
    assert plan_topic(told, replace(THREE, intent=anew)).verdict.reason == "TopicReplaced"


@pytest.mark.spec("OPR-20", "OPR-21")
def test_a_broker_that_has_not_heard_of_a_topic_does_not_save_it() -> None:
    """It would stay for ever, with its object gone: only the controller knows that there is none of its id."""
    going = topic(status=OURS, meta=GONE, deletionPolicy="Delete")
    unheard = plan_topic(going, MISSING)
    assert (unheard.delete_id, unheard.remove_finalizer) == (TOPIC_ID, False)
    for seen in (MISSING, THREE):
        told = plan_topic(going, replace(seen, deleted=True))
        assert (told.delete_id, told.remove_finalizer) == (None, True)
    nameless = topic(status={"topicId": "00000000-0000-0000-0000-000000000000"}, meta=GONE, deletionPolicy="Delete")
    assert plan_topic(nameless, MISSING).remove_finalizer, "by its name it could be anybody's"


@pytest.mark.spec("OPR-04", "OPR-08")
def test_a_creation_that_may_still_come_holds_the_deletion() -> None:
    asked = replace(MISSING, intent=Intent("orders", create=True), creation_may_come=True)
    going = topic(meta=GONE, deletionPolicy="Delete")
    held = plan_topic(going, asked)
    assert (held.remove_finalizer, held.delete_id, held.look_again) == (False, None, True)
    assert plan_topic(going, replace(asked, creation_may_come=False)).remove_finalizer
    known = topic(status=OURS, meta=GONE, deletionPolicy="Delete")
    assert (plan_topic(known, asked).remove_finalizer, plan_topic(known, asked).delete_id) == (False, TOPIC_ID)
    assert plan_topic(known, replace(asked, deleted=True)).remove_finalizer, "the controller knows of none"
    came = replace(THREE, intent=Intent("orders", create=True), creation_may_come=True)
    assert plan_topic(going, came).delete_id == TOPIC_ID


@pytest.mark.spec("OPR-08")
def test_a_topic_made_anew_by_somebody_else_is_not_ours() -> None:
    replaced = plan_topic(topic(partitions=6, status={"topicId": "11111111-ab5f-4d0a-a08b-0d2ab0ee0a11"}), THREE)
    assert replaced.verdict.reason == "TopicReplaced"
    assert not replaced.acts_on_kafka


@pytest.mark.spec("TOP-01")
@pytest.mark.spec("OPR-21")
def test_more_partitions_are_an_expansion_with_the_rows_of_the_new_ones_only() -> None:
    rows = [[0, 1], [1, 2], [2, 0], [0, 2], [1, 0]]
    plan = plan_topic(topic(status=OURS, partitions=5, replicaAssignment=rows), THREE)
    assert plan.expand is not None
    assert (plan.expand.partitions, plan.expand.assignment) == (5, ((0, 2), (1, 0)))


@pytest.mark.spec("OPR-22")
def test_more_partitions_than_the_spec_are_a_condition_and_nothing_is_lost() -> None:
    plan = plan_topic(topic(status=OURS, partitions=2), THREE)
    assert plan.verdict.reason == "PartitionsAboveSpec"
    assert plan.verdict.stalled
    assert "set spec.partitions to 3" in plan.verdict.message
    assert not plan.acts_on_kafka


@pytest.mark.spec("TOP-03")
@pytest.mark.spec("OPR-23")
def test_another_row_for_an_existing_partition_is_a_reassignment() -> None:
    plan = plan_topic(topic(status=OURS, replicaAssignment=[[0, 1], [2, 1], [2, 0]]), THREE)
    assert plan.reassign is not None
    assert plan.reassign["spec"]["partitions"] == [{"topic": "orders", "partition": 1, "replicas": [2, 1]}]
    assert plan.verdict.reason == "Reassigning"


@pytest.mark.spec("OPR-23")
def test_another_replication_factor_is_a_reassignment_with_a_name_that_is_found_again() -> None:
    subject = topic(status=OURS, replicas=3)
    plan = plan_topic(subject, THREE)
    assert plan.reassign is not None
    name = reassignment_name(subject, {"replicationFactor": [{"topic": "orders", "replicas": 3}]})
    assert plan.reassign["name"] == name
    again = plan_topic(subject, replace(THREE, reassignment=reassignment(name, status={"phase": "Running"})))
    assert again.reassign is None
    assert again.verdict.reason == "Reassigning"


@pytest.mark.spec("OPR-23")
def test_a_reassignment_that_failed_is_told_and_repeated_once_that_would_come_to_something() -> None:
    subject = topic(status=OURS, replicas=3)
    name = str(plan_topic(subject, THREE).status.reassignment)
    failed = replace(THREE, reassignment=reassignment(name, status={"phase": "Failed"}))
    plan = plan_topic(subject, failed)
    assert plan.verdict.reason == "ReassignmentFailed"
    assert plan.reassign is None
    assert plan.replace_reassignment is None
    assert plan_topic(subject, replace(failed, worth_another=True)).replace_reassignment == name


@pytest.mark.spec("OPR-23")
@pytest.mark.parametrize(("phase", "spec"), [("Cancelled", {}), ("RolledBack", {}), ("Failed", {"rollback": True})])
def test_what_a_person_has_stopped_is_not_repeated_and_is_no_hindrance_later(phase: str, spec: dict[str, Any]) -> None:
    subject = topic(status=OURS, replicas=3)
    name = str(plan_topic(subject, THREE).status.reassignment)
    stopped = replace(THREE, reassignment=reassignment(name, status={"phase": phase}, **spec), worth_another=True)
    plan = plan_topic(subject, stopped)
    assert (plan.verdict.reason, plan.verdict.stalled) == ("ReassignmentStopped", True)
    assert (plan.reassign, plan.replace_reassignment) == (None, None)
    served = plan_topic(topic(status=OURS, replicas=2), stopped)
    assert served.verdict.reason == "Ready"
    assert served.replace_reassignment == (None if phase == "Failed" else name)
    going = reassignment(name, status={"phase": phase}, meta=GONE)
    assert plan_topic(topic(status=OURS, replicas=2), replace(THREE, reassignment=going)).replace_reassignment is None


@pytest.mark.spec("OPR-23")
def test_one_that_others_moves_made_stale_is_planned_anew_when_these_have_ended() -> None:
    subject = topic(status=OURS, replicas=3)
    name = str(plan_topic(subject, THREE).status.reassignment)
    stale = replace(THREE, reassignment=reassignment(name, status={"phase": "Stale"}))
    assert plan_topic(subject, stale).replace_reassignment == name
    waits = plan_topic(subject, replace(stale, ongoing={0: OngoingView((0, 1, 2), (2,), (1,))}))
    assert (waits.verdict.reason, waits.replace_reassignment) == ("ReassignmentInProgress", None)


@pytest.mark.spec("OPR-04")
@pytest.mark.spec("OPR-23")
@pytest.mark.parametrize(
    ("spec", "reason", "said"),
    [
        ({"replicas": 4}, "InvalidReplicationFactor", "4 replicas need as many brokers; registered: 3"),
        ({"replicaAssignment": [[0, 1], [1, 2], [2, 3]]}, "InvalidReplicaAssignment", "brokers [3] are not registered"),
    ],
)
def test_nothing_is_moved_before_the_brokers_are_there_and_then_it_is(
    spec: dict[str, Any], reason: str, said: str
) -> None:
    """A Reassignment moved what it could and failed, and the topic stayed so for an hour after the brokers had come."""
    subject = topic(status=OURS, partitions=3, **spec)
    assert THREE.view is not None
    assert needs_brokers(subject, THREE.view)
    assert not needs_brokers(topic(status=OURS, replicas=1), THREE.view)
    few, more = (replace(THREE, brokers=frozenset(range(count))) for count in (3, 4))
    plan = plan_topic(subject, few)
    assert (plan.verdict.reason, plan.verdict.stalled, plan.reassign) == (reason, True, None)
    assert said in plan.verdict.message
    started = plan_topic(subject, more)
    assert started.reassign is not None
    failed = reassignment(started.reassign["name"], status={"phase": "Failed"})
    again = plan_topic(subject, replace(few, reassignment=failed))
    assert (again.verdict.reason, again.replace_reassignment) == (reason, failed.meta.name)
    running = reassignment(started.reassign["name"], status={"phase": "Running"})
    assert plan_topic(subject, replace(few, reassignment=running)).verdict.reason == "Reassigning"


@pytest.mark.spec("OPR-23")
def test_drift_after_a_reassignment_that_succeeded_gets_another_one() -> None:
    subject = topic(status=OURS, replicas=3)
    name = str(plan_topic(subject, THREE).status.reassignment)
    plan = plan_topic(subject, replace(THREE, reassignment=reassignment(name, status={"phase": "Succeeded"})))
    assert plan.replace_reassignment == name
    told = {"type": "Ready", "status": "False", "reason": "DirectoriesClosed", "message": "", "lastTransitionTime": NOW}
    nowhere = {"phase": "Waiting", "conditions": [told]}
    plan = plan_topic(subject, replace(THREE, reassignment=reassignment(name, status=nowhere)))
    assert plan.replace_reassignment == name, "so does one whose plan leads to what is gone"


@pytest.mark.spec("OPR-23")
def test_nobody_fights_a_reassignment_in_progress() -> None:
    moving = replace(THREE, ongoing={0: OngoingView((0, 1, 2), (2,), (1,))})
    plan = plan_topic(topic(status=OURS, partitions=6, replicas=3), moving)
    assert plan.verdict.reason == "ReassignmentInProgress"
    assert plan.expand is None
    assert plan.reassign is None
    between_waves = replace(THREE, moved_by="nightly")
    assert "nightly" in plan_topic(topic(status=OURS, replicas=3), between_waves).verdict.message


@pytest.mark.spec("OPR-23")
def test_a_reassignment_to_where_the_spec_wants_it_leaves_the_topic_ready() -> None:
    moving = replace(THREE, ongoing={0: OngoingView((0, 1, 2), (2,), (1,))})
    assert plan_topic(topic(status=OURS, partitions=3, replicas=2), moving).verdict.reason == "Ready"


@pytest.mark.spec("OPR-20")
def test_merge_removes_only_what_this_object_once_set() -> None:
    found = replace(THREE, config={"retention.ms": "5", "max.message.bytes": "9", "cleanup.policy": "delete"})
    status = {**OURS, "managedConfig": ["retention.ms", "cleanup.policy"]}
    plan = plan_topic(topic(status=status, config={"cleanup.policy": "compact"}), found)
    assert plan.alter is not None
    assert plan.alter.values == {"cleanup.policy": "compact", "retention.ms": None}


@pytest.mark.spec("OPR-20")
def test_exact_removes_everything_that_is_not_named_but_no_throttled_replicas() -> None:
    throttled = "leader.replication.throttled.replicas"
    found = replace(THREE, config={"retention.ms": "5", throttled: "0:1"})
    plan = plan_topic(topic(status=OURS, configPolicy="Exact"), found)
    assert plan.alter is not None
    assert plan.alter.values == {"retention.ms": None}


@pytest.mark.spec("OPR-21")
def test_throttled_replicas_are_never_drift() -> None:
    throttled = {"follower.replication.throttled.replicas": "0:1"}
    subject = topic(
        status={**OURS, "managedConfig": list(throttled)}, config={"follower.replication.throttled.replicas": "*"}
    )
    assert plan_topic(subject, replace(THREE, config=throttled)).alter is None


@pytest.mark.spec("OPR-21")
def test_configurations_that_drifted_are_put_back() -> None:
    subject = topic(status={**OURS, "managedConfig": ["retention.ms"]}, config={"retention.ms": 7})
    plan = plan_topic(subject, replace(THREE, config={"retention.ms": "8"}))
    assert plan.alter is not None
    assert plan.alter.values == {"retention.ms": "7"}
    assert plan.intent is None


@pytest.mark.spec("OPR-04")
def test_keys_that_were_set_before_the_status_could_say_so_are_managed() -> None:
    subject = topic(status=OURS)
    killed = replace(THREE, config={"retention.ms": "8"}, intent=Intent("orders", config=("retention.ms",)))
    plan = plan_topic(subject, killed)
    assert plan.alter is not None
    assert plan.alter.values == {"retention.ms": None}


@pytest.mark.spec("OPR-08")
def test_configurations_that_could_not_be_read_are_not_changed() -> None:
    assert plan_topic(topic(status=OURS, config={"retention.ms": 7}), replace(THREE, config=None)).alter is None


@pytest.mark.spec("OPR-05")
def test_only_configurations_that_matter_are_read() -> None:
    assert wanted_config_keys(topic(), None) == ()
    assert wanted_config_keys(topic(config={"b": "1"}, status={"managedConfig": ["a"]}), None) == ("a", "b")
    assert wanted_config_keys(topic(configPolicy="Exact"), None) is None


@pytest.mark.spec("OPR-24")
def test_the_younger_of_two_says_who_is_older_and_keeps_the_id_to_take_over_with() -> None:
    older = topic("first", status=OURS)
    plan = plan_topic(topic("second", partitions=9), replace(THREE, rival=older))
    assert plan.verdict.reason == "Duplicate"
    assert "first" in plan.verdict.message
    assert not plan.acts_on_kafka
    heir = topic("second", status={"topicId": plan.status.topic_id}, partitions=3)
    assert plan_topic(heir, THREE).verdict.reason == "Ready"


@pytest.mark.spec("OPR-24")
def test_a_topic_that_somebody_else_describes_is_not_deleted_with_the_older_object() -> None:
    plan = plan_topic(topic(status=OURS, meta=GONE, deletionPolicy="Delete"), replace(THREE, others=True))
    assert plan.delete_id is None
    assert plan.remove_finalizer


@pytest.mark.spec("OPR-20")
def test_deletion_by_policy_takes_exactly_the_topic_that_is_ours() -> None:
    assert plan_topic(topic(status=OURS, meta=GONE, deletionPolicy="Delete"), THREE).delete_id == TOPIC_ID
    retained = plan_topic(topic(status=OURS, meta=GONE), THREE)
    assert retained.delete_id is None
    assert retained.remove_finalizer


@pytest.mark.spec("OPR-08")
@pytest.mark.parametrize("status", [{}, {"topicId": "22222222-ab5f-4d0a-a08b-0d2ab0ee0a11"}])
def test_a_topic_that_is_not_surely_ours_survives_its_object(status: dict[str, str]) -> None:
    plan = plan_topic(topic(status=status, meta=GONE, deletionPolicy="Delete"), THREE)
    assert plan.delete_id is None
    assert plan.remove_finalizer


@pytest.mark.spec("OPR-25")
def test_an_unreachable_cluster_is_unknown_with_the_time_since_and_holds_the_deletion() -> None:
    lost = TopicFacts(unreachable=Unreachable(NOW, "refused."))
    plan = plan_topic(topic(status=OURS, meta=GONE, deletionPolicy="Delete"), lost)
    assert (plan.verdict.reason, plan.verdict.ready) == ("ClusterUnreachable", "Unknown")
    assert NOW in plan.verdict.message
    assert not plan.remove_finalizer


@pytest.mark.spec("OPR-25")
def test_who_waits_to_be_deleted_is_told_how_to_go_without_the_topic_and_goes_then() -> None:
    """It stayed Terminating, with nothing said but that the cluster does not answer."""
    going = topic(status=OURS, meta=GONE, deletionPolicy="Delete")
    lost = TopicFacts(unreachable=Unreachable(NOW, "refused."))
    said = of_deletion(going, plan_topic(going, lost).verdict)
    assert (said.reason, said.ready, said.stalled) == ("DeletionWaits", "Unknown", False)
    assert f"not answered since {NOW}: refused." in said.message
    assert said.message.endswith("set spec.deletionPolicy to Retain.")
    denied = of_deletion(going, plan_topic(going, TopicFacts(error="TOPIC_AUTHORIZATION_FAILED")).verdict)
    assert (denied.reason, denied.stalled) == ("DeletionWaits", True)
    assert of_deletion(going, plan_topic(going, THREE).verdict).reason == "Deleting"
    assert plan_topic(topic(status=OURS, meta=GONE), lost).remove_finalizer
    staying = topic(status=OURS, deletionPolicy="Delete")
    assert of_deletion(staying, plan_topic(staying, lost).verdict).reason == "ClusterUnreachable"


def test_a_topic_with_fewer_replicas_than_are_to_be_in_sync_is_ready_and_says_so() -> None:
    known = topic(status=OURS)
    for least, reason in ((None, "Ready"), (2, "Ready"), (3, "TooFewReplicas")):
        verdict = plan_topic(known, replace(THREE, min_insync=least)).verdict
        assert (verdict.reason, verdict.ready, verdict.stalled) == (reason, "True", False)
    assert "has 2 replicas and min.insync.replicas is 3" in verdict.message
    other = plan_topic(topic(status=OURS, partitions=2), replace(THREE, min_insync=3))
    assert other.verdict.reason == "PartitionsAboveSpec"


@pytest.mark.spec("OPR-25")
def test_a_cluster_that_does_not_exist_holds_no_deletion() -> None:
    nowhere = TopicFacts(cluster_found=False, unreachable=Unreachable("", ""))
    assert plan_topic(topic(status=OURS, meta=GONE, deletionPolicy="Delete"), nowhere).remove_finalizer
    assert plan_topic(topic(status=OURS), nowhere).verdict.reason == "ClusterNotFound"


def test_a_topic_to_be_deleted_with_its_object_gets_a_finalizer_before_it_is_created() -> None:
    first = plan_topic(topic(deletionPolicy="Delete"), MISSING)
    assert first.add_finalizer
    assert first.create is None
    second = plan_topic(topic(deletionPolicy="Delete", meta={"finalizers": [FINALIZER]}), MISSING)
    assert second.create is not None
    back = plan_topic(topic(status=OURS, meta={"finalizers": [FINALIZER]}), THREE)
    assert back.remove_finalizer


@pytest.mark.spec("OPR-20")
def test_a_paused_topic_is_left_alone() -> None:
    plan = plan_topic(topic(status=OURS, partitions=9, meta={"annotations": {"ballast.dev/paused": "true"}}), THREE)
    assert plan.verdict.reason == "Paused"
    assert not plan.acts_on_kafka


def test_partitions_without_a_leader_are_named() -> None:
    lost = topic_view((0, 1), (1, 2))
    parts = {index: part._replace(leader=-1) if index == 1 else part for index, part in lost.partitions.items()}
    plan = plan_topic(topic(status=OURS), TopicFacts(view=lost._replace(partitions=parts), config={}))
    assert plan.verdict.reason == "PartitionsOffline"
    assert "1" in plan.verdict.message


@pytest.mark.parametrize(
    ("error", "reason", "stalled"),
    [
        ("INVALID_CONFIG", "InvalidConfig", True),
        ("INVALID_REPLICATION_FACTOR", "InvalidReplicationFactor", True),
        ("INVALID_REPLICA_ASSIGNMENT", "InvalidReplicaAssignment", True),
        ("INVALID_TOPIC_EXCEPTION", "InvalidTopic", True),
        ("POLICY_VIOLATION", "PolicyViolation", True),
        ("TOPIC_AUTHORIZATION_FAILED", "NotAuthorized", True),
        ("REASSIGNMENT_IN_PROGRESS", "ReassignmentInProgress", False),
        ("REQUEST_TIMED_OUT", "KafkaError", False),
    ],
)
def test_errors_of_kafka_become_reasons_that_say_who_has_to_act(error: str, reason: str, stalled: bool) -> None:
    verdict = topic_error(error, "because")
    assert (verdict.reason, verdict.stalled) == (reason, stalled)


@pytest.mark.spec("OPR-21")
@pytest.mark.parametrize(
    ("key", "wanted", "found"),
    [
        ("cleanup.policy", "compact, delete", "compact,delete"),
        ("min.cleanable.dirty.ratio", "0.50", "0.5"),
        ("min.cleanable.dirty.ratio", "0.0001", "1.0E-4"),
        ("min.cleanable.dirty.ratio", ".5", "0.5"),
        ("min.cleanable.dirty.ratio", "1.", "1.0"),
        ("unclean.leader.election.enable", "TRUE", "true"),
        ("retention.ms", " 5000", "5000"),
    ],
)
def test_a_value_that_kafka_tells_in_its_own_words_is_no_drift(key: str, wanted: str, found: str) -> None:
    ours = topic(status={**OURS, "managedConfig": [key]}, partitions=3, config={key: wanted})
    assert plan_topic(ours, replace(THREE, config={key: found})).alter is None
    assert plan_topic(ours, replace(THREE, config={key: "7"})).alter is not None
    assert plan_topic(ours, replace(THREE, config={})).alter is not None


@pytest.mark.spec("OPR-02", "OPR-21")
def test_a_configuration_that_cannot_be_read_is_told_and_not_called_ready() -> None:
    """DESCRIBE does not allow it to be read: Kafka wants DESCRIBE_CONFIGS for that."""
    subject = topic(status=OURS, partitions=3, config={"retention.ms": "1"})
    unread = replace(THREE, config=None, config_error="TOPIC_AUTHORIZATION_FAILED")
    plan = plan_topic(subject, unread)
    assert (plan.verdict.reason, plan.verdict.stalled, plan.acts_on_kafka) == ("NotAuthorized", True, False)
    assert "DESCRIBE_CONFIGS" in plan.verdict.message
    larger = plan_topic(topic(status=OURS, partitions=4, config={"retention.ms": "1"}), unread)
    assert larger.expand is not None, "the rest goes on"
    passing = plan_topic(subject, replace(unread, config_error="REQUEST_TIMED_OUT"))
    assert (passing.verdict.reason, passing.look_again) == ("KafkaError", True)


@pytest.mark.spec("OPR-23")
@pytest.mark.parametrize("at", ".-b")
def test_what_belongs_to_a_long_name_has_a_name_that_kubernetes_takes(at: str) -> None:
    """A dot may not stand beside a dash, nor a dash at the end of a part."""
    name = "a" * 199 + at + "b" * 40
    part = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    subdomain = re.compile(rf"{part}(\.{part})*")
    assert subdomain.fullmatch(name)
    for made in (shortened(name) + "-x", reassignment_name(topic(name=name), {})):
        assert subdomain.fullmatch(made), made
    events = Events(cast(KubernetesApi, None), lambda: NOW)
    events.send(topic(name=name), "Normal", "r", "m")
    assert subdomain.fullmatch(cast(Any, events._queue.get_nowait())["metadata"]["name"])
