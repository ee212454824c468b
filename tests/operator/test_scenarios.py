"""The operator as a person sees it: the same scenarios with our own brokers and with Apache Kafka.

Our brokers run as pods of the embedded Kubernetes; Apache Kafka is a cluster that exists already (external).
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.operator.apache import ApacheKafka
from tests.operator.world import ApiError, World

from ballast_operator.apply.kafka import alter_configs, create_topics, delete_topics_by_id
from ballast_operator.apply.kubernetes import path_of
from ballast_operator.model.actions import AlterConfig, CreateTopic
from ballast_operator.model.kafka import BROKER, TOPIC, ReplicaId, TopicPartition
from ballast_operator.observe import observe_broker_configs, observe_topic_configs

pytestmark = pytest.mark.timeout(240)
PROVIDERS = ["ballast", pytest.param("apache", marks=pytest.mark.java)]


@pytest.fixture(scope="module", params=PROVIDERS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if request.param == "ballast":
        yield request.getfixturevalue("ballast_world")
        return
    if "BALLAST_KAFKA_JARS" not in os.environ:
        pytest.skip("BALLAST_KAFKA_JARS is not set")
    data: Path = tmp_path_factory.mktemp("world")
    (data / "kafka").mkdir()
    apache = ApacheKafka(data / "kafka")
    found = World(data / "world")
    try:
        apache.start()
        found.start()
        spec = {"external": {"bootstrapServers": apache.bootstrap}, "resyncSeconds": 2}
        found.apply("KafkaCluster", "demo", spec)
        ready = found.until_ready("KafkaCluster", "demo", 90)
        found.bootstrap = ready["status"]["bootstrapServers"]
        yield found
    finally:
        found.stop()
        apache.stop()


@pytest.fixture(scope="module")
def heavy(world: World) -> None:
    """A topic on broker 0 that takes a while to move, and is there again after a move that was cancelled."""
    world.movable_topic("heavy", [[0], [0]], records=150)


def log_dirs(world: World, broker: int) -> list[str]:
    return sorted(where.path for where in world.view().directories if where.broker == broker)


@pytest.mark.spec("OPR-41")
def test_the_status_lists_brokers_and_their_directories_with_fill_level(world: World) -> None:
    status = (world.get("KafkaCluster", "demo") or {})["status"]
    assert status["brokersText"] == "3/3"
    assert [broker["id"] for broker in status["brokers"]] == [0, 1, 2]
    for broker in status["brokers"]:
        assert len(broker["directories"]) == 3
        assert all(row["online"] and 0 <= row["fillPercent"] <= 100 for row in broker["directories"])
    assert status["controller"] in (0, 1, 2)


@pytest.mark.spec("OPR-21")
@pytest.mark.spec("TOP-01")
def test_a_topic_is_created_expanded_and_configured(world: World) -> None:
    world.topic("orders", partitions=3, replicas=2, config={"retention.ms": 600000, "cleanup.policy": "delete"})
    status = world.until_ready("KafkaTopic", "orders")["status"]
    assert (status["partitions"], status["replicas"]) == (3, 2)
    assert world.view().topics["orders"].id == status["topicId"]
    world.topic("orders", partitions=5, replicas=2, config={"retention.ms": 700000})
    world.until_ready("KafkaTopic", "orders")
    assert len(world.view().topics["orders"].partitions) == 5
    assert world.run(observe_topic_configs(world.kafka, ["orders"])) == {"orders": {"retention.ms": "700000"}}


@pytest.mark.spec("OPR-01", "OPR-20", "OPR-21")
def test_true_false_and_fractions_need_no_quotes(world: World) -> None:
    """YAML takes them for no text, and Kubernetes refused them."""
    more = {"preallocate": False, "min.cleanable.dirty.ratio": 0.25, "retention.ms": 1e9}
    spec = {"partitions": 1, "replicas": 1, "configPolicy": "Exact"}
    world.topic("unquoted", **spec, config={"unclean.leader.election.enable": True, **more})
    world.until_ready("KafkaTopic", "unquoted")
    kept = {"preallocate": "false", "min.cleanable.dirty.ratio": "0.25", "retention.ms": "1000000000"}
    found = world.run(observe_topic_configs(world.kafka, ["unquoted"]))["unquoted"]
    assert found == {"unclean.leader.election.enable": "true", **kept}
    world.topic("unquoted", **spec, config={"unclean.leader.election.enable": False})
    world.until_ready("KafkaTopic", "unquoted")
    found = world.run(observe_topic_configs(world.kafka, ["unquoted"]))["unquoted"]
    assert found == {"unclean.leader.election.enable": "false"}
    world.topic("unquoted", **spec, config={"cleanup.policy": ["compact", "delete"]})
    assert "spec.config.cleanup.policy" in world.until_reason("KafkaTopic", "unquoted", "InvalidSpec")
    world.topic("unquoted", **spec, config={"cleanup.policy": "compact,delete"})
    world.until_ready("KafkaTopic", "unquoted")


def test_fewer_replicas_than_are_to_be_in_sync_are_told_of_a_topic_that_is_ready(world: World) -> None:
    """Whoever writes with acks=all believes more brokers to have it, and brokers before Kafka 3.7 take nothing."""
    world.topic("few", partitions=1, replicas=1, config={"min.insync.replicas": "2"}, deletionPolicy="Delete")
    said = world.until_reason("KafkaTopic", "few", "TooFewReplicas")
    assert "has 1 replica and min.insync.replicas is 2:" in said
    assert world.condition("KafkaTopic", "few")[0] == "True"
    world.topic("few", partitions=1, replicas=1, config={"min.insync.replicas": "1"}, deletionPolicy="Delete")
    world.until_reason("KafkaTopic", "few", "Ready")
    world.delete("KafkaTopic", "few")
    world.until_gone("KafkaTopic", "few")


@pytest.mark.spec("OPR-21")
def test_values_that_kafka_tells_in_its_own_words_are_ready(world: World) -> None:
    config = {"cleanup.policy": "compact, delete", "min.cleanable.dirty.ratio": "0.50"}
    world.topic("worded", partitions=1, replicas=1, config=config)
    world.until_ready("KafkaTopic", "worded")


@pytest.mark.spec("OPR-21")
def test_drift_is_put_back_within_the_resync_but_throttled_replicas_are_left(world: World) -> None:
    world.topic("drifting", partitions=1, replicas=1, config={"retention.ms": 1000000})
    world.until_ready("KafkaTopic", "drifting")
    throttled = {"leader.replication.throttled.replicas": "0:0"}
    change = AlterConfig(TOPIC, "drifting", {"retention.ms": "5", **throttled})
    assert all(outcome.ok for outcome in world.run(alter_configs(world.kafka, [change])).values())

    def back() -> bool:
        found = world.run(observe_topic_configs(world.kafka, ["drifting"]))["drifting"]
        return found == {"retention.ms": "1000000", **throttled}

    world.until("retention.ms is put back", back, 20)


@pytest.mark.spec("OPR-01")
@pytest.mark.spec("OPR-22")
def test_what_one_object_gets_wrong_is_refused_with_what_to_do(world: World) -> None:
    world.topic("shrinking", partitions=4, replicas=1)
    with pytest.raises(ApiError, match="cannot be reduced"):
        world.topic("shrinking", partitions=3, replicas=1)
    world.topic("rows", replicaAssignment=[[0], [1]])
    with pytest.raises(ApiError, match="cannot be reduced"):
        world.topic("rows", replicaAssignment=[[0]])
    with pytest.raises(ApiError, match="cannot be reduced"):
        world.topic("rows", partitions=1)
    for rate in (-5, 0, "0", "0.0Mi"):
        with pytest.raises(ApiError, match=r"throttle\.interBroker"):
            world.reassign("still", addBrokers=[1], throttle={"interBroker": rate})
    with pytest.raises(ApiError, match="clusterRef cannot be changed"):
        world.apply("KafkaTopic", "shrinking", {"clusterRef": {"name": "other"}, "partitions": 4, "replicas": 1})
    with pytest.raises(ApiError, match="exactly one of"):
        world.reassign("nothing")
    with pytest.raises(ApiError, match="one entry per replica"):
        world.reassign("uneven", partitions=[{"topic": "t", "partition": 0, "replicas": [0, 1], "logDirs": ["/a"]}])


@pytest.mark.spec("OPR-20")
def test_a_topic_that_existed_before_is_adopted_only_on_request(world: World) -> None:
    world.run(create_topics(world.kafka, [CreateTopic("foreign", 2, 1)]))
    world.topic("foreign", partitions=2)
    assert "adoptionPolicy" in world.until_reason("KafkaTopic", "foreign", "TopicExists")
    world.topic("foreign", partitions=3, adoptionPolicy="Adopt")
    world.until_ready("KafkaTopic", "foreign")
    assert len(world.view().topics["foreign"].partitions) == 3


@pytest.mark.spec("OPR-20")
def test_deletion_follows_the_policy(world: World) -> None:
    world.topic("kept", partitions=1)
    world.topic("dropped", partitions=1, deletionPolicy="Delete")
    for name in ("kept", "dropped"):
        world.until_ready("KafkaTopic", name)
    for name in ("kept", "dropped"):
        world.delete("KafkaTopic", name)
        world.until_gone("KafkaTopic", name)
    world.until("dropped is deleted in Kafka", lambda: "dropped" not in world.view().topics)
    assert "kept" in world.view().topics


@pytest.mark.spec("OPR-08")
def test_a_topic_that_somebody_made_anew_survives_the_object(world: World) -> None:
    world.topic("reborn", partitions=1, deletionPolicy="Delete")
    world.until_ready("KafkaTopic", "reborn")
    old = world.view().topics["reborn"].id
    world.pause("KafkaTopic", "reborn")
    world.until_reason("KafkaTopic", "reborn", "Paused")
    world.run(delete_topics_by_id(world.kafka, {"reborn": uuid.UUID(old)}))
    world.until("it is gone", lambda: "reborn" not in world.view().topics)
    world.until(
        "it can be made anew", lambda: world.run(create_topics(world.kafka, [CreateTopic("reborn", 1, 1)]))["reborn"].ok
    )
    world.pause("KafkaTopic", "reborn", False)
    world.until_reason("KafkaTopic", "reborn", "TopicReplaced")
    world.delete("KafkaTopic", "reborn")
    world.until_gone("KafkaTopic", "reborn")
    assert "reborn" in world.view().topics


@pytest.mark.spec("OPR-03", "OPR-21")
def test_a_topic_that_somebody_deleted_is_made_anew_and_that_is_told(world: World) -> None:
    """It was Ready again in a moment, and nothing said that it was empty."""
    world.topic("emptied", partitions=1)
    world.until_ready("KafkaTopic", "emptied")
    old = world.view().topics["emptied"].id
    world.run(delete_topics_by_id(world.kafka, {"emptied": uuid.UUID(old)}))

    def told() -> str:
        events = [one for one in world.objects("v1", "events") if one["involvedObject"]["name"] == "emptied"]
        return next((one["message"] for one in events if one["reason"] == "TopicMadeAnew"), "")

    assert f"had the id {old} " in world.until("it is told", told)
    world.until_ready("KafkaTopic", "emptied")
    assert world.view().topics["emptied"].id != old


@pytest.mark.spec("OPR-24")
def test_of_two_objects_the_older_wins_and_the_other_takes_over(world: World) -> None:
    world.topic("elder", topicName="shared", partitions=1)
    world.until_ready("KafkaTopic", "elder")
    world.topic("younger", topicName="shared", partitions=2)
    assert "elder" in world.until_reason("KafkaTopic", "younger", "Duplicate")
    world.delete("KafkaTopic", "elder")
    world.until_ready("KafkaTopic", "younger")
    assert len(world.view().topics["shared"].partitions) == 2


@pytest.mark.spec("OPR-02")
@pytest.mark.parametrize(
    ("name", "spec", "reason"),
    [
        ("too-many", {"partitions": 1, "replicas": 9}, "InvalidReplicationFactor"),
        ("bad-config", {"partitions": 1, "config": {"retention.ms": "soon"}}, "InvalidConfig"),
        ("bad-row", {"replicaAssignment": [[77]]}, "InvalidReplicaAssignment"),
        ("collides", {"topicName": "as.it.is.there"}, "InvalidTopic"),
    ],
)
def test_what_kafka_refuses_is_a_condition_with_its_words(
    world: World, name: str, spec: dict[str, object], reason: str
) -> None:
    world.run(create_topics(world.kafka, [CreateTopic("as_it_is_there", 1, 1, (), {})]))
    world.topic(name, **spec)
    world.until_reason("KafkaTopic", name, reason)
    conditions = (world.get("KafkaTopic", name) or {})["status"]["conditions"]
    assert [c["type"] for c in conditions] == ["Ready", "Stalled"]
    world.delete("KafkaTopic", name)


@pytest.mark.spec("OPR-20")
def test_what_is_made_by_hand_after_kafka_refused_it_is_not_ours(world: World) -> None:
    world.topic("by-hand", partitions=1, replicas=9, deletionPolicy="Delete")
    world.until_reason("KafkaTopic", "by-hand", "InvalidReplicationFactor")
    made = world.run(create_topics(world.kafka, [CreateTopic("by-hand", 1, 1, (), {})]))
    assert made["by-hand"].ok
    world.until_reason("KafkaTopic", "by-hand", "TopicExists")
    world.delete("KafkaTopic", "by-hand")
    world.until_gone("KafkaTopic", "by-hand")
    assert "by-hand" in world.view().topics


@pytest.mark.spec("OPR-20", "OPR-21")
def test_a_configuration_that_kafka_refused_was_never_set_so_it_does_not_go_with_its_line(world: World) -> None:
    """What somebody else had set may be what keeps the data."""
    world.run(create_topics(world.kafka, [CreateTopic("for-ever", 1, 1, (), {"retention.ms": "-1"})]))
    world.topic("for-ever", adoptionPolicy="Adopt", config={"retention.ms": "one day", "segment.bytes": 2_000_000})
    world.until_reason("KafkaTopic", "for-ever", "InvalidConfig")
    world.topic("for-ever", adoptionPolicy="Adopt", config={"segment.bytes": 3_000_000})
    world.until_ready("KafkaTopic", "for-ever")
    wanted = {"retention.ms": "-1", "segment.bytes": "3000000"}
    assert world.run(observe_topic_configs(world.kafka, ["for-ever"])) == {"for-ever": wanted}
    world.topic("for-ever", adoptionPolicy="Adopt")
    world.until("what was set goes", lambda: world.run(observe_topic_configs(world.kafka, ["for-ever"]))["for-ever"] ==
                {"retention.ms": "-1"})  # fmt: skip


@pytest.mark.spec("OPR-02", "OPR-33")
def test_a_change_after_the_end_is_seen_by_who_waits_for_a_condition(world: World) -> None:
    world.topic("at-rest", partitions=1, replicas=1)
    world.until_ready("KafkaTopic", "at-rest")
    world.reassign("at-rest", replicationFactor=[{"topic": "at-rest", "replicas": 1}])
    world.until_phase("at-rest", "Succeeded")
    changed = world.patch("Reassignment", "at-rest", {"spec": {"throttle": {"intraBroker": "1Mi"}}})

    def seen() -> bool:
        conditions = (world.get("Reassignment", "at-rest") or {})["status"]["conditions"]
        return {one["observedGeneration"] for one in conditions} == {changed["metadata"]["generation"]}

    world.until("the conditions are about the present spec", seen)


@pytest.mark.spec("OPR-25")
def test_a_cluster_that_does_not_exist_is_said_and_holds_no_deletion(world: World) -> None:
    world.apply("KafkaTopic", "lost", {"clusterRef": {"name": "nowhere"}, "deletionPolicy": "Delete"})
    world.until_reason("KafkaTopic", "lost", "ClusterNotFound")
    world.patch("KafkaTopic", "lost", {"metadata": {"finalizers": ["ballast.dev/finalizer"]}})
    world.delete("KafkaTopic", "lost")
    world.until_gone("KafkaTopic", "lost")


@pytest.mark.spec("OPR-25")
def test_an_unreachable_cluster_is_unknown_with_the_time_since(world: World) -> None:
    world.apply("KafkaCluster", "dark", {"external": {"bootstrapServers": "127.0.0.1:1"}})
    world.apply("KafkaTopic", "dark", {"clusterRef": {"name": "dark"}, "partitions": 1})
    world.until_reason("KafkaTopic", "dark", "ClusterUnreachable")
    assert world.condition("KafkaTopic", "dark")[0] == "Unknown"
    assert "since 20" in world.condition("KafkaTopic", "dark")[2]
    world.until_reason("KafkaCluster", "dark", "Unreachable")
    world.topic("meanwhile", partitions=1)
    world.until_ready("KafkaTopic", "meanwhile", 15)
    world.patch("KafkaTopic", "dark", {"spec": {"deletionPolicy": "Delete"}})
    # As of one that was Ready once.
    world.patch("KafkaTopic", "dark", {"metadata": {"finalizers": ["ballast.dev/finalizer"]}})
    world.patch("KafkaTopic", "dark", {"status": {"topicId": str(uuid.uuid4())}}, sub="status")
    world.delete("KafkaTopic", "dark")
    assert "set spec.deletionPolicy to Retain" in world.until_reason("KafkaTopic", "dark", "DeletionWaits")
    world.patch("KafkaTopic", "dark", {"spec": {"deletionPolicy": "Retain"}})
    world.until_gone("KafkaTopic", "dark")
    world.delete("KafkaCluster", "dark")
    world.until_gone("KafkaCluster", "dark")


@pytest.mark.spec("OPR-26")
def test_many_topics_at_once(world: World) -> None:
    names = [f"many-{index:03d}" for index in range(120)]
    for name in names:
        world.topic(name, partitions=1, replicas=1, deletionPolicy="Delete")
    world.until_all_ready(names)
    assert set(names) <= world.view().topics.keys()
    # They go again, so that the drains below move what they are about.
    for name in names:
        world.delete("KafkaTopic", name)
    world.until("they are gone", lambda: not set(names) & world.view().topics.keys())


@pytest.mark.spec("OPR-23")
def test_another_replication_factor_is_carried_out_by_a_reassignment_that_the_topic_owns(world: World) -> None:
    world.topic("wider", partitions=2, replicas=1)
    world.until_ready("KafkaTopic", "wider")
    world.topic("wider", partitions=2, replicas=3)
    world.until("three replicas", lambda: world.view().topics["wider"].replication_factor == 3, 60)
    world.until_ready("KafkaTopic", "wider")
    owned = [
        r for r in world.list("Reassignment") if r["metadata"].get("ownerReferences", [{}])[0].get("name") == "wider"
    ]
    assert len(owned) == 1
    world.until_phase(owned[0]["metadata"]["name"], "Succeeded")


@pytest.mark.spec("OPR-30")
@pytest.mark.spec("OPR-32")
@pytest.mark.spec("DIR-10")
@pytest.mark.spec("DIR-13")
def test_exact_moves_between_brokers_and_directories_run_when_approved_and_are_rolled_back(world: World) -> None:
    world.movable_topic("exact", [[0], [0]], records=20)
    target, other = log_dirs(world, 1)[2], log_dirs(world, 0)
    there = world.view().logs[ReplicaId("exact", 1, 0)].path
    within = next(path for path in other if path != there)
    rows = [
        {"topic": "exact", "partition": 0, "replicas": [1], "logDirs": [target]},
        {"topic": "exact", "partition": 1, "replicas": [0], "logDirs": [within]},
    ]
    world.reassign("exact", partitions=rows, approval="Required")
    waiting = world.until_phase("exact", "AwaitingApproval")
    assert world.view().logs[ReplicaId("exact", 1, 0)].path == there
    world.patch("Reassignment", "exact", {"spec": {"approvedPlan": waiting["status"]["plan"]["hash"]}})
    done = world.until_phase("exact", "Succeeded")
    assert done["status"]["progress"]["percent"] == 100
    seen = world.view()
    assert seen.topics["exact"].partitions[0].replicas == (1,)
    assert seen.logs[ReplicaId("exact", 0, 1)].path == target
    assert seen.logs[ReplicaId("exact", 1, 0)].path == within

    world.patch("Reassignment", "exact", {"spec": {"rollback": True}})
    world.until_phase("exact", "RolledBack")
    assert world.view().topics["exact"].partitions[0].replicas == (0,)


@pytest.mark.spec("OPR-32")
def test_rows_whose_from_is_not_true_are_stale_and_nothing_moves(world: World) -> None:
    world.topic("elsewhere", replicaAssignment=[[0]])
    world.until_ready("KafkaTopic", "elsewhere")
    row = {"topic": "elsewhere", "partition": 0, "replicas": [2], "from": {"replicas": [1]}}
    world.reassign("stale", partitions=[row])
    found = world.until_phase("stale", "Stale")
    assert "elsewhere-0" in world.condition("Reassignment", "stale")[2]
    assert "startedAt" not in found["status"]
    assert world.view().topics["elsewhere"].partitions[0].replicas == (0,)


@pytest.mark.spec("OPR-31")
@pytest.mark.spec("OPR-33")
@pytest.mark.spec("OPR-35")
@pytest.mark.usefixtures("heavy")
def test_a_throttled_move_is_sped_up_paused_cancelled_and_leaves_no_throttle(world: World) -> None:
    prior = AlterConfig(BROKER, "0", {"leader.replication.throttled.rate": "99999999"})
    assert all(outcome.ok for outcome in world.run(alter_configs(world.kafka, [prior])).values())
    rows = [{"topic": "heavy", "partition": index, "replicas": [2]} for index in range(2)]
    world.reassign("heavy", partitions=rows, throttle={"interBroker": "256Ki"}, maxConcurrentMoves={"perBroker": 1})

    def configs() -> dict[int, dict[str, str]]:
        return world.run(observe_broker_configs(world.kafka, [0, 1, 2]))

    world.until("the throttle stands", lambda: configs()[0].get("leader.replication.throttled.rate") == "262144")
    running = world.until(
        "one moves", lambda: (world.get("Reassignment", "heavy") or {})["status"]["progress"]["movesRunning"] == 1
    )
    assert running
    world.patch("Reassignment", "heavy", {"spec": {"throttle": {"interBroker": "512Ki"}}})
    world.until("the new rate stands", lambda: configs()[2].get("follower.replication.throttled.rate") == "524288")
    world.patch("Reassignment", "heavy", {"spec": {"paused": True}})
    world.until_phase("heavy", "Paused")
    assert len(world.view().ongoing) == 1
    world.patch("Reassignment", "heavy", {"spec": {"cancel": True}})
    world.until_phase("heavy", "Cancelled")
    assert world.condition("Reassignment", "heavy")[:2] == ("True", "Cancelled")
    seen = world.view()
    assert seen.ongoing == {}
    assert {part.replicas for part in seen.topics["heavy"].partitions.values()} == {(0,)}
    assert configs() == {0: {"leader.replication.throttled.rate": "99999999"}, 1: {}, 2: {}}
    assert world.run(observe_topic_configs(world.kafka, ["heavy"])) == {"heavy": {}}
    world.run(alter_configs(world.kafka, [AlterConfig(BROKER, "0", {"leader.replication.throttled.rate": None})]))


@pytest.mark.spec("OPR-25", "OPR-35")
def test_one_that_is_deleted_together_with_its_cluster_leaves_no_throttle(world: World) -> None:
    """As where a namespace or a folder is deleted: the brokers went on throttled, and nobody knew of it."""
    world.movable_topic("together", [[0]], records=40)
    world.apply("KafkaCluster", "pointer", {"external": {"bootstrapServers": world.bootstrap}})
    world.until_ready("KafkaCluster", "pointer")
    rows = [{"topic": "together", "partition": 0, "replicas": [2]}]
    throttle = {"interBroker": "128Ki"}
    world.apply(
        "Reassignment", "together", {"clusterRef": {"name": "pointer"}, "partitions": rows, "throttle": throttle}
    )
    world.until_phase("together", "Running")
    world.until("it moves", lambda: TopicPartition("together", 0) in world.view().ongoing)
    assert world.run(observe_broker_configs(world.kafka, [2]))[2] != {}
    world.delete("KafkaCluster", "pointer")
    world.delete("Reassignment", "together")
    world.until_gone("Reassignment", "together")
    assert world.run(observe_broker_configs(world.kafka, [0, 1, 2])) == {0: {}, 1: {}, 2: {}}
    assert world.run(observe_topic_configs(world.kafka, ["together"])) == {"together": {}}
    seen = world.view()
    assert (seen.ongoing, seen.topics["together"].partitions[0].replicas) == ({}, (0,))


@pytest.mark.spec("OPR-33")
@pytest.mark.usefixtures("heavy")
def test_deleting_a_running_one_cancels_it(world: World) -> None:
    rows = [{"topic": "heavy", "partition": 0, "replicas": [1]}]
    world.reassign("reverted", partitions=rows, throttle={"interBroker": "128Ki"})
    world.until("it moves", lambda: TopicPartition("heavy", 0) in world.view().ongoing)
    world.delete("Reassignment", "reverted")
    world.until_gone("Reassignment", "reverted")
    assert world.view().ongoing == {}
    assert world.run(observe_broker_configs(world.kafka, [0, 1, 2])) == {0: {}, 1: {}, 2: {}}


@pytest.mark.spec("OPR-33")
@pytest.mark.usefixtures("heavy")
def test_two_that_touch_the_same_partition_run_one_after_the_other(world: World) -> None:
    world.reassign(
        "first", partitions=[{"topic": "heavy", "partition": 0, "replicas": [1]}], throttle={"interBroker": "4Mi"}
    )
    world.until_phase("first", "Running")
    world.reassign("second", partitions=[{"topic": "heavy", "partition": 0, "replicas": [2]}])
    row = {"topic": "heavy", "partition": 0, "replicas": [2]}
    world.reassign("told", partitions=[{**row, "from": {"replicas": [0]}}])
    assert world.until_phase("second", "Waiting")["status"]["waitingFor"] == ["first"]
    world.until_phase("first", "Succeeded")
    # Each is planned when the others have ended; only whose rows say where the replica was runs on no other premise.
    world.until_phase("second", "Succeeded")
    world.until_phase("told", "Stale")
    assert world.view().topics["heavy"].partitions[0].replicas == (2,)


@pytest.mark.spec("OPR-30")
def test_a_broker_is_drained(world: World) -> None:
    world.topic("everywhere", partitions=1, replicas=3)
    world.until_ready("KafkaTopic", "everywhere")
    world.movable_topic("somewhere", [[2, 0], [1, 2]])
    world.reassign("drain", drainBrokers=[2])
    world.until_phase("drain", "Failed", seconds=120)
    # A partition with as many replicas as brokers has no place to go to: that is said, and everything else went.
    assert "everywhere-0 on broker 2" in world.until_reason("Reassignment", "drain", "Incomplete")

    def held() -> list[str]:
        return [
            f"{name}-{index}"
            for name, topic in world.view().topics.items()
            for index, part in topic.partitions.items()
            if 2 in part.replicas and len(part.replicas) < 3
        ]

    world.until("broker 2 holds nothing that has another place", lambda: not held(), 60)
    assert held() == []


@pytest.mark.spec("OPR-30")
def test_a_directory_is_drained(world: World) -> None:
    path = log_dirs(world, 0)[0]
    world.reassign("drain-dir", drainDirectories=[{"broker": 0, "directory": path}])
    world.until_phase("drain-dir", "Succeeded", seconds=90)
    assert [r for r, log in world.view().logs.items() if r.broker == 0 and path in (log.path, log.future_path)] == []


@pytest.mark.spec("OPR-05")
def test_nothing_is_written_when_nothing_changed(world: World) -> None:
    def objects() -> dict[str, object]:
        kinds = ("KafkaCluster", "KafkaTopic", "Reassignment")
        return {f"{k} {b['metadata']['name']}": b for k in kinds for b in world.list(k)}

    def seconds_pass(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        world.until("time passes", lambda: time.monotonic() > deadline, seconds + 5)

    def settled() -> dict[str, object] | None:
        """What there is, once nothing of what came before is told any more."""
        before = objects()
        seconds_pass(3)
        return before if objects() == before else None

    world.until_ready("KafkaCluster", "demo")
    quiet = world.until("nothing changes any more", settled, 60)
    seconds_pass(5)
    assert {key: (quiet.get(key), body) for key, body in objects().items() if quiet.get(key) != body} == {}


@pytest.mark.spec("OPR-40")
def test_a_cluster_that_cannot_be_reached_as_told_says_what_is_missing(world: World) -> None:
    locked = {"external": {"bootstrapServers": world.bootstrap, "sasl": {"mechanism": "PLAIN", "secretName": "login"}}}
    world.apply("KafkaCluster", "locked", locked)
    assert "Secret login does not exist" in world.until_reason("KafkaCluster", "locked", "SecretNotFound")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "stringData": {"username": "me"}}
    world.api("create", path_of("v1", "secrets", "default"), secret)
    world.until("the key is named", lambda: "no key password" in world.condition("KafkaCluster", "locked")[2])
    world.delete("KafkaCluster", "locked")
    world.until_gone("KafkaCluster", "locked")


@pytest.mark.spec("OPR-08")
def test_another_cluster_at_the_same_address_is_left_alone(world: World) -> None:
    spec = {"external": {"bootstrapServers": world.bootstrap}, "resyncSeconds": 1}
    world.apply("KafkaCluster", "other", spec)
    world.until_ready("KafkaCluster", "other")
    world.apply("KafkaTopic", "astray", {"clusterRef": {"name": "other"}, "partitions": 1})
    world.until_ready("KafkaTopic", "astray")
    world.patch("KafkaCluster", "other", {"status": {"clusterId": "another-one"}}, sub="status")
    world.until_reason("KafkaCluster", "other", "WrongCluster")
    world.apply("KafkaTopic", "astray", {"clusterRef": {"name": "other"}, "partitions": 2})
    world.until_reason("KafkaTopic", "astray", "ClusterUnreachable")
    assert len(world.view().topics["astray"].partitions) == 1
    for kind, name in (("KafkaTopic", "astray"), ("KafkaCluster", "other")):
        world.delete(kind, name)
        world.until_gone(kind, name)


@pytest.mark.spec("OPR-30")
def test_a_plan_that_cannot_be_is_refused_with_why(world: World) -> None:
    world.reassign("nowhere", drainBrokers=[99])
    assert "99" in world.until_reason("Reassignment", "nowhere", "InvalidPlan")


@pytest.mark.spec("OPR-30")
def test_one_that_is_applied_before_its_topic_waits_and_says_for_what(world: World) -> None:
    world.reassign("early", partitions=[{"topic": "late", "partition": 0, "replicas": [0]}])
    assert "topic late is not there" in world.until_reason("Reassignment", "early", "TopicMissing")
    world.topic("late", replicaAssignment=[[0]])
    world.until_ready("Reassignment", "early")


@pytest.mark.spec("OPR-37")
def test_an_ended_one_goes_after_its_time_unless_gitops_would_make_it_again(world: World) -> None:
    world.topic("settled", replicaAssignment=[[0]])
    world.until_ready("KafkaTopic", "settled")
    rows = [{"topic": "settled", "partition": 0, "replicas": [0]}]
    tracked = {"argocd.argoproj.io/tracking-id": "app:ballast.dev/Reassignment:default/tracked"}
    spec = {"clusterRef": {"name": world.cluster}, "partitions": rows}
    world.apply("Reassignment", "tracked", {**spec, "ttlSecondsAfterFinished": 0}, annotations=tracked)
    world.apply("Reassignment", "kept", spec)
    world.apply("Reassignment", "short", {**spec, "ttlSecondsAfterFinished": 1})
    world.until_gone("Reassignment", "short")
    assert world.until_phase("tracked", "Succeeded")["status"]["conditions"][0]["reason"] == "NothingToMove"
    told = world.until("a warning", lambda: [e for e in world.objects("v1", "events") if e["reason"] == "TtlIgnored"])
    assert (told[0]["type"], told[0]["involvedObject"]["name"]) == ("Warning", "tracked")
    assert world.get("Reassignment", "tracked")
    assert world.get("Reassignment", "kept")
