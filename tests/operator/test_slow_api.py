"""The operator where each request to the Kubernetes API takes long, or finds that another one was faster."""

from __future__ import annotations

from dataclasses import fields

import pytest
from tests.operator.faults import Chances, behind_faults
from tests.operator.world import World

from ballast_operator.apply.kubernetes import path_of

MOVES = 10


@pytest.mark.spec("OPR-05", "OPR-33")
@pytest.mark.timeout(180)
def test_what_reassignments_have_to_be_told_does_not_wait_one_for_the_other(ballast_world: World) -> None:
    """Each needs a ConfigMap, a finalizer and three statuses: of many, the last began when all others had been told."""
    world, names = ballast_world, [f"slow-{index}" for index in range(MOVES)]
    for name in names:
        world.topic(name, replicaAssignment=[[0]])
    world.until_all_ready(names)
    for name in names:
        world.pause("KafkaTopic", name)
    with behind_faults(world) as faulty:
        faulty.slow = (0.3, 0.3)
        for name in names:
            world.reassign(name, partitions=[{"topic": name, "partition": 0, "replicas": [1]}])
        for name in names:
            world.until_phase(name, "Succeeded", seconds=90)
        assert min(faulty.most[kind] for kind in ("PATCH reassignments", "PATCH configmaps")) >= MOVES // 2
    for name in names:
        world.delete("Reassignment", name)
        world.delete("KafkaTopic", name)


@pytest.mark.spec("OPR-04", "OPR-44")
@pytest.mark.timeout(240)
def test_a_roll_comes_to_its_end_through_a_storm_of_conflicts(ballast_world: World) -> None:
    """Of three writes that are conditional on what was observed two are refused, those of topics, too."""
    world, names = ballast_world, [f"stormy-{index}" for index in range(20)]

    def pods() -> set[str]:
        return {pod["metadata"]["uid"] for pod in world.objects("v1", "pods", "ballast.dev/role=broker")}

    before = pods()
    with behind_faults(world) as faulty:
        faulty.chances = Chances(**{each.name: 0.0 for each in fields(Chances)} | {"conflict": 0.66})
        asked = {"kubectl.kubernetes.io/restartedAt": "2026-02-03T04:05:06Z"}
        patch = {"spec": {"template": {"metadata": {"annotations": asked}}}}
        world.api("merge", path_of("apps/v1", "statefulsets", "default", "demo"), patch)
        for name in names:
            world.topic(name, partitions=1, deletionPolicy="Delete")
        world.until("all pods are made anew", lambda: len(pods() - before) == len(before), 120)
        world.until_all_ready(names)
        world.until_ready("KafkaCluster", "demo", 60)
        for name in names:
            world.delete("KafkaTopic", name)
        for name in names:
            world.until_gone("KafkaTopic", name)
        assert faulty.did["conflict"] >= 20
