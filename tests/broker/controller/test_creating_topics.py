"""CreateTopics and DeleteTopics: what they do, what they refuse, and with which messages."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.controller.scene import Scene, create_request

from ballast_broker.controller.commands.topics import create_topics, delete_topics
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message


def refusal(scene: Scene, *names: str, **options: Any) -> tuple[ErrorCode, str]:
    result = scene.run(create_topics, create_request(*names, **options)).topics[0]
    return ErrorCode(result.error_code), result.error_message


@pytest.mark.spec("TOP-20", "CLU-10")
def test_a_topic_is_created_with_its_configs() -> None:
    scene = Scene()
    request = create_request("orders", partitions=3, factor=2, configs={"retention.ms": "1000"})
    result = scene.run(create_topics, request).topics[0]
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 2)
    topic = scene.image.topics.by_name("orders")
    assert topic is not None
    assert topic.id == result.topic_id
    assert all(each.leader == each.replicas[0] for each in topic.partitions.values())
    assert dict(scene.image.configs.of(2, "orders")) == {"retention.ms": "1000"}
    assert {each.name: (each.value, each.config_source) for each in result.configs}["retention.ms"] == ("1000", 1)


@pytest.mark.spec("TOP-20")
def test_defaults_of_the_broker() -> None:
    scene = Scene(num_partitions=4, default_replication_factor=3)
    scene.run(create_topics, create_request("orders", partitions=-1, factor=-1))
    topic = scene.image.topics.by_name("orders")
    assert topic is not None
    assert [len(each.replicas) for each in topic.partitions.values()] == [3] * 4


@pytest.mark.spec("CLU-22")
def test_a_manual_assignment() -> None:
    scene = Scene()
    assignment = {0: [1, 2], 1: [1, 2], 2: [2, 1], 3: [2, 1]}
    scene.run(create_topics, create_request("orders", partitions=-1, factor=-1, assignment=assignment))
    assert [scene.partition("orders", each).replicas for each in range(4)] == [(1, 2), (1, 2), (2, 1), (2, 1)]


@pytest.mark.spec("TOP-20")
@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (
            {"partitions": 1, "factor": -1, "assignment": {0: [1]}},
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        ),
        (
            {"partitions": -1, "factor": 1, "assignment": {0: [1]}},
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        ),
        (
            {"partitions": -1, "factor": -1, "assignment": {0: [1], 2: [2]}},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            {"partitions": 0},
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (
            {"factor": 0},
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            {"configs": {"retention.ms": "soon"}},
            ErrorCode.INVALID_CONFIG,
            "Invalid value soon for configuration retention.ms: Not a number of type LONG",
        ),
        ({"configs": {"colour": "red"}}, ErrorCode.INVALID_CONFIG, "Unknown topic config name: colour"),
    ],
)
def test_requests_that_cannot_be(options: dict[str, Any], code: ErrorCode, text: str) -> None:
    scene = Scene()
    assert refusal(scene, "orders", **options) == (code, text)
    assert scene.image.topics.by_name("orders") is None


@pytest.mark.spec("TOP-22")
def test_more_replicas_than_brokers() -> None:
    code, text = refusal(Scene(), "orders", factor=4)
    assert code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert text == (
        "Unable to replicate the partition 4 time(s): The target replication factor of 4 cannot be reached because "
        "only 3 broker(s) are registered."
    )


@pytest.mark.spec("TOP-22")
def test_no_live_broker() -> None:
    scene = Scene(())
    scene.add_broker(1, fenced=True)
    code, text = refusal(scene, "orders")
    assert code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert text == "Unable to replicate the partition 1 time(s): All brokers are currently fenced."


@pytest.mark.spec("TOP-21")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a" * 250, f"the length of '{'a' * 250}' is longer than the max allowed length 249"),
        ("a b", "'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
    ],
)
def test_names_that_cannot_be(name: str, why: str) -> None:
    assert refusal(Scene(), name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {why}")


@pytest.mark.spec("TOP-21")
def test_names_that_metrics_could_not_tell_apart() -> None:
    scene = Scene()
    scene.add_topic("a.b", [1])
    assert refusal(scene, "a_b") == (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "Topic 'a_b' collides with existing topic: a.b",
    )
    results = scene.run(create_topics, create_request("x.y", "x_y")).topics
    assert [each.error_code for each in results] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_a_topic_that_exists() -> None:
    scene = Scene()
    scene.add_topic("orders", [1])
    assert refusal(scene, "orders") == (ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'orders' already exists.")


def test_a_topic_named_twice() -> None:
    scene = Scene()
    assert refusal(scene, "orders", "orders") == (ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    assert scene.image.topics.by_name("orders") is None


@pytest.mark.spec("TOP-20")
def test_validate_only_makes_nothing() -> None:
    scene = Scene()
    result = scene.run(create_topics, create_request("orders", partitions=2, validate_only=True)).topics[0]
    assert (result.error_code, result.num_partitions) == (0, 2)
    assert scene.image.topics.by_name("orders") is None


def test_too_many_partitions_at_once() -> None:
    with pytest.raises(ApiError, match="Excessively large number of partitions per request"):
        Scene().run(create_topics, create_request("orders", partitions=10_001))


def delete_request(*, names: tuple[str, ...] = (), ids: tuple[Any, ...] = ()) -> object:
    kind = message("DeleteTopicsRequest")
    topics = [kind.DeleteTopicState(name=name) for name in names]
    topics += [kind.DeleteTopicState(name=None, topic_id=each) for each in ids]
    return kind(topics=topics, topic_names=[], timeout_ms=1000)


@pytest.mark.spec("TOP-24")
def test_deleting_by_name_and_by_id() -> None:
    scene = Scene()
    first = scene.add_topic("first", [1], retention_ms="5")
    second = scene.add_topic("second", [1])
    response = scene.run(delete_topics, delete_request(names=("first",), ids=(second,)))
    assert [(each.name, each.topic_id, each.error_code) for each in response.responses] == [
        ("first", first, 0),
        ("second", second, 0),
    ]
    assert len(scene.image.topics) == 0
    assert not scene.image.configs.of(2, "first")
    scene.add_topic("first", [1])
    assert not scene.image.configs.of(2, "first"), "a topic created again has nothing of the old one"


@pytest.mark.spec("TOP-24")
def test_deletions_that_cannot_be() -> None:
    scene = Scene()
    topic_id = scene.add_topic("first", [1])
    scene.run(delete_topics, delete_request(names=("first",)))
    response = scene.run(delete_topics, delete_request(names=("first", "x", "x"), ids=(topic_id,)))
    codes = [ErrorCode(each.error_code).name for each in response.responses]
    assert codes == ["UNKNOWN_TOPIC_OR_PARTITION", "INVALID_REQUEST", "UNKNOWN_TOPIC_ID"]


@pytest.mark.spec("CLU-12", "CLU-21")
def test_a_broker_that_leaves_gets_replicas_only_where_there_are_not_enough_others() -> None:
    """During a rolling restart, topics can be created at any time."""
    scene = Scene()
    scene.change_broker(2, in_controlled_shutdown=True)
    result = scene.run(create_topics, create_request("orders", partitions=12)).topics[0]
    assert (result.error_code, result.error_message) == (0, None)
    scene.run(create_topics, create_request("copies", partitions=12, factor=2))
    for name in ("orders", "copies"):
        assert not [each for each in range(12) if 2 in scene.partition(name, each).replicas]
    scene.run(create_topics, create_request("everywhere", factor=3))
    everywhere = scene.partition("everywhere")
    assert (everywhere.replicas[-1], set(everywhere.isr)) == (2, {1, 3})
