"""The operator where each request to the Kubernetes API takes long."""

from __future__ import annotations

import pytest
from tests.operator.faults import behind_faults
from tests.operator.world import World

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
