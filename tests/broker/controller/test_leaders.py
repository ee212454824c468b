"""Leader elections, clean and unclean, eligible leader replicas, preferred leaders, and ISR changes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.broker.controller.scene import Scene, directory

from ballast_broker.controller.commands.brokers import (
    Liveness,
    broker_heartbeat,
    fence_broker,
    register_broker,
    unregister_broker,
)
from ballast_broker.controller.commands.configs import incremental_alter_configs
from ballast_broker.controller.commands.context import MAX_RECORDS_PER_BATCH
from ballast_broker.controller.commands.directories import assign_replicas_to_directories
from ballast_broker.controller.commands.elections import (
    balance_leaders,
    elect_leaders,
    imbalanced_brokers,
    offline_elections,
)
from ballast_broker.controller.commands.features import SAFE_DOWNGRADE, UPGRADE, update_features
from ballast_broker.controller.commands.isr import alter_partition
from ballast_broker.metadata.features import ELIGIBLE_LEADER_REPLICAS
from ballast_broker.metadata.image import BrokerImage, PartitionRegistration
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message


def heartbeat(scene: Scene, broker_id: int, **fields: Any) -> Any:
    broker = scene.image.cluster.brokers[broker_id]
    request = message("BrokerHeartbeatRequest")(
        broker_id=broker_id,
        broker_epoch=broker.epoch,
        current_metadata_offset=fields.pop("offset", 10_000),
        want_fence=fields.pop("want_fence", False),
        want_shut_down=fields.pop("want_shut_down", False),
        offline_log_dirs=fields.pop("offline", []),
    )
    outcome, _ = broker_heartbeat(scene.context, request, fields.pop("liveness", Liveness(10_000, 0)))
    return scene.commit(outcome)


def fence(scene: Scene, broker_id: int) -> None:
    scene.run(fence_broker, broker_id)


def unfence(scene: Scene, broker_id: int) -> None:
    heartbeat(scene, broker_id)


def restart(scene: Scene, broker_id: int, *, clean: bool, before: BrokerImage | None = None) -> None:
    before = before or scene.image.cluster.brokers[broker_id]
    kind = message("BrokerRegistrationRequest")
    request = kind(
        broker_id=broker_id,
        cluster_id=scene.config.cluster_id,
        incarnation_id=directory(broker_id, 77 + scene.offset),
        listeners=[kind.Listener(name="PLAINTEXT", host="localhost", port=9000 + broker_id)],
        features=[
            kind.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in before.features.items()
        ],
        log_dirs=sorted(before.directories),
        previous_broker_epoch=before.epoch if clean else -1,
    )
    scene.run(register_broker, request, session_is_valid=False)


def assign(scene: Scene, broker_id: int, place: UUID, topic_id: UUID) -> None:
    kind = message("AssignReplicasToDirsRequest")
    data = kind.DirectoryData.TopicData
    wanted = [data(topic_id=topic_id, partitions=[data.PartitionData(partition_index=0)])]
    directories = [kind.DirectoryData(id=place, topics=wanted)]
    epoch = scene.image.cluster.brokers[broker_id].epoch
    scene.run(assign_replicas_to_directories, kind(broker_id=broker_id, broker_epoch=epoch, directories=directories))


def state(scene: Scene, topic: str = "orders", partition: int = 0) -> tuple[Any, ...]:
    found = scene.partition(topic, partition)
    return found.leader, found.isr, found.elr


@pytest.mark.spec("CLU-10")
def test_the_leader_is_the_first_live_isr_member_in_assigned_order() -> None:
    scene = Scene((0, 1, 2))
    places = tuple(directory(each) for each in (1, 0, 2))
    scene.add_topic("orders", PartitionRegistration((1, 0, 2), places, (0, 2, 1), leader=1))
    fence(scene, 1)
    assert state(scene)[:2] == (0, (0, 2))
    assert scene.partition("orders").leader_epoch == 1


@pytest.mark.spec("CLU-11")
def test_whoever_left_the_isr_last_may_lead_again() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2])
    fence(scene, 2)
    assert state(scene) == (1, (1,), ())  # an ISR of one is enough: min.insync.replicas is 1
    fence(scene, 1)
    assert state(scene) == (-1, (), (1,))
    unfence(scene, 2)
    assert state(scene) == (-1, (), (1,)), "2 had left before 1: it may lack what 1 has"
    unfence(scene, 1)
    assert state(scene) == (1, (1,), ())


@pytest.mark.spec("CLU-11")
def test_below_the_minimum_in_sync_those_who_leave_stay_eligible() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2, 3], min_insync_replicas="2")
    fence(scene, 3)
    assert state(scene) == (1, (1, 2), ())
    fence(scene, 2)
    assert state(scene) == (1, (1,), (2,))
    fence(scene, 1)
    assert state(scene) == (-1, (), (1, 2))
    unfence(scene, 2)
    assert state(scene) == (2, (2,), (1,))


def set_minimum(scene: Scene, kind_of_resource: int, name: str, minimum: str) -> None:
    kind = message("IncrementalAlterConfigsRequest")
    config = kind.AlterConfigsResource.AlterableConfig(name="min.insync.replicas", config_operation=0, value=minimum)
    resource = kind.AlterConfigsResource(resource_type=kind_of_resource, resource_name=name, configs=[config])
    response = scene.run(incremental_alter_configs, kind(resources=[resource], validate_only=False))
    assert response.responses[0].error_code == 0


@pytest.mark.spec("CLU-11")
@pytest.mark.parametrize(("kind_of_resource", "name", "minimum"), [(2, "orders", "1"), (4, "", "2")])
def test_with_another_minimum_in_sync_nobody_stays_eligible(kind_of_resource: int, name: str, minimum: str) -> None:
    """With a minimum of one, broker 1 alone commits what 2 does not have. Like Kafka, for any new minimum."""
    scene = Scene()
    scene.add_topic("orders", [1, 2], min_insync_replicas="2")
    fence(scene, 2)
    assert state(scene) == (1, (1,), (2,))
    set_minimum(scene, kind_of_resource, name, minimum)
    assert state(scene) == (1, (1,), ())
    fence(scene, 1)
    unfence(scene, 2)
    assert state(scene)[0] == -1, "only 1 has all that was committed"


@pytest.mark.spec("CLU-11")
@pytest.mark.parametrize(
    ("kind_of_resource", "name", "minimum"), [(2, "orders", "1"), (2, "orders", "3"), (4, "", "2")]
)
def test_whoever_may_lead_an_offline_partition_still_may_with_another_minimum_in_sync(
    kind_of_resource: int, name: str, minimum: str
) -> None:
    """Found by the simulation: it stayed offline for ever, although all its replicas were back."""
    scene = Scene()
    scene.add_topic("orders", [1, 2, 3], min_insync_replicas="2")
    for broker_id in (3, 2, 1):
        fence(scene, broker_id)
    assert state(scene) == (-1, (), (1, 2))
    set_minimum(scene, kind_of_resource, name, minimum)
    assert state(scene) == (-1, (), (1, 2))
    unfence(scene, 3)
    assert state(scene) == (-1, (), (1, 2))
    unfence(scene, 2)
    assert state(scene) == (2, (2,), () if minimum == "1" else (1,)), "with a minimum of one, 2 alone commits now"


@pytest.mark.spec("CLU-11")
def test_the_last_known_leader_returns_with_another_minimum_in_sync() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2], min_insync_replicas="2")
    fence(scene, 2)
    fence(scene, 1)
    for broker_id in (1, 2):
        restart(scene, broker_id, clean=False)
    assert state(scene) == (-1, (), ())
    set_minimum(scene, 2, "orders", "1")
    unfence(scene, 2)
    assert state(scene)[0] == -1
    unfence(scene, 1)
    assert state(scene)[0] == 1


@pytest.mark.spec("CLU-11")
def test_a_broker_back_from_an_unclean_stop_is_not_eligible() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2, 3], min_insync_replicas="2")
    for broker_id in (3, 2, 1):
        fence(scene, broker_id)
    restart(scene, 2, clean=False)
    assert state(scene) == (-1, (), (1,))
    unfence(scene, 2)
    assert state(scene) == (-1, (), (1,))


@pytest.mark.spec("CLU-11")
def test_the_last_known_leader_returns_when_nobody_is_eligible() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2])
    fence(scene, 2)
    fence(scene, 1)
    restart(scene, 1, clean=False)
    assert state(scene) == (-1, (), ())
    assert scene.partition("orders").last_known_elr == (1,)
    unfence(scene, 2)
    assert state(scene)[0] == -1
    unfence(scene, 1)
    assert state(scene)[0] == 1
    assert scene.partition("orders").leader_recovery_state == 1


@pytest.mark.spec("CLU-11")
def test_without_elr_the_last_in_sync_replica_is_waited_for() -> None:
    scene = Scene(elr=False)
    scene.add_topic("orders", [1, 2])
    fence(scene, 2)
    fence(scene, 1)
    assert state(scene) == (-1, (1,), ())
    unfence(scene, 2)
    assert state(scene)[0] == -1
    unfence(scene, 1)
    assert state(scene) == (1, (1,), ())


@pytest.mark.spec("CLU-11")
@pytest.mark.parametrize(("elr", "allowed"), [(True, "true"), (False, "true"), (False, " TRUE")])
def test_unclean_election_takes_any_live_replica(elr: bool, allowed: str) -> None:
    scene = Scene(elr=elr)
    scene.add_topic("orders", [1, 2], unclean_leader_election_enable=allowed)
    fence(scene, 2)
    fence(scene, 1)
    assert state(scene)[0] == -1
    unfence(scene, 2)
    assert state(scene)[:2] == (2, (2,))
    assert scene.partition("orders").leader_recovery_state == 1


def switch_elr(scene: Scene, *, on: bool) -> None:
    kind = message("UpdateFeaturesRequest")
    update = kind.FeatureUpdateKey(feature=ELIGIBLE_LEADER_REPLICAS, max_version_level=int(on))
    update.upgrade_type = UPGRADE if on else SAFE_DOWNGRADE
    assert scene.run(update_features, kind(feature_updates=[update], validate_only=False)).error_code == 0


@pytest.mark.spec("CLU-11")
def test_who_stops_uncleanly_while_elr_is_off_is_not_eligible_when_it_is_on_again() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2, 3], min_insync_replicas="2")
    fence(scene, 3)
    fence(scene, 2)
    assert state(scene) == (1, (1,), (2,))
    switch_elr(scene, on=False)
    restart(scene, 2, clean=False)
    switch_elr(scene, on=True)
    fence(scene, 1)
    unfence(scene, 2)
    assert state(scene) == (-1, (), (1,)), "2 may have lost what 1 has"


@pytest.mark.spec("CLU-11")
def test_with_another_minimum_in_sync_while_elr_is_off_nobody_stays_eligible() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2], min_insync_replicas="2")
    fence(scene, 2)
    switch_elr(scene, on=False)
    set_minimum(scene, 2, "orders", "1")
    switch_elr(scene, on=True)
    fence(scene, 1)
    unfence(scene, 2)
    assert state(scene)[0] == -1, "only 1 has what it committed alone"


@pytest.mark.spec("CLU-11")
def test_the_leader_of_before_elr_was_off_is_not_the_last_known_one() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2], unclean_leader_election_enable="true", min_insync_replicas="2")
    fence(scene, 2)
    fence(scene, 1)
    assert scene.partition("orders").last_known_elr == (1,)
    switch_elr(scene, on=False)
    unfence(scene, 2)
    assert state(scene)[:2] == (2, (2,))
    assert scene.partition("orders").last_known_elr == ()


@pytest.mark.spec("CLU-11")
def test_who_was_eligible_when_elr_is_switched_off_leads_where_nobody_is_in_sync() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2, 3], min_insync_replicas="2")
    for broker in (3, 2, 1):
        fence(scene, broker)
    assert state(scene) == (-1, (), (1, 2))
    switch_elr(scene, on=False)
    unfence(scene, 3)
    assert state(scene) == (-1, (), (1, 2)), "3 was behind"
    restart(scene, 1, clean=False)
    unfence(scene, 1)
    assert state(scene) == (-1, (), (2,)), "1 may have lost what it was eligible with"
    unfence(scene, 2)
    assert state(scene) == (2, (2,), ())


@pytest.mark.spec("CLU-11")
def test_the_last_known_leader_leads_again_where_elr_is_switched_off_while_it_is_away() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2])
    fence(scene, 2)
    restart(scene, 1, clean=False)
    assert state(scene) == (-1, (), ())
    switch_elr(scene, on=False)
    unfence(scene, 2)
    assert state(scene)[0] == -1
    unfence(scene, 1)
    assert state(scene) == (1, (1,), ())
    assert scene.partition("orders").last_known_elr == ()


@pytest.mark.spec("CLU-11")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("replicas", [[1], [1, 2]])
def test_the_last_in_sync_replica_leads_again_where_elr_is_switched_on_while_it_is_away(
    replicas: list[int], clean: bool
) -> None:
    scene = Scene(elr=False)
    scene.add_topic("orders", replicas)
    fence(scene, 2)
    fence(scene, 1)
    assert state(scene) == (-1, (1,), ())
    switch_elr(scene, on=True)
    restart(scene, 1, clean=clean)
    unfence(scene, 2)
    assert state(scene)[0] == -1
    unfence(scene, 1)
    assert state(scene) == (1, (1,), ())
    assert scene.partition("orders").last_known_elr == ()


@pytest.mark.spec("CLU-11")
def test_unclean_election_switched_on_later() -> None:
    scene = Scene(elr=False)
    scene.add_topic("orders", [1, 2])
    fence(scene, 2)
    fence(scene, 1)
    unfence(scene, 2)
    fields = {"resource_type": 2, "resource_name": "orders", "name": "unclean.leader.election.enable", "value": "true"}
    from ballast_broker.metadata.records import record

    scene.apply([record("ConfigRecord", **fields)])
    scene.run(offline_elections)
    assert state(scene)[0] == 2


def alter_isr(scene: Scene, leader: int, isr: list[int], **changes: Any) -> Any:
    topic = scene.image.topics.by_name("orders")
    assert topic is not None
    partition = topic.partitions[0]
    kind = message("AlterPartitionRequest")
    member = kind.TopicData.PartitionData.BrokerState
    data = kind.TopicData.PartitionData(
        partition_index=0,
        leader_epoch=changes.get("leader_epoch", partition.leader_epoch),
        partition_epoch=changes.get("partition_epoch", partition.partition_epoch),
        new_isr_with_epochs=[member(broker_id=each, broker_epoch=changes.get("broker_epoch", -1)) for each in isr],
        leader_recovery_state=changes.get("recovery", partition.leader_recovery_state),
    )
    request = kind(
        broker_id=leader,
        broker_epoch=scene.image.cluster.brokers[leader].epoch,
        topics=[kind.TopicData(topic_id=topic.id, partitions=[data])],
    )
    return scene.run(alter_partition, request).topics[0].partitions[0]


def test_a_leader_changes_its_isr() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2, 3])
    result = alter_isr(scene, 1, [1, 2])
    assert (result.error_code, result.isr, result.leader_epoch, result.partition_epoch) == (0, [1, 2], 0, 1)
    assert state(scene)[:2] == (1, (1, 2))
    result = alter_isr(scene, 1, [1, 2, 3])
    assert result.partition_epoch == 2


@pytest.mark.parametrize(
    ("leader", "isr", "changes", "code"),
    [
        (1, [1, 2], {"leader_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        (1, [1, 2], {"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        (1, [1, 2], {"leader_epoch": 4}, ErrorCode.FENCED_LEADER_EPOCH),
        (1, [1, 2], {"partition_epoch": 6}, ErrorCode.INVALID_UPDATE_VERSION),
        (2, [1, 2], {}, ErrorCode.INVALID_REQUEST),
        (1, [2], {}, ErrorCode.INVALID_REQUEST),
        (1, [], {}, ErrorCode.INVALID_REQUEST),
        (1, [1, 1], {}, ErrorCode.INVALID_REQUEST),
        (1, [1, 9], {}, ErrorCode.INVALID_REQUEST),
        (1, [1], {"recovery": 1}, ErrorCode.INVALID_REQUEST),
        (1, [1, 3], {}, ErrorCode.INELIGIBLE_REPLICA),
        (1, [1, 2], {"broker_epoch": 5}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_isr_changes_that_are_refused(leader: int, isr: list[int], changes: dict[str, Any], code: ErrorCode) -> None:
    scene = Scene()
    places = tuple(directory(each) for each in (1, 2, 3))
    partition = PartitionRegistration((1, 2, 3), places, (1, 2), leader=1, leader_epoch=5, partition_epoch=7)
    scene.add_topic("orders", partition)
    fence(scene, 3)
    before = scene.image
    assert ErrorCode(alter_isr(scene, leader, isr, **changes).error_code) is code
    assert scene.image.topics is before.topics


@pytest.mark.spec("CLU-01")
@pytest.mark.spec("CLU-10")
def test_a_leader_may_change_more_isrs_at_once_than_a_batch_has_room_for() -> None:
    """For all partitions of a follower whose disk stalls: a request that is too large would be retried for ever."""
    scene = Scene()
    count = MAX_RECORDS_PER_BATCH + 1
    topic_id = scene.add_topic("orders", *[[1, 2]] * count)
    kind = message("AlterPartitionRequest")
    data, member = kind.TopicData.PartitionData, kind.TopicData.PartitionData.BrokerState
    alone = [
        data(partition_index=number, leader_epoch=0, partition_epoch=0, new_isr_with_epochs=[member(broker_id=1)])
        for number in range(count)
    ]
    epoch = scene.image.cluster.brokers[1].epoch
    topics = [kind.TopicData(topic_id=topic_id, partitions=alone)]
    response = scene.run(alter_partition, kind(broker_id=1, broker_epoch=epoch, topics=topics))
    assert {each.error_code for each in response.topics[0].partitions} == {0}
    assert {scene.partition("orders", number).isr for number in range(count)} == {(1,)}


def test_requests_of_an_earlier_incarnation_are_refused() -> None:
    scene = Scene()
    request = message("AlterPartitionRequest")(broker_id=1, broker_epoch=3, topics=[])
    with pytest.raises(ApiError, match="Expected broker epoch 1001, but got broker epoch 3") as refused:
        scene.run(alter_partition, request)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.spec("CLU-12")
def test_controlled_shutdown_moves_leaderships_and_then_lets_go() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2], [1, 3], [2, 1])
    assert not heartbeat(scene, 1, want_shut_down=True).should_shut_down
    assert [state(scene, partition=each)[0] for each in range(3)] == [2, 3, 2]
    assert all(1 not in state(scene, partition=each)[1] for each in range(3))
    waiting = heartbeat(scene, 1, want_shut_down=True, liveness=Liveness(5, 6))
    assert not waiting.should_shut_down, "not everybody knows yet who leads now"
    assert heartbeat(scene, 1, want_shut_down=True, liveness=Liveness(6, 6)).should_shut_down
    assert scene.image.cluster.brokers[1].fenced


def test_a_broker_is_unfenced_when_it_has_caught_up() -> None:
    scene = Scene(())
    scene.add_broker(1, fenced=True)
    scene.change_broker(1, epoch=50)
    assert heartbeat(scene, 1, offset=49).is_fenced
    assert heartbeat(scene, 1, offset=50, want_fence=True).is_fenced
    response = heartbeat(scene, 1, offset=50)
    assert (response.is_fenced, response.is_caught_up) == (False, True)


def elect(scene: Scene, kind_of_election: int, partitions: list[tuple[str, int]] | None) -> dict[Any, Any]:
    kind = message("ElectLeadersRequest")
    wanted = None
    if partitions is not None:
        wanted = [kind.TopicPartitions(topic=topic, partitions=[each]) for topic, each in partitions]
    request = kind(election_type=kind_of_election, topic_partitions=wanted, timeout_ms=100)
    response = scene.run(elect_leaders, request)
    return {
        (each.topic, result.partition_id): ErrorCode(result.error_code).name
        for each in response.replica_election_results
        for result in each.partition_result
    }


@pytest.mark.spec("CLI-10")
def test_elections_of_nothing_are_answered_topic_by_topic() -> None:
    scene, kind = Scene(), message("ElectLeadersRequest")
    scene.add_topic("orders", [1, 2])
    nothing = [kind.TopicPartitions(topic=name, partitions=[]) for name in ("orders", "nowhere")]
    response = scene.run(elect_leaders, kind(election_type=0, topic_partitions=nothing, timeout_ms=100))
    assert [(each.topic, each.partition_result) for each in response.replica_election_results] == [
        ("orders", []),
        ("nowhere", []),
    ]
    response = scene.run(elect_leaders, kind(election_type=5, topic_partitions=[], timeout_ms=100))
    assert (response.error_code, response.replica_election_results) == (0, [])


@pytest.mark.spec("CLU-13")
def test_preferred_leaders_by_request() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2], [1, 2], [2, 1])
    fence(scene, 1)
    assert elect(scene, 0, [("orders", 0)]) == {("orders", 0): "PREFERRED_LEADER_NOT_AVAILABLE"}
    unfence(scene, 1)
    alter_isr(scene, 2, [2, 1])
    assert elect(scene, 0, None) == {("orders", 0): "NONE", ("orders", 1): "PREFERRED_LEADER_NOT_AVAILABLE"}
    assert state(scene)[0] == 1
    asked = [("orders", 0), ("orders", 9), ("nothing", 0)]
    assert list(elect(scene, 0, asked).values()) == ["ELECTION_NOT_NEEDED"] + ["UNKNOWN_TOPIC_OR_PARTITION"] * 2


@pytest.mark.spec("CLU-11")
def test_unclean_election_by_request() -> None:
    scene = Scene(elr=False)
    scene.add_topic("orders", [1, 2], [2])
    fence(scene, 2)
    fence(scene, 1)
    assert elect(scene, 1, [("orders", 0)]) == {("orders", 0): "ELIGIBLE_LEADERS_NOT_AVAILABLE"}
    scene.change_broker(2, fenced=False)
    assert elect(scene, 1, [("orders", 0)]) == {("orders", 0): "NONE"}
    assert state(scene)[:2] == (2, (2,))
    assert elect(scene, 1, [("orders", 0)]) == {("orders", 0): "ELECTION_NOT_NEEDED"}


@pytest.mark.spec("CLU-13")
def test_leaders_are_balanced_above_the_percentage_only() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2], [1, 2], [1, 2], [1, 2], [2, 1])
    led_by_2 = PartitionRegistration((1, 2), (directory(1), directory(2)), (1, 2), leader=2)
    scene.add_topic("moved", led_by_2)
    assert imbalanced_brokers(scene.image, 19) == {1}  # one of five
    assert imbalanced_brokers(scene.image, 20) == set()
    scene.run(balance_leaders)
    assert scene.partition("moved").leader == 1


@pytest.mark.spec("CLU-13")
def test_all_that_a_broker_lacks_is_given_back_in_one_round() -> None:
    scene = Scene()
    led_by_2 = PartitionRegistration((1, 2), (directory(1), directory(2)), (1, 2), leader=2)
    scene.add_topic("orders", *[led_by_2] * 1_200)
    scene.run(balance_leaders)
    assert {scene.partition("orders", number).leader for number in range(1_200)} == {1}


def test_an_offline_directory_gives_up_its_partitions_only() -> None:
    scene = Scene(directories=2)
    two = [PartitionRegistration((1, 2), (directory(1, number), directory(2)), (1, 2), leader=1) for number in (0, 1)]
    scene.add_topic("orders", *two)
    heartbeat(scene, 1, offline=[directory(1, 0)])
    assert state(scene, partition=0)[:2] == (2, (2,))
    assert state(scene, partition=1)[:2] == (1, (1, 2))
    assert scene.image.cluster.brokers[1].directories == {directory(1, 1)}


@pytest.mark.spec("CLU-11", "CLU-33")
def test_a_broker_that_was_unregistered_comes_back_as_after_an_unclean_stop() -> None:
    """Its broker epoch is unknown by then, and so is whether its log is the one that made it eligible."""
    scene = Scene()
    scene.add_topic("orders", [1, 2, 3], min_insync_replicas="2")
    for broker_id in (3, 2, 1):
        fence(scene, broker_id)
    assert state(scene) == (-1, (), (1, 2))
    before = scene.image.cluster.brokers[2]
    scene.run(unregister_broker, message("UnregisterBrokerRequest")(broker_id=2))
    restart(scene, 2, clean=True, before=before)
    unfence(scene, 2)
    assert state(scene) == (-1, (), (1,))


@pytest.mark.spec("CLU-11", "DIR-05")
def test_a_replica_made_anew_because_its_directory_is_gone_is_not_eligible() -> None:
    """A disk failed, and the broker returns without it and creates an empty log on another: that must not lead."""
    scene = Scene(directories=2)
    topic_id = scene.add_topic("orders", [1, 2, 3], min_insync_replicas="2")
    fence(scene, 3)
    heartbeat(scene, 2, offline=[directory(2, 0)])
    fence(scene, 1)
    assert state(scene) == (-1, (), (1, 2))
    restart(scene, 2, clean=True)
    unfence(scene, 2)
    assert state(scene) == (-1, (), (1, 2)), "the disk may come back as it was"
    assign(scene, 2, directory(2, 1), topic_id)
    assert state(scene) == (-1, (), (1,))


@pytest.mark.spec("CLU-11", "DIR-05")
@pytest.mark.parametrize(("replicas", "leader"), [([1, 2], -1), ([1], 1)])
def test_nor_is_it_the_last_leader_that_returns_unless_there_is_no_other(replicas: list[int], leader: int) -> None:
    scene = Scene(directories=2)
    topic_id = scene.add_topic("orders", replicas)
    fence(scene, 2)
    heartbeat(scene, 1, offline=[directory(1, 0)])
    restart(scene, 1, clean=False)
    unfence(scene, 1)
    assert scene.partition("orders").last_known_elr == (1,)
    assign(scene, 1, directory(1, 1), topic_id)
    for broker_id in (1, 2):
        fence(scene, broker_id)
        unfence(scene, broker_id)
    assert state(scene)[0] == leader


@pytest.mark.spec("CLU-11", "DIR-05")
@pytest.mark.parametrize(("replicas", "leader"), [([1, 2], -1), ([1], 1)])
@pytest.mark.parametrize("clean", [True, False])
def test_without_elr_the_last_in_sync_replica_made_anew_does_not_lead_unless_there_is_no_other(
    replicas: list[int], leader: int, clean: bool
) -> None:
    """It is empty, and the other one would cut off all that it has."""
    scene = Scene(elr=False, directories=2)
    topic_id = scene.add_topic("orders", replicas)
    fence(scene, 2)
    heartbeat(scene, 1, offline=[directory(1, 0)])
    restart(scene, 1, clean=clean)
    unfence(scene, 1)
    assert state(scene) == (-1, (1,), ()), "the disk may come back as it was"
    assign(scene, 1, directory(1, 1), topic_id)
    for broker_id in (1, 2):
        restart(scene, broker_id, clean=True)
        unfence(scene, broker_id)
    assert state(scene)[0] == leader
    if leader < 0:
        fence(scene, 1)
        elect(scene, 1, [("orders", 0)])
        assert state(scene)[:2] == (2, (2,)), "a person says so"


@pytest.mark.spec("CLU-11", "DIR-05")
@pytest.mark.parametrize("elr", [True, False])
def test_a_replica_made_anew_that_is_in_sync_with_a_leader_stays_so_when_it_says_where_it_is(elr: bool) -> None:
    scene = Scene(elr=elr, directories=2)
    gone = (directory(1, 5), directory(2, 0))
    topic_id = scene.add_topic("orders", PartitionRegistration((1, 2), gone, (1, 2), leader=2))
    assign(scene, 1, directory(1, 1), topic_id)
    assert state(scene)[:2] == (2, (1, 2))


@pytest.mark.spec("CLU-11")
def test_the_last_leader_whose_directory_is_away_leads_when_that_is_back() -> None:
    """It shut down uncleanly meanwhile, and so did the other eligible replica."""
    scene = Scene(directories=2)
    scene.add_topic("orders", [1, 2], min_insync_replicas="2")
    fence(scene, 2)
    registered = scene.image.cluster.brokers[1]
    heartbeat(scene, 1, offline=[directory(1, 0)])
    restart(scene, 1, clean=False)
    unfence(scene, 1)
    restart(scene, 2, clean=False)
    unfence(scene, 2)
    assert state(scene) == (-1, (), ())
    assert scene.partition("orders").last_known_elr == (1,)
    restart(scene, 1, clean=False, before=registered)
    unfence(scene, 1)
    assert state(scene)[0] == 1


@pytest.mark.spec("CLU-11")
def test_where_the_last_leader_was_made_anew_a_person_says_that_it_leads_when_its_directory_is_back() -> None:
    scene = Scene(directories=2)
    topic_id = scene.add_topic("orders", [2, 1], min_insync_replicas="2")
    fence(scene, 2)
    registered = scene.image.cluster.brokers[1]
    heartbeat(scene, 1, offline=[directory(1, 0)])
    restart(scene, 1, clean=False)
    unfence(scene, 1)
    assign(scene, 1, directory(1, 1), topic_id)
    restart(scene, 2, clean=False)
    unfence(scene, 2)
    restart(scene, 1, clean=False, before=registered)
    unfence(scene, 1)
    assign(scene, 1, directory(1, 0), topic_id)
    assert state(scene) == (-1, (), ())
    fence(scene, 2)
    elect(scene, 1, [("orders", 0)])
    assert state(scene)[:2] == (1, (1,))


@pytest.mark.spec("CLU-33")
def test_a_broker_is_unregistered() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2])
    scene.run(unregister_broker, message("UnregisterBrokerRequest")(broker_id=3))
    assert set(scene.image.cluster.brokers) == {1, 2}
    with pytest.raises(ApiError, match="Broker ID 3 is not currently registered"):
        scene.run(unregister_broker, message("UnregisterBrokerRequest")(broker_id=3))
