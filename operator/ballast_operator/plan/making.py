"""Makes the plan of a Reassignment, in any of its modes, from its spec and a snapshot of the cluster. PURE."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ballast_operator.model.fields import write
from ballast_operator.model.kafka import DirectoryId, KafkaView
from ballast_operator.model.quantity import some_of
from ballast_operator.model.reassignment import ANY, ReassignmentSpec
from ballast_operator.plan.load import cluster_load
from ballast_operator.plan.volumes import Paths, real_targets
from ballast_planner import (
    ClusterLoad,
    LoadError,
    Plan,
    PlanError,
    PlanFormatError,
    PlanOptions,
    StaleRowsError,
    Target,
    plan_add_brokers,
    plan_balance,
    plan_drain,
    plan_explicit,
    plan_generate,
    plan_replication_factor,
    rows_from_kafka_json,
    rows_from_spec,
)

SHOWN_NAMES = 10


class InvalidPlanError(ValueError):
    """What the spec asks for cannot be planned; the message says why."""


class TopicMissingError(InvalidPlanError):
    """The spec names topics or partitions that do not exist: whoever applies both may apply them second."""

    def __init__(self, named: Mapping[str, str]) -> None:
        super().__init__(f"{some_of(list(named), SHOWN_NAMES)} {'is' if len(named) == 1 else 'are'} not there")
        self.topics = frozenset(named.values())


class PlanMissingError(ValueError):
    """The ConfigMap with the plan, or its key, does not exist: whoever applies both may apply it second."""


class BrokersAwayError(ValueError):
    """The spec names directories of brokers that are away, or moves replicas to these: only they know them."""


class StalePlanError(ValueError):
    """The rows say where replicas are to be moved from, and they are not there."""

    def __init__(self, rows: Sequence[str]) -> None:
        super().__init__(", ".join(rows[:10]))
        self.rows = tuple(rows)


def make_plan(
    spec: ReassignmentSpec,
    config_maps: Mapping[str, Mapping[str, Any]],
    view: KafkaView,
    paths: Paths | None = None,
    weights: Mapping[DirectoryId, int] | None = None,
    pinned: Collection[str] = (),
) -> Plan:
    """Make the plan. `config_maps` are those that planFrom refers to, by name; `paths` comes from `mounted_paths`.

    `pinned` are topics whose brokers a KafkaTopic names: balancing leaves them alone, or they would be moved back.
    """
    known = paths or {}
    try:
        targets = real_targets(explicit_rows(spec, config_maps), known) if spec.explicit else ()
        _require_topics(spec, view, targets)
        # Explicit rows are limited by real sizes only.
        load = cluster_load(view, None if spec.explicit else weights)
        if spec.explicit:
            _require_told(view, [DirectoryId(*pair) for target in targets for pair in target.to.as_pairs().items()])
            _require_there(view, targets)
            return plan_explicit(load, targets)
        if spec.drain_brokers:
            return plan_drain(load, brokers=spec.drain_brokers)
        if spec.drain_directories:
            rows = [DirectoryId(row.broker, row.directory) for row in spec.drain_directories]
            _require_told(view, rows)
            return _drain_directories(load, view, [DirectoryId(row.broker, known.get(row, row.path)) for row in rows])
        if spec.replication_factor:
            return plan_replication_factor(load, {row.topic: row.replicas for row in spec.replication_factor})
        if spec.add_brokers:
            return plan_add_brokers(load, spec.add_brokers, PlanOptions(excluded_topics=frozenset(pinned)))
        if spec.generate is not None and not spec.generate.topics and not spec.generate.to_brokers:
            return plan_balance(load, _leveling(pinned))
        if spec.generate is not None:
            brokers = spec.generate.to_brokers or tuple(b.id for b in view.brokers.values() if b.online)
            return plan_generate(load, spec.generate.topics or None, brokers)
    except StaleRowsError as error:
        raise StalePlanError(error.rows) from error
    except (PlanError, PlanFormatError, LoadError, KeyError) as error:
        raise InvalidPlanError(str(error)) from error
    raise InvalidPlanError("the spec names nothing to do")


def _require_topics(spec: ReassignmentSpec, view: KafkaView, targets: Iterable[Target]) -> None:
    """What the spec names must exist. Not in rows with a `from`: it existed when they were planned, and is gone since,
    so there is nothing to wait for."""
    generated = spec.generate.topics if spec.generate is not None else ()
    named = {*generated, *(row.topic for row in spec.replication_factor)}
    missing = {f"topic {topic}": topic for topic in sorted(named - view.topics.keys())}
    for target in targets:
        if target.from_ is None and target.topic not in view.topics:
            missing[f"topic {target.topic}"] = target.topic
        elif target.from_ is None and view.partition(target.topic, target.partition) is None:
            missing[f"partition {target.topic}-{target.partition}"] = target.topic
    if missing:
        raise TopicMissingError(missing)


def _require_told(view: KafkaView, named: Iterable[DirectoryId]) -> None:
    _require_described(view, {where.broker for where in named if where.path != ANY})


def _require_there(view: KafkaView, targets: Iterable[Target]) -> None:
    """Brokers that get a replica have to be there: any of their directories may take it."""
    arriving = set()
    for target in targets:
        part = view.partition(target.topic, target.partition)
        arriving |= set(target.to.replicas) - set(part.replicas if part is not None else target.to.replicas)
    _require_described(view, arriving)


def _require_described(view: KafkaView, brokers: Collection[int]) -> None:
    away = sorted((view.brokers.keys() - view.described).intersection(brokers))
    if away:
        raise BrokersAwayError(f"brokers {away} are away, and nobody else knows their directories")


def _leveling(pinned: Collection[str]) -> PlanOptions:
    return PlanOptions(level_leaders=False, level_traffic=False, excluded_topics=frozenset(pinned))


def _drain_directories(load: ClusterLoad, view: KafkaView, rows: Sequence[DirectoryId]) -> Plan:
    """A replica in a failed directory cannot be copied from there: another broker gets it, from one in sync."""
    failed = {row.broker for row in rows if row in view.directories and not view.directories[row].online}
    return plan_drain(load.with_cordons(failed), directories=rows)


def explicit_rows(spec: ReassignmentSpec, config_maps: Mapping[str, Mapping[str, Any]]) -> tuple[Target, ...]:
    """The rows of `partitions`, or of all ConfigMaps together."""
    if spec.partitions:
        return rows_from_spec([write(row) for row in spec.partitions])
    rows: list[Target] = []
    for source in spec.plan_from:
        name = source.config_map_ref.name
        if name not in config_maps:
            raise PlanMissingError(f"ConfigMap {name} does not exist")
        text = (config_maps[name].get("data") or {}).get(source.key)
        if text is None:
            raise PlanMissingError(f"ConfigMap {name} has no key {source.key}")
        rows += _rows_of(name, text)
    return tuple(rows)


def _rows_of(name: str, text: str) -> tuple[Target, ...]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanFormatError(f"ConfigMap {name} holds no JSON: {error}") from error
    return rows_from_spec(document) if isinstance(document, list) else rows_from_kafka_json(text)
