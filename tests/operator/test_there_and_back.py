"""A cluster whose person changes his mind before what he wanted first is done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.operator.world import World

from ballast_operator.observe import observe_broker_configs

pytestmark = [pytest.mark.timeout(300), pytest.mark.spec("OPR-42")]
VOLUMES = [{"name": "a", "size": "4Gi"}, {"name": "b", "size": "4Gi"}]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world")) as found:
        yield found


def declare(world: World, brokers: int, rate: str) -> None:
    rebalance: dict[str, Any] = {"onScaleUp": "Automatic", "throttle": {"interBroker": rate}}
    spec = {"brokers": brokers, "volumes": VOLUMES, "resyncSeconds": 1, "rebalance": rebalance}
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
