"""Decides which throttle configurations to set for the running moves, and to put back after them. PURE.

Before a broker's rate is changed, its former and its new value are recorded in the status of every Reassignment that
needs it. It is changed only while it has its former value or one that we set; any other value was set by somebody else
and is left alone. It counts as put back only once the controller has acknowledged that: a former value that a broker
reports may be from before our change. Reassignments that overlap share a rate: the lowest one applies, and the last
Reassignment to end puts it back. Topics' lists of throttled replicas have no such records, which would grow with the
topics: see `throttled_lists`.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ballast_operator.model.actions import AlterConfig, Setting
from ballast_operator.model.kafka import BROKER, ConfigId, KafkaView
from ballast_operator.model.quantity import parse_quantity
from ballast_operator.model.reassignment import Throttle, ThrottledLists, ThrottleRecord
from ballast_operator.plan.moves import between_brokers, directory_changes
from ballast_operator.plan.throttled_lists import NONE, NOTHING, Part, PutBack, entries_of, plan_lists
from ballast_planner import Move

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
INTRA_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LONGEST_KEPT = 100
# How many values of a rate are recorded. The last is the target; a broker that lags may still report one of the others.
MOST_APPLIED = 8

Wants = Mapping[ConfigId, str]


def wanted_rates(moves: Iterable[Move], throttle: Throttle | None) -> dict[ConfigId, str]:
    """The rates that these moves need on brokers."""
    wants: dict[ConfigId, str] = {}
    if throttle is None:
        return wants
    for move in moves:
        if throttle.inter_broker is not None and between_brokers(move):
            rate = str(parse_quantity(throttle.inter_broker))
            for broker in {*move.from_.replicas, *move.to.replicas}:
                wants[ConfigId(BROKER, str(broker), LEADER_RATE)] = rate
                wants[ConfigId(BROKER, str(broker), FOLLOWER_RATE)] = rate
        if throttle.intra_broker is not None:
            for broker in directory_changes(move).keys() & set(move.from_.replicas):
                wants[ConfigId(BROKER, str(broker), INTRA_RATE)] = str(parse_quantity(throttle.intra_broker))
    return wants


def rates_of(throttles: Iterable[Throttle | None]) -> frozenset[str]:
    """All rates that these throttles ask for."""
    asked = (rate for one in throttles if one is not None for rate in (one.inter_broker, one.intra_broker))
    return frozenset(str(parse_quantity(rate)) for rate in asked if rate is not None)


def wanted_entries(moves: Iterable[Move], throttle: Throttle | None) -> dict[ConfigId, list[str]]:
    """The entries that these moves need in topics' lists."""
    return entries_of(moves) if throttle is not None and throttle.inter_broker is not None else {}


def fingerprint(value: str) -> str:
    """A value as earlier versions recorded it: long ones (lists of replicas have no bound) as their hash."""
    return value if len(value) <= LONGEST_KEPT else "sha256:" + hashlib.sha256(value.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Share:
    """One Reassignment's part: what it wants now (nothing once its moves have ended) and what its status records.

    Without a plan it has no `lists`.
    """

    name: str
    wants: Wants
    records: Sequence[ThrottleRecord]
    lists: Part | None = None


@dataclass(frozen=True, slots=True)
class ThrottlePlan:
    """`records` and `lists`, by Reassignment, have to be in their statuses before `changes` are made.

    `unsettled` names the Reassignments whose throttles are not all set yet: no move of theirs may start. Those in
    `unreadable` may not even start after the changes. `restoring` is what the changes put back; `put_back` is what was
    put back before and is not needed again.
    """

    records: Mapping[str, tuple[ThrottleRecord, ...]]
    lists: Mapping[str, ThrottledLists | None]
    changes: tuple[AlterConfig, ...]
    unsettled: frozenset[str]
    unreadable: frozenset[str]
    restoring: PutBack
    put_back: PutBack


@dataclass
class _Draft:
    records: dict[str, dict[ConfigId, ThrottleRecord]] = field(default_factory=lambda: defaultdict(dict))
    changes: dict[tuple[str, str], dict[str, Setting]] = field(default_factory=lambda: defaultdict(dict))
    held: set[ConfigId] = field(default_factory=set)
    unsettled: set[str] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)

    def keep(self, config: ConfigId, records: Iterable[tuple[str, ThrottleRecord]]) -> None:
        """Leave these records in the statuses."""
        for name, record in records:
            self.records[name][config] = record


