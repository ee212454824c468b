"""A topic whose Reassignment did not come to its end: what failed is tried again, what a person has stopped is not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.operator.world import World

from ballast_operator.apply.kafka import alter_configs
from ballast_operator.model.actions import AlterConfig
from ballast_operator.model.kafka import BROKER

pytestmark = [pytest.mark.timeout(240), pytest.mark.spec("OPR-23")]


@pytest.fixture(scope="module")
def world(ballast_world: World) -> Iterator[World]:
    yield ballast_world
    ballast_world.pause("KafkaCluster", "demo", False)
    cordon(ballast_world, None)
    for name in ("grows", "shrinks"):
        ballast_world.delete("KafkaTopic", name)
        ballast_world.until_gone("KafkaTopic", name)


def cordon(world: World, value: str | None) -> None:
    """Whether broker 2 takes new replicas."""
    change = AlterConfig(BROKER, "2", {"cordoned.log.dirs": value})
    assert all(outcome.ok for outcome in world.run(alter_configs(world.kafka, [change])).values())


def replicas(world: World, topic: str) -> int:
    return world.view().topics[topic].replication_factor


def owned(world: World, topic: str) -> list[dict[str, Any]]:
    return [
        one
        for one in world.list("Reassignment")
        if any(owner["name"] == topic for owner in one["metadata"].get("ownerReferences", ()))
    ]


def seen(world: World, name: str, generation: int) -> bool:
    found: dict[str, Any] = world.api("get", world.path("Reassignment", name))
    return bool(found["status"]["observedGeneration"] == generation)


def test_what_found_no_place_is_tried_again_when_there_is_one(world: World) -> None:
    world.topic("grows", partitions=2, replicas=1, deletionPolicy="Delete")
    world.until_ready("KafkaTopic", "grows")
    world.pause("KafkaCluster", "demo")  # or the cordon would be taken away
    world.until_reason("KafkaCluster", "demo", "Paused")
    cordon(world, "*")
    world.topic("grows", partitions=2, replicas=3, deletionPolicy="Delete")
    said = world.until_reason("KafkaTopic", "grows", "ReassignmentFailed")
    assert "failed: moved 2 partitions, but " in said
    assert said.endswith("(only 2 of 3 replicas have a broker with room). Mend that, and another attempt follows.")
    assert replicas(world, "grows") == 2
    cordon(world, None)
    world.until_ready("KafkaTopic", "grows")
    assert replicas(world, "grows") == 3
    world.pause("KafkaCluster", "demo", False)
    world.until_ready("KafkaCluster", "demo")


def test_what_a_person_has_put_back_stays_so_until_the_spec_is_another(world: World) -> None:
    """It was made anew at once, and its data moved to and fro for as long as somebody put it back."""
    world.topic("shrinks", partitions=2, replicas=2, deletionPolicy="Delete")
    world.until_ready("KafkaTopic", "shrinks")
    world.topic("shrinks", partitions=2, replicas=1, deletionPolicy="Delete")
    world.until("one replica", lambda: replicas(world, "shrinks") == 1)
    world.until_ready("KafkaTopic", "shrinks")
    (one,) = owned(world, "shrinks")
    name = one["metadata"]["name"]
    world.until_phase(name, "Succeeded")
    world.patch("Reassignment", name, {"spec": {"rollback": True, "ttlSecondsAfterFinished": 0}})
    world.until_phase(name, "RolledBack")
    assert name in world.until_reason("KafkaTopic", "shrinks", "ReassignmentStopped")
    # Nobody looks at it without a cause; at the second look it is known how the first one ended.
    for generation, rate in ((3, "1Gi"), (4, "2Gi")):
        world.patch("Reassignment", name, {"spec": {"throttle": {"interBroker": rate}}})
        world.until(
            f"it is looked at at {rate}, and kept whatever its ttl says", partial(seen, world, name, generation)
        )
    assert replicas(world, "shrinks") == 2
    world.topic("shrinks", partitions=2, replicas=2, deletionPolicy="Delete")
    world.until_ready("KafkaTopic", "shrinks")
    world.until("nothing stands in the way of another one", lambda: not owned(world, "shrinks"))
    world.topic("shrinks", partitions=2, replicas=1, deletionPolicy="Delete")
    world.until("one replica", lambda: replicas(world, "shrinks") == 1)
