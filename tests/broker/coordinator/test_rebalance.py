"""The rules of the classic protocol, as stories about one group. Time is a number; nothing waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ballast_broker.coordinator import group, rebalance
from ballast_broker.coordinator.effects import (
    Effect,
    JoinResult,
    Reply,
    StoreAssignment,
    StoreEmpty,
    StoreStaticMember,
    SyncResult,
)
from ballast_broker.coordinator.group import Group, GroupState, Member, Protocol, Ticket
from ballast_broker.coordinator.rebalance import GroupLimits, JoinAsk, Now, SyncAsk
from ballast_broker.coordinator.subscription import subscribed_topics
from ballast_wire.errors import ErrorCode

pytestmark = pytest.mark.spec("CLI-04")

SUBSCRIBED_TO_T = b"\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x00"


class Story:
    """One group, a clock, and the responses to its members."""

    def __init__(self, **limits: int) -> None:
        self.group = Group("g")
        self.limits = GroupLimits(**limits)
        self.time = 0
        self.answers: dict[Ticket, JoinResult | SyncResult] = {}
        self.stores: list[Effect] = []
        self._ids = 0

    @property
    def now(self) -> Now:
        return Now(self.time, 1_000_000 + self.time)

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert effect.ticket not in self.answers, "answered twice"
                self.answers[effect.ticket] = effect.result
            else:
                self.stores.append(effect)
        exact = replace(self.group)
        exact.look_up_deadlines()
        due, noted = exact.next_deadline_ms(), self.group.next_deadline_ms()
        assert due is None or (noted is not None and noted <= due), "a deadline would be missed"

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[str, ...] = ("range",),
        metadata: bytes = SUBSCRIBED_TO_T,
        known_id: bool = False,
        skip: bool = False,
        protocol_type: str = "consumer",
        rebalance_timeout_ms: int = 30_000,
    ) -> Ticket:
        self._ids += 1
        ticket = Ticket()
        ask = JoinAsk(
            member_id,
            instance,
            "client",
            "/127.0.0.1",
            10_000,
            rebalance_timeout_ms,
            protocol_type,
            tuple(Protocol(name, metadata) for name in protocols),
            f"m{self._ids}",
            known_id,
            skip,
        )
        self.take(rebalance.join(self.group, ask, ticket, self.limits, self.now))
        return ticket

    def sync(self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None) -> Ticket:
        ticket = Ticket()
        ask = SyncAsk(member_id, None, generation, None, None, assignments or {})
        self.take(rebalance.sync(self.group, ask, ticket, self.now))
        return ticket

    def after(self, milliseconds: int) -> None:
        """Let time pass, waking the group at each of its deadlines."""
        end = self.time + milliseconds
        while (due := self.group.next_deadline_ms()) is not None and due <= end:
            self.time = max(self.time, due)
            self.take(rebalance.tick(self.group, self.limits, self.now))
        self.time = end

    def stored(self, error: ErrorCode = ErrorCode.NONE) -> None:
        effect = self.stores.pop(0)
        if isinstance(effect, StoreAssignment):
            self.take(rebalance.assignment_stored(self.group, effect, error, self.limits, self.now))
        elif isinstance(effect, StoreStaticMember):
            self.take(rebalance.static_member_stored(self.group, effect, error))

    def joined(self, ticket: Ticket) -> JoinResult:
        answer = self.answers[ticket]
        assert isinstance(answer, JoinResult)
        return answer

    def synced(self, ticket: Ticket) -> SyncResult:
        answer = self.answers[ticket]
        assert isinstance(answer, SyncResult)
        return answer


def stable_pair() -> tuple[Story, str, str]:
    """Two members, one leader, assignments given out."""
    story = Story()
    one, two = story.join(), story.join()
    story.after(10_000)
    leader, follower = story.joined(one).member_id, story.joined(two).member_id
    first = story.sync(leader, 1, {leader: b"L", follower: b"F"})
    second = story.sync(follower, 1)
    story.stored()
    assert story.synced(first).assignment == b"L"
    assert story.synced(second).assignment == b"F"
    assert story.group.state is GroupState.STABLE
    return story, leader, follower


def test_members_that_start_together_share_the_first_generation() -> None:
    story = Story(initial_rebalance_delay_ms=3000)
    one = story.join()
    story.after(2000)
    two = story.join()
    assert not story.answers
    story.after(4000)
    assert story.joined(one).generation == story.joined(two).generation == 1
    assert story.joined(one).leader == story.joined(one).member_id
    assert [m.member_id for m in story.joined(one).members] == ["m1", "m2"]
    assert story.joined(two).members == ()


def test_nobody_gets_an_assignment_before_it_is_stored() -> None:
    story, leader, follower = stable_pair()
    again = story.join(leader)
    other = story.join(follower)
    assert story.joined(again).generation == story.joined(other).generation == 2
    first = story.sync(leader, 2, {leader: b"1", follower: b"2"})
    second = story.sync(follower, 2)
    assert first not in story.answers
    assert second not in story.answers
    story.stored()
    assert (story.synced(first).assignment, story.synced(second).assignment) == (b"1", b"2")


def test_a_generation_has_one_plan_whatever_its_leader_asks_meanwhile() -> None:
    """The log would have the second plan, and the next coordinator would tell it to members that missed the first."""
    story, leader, follower = stable_pair()
    story.join(leader)
    story.join(follower)
    lost = story.sync(leader, 2, {leader: b"1", follower: b"2"})
    assert story.joined(story.join(leader)).generation == 2
    again = story.sync(leader, 2, {leader: b"2", follower: b"1"})
    second = story.sync(follower, 2)
    assert story.synced(lost).error is ErrorCode.UNKNOWN_MEMBER_ID
    story.stored()
    assert not story.stores
    assert (story.synced(again).assignment, story.synced(second).assignment) == (b"1", b"2")


def test_an_assignment_that_cannot_be_stored_begins_a_new_rebalance() -> None:
    story, leader, follower = stable_pair()
    story.join(leader)
    story.join(follower)
    waiting = story.sync(leader, 2, {leader: b"1"})
    story.stored(ErrorCode.NOT_COORDINATOR)
    assert story.synced(waiting).error is ErrorCode.NOT_COORDINATOR
    assert story.group.state is GroupState.PREPARING_REBALANCE


def test_a_member_without_an_id_is_given_one_first() -> None:
    story = Story()
    refused = story.join(known_id=True)
    given = story.joined(refused)
    assert (given.error, given.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "m1")
    accepted = story.join("m1", known_id=True)
    story.after(3000)
    assert story.joined(accepted).error is ErrorCode.NONE


def test_an_id_that_was_given_out_and_not_used_is_forgotten() -> None:
    story = Story()
    story.join(known_id=True)
    story.after(10_000)
    assert story.group.size == 0
    assert story.joined(story.join("m1")).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_leaves_and_the_others_rebalance() -> None:
    story, leader, follower = stable_pair()
    story.after(9000)
    assert rebalance.heartbeat(story.group, leader, None, 1, story.now) is ErrorCode.NONE
    story.after(1001)
    assert follower not in story.group.members
    assert rebalance.heartbeat(story.group, leader, None, 1, story.now) is ErrorCode.REBALANCE_IN_PROGRESS
    alone = story.join(leader)
    assert story.joined(alone).generation == 2
    assert len(story.joined(alone).members) == 1


def test_a_member_that_never_syncs_is_removed() -> None:
    story, leader, follower = stable_pair()
    story.join(leader)
    story.join(follower)
    story.sync(leader, 2, {leader: b"1"})
    story.stored()
    for _ in range(5):
        story.after(7000)
        rebalance.heartbeat(story.group, leader, None, 2, story.now)
        rebalance.heartbeat(story.group, follower, None, 2, story.now)
    assert follower not in story.group.members


def test_heartbeats_of_an_old_generation_and_of_strangers_are_refused() -> None:
    story, leader, _ = stable_pair()
    assert rebalance.heartbeat(story.group, leader, None, 0, story.now) is ErrorCode.ILLEGAL_GENERATION
    assert rebalance.heartbeat(story.group, "x", None, 1, story.now) is ErrorCode.UNKNOWN_MEMBER_ID


def test_no_common_protocol_is_inconsistent() -> None:
    story, _, _ = stable_pair()
    assert story.joined(story.join(protocols=("other",))).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert story.joined(story.join(protocol_type="connect")).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_most_members_prefer_and_all_support_is_selected() -> None:
    story = Story()
    tickets = [
        story.join(protocols=("a", "b", "c")),
        story.join(protocols=("b", "a")),
        story.join(protocols=("b", "a", "d")),
    ]
    story.after(40_000)
    assert story.joined(tickets[0]).protocol_name == "b"


def test_of_two_protocols_that_as_many_prefer_one_is_taken_as_by_apache_kafka() -> None:
    story = Story()
    tickets = [story.join(protocols=("range", "rr")), story.join(protocols=("rr", "range"))]
    story.after(40_000)
    assert story.joined(tickets[0]).protocol_name == "rr"  # which is the first in a Java HashMap


def test_a_protocol_is_common_again_when_the_member_without_it_is_gone_or_learns_it() -> None:
    story = Story()
    tickets = [story.join(protocols=("a", "b", "a")), story.join(protocols=("a",))]
    story.after(10_000)
    first, second = (story.joined(ticket).member_id for ticket in tickets)
    assert story.joined(story.join(protocols=("b",))).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    story.join(second, protocols=("b", "a"))
    story.join(first, protocols=("b",))
    assert story.group.protocol_name == "b"
    story.take(rebalance.leave(story.group, first, None, story.limits, story.now)[1])
    story.join(protocols=("a",))
    story.join(second, protocols=("a", "b"))
    assert story.group.protocol_name == "a"
    story.take(rebalance.leave(story.group, second, None, story.limits, story.now)[1])
    assert story.group.supporting == {"a": 1}


@pytest.mark.spec("CLI-09")
def test_who_joins_has_not_the_protocols_of_all_others_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [0]
    names = Member.protocol_names

    def counted(member: Member) -> list[str]:
        asked[0] += 1
        return names(member)

    def read(metadata: bytes) -> frozenset[str] | None:
        asked[0] += 1
        return subscribed_topics(metadata)

    monkeypatch.setattr(Member, "protocol_names", counted)
    monkeypatch.setattr(group, "subscribed_topics", read)
    story = Story()
    tickets = [story.join() for _ in range(100)]
    story.after(10_000)
    assert len({story.joined(ticket).generation for ticket in tickets}) == 1
    assert asked[0] <= 201, "once as it joins, once for its vote; the subscription of all is the same"


def test_an_id_that_was_never_used_can_leave_as_an_instance_as_well() -> None:
    story = Story()
    story.group.pending_members["m"] = 60_000
    error, _ = rebalance.leave(story.group, "m", "i", story.limits, story.now)
    assert error is ErrorCode.NONE
    assert not story.group.pending_members


def test_the_last_one_to_leave_makes_the_group_empty_and_that_is_stored() -> None:
    story, leader, follower = stable_pair()
    for member_id in (leader, follower):
        error, effects = rebalance.leave(story.group, member_id, None, story.limits, story.now)
        story.take(effects)
        assert error is ErrorCode.NONE
    assert story.group.state is GroupState.EMPTY
    assert any(isinstance(effect, StoreEmpty) for effect in story.stores)


def test_a_static_member_that_restarts_keeps_its_place_without_a_rebalance() -> None:
    story = Story()
    one, two = story.join(instance="a"), story.join(instance="b")
    story.after(10_000)
    a, b = story.joined(one).member_id, story.joined(two).member_id
    story.sync(a, 1, {a: b"A", b: b"B"})
    story.sync(b, 1)
    story.stored()
    back = story.join(instance="b")
    assert back not in story.answers
    story.stored()
    answer = story.joined(back)
    assert answer.generation == 1
    assert answer.member_id not in (a, b)
    assert story.synced(story.sync(answer.member_id, 1)).assignment == b"B"
    assert rebalance.heartbeat(story.group, b, "b", 1, story.now) is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_leader_that_restarts_is_told_to_skip_the_assignment() -> None:
    story = Story()
    one = story.join(instance="a")
    story.after(3000)
    a = story.joined(one).member_id
    story.sync(a, 1, {a: b"A"})
    story.stored()
    back = story.join(instance="a", skip=True)
    story.stored()
    answer = story.joined(back)
    assert answer.skip_assignment
    assert answer.leader == answer.member_id
    assert len(answer.members) == 1


def test_a_static_member_whose_return_is_not_stored_keeps_its_old_id() -> None:
    story = Story()
    one = story.join(instance="a")
    story.after(3000)
    a = story.joined(one).member_id
    story.sync(a, 1, {a: b"A"})
    story.stored()
    back = story.join(instance="a")
    story.stored(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert story.joined(back).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert list(story.group.members) == [a]


def test_who_waits_is_fenced_by_who_takes_its_place() -> None:
    """Otherwise its client would get no response until its own timeout."""
    story = Story()
    first = story.join(instance="a")
    second = story.join(instance="a")
    assert story.joined(first).error is ErrorCode.FENCED_INSTANCE_ID
    other = story.join(instance="b")
    story.after(10_000)
    assert story.joined(second).leader == story.joined(second).member_id
    waiting = story.sync(story.joined(other).member_id, 1)
    assert waiting not in story.answers
    story.join(instance="b")
    assert story.synced(waiting).error is ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.spec("CLI-09")
def test_a_static_member_that_gives_itself_no_time_is_not_asked_for_all_the_time() -> None:
    story = Story(initial_rebalance_delay_ms=0)
    story.join(instance="one")
    story.join(instance="two", rebalance_timeout_ms=0)
    story.join("m1", instance="one")
    story.sync("m1", 2, {})
    story.stored()
    assert story.group.is_in(GroupState.STABLE)
    story.take(rebalance.leave(story.group, "", "one", story.limits, story.now)[1])
    looked = 0
    while story.group.members and looked < 1000:
        story.time = max(story.time, story.group.next_deadline_ms() or 0)
        story.take(rebalance.tick(story.group, story.limits, story.now))
        looked += 1
    assert looked < 20
    assert story.group.is_in(GroupState.EMPTY)


def test_a_member_of_a_large_group_comes_and_stays_without_a_look_at_all_the_others() -> None:
    class Members(dict[str, Member]):
        looks = 0

        def values(self) -> Any:
            self.looks += 1
            return super().values()

    story = Story()
    members = story.group.members = Members()

    protocols = (Protocol("range", b""),)
    for number in range(100):
        ask = JoinAsk("", None, "c", "/1", 10_000, 30_000, "consumer", protocols, f"{number}", False, False)
        rebalance.join(story.group, ask, Ticket(), story.limits, story.now)
        story.group.next_deadline_ms()
    assert len(members) == 100
    assert members.looks <= 2
    story.after(6_000)
    looks = members.looks
    for number in range(100):
        assert rebalance.heartbeat(story.group, f"{number}", None, 1, story.now) is ErrorCode.NONE
        story.group.next_deadline_ms()
    assert members.looks == looks


def test_a_full_group_takes_nobody_more() -> None:
    story = Story(max_size=2)
    story.join()
    story.join()
    third = story.join()
    assert story.joined(third).error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_in_a_full_group_that_gathers_the_last_one_to_come_loses_its_place() -> None:
    story, leader, follower = stable_pair()
    story.limits = GroupLimits(max_size=2)
    assert story.joined(story.join()).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    story.join(leader)
    newcomer = story.join()
    assert story.joined(story.join(follower)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    for _ in range(4):
        story.after(9000)
        rebalance.heartbeat(story.group, follower, None, 1, story.now)
    assert story.joined(newcomer).generation == 2


def test_a_group_that_is_larger_than_it_may_be_by_now_gathers_once_more_when_it_is_loaded() -> None:
    """`group.max.size` was lowered before the restart."""
    story, leader, follower = stable_pair()
    story.limits = GroupLimits(max_size=1)
    story.take(rebalance.loaded(story.group, story.limits, story.now))
    assert rebalance.heartbeat(story.group, leader, None, 1, story.now) is ErrorCode.REBALANCE_IN_PROGRESS
    first = story.join(leader)
    assert story.joined(story.join(follower)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    story.after(10_000)
    assert story.joined(first).generation == 2
    assert list(story.group.members) == [leader]
    story.take(rebalance.loaded(story.group, story.limits, story.now))
    assert story.group.state is GroupState.COMPLETING_REBALANCE


def test_ids_that_were_only_given_out_take_no_place() -> None:
    story = Story(max_size=1, initial_rebalance_delay_ms=0)
    story.join(known_id=True)
    assert story.joined(story.join("m1", known_id=True)).error is ErrorCode.NONE
    story = Story(max_size=1)
    story.join(known_id=True)
    assert story.joined(story.join(known_id=True)).error is ErrorCode.MEMBER_ID_REQUIRED


def test_a_newcomer_that_asks_again_waits_as_long_as_one_that_asks_once() -> None:
    story, _, follower = stable_pair()
    first = story.join()
    newcomer = next(m for m in story.group.members if story.group.members[m].is_new)
    again = story.join(newcomer)
    assert story.joined(first).error is ErrorCode.UNKNOWN_MEMBER_ID
    for _ in range(3):
        story.after(8000)
        rebalance.heartbeat(story.group, follower, None, 1, story.now)
    assert newcomer in story.group.members
    story.after(8000)
    assert story.joined(again).generation == 2


def test_a_lost_join_answer_is_given_again() -> None:
    story = Story()
    one, two = story.join(), story.join()
    story.after(10_000)
    assert story.joined(one).generation == 1
    assert story.joined(story.join(story.joined(two).member_id)).generation == 1


def test_whoever_waits_is_told_when_the_coordinator_moves() -> None:
    story = Story()
    waiting = story.join()
    story.take(rebalance.close(story.group, ErrorCode.NOT_COORDINATOR, story.now))
    assert story.joined(waiting).error is ErrorCode.NOT_COORDINATOR
    assert story.joined(story.join()).error is ErrorCode.NOT_COORDINATOR
