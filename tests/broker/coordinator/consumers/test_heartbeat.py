"""The core of the consumer protocol, with clients that do what KIP-848 asks of them: some slowly, some never.

A client owns what it may read. Whatever happens, no two of them own a partition at once; and when nothing more happens,
everything subscribed is owned, and each client has what the coordinator means it to have.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ballast_broker.coordinator.consumers import records
from ballast_broker.coordinator.consumers.group import (
    About,
    Change,
    ConsumerGroup,
    GroupState,
    MemberState,
    Partitions,
    PatternChange,
    Resolved,
    pairs,
)
from ballast_broker.coordinator.consumers.heartbeat import (
    Answer,
    Ask,
    ConsumerLimits,
    heartbeat,
    leave,
    patterns_resolved,
    preferred_assignor,
    without,
)
from ballast_broker.coordinator.consumers.patterns import compiled
from ballast_broker.coordinator.shard import Shard
from ballast_broker.metadata.image import PartitionRegistration, TopicImage, TopicsImage
from ballast_broker.metadata.persistent import PersistentMap
from ballast_wire.errors import ApiError, ErrorCode

pytestmark = pytest.mark.spec("CLI-04")

Owned = set[tuple[UUID, int]]
REGISTRATION = PartitionRegistration((1,), (UUID(int=0),), (1,))
TIMEOUT_MS = 1000
FENCED = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)


def image_of(partitions: dict[str, tuple[UUID, int]]) -> TopicsImage:
    topics = {
        topic_id: TopicImage(name, topic_id, dict.fromkeys(range(count), REGISTRATION))
        for name, (topic_id, count) in partitions.items()
    }
    ids = {name: topic_id for name, (topic_id, _) in partitions.items()}
    return TopicsImage(PersistentMap(topics), PersistentMap(ids))


def as_partitions(owned: Iterable[tuple[UUID, int]]) -> Partitions:
    found: dict[UUID, set[int]] = {}
    for topic_id, number in owned:
        found.setdefault(topic_id, set()).add(number)
    return {topic_id: frozenset(numbers) for topic_id, numbers in found.items()}


class Coordinator:
    """The group, its log, and the topics. What is decided is committed at once."""

    def __init__(self, partitions: dict[str, tuple[UUID, int]]) -> None:
        self.partitions = partitions
        self.topics_changed = True
        self.limits = ConsumerLimits()
        self._shard = Shard(0)
        self._log: dict[bytes, bytes | None] = {}

    @property
    def topics(self) -> TopicsImage:
        return image_of(self.partitions)

    @property
    def group(self) -> ConsumerGroup:
        return self._shard.consumer_groups.get("g") or ConsumerGroup("g")

    def ask(self, ask: Ask) -> Answer:
        group = self.group
        if ask.epoch < 0:
            answer = leave(group, ask, self.topics)
        else:
            answer = heartbeat(group, ask, self.topics, self.limits, refresh=self.topics_changed)
            self.topics_changed = False
        self.commit(group, answer.changes)
        self.resolve()
        return answer

    def resolve(self) -> None:
        group, names = self.group, self.partitions
        found = [
            PatternChange(text, Resolved(frozenset(filter(compiled(text).matches, names)), 0, 0))
            for text in group.patterns()
        ]
        self.commit(group, patterns_resolved(group, found, self.topics))

    def expire(self, member_id: str) -> None:
        if member_id in self.group.members:
            self.commit(self.group, without(self.group, [member_id], self.topics))

    def commit(self, group: ConsumerGroup, changes: Iterable[Change]) -> None:
        for change in changes:
            self._shard.change(group, change)
            key, value = records.encode("g", change)
            self._log.pop(key, None)
            self._log[key] = value
        holders = Counter(
            pair
            for member in group.members.values()
            for part in (member.current.assigned, member.current.revoking)
            for pair in pairs(part)
        )
        assert not [pair for pair, times in holders.items() if times > 1]

    def fail_over(self, *, compacted: bool) -> None:
        """The next coordinator knows what the log says; of a compacted one the last record of each key."""
        before = self.group
        shard = Shard(0)
        for key, value in self._log.items():
            if value is not None or not compacted:
                shard.replay(key, value, 0)
        self._shard, self.topics_changed = shard, True
        if before.members:
            after = self.group
            assert (after.epoch, after.assignment_epoch) == (before.epoch, before.assignment_epoch)
            assert (after.members, after.targets) == (before.members, before.targets)
            assert (after.owners, after.static_members) == (before.owners, before.static_members)


@dataclass
class Client:
    member_id: str
    topics: frozenset[str]
    pattern: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    epoch: int = 0
    owned: Owned = field(default_factory=set)
    wanted: Owned | None = None
    news: bool = True
    has_to_say_so: bool = False  # when it has come to what it was told, though that be what it had

    def begin_anew(self) -> None:
        self.epoch, self.owned, self.wanted, self.news = 0, set(), None, True

    def question(self) -> Ask:
        joining = self.epoch == 0
        return Ask(
            self.member_id,
            self.epoch,
            "c",
            "h",
            self.instance_id,
            rebalance_timeout_ms=TIMEOUT_MS if joining or self.news else -1,
            topics=self.topics if joining or self.news else None,
            pattern=self.pattern if joining or self.news else None,
            assignor=self.assignor,
            owned=as_partitions(self.owned) if joining or self.news else None,
        )

    def learn(self, answer: Answer) -> None:
        self.epoch, self.news = answer.epoch, False
        if answer.assigned is not None:
            self.wanted, self.has_to_say_so = set(pairs(answer.assigned)), True

    def give_back(self, chance: random.Random, *, all_of_it: bool) -> None:
        """Some of what it is not to have any more; what is new only when the rest is given back."""
        if self.wanted is None:
            return
        for pair in sorted(self.owned - self.wanted):
            if all_of_it or chance.random() < 0.5:
                self.owned.discard(pair)
                self.news = True
        if not self.owned - self.wanted and (self.has_to_say_so or self.owned != self.wanted):
            self.owned, self.news, self.has_to_say_so = set(self.wanted), True, False


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.coordinator = Coordinator({f"t{n}": self._topic() for n in range(3)})
        self.clients: list[Client] = []
        self._number = 0

    def _topic(self) -> tuple[UUID, int]:
        return UUID(int=self.chance.getrandbits(128)), self.chance.randint(1, 6)

    def beat(self, client: Client, *, lost: bool = False) -> None:
        try:
            answer = self.coordinator.ask(client.question())
        except ApiError as error:
            if error.code not in FENCED:
                raise
            if error.code is ErrorCode.UNRELEASED_INSTANCE_ID:  # nobody beats for who it was before
                self.coordinator.expire(self.coordinator.group.static_members[client.instance_id or ""])
            client.begin_anew()
        else:
            if lost:
                client.news, client.wanted = True, None  # it takes nothing new before it is told again
            else:
                client.learn(answer)
        self.check()

    def check(self) -> None:
        owners = Counter(pair for client in self.clients for pair in client.owned)
        assert not [pair for pair, times in owners.items() if times > 1]

    def act(self) -> None:
        chance = self.chance
        action = chance.choices(
            ["beat", "give", "join", "leave", "die", "topic", "subscribe", "fail over"], [12, 8, 3, 2, 1, 1, 1, 1]
        )[0]
        client = chance.choice(self.clients) if self.clients else None
        if action == "join" and len(self.clients) < 8:
            self._join()
        elif action == "topic":
            self._change_topics()
        elif action == "fail over":
            self.coordinator.fail_over(compacted=chance.random() < 0.5)
        elif client is None:
            return
        elif action == "beat":
            self.beat(client, lost=chance.random() < 0.2)
        elif action == "give":
            client.give_back(chance, all_of_it=False)
        elif action == "subscribe":
            client.topics, client.pattern, client.news = *self._interest(), True
        elif action == "leave":
            self._leave(client)
        elif action == "die":
            self.clients.remove(client)
            self.coordinator.expire(client.member_id)
        self.check()

    def _interest(self) -> tuple[frozenset[str], str]:
        names = sorted(self.coordinator.partitions) or ["t0"]
        if self.chance.random() < 0.3:
            return frozenset(), self.chance.choice(["t.*", "t[0-4]", "none"])
        return frozenset(self.chance.sample(names, self.chance.randint(1, len(names)))), ""

    def _join(self) -> None:
        self._number += 1
        taken = {client.instance_id for client in self.clients}
        instance = self.chance.choice(["i1", "i2"]) if self.chance.random() < 0.3 else None
        if instance in taken - {None}:
            return
        client = Client(f"m{self._number}", *self._interest(), instance)
        client.assignor = self.chance.choice([None, None, "range", "uniform"])
        self.clients.append(client)
        self.beat(client)

    def _leave(self, client: Client) -> None:
        epoch = -2 if client.instance_id is not None and self.chance.random() < 0.7 else -1
        self.clients.remove(client)
        try:
            self.coordinator.ask(Ask(client.member_id, epoch, "c", "h", client.instance_id))
        except ApiError as error:
            if error.code not in FENCED:
                raise

    def _change_topics(self) -> None:
        partitions, chance = self.coordinator.partitions, self.chance
        name = f"t{chance.randint(0, 5)}"
        if name not in partitions:
            partitions[name] = self._topic()
        elif chance.random() < 0.5:
            del partitions[name]
        else:
            topic_id, count = partitions[name]
            partitions[name] = topic_id, count + chance.randint(1, 3)
        self.coordinator.topics_changed = True
        self.coordinator.resolve()

    def settle(self) -> None:
        for _ in range(60):
            for client in list(self.clients):
                self.beat(client)
                client.give_back(self.chance, all_of_it=True)
                self.check()
            for member_id in set(self.coordinator.group.members) - {client.member_id for client in self.clients}:
                self.coordinator.expire(member_id)
            if self.is_settled():
                return
        raise AssertionError(f"it does not settle: {self.clients} {self.coordinator.group}")

    def is_settled(self) -> bool:
        group = self.coordinator.group
        if not self.clients:
            return group.state is GroupState.EMPTY
        there = self.coordinator.partitions.values()
        alive = {topic_id for topic_id, _ in there}
        return group.state is GroupState.STABLE and all(
            {pair for pair in pairs(group.targets.get(client.member_id, {})) if pair[0] in alive} == client.owned
            for client in self.clients
        )


@given(st.integers(0, 2**32))
@example(2542067)  # a member goes from a pattern to another, which fits no topic
@settings(max_examples=150, deadline=None)
def test_no_partition_has_two_readers_and_the_group_settles(seed: int) -> None:
    world = World(seed)
    for _ in range(world.chance.randint(5, 120)):
        world.act()
    world.settle()
    group, partitions = world.coordinator.group, world.coordinator.partitions
    read = {name for member in group.members.values() for name in group.topics_of(member.about)} & partitions.keys()
    every = {(partitions[name][0], number) for name in read for number in range(partitions[name][1])}
    assert {pair for client in world.clients for pair in client.owned} == every


# -- single steps -----------------------------------------------------------------------------------------------------
T = UUID(int=7)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator({"t": (T, 4)})


def join(coordinator: Coordinator, member_id: str, **more: Any) -> Answer:
    ask = Ask(member_id, 0, "c", "h", rebalance_timeout_ms=TIMEOUT_MS, topics=frozenset({"t"}), owned={}, **more)
    return coordinator.ask(ask)


def beat(coordinator: Coordinator, member_id: str, epoch: int, *owned: int, **more: Any) -> Answer:
    own = {T: frozenset(owned)} if owned else {}
    return coordinator.ask(Ask(member_id, epoch, "c", "h", owned=own, **more))


@pytest.mark.parametrize("pattern", ["none.*", ""])
def test_who_reads_by_a_pattern_no_more_gives_back_what_it_had(coordinator: Coordinator, pattern: str) -> None:
    first = coordinator.ask(Ask("a", 0, "c", "h", rebalance_timeout_ms=9, pattern="t.*", owned={}))
    first = coordinator.ask(Ask("a", first.epoch, "c", "h"))
    assert first.assigned == {T: frozenset({0, 1, 2, 3})}
    coordinator.ask(Ask("a", first.epoch, "c", "h", pattern=pattern))
    last = coordinator.ask(Ask("a", first.epoch, "c", "h"))
    assert (last.epoch, coordinator.group.targets["a"]) == (first.epoch, {})
    assert coordinator.ask(Ask("a", first.epoch, "c", "h", owned={})).epoch == first.epoch + 1


def test_a_partition_waits_until_it_is_given_back(coordinator: Coordinator) -> None:
    assert join(coordinator, "a").assigned == {T: frozenset({0, 1, 2, 3})}
    second = join(coordinator, "b")
    assert (second.epoch, second.assigned) == (2, {})
    assert coordinator.group.members["b"].current.state is MemberState.UNRELEASED_PARTITIONS
    first = beat(coordinator, "a", 1, 0, 1, 2, 3)
    assert (first.epoch, first.assigned) == (1, {T: frozenset({0, 1})})
    assert coordinator.group.members["a"].current.state is MemberState.UNREVOKED_PARTITIONS
    assert beat(coordinator, "b", 2).assigned is None
    assert beat(coordinator, "a", 1, 0, 1, 2).epoch == 1  # one of two is not all
    assert beat(coordinator, "b", 2).assigned is None
    assert beat(coordinator, "a", 1, 0, 1).epoch == 2
    assert beat(coordinator, "b", 2).assigned == {T: frozenset({2, 3})}
    assert coordinator.group.state is GroupState.STABLE


def refused(code: ErrorCode, coordinator: Coordinator, ask: Ask) -> None:
    before = coordinator.group.members.copy()
    with pytest.raises(ApiError) as caught:
        coordinator.ask(ask)
    assert caught.value.code is code
    assert coordinator.group.members == before


def test_who_is_behind_or_ahead_is_fenced(coordinator: Coordinator) -> None:
    join(coordinator, "a")
    fenced = ErrorCode.FENCED_MEMBER_EPOCH
    refused(fenced, coordinator, Ask("a", 2, "c", "h"))
    coordinator.partitions["t"] = T, 5
    coordinator.topics_changed = True
    assert beat(coordinator, "a", 1, 0).epoch == 2
    assert beat(coordinator, "a", 1, 0).epoch == 2  # the answer was lost, and it has no more than it should
    refused(fenced, coordinator, Ask("a", 1, "c", "h"))
    refused(fenced, coordinator, Ask("a", 1, "c", "h", owned={T: frozenset({9})}))
    refused(ErrorCode.UNKNOWN_MEMBER_ID, coordinator, Ask("b", 1, "c", "h"))


def test_who_was_fenced_joins_again_under_its_own_name(coordinator: Coordinator) -> None:
    join(coordinator, "a")
    join(coordinator, "b")
    beat(coordinator, "a", 1, 0, 1, 2, 3)
    beat(coordinator, "a", 1, 0, 1)
    answer = join(coordinator, "a")
    assert (answer.epoch, answer.assigned) == (2, {T: frozenset({0, 1})})


def test_a_static_member_is_awaited(coordinator: Coordinator) -> None:
    had = join(coordinator, "a", instance_id="i").assigned
    join(coordinator, "b")
    beat(coordinator, "a", 1, 0, 1, instance_id="i")
    epoch = coordinator.group.epoch
    again = Ask("a2", 0, "c", "h", "i", rebalance_timeout_ms=9, topics=frozenset({"t"}), owned={})
    refused(ErrorCode.UNRELEASED_INSTANCE_ID, coordinator, again)
    refused(ErrorCode.FENCED_INSTANCE_ID, coordinator, Ask("b", 1, "c", "h", "i"))
    refused(ErrorCode.UNKNOWN_MEMBER_ID, coordinator, Ask("b", 1, "c", "h", "j"))
    assert coordinator.ask(Ask("a", -2, "c", "h", "i")).epoch == -2
    kept = coordinator.group.targets["a"]
    answer = coordinator.ask(again)
    assert (answer.epoch, answer.assigned) == (epoch, kept)
    assert had is not None
    assert "a" not in coordinator.group.members
    assert coordinator.group.epoch == epoch  # nobody else noticed


def test_a_group_has_so_many_members(coordinator: Coordinator) -> None:
    coordinator.limits = ConsumerLimits(max_size=1)
    join(coordinator, "a")
    refused(ErrorCode.GROUP_MAX_SIZE_REACHED, coordinator, Ask("b", 0, "c", "h", topics=frozenset({"t"}), owned={}))
    assert beat(coordinator, "a", 1, 0, 1, 2, 3).epoch == 1


def test_a_pattern_that_cannot_be_read_is_refused(coordinator: Coordinator) -> None:
    ask = Ask("a", 0, "c", "h", rebalance_timeout_ms=9, pattern="t(", owned={})
    refused(ErrorCode.INVALID_REGULAR_EXPRESSION, coordinator, ask)


def test_a_pattern_that_stands_for_nothing_yet_changes_no_epoch(coordinator: Coordinator) -> None:
    answer = coordinator.ask(Ask("a", 0, "c", "h", rebalance_timeout_ms=9, pattern="none.*", owned={}))
    assert coordinator.group.epoch == answer.epoch == 1
    assert coordinator.group.resolved["none.*"].topics == frozenset()
    assert beat(coordinator, "a", 1).epoch == 1


@pytest.mark.parametrize(
    ("before", "now", "preferred"),
    [
        ("", "", "uniform"),
        ("", "range", "range"),
        ("range", "range uniform", "uniform"),
        ("uniform", "uniform range", "range"),
        ("range uniform", "range uniform none", "uniform"),
        ("range range", "uniform range", "uniform"),
        ("range", "range uniform uniform", "uniform"),
    ],
)
def test_of_two_assignors_that_are_named_as_often_one_is_taken_as_by_apache_kafka(
    before: str, now: str, preferred: str
) -> None:
    members, known = ([About(assignor=each) for each in texts.split()] for texts in (now, before))
    assert preferred_assignor(members, ConsumerLimits(), known) == preferred


def test_who_changes_what_it_reads_names_its_assignor_anew(coordinator: Coordinator) -> None:
    join(coordinator, "z", assignor="range")
    join(coordinator, "b", assignor="uniform")
    assert coordinator.group.targets["z"] == {T: frozenset({0, 1})}
    beat(coordinator, "z", 1, 0, 1, 2, 3, topics=frozenset({"t", "gone"}))
    assert coordinator.group.targets["z"] == {T: frozenset({2, 3})}


@pytest.mark.spec("CLI-09")
def test_members_with_the_same_topics_share_one_set_of_them(coordinator: Coordinator) -> None:
    """A thousand sets of thousands of names are compared at each join otherwise, and take hundreds of MB."""
    join(coordinator, "a")
    join(coordinator, "b")
    join(coordinator, "c")
    beat(coordinator, "c", 3, topics=frozenset({"gone"}))
    for _ in range(2):
        a, b, c = (coordinator.group.members[each].about.topics for each in "abc")
        assert a is b
        assert (a, c) == (frozenset({"t"}), frozenset({"gone"}))
        coordinator.fail_over(compacted=True)


class CountedId(UUID):
    hashed = 0

    def __hash__(self) -> int:
        CountedId.hashed += 1
        return super().__hash__()


@pytest.mark.spec("CLI-09")
def test_who_joins_a_large_group_costs_no_look_at_every_topic_for_every_member() -> None:
    topics = image_of({f"t{number}": (CountedId(int=number + 1), 10) for number in range(100)})
    group, names = ConsumerGroup("g"), list(topics.ids_by_name)

    def join(number: int) -> None:
        ask = Ask(f"m{number}", 0, "c", "h", rebalance_timeout_ms=1000, topics=frozenset(names), owned={})
        for change in heartbeat(group, ask, topics, ConsumerLimits(), refresh=False).changes:
            group.apply(change)

    for number in range(100):
        join(number)
    CountedId.hashed = 0
    join(100)
    assert sum(map(len, (numbers for own in group.targets.values() for numbers in own.values()))) == 1000
    assert CountedId.hashed < 20 * (len(group.members) + len(names)) < len(group.members) * len(names)
