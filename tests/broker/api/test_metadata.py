"""Metadata and DescribeTopicPartitions: topics, partitions and brokers in their responses."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from tests.broker import turning
from tests.broker.api.asking import Asker
from tests.broker.controller.scene import Scene, directory

from ballast_broker.metadata.image import Listener, PartitionRegistration
from ballast_wire.errors import ErrorCode

NO_ID = uuid.UUID(int=0)
NOT_ASKED = -(2**31)


@pytest.fixture
def scene() -> Scene:
    scene = Scene((1, 2, 3))
    scene.add_topic("orders", [1, 2], [2, 3])
    return scene


def names(answer: Any) -> dict[str, int]:
    return {topic["name"]: topic["error_code"] for topic in answer["topics"]}


@pytest.mark.parametrize("version", range(14))
async def test_all_topics_are_asked_for_in_each_version_its_way(scene: Scene, version: int) -> None:
    answer = await Asker(scene).ask("Metadata", version, topics=[] if version == 0 else None)
    assert names(answer) == {"orders": 0}
    assert [each["node_id"] for each in answer["brokers"]] == [1, 2, 3]
    partitions = answer["topics"][0]["partitions"]
    assert [(each["partition_index"], each["leader_id"]) for each in partitions] == [(0, 1), (1, 2)]


@pytest.mark.spec("CLI-09")
async def test_a_topic_of_many_partitions_takes_many_turns(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.add_topic("large", *[[1, 2]] * 50)
    turning.end_at_once(monkeypatch)
    answer, turns = await turning.beside(Asker(scene).ask("Metadata", 12, topics=[{"name": "large"}]))
    assert [each["partition_index"] for each in answer["topics"][0]["partitions"]] == list(range(50))
    assert turns >= 50


@pytest.mark.parametrize("version", range(1, 14))
async def test_an_empty_list_asks_for_none(scene: Scene, version: int) -> None:
    assert names(await Asker(scene).ask("Metadata", version, topics=[])) == {}


@pytest.mark.spec("TOP-25")
async def test_a_missing_topic_is_created_for_who_allows_it(scene: Scene) -> None:
    asker = Asker(scene)
    topics = [{"name": "new"}, {"name": "not possible"}, {"name": "orders"}]
    answer = await asker.ask("Metadata", 5, topics=topics, allow_auto_topic_creation=True)
    assert names(answer) == {
        "orders": 0,
        "new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "not possible": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert asker.created == ["new"]
    await asker.ask("Metadata", 5, topics=[{"name": "other"}], allow_auto_topic_creation=False)
    assert asker.created == ["new"]
    await asker.ask("Metadata", 3, topics=[{"name": "old"}])  # clients that cannot forbid it
    assert asker.created == ["new", "old"]


@pytest.mark.spec("TOP-25")
async def test_nothing_is_created_where_the_broker_forbids_it(scene: Scene) -> None:
    asker = Asker(scene, **{"auto.create.topics.enable": "false"})
    answer = await asker.ask("Metadata", 5, topics=[{"name": "new"}], allow_auto_topic_creation=True)
    assert names(answer) == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert asker.created == []


async def test_by_id_and_by_unknown_id(scene: Scene) -> None:
    known = scene.image.topics.by_name("orders")
    assert known is not None
    unknown = uuid.UUID(int=4242)
    topics = [{"name": None, "topic_id": known.id}, {"name": None, "topic_id": unknown}]
    answer = await Asker(scene).ask("Metadata", 12, topics=topics)
    assert [(each["name"], each["topic_id"], each["error_code"]) for each in answer["topics"]] == [
        ("orders", known.id, 0),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


async def test_ids_in_versions_that_have_none_refuse_the_whole(scene: Scene) -> None:
    topics = [{"name": "orders", "topic_id": uuid.UUID(int=7)}]
    answer = await Asker(scene).ask("Metadata", 11, topics=topics)
    assert names(answer) == {"orders": ErrorCode.INVALID_REQUEST}
    assert answer["brokers"] == []
    assert answer["controller_id"] == -1


async def test_operations_only_where_asked(scene: Scene) -> None:
    asker = Asker(scene)
    plainly = await asker.ask("Metadata", 9, topics=[{"name": "orders"}])
    assert plainly["topics"][0]["topic_authorized_operations"] == NOT_ASKED
    assert plainly["cluster_authorized_operations"] == NOT_ASKED
    asked = await asker.ask(
        "Metadata",
        9,
        topics=[{"name": "orders"}],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert asked["topics"][0]["topic_authorized_operations"] == 3576
    assert asked["cluster_authorized_operations"] == 8096


@pytest.mark.spec("CLU-01")
async def test_fenced_brokers_are_not_shown_and_their_replicas_are_offline(scene: Scene) -> None:
    scene.change_broker(2, fenced=True)
    answer = await Asker(scene).ask("Metadata", 9, topics=[{"name": "orders"}])
    assert [each["node_id"] for each in answer["brokers"]] == [1, 3]
    assert [each["offline_replicas"] for each in answer["topics"][0]["partitions"]] == [[2], [2]]


@pytest.mark.spec("DIR-41")
async def test_a_replica_in_a_directory_that_failed_is_offline(scene: Scene) -> None:
    scene.change_broker(2, directories=frozenset({uuid.UUID(int=123456)}))
    answer = await Asker(scene).ask("Metadata", 9, topics=[{"name": "orders"}])
    assert [each["offline_replicas"] for each in answer["topics"][0]["partitions"]] == [[2], [2]]


@pytest.mark.parametrize(("version", "error"), [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)])
async def test_a_leader_that_this_listener_cannot_reach(scene: Scene, version: int, error: ErrorCode) -> None:
    scene.change_broker(2, listeners={"OTHER": Listener("elsewhere", 9)})
    answer = await Asker(scene).ask("Metadata", version, topics=[{"name": "orders"}])
    partition = answer["topics"][0]["partitions"][1]
    assert (partition["error_code"], partition["leader_id"]) == (error, -1)


async def test_a_partition_without_leader(scene: Scene) -> None:
    scene.add_topic("idle", PartitionRegistration((2,), (directory(2),), (2,), leader=-1))
    answer = await Asker(scene).ask("Metadata", 9, topics=[{"name": "idle"}])
    assert answer["topics"][0]["partitions"][0]["error_code"] == ErrorCode.LEADER_NOT_AVAILABLE


async def test_the_oldest_version_leaves_unreachable_replicas_out(scene: Scene) -> None:
    scene.change_broker(3, listeners={"OTHER": Listener("elsewhere", 9)})
    answer = await Asker(scene).ask("Metadata", 0, topics=[{"name": "orders"}])
    second = answer["topics"][0]["partitions"][1]
    assert second["replica_nodes"] == second["isr_nodes"] == [2]
    assert second["error_code"] == ErrorCode.REPLICA_NOT_AVAILABLE


async def test_the_controller_is_any_live_broker_in_turn(scene: Scene) -> None:
    asker = Asker(scene)
    told = {(await asker.ask("Metadata", 9, correlation_id=each, topics=[]))["controller_id"] for each in range(6)}
    assert told == {1, 2, 3}
    for broker_id in (1, 2, 3):
        scene.change_broker(broker_id, fenced=True)
    assert (await asker.ask("Metadata", 9, topics=[]))["controller_id"] == -1


async def pages(asker: Asker, limit: int) -> list[list[tuple[str, list[int]]]]:
    found, cursor = [], None
    for _ in range(20):
        answer = await asker.ask("DescribeTopicPartitions", 0, topics=[], response_partition_limit=limit, cursor=cursor)
        found.append([(each["name"], [p["partition_index"] for p in each["partitions"]]) for each in answer["topics"]])
        cursor = answer["next_cursor"]
        if cursor is None:
            return found
    raise AssertionError("the pages do not end")


async def test_pages_together_are_all_partitions_once(scene: Scene) -> None:
    scene.add_topic("a", [1], [2], [3])
    scene.add_topic("z", [1])
    asker = Asker(scene)
    everything = [("a", 0), ("a", 1), ("a", 2), ("orders", 0), ("orders", 1), ("z", 0)]
    for limit in range(1, 8):
        told = await pages(asker, limit)
        assert [(name, index) for page in told for name, indexes in page for index in indexes] == everything
        assert all(sum(len(indexes) for _, indexes in page) <= limit for page in told)


async def test_a_page_is_bounded_by_the_broker_too(scene: Scene) -> None:
    asker = Asker(scene, **{"max.request.partition.size.limit": "1"})
    assert [len(page) for page in await pages(asker, 2000)] == [1, 1]


async def test_eligible_replicas_are_told(scene: Scene) -> None:
    places = (directory(1), directory(2))
    scene.add_topic("elr", PartitionRegistration((1, 2), places, (1,), elr=(2,), leader=1))
    answer = await Asker(scene).ask("DescribeTopicPartitions", 0, topics=[{"name": "elr"}])
    assert answer["topics"][0]["partitions"][0]["eligible_leader_replicas"] == [2]
