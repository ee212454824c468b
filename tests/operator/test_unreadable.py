"""An object whose spec cannot be read: a list in the config of a KafkaTopic, say, which its schema cannot refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from tests.operator.making import NOW
from tests.operator.test_left_behind import CLUSTER, GOING, NOBODY, Told, body, shared_by

from ballast_operator.cache import Cache
from ballast_operator.cycle import ClusterCycle
from ballast_operator.model.meta import Key
from ballast_operator.model.topic import KafkaTopic
from ballast_operator.plan.lifecycle import Goal, goal_of
from ballast_operator.plan.topics import TopicFacts, plan_topic
from ballast_operator.runtime import Runtime
from ballast_operator.worker import Work

REFERENCE = {"clusterRef": {"name": "demo"}}
LIST = {**REFERENCE, "deletionPolicy": "Delete", "config": {"cleanup.policy": ["compact", "delete"]}}
LATER = "2026-02-01T00:00:00Z"


@pytest.mark.spec("OPR-02")
async def test_of_one_that_was_changed_and_cannot_be_read_either_the_status_speaks_of_the_present_spec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It spoke of the former one for ever, so that Argo CD showed Progressing, and Flux waited."""
    runtime, written = Runtime(NOBODY), list[dict[str, Any]]()

    async def merge(_: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        written.append(patch["status"])
        return {}

    async def hear(generation: int, status: dict[str, Any]) -> None:
        found = body("orders", LIST, status, resourceVersion=str(10 * generation + len(written)), generation=generation)
        runtime.heard("KafkaTopic", found)
        await asyncio.gather(*runtime._telling)

    monkeypatch.setattr(runtime, "_acts_in", lambda _: True)
    monkeypatch.setattr(runtime, "_now", lambda: NOW)
    monkeypatch.setattr(runtime.api, "merge", merge)
    await hear(1, {})
    monkeypatch.setattr(runtime, "_now", lambda: LATER)
    await hear(1, written[-1])
    assert len(written) == 1
    await hear(2, written[-1])
    assert [one["observedGeneration"] for one in written] == [1, 2]
    assert {one["observedGeneration"] for one in written[-1]["conditions"]} == {2}
    assert {one["lastTransitionTime"] for one in written[-1]["conditions"]} == {NOW}
    await hear(2, written[-1])
    assert len(written) == 2
    await runtime.stop()


@pytest.mark.spec("OPR-20", "OPR-25")
def test_one_that_is_deleted_goes_as_any_other() -> None:
    """Its finalizer held it, and its namespace, until somebody had corrected what nobody needed any more."""
    cache, told = Cache(), Told()
    _, topic = cache.put_topic(body("orders", LIST, {"topicId": "t", "partitions": 1}, **GOING))
    assert topic is not None
    assert plan_topic(topic, TopicFacts(missing=True)).delete_id == "t"
    odd = {**REFERENCE, "drainBrokers": [1], "expiresAt": "0000-01-01T00:00:00Z"}
    _, moves = cache.put_reassignment(body("moves", odd, {"phase": "Running", "startedAt": NOW}, **GOING))
    assert moves is not None
    assert goal_of(moves) is Goal.STOP
    cache.clusters.listed.add(None)
    asyncio.run(ClusterCycle(CLUSTER, shared_by(cache, told)).run(Work({topic.key}, reassignments=True, cluster=True)))
    assert told.finalizers == {"orders": False, "moves": False}


@pytest.mark.spec("OPR-08", "OPR-24")
def test_one_that_describes_a_topic_keeps_it_from_the_younger_ones() -> None:
    """The younger one took the topic over, and deleted it with its data when it went as it had been told to."""
    cache = Cache()
    cache.put_topic(body("older", {**LIST, "topicName": "x"}, {"topicId": "t", "partitions": 1}, creationTimestamp=NOW))
    cache.put_topic(body("younger", {**REFERENCE, "topicName": "x"}, creationTimestamp=LATER))
    assert names(cache) == ["older", "younger"]
    assert [one.meta.name for one in cache.topics_of(CLUSTER)] == ["younger"]
    cache.put_topic(body("older", {**REFERENCE, "topicName": "x"}, resourceVersion="8", creationTimestamp=NOW))
    assert (names(cache), len(cache.topics_of(CLUSTER))) == (["older", "younger"], 2)
    cache.put_topic(body("older", {**LIST, "topicName": "x"}, resourceVersion="9", creationTimestamp=NOW))
    assert (names(cache), len(cache.topics_of(CLUSTER))) == (["older", "younger"], 1)
    assert cache.remove_topic(Key("default", "older"), "former") is None
    assert names(cache) == ["older", "younger"]
    gone = cache.remove_topic(Key("default", "older"), "uid-older")
    assert isinstance(gone, KafkaTopic), "who is next hears of it"
    assert names(cache) == ["younger"]


def names(cache: Cache) -> list[str]:
    return [one.meta.name for one in cache.topics_named(CLUSTER, "x")]
