"""A topic that is there at our first attempt to create it is another's, unless that may have been our second one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import kafka.errors as kafka_errors
import pytest
from tests.operator.test_ledger import OneConfigMap, ledger
from tests.operator.test_left_behind import Told
from tests.operator.world import World

from ballast_operator.apply.kafka import create_topics
from ballast_operator.cache import Cache
from ballast_operator.handlers import topics as handler_of_topics
from ballast_operator.handlers.topic_statuses import Batch
from ballast_operator.handlers.topics import TopicHandler
from ballast_operator.kafka_client import Answer, KafkaConnection, _send_side_by_side
from ballast_operator.ledger import Ledger
from ballast_operator.model.actions import CreateTopic
from ballast_operator.model.kafka import TopicView
from ballast_operator.model.meta import Key
from ballast_operator.model.topic import KafkaTopic
from ballast_operator.observe import observe_leader, observe_topics
from ballast_operator.plan.topics import Intent

DEMO = Key("default", "demo")


def added(cache: Cache, name: str, uid: str) -> KafkaTopic:
    spec = {"clusterRef": {"name": "demo"}, "partitions": 1, "deletionPolicy": "Delete"}
    meta = {"name": name, "namespace": "default", "uid": uid, "generation": 1, "finalizers": ["ballast.dev/finalizer"]}
    _, topic = cache.put_topic({"metadata": meta, "spec": spec})
    assert topic is not None
    return topic


@pytest.mark.spec("OPR-04", "OPR-20", "TOP-01")
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("written", "twice", "reason"), [(False, False, "TopicExists"), (True, False, "Ready"), (False, True, "Ready")]
)
def test_a_topic_that_somebody_made_between_our_look_and_our_attempt(
    ballast_world: World, monkeypatch: pytest.MonkeyPatch, written: bool, twice: bool, reason: str
) -> None:
    """It became ours, and went with the KafkaTopic if that says so. `written`: by an operator that was killed
    before it knew how its attempt came out. `twice`: the broker that was asked first did not answer."""
    world, name = ballast_world, f"between-{int(written)}-{int(twice)}"
    cache, looks = Cache(), 0
    cache.clusters.put(world.get("KafkaCluster", "demo") or {})
    topic = added(cache, name, "uid")

    async def look(*given: Any) -> tuple[dict[str, TopicView], frozenset[str], dict[str, str]]:
        nonlocal looks
        looks += 1
        if looks > 1:
            return await observe_topics(*given)
        await create_topics(world.kafka, [CreateTopic(name, 1, 2)])
        return {}, frozenset({name}), {}

    monkeypatch.setattr(handler_of_topics, "observe_topics", look)
    if twice:
        send = KafkaConnection.send_all_to_controller

        async def send_again(self: KafkaConnection, *given: Any) -> list[Answer]:
            return [answer._replace(again=True) for answer in await send(self, *given)]

        monkeypatch.setattr(KafkaConnection, "send_all_to_controller", send_again)

    async def scenario() -> tuple[Batch, Ledger]:
        kept = ledger()
        kept._api = OneConfigMap()
        if written:
            await kept.record({"uid": Intent(name, create=True)}, cache)
        batch = Batch({topic.key: topic})
        await TopicHandler(DEMO, cache, cast(Any, Told()), cast(Any, None))._rounds(batch, world.kafka, kept)
        return batch, kept

    batch, kept = world.run(scenario())
    assert batch.plans[topic.key].verdict.reason == reason
    assert set(world.run(kept.load())) == (set() if reason == "TopicExists" else {"uid"})


class Quorum:
    """A connection to brokers; what they pass on goes a second time where the first controller is lost meanwhile."""

    def __init__(self, epochs: list[int], code: int) -> None:
        self.epochs, self.code = epochs, code

    async def supports(self, _: object) -> bool:
        return True

    async def send(self, _: object) -> Any:
        part = SimpleNamespace(leader_id=1, leader_epoch=self.epochs.pop(0), error_code=0)
        return SimpleNamespace(topics=[SimpleNamespace(partitions=[part])], error_code=0)

    async def send_all_to_controller(self, *_: object) -> list[Answer]:
        row = SimpleNamespace(name="orders", error_code=self.code, error_message=None, topic_id=None)
        return [Answer(SimpleNamespace(topics=[row]))]


@pytest.mark.spec("OPR-04", "TOP-01")
@pytest.mark.parametrize(
    ("epochs", "code", "doubtful"),
    [([5, 5], kafka_errors.TopicAlreadyExistsError.errno, False), ([5, 6], 36, True), ([5], 0, False)],
)
async def test_brokers_pass_a_creation_on_again_when_the_controller_changes(
    epochs: list[int], code: int, doubtful: bool
) -> None:
    """A thousand topics of our own would need a person, one by one."""
    kafka = Quorum(epochs, code)
    outcomes = await create_topics(cast(KafkaConnection, kafka), [CreateTopic("orders", 1, 1)])
    assert outcomes["orders"].doubtful is doubtful
    assert kafka.epochs == []


@pytest.mark.spec("OPR-04")
@pytest.mark.parametrize("lost", [False, True])
async def test_a_request_that_went_a_second_time_says_so(lost: bool) -> None:
    class Manager:
        def __init__(self) -> None:
            self.config = {"request_timeout_ms": 1000}

        def least_loaded_node(self) -> int:
            return 0

        async def send(self, _: object, node_id: int) -> str:
            nonlocal lost
            if lost:
                lost = False
                raise kafka_errors.KafkaConnectionError("closed")
            return "done"

    expected = Answer("done", again=lost)
    assert await _send_side_by_side(Manager(), ["request"]) == [expected]


@pytest.mark.timeout(240)
def test_the_quorum_tells_its_leader_and_epoch(ballast_world: World) -> None:
    leader = ballast_world.run(observe_leader(ballast_world.kafka))
    assert leader is not None
    assert (leader[0], leader[1] > 0) == (ballast_world.view().controller, True)
