"""The operator changes who votes on the metadata, with real brokers and clients that go on meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.operator.test_managed_scenarios import producing
from tests.operator.world import ApiError, World

from ballast_operator.apply.kubernetes import path_of

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.spec("OPR-42", "CLU-05"),
]
SPEC = {"brokers": 3, "volumes": [{"name": "a", "size": "4Gi"}], "resyncSeconds": 2}


def controllers(count: int, mode: str = "Combined") -> dict[str, Any]:
    return {"mode": mode, "count": count}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three brokers, one of which votes."""
    with World(tmp_path_factory.mktemp("world")) as found:
        found.start_cluster(**SPEC, controllers=controllers(1))
        found.topic("orders", partitions=6, replicas=3)
        found.until_ready("KafkaTopic", "orders")
        yield found


def apply(world: World, **spec: Any) -> None:
    world.apply("KafkaCluster", "demo", {**SPEC, **spec})


def voters(world: World) -> list[int]:
    return list((world.get("KafkaCluster", "demo") or {})["status"]["voters"])


def until_they_vote(world: World, *wanted: int) -> None:
    world.until(f"{wanted} vote", lambda: voters(world) == [*wanted], 120)
    world.until_ready("KafkaCluster", "demo", 60)


def test_one_voter_becomes_three_and_one_again_while_clients_go_on(world: World) -> None:
    with producing(world) as errors:
        apply(world, controllers=controllers(3))
        until_they_vote(world, 0, 1, 2)
        apply(world, controllers=controllers(1))
        until_they_vote(world, 0)
    assert errors == []


def uids(world: World) -> dict[str, str]:
    found = world.objects("v1", "pods", "ballast.dev/cluster=demo")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def test_later_only_those_that_become_controllers_are_restarted_also_by_an_operator_that_was_killed(
    world: World,
) -> None:
    apply(world, controllers=controllers(3))
    until_they_vote(world, 0, 1, 2)
    apply(world, brokers=5, controllers=controllers(3))
    world.until_ready("KafkaCluster", "demo", 90)
    before = uids(world)
    apply(world, brokers=5, controllers=controllers(5))
    world.until("a fourth one votes", lambda: len(voters(world)) == 4)
    world.kill_operator()
    world.restart_operator()
    until_they_vote(world, 0, 1, 2, 3, 4)
    assert {name for name, uid in uids(world).items() if before[name] != uid} == {"demo-3", "demo-4"}
    assert (world.get("KafkaCluster", "demo") or {})["status"]["kraftVersion"] == 1


def test_brokers_that_go_leave_the_quorum_first_and_nothing_changes_when_some_come(world: World) -> None:
    """Without `controllers` nobody asks for a number of them."""
    with pytest.raises(ApiError, match="more voters than brokers"):
        apply(world, brokers=4, controllers=controllers(5))
    with pytest.raises(ApiError, match="count can be changed"):
        apply(world, brokers=5, controllers=controllers(5, "Dedicated"))
    with producing(world) as errors:
        apply(world, brokers=4)
        until_they_vote(world, 0, 1, 2)
        world.until("the pod of broker 4 is gone", lambda: set(uids(world)) == {f"demo-{n}" for n in range(4)}, 60)
    assert errors == []
    apply(world, brokers=5)
    world.until_ready("KafkaCluster", "demo", 60)
    assert voters(world) == [0, 1, 2]


def test_a_voter_that_lost_its_disk_votes_again_with_another(world: World) -> None:
    """The pod comes back under its name, and to the quorum it is somebody else."""
    claims = path_of("v1", "persistentvolumeclaims", "default", "a-demo-2")
    world.api("delete", claims)
    world.api("delete", path_of("v1", "pods", "default", "demo-2"))
    told = set()

    def said() -> bool:
        told.add(world.condition("KafkaCluster", "demo")[2])
        return any("controller 2 is being added" in text for text in told)

    world.until("it is added anew", said, 60)
    assert any("controller 2 is being removed" in text for text in told)
    until_they_vote(world, 0, 1, 2)


def test_who_votes_is_known_from_the_status_when_the_identity_is_lost(world: World) -> None:
    """Made anew, it is that of a cluster whose voters can change: no node is told to found anything."""
    before = uids(world)
    identity = path_of("v1", "configmaps", "default", "demo-identity")
    world.api("delete", identity)
    world.kill_operator()
    world.restart_operator()
    found = world.until("the identity is there again", lambda: world.api("find", identity), 60)
    assert (found["data"]["voters"], found["data"]["dynamic"]) == ("0,1,2", "true")
    world.until_ready("KafkaCluster", "demo", 60)
    assert uids(world) == before
