"""CreatePartitions: what it does, what it refuses, and with which messages."""

from __future__ import annotations

from uuid import UUID

import pytest
from tests.broker.controller.scene import Scene, expand_request

from ballast_broker.controller.commands.partitions import create_partitions
from ballast_broker.metadata.image import PartitionRegistration
from ballast_wire.errors import ApiError, ErrorCode


def refusal(scene: Scene, name: str, count: int, assignment: list[list[int]] | None = None) -> tuple[ErrorCode, str]:
    before = scene.image
    result = scene.run(create_partitions, expand_request((name, count, assignment))).results[0]
    assert scene.image.topics is before.topics, "a refused expansion changed something"
    return ErrorCode(result.error_code), result.error_message


@pytest.mark.spec("TOP-01", "TOP-04", "TOP-12")
def test_new_partitions_are_placed_led_and_in_sync() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2])
    response = scene.run(create_partitions, expand_request(("orders", 4, None)))
    assert response.results[0].error_code == 0
    for partition in range(1, 4):
        new = scene.partition("orders", partition)
        assert len(set(new.replicas)) == 2
        assert new.isr == new.replicas
        assert (new.leader, new.leader_epoch, new.partition_epoch) == (new.replicas[0], 0, 0)
    assert len({scene.partition("orders", each).replicas for each in range(1, 4)}) == 3


@pytest.mark.spec("TOP-02")
def test_each_topic_of_a_batch_stands_for_itself() -> None:
    scene = Scene()
    scene.add_topic("a1", [1])
    scene.add_topic("a2", [1], [2], [3])
    response = scene.run(create_partitions, expand_request(("a1", 2, None), ("a2", 2, None)))
    by_name = {each.name: each for each in response.results}
    assert by_name["a1"].error_code == 0
    assert by_name["a2"].error_code == ErrorCode.INVALID_PARTITIONS
    topic = scene.image.topics.by_name("a1")
    assert topic is not None
    assert len(topic.partitions) == 2


@pytest.mark.spec("TOP-03")
def test_an_assignment_is_taken_as_given() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2])
    scene.run(create_partitions, expand_request(("orders", 3, [[2, 3], [3, 1]])))
    assert scene.partition("orders", 1).replicas == (2, 3)
    assert scene.partition("orders", 2).replicas == (3, 1)
    assert scene.partition("orders", 0).replicas == (1, 2)


@pytest.mark.spec("TOP-06")
def test_a_topic_named_twice_is_refused_alone() -> None:
    scene = Scene()
    scene.add_topic("orders", [1])
    scene.add_topic("other", [1])
    request = expand_request(("orders", 2, None), ("other", 2, None), ("orders", 3, None))
    results = {each.name: each for each in scene.run(create_partitions, request).results}
    assert results["orders"].error_code == ErrorCode.INVALID_REQUEST
    assert results["orders"].error_message == "Duplicate topic name."
    assert results["other"].error_code == 0


