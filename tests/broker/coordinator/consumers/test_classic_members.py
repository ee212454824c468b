"""Members of both protocols in one group: clients of each that do what it asks of them, and single steps."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.broker.coordinator.consumers.test_heartbeat import (
    FENCED,
    TIMEOUT_MS,
    Client,
    Coordinator,
    Owned,
    World,
    as_partitions,
    beat,
    image_of,
)
from tests.broker.coordinator.consumers.test_heartbeat import join as join_consumer

from ballast_broker.coordinator.consumers import classic_members, records
from ballast_broker.coordinator.consumers.conversion import downgraded, upgraded
from ballast_broker.coordinator.consumers.embedded import assignment, assignment_of, by_id, subscription_of
from ballast_broker.coordinator.consumers.group import (
    About,
    AboutChange,
    Classic,
    GroupState,
    MemberState,
    Partitions,
    pairs,
)
from ballast_broker.coordinator.consumers.heartbeat import Answer, ConsumerLimits
from ballast_broker.coordinator.effects import SyncResult
from ballast_broker.coordinator.group import Group, Protocol
from ballast_broker.coordinator.group import Member as ClassicMember
from ballast_broker.coordinator.rebalance import JoinAsk, SyncAsk
from ballast_wire.errors import ApiError, ErrorCode

pytestmark = pytest.mark.spec("CLI-04")

T = UUID(int=7)
RANGE, STICKY = "range", "cooperative-sticky"


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def numbered(partitions: dict[str, Iterable[int]]) -> bytes:
    parts = [struct.pack(">i", len(partitions))]
    for name, numbers in partitions.items():
        parts.append(text(name) + struct.pack(f">i{len(list(numbers))}i", len(list(numbers)), *numbers))
    return b"".join(parts)


def subscription(topics: Iterable[str], owned: dict[str, Iterable[int]] | None = None, version: int = 3) -> bytes:
    names = sorted(topics)
    data = struct.pack(">hi", version, len(names)) + b"".join(map(text, names)) + struct.pack(">i", -1)
    if version >= 1:
        data += numbered(owned or {})
    if version >= 2:
        data += struct.pack(">i", -1)
    return data + (struct.pack(">h", -1) if version >= 3 else b"")


def join_ask(
    member_id: str, metadata: bytes, *names: str, fresh: str = "new", instance_id: str | None = None
) -> JoinAsk:
    protocols = tuple(Protocol(name, metadata) for name in names or (RANGE,))
    return JoinAsk(member_id, instance_id, "c", "h", 6000, TIMEOUT_MS, "consumer", protocols, fresh, False, True)


class Mixed(Coordinator):
    def join(self, ask: JoinAsk) -> Answer:
        group = self.group
        answer = classic_members.join(group, ask, self.topics, self.limits, refresh=self.topics_changed)
        self.topics_changed = False
        self.commit(group, answer.changes)
        return answer

    def sync(self, member_id: str, instance_id: str | None, generation: int, name: str = RANGE) -> SyncResult:
        ask = SyncAsk(member_id, instance_id, generation, "consumer", name, {})
        member = classic_members.member_at(self.group, member_id, instance_id, generation)
        classic_members.check_protocol(member, ask)
        if classic_members.is_behind(self.group, member):
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        return classic_members.synced(member, ask, self.topics)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        member = classic_members.member_at(self.group, member_id, instance_id, generation)
        return ErrorCode(27 if classic_members.has_to_rejoin(self.group, member, refresh=self.topics_changed) else 0)

    def there_and_back(self) -> None:
        """A group of classic members goes to the other protocol, and comes back at once."""
        group = self.group
        classic = downgraded(group, (), self.topics, 0)
        self.commit(group, group.farewell())
        assert self.group.members == {}
        self.commit(self.group, upgraded(classic, self.topics))
        self.topics_changed = True


@dataclass
class ClassicClient(Client):
    """Eager, or cooperative: who keeps what it has while it joins."""

    eager: bool = True
    doing: str = "join"

    def begin_anew(self) -> None:
        self.epoch, self.owned, self.doing = -1, set(), "join"

    def give_back(self, chance: random.Random, *, all_of_it: bool) -> None:
        """It gives back as it joins, or as it learns what it is to have."""

    def step(self, world: MixedWorld, *, lost: bool) -> None:
        if self.doing == "join":
            self._join(world, lost=lost)
        elif self.doing == "sync":
            self._sync(world, lost=lost)
        elif world.coordinator.heartbeat(self.member_id, self.instance_id, self.epoch):
            self._rejoin()

    def _rejoin(self) -> None:
        self.doing = "join"
        if self.eager:
            self.owned = set()

    def _join(self, world: MixedWorld, *, lost: bool) -> None:
        topics = world.coordinator.topics
        owned: dict[str, Iterable[int]] = {}
        for topic_id, numbers in as_partitions(self.owned).items():
            if (topic := topics.by_id(topic_id)) is not None:
                owned[topic.name] = numbers
        metadata = subscription(self.topics, owned, 0 if self.eager else 3)
        known = "" if self.epoch == 0 else self.member_id
        ask = join_ask(known, metadata, RANGE if self.eager else STICKY, RANGE, fresh=self.member_id)
        answer = world.coordinator.join(replace(ask, group_instance_id=self.instance_id))
        if not lost:
            self.epoch, self.doing = answer.epoch, "sync"

    def _sync(self, world: MixedWorld, *, lost: bool) -> None:
        name = RANGE if self.eager else STICKY
        try:
            result = world.coordinator.sync(self.member_id, self.instance_id, self.epoch, name)
        except ApiError as error:
            if error.code is not ErrorCode.REBALANCE_IN_PROGRESS:
                raise
            self._rejoin()
            return
        if lost:
            self._rejoin()
            return
        wanted: Owned = set(pairs(by_id(assignment_of(result.assignment)[0], world.coordinator.topics)))
        given_back = self.owned - wanted
        self.owned, self.doing = wanted, "join" if given_back else "beat"


class MixedWorld(World):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.coordinator: Mixed = Mixed(self.coordinator.partitions)

    def beat(self, client: Client, *, lost: bool = False) -> None:
        if not isinstance(client, ClassicClient):
            super().beat(client, lost=lost)
            return
        try:
            client.step(self, lost=lost)
        except ApiError as error:
            if error.code not in (*FENCED, ErrorCode.ILLEGAL_GENERATION):
                raise
            client.begin_anew()
        self.check()

    def act(self) -> None:
        if self.coordinator.group.is_classic_without() and self.chance.random() < 0.1:
            self.coordinator.there_and_back()
        super().act()

    def _join(self) -> None:
        """One in place of a static member may speak the other protocol, and that one is still there for a while."""
        before = len(self.clients)
        super()._join()
        if len(self.clients) == before or self.chance.random() < 0.4:
            return
        modern = self.clients.pop()
        self.coordinator.expire(modern.member_id)
        topics = modern.topics or frozenset({"t0"})
        client = ClassicClient(f"c{self._number}", topics, None, modern.instance_id, eager=self.chance.random() < 0.5)
        self.clients.append(client)
        self.beat(client)

    def _leave(self, client: Client) -> None:
        if not isinstance(client, ClassicClient):
            super()._leave(client)
            return
        self.clients.remove(client)
        if client.instance_id is None:
            self.coordinator.expire(client.member_id)

    def is_settled(self) -> bool:
        return super().is_settled() and not (self.clients and self.coordinator.topics_changed)

    def _roll(self, client: Client) -> None:
        """The client is restarted with the other protocol: what it had, it has given up."""
        self.clients.remove(client)
        self._number += 1
        topics = client.topics or frozenset({"t0"})
        if isinstance(client, ClassicClient):
            if client.instance_id is None:
                self.coordinator.expire(client.member_id)
            following = Client(f"m{self._number}", topics, None, client.instance_id)
        else:
            if client.instance_id is None:
                self.coordinator.expire(client.member_id)
            eager = self.chance.random() < 0.5
            following = ClassicClient(f"c{self._number}", topics, None, client.instance_id, eager=eager)
        self.clients.append(following)
        self.beat(following)


@given(st.integers(0, 2**32))
@example(11966)  # who was to give back all that it had, for it reads nothing, kept it as the group went over
@example(134217728)  # a topic came as the group went over: it stayed unassigned
@settings(max_examples=150, deadline=None)
def test_no_partition_has_two_readers_whatever_they_speak_and_the_group_settles(seed: int) -> None:
    world = MixedWorld(seed)
    for _ in range(world.chance.randint(5, 120)):
        world.act()
        if world.clients and world.chance.random() < 0.1:
            world._roll(world.chance.choice(world.clients))
    world.settle()
    group, partitions = world.coordinator.group, world.coordinator.partitions
    read = {name for member in group.members.values() for name in group.topics_of(member.about)} & partitions.keys()
    every = {(partitions[name][0], number) for name in read for number in range(partitions[name][1])}
    assert {pair for client in world.clients for pair in client.owned} == every


# -- what is written --------------------------------------------------------------------------------------------------
ABOUT = About("i", None, "c", "h", frozenset({"t"}), "", 5000, None)
CLASSIC = Classic(6000, (Protocol(RANGE, b"\x01\x02\x03"),))


@pytest.mark.parametrize(
    ("classic", "written"),
    [
        (CLASSIC, "0000026900026302680202740100001388000100120100001770020672616e6765040102030000"),
        (None, "00000269000263026802027401000013880001000100"),
    ],
)
def test_the_record_is_that_of_apache_kafka(classic: Classic | None, written: str) -> None:
    change = AboutChange("m", replace(ABOUT, classic=classic))
    key, value = records.encode("g", change)
    assert value is not None
    assert value.hex() == written
    assert records.decode(5, key, value) == ("g", change)
    assert records.decode(5, key, value[: value.index(b"\x00\x01\x00", 8) + 1] + b"\0") == (
        "g",
        AboutChange("m", ABOUT),
    )


@given(
    st.lists(st.tuples(st.text("abc", max_size=300), st.binary(max_size=20_000)), max_size=4), st.integers(0, 2**31 - 1)
)
@settings(max_examples=50, deadline=None)
def test_terms_of_any_length_are_read_as_written(protocols: list[tuple[str, bytes]], timeout_ms: int) -> None:
    classic = Classic(timeout_ms, tuple(Protocol(*each) for each in protocols))
    change = AboutChange("m", replace(ABOUT, classic=classic, topics=frozenset({"a", "b"}), rack_id="r"))
    assert records.decode(5, *records.encode("g", change)).change == change


@pytest.mark.parametrize(
    ("version", "written"),
    [
        (0, "000000000002000174000175ffffffff"),
        (1, "000100000002000174000175ffffffff00000001000174000000020000000000000002"),
        (2, "000200000002000174000175ffffffff0000000100017400000002000000000000000200000004"),
        (3, "000300000002000174000175ffffffff0000000100017400000002000000000000000200000004000172"),
        (9, "000900000002000174000175ffffffff00000001000174000000020000000000000002000000040001720000"),
    ],
)
def test_a_subscription_is_read_as_consumers_write_it(version: int, written: str) -> None:
    read = subscription_of(bytes.fromhex(written))
    assert (read.version, read.topics) == (version, frozenset({"t", "u"}))
    assert read.owned == ({"t": {0, 2}} if version else {})
    assert read.rack_id == ("r" if version >= 3 else None)


@pytest.mark.parametrize("version", [0, 1, 3, 9])
def test_an_assignment_is_written_as_consumers_read_it(version: int) -> None:
    topics = image_of({"t": (T, 3)})
    partitions: Partitions = {T: frozenset({2, 0}), UUID(int=9): frozenset({1})}  # of one that is gone
    written = assignment(partitions, topics, version)
    assert written.hex() == f"{min(version, 3):04x}" + "00000001000174000000020000000000000002ffffffff"
    assert by_id(assignment_of(written)[0], topics) == {T: {0, 2}}


@pytest.mark.spec("CLI-08")
@given(st.binary(max_size=60))
def test_bytes_that_are_none_of_it_are_a_value_error(data: bytes) -> None:
    readers: list[Callable[[bytes], object]] = [subscription_of, assignment_of]
    for read in readers:
        with contextlib.suppress(ValueError):
            read(data)


# -- single steps -----------------------------------------------------------------------------------------------------
@pytest.fixture
def coordinator() -> Mixed:
    return Mixed({"t": (T, 4)})


def owning(*numbers: int) -> bytes:
    return subscription({"t"}, {"t": numbers} if numbers else {})


def assigned(coordinator: Mixed, member_id: str, generation: int, name: str = RANGE) -> set[int]:
    result = coordinator.sync(member_id, None, generation, name)
    return set(assignment_of(result.assignment)[0].get("t", ()))


def test_a_cooperative_member_is_led_to_give_back_and_to_take_over(coordinator: Mixed) -> None:
    """In the steps that it knows: join, sync, and a heartbeat that says when to join again."""
    join_consumer(coordinator, "m")
    assert coordinator.join(join_ask("", owning(), STICKY, fresh="c")).epoch == 2
    assert assigned(coordinator, "c", 2, STICKY) == set()
    assert coordinator.heartbeat("c", None, 2) is ErrorCode.NONE  # what it waits for is not free
    beat(coordinator, "m", 1, 0, 1, 2, 3)
    beat(coordinator, "m", 1, 0, 1)
    assert coordinator.heartbeat("c", None, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.join(join_ask("c", owning(), STICKY)).epoch == 2
    assert assigned(coordinator, "c", 2, STICKY) == {2, 3}
    for name in ("n", "o"):
        join_consumer(coordinator, name)
    assert coordinator.heartbeat("c", None, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    with pytest.raises(ApiError) as caught:
        assigned(coordinator, "c", 2, STICKY)
    assert caught.value.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.join(join_ask("c", owning(2, 3), STICKY)).epoch == 2  # it has to give one back before it goes on
    assert coordinator.group.members["c"].current.state is MemberState.UNREVOKED_PARTITIONS
    [left] = assigned(coordinator, "c", 2, STICKY)
    assert coordinator.heartbeat("c", None, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.join(join_ask("c", owning(left), STICKY)).epoch == 4
    assert coordinator.heartbeat("c", None, 4) is ErrorCode.NONE


def test_who_joins_eagerly_has_given_back_already(coordinator: Mixed) -> None:
    coordinator.join(join_ask("", owning(), fresh="c"))
    assert assigned(coordinator, "c", 1) == {0, 1, 2, 3}
    join_consumer(coordinator, "m")
    assert coordinator.join(join_ask("c", subscription({"t"}, version=0))).epoch == 2
    assert len(assigned(coordinator, "c", 2)) == 2
    assert beat(coordinator, "m", 2).assigned is not None


def refused(code: ErrorCode, coordinator: Mixed, ask: JoinAsk) -> None:
    with pytest.raises(ApiError) as caught:
        coordinator.join(ask)
    assert caught.value.code is code


def test_who_may_not_join_is_told_why(coordinator: Mixed) -> None:
    join_consumer(coordinator, "m")
    coordinator.join(join_ask("", owning(), RANGE, "other", fresh="c"))
    refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, coordinator, join_ask("", owning(), STICKY))
    refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, coordinator, replace(join_ask("", owning()), protocols=()))
    refused(
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL, coordinator, replace(join_ask("", owning()), protocol_type="connect")
    )
    refused(ErrorCode.MEMBER_ID_REQUIRED, coordinator, replace(join_ask("", owning()), requires_known_member_id=True))
    refused(ErrorCode.UNKNOWN_MEMBER_ID, coordinator, join_ask("x", owning(), instance_id="i"))
    refused(ErrorCode.UNKNOWN_SERVER_ERROR, coordinator, join_ask("", b"\0"))
    coordinator.limits = ConsumerLimits(max_size=2)
    refused(ErrorCode.GROUP_MAX_SIZE_REACHED, coordinator, join_ask("", owning()))
    assert set(coordinator.group.members) == {"m", "c"}
    assert coordinator.join(join_ask("c", owning(), RANGE)).epoch == 3 - 1


@pytest.mark.parametrize(
    ("member_id", "instance_id", "generation", "code"),
    [
        ("c", None, 1, ErrorCode.ILLEGAL_GENERATION),
        ("m", None, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("x", None, 2, ErrorCode.UNKNOWN_MEMBER_ID),
        ("c", "j", 2, ErrorCode.UNKNOWN_MEMBER_ID),
        ("x", "i", 2, ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_who_is_no_classic_member_at_that_generation_is_told_so(
    coordinator: Mixed, member_id: str, instance_id: str | None, generation: int, code: ErrorCode
) -> None:
    join_consumer(coordinator, "m")
    coordinator.join(join_ask("", owning(), fresh="c", instance_id="i"))
    for ask in (coordinator.heartbeat, coordinator.sync):
        with pytest.raises(ApiError) as caught:
            ask(member_id, instance_id, generation)
        assert caught.value.code is code


def test_an_assignment_of_another_protocol_is_not_given(coordinator: Mixed) -> None:
    coordinator.join(join_ask("", owning(), fresh="c"))
    with pytest.raises(ApiError) as caught:
        coordinator.sync("c", None, 1, STICKY)
    assert caught.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_static_member_goes_over_and_back_with_what_it_has(coordinator: Mixed) -> None:
    """Without having left: it was restarted, and nobody else notices."""
    coordinator.join(join_ask("", owning(), fresh="c", instance_id="i"))
    coordinator.join(join_ask("", owning(), fresh="d"))
    had, epoch = coordinator.group.targets["c"], coordinator.group.epoch
    over = join_consumer(coordinator, "m", instance_id="i")
    assert (over.epoch, over.assigned) == (epoch, had)
    back = coordinator.join(join_ask("", owning(), fresh="e", instance_id="i"))
    assert (back.epoch, coordinator.group.targets["e"]) == (epoch, had)
    assert set(coordinator.group.members) == {"d", "e"}
    assert coordinator.group.is_classic_without()


# -- from one protocol to the other -----------------------------------------------------------------------------------
def classic_group(*assignments: bytes, metadata: bytes = owning()) -> Group:
    group = Group("g", generation=5, protocol_type="consumer", protocol_name=RANGE)
    for number, data in enumerate(assignments):
        terms = (Protocol(RANGE, metadata),)
        group.add(ClassicMember(f"c{number}", None, "c", "h", 300, 6000, terms, data, is_new=False))
    return group


def has(*numbers: int, of_assignor: bytes = b"") -> bytes:
    data = struct.pack(">h", 0) + numbered({"t": numbers})
    return data + (struct.pack(">i", len(of_assignor)) + of_assignor if of_assignor else struct.pack(">i", -1))


def test_a_group_becomes_one_of_the_consumer_protocol_as_it_is(coordinator: Mixed) -> None:
    coordinator.commit(coordinator.group, upgraded(classic_group(has(0, 1), has(2, 3), b""), coordinator.topics))
    group = coordinator.group
    assert (group.epoch, group.assignment_epoch, group.state) == (5, 5, GroupState.STABLE)
    assert [each.current.assigned.get(T, frozenset()) for each in group.members.values()] == [{0, 1}, {2, 3}, set()]
    assert {each.current.epoch for each in group.members.values()} == {5}
    assert group.members["c0"].about.classic == Classic(6000, (Protocol(RANGE, owning()),))
    assert group.members["c0"].about.rebalance_timeout_ms == 300
    coordinator.fail_over(compacted=True)
    again = downgraded(coordinator.group, ["c2"], coordinator.topics, 9)
    assert (again.generation, again.protocol_name, again.leader_id, again.subscribed) == (
        5,
        RANGE,
        "c0",
        frozenset({"t"}),
    )
    assert {each.member_id: assignment_of(each.assignment)[0] for each in again.members.values()} == {
        "c0": {"t": {0, 1}},
        "c1": {"t": {2, 3}},
    }


@pytest.mark.parametrize(
    "group",
    [
        classic_group(has(0), has(0)),
        replace(classic_group(has(0, of_assignor=b"x")), protocol_name="mine"),
        classic_group(b"\0\0\0"),
        classic_group(has(0), metadata=b"\0"),
    ],
)
def test_a_group_that_cannot_be_read_stays_what_it_is(coordinator: Mixed, group: Group) -> None:
    with pytest.raises(ValueError, match=r"."):
        upgraded(group, coordinator.topics)


def test_what_the_assignors_of_all_clients_add_is_no_obstacle(coordinator: Mixed) -> None:
    """librdkafka's sticky ones say in the assignment, too, what was assigned."""
    group = replace(classic_group(has(0, of_assignor=b"x")), protocol_name=STICKY)
    coordinator.commit(coordinator.group, upgraded(group, coordinator.topics))
    assert coordinator.group.members["c0"].current.assigned == {T: {0}}


