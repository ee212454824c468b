"""A request for a missing topic is answered at once, however long its automatic creation takes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.broker.api.asking import Asker
from tests.broker.controller.scene import Scene

from ballast_broker import seldom
from ballast_broker.api.automatic_topics import AutomaticTopics
from ballast_broker.controller.commands.context import MAX_RECORDS_PER_BATCH
from ballast_broker.controller.commands.topics import create_topics
from ballast_broker.coordinator.store import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ballast_wire.errors import ErrorCode


class Hanging:
    """A controller that answers when the test lets it."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.answer = asyncio.Event()

    async def call(self, request: Any, version: int, *, timeout_s: float, asker: Any = None) -> Any:
        self.asked.append([topic.name for topic in request.topics])
        await self.answer.wait()
        return type("Response", (), {"topics": []})()


@pytest.mark.spec("TOP-25")
async def test_nobody_waits_for_a_creation_and_requests_share_one() -> None:
    scene = Scene()
    asker = Asker(scene, **{"offsets.topic.replication.factor": "1"})
    controller: Any = Hanging()
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, None], name: str) -> None:
        tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    topics = AutomaticTopics(asker.config, lambda: scene.image, controller, spawn)
    asker.services.create_topics_automatically = topics.create
    asker.services.create_internal_topic = topics.create_internal
    for _ in range(3):
        answer = await asker.ask(
            "Metadata", 12, topics=[{"name": "new", "topic_id": None}], allow_auto_topic_creation=1
        )
        assert [each["error_code"] for each in answer["topics"]] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        found = await asker.ask("FindCoordinator", 2, key="group", key_type=0)
        assert found["error_code"] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await asyncio.sleep(0)
    assert controller.asked == [["new"], [OFFSETS_TOPIC]]
    controller.answer.set()
    await asyncio.gather(*tasks)
    topics.create(["new"])
    await asyncio.sleep(0)
    assert controller.asked[2:] == [["new"]]
    await tasks[-1]


async def test_too_few_brokers_for_the_offsets_topic_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene((1,))
    asker = Asker(scene, **{"offsets.topic.replication.factor": "3"})
    nobody: Any = None  # no controller is asked
    topics = AutomaticTopics(asker.config, lambda: scene.image, nobody, lambda work, _: work.close())
    for _ in range(100):
        topics.create_internal(OFFSETS_TOPIC)
    [said] = caplog.messages
    assert "there are 1" in said


class Refusing:
    """A controller that has too few brokers for each topic."""

    async def call(self, request: Any, version: int, *, timeout_s: float, asker: Any = None) -> Any:
        refused = {"error_code": ErrorCode.INVALID_REPLICATION_FACTOR, "error_message": "too few brokers"}
        topics = [type("Topic", (), {"name": each.name, **refused})() for each in request.topics]
        return type("Response", (), {"topics": topics})()


async def test_a_topic_that_cannot_be_created_is_told_once_a_minute_however_often_clients_ask(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene()
    controller: Any = Refusing()
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, None], name: str) -> None:
        tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    topics = AutomaticTopics(Asker(scene).config, lambda: scene.image, controller, spawn)

    async def ask_often() -> None:
        for _ in range(100):
            topics.create(["new"])
            await tasks[-1]

    told = "topics that clients asked for could not be created: new: too few brokers"
    await ask_often()
    assert caplog.messages == [told]
    monkeypatch.setattr(seldom, "TELL_AGAIN_S", 0.0)
    topics.create(["new"])
    await tasks[-1]
    assert caplog.messages == [told] * 2


class Recording:
    """A controller that records requests."""

    def __init__(self) -> None:
        self.topics: list[Any] = []

    async def call(self, request: Any, version: int, *, timeout_s: float, asker: Any = None) -> Any:
        self.topics.extend(request.topics)
        return type("Response", (), {"topics": []})()


@pytest.mark.spec("TOP-25")
async def test_what_somebody_asks_for_is_made_as_the_properties_of_this_broker_say() -> None:
    scene = Scene()
    asker = Asker(scene, **{"num.partitions": "6", "default.replication.factor": "2"})
    controller: Any = Recording()
    tasks: list[asyncio.Task[None]] = []
    topics = AutomaticTopics(
        asker.config, lambda: scene.image, controller, lambda work, _: tasks.append(asyncio.create_task(work))
    )
    topics.create(["new"])
    await asyncio.gather(*tasks)
    [topic] = controller.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("new", 6, 2)


class Creating:
    """A controller that carries out requests."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    async def call(self, request: Any, version: int, *, timeout_s: float, asker: Any = None) -> Any:
        return self.scene.run(create_topics, request)


@pytest.mark.spec("TOP-25")
async def test_more_topics_than_a_controller_makes_at_once_are_made_all_the_same() -> None:
    scene = Scene()
    asker = Asker(scene, **{"num.partitions": "3"})
    controller: Any = Creating(scene)
    tasks: list[asyncio.Task[None]] = []
    topics = AutomaticTopics(
        asker.config, lambda: scene.image, controller, lambda work, _: tasks.append(asyncio.create_task(work))
    )
    names = {f"topic-{number}" for number in range(MAX_RECORDS_PER_BATCH // 3 + 1)}
    topics.create(sorted(names))
    await asyncio.gather(*tasks)
    assert {topic.name for topic in scene.image.topics} == names


@pytest.mark.spec("CLI-05")
async def test_the_transaction_log_is_made_as_its_properties_say() -> None:
    scene = Scene()
    asker = Asker(
        scene,
        **{
            "transaction.state.log.replication.factor": "2",
            "transaction.state.log.num.partitions": "7",
            "transaction.state.log.segment.bytes": "2000000",
        },
    )
    controller: Any = Recording()
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, None], _: str) -> None:
        tasks.append(asyncio.get_running_loop().create_task(work))

    topics = AutomaticTopics(asker.config, lambda: scene.image, controller, spawn)
    asker.services.create_internal_topic = topics.create_internal
    found = await asker.ask("FindCoordinator", 4, coordinator_keys=["tx"], key_type=1)
    assert found["coordinators"][0]["error_code"] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await asyncio.gather(*tasks)
    [topic] = controller.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (TRANSACTIONS_TOPIC, 7, 2)
    assert {each.name: each.value for each in topic.configs} == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": "2000000",
        "unclean.leader.election.enable": "false",
    }