@pytest.mark.spec("TOP-06")
def test_an_unknown_topic() -> None:
    assert refusal(Scene(), "nothing", 2)[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.spec("TOP-07")
def test_a_topic_that_is_being_reassigned() -> None:
    scene = Scene()
    moving = PartitionRegistration((3, 1), scene_directories(3, 1), (1,), (1,), (3,), leader=1)
    scene.add_topic("orders", moving)
    code, text = refusal(scene, "orders", 2)
    assert code is ErrorCode.REASSIGNMENT_IN_PROGRESS
    assert text == "A partition reassignment is in progress for the topic 'orders'."


@pytest.mark.spec("TOP-07")
def test_another_topic_may_be_reassigned() -> None:
    scene = Scene()
    scene.add_topic("moving", PartitionRegistration((3, 1), scene_directories(3, 1), (1,), (1,), (3,), leader=1))
    scene.add_topic("orders", [1, 2])
    assert scene.run(create_partitions, expand_request(("orders", 2, None))).results[0].error_code == 0


@pytest.mark.spec("CLI-09")
def test_while_nothing_is_reassigned_no_partition_is_looked_at_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.add_topic("orders", *([1, 2] for _ in range(50)))
    looked_at: list[PartitionRegistration] = []
    monkeypatch.setattr(PartitionRegistration, "is_reassigning", property(looked_at.append))
    response = create_partitions(scene.context, expand_request(("orders", 51, None))).response
    assert (response.results[0].error_code, looked_at) == (0, [])


def scene_directories(*brokers: int) -> tuple[UUID, ...]:
    from tests.broker.controller.scene import directory

    return tuple(directory(each) for each in brokers)


@pytest.mark.spec("TOP-08")
@pytest.mark.parametrize(
    ("count", "text"),
    [
        (3, "Topic already has 3 partition(s)."),
        (2, "The topic orders currently has 3 partition(s); 2 would not be an increase."),
        (0, "The topic orders currently has 3 partition(s); 0 would not be an increase."),
    ],
)
def test_a_count_that_is_not_larger(count: int, text: str) -> None:
    scene = Scene()
    scene.add_topic("orders", [1], [2], [3])
    assert refusal(scene, "orders", count) == (ErrorCode.INVALID_PARTITIONS, text)


@pytest.mark.spec("TOP-09")
@pytest.mark.parametrize(
    ("assignment", "text"),
    [
        ([[1, 9]], "The manual partition assignment includes broker 9, but no such broker is registered."),
        ([[1, 1]], "The manual partition assignment includes the broker 1 more than once."),
        ([[]], "The manual partition assignment includes an empty replica list."),
        (
            [[1]],
            "The manual partition assignment includes a partition with 1 replica(s), but this is not consistent with "
            "previous partitions, which have 2 replica(s).",
        ),
        (
            [[1, 2], [2, 3]],
            "Attempted to add 1 additional partition(s), but only 2 assignment(s) were specified.",
        ),
        ([], "Attempted to add 1 additional partition(s), but only 0 assignment(s) were specified."),
    ],
)
def test_assignments_that_cannot_be(assignment: list[list[int]], text: str) -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2])
    assert refusal(scene, "orders", 2, assignment) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)


@pytest.mark.spec("TOP-09")
def test_an_assignment_to_dead_brokers_only() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2])
    scene.change_broker(2, fenced=True)
    scene.change_broker(3, in_controlled_shutdown=True)
    code, text = refusal(scene, "orders", 2, [[2, 3]])
    assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert text == (
        "All brokers specified in the manual partition assignment for partition 1 are fenced or in controlled shutdown."
    )


@pytest.mark.spec("TOP-12")
def test_dead_replicas_of_a_new_partition_are_not_in_sync() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2])
    scene.change_broker(2, fenced=True)
    scene.run(create_partitions, expand_request(("orders", 2, [[2, 3]])))
    new = scene.partition("orders", 1)
    assert (new.leader, new.isr) == (3, (3,))


@pytest.mark.spec("TOP-10")
def test_validate_only_checks_everything_and_changes_nothing() -> None:
    scene = Scene()
    scene.add_topic("orders", [1, 2])
    before = scene.image
    request = expand_request(("orders", 3, None), ("nothing", 2, None), validate_only=True)
    results = {each.name: each.error_code for each in scene.run(create_partitions, request).results}
    assert results == {"orders": 0, "nothing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert scene.image.topics is before.topics


def test_too_many_partitions_at_once_are_refused_before_they_are_placed() -> None:
    """Two billion: placing them would block the broker for hours (a mutated request asked for them)."""
    scene = Scene()
    scene.add_topic("orders", [1, 2])
    scene.add_topic("bills", [1, 2])
    for wanted in ([("orders", 2**31 - 1, None)], [("orders", 6_001, None), ("bills", 6_001, None)]):
        with pytest.raises(ApiError, match="Excessively large number of partitions per request"):
            scene.run(create_partitions, expand_request(*wanted))
