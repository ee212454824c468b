"""Which voter changes the leader allows, and what becomes of removed voters, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.broker.raft.simulator import SimNode, World, directory_of
from tests.broker.raft.test_core import QUIET, core_of, leader_of

from ballast_broker.raft import voter_changes
from ballast_broker.raft.leader import Leadership
from ballast_broker.raft.messages import BeginEpoch, Vote
from ballast_broker.raft.terms import LogView, Role
from ballast_broker.raft.voters import Endpoint, Voter, VoterSet
from ballast_wire.errors import ApiError, ErrorCode

pytestmark = pytest.mark.spec("CLU-05")
CHANGEABLE = replace(QUIET, change_every_s=1e9)  # voters can change; the test says when


def dynamic_world(voters: int, observers: int = 1, seed: int = 1) -> World:
    world = World(seed, voters, observers, CHANGEABLE)
    world.run(5.0)
    return world


def add(world: World, node: SimNode) -> None:
    def change(leadership: Leadership, log: LogView) -> VoterSet:
        return voter_changes.added(leadership, log, Voter(node.id, node.directory), world.now)

    leader = leader_of(world)
    core_of(leader).change_voters(world.now, change)
    world._settle(leader)


def remove(world: World, leader: SimNode, node: SimNode) -> None:
    core_of(leader).change_voters(
        world.now, lambda leadership, log: voter_changes.removed(leadership, log, node.id, node.directory)
    )
    world._settle(leader)


def cut_off(world: World, *nodes: SimNode) -> None:
    ids = {node.id for node in nodes}
    others = set(world.nodes) - ids
    world.cut = {(a, b) for a in ids for b in others} | {(b, a) for a in ids for b in others}


def test_one_becomes_three_one_by_one() -> None:
    world = dynamic_world(1, 2)
    for number in (1, 2):
        add(world, world.nodes[number])
        world.run(world.now + 2.0)
        assert {core_of(node).voters for node in world.nodes.values()} == {tuple(range(number + 1))}
    world._kill(leader_of(world), 60.0)
    world.run(world.now + 3.0)
    assert leader_of(world).id in (1, 2)


def test_a_second_change_waits_until_the_first_is_committed() -> None:
    world = dynamic_world(2, 2)
    cut_off(world, world.nodes[1 - leader_of(world).id])  # without it nothing is committed
    add(world, world.nodes[2])
    with pytest.raises(ApiError, match="commit the latest voter change") as refused:
        add(world, world.nodes[3])
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    world.cut.clear()
    world.run(world.now + 1.0)
    add(world, world.nodes[3])


def test_nothing_changes_before_something_of_the_leaders_own_epoch_is_committed() -> None:
    """An earlier leader's change may still be committed, and then there would be two changes at once."""
    world = dynamic_world(4, 1)
    first = leader_of(world)
    cut_off(world, first)
    world.run(world.now + 0.001)
    leaders: list[SimNode] = []
    while not leaders:
        world.run(world.queue[0].at)
        leaders = [node for node in world.nodes.values() if node is not first and core_of(node).is_leader]
    with pytest.raises(ApiError, match="establish HWM"):
        remove(world, leaders[0], first)
    world.run(world.now + 1.0)
    remove(world, leaders[0], first)


def test_who_has_not_caught_up_is_not_added_and_who_votes_is_not_added_twice() -> None:
    world = dynamic_world(2, 1)
    leader = leader_of(world)
    stranger = SimNode(7, world.nodes[2].log, directory_of(7))
    with pytest.raises(ApiError, match="lagging behind"):
        add(world, stranger)
    other_disk = SimNode(2, world.nodes[2].log, directory_of(7))
    with pytest.raises(ApiError, match="lagging behind"):
        add(world, other_disk)
    with pytest.raises(ApiError, match="already part of the set"):
        add(world, SimNode(leader.id, leader.log, directory_of(7)))


def test_only_who_votes_is_removed_and_the_last_one_stays() -> None:
    world = dynamic_world(2, 1)
    leader = leader_of(world)
    with pytest.raises(ApiError, match="Cannot remove voter"):
        remove(world, leader, SimNode(1 - leader.id, leader.log, directory_of(7)))
    remove(world, leader, world.nodes[1 - leader.id])
    world.run(world.now + 1.0)
    with pytest.raises(ApiError, match="Cannot remove voter"):
        remove(world, leader, leader)


