"""Adds the entries of Reassignments to topics' lists of throttled replicas, and removes them again. PURE.

An entry is `partition:broker`. The entries that a Reassignment may ever add follow from its plan, so its status records
only that it holds entries, and which of its plan's were there before: as bits, since there may be many. All other
entries of a list are somebody else's and stay as they are, in their order. Only one Reassignment moves a partition at a
time, so those that share a topic share no entries, unless one removes what the next one needs: that stays until nobody
needs it.

Entries are added and removed one by one, so that nothing is lost that somebody else adds meanwhile. Ours count as gone
only once the controller has acknowledged it: lists are read from any broker, and one that lags may not know of them
yet, or may know of them but not of their removal.
"""

from __future__ import annotations

import base64
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ballast_operator.model.actions import Appended, Setting, Subtracted
from ballast_operator.model.kafka import TOPIC, ConfigId, KafkaView
from ballast_operator.model.reassignment import ThrottledLists, ThrottleRecord
from ballast_operator.plan.moves import adding, between_brokers
from ballast_planner import Move

LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
LISTS = frozenset({LEADER_REPLICAS, FOLLOWER_REPLICAS})
ALL_REPLICAS = "*"

Entries = Mapping[ConfigId, Sequence[str]]
# What was put back a moment ago, as acknowledged by the controller: entries of a list, values of a rate.
PutBack = Mapping[ConfigId, frozenset[str]]
NONE: frozenset[str] = frozenset()
NOTHING: PutBack = {}


def entries_of(moves: Iterable[Move]) -> dict[ConfigId, list[str]]:
    """The entries that the lists have to hold while these moves run."""
    return _sorted((move, move.from_.replicas, adding(move)) for move in moves if between_brokers(move))


def all_entries(moves: Iterable[Move]) -> dict[ConfigId, list[str]]:
    """The entries that these moves may ever need, forward and back. The order must not change between versions:
    recorded bits follow it."""
    return _sorted(
        (move, {*move.from_.replicas, *move.to.replicas}, set(move.from_.replicas) ^ set(move.to.replicas))
        for move in moves
        if between_brokers(move)
    )


def _sorted(rows: Iterable[tuple[Move, Collection[int], Collection[int]]]) -> dict[ConfigId, list[str]]:
    found: dict[ConfigId, set[tuple[int, int]]] = defaultdict(set)
    for move, leaders, followers in rows:
        for key, brokers in ((LEADER_REPLICAS, leaders), (FOLLOWER_REPLICAS, followers)):
            found[ConfigId(TOPIC, move.topic, key)].update((move.partition, broker) for broker in brokers)
    return {config: [f"{p}:{b}" for p, b in sorted(entries)] for config, entries in sorted(found.items()) if entries}


def _numbers(entry: str) -> tuple[int, ...]:
    return tuple(int(part) for part in entry.split(":"))


def split(value: str | None) -> list[str]:
    return [entry for part in (value or "").split(",") if (entry := part.strip())]


@dataclass(frozen=True, slots=True)
class Part:
    """One Reassignment's part: what it needs now, what may be its own, and what its status records.

    `former` are records by earlier versions, each of the whole value of a list; they are converted to bits.
    """

    name: str
    wanted: Entries
    own: Entries
    held: ThrottledLists | None = None
    former: Sequence[ThrottleRecord] = ()


@dataclass(frozen=True, slots=True)
class ListPlan:
    """`held`, by Reassignment, has to be in their statuses before `changes` are made.

    `restoring` are the entries that the changes remove, `needed` those that have to be there.
    """

    held: Mapping[str, ThrottledLists | None]
    changes: Mapping[ConfigId, Setting]
    unsettled: frozenset[str]
    unreadable: frozenset[str]
    restoring: PutBack
    needed: PutBack


@dataclass
class _Draft:
    changes: dict[ConfigId, Setting] = field(default_factory=dict)
    unsettled: set[str] = field(default_factory=set)
    restoring: dict[ConfigId, frozenset[str]] = field(default_factory=dict)
    needed: dict[ConfigId, frozenset[str]] = field(default_factory=dict)


