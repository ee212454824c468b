"""Random histories of the Raft core: nothing committed is ever lost, and the cluster always comes back."""

from __future__ import annotations

import pytest
from tests.broker.raft.simulator import run_seed


@pytest.mark.spec("CLU-02")
@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_random_histories_keep_every_invariant(nodes: int) -> None:
    elections = 0
    for seed in range(25):
        world = run_seed(nodes * 100_000 + seed, nodes=nodes, observers=1)
        elections += world.elections
        assert len(world.committed) > 20
    assert elections > 25
