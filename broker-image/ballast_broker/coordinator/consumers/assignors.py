"""The server-side assignors `uniform` and `range`, with the same results as Apache Kafka's. PURE.

`range` assigns contiguous partitions of each topic to its members in order. `uniform` balances the partition counts and
lets members keep what they have; see `uniform_mixed.py` for members with different subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from uuid import UUID

from ballast_broker.coordinator.consumers.group import NONE, Partitions
from ballast_broker.coordinator.consumers.hash_order import ids_in_order, numbers_in_order, texts_in_order
from ballast_broker.coordinator.consumers.uniform_mixed import assign_uniform_mixed

Assignment = dict[str, Partitions]


@dataclass(frozen=True, slots=True)
class MemberSpec:
    topics: frozenset[UUID]  # which exist
    instance_id: str | None = None
    target: Partitions = field(default_factory=lambda: NONE)  # its target so far


@dataclass(frozen=True, slots=True)
class GroupSpec:
    members: Mapping[str, MemberSpec]
    alike: bool  # all members have the same subscription
    partitions: Mapping[UUID, int]  # topic id → number of partitions


def assign_uniform(group: GroupSpec) -> Assignment:
    if not group.members:
        return {}
    if group.alike:
        return _uniform_alike(group)
    subscribed = {member_id: member.topics for member_id, member in group.members.items()}
    targets = {member_id: member.target for member_id, member in group.members.items()}
    return assign_uniform_mixed(subscribed, targets, group.partitions)


def _uniform_alike(group: GroupSpec) -> Assignment:
    members = texts_in_order(group.members)
    topics = ids_in_order(group.members[members[0]].topics)
    if not topics:
        return {}
    taken: dict[UUID, set[int]] = {topic_id: set() for topic_id in topics}
    for member in group.members.values():
        for topic_id, numbers in member.target.items():
            if (of_topic := taken.get(topic_id)) is not None:
                of_topic |= numbers
    free = [
        (topic_id, number)
        for topic_id, numbers in taken.items()
        for number in range(group.partitions[topic_id])
        if number not in numbers
    ]
    least, more = divmod(sum(group.partitions[topic_id] for topic_id in topics), len(members))
    wanted = frozenset(topics)
    kept: Assignment = {}
    places: list[tuple[str, int]] = []
    for place, member_id in enumerate(members):
        one_more = more > 0
        room = least + one_more
        kept[member_id], given_back, room = _keep(group.members[member_id].target, wanted, room)
        free += given_back
        if one_more and room and len(members) - place > more:  # the extra ones go to members that have them already
            one_more, room = False, room - 1
        more -= one_more
        if room:
            places.append((member_id, room))
    coming = iter(free)
    for member_id, room in places:
        own = {topic_id: set(numbers) for topic_id, numbers in kept[member_id].items()}
        for topic_id, number in islice(coming, room):
            own.setdefault(topic_id, set()).add(number)
        kept[member_id] = frozen(own)
    return kept


def _keep(target: Partitions, topics: frozenset[UUID], room: int) -> tuple[Partitions, list[tuple[UUID, int]], int]:
    """What the member keeps of its target, what it gives up, and how much room it has left."""
    size = sum(map(len, target.values()))
    if size <= room and target.keys() <= topics:  # most members, when one of many joins or leaves
        return target, [], room - size
    kept: dict[UUID, frozenset[int]] = {}
    given_back: list[tuple[UUID, int]] = []
    for topic_id in ids_in_order(target):
        if topic_id not in topics:
            continue
        if len(target[topic_id]) <= room:
            kept[topic_id] = target[topic_id]
            room -= len(target[topic_id])
            continue
        numbers = numbers_in_order(target[topic_id])
        if room:
            kept[topic_id] = frozenset(numbers[:room])
        given_back += [(topic_id, number) for number in numbers[room:]]
        room = 0
    return kept, given_back, room


def assign_range(group: GroupSpec) -> Assignment:
    members = sorted(group.members, key=lambda member_id: _rank(group, member_id))
    readers: dict[UUID, int] = {}
    for member in group.members.values():
        for topic_id in member.topics:
            readers[topic_id] = readers.get(topic_id, 0) + 1
    served = dict.fromkeys(readers, 0)
    assignment: Assignment = {}
    for member_id in members:
        own = {}
        for topic_id in group.members[member_id].topics:
            least, more = divmod(group.partitions[topic_id], readers[topic_id])
            place = served[topic_id]
            served[topic_id] += 1
            first = place * least + min(place, more)
            numbers = frozenset(range(first, first + least + (place < more)))
            if numbers:
                own[topic_id] = numbers
        assignment[member_id] = own
    return assignment


def _rank(group: GroupSpec, member_id: str) -> tuple[bool, bytes]:
    """Static members first, by instance id, then the others by member id; strings compare as in Java."""
    instance_id = group.members[member_id].instance_id
    return instance_id is None, (member_id if instance_id is None else instance_id).encode("utf-16-be")


def frozen(partitions: Mapping[UUID, set[int]]) -> Partitions:
    return {topic_id: frozenset(numbers) for topic_id, numbers in partitions.items() if numbers}


ASSIGNORS: Mapping[str, Callable[[GroupSpec], Assignment]] = {"uniform": assign_uniform, "range": assign_range}
