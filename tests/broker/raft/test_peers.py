"""The addresses of a quorum's nodes: from the configuration, from the log, and from leaders themselves."""

from __future__ import annotations

from uuid import UUID

import pytest
from tests.broker.raft.memory import LocalNetwork

from ballast_broker.raft.peers import FIRST_BOOTSTRAP, Peers
from ballast_broker.raft.voters import DYNAMIC, NO_VOTERS, Endpoint, Voter, VoterSet, voter_set
from ballast_broker.raft.wire import Quorum

pytestmark = pytest.mark.spec("CLU-05")
A, B, C, OWN = (Endpoint(host, 9093) for host in ("a", "b", "c", "own"))


def peers_of(quorum: Quorum, voters: VoterSet) -> Peers:
    return Peers(1, quorum, lambda: voters, LocalNetwork(), 1.0)


def test_in_a_static_quorum_the_configuration_says_where_voters_are_and_nobody_else() -> None:
    quorum = Quorum("cluster", {1: A, 2: B}, own_endpoints=lambda: {"CONTROLLER": OWN})
    peers = peers_of(quorum, quorum.voters)
    peers.learn(2, C)
    assert [peers.endpoint(each) for each in (1, 2, 3)] == [A, B, None]


def test_one_that_is_alone_is_where_it_listens() -> None:
    quorum = Quorum("cluster", {1: Endpoint("127.0.0.1", 0)}, own_endpoints=lambda: {"CONTROLLER": OWN})
    assert peers_of(quorum, quorum.voters).endpoint(1) == OWN


def test_otherwise_the_log_does_and_a_leader_knows_better_until_nobody_is_there() -> None:
    voters = voter_set(DYNAMIC, [Voter(2, UUID(int=2), {"CONTROLLER": B})])
    peers = peers_of(Quorum("cluster", {2: A}), voters)
    assert peers.endpoint(2) == B, "the property of before is old"
    peers.learn(2, C)
    assert peers.endpoint(2) == C
    peers.forget(2)
    assert peers.endpoint(2) == B


def test_bootstrap_servers_have_numbers_of_their_own_and_links_follow_the_address() -> None:
    peers = peers_of(Quorum("cluster", {}, bootstrap=[A, B]), NO_VOTERS)
    assert peers.bootstrap_ids == (FIRST_BOOTSTRAP, FIRST_BOOTSTRAP - 1)
    assert [peers.endpoint(each) for each in peers.bootstrap_ids] == [A, B]
    with pytest.raises(OSError, match="nobody knows where node 7 is"):
        peers.link(7, "fetch")
    peers.learn(7, A)
    link = peers.link(7, "fetch")
    assert peers.link(7, "fetch") is link
    assert peers.link(7, "control") is not link
    peers.learn(7, B)
    assert peers.link(7, "fetch") is not link