@dataclass
class _Holder:
    """A part that has entries in lists, or is to have some. `kept` are those that were there before, `own` the rest of
    its plan's; `left` tells whether any of these are still there, or may be."""

    part: Part
    kept: Mapping[ConfigId, frozenset[str]]
    left: bool = False
    own: Mapping[ConfigId, frozenset[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.own = {config: frozenset(row) - self.kept.get(config, NONE) for config, row in self.part.own.items()}

    def wants(self, config: ConfigId) -> Sequence[str]:
        return self.part.wanted.get(config, ())


def plan_lists(parts: Sequence[Part], view: KafkaView, put_back: PutBack = NOTHING) -> ListPlan:
    """What to record and to change for all Reassignments of a cluster together."""
    holders, unreadable = _holders(parts, view, put_back)
    sharing: dict[ConfigId, list[_Holder]] = defaultdict(list)
    for holder in holders:
        for config in holder.own:
            sharing[config].append(holder)
    draft = _Draft()
    for config, those in sharing.items():
        present = _present(config, view)
        if present is None:
            unreadable.update(holder.part.name for holder in those if holder.wants(config))
            for holder in those:
                holder.left = True
        elif config.name not in view.missing and ALL_REPLICAS not in present:
            _settle(config, those, present, put_back.get(config, NONE), draft)
    held = {one.part.name: _record(one) for one in holders if one.part.wanted or one.left}
    return ListPlan(
        {part.name: held.get(part.name) for part in parts}, draft.changes, frozenset(draft.unsettled),
        frozenset(unreadable), draft.restoring, draft.needed,
    )  # fmt: skip


def _present(config: ConfigId, view: KafkaView) -> list[str] | None:
    """The entries of a list, None if it could not be read."""
    known, value = view.config(config)
    return split(value) if known else [] if config.name in view.missing else None


def _holders(parts: Sequence[Part], view: KafkaView, put_back: PutBack) -> tuple[list[_Holder], set[str]]:
    """(parts that have entries or are to have some, names of those that cannot tell yet what was there before)."""
    holders = [_Holder(part, _kept(part.held, part.own)) for part in parts if part.held is not None]
    ours: dict[ConfigId, set[str]] = defaultdict(set)
    for holder in holders:
        for config, held in holder.own.items():
            ours[config] |= held
    unreadable = set()
    for part in parts:
        if part.held is not None or not (part.wanted or part.former):
            continue
        priors = {ConfigId(record.resource, record.name, record.key): record.prior for record in part.former}
        kept = {}
        for config, entries in part.own.items():
            present = split(priors[config]) if config in priors else _present(config, view)
            if present is None and not part.former:
                unreadable.add(part.name)
            elif present:
                there = frozenset(present) - ours.get(config, NONE)
                # What the controller removed is gone, whether or not the broker that was asked knows it.
                kept[config] = there.intersection(entries) - put_back.get(config, NONE)
        if part.name not in unreadable:
            holders.append(_Holder(part, kept))
    return holders, unreadable


def _settle(
    config: ConfigId, sharing: Sequence[_Holder], present: Sequence[str], put_back: frozenset[str], draft: _Draft
) -> None:
    """Make one list hold what is needed and nothing else of ours."""
    needed = frozenset(entry for holder in sharing for entry in holder.wants(config))
    draft.needed[config] = needed
    # Statuses are written one by one: an entry stays on record with a former owner until the one that needs it has
    # recorded it.
    known = {entry for holder in sharing if holder.part.held is not None for entry in holder.wants(config)}
    own = NONE.union(*(holder.own[config] for holder in sharing))
    # All entries of those that have ended have to go, whether or not the broker that was asked knows of them.
    ended = NONE.union(*(holder.own[config] for holder in sharing if not holder.part.wanted))
    surplus = (own.intersection(present) | (ended - put_back)) - needed
    for holder in sharing:
        holder.left |= not (surplus | (needed - known)).isdisjoint(holder.own[config])
    added = needed.difference(present)
    if added:
        draft.changes[config] = Appended(_ordered(added))
        draft.unsettled.update(holder.part.name for holder in sharing if not added.isdisjoint(holder.wants(config)))
    elif surplus:
        others = set(present) - surplus - put_back or any(holder.kept.get(config) for holder in sharing)
        draft.changes[config] = Subtracted(_ordered(surplus)) if others else None
        draft.restoring[config] = surplus


def _ordered(entries: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(entries, key=_numbers))


def _record(holder: _Holder) -> ThrottledLists:
    """One bit for each entry that may ever be its own: whether it was there before."""
    if holder.part.held is not None:
        return holder.part.held
    topics = len({config.name for config in holder.part.own})
    flags = [entry in holder.kept.get(config, NONE) for config, entry in _each(holder.part.own)]
    if not any(flags):
        return ThrottledLists(topics)
    packed = int("".join("1" if flag else "0" for flag in reversed(flags)), 2).to_bytes((len(flags) + 7) // 8, "little")
    return ThrottledLists(topics, base64.b64encode(zlib.compress(packed, 9)).decode())


def _kept(held: ThrottledLists | None, own: Entries) -> dict[ConfigId, frozenset[str]]:
    if held is None or held.before is None:
        return {}
    bits = int.from_bytes(zlib.decompress(base64.b64decode(held.before)), "little")
    kept: dict[ConfigId, set[str]] = defaultdict(set)
    # Iterate from the lowest bit, without shifting a number of a million bits a million times.
    for (config, entry), flag in zip(_each(own), reversed(f"{bits:b}"), strict=False):
        if flag == "1":
            kept[config].add(entry)
    return {config: frozenset(entries) for config, entries in kept.items()}


def _each(own: Entries) -> Iterator[tuple[ConfigId, str]]:
    return ((config, entry) for config, entries in own.items() for entry in entries)
