"""An object whose spec cannot be read: a list in the config of a KafkaTopic, say, which its schema cannot refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest
from tests.operator.making import NOW
from tests.operator.test_definitions_of_before import DEFINITION
from tests.operator.test_left_behind import CLUSTER, GOING, NOBODY, Told, body, shared_by
from tests.operator.world import World

from ballast_operator.cache import Cache
from ballast_operator.cycle import ClusterCycle
from ballast_operator.model.meta import Key
from ballast_operator.model.topic import KafkaTopic
from ballast_operator.observe import observe_broker_configs
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


@pytest.mark.spec("OPR-04", "OPR-35")
def test_one_under_way_stays_known_as_far_as_it_can_be_read() -> None:
    cache = Cache()
    runs = {"phase": "Running", "startedAt": NOW, "observedGeneration": 1}
    good = {**REFERENCE, "drainBrokers": [1], "throttle": {"interBroker": "1Mi"}}
    odd = {**good, "expiresAt": "0000-01-01T00:00:00Z", "paused": "often"}
    cache.put_reassignment(body("moves", good, runs))
    cache.put_reassignment(body("moves", odd, runs, resourceVersion="8"))
    (held,) = cache.reassignments_of(CLUSTER)
    assert (held.unread, held.meta.resource_version) == (True, "8")
    assert (held.spec.drain_brokers, held.spec.expires_at, held.spec.paused) == ((1,), None, False)
    assert held.spec.throttle is not None
    cache.put_reassignment(body("moves", odd, {**runs, "phase": "Succeeded"}, resourceVersion="9"))
    assert cache.reassignments_of(CLUSTER) == [], "it holds nothing"
    cache.put_reassignment(body("moves", odd, runs, resourceVersion="10"))
    cache.put_reassignment(body("waits", odd))
    assert [one.meta.name for one in cache.reassignments_of(CLUSTER)] == ["moves"]
    assert cache.remove_reassignment(Key("default", "moves"), "former") is None
    cache.put_reassignment(body("moves", good, runs, resourceVersion="11"))
    assert [one.unread for one in cache.reassignments_of(CLUSTER)] == [False]
    cache.put_reassignment(body("moves", odd, runs, resourceVersion="12"))
    gone = cache.remove_reassignment(Key("default", "moves"), "uid-moves")
    assert gone is not None, "who waits for it hears of it"
    assert not cache.knows(CLUSTER)


@pytest.mark.spec("OPR-05")
def test_what_is_told_of_one_under_way_is_what_is_wrong_with_it_and_not_that_its_cluster_is_away() -> None:
    """Each would overwrite the other for ever."""
    cache, told = Cache(), Told()
    odd = {**REFERENCE, "drainBrokers": [1], "expiresAt": "0000-01-01T00:00:00Z"}
    cache.put_reassignment(body("moves", odd, {"phase": "Running", "startedAt": NOW}))
    cache.put_reassignment(body("others", {**REFERENCE, "drainBrokers": [1]}, {"phase": "Running", "startedAt": NOW}))
    cache.clusters.listed.add(None)
    asyncio.run(ClusterCycle(CLUSTER, shared_by(cache, told)).run(Work(reassignments=True, cluster=True)))
    assert told.reasons == {"others": "ClusterNotFound"}


@pytest.fixture
def years_0(ballast_world: World) -> Iterator[None]:
    """An API server that takes a year 0 for a time, as Kubernetes does and the embedded one does not."""
    world, definition = ballast_world, ballast_world.api("get", DEFINITION)
    versions = deepcopy(definition["spec"]["versions"])
    del versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["expiresAt"]["format"]
    world.api("merge", DEFINITION, {"spec": {"versions": versions}})
    yield
    world.api("merge", DEFINITION, {"spec": {"versions": definition["spec"]["versions"]}})


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("years_0")
@pytest.mark.spec("OPR-04", "OPR-33", "OPR-35")
@pytest.mark.parametrize("killed", [False, True])
def test_one_that_cannot_be_read_any_more_while_it_runs_keeps_its_partitions_and_throttles(
    ballast_world: World, killed: bool
) -> None:
    """It was forgotten: another one moved its partitions, and took its rates for what had been there before."""
    world, name = ballast_world, f"unread-{killed}".lower()
    world.movable_topic(name, [[0, 1]] * 2, records=40)

    def moving(reassignment: str, partition: int, to: list[int], rate: str) -> None:
        rows = [{"topic": name, "partition": partition, "replicas": to}]
        world.reassign(reassignment, partitions=rows, throttle={"interBroker": rate})

    moving(name, 0, [2, 1], "400Ki")
    world.until_phase(name, "Running")
    world.until("it moves", lambda: world.view().ongoing)
    world.patch("Reassignment", name, {"spec": {"expiresAt": "0000-01-01T00:00:00Z"}})
    world.until_reason("Reassignment", name, "InvalidSpec")
    if killed:
        world.kill_operator()
        world.restart_operator()
    moving(f"same-{name}", 0, [1, 2], "400Ki")
    moving(f"beside-{name}", 1, [2, 1], "50Mi")
    assert world.until_phase(f"same-{name}", "Waiting", "Running")["status"]["waitingFor"] == [name]
    beside = world.until("its throttles are told", lambda: throttles(world, f"beside-{name}"))
    assert {row.get("prior") for row in beside} == {None}
    assert world.condition("Reassignment", name)[1] == "InvalidSpec"

    world.patch("Reassignment", name, {"spec": {"expiresAt": None, "throttle": {"interBroker": "50Mi"}}})
    for one in (name, f"same-{name}", f"beside-{name}"):
        world.until_phase(one, "Succeeded")
    assert world.run(observe_broker_configs(world.kafka, [0, 1, 2])) == {0: {}, 1: {}, 2: {}}


def throttles(world: World, name: str) -> list[dict[str, Any]]:
    return list((world.get("Reassignment", name) or {}).get("status", {}).get("throttle", ()))
