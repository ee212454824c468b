"""What a look asks of the configurations of its topics."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.operator.world import World

from ballast_operator.apply.kafka import create_topics
from ballast_operator.cache import Cache
from ballast_operator.handlers.topics import TopicHandler
from ballast_operator.model.actions import CreateTopic
from ballast_operator.model.kafka import TopicView
from ballast_operator.model.meta import Key
from ballast_operator.model.topic import KafkaTopic
from ballast_operator.observe import Settings

DEMO = Key("default", "demo")


def topic(cache: Cache, name: str, **spec: Any) -> KafkaTopic:
    meta = {"name": name, "namespace": "default", "uid": name, "generation": 1}
    _, found = cache.put_topic({"metadata": meta, "spec": {"clusterRef": {"name": "demo"}, **spec}})
    assert found is not None
    return found


@pytest.mark.spec("OPR-05", "OPR-21")
@pytest.mark.timeout(240)
def test_all_that_is_to_be_known_of_topics_is_one_request_and_no_more_than_that(
    ballast_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty more of each topic were read, in one request, and min.insync.replicas in another."""
    world, cache = ballast_world, Cache()
    set_there = {"retention.ms": "600000", "min.insync.replicas": "2", "segment.ms": "700000"}
    names = ("plain", "configured", "exact")
    world.run(create_topics(world.kafka, [CreateTopic(f"asked-{name}", 1, 1, (), set_there) for name in names]))
    topics = [
        topic(cache, "asked-plain"),
        topic(cache, "asked-configured", config={"retention.ms": "1"}),
        topic(cache, "asked-exact", configPolicy="Exact"),
        topic(cache, "asked-missing", config={"retention.ms": "1"}),
    ]
    world.until("all brokers know of them", lambda: world.view().topics.keys() >= {one.topic for one in topics[:3]})
    asked: list[Any] = []

    async def send(request: Any, node: int | None = None) -> Any:
        asked.append(request)
        return await type(world.kafka).send(world.kafka, request, node)

    async def look() -> Any:
        handler = TopicHandler(DEMO, cache, cast(Any, None), cast(Any, None))
        views = {one.topic: TopicView("", {}) for one in topics}
        return await handler._observe_settings({one.key: one for one in topics}, views, world.kafka, {})

    monkeypatch.setattr(world.kafka, "send", send)
    read, errors = world.run(look())
    assert read == {
        "asked-plain": Settings({"min.insync.replicas": "2"}, 2),
        "asked-configured": Settings({"min.insync.replicas": "2", "retention.ms": "600000"}, 2),
        "asked-exact": Settings(set_there, 2),
    }
    assert errors == {"asked-missing": "UNKNOWN_TOPIC_OR_PARTITION"}
    assert len(asked) == 1
