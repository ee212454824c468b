"""Reassignments: begin, complete, replace and cancel them; grow and shrink."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.controller.scene import Scene
from tests.broker.controller.test_leaders import fence, unfence

from ballast_broker.controller.commands.isr import alter_partition
from ballast_broker.controller.commands.reassignments import (
    alter_partition_reassignments,
    list_partition_reassignments,
)
from ballast_broker.metadata.image import PartitionRegistration
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message


def reassign(scene: Scene, plan: dict[int, list[int] | None], topic: str = "orders", **options: Any) -> dict[int, Any]:
    kind = message("AlterPartitionReassignmentsRequest")
    partitions = [
        kind.ReassignableTopic.ReassignablePartition(partition_index=index, replicas=replicas)
        for index, replicas in plan.items()
    ]
    request = kind(
        topics=[kind.ReassignableTopic(name=topic, partitions=partitions)],
        timeout_ms=100,
        allow_replication_factor_change=options.get("allow", True),
    )
    response = scene.run(alter_partition_reassignments, request)
    return {
        each.partition_index: (ErrorCode(each.error_code), each.error_message)
        for each in response.responses[0].partitions
    }


def isr_becomes(scene: Scene, isr: list[int], partition_id: int = 0) -> ErrorCode:
    """Report an ISR as the leader would."""
    topic = scene.image.topics.by_name("orders")
    assert topic is not None
    partition = topic.partitions[partition_id]
    kind = message("AlterPartitionRequest")
    member = kind.TopicData.PartitionData.BrokerState
    data = kind.TopicData.PartitionData(
        partition_index=partition_id,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        new_isr_with_epochs=[member(broker_id=each, broker_epoch=-1) for each in isr],
        leader_recovery_state=0,
    )
    leader = partition.leader
    request = kind(
        broker_id=leader,
        broker_epoch=scene.image.cluster.brokers[leader].epoch,
        topics=[kind.TopicData(topic_id=topic.id, partitions=[data])],
    )
    return ErrorCode(scene.run(alter_partition, request).topics[0].partitions[0].error_code)


def shown(partition: PartitionRegistration) -> tuple[Any, ...]:
    return partition.replicas, partition.adding_replicas, partition.removing_replicas


OK = (ErrorCode.NONE, None)


@pytest.mark.spec("CLU-30")
def test_a_move_from_begin_to_end() -> None:
    scene = Scene(range(1, 7))
    scene.add_topic("orders", [1, 2, 3])
    assert reassign(scene, {0: [4, 5, 6]}) == {0: OK}
    moving = scene.partition("orders")
    assert shown(moving) == ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
    assert (moving.leader, moving.isr) == (1, (1, 2, 3))
    assert isr_becomes(scene, [1, 2, 3, 4]) is ErrorCode.NONE
    assert isr_becomes(scene, [1, 2, 3, 4, 5]) is ErrorCode.NONE
    assert shown(scene.partition("orders")) == ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
    assert isr_becomes(scene, [1, 2, 3, 4, 5, 6]) is ErrorCode.NEW_LEADER_ELECTED
    done = scene.partition("orders")
    assert shown(done) == ((4, 5, 6), (), ())
    assert (done.leader, done.isr, done.leader_epoch) == (4, (4, 5, 6), 1)
    assert len(done.directories) == 3
    assert not scene.image.topics.reassigning


@pytest.mark.spec("CLU-30")
def test_a_leader_that_stays_gets_a_new_epoch_so_that_removed_replicas_stop() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2])
    reassign(scene, {0: [1, 3]})
    assert isr_becomes(scene, [1, 2, 3]) is ErrorCode.NONE
    done = scene.partition("orders")
    assert (shown(done), done.leader, done.leader_epoch) == (((1, 3), (), ()), 1, 1)


@pytest.mark.spec("CLU-30")
def test_the_order_of_replicas_changes_at_once() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2])
    reassign(scene, {0: [2, 1]})
    assert shown(scene.partition("orders")) == ((2, 1), (), ())
    assert scene.partition("orders").leader == 1


@pytest.mark.spec("CLU-30")
def test_a_move_never_lowers_redundancy() -> None:
    """[1, 2, 3] with only 1 and 3 in sync goes to [1, 2]: dropping 3 now would leave one copy."""
    scene = Scene()
    scene.add_topic("orders", [1, 2, 3])
    assert isr_becomes(scene, [1, 3]) is ErrorCode.NONE
    assert reassign(scene, {0: [1, 2]}) == {0: OK}
    assert shown(scene.partition("orders")) == ((1, 2, 3), (), (3,))
    assert isr_becomes(scene, [1, 2, 3]) is ErrorCode.NONE
    assert shown(scene.partition("orders")) == ((1, 2), (), ())


@pytest.mark.spec("CLU-34")
def test_growing_and_shrinking_the_replication_factor() -> None:
    scene = Scene()
    scene.add_topic("orders", [1])
    reassign(scene, {0: [1, 2, 3]})
    assert shown(scene.partition("orders")) == ((1, 2, 3), (2, 3), ())
    isr_becomes(scene, [1, 2, 3])
    assert shown(scene.partition("orders")) == ((1, 2, 3), (), ())
    reassign(scene, {0: [3]})
    done = scene.partition("orders")
    assert (shown(done), done.leader, done.isr) == (((3,), (), ()), 3, (3,))


@pytest.mark.spec("CLU-34")
def test_a_change_of_the_factor_may_be_forbidden() -> None:
    scene = Scene()
    scene.add_topic("orders", [1])
    assert reassign(scene, {0: [1, 2]}, allow=False) == {
        0: (ErrorCode.INVALID_REPLICATION_FACTOR, "The replication factor is changed from 1 to 2")
    }


@pytest.mark.spec("CLU-30")
def test_a_second_plan_replaces_the_first() -> None:
    scene = Scene(range(1, 7))
    scene.add_topic("orders", [1, 2])
    reassign(scene, {0: [3, 4]})
    isr_becomes(scene, [1, 2, 3])
    reassign(scene, {0: [5, 2]})
    replaced = scene.partition("orders")
    assert shown(replaced) == ((5, 2, 1), (5,), (1,))
    assert replaced.isr == (1, 2), "3 is no part of the new plan and goes at once"
    isr_becomes(scene, [1, 2, 5])
    assert shown(scene.partition("orders")) == ((5, 2), (), ())


@pytest.mark.spec("CLU-30")
def test_cancelling_puts_the_original_back() -> None:
    scene = Scene(range(1, 7))
    scene.add_topic("orders", [1, 2])
    reassign(scene, {0: [3, 4]})
    isr_becomes(scene, [1, 2, 3])
    assert reassign(scene, {0: None}) == {0: OK}
    back = scene.partition("orders")
    assert (shown(back), back.isr, back.leader) == (((1, 2), (), ()), (1, 2), 1)
    assert reassign(scene, {0: None})[0][0] is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.spec("CLU-30")
def test_cancelling_after_a_second_plan_puts_the_very_first_back() -> None:
    scene = Scene(range(1, 9))
    scene.add_topic("orders", [1, 2])
    reassign(scene, {0: [3, 4]})
    reassign(scene, {0: [5, 6]})
    reassign(scene, {0: None})
    assert shown(scene.partition("orders")) == ((1, 2), (), ())


@pytest.mark.spec("CLU-30")
def test_cancelling_is_refused_when_only_new_replicas_are_in_sync() -> None:
    scene = Scene()
    scene.add_topic("orders", [1])
    reassign(scene, {0: [2, 3]})
    isr_becomes(scene, [1, 2])
    fence(scene, 1)
    assert scene.partition("orders").isr == (2,)
    assert reassign(scene, {0: None}) == {
        0: (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Unable to revert partition assignment for orders:0 because it would require an unclean leader election.",
        )
    }


@pytest.mark.spec("CLU-11", "CLU-30")
def test_who_led_last_and_was_taken_away_by_cancelling_does_not_lead_when_it_returns() -> None:
    """It has no replica any more: the partition would have no working leader, even once the others are back."""
    scene = Scene()
    scene.add_topic("orders", [1], unclean_leader_election_enable="true")
    reassign(scene, {0: [2, 3]})
    isr_becomes(scene, [1, 2])
    for broker in (1, 3, 2):
        fence(scene, broker)
    assert scene.partition("orders").last_known_elr == (2,)
    assert reassign(scene, {0: None}) == {0: OK}
    assert shown(scene.partition("orders")) == ((1,), (), ())
    unfence(scene, 2)
    assert scene.partition("orders").leader == -1
    unfence(scene, 1)
    assert (scene.partition("orders").leader, scene.partition("orders").isr) == (1, (1,))


@pytest.mark.spec("CLU-31")
def test_source_and_target_die_in_the_middle_and_the_move_still_ends() -> None:
    scene = Scene()
    scene.add_topic("orders", [1])
    reassign(scene, {0: [2]})
    fence(scene, 2)
    fence(scene, 1)
    assert scene.partition("orders").leader == -1
    unfence(scene, 2)
    assert scene.partition("orders").leader == -1, "the target has nothing yet"
    unfence(scene, 1)
    assert scene.partition("orders").leader == 1
    isr_becomes(scene, [1, 2])
    assert shown(scene.partition("orders")) == ((2,), (), ())


@pytest.mark.spec("CLU-30")
def test_each_partition_of_a_plan_stands_for_itself() -> None:
    scene = Scene()
    scene.add_topic("orders", [1], [1])
    results = reassign(scene, {0: [9], 1: [2], 7: [1]})
    assert results == {
        0: (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes broker 9, but no such broker is registered.",
        ),
        1: OK,
        7: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition orders:7."),
    }
    assert reassign(scene, {0: [1]}, topic="nothing") == {
        0: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find a topic named nothing.")
    }


@pytest.mark.spec("CLU-30")
def test_moves_in_progress_are_listed() -> None:
    scene = Scene()
    scene.add_topic("orders", [1], [1], [1])
    reassign(scene, {0: [2], 2: [1, 3]})
    listed = list_partition_reassignments(
        scene.context, message("ListPartitionReassignmentsRequest")(topics=None, timeout_ms=1)
    )
    found = {
        each.partition_index: (each.replicas, each.adding_replicas, each.removing_replicas)
        for each in listed.topics[0].partitions
    }
    assert found == {0: ([2, 1], [2], [1]), 2: ([1, 3], [3], [])}
    kind = message("ListPartitionReassignmentsRequest")
    wanted = [kind.ListPartitionReassignmentsTopics(name="orders", partition_indexes=[1, 2])]
    listed = list_partition_reassignments(scene.context, kind(topics=wanted, timeout_ms=1))
    assert [each.partition_index for each in listed.topics[0].partitions] == [2]
