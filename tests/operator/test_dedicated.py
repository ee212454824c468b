"""A controller with a pod of its own and a broker with a rack: what is built, and how a change reaches every node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.operator.world import World

from ballast_operator.apply.kubernetes import path_of

pytestmark = pytest.mark.timeout(300)
ZONE = "topology.kubernetes.io/zone"
SPEC: dict[str, Any] = {
    "brokers": 1,
    "controllers": {"mode": "Dedicated", "count": 1},
    "volumes": [{"name": "a", "size": "4Gi"}],
    "rack": {"topologyKey": ZONE},
    "resyncSeconds": 2,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world")) as found:
        found.apply("KafkaCluster", "demo", SPEC)
        found.until_reason("KafkaCluster", "demo", "RackUnknown", 90)
        yield found


def label(world: World, zone: str) -> None:
    world.api("merge", path_of("v1", "nodes", None, "local"), {"metadata": {"labels": {ZONE: zone}}})


def revisions(world: World) -> dict[str, Any]:
    found = world.objects("v1", "pods", "ballast.dev/cluster=demo")
    return {pod["metadata"]["name"]: pod["metadata"]["annotations"]["ballast.dev/revision"] for pod in found}


def racks(world: World) -> set[str | None]:
    status = (world.get("KafkaCluster", "demo") or {})["status"]
    return {broker.get("rack") for broker in status["brokers"]}


@pytest.mark.spec("OPR-40", "OPR-41")
def test_controllers_run_in_pods_of_their_own_and_the_broker_does_not_vote(world: World) -> None:
    status = (world.get("KafkaCluster", "demo") or {})["status"]
    assert (status["voters"], status["brokersText"]) == ([100_000], "1/1")
    assert set(revisions(world)) == {"demo-0", "demo-controller-0"}
    claims = world.objects("v1", "persistentvolumeclaims", "ballast.dev/cluster=demo")
    assert {claim["metadata"]["name"] for claim in claims} == {"a-demo-0", "metadata-demo-controller-0"}
    assert ZONE in world.condition("KafkaCluster", "demo")[2]


@pytest.mark.spec("OPR-40", "OPR-44")
def test_a_broker_tells_the_rack_of_its_node(world: World) -> None:
    label(world, "east")
    # What the status tells is what Kafka says.
    world.until("the broker is in the rack", lambda: racks(world) == {"east"}, 60)
    world.until_ready("KafkaCluster", "demo", 60)


@pytest.mark.spec("OPR-44")
def test_a_changed_configuration_reaches_the_controllers_too(world: World) -> None:
    world.topic("orders", partitions=2, replicas=1)
    world.until_ready("KafkaTopic", "orders")
    before = revisions(world)
    world.apply("KafkaCluster", "demo", {**SPEC, "config": {"num.partitions": 3}})

    def rolled() -> bool:
        after = revisions(world)
        return after.keys() == before.keys() and all(after[name] != before[name] for name in before)

    world.until("every node has been restarted", rolled, 90)
    world.until_ready("KafkaCluster", "demo", 60)
    assert racks(world) == {"east"}
    world.until_ready("KafkaTopic", "orders", 60)
    # The only replica is on the only broker: its restart cannot be hidden from anybody, so it is told.
    told = [event for event in world.objects("v1", "events") if event["reason"] == "Unprotected"]
    assert "orders-0" in told[0]["message"]


@pytest.mark.spec("OPR-41", "OPR-43")
def test_controllers_keep_the_class_of_their_claims_when_another_volume_is_the_first(world: World) -> None:
    """Without a metadataVolume theirs is that of the first volume; of claims that there are it cannot be changed."""
    volumes = [{"name": "b", "size": "4Gi", "storageClassName": "slow"}, *SPEC["volumes"]]
    world.apply("KafkaCluster", "demo", {**SPEC, "config": {"num.partitions": 3}, "volumes": volumes})

    def claims() -> set[str]:
        found = world.objects("v1", "persistentvolumeclaims", "ballast.dev/cluster=demo")
        return {claim["metadata"]["name"] for claim in found}

    world.until("the broker has the new volume", lambda: "b-demo-0" in claims(), 60)
    world.until_ready("KafkaCluster", "demo", 60)


@pytest.mark.spec("OPR-42", "CLU-05")
def test_one_controller_becomes_three_and_one_again_also_by_an_operator_that_was_killed(world: World) -> None:
    def voters() -> list[int]:
        return list((world.get("KafkaCluster", "demo") or {})["status"]["voters"])

    def controllers() -> set[str]:
        return {name for name in revisions(world) if "controller" in name}

    volumes = [{"name": "b", "size": "4Gi", "storageClassName": "slow"}, *SPEC["volumes"]]
    rest = {**SPEC, "config": {"num.partitions": 3}, "volumes": volumes}
    three = {"mode": "Dedicated", "count": 3}
    world.apply("KafkaCluster", "demo", {**rest, "controllers": three})
    world.until("a second one votes", lambda: len(voters()) == 2, 90)
    world.kill_operator()
    world.restart_operator()
    world.until("three vote", lambda: voters() == [100_000, 100_001, 100_002], 60)
    world.until_ready("KafkaCluster", "demo", 60)
    before = revisions(world)
    world.apply("KafkaCluster", "demo", {**rest, "controllers": SPEC["controllers"]})

    def gone() -> bool:
        left = controllers()
        assert len(left) >= len(voters()), "a pod went that votes"
        return left == {"demo-controller-0"}

    world.until("only the first is left", gone, 60)
    assert voters() == [100_000]
    world.until_ready("KafkaCluster", "demo", 60)
    assert revisions(world).items() <= before.items(), "nobody was restarted for that"
    world.until_ready("KafkaTopic", "orders", 60)
    kept = ["metadata-demo-controller-1", "metadata-demo-controller-2"]
    world.until("the claims of the others are listed", lambda: retained(world) == kept)


def retained(world: World) -> list[str]:
    return list((world.get("KafkaCluster", "demo") or {})["status"].get("retainedClaims") or [])


@pytest.mark.spec("OPR-42", "OPR-43", "CLU-05")
def test_controllers_come_back_on_their_claims_of_before_and_these_are_deleted_where_that_is_asked(
    world: World,
) -> None:
    volumes = [{"name": "b", "size": "4Gi", "storageClassName": "slow"}, *SPEC["volumes"]]
    rest = {**SPEC, "config": {"num.partitions": 3}, "volumes": volumes}

    def until_voters(*wanted: int, **more: Any) -> None:
        count = {"mode": "Dedicated", "count": len(wanted)}
        world.apply("KafkaCluster", "demo", {**rest, "controllers": count, **more})

        def vote() -> bool:
            return list((world.get("KafkaCluster", "demo") or {})["status"]["voters"]) == [*wanted]

        world.until(f"{wanted} vote", vote, 90)
        world.until_ready("KafkaCluster", "demo", 60)

    until_voters(100_000, 100_001, 100_002)
    world.until("they are in use again", lambda: retained(world) == [])
    until_voters(100_000, storage={"deleteClaim": True})

    def claims() -> set[str]:
        found = world.objects("v1", "persistentvolumeclaims", "ballast.dev/role=controller")
        return {claim["metadata"]["name"] for claim in found}

    world.until("claims of controllers that went are deleted", lambda: claims() == {"metadata-demo-controller-0"}, 60)
    assert retained(world) == []
    world.until_ready("KafkaTopic", "orders", 60)