def test_what_a_member_had_as_it_joined_it_may_read_until_it_has_joined_again(coordinator: Mixed) -> None:
    """It was assigned less, of which it has not heard yet, or has not given it back: nobody else gets that before."""
    group = replace(classic_group(has(0, 1), metadata=owning(0, 1, 2, 3)), protocol_name=STICKY)
    coordinator.commit(coordinator.group, upgraded(group, coordinator.topics))
    current = coordinator.group.members["c0"].current
    assert [pairs(each) for each in (current.assigned, current.revoking)] == [[(T, 0), (T, 1)], [(T, 2), (T, 3)]]
    assert coordinator.heartbeat("c0", None, 5) is ErrorCode.REBALANCE_IN_PROGRESS
    assert not join_consumer(coordinator, "m").assigned
    assert assignment_of(coordinator.sync("c0", None, 5).assignment)[0] == {"t": {0, 1}}
    coordinator.join(join_ask("c0", owning(0, 1)))
    assert pairs(beat(coordinator, "m", epoch=6).assigned or {}) == [(T, 2), (T, 3)]


def test_what_somebody_else_was_assigned_is_not_taken_back(coordinator: Mixed) -> None:
    """An eager member has given up what it had, whatever it says; and of two who say so one alone can have it."""
    group = classic_group(has(0), has(1), metadata=owning(0, 1, 2))
    coordinator.commit(coordinator.group, upgraded(group, coordinator.topics))
    found = [each.current for each in coordinator.group.members.values()]
    assert [pairs(each.assigned) for each in found] == [[(T, 0)], [(T, 1)]]
    assert [pairs(each.revoking) for each in found] == [[(T, 2)], []]


def test_what_a_member_has_not_given_back_goes_with_it(coordinator: Mixed) -> None:
    """It may read it still: were it left out, another might have it, too, if the group goes over once more."""
    coordinator.join(join_ask("", owning(), STICKY, fresh="c"))
    join_consumer(coordinator, "m")
    coordinator.join(join_ask("c", owning(0, 1, 2, 3), STICKY))
    assert coordinator.group.members["c"].current.revoking
    classic = downgraded(coordinator.group, ["m"], coordinator.topics, 0)
    assert assignment_of(classic.members["c"].assignment)[0] == {"t": {0, 1, 2, 3}}