def plan_throttles(
    shares: Sequence[Share], view: KafkaView, put_back: PutBack = NOTHING, suspected: frozenset[str] = NONE
) -> ThrottlePlan:
    """What to record and to change for all Reassignments of a cluster together.

    `put_back` is what was put back since it was last needed, as acknowledged by the controller and remembered for at
    least as long as a broker may lag. While this process has not been at it for that long, `suspected` are the values
    that a broker which lags may report.
    """
    draft = _Draft()
    recorded: dict[ConfigId, list[tuple[str, ThrottleRecord]]] = defaultdict(list)
    for share in shares:
        for record in share.records:
            recorded[config_of(record)].append((share.name, record))
    wanted: dict[ConfigId, list[tuple[str, str]]] = defaultdict(list)
    for share in shares:
        for config, value in share.wants.items():
            wanted[config].append((share.name, value))
    for config, wants in wanted.items():
        _hold(draft, config, wants, recorded.get(config, ()), view, put_back.get(config, NONE) | suspected)
    restoring: dict[ConfigId, frozenset[str]] = {}
    for config in sorted(recorded.keys() - wanted.keys()):
        restoring[config] = frozenset(value for _, record in recorded[config] for value in record.applied)
        _restore(draft, config, recorded[config], view, config in put_back)
    lists = plan_lists([share.lists for share in shares if share.lists is not None], view, put_back)
    for config, entries in lists.changes.items():
        draft.changes[config.resource, config.name][config.key] = entries
    unreadable = draft.unreadable | lists.unreadable
    return ThrottlePlan(
        {share.name: tuple(draft.records[share.name].values()) for share in shares},
        lists.held,
        tuple(AlterConfig(resource, name, values) for (resource, name), values in draft.changes.items()),
        frozenset(draft.unsettled | lists.unsettled | unreadable),
        frozenset(unreadable),
        {**restoring, **lists.restoring},
        {
            config: left
            for config, gone in put_back.items()
            if config not in draft.held and (left := gone - lists.needed.get(config, NONE))
        },
    )


def without(plan: ThrottlePlan, untold: Collection[ConfigId]) -> ThrottlePlan:
    """The plan without the changes that are not recorded in the statuses of all that need them."""
    changes = []
    for change in plan.changes:
        values = {
            key: value
            for key, value in change.values.items()
            if ConfigId(change.resource, change.name, key) not in untold
        }
        if values:
            changes.append(replace(change, values=values))
    return replace(plan, changes=tuple(changes))


def _hold(
    draft: _Draft,
    config: ConfigId,
    wants: Sequence[tuple[str, str]],
    records: Sequence[tuple[str, ThrottleRecord]],
    view: KafkaView,
    put_back: frozenset[str],
) -> None:
    """Some moves need this to be set."""
    known, observed = view.config(config)
    names = [name for name, _ in wants]
    if not known:
        draft.keep(config, records)
        if not _away(config, view):
            draft.unreadable.update(names)
        return
    if not records and observed in put_back:
        draft.unreadable.update(names)  # the broker does not know yet that this was put back
        return
    draft.held.add(config)
    prior = records[0][1].prior if records else observed
    target = str(min(int(value) for _, value in wants))
    known_as_ours = [*dict.fromkeys(value for _, record in records for value in record.applied)]
    # The observed value stays on record as ours, however often the rate was changed while it could not be set.
    applied = [v for v in known_as_ours[: 1 - MOST_APPLIED] if v == observed] + known_as_ours[1 - MOST_APPLIED :]
    applied = [*(value for value in applied if value != target), target]
    for name in names:
        draft.records[name][config] = ThrottleRecord(*config, prior, tuple(applied))
    if not any(name in names for name, _ in records):
        # Statuses are written one by one: those that have ended keep the former value on record until one that needs
        # the rate has recorded it.
        draft.keep(config, records)
    if observed == target:
        return
    if observed == prior or observed in applied:
        draft.changes[config.resource, config.name][config.key] = target
        draft.unsettled.update(names)


def _restore(
    draft: _Draft,
    config: ConfigId,
    records: Sequence[tuple[str, ThrottleRecord]],
    view: KafkaView,
    acknowledged: bool,
) -> None:
    """Nobody needs this any more: put the former value back, unless somebody else has set another meanwhile."""
    known, observed = view.config(config)
    if not known:
        if not _gone(config, view):
            draft.keep(config, records)
        return
    prior = records[0][1].prior
    applied = {value for _, record in records for value in record.applied}
    if observed == prior:
        if acknowledged:
            return
    elif observed is None or fingerprint(observed) not in applied:
        return
    draft.keep(config, records)
    draft.changes[config.resource, config.name][config.key] = prior


def _away(config: ConfigId, view: KafkaView) -> bool:
    """Whether there is nothing to throttle now. A broker that comes back is throttled before another move starts."""
    if config.resource == BROKER:
        known = view.brokers.get(int(config.name))
        return known is None or not known.online
    return _gone(config, view)


def _gone(config: ConfigId, view: KafkaView) -> bool:
    """Whether the broker or topic surely does not exist any more."""
    if config.resource == BROKER:
        return view.surely_unregistered(int(config.name))
    return config.name in view.missing


def config_of(record: ThrottleRecord) -> ConfigId:
    return ConfigId(record.resource, record.name, record.key)
