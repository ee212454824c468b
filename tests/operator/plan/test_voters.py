"""Who is to vote, and the steps there: one change at a time, and always a majority that follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.operator.making import cluster, topic_view, view

from ballast_operator.model.cluster import Volume
from ballast_operator.model.quorum import BEHIND_MS, DYNAMIC, SILENT_MS, STATIC, Member, QuorumView
from ballast_operator.plan import layouts, restarts, voters
from ballast_operator.plan.kube import KubeFacts, PodFacts
from ballast_operator.plan.voters import Kind, Step
from ballast_operator.resources.layout import Identity

pytestmark = [pytest.mark.spec("OPR-42", "CLU-05"), pytest.mark.timeout(180)]
NOW, END = 1_000_000, 100
COMBINED, DEDICATED = {"mode": "Combined"}, {"mode": "Dedicated"}
OWN = (100_000, 100_001, 100_002)


def member(node: int, disk: int = 0, silent: bool = False, behind: bool = False) -> Member:
    fetched = NOW - SILENT_MS - 1 if silent else NOW
    caught_up = NOW - BEHIND_MS - 1 if behind or silent else NOW
    return Member(node, UUID(int=1 + node * 100 + disk), END, fetched, caught_up)


def quorum(
    *voting: Member | int, looking_on: Iterable[Member | int] = (), leader: int | None = None, version: int = DYNAMIC,
    committed: int = END,
) -> QuorumView:  # fmt: skip
    members = [member(each) if isinstance(each, int) else each for each in voting]
    observers = tuple(member(each) if isinstance(each, int) else each for each in looking_on)
    led = members[0].node if leader is None else leader
    return QuorumView(version, led, committed, {each.node: each for each in members}, observers)


def runs(*nodes: int, dynamic: bool = True) -> Identity:
    return Identity("id", nodes, nodes[0] >= OWN[0], dynamic=dynamic)


def step(wanted: Iterable[int], identity: Identity, found: QuorumView, restarts: bool = False) -> Step | None:
    return voters.next_step(tuple(wanted), identity, found, identity.controllers, lambda: restarts)


@pytest.mark.parametrize(
    ("identity", "spec", "wanted"),
    [
        (runs(0), {"brokers": 3, "controllers": {**COMBINED, "count": 3}}, (0, 1, 2)),
        (runs(0, 1, 2), {"brokers": 5, "controllers": {**COMBINED, "count": 5}}, (0, 1, 2, 3, 4)),
        (runs(0, 1, 2), {"brokers": 3, "controllers": {**COMBINED, "count": 1}}, (0,)),
        (runs(OWN[0]), {"brokers": 1, "controllers": {**DEDICATED, "count": 3}}, OWN),
        # Nobody asks for more of them by asking for more brokers.
        (runs(0), {"brokers": 5}, (0,)),
        (runs(0, 1, 2), {"brokers": 5}, (0, 1, 2)),
        (runs(0, 1, 2), {"brokers": 2}, (0,)),
        (runs(0, 1, 2, 3, 4), {"brokers": 4}, (0, 1, 2)),
        # Where controllers are was settled when the cluster was made.
        (runs(0, 1, 2), {"brokers": 3, "controllers": {**DEDICATED, "count": 1}}, (0, 1, 2)),
        (runs(*OWN), {"brokers": 1}, OWN),
    ],
)
def test_who_is_to_vote(identity: Identity, spec: dict[str, Any], wanted: tuple[int, ...]) -> None:
    subject = cluster(**spec)
    assert voters.wanted_voters(subject, identity, subject.spec.brokers) == wanted


def test_brokers_that_are_to_go_vote_until_they_are_empty() -> None:
    subject, four = cluster(brokers=2), KubeFacts(exists=True, replicas=4)
    assert voters.staying_brokers(subject, four, view({"orders": topic_view((1, 3))})) == 4
    assert voters.staying_brokers(subject, four, view(topic_errors={"orders": "?"})) == 4
    assert voters.staying_brokers(subject, four, view({"orders": topic_view((0, 1))})) == 2
    assert voters.staying_brokers(cluster(brokers=5), four, view()) == 5


def test_nothing_is_done_where_the_right_ones_vote() -> None:
    assert step((0, 1, 2), runs(0, 1, 2, dynamic=False), quorum(0, 1, 2, version=STATIC)) is None
    assert step((0, 1, 2), runs(0, 1, 2), quorum(0, 1, member(2, silent=True), committed=3)) is None


def test_a_static_quorum_grows_by_these_steps() -> None:
    static, three = runs(0, dynamic=False), (0, 1, 2)
    found = step(three, static, quorum(0, version=STATIC))
    assert found
    assert found.kind is Kind.UPGRADE
    found = step(three, static, quorum(0))
    assert found
    assert (found.kind, found.nodes) == (Kind.ASSIGN, (0,)), "everybody is to ask who leads"
    found = step(three, runs(0), quorum(0))
    assert found
    assert (found.kind, found.nodes) == (Kind.ASSIGN, three)
    lagging = quorum(0, looking_on=[member(1, behind=True), member(2, silent=True)])
    assert step(three, runs(*three), lagging, restarts=True) == Step(Kind.WAIT), "the restarts are told"
    found = step(three, runs(*three), lagging)
    assert found
    assert (found.kind, found.text) == (Kind.WAIT, "controller 1 has to follow the metadata log")
    found = step(three, runs(*three), quorum(0, looking_on=[member(1, behind=True), 2]))
    assert found
    assert (found.kind, found.node, found.directory) == (Kind.ADD, 2, member(2).directory)
    # With two of them none may be lost: it goes on, whatever else is to be restarted.
    found = step(three, runs(*three), quorum(0, 2, looking_on=[1]), restarts=True)
    assert found
    assert (found.kind, found.node) == (Kind.ADD, 1)
    assert step(three, runs(*three), quorum(0, 1, 2)) is None


def test_one_that_does_not_run_as_a_controller_yet_is_not_added() -> None:
    found = voters.next_step((0, 1, 2), runs(0, 1, 2), quorum(0, looking_on=[1, 2]), {0, 2}, bool)
    assert found
    assert (found.kind, found.node) == (Kind.ADD, 2)
    found = voters.next_step((0, 1, 2), runs(0, 1, 2), quorum(0, looking_on=[1, 2]), {0}, bool)
    assert found
    assert (found.kind, found.text) == (Kind.WAIT, "controller 1 has to run as a controller")


def test_who_leads_is_removed_last_and_goes_on_as_a_controller_until_that_is_committed() -> None:
    three = runs(0, 1, 2)
    found = step((0,), three, quorum(0, 1, 2, leader=2))
    assert found
    assert (found.kind, found.node) == (Kind.REMOVE, 1)
    found = step((0,), three, quorum(0, 2, leader=2))
    assert found
    assert (found.kind, found.node) == (Kind.REMOVE, 2)
    found = step((0,), three, quorum(0, looking_on=[1, 2], committed=END - 1))
    assert found
    assert found.kind is Kind.WAIT
    found = step((0,), three, quorum(0, looking_on=[1, 2]))
    assert found
    assert (found.kind, found.nodes) == (Kind.ASSIGN, (0,))


def test_none_is_removed_whom_a_majority_of_the_others_needs() -> None:
    three = runs(0, 1, 2)
    found = step((0,), three, quorum(0, 1, member(2, silent=True)))
    assert found
    assert (found.kind, found.node) == (Kind.REMOVE, 2), "who is gone is removed first"
    found = step((0, 1, 2), runs(0, 1, 2, 3, 4), quorum(0, member(1, silent=True), member(2, behind=True), 3, 4))
    assert found
    assert (found.kind, found.node) == (Kind.HELD, -1)
    assert "controller 4 stays until controllers 1, 2 follow" in found.text


def test_a_voter_whose_disk_was_lost_leaves_and_comes_anew() -> None:
    three = runs(0, 1, 2)
    lost, new = member(1, silent=True), member(1, disk=1)
    assert step((0, 1, 2), three, quorum(0, lost, 2)) is None, "it may only be slow"
    found = step((0, 1, 2), three, quorum(0, lost, 2, looking_on=[new]), restarts=True)
    assert found
    assert (found.kind, found.node, found.directory) == (Kind.REMOVE, 1, lost.directory)
    found = step((0, 1, 2), three, quorum(0, 2, looking_on=[lost, new]))
    assert found
    assert (found.kind, found.node, found.directory) == (Kind.ADD, 1, new.directory)


def test_an_identity_that_does_not_say_the_truth_is_put_right_before_anything_is_restarted() -> None:
    for lying in (runs(0, dynamic=False), runs(0)):
        found = step((0,), lying, quorum(0, 1, 2), restarts=True)
        assert found
        assert (found.kind, found.nodes) == (Kind.ASSIGN, (0, 1, 2))


def test_pods_of_controllers_stay_while_they_may_have_to_vote() -> None:
    subject = cluster(brokers=1, controllers={**DEDICATED, "count": 1})
    three = KubeFacts(exists=True, replicas=1, controller_replicas=3)
    assert layouts.held_layout(subject, runs(OWN[0]), three).controller_pods == 3, "whatever the identity says"
    assert layouts.held_layout(subject, runs(*OWN), KubeFacts()).controller_pods == 3
    assert layouts.held_layout(subject, Identity("id", (0, 1, 2)), KubeFacts()).controller_pods == 0
    alone = quorum(OWN[0], looking_on=OWN[1:])
    assert voters.spare_controllers(runs(OWN[0]), three, alone)
    assert not voters.spare_controllers(runs(OWN[0]), three, None)
    assert not voters.spare_controllers(runs(*OWN), three, alone)
    assert not voters.spare_controllers(runs(OWN[0]), three, quorum(*OWN))
    assert not voters.spare_controllers(runs(OWN[0]), three, replace(alone, high_watermark=END - 1))
    assert not voters.spare_controllers(runs(OWN[0]), replace(three, controller_replicas=1), alone)


def test_a_new_voter_is_where_the_others_say_that_they_are() -> None:
    subject = cluster()
    pods = {1: PodFacts("demo-1", "u", 1, True, "10.0.0.1")}
    kube = KubeFacts(pods=pods, controllers=pods)
    named = replace(quorum(0), hosts={0: "demo-0.demo-brokers.default.svc"})
    assert voters.host_of(subject, named, kube, 1) == "demo-1.demo-brokers.default.svc"
    assert voters.host_of(subject, named, kube, OWN[1]) == "demo-controller-1.demo-brokers.default.svc"
    addressed = replace(named, hosts={0: "10.0.0.0"})
    assert [voters.host_of(subject, addressed, kube, node) for node in (1, OWN[1])] == ["10.0.0.1", "10.0.0.1"]


def test_of_brokers_only_those_that_are_to_become_controllers_are_restarted() -> None:
    volume = Volume("a", "10Gi")
    pods = {n: PodFacts(f"demo-{n}", "u", n, True, revision="new", claims={"a": f"a-{n}"}) for n in range(3)}
    facts = KubeFacts(True, False, 3, {"a": volume}, pods=pods)
    subject = cluster(brokers=3, volumes=[{"name": "a", "size": "10Gi"}])
    seen = replace(view(brokers=range(3)), controllers={0: True, 1: False, 2: True})
    for identity, outdated in ((runs(0, 1), [1]), (runs(0), []), (runs(0, 1, dynamic=False), [])):
        layout = layouts.held_layout(subject, identity, facts)
        assert [pod.ordinal for pod in restarts.outdated_brokers(facts, "new", seen, layout)] == outdated
        assert restarts.next_restart(facts, "new", seen, {}, layout).node == (outdated[0] if outdated else None)


NODES = range(5)


class Changing(RuleBasedStateMachine):
    """Nodes die, lag and lose disks, the operator is killed before or after it has written something down, the spec
    changes; whoever looks next knows only what it finds."""

    @initialize(count=st.sampled_from([1, 3, 5]), dynamic=st.booleans())
    def begin(self, count: int, dynamic: bool) -> None:
        self.identity = runs(*range(count), dynamic=dynamic)
        self.version = DYNAMIC if dynamic else STATIC
        self.voting = dict.fromkeys(range(count), 0)
        self.disks = dict.fromkeys(NODES, 0)
        self.dead: set[int] = set()
        self.behind: set[int] = set()
        self.running = set(range(count))
        self.outdated: set[int] = set()
        self.committed = True
        self.count = count

    @property
    def wanted(self) -> tuple[int, ...]:
        spec = cluster(brokers=len(NODES), controllers={**COMBINED, "count": self.count})
        return voters.wanted_voters(spec, self.identity, len(NODES))

    def follows(self, node: int) -> bool:
        lost = self.voting.get(node, self.disks[node]) != self.disks[node]
        return node not in self.dead | self.behind and not lost

    @property
    def in_step(self) -> set[int]:
        return {node for node in self.voting if self.follows(node)}

    @property
    def is_led(self) -> bool:
        return len(self.in_step) > len(self.voting) // 2

    def seen(self) -> QuorumView:
        def told(node: int, disk: int) -> Member:
            gone = node in self.dead or disk != self.disks[node]
            return member(node, disk, silent=gone, behind=node in self.behind)

        leader = max(self.in_step)
        watchers = [node for node in NODES if self.voting.get(node) != self.disks[node]]
        return quorum(
            *(told(node, disk) for node, disk in self.voting.items()),
            looking_on=[told(node, self.disks[node]) for node in watchers],
            leader=leader, version=self.version, committed=END if self.committed else END - 1,
        )  # fmt: skip

    @rule(count=st.sampled_from([1, 3, 5]))
    def ask_for(self, count: int) -> None:
        self.count = count

    @rule(node=st.sampled_from(NODES), what=st.sampled_from(["dies", "lags", "loses its disk"]))
    def fail(self, node: int, what: str) -> None:
        if what == "dies":
            self.dead.add(node)
        elif what == "lags":
            self.behind.add(node)
        elif self.version == DYNAMIC and self.can_do_without(node):
            self.disks[node] += 1

    def can_do_without(self, node: int) -> bool:
        """The disk of one more nothing could bring back."""
        left = {each for each in self.voting if self.voting[each] == self.disks[each]} - {node}
        return node not in self.voting or len(left) > len(self.voting) // 2

    @rule(nodes=st.sets(st.sampled_from(NODES), min_size=2))
    def come_back(self, nodes: set[int]) -> None:
        self.dead -= nodes
        self.behind -= nodes

    @precondition(lambda self: self.outdated - self.dead)
    @rule()
    def roll(self) -> None:
        restarted = self.outdated - self.dead
        self.outdated -= restarted
        self.running |= restarted & {*self.identity.controllers}

    @rule()
    def commit(self) -> None:
        self.committed = True

    @rule(slow=st.booleans())
    def look_once(self, slow: bool) -> None:
        self.look(1, slow)

    @rule(times=st.integers(1, 4), slow=st.booleans())
    def look(self, times: int = 1, slow: bool = False) -> None:
        """An operator that is killed before it did what it was about to has not looked."""
        for _ in range(times):
            found = self.next_step() if self.is_led else None
            if found is not None and found.acts:
                self.carry_out(found)
            self.committed |= not slow

    def next_step(self) -> Step | None:
        return voters.next_step(self.wanted, self.identity, self.seen(), self.running, lambda: bool(self.outdated))

    def carry_out(self, found: Step) -> None:
        before = dict(self.voting)
        if found.kind is Kind.UPGRADE:
            self.version = DYNAMIC if not self.dead & {*self.voting} else STATIC
        elif found.kind is Kind.ASSIGN:
            if not self.identity.dynamic:
                self.outdated = {*NODES}
            self.outdated |= {node for node in found.nodes if node not in self.running}
            leaving = {*self.identity.controllers} - {*found.nodes}
            assert not leaving & {*self.voting}
            assert not leaving or self.committed
            self.identity = replace(self.identity, controllers=found.nodes, dynamic=True)
        elif not self.committed:
            return  # Kafka refuses it
        elif found.kind is Kind.ADD:
            assert found.directory == member(found.node, self.disks[found.node]).directory
            assert found.node not in self.voting
            assert found.node in self.running
            self.voting[found.node] = self.disks[found.node]
        else:
            assert found.directory == member(found.node, self.voting[found.node]).directory
            del self.voting[found.node]
        if self.voting != before:
            self.committed = False
            assert len({*before} ^ {*self.voting}) == 1
            assert self.is_led, "those that vote now are no majority that follows"

    @invariant()
    def those_that_vote_run_as_controllers(self) -> None:
        if self.identity.dynamic:
            assert {*self.voting} <= {*self.identity.controllers}

    def teardown(self) -> None:
        if not hasattr(self, "voting"):
            return
        self.dead, self.behind = set(), set()
        assert self.is_led
        for _ in range(80):
            self.commit()
            self.look()
            if self.outdated:
                self.roll()
        assert self.next_step() is None
        assert (tuple(sorted(self.voting)), self.identity.controllers) == (self.wanted, self.wanted)


Changing.TestCase.settings = settings(max_examples=500, stateful_step_count=40, deadline=None)
test_whatever_happens = Changing.TestCase
