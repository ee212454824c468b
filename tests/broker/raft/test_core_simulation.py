"""Random histories of the Raft core: nothing committed is ever lost, and the cluster always recovers."""

from __future__ import annotations

import pytest
from tests.broker.raft.simulator import Faults, World, run_seed


@pytest.mark.spec("CLU-02")
@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_random_histories_keep_every_invariant(nodes: int) -> None:
    elections = 0
    for seed in range(25):
        world = run_seed(nodes * 100_000 + seed, nodes=nodes, observers=1)
        elections += world.elections
        assert len(world.committed) > 20
    assert elections > 25


def spoilt(seed: int) -> World:
    return World(seed, 3, 1, Faults(spoilt=0.5, crash_every_s=1.5, partition_every_s=2.5, write_gap_s=0.1))


@pytest.mark.spec("CLU-06")
def test_who_has_lost_the_end_of_its_log_brings_nothing_about_that_lacks_it() -> None:
    times = 0
    for seed in range(12):
        world = spoilt(seed)
        world.run(30.0)
        world.quiet(20.0)
        assert not any(node.log.lacks for node in world.nodes.values())
        times += world.times_spoilt
    assert times > 20


CHANGING = [
    Faults(change_every_s=0.5),
    Faults(change_every_s=0.1, crash_every_s=2.0),
    Faults(
        loss=0.1,
        slow=0.15,
        delay_s=0.3,
        flush_s=0.1,
        crash_after_vote=0.2,
        power_failure=0.4,
        crash_every_s=0.7,
        partition_every_s=2.5,
        change_every_s=0.2,
    ),
]
SETTLED_BY_ITS_LEADER_ALONE = 1934  # seed in which a leader that had removed itself resigned before its log was flushed


def changing(seed: int) -> World:
    """Five nodes, of which at first one to three are voters."""
    return World(seed, 1 + seed % 3, 4 - seed % 3, CHANGING[seed % 3])


@pytest.mark.spec("CLU-05")
def test_random_changes_of_voters_keep_every_invariant() -> None:
    changes = 0
    sizes = set()
    for seed in [*range(45), SETTLED_BY_ITS_LEADER_ALONE]:
        world = changing(seed)
        world.run(40.0)
        world.quiet(20.0)
        changes += world.changes
        sizes |= {len(voters.voters) for voters in world.voter_sets}
    assert changes > 300
    assert sizes >= {1, 2, 3, 4}
