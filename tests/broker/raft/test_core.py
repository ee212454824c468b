"""The Raft core in single situations, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.broker.raft.simulator import Faults, SimLog, SimNode, World
from tests.broker.seams import DrawnRandom, SeededRandom

from ballast_broker.raft import wire
from ballast_broker.raft.core import OBSERVER_SESSION_S, QuorumLostData, RaftCore
from ballast_broker.raft.leader import Leadership
from ballast_broker.raft.messages import BeginEpoch, Fetch, FetchReply, Send, SnapshotId, Vote
from ballast_broker.raft.terms import Persisted, Role
from ballast_broker.raft.voters import STATIC, Endpoint, Voter, voter_set
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

QUIET = Faults(0, 0, 0, crash_after_vote=0, process_only=1, crash_every_s=0, partition_every_s=0, snapshot_every_s=0)


def quiet_world(seed: int, nodes: int = 3) -> World:
    world = World(seed, nodes, 1, QUIET)
    world.run(5.0)
    return world


def core_of(node: SimNode) -> RaftCore:
    assert node.core is not None
    return node.core


def leader_of(world: World) -> SimNode:
    leaders = [node for node in world.nodes.values() if node.core is not None and node.core.is_leader]
    assert len(leaders) == 1
    return leaders[0]


@pytest.mark.spec("CLU-02")
@pytest.mark.parametrize("seed", range(20))
def test_a_cluster_forms_in_under_a_second(seed: int) -> None:
    world = World(seed, 3, 1, QUIET)
    world.run(1.0)
    leader = leader_of(world)
    assert all(core_of(node).leader == leader.id for node in world.nodes.values())


@pytest.mark.spec("CLU-02")
@pytest.mark.parametrize("seed", range(20))
def test_a_dead_leader_is_replaced_at_once(seed: int) -> None:
    world = quiet_world(seed)
    dead = leader_of(world)
    began = world.now
    world._kill(dead, 60.0)
    world.run(began + 1.0)
    assert leader_of(world).id != dead.id


@pytest.mark.spec("CLU-02")
@pytest.mark.parametrize("seed", range(10))
def test_a_leader_that_falls_silent_is_replaced_after_its_time(seed: int) -> None:
    world = quiet_world(seed)
    silent = leader_of(world)
    others = [each for each in world.nodes if each != silent.id]
    world.cut = {(silent.id, each) for each in others} | {(each, silent.id) for each in others}
    world.run(world.now + 6.0)
    leaders = [node.id for node in world.nodes.values() if core_of(node).is_leader]
    assert silent.id not in leaders, "it heard of nobody and stepped down"
    assert len(leaders) == 1


@pytest.mark.spec("CLU-02")
def test_who_hears_from_a_leader_is_known_also_where_its_name_outlives_it() -> None:
    """Without a majority nobody becomes a candidate, so the last leader is named for ever."""
    world = quiet_world(2)
    assert all(core_of(node).hears_leader(world.now) for node in world.nodes.values()), "observers, too"
    dead = leader_of(world)
    world._kill(dead, 1_000.0)
    away = next(each for each in world.voters if each != dead.id)
    world._kill(world.nodes[away], 1_000.0)
    world.run(world.now + 10.0)
    left = [core_of(node) for node in world.nodes.values() if node.core is not None]
    assert len(left) == 2
    assert any(core.leader == dead.id for core in left)
    assert not any(core.hears_leader(world.now) for core in left)


@pytest.mark.spec("CLU-02")
@pytest.mark.parametrize("seed", range(10))
def test_a_voter_that_was_cut_off_disturbs_nobody_when_it_returns(seed: int) -> None:
    world = quiet_world(seed)
    leader = leader_of(world)
    away = next(each for each in world.voters if each != leader.id)
    epoch = core_of(leader).epoch
    others = [each for each in world.nodes if each != away]
    world.cut = {(away, each) for each in others} | {(each, away) for each in others}
    world.run(world.now + 20.0)
    world.cut.clear()
    world.run(world.now + 3.0)
    assert leader_of(world) is leader
    assert core_of(leader).epoch == epoch
    assert core_of(world.nodes[away]).role is Role.FOLLOWER


@pytest.mark.spec("CLU-02")
@pytest.mark.parametrize("seed", range(10))
def test_a_leader_that_resigns_is_followed_by_the_longest_log(seed: int) -> None:
    world = quiet_world(seed)
    old = leader_of(world)
    began = world.now
    core_of(old).resign(world.now)
    world._settle(old)
    world.run(began + 0.5)
    assert leader_of(world) is not old


@pytest.mark.spec("CLU-02")
def test_a_process_that_stood_still_does_not_blame_the_others() -> None:
    world = quiet_world(1)
    follower = next(node for node in world.nodes.values() if core_of(node).role is Role.FOLLOWER and node.id < 3)
    core = core_of(follower)
    wakes_at = world.now + 30.0
    core.postpone(30.0)
    core.tick(wakes_at)
    assert core.role is Role.FOLLOWER


def test_committed_records_reach_followers_and_observers() -> None:
    world = quiet_world(3)
    world.run(world.now + 1.0)
    marks = {core_of(node).high_watermark for node in world.nodes.values()}
    assert max(marks) - min(marks) <= 2
    assert min(marks) > 10


@pytest.mark.spec("CLU-04")
def test_an_observer_that_is_gone_is_forgotten_after_its_time() -> None:
    world = quiet_world(3)
    leader = leader_of(world)
    leadership = core_of(leader).leadership
    assert leadership is not None
    [(observer, directory)] = leadership.observers
    world._kill(world.nodes[observer], 10_000.0)
    world.run(world.now + OBSERVER_SESSION_S - 10)
    assert list(leadership.observers) == [(observer, directory)]
    world.run(world.now + 20)
    assert core_of(leader).leadership is leadership
    assert not leadership.observers


@pytest.mark.spec("CLU-02")
@pytest.mark.parametrize("seed", range(5))
def test_where_answers_take_longer_than_an_election_somebody_leads_all_the_same(seed: int) -> None:
    world = World(seed, 3, 0, replace(QUIET, delay_s=3.0))
    world.run(120.0)
    before, epoch = world.written, max(world.leaders)
    world.run(240.0)
    assert max(world.leaders) <= epoch + 6, "without patience it is twelve to thirty"
    assert world.written > before + 500, "somebody led nearly all the time"
    world.faults = QUIET
    patience = [core_of(node).patience for node in world.nodes.values()]
    assert max(patience) > 1
    world.run(world.now + 60.0 * 5)
    assert [core_of(node).patience for node in world.nodes.values()] == [1.0] * 3, "calm again"


@pytest.mark.spec("CLU-02", "CLU-03")
@pytest.mark.parametrize("length", [1, 3, 9])
def test_a_voter_whose_whole_log_is_of_an_epoch_that_nobody_else_has_begins_anew(length: int) -> None:
    """The first leader of a new cluster dies before anybody has its records, and so does the second: the second's log
    has nothing in common with that of the first, which leads again."""
    world = World(1, 3, 0, QUIET)
    first, second, empty = world.nodes.values()
    first.log.entries = [(1, f"first {number}") for number in range(4)]
    second.log.entries = [(2, f"second {number}") for number in range(length)]
    for node in (first, second, empty):
        node.persisted = Persisted(epoch=2)
    world.queue = [event for event in world.queue if event.what != "start"]
    world.at(0.0, "start", first.id)
    world.at(0.0, "start", empty.id)
    world.run(2.0)
    assert leader_of(world) is first
    world.at(0.0, "start", second.id)
    world.quiet(3.0)
    assert second.log.entries[:4] == first.log.entries[:4]
    assert core_of(second).role is Role.FOLLOWER


@pytest.mark.spec("CLU-02")
def test_who_was_told_of_a_leader_before_it_started_follows_it_in_patience() -> None:
    """A voter listens while it still reads its snapshot, and the leader may delay a response by half a second."""
    world = quiet_world(1)
    node = next(each for each in world.nodes.values() if each is not leader_of(world) and each.id in world.voters)
    leader = leader_of(world).id
    core = RaftCore(node.id, node.persisted, node.log, DrawnRandom(world.rng))
    core.handle_begin_epoch(world.now, BeginEpoch(core.epoch, leader))
    core.start(world.now)
    core.tick(world.now + 0.4)
    assert (core.role, core.leader, core.patience) == (Role.FOLLOWER, leader, 1.0)
    assert not [each for each in core.take_effects() if isinstance(each, Send) and isinstance(each.request, Vote)]


@pytest.mark.spec("CLU-02")
def test_a_leader_that_lacks_even_what_the_snapshot_contains_has_lost_data() -> None:
    """The log begins after a snapshot: there is nothing to cut, and the leader would say the same again, for ever."""
    log = SimLog(voter_set(STATIC, [Voter(1), Voter(2)]))
    log.begin_after(SnapshotId(10, 3), None)
    core = RaftCore(7, Persisted(9), log, SeededRandom(), bootstrap=(-2,))
    core.handle_begin_epoch(0.0, BeginEpoch(9, 1))
    [fetch] = [each.request for each in core.take_effects() if isinstance(each, Send)]
    with pytest.raises(QuorumLostData):
        core.replied(0.1, 1, fetch, FetchReply(9, 1, diverging=(1, 4)))


def as_it_arrives(request: Vote | BeginEpoch, to: int, version: int) -> Any:
    quorum = wire.Quorum("cluster", {each: Endpoint(f"n{each}", 9093) for each in (1, 2, 3)})
    sent = wire.encode_request(request, to, quorum)
    return message(type(sent).__name__).decode(sent.encode(version=version), version=version)


@pytest.mark.spec("CLU-02")
def test_a_voter_at_the_address_that_another_one_had_does_not_vote_in_its_place() -> None:
    """A host name may lead to the wrong pod for a while: a node that votes for itself and as another would be a
    majority."""
    world = quiet_world(1)
    candidate, asked, other = list(world.voters)
    core = core_of(world.nodes[asked])
    vote = Vote(core.epoch + 1, candidate, 99, 99, pre_vote=False)
    begin = BeginEpoch(core.epoch + 1, candidate)
    epoch = core.epoch

    for_another = wire.decode_vote(as_it_arrives(vote, other, 1))
    assert core.handle_vote(world.now, for_another).error is ErrorCode.INVALID_VOTER_KEY
    told_another = wire.decode_begin(as_it_arrives(begin, other, 1))
    assert core.handle_begin_epoch(world.now, told_another).error is ErrorCode.INVALID_VOTER_KEY
    assert core.epoch == epoch

    assert core.handle_vote(world.now, wire.decode_vote(as_it_arrives(vote, asked, 2))).granted
    assert wire.decode_vote(as_it_arrives(vote, other, 0)).voter is None, "the first version does not say whom it asks"
    assert wire.decode_begin(as_it_arrives(begin, other, 0)).voter is None


@pytest.mark.spec("CLU-02", "CLU-03")
@pytest.mark.parametrize("records", [True, False], ids=["records", "snapshot"])
def test_what_comes_spoilt_is_asked_for_ever_more_seldom_until_something_sound_comes(records: bool) -> None:
    """A corrupt disk stays corrupt, and each request may be for a whole snapshot."""
    world = quiet_world(7)
    leader = leader_of(world)
    core = core_of(next(node for node in world.nodes.values() if node is not leader))
    now = world.now
    waits: list[float] = []

    def next_asked() -> Fetch:
        nonlocal now
        core.take_effects()
        waits.append(core.deadline - now)
        now = core.deadline
        core.tick(now)
        [asked] = [each.request for each in core.take_effects() if isinstance(each, Send)]
        assert isinstance(asked, Fetch), "the leader goes on hearing of it"
        return asked

    def comes_spoilt(asked: Fetch) -> Fetch:
        if records:
            core.replied(now, leader.id, asked, FetchReply(core.epoch, leader.id, records=b"spoilt"))
            core.records_refused(now)
        else:
            core.replied(now, leader.id, asked, FetchReply(core.epoch, leader.id, snapshot=SnapshotId(99, core.epoch)))
            assert core.loading is not None
            core.snapshot_loaded(now, core.loading, complete=False)
        return next_asked()

    asked = core._fetch_outstanding
    assert asked is not None
    for _ in range(10):
        asked = comes_spoilt(asked)
    assert waits[0] < 0.05
    assert min(waits[5:]) >= 0.25
    core.flushed(now, core.log_end_offset)
    comes_spoilt(asked)
    assert waits[-1] < 0.05


@pytest.mark.spec("CLU-02")
def test_what_earlier_leaders_left_is_committed_with_what_this_one_wrote_only() -> None:
    """A majority may have it and still truncate it again, for a leader elected in between that has other records."""
    voters = voter_set(STATIC, [Voter(number) for number in (1, 2, 3)])
    leadership = Leadership(1, None, voters, epoch=3, epoch_start_offset=10, now=0.0)
    leadership.local_flushed(11, now=0.1)
    leadership.fetched(Fetch(3, 2, 10, 2, 0), 11, now=0.2)
    assert not leadership.advance_high_watermark()
    leadership.fetched(Fetch(3, 2, 11, 3, 0), 11, now=0.3)
    assert leadership.advance_high_watermark()
    assert leadership.high_watermark == 11


@pytest.mark.spec("CLU-02")
def test_what_takes_the_place_of_what_was_cut_off_counts_as_had_once_it_is_stored_only() -> None:
    """What was truncated had been flushed; a fetch tells the leader that everything before its offset is flushed."""
    world = quiet_world(7)
    leader = leader_of(world)
    node = next(node for node in world.nodes.values() if node is not leader)
    core, now, cut = core_of(node), world.now, node.log.end_offset
    node.log.append((core.epoch, "of an earlier leader"), (core.epoch, "and another"))
    core.flushed(now, node.log.end_offset)

    def asked() -> list[int]:
        core.tick(now)
        fetches = [each.request for each in core.take_effects() if isinstance(each, Send)]
        return [fetch.offset for fetch in fetches if isinstance(fetch, Fetch)]

    def answered(**fields: Any) -> None:
        assert core._fetch_outstanding is not None
        core.replied(now, leader.id, core._fetch_outstanding, FetchReply(core.epoch, leader.id, **fields))

    answered(diverging=(core.epoch, cut))
    node.log.truncate(cut)
    assert asked() == [cut]
    answered(records=[(core.epoch, "of this leader")])
    node.log.append((core.epoch, "of this leader"))
    other = next(each for each in world.nodes if each not in (node.id, leader.id))
    core.handle_begin_epoch(now, BeginEpoch(core.epoch + 1, other))
    assert asked() == []
    core.flushed(now, node.log.end_offset)
    assert asked() == [cut + 1]
