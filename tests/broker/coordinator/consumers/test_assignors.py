"""The assignors: what they promise, for any group; and that they give what Apache Kafka's give."""

from __future__ import annotations

import base64
import json
import random
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.apache_java import compiled, java

from ballast_broker.coordinator.consumers.assignors import ASSIGNORS, Assignment, GroupSpec, MemberSpec

pytestmark = pytest.mark.spec("CLI-04")

SEEDS = st.integers(0, 2**32)


def random_group(seed: int) -> GroupSpec:
    """A group that was assigned before some members came, others left, and topics came, went and grew."""
    chance = random.Random(seed)
    topics = [UUID(int=chance.getrandbits(128)) for _ in range(chance.randint(1, 7))]
    partitions = {topic_id: chance.choice([1, 2, 3, 5, 8, 20, 40]) for topic_id in topics}
    alike = chance.random() < 0.5
    members: dict[str, MemberSpec] = {}
    free = {(topic_id, number) for topic_id in topics for number in range(partitions[topic_id])}
    everything = frozenset(topics)
    wanted = everything if chance.random() < 0.7 else frozenset(chance.sample(topics, chance.randint(0, len(topics))))
    for number in range(chance.choice([1, 2, 3, 5, 13, 30])):
        own = wanted if alike else frozenset(chance.sample(topics, chance.randint(0, len(topics))))
        name = f"{chance.choice(['consumer', 'm', 'C'])}-{number}-{chance.getrandbits(32):x}"
        instance = f"i{chance.getrandbits(16)}" if chance.random() < 0.3 else None
        target: dict[UUID, set[int]] = {}
        count = chance.choice([0, 0, 1, 3, 10, 30])
        for topic_id, each in chance.sample(sorted(free), min(count, len(free))):
            free.discard((topic_id, each))
            target.setdefault(topic_id, set()).add(each)
        members[name] = MemberSpec(own, instance, {t: frozenset(numbers) for t, numbers in target.items()})
    return GroupSpec(members, alike, partitions)


def owned(assignment: Assignment) -> Counter[tuple[UUID, int]]:
    return Counter((t, n) for own in assignment.values() for t, numbers in own.items() for n in numbers)


@given(SEEDS, st.sampled_from(sorted(ASSIGNORS)))
@settings(max_examples=150, deadline=None)
def test_everything_subscribed_is_given_once_and_to_a_reader(seed: int, assignor: str) -> None:
    group = random_group(seed)
    found = ASSIGNORS[assignor](group)
    read = frozenset().union(*(member.topics for member in group.members.values()))
    every = Counter((topic_id, number) for topic_id in read for number in range(group.partitions[topic_id]))
    assert owned(found) == every
    assert all(own.keys() <= group.members[name].topics for name, own in found.items())


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_uniform_is_even_and_is_at_rest_with_what_it_gave(seed: int) -> None:
    group = random_group(seed)
    found = ASSIGNORS["uniform"](group)
    if group.alike and found:
        sizes = [sum(map(len, own.values())) for own in found.values()]
        assert max(sizes) - min(sizes) <= 1
        kept = {n: MemberSpec(m.topics, m.instance_id, found.get(n, {})) for n, m in group.members.items()}
        assert ASSIGNORS["uniform"](GroupSpec(kept, group.alike, group.partitions)) == found


def test_range_gives_neighbours_and_the_same_numbers_of_like_topics() -> None:
    one, two = UUID(int=1), UUID(int=2)
    both = MemberSpec(frozenset({one, two}))
    static = MemberSpec(frozenset({one, two}), "a")
    found = ASSIGNORS["range"](GroupSpec({"m1": both, "m2": both, "z": static}, True, {one: 7, two: 7}))
    numbers = {"z": {0, 1, 2}, "m1": {3, 4}, "m2": {5, 6}}  # static members first
    assert found == {name: {one: own, two: own} for name, own in numbers.items()}


def as_kafka(topic_id: UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def question(assignor: str, group: GroupSpec) -> dict[str, Any]:
    return {
        "assignor": assignor,
        "alike": group.alike,
        "partitions": {as_kafka(topic_id): count for topic_id, count in group.partitions.items()},
        "members": [
            {
                "id": name,
                "instance": member.instance_id,
                "topics": [as_kafka(topic_id) for topic_id in member.topics],
                "target": {as_kafka(topic_id): sorted(numbers) for topic_id, numbers in member.target.items()},
            }
            for name, member in group.members.items()
        ],
    }


@pytest.mark.java
@pytest.mark.timeout(180)
def test_apache_kafka_assigns_the_same() -> None:
    asked = [(assignor, random_group(seed)) for seed in range(400) for assignor in sorted(ASSIGNORS)]
    lines = "\n".join(json.dumps(question(*each)) for each in asked)
    program = Path(__file__).with_name("Assignors.java")
    command = java(program.stem, classes=[compiled(program)])
    answer = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, timeout=120)
    theirs = [json.loads(line) for line in answer.stdout.splitlines()]
    different = []
    for (assignor, group), kafka in zip(asked, theirs, strict=True):
        ours = {
            name: {as_kafka(topic_id): sorted(numbers) for topic_id, numbers in own.items()}
            for name, own in ASSIGNORS[assignor](group).items()
        }
        if ours != kafka:
            different.append((assignor, group.alike, len(group.members)))
    assert different == []
