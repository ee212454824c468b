"""Defines the actions on a Kafka cluster as values: `plan` creates them, `apply.kafka` carries them out. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ballast_operator.model.kafka import TopicPartition


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """-1 leaves a number to the cluster's default. With an assignment neither number counts."""

    topic: str
    partitions: int = -1
    replicas: int = -1
    assignment: tuple[tuple[int, ...], ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExpandTopic:
    """`assignment` has one row per new partition, or none."""

    topic: str
    partitions: int
    assignment: tuple[tuple[int, ...], ...] = ()


class Appended(NamedTuple):
    """Entries that a list is to have, whatever else is in it."""

    entries: tuple[str, ...]


class Subtracted(NamedTuple):
    """Entries that a list is not to have, whatever else is in it."""

    entries: tuple[str, ...]


Setting = str | Appended | Subtracted | None


@dataclass(frozen=True, slots=True)
class AlterConfig:
    """A value of None removes the key."""

    resource: str
    name: str
    values: Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class AlterReplicas:
    """Replicas of None cancel a reassignment in progress."""

    partition: TopicPartition
    replicas: tuple[int, ...] | None