def test_a_leader_that_is_removed_leads_until_that_is_committed_and_no_longer() -> None:
    world = dynamic_world(3)
    leader = leader_of(world)
    others = [world.nodes[each] for each in world.voters if each != leader.id]
    epoch = core_of(leader).epoch
    remove(world, leader, leader)
    at = leader.log.voters_offset
    while core_of(leader).is_leader:
        assert core_of(leader).high_watermark <= at
        assert world.now < 6.0
        world.run(world.queue[0].at)
    assert core_of(leader).high_watermark > at
    assert all(node.log.end_offset > at for node in others), "its own log does not count, so both must have it"
    assert core_of(leader).epoch == epoch, "it went by itself"
    world.run(world.now + 2.0)
    assert leader_of(world) in others
    assert core_of(leader).leader == leader_of(world).id, "it follows as an observer"


def test_two_voters_survive_a_leader_that_dies_while_it_removes_itself() -> None:
    """Only its own log has the removal: the other voter cannot win without it, and by its own log it is no voter."""
    world = dynamic_world(2)
    leader = leader_of(world)
    other = world.nodes[1 - leader.id]
    cut_off(world, leader)
    remove(world, leader, leader)
    world.run(world.now + 0.3)
    world._kill(leader, 1.0)
    world.cut.clear()
    world.run(world.now + 8.0)
    assert leader_of(world) is other
    assert core_of(leader).voters == (other.id,)


def test_a_removed_voter_disturbs_nobody() -> None:
    """Whether it knows of its removal or was cut off."""
    world = dynamic_world(3, 2)
    leader = leader_of(world)
    gone = next(world.nodes[each] for each in world.voters if each != leader.id)
    cut_off(world, gone)
    remove(world, leader, gone)
    epoch = core_of(leader).epoch
    world.run(world.now + 20.0)
    assert core_of(gone).is_voter, "as far as it knows"
    world.cut = {(leader.id, gone.id), (gone.id, leader.id)}  # it reaches voters, not the leader
    world.run(world.now + 20.0)
    world.cut.clear()
    world.run(world.now + 5.0)
    assert leader_of(world) is leader
    assert core_of(leader).epoch == epoch
    assert core_of(gone).role is Role.FOLLOWER
    assert not core_of(gone).may_stand


def test_who_comes_back_with_an_empty_disk_does_not_vote_for_who_was_there_before() -> None:
    world = dynamic_world(3)
    leader = leader_of(world)
    fresh = next(world.nodes[each] for each in world.voters if each != leader.id)
    world._kill(fresh, 0.1)
    before = fresh.directory
    world._new_disk(fresh)
    world.run(world.now + 3.0)
    core = core_of(fresh)
    assert not core.is_voter
    vote = Vote(core.epoch + 1, leader.id, 99, 99, pre_vote=False, directory=leader.directory, voter_directory=before)
    assert core.handle_vote(world.now, vote).error is ErrorCode.INVALID_VOTER_KEY
    begin = BeginEpoch(core.epoch + 1, leader.id, before)
    assert core.handle_begin_epoch(world.now, begin).error is ErrorCode.INVALID_VOTER_KEY
    own = replace(vote, voter_directory=fresh.directory)
    assert core.handle_vote(world.now, own).granted, "whoever is asked votes, though it is in no voter set"
    assert not core.handle_vote(world.now, replace(own, directory=directory_of(99))).granted, "nor twice"


def test_a_static_quorum_becomes_one_that_can_change_with_the_directories_its_voters_fetch_from() -> None:
    world = World(1, 3, 1, QUIET)
    world.run(5.0)
    leader = leader_of(world)
    with pytest.raises(ApiError, match=r"kraft\.version feature is 0"):
        remove(world, leader, leader)
    own = {"CONTROLLER": Endpoint("moved", 9)}
    where = {voter.id: voter.endpoints for voter in core_of(leader).voter_set.voters} | {leader.id: own}
    core_of(leader).change_voters(world.now, lambda leadership, log: voter_changes.upgraded(leadership, log, own))
    world._settle(leader)
    world.run(world.now + 1.0)
    for node in world.nodes.values():
        assert [voter.directory for voter in core_of(node).voter_set.voters] == list(map(directory_of, range(3)))
        assert {voter.id: voter.endpoints for voter in core_of(node).voter_set.voters} == where, "its own, no other's"
    add(world, world.nodes[3])
    world.run(world.now + 1.0)
    assert core_of(world.nodes[3]).is_voter
