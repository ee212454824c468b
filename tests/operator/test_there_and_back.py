"""A cluster whose person changes his mind before what he wanted first is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.operator.world import World

from ballast_operator.model.kafka import TopicPartition
from ballast_operator.observe import observe_broker_configs

pytestmark = [pytest.mark.timeout(300), pytest.mark.spec("OPR-42")]
VOLUMES = [{"name": "a", "size": "4Gi"}, {"name": "b", "size": "4Gi"}]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world")) as found:
        yield found


def declare(
    world: World, brokers: int, rate: str, on_scale_up: str = "Automatic", volumes: Sequence[dict[str, str]] = VOLUMES
) -> None:
    rebalance: dict[str, Any] = {"onScaleUp": on_scale_up, "throttle": {"interBroker": rate}}
    spec = {"brokers": brokers, "volumes": list(volumes), "resyncSeconds": 1, "rebalance": rebalance}
    world.apply("KafkaCluster", "demo", spec)


def test_brokers_that_get_their_share_are_not_wanted_any_more(world: World) -> None:
    """What went on giving them replicas kept the partitions, and the drain waited for that: for ever, as brokers that
    are to go take none."""
    declare(world, 3, "100Ki")
    world.bootstrap = world.until_ready("KafkaCluster", "demo", 90)["status"]["bootstrapServers"]
    world.topic("orders", partitions=12, replicas=2)
    world.until_ready("KafkaTopic", "orders")
    world.fill(["orders"], 12, 10)
    declare(world, 5, "100Ki")

    def given() -> bool:
        found = [one for one in world.list("Reassignment") if one["spec"].get("addBrokers")]
        return any(one.get("status", {}).get("phase") == "Running" for one in found) and bool(world.view().ongoing)

    world.until("they are given replicas", given, 90)
    declare(world, 3, "100Mi")
    world.until_ready("KafkaCluster", "demo", 120)
    view = world.view()
    assert {b.id for b in view.brokers.values() if b.online} == {0, 1, 2}
    assert {broker for part in view.topics["orders"].partitions.values() for broker in part.replicas} == {0, 1, 2}
    assert all(len(part.isr) == 2 for part in view.topics["orders"].partitions.values())
    nothing: dict[int, dict[str, str]] = {0: {}, 1: {}, 2: {}}
    world.until("no throttle is left", lambda: world.run(observe_broker_configs(world.kafka, nothing)) == nothing)
    phases = {one["metadata"]["name"]: one.get("status", {}).get("phase") for one in world.list("Reassignment")}
    assert set(phases.values()) <= {"Succeeded", "Cancelled"}, phases


@pytest.mark.spec("OPR-35", "OPR-36")
def test_a_move_to_a_broker_that_was_scaled_away_holds_nothing_says_so_and_goes_on_when_it_comes_back(
    world: World,
) -> None:
    declare(world, 3, "100Mi")
    world.bootstrap = world.until_ready("KafkaCluster", "demo", 120)["status"]["bootstrapServers"]
    world.topic("two", partitions=2, replicas=1, replicaAssignment=[[0], [0]])
    world.until_ready("KafkaTopic", "two")
    world.delete("KafkaTopic", "two")  # which would put its replicas back
    world.until_gone("KafkaTopic", "two")
    world.fill(["two"], 2, 20)
    rows = [{"topic": "two", "partition": number, "replicas": [number + 1]} for number in (0, 1)]
    one_by_one = {"perBroker": 1}
    world.reassign("mine", partitions=rows, throttle={"interBroker": "512Ki"}, maxConcurrentMoves=one_by_one)
    world.until("the first is on its way", lambda: TopicPartition("two", 0) in world.view().ongoing)
    world.patch("Reassignment", "mine", {"spec": {"paused": True, "throttle": {"interBroker": "100Mi"}}})
    declare(world, 2, "100Mi", on_scale_up="None")
    said = world.until_reason("Reassignment", "mine", "BrokersUnregistered", 120)
    assert "not registered any more (2): two-1." in said
    found = world.get("Reassignment", "mine") or {}
    assert {one["type"]: one["status"] for one in found["status"]["conditions"]} == {
        "Ready": "False",
        "Stalled": "True",
    }
    world.until_ready("KafkaCluster", "demo", 120)
    nothing: dict[int, dict[str, str]] = {0: {}, 1: {}}
    world.until("no throttle is left", lambda: world.run(observe_broker_configs(world.kafka, nothing)) == nothing)
    world.patch("Reassignment", "mine", {"spec": {"paused": False}})
    declare(world, 3, "100Mi", on_scale_up="None")
    world.until_phase("mine", "Succeeded", seconds=120)
    assert [world.view().topics["two"].partitions[number].replicas for number in (0, 1)] == [(1,), (2,)]


@pytest.mark.spec("OPR-36", "OPR-43")
def test_a_move_to_a_volume_that_was_removed_meanwhile_does_not_keep_its_drain_waiting(world: World) -> None:
    declare(world, 2, "100Mi", on_scale_up="None")
    world.bootstrap = world.until_ready("KafkaCluster", "demo", 120)["status"]["bootstrapServers"]
    world.movable_topic("there", [[0], [0]], records=20)
    path = next(where.path for where in world.view().directories if "/b-demo-1/" in where.path)
    rows = [{"topic": "there", "partition": number, "replicas": [1], "logDirs": [path]} for number in (0, 1)]
    one_by_one = {"perBroker": 1}
    world.reassign("other", partitions=rows, throttle={"interBroker": "512Ki"}, maxConcurrentMoves=one_by_one)
    world.until("the first is on its way", lambda: TopicPartition("there", 0) in world.view().ongoing)
    declare(world, 2, "100Mi", on_scale_up="None", volumes=VOLUMES[:1])
    assert f"there-1: {path} of broker 1" in world.until_reason("Reassignment", "other", "DirectoriesClosed", 60)
    world.until_ready("KafkaCluster", "demo", 120)
    view = world.view()
    assert [log.path for replica, log in view.logs.items() if "/b-demo-" in (log.path or "")] == []
    assert [view.topics["there"].partitions[number].replicas for number in (0, 1)] == [(1,), (0,)]
