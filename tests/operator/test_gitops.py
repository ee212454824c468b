"""What a tool sees that applies the same manifests again and again, and prunes what is no longer in Git."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from tests.operator.lives import KEY, KINDS, LivesWorld
from tests.operator.stories import VOLUMES

from ballast_operator.apply.kubernetes import path_of
from ballast_operator.apply.writer import MANAGER
from ballast_operator.model.meta import API_VERSION, FINALIZER, GROUP

OF_DEMO = {"clusterRef": {"name": KEY.name}}
MANIFESTS: dict[tuple[str, str], dict[str, Any]] = {
    ("KafkaCluster", KEY.name): {
        "brokers": 3,
        "volumes": VOLUMES,
        "config": {"num.partitions": 2},
        "rebalance": {"onScaleUp": "Automatic", "throttle": {"interBroker": "1024Ki"}},
        "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
    },
    ("KafkaTopic", "orders"): {**OF_DEMO, "partitions": 3, "replicas": 2, "deletionPolicy": "Delete"},
    ("Reassignment", "move"): {**OF_DEMO, "drainBrokers": [2], "throttle": {"interBroker": "1"}},
}


async def apply(world: LivesWorld, *names: tuple[str, str]) -> dict[tuple[str, str], Any]:
    """Apply these manifests as Argo CD and Flux do: on the server, without force."""
    found = {}
    for kind, name in names:
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": MANIFESTS[kind, name]}
        path = path_of(API_VERSION, KINDS[kind], KEY.namespace, name)
        found[kind, name] = await world.kube.ask("PATCH", path, body, fieldManager="argocd-controller")
    return found


@pytest.fixture
def world(tmp_path: Path) -> LivesWorld:
    return LivesWorld(tmp_path)


@pytest.mark.spec("OPR-02", "OPR-04")
async def test_what_is_applied_again_is_in_sync(world: LivesWorld) -> None:
    await world.kube.begin()
    await apply(world, *MANIFESTS)
    await world.settle()
    before = {(kind, name): world.get(kind, name) for kind, name in MANIFESTS}
    assert await apply(world, *MANIFESTS) == before
    for found in before.values():
        assert found is not None
        metadata, status = found["metadata"], found["status"]
        for entry in metadata["managedFields"]:
            if entry["manager"] == MANAGER:
                fields = entry["fieldsV1"]
                assert fields.keys() <= {"f:status", "f:metadata"}
                assert fields.get("f:metadata", {}).keys() <= {"f:finalizers"}
        seen = {status["observedGeneration"], *(one["observedGeneration"] for one in status["conditions"])}
        assert seen == {metadata["generation"]}


@pytest.mark.spec("OPR-25", "OPR-33")
@pytest.mark.parametrize("order", list(permutations(MANIFESTS)), ids=lambda order: ", ".join(kind for kind, _ in order))
async def test_what_is_pruned_in_the_middle_of_a_move_goes_whatever_goes_first(
    order: tuple[tuple[str, str], ...], world: LivesWorld
) -> None:
    cluster, topic, move = MANIFESTS
    await world.kube.begin()
    await apply(world, cluster, topic)
    await world.settle()
    await apply(world, move)
    await world.live(None, looks=2)
    moving = world.get(*move)
    assert moving is not None
    assert (moving["status"]["phase"], moving["metadata"]["finalizers"]) == ("Running", [FINALIZER])
    for kind, name in order:
        await world.delete(API_VERSION, KINDS[kind], name)
        await world.live(None, looks=1)
    await world.settle()
    assert [body["metadata"]["name"] for plural in KINDS.values() for body in world.kube.all(f"{plural}.{GROUP}")] == []
