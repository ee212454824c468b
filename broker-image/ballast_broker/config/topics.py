"""Topic configs: the table, their broker-wide defaults, and the resolved configuration of a log. PURE."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ballast_broker.config.logs import LogConfig
from ballast_broker.config_types import (
    LONG_MAX,
    NAME,
    ConfigError,
    Property,
    Rule,
    between,
    between_or,
    each_of,
    one_of,
)


class ConfigSource(IntEnum):
    """Kafka's codes for the source of a described value."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


GZIP_LEVELS, LZ4_LEVELS, ZSTD_LEVELS = between_or(1, 9, -1), between(1, 17), between(-131_072, 22)
CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_THROTTLED = re.compile(r"(\d+:\d+)?")  # as in Kafka, which accepts empty ones
throttled_replicas = Rule(
    lambda value: (
        None
        if "".join(value) == "*" or all(_THROTTLED.fullmatch(v) for v in value)
        else f"{NAME} must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    ),
    lambda value: f"[{', '.join(value)}]",
)


@dataclass(frozen=True, slots=True)
class TopicProperty:
    """One topic config. `synonyms`: broker properties that give its default, first one set wins, with their factor."""

    property: Property
    synonyms: tuple[tuple[str, int], ...] = ()


def _topic(name: str, kind: str, default: Any, rule: Rule | None, *synonyms: str | tuple[str, int]) -> TopicProperty:
    pairs = tuple(s if isinstance(s, tuple) else (s, 1) for s in synonyms)
    made = Property(name, kind, default) if rule is None else Property(name, kind, default, rule)
    return TopicProperty(made, pairs)


HOUR_MS, MINUTE_MS = 3_600_000, 60_000

TOPIC_PROPERTIES = {
    entry.property.name: entry
    for entry in (
        _topic("cleanup.policy", "list", ("delete",), each_of("compact", "delete"), "log.cleanup.policy"),
        _topic("compression.gzip.level", "int", -1, GZIP_LEVELS, "compression.gzip.level"),
        _topic("compression.lz4.level", "int", 9, LZ4_LEVELS, "compression.lz4.level"),
        _topic("compression.type", "string", "producer", one_of(*CODECS), "compression.type"),
        _topic("compression.zstd.level", "int", 3, ZSTD_LEVELS, "compression.zstd.level"),
        _topic("delete.retention.ms", "long", 86_400_000, between(0), "log.cleaner.delete.retention.ms"),
        _topic("file.delete.delay.ms", "long", 60_000, between(0), "log.segment.delete.delay.ms"),
        _topic("flush.messages", "long", LONG_MAX, between(1), "log.flush.interval.messages"),
        _topic("flush.ms", "long", LONG_MAX, between(0), "log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        _topic("follower.replication.throttled.replicas", "list", (), throttled_replicas),
        _topic("index.interval.bytes", "int", 4096, between(0), "log.index.interval.bytes"),
        _topic("leader.replication.throttled.replicas", "list", (), throttled_replicas),
        _topic("max.compaction.lag.ms", "long", LONG_MAX, between(1), "log.cleaner.max.compaction.lag.ms"),
        _topic("max.message.bytes", "int", 1_048_588, between(0), "message.max.bytes"),
        _topic("message.timestamp.after.max.ms", "long", 3_600_000, between(0), "log.message.timestamp.after.max.ms"),
        _topic("message.timestamp.before.max.ms", "long", LONG_MAX, between(0), "log.message.timestamp.before.max.ms"),
        _topic(
            "message.timestamp.type",
            "string",
            "CreateTime",
            one_of("CreateTime", "LogAppendTime"),
            "log.message.timestamp.type",
        ),
        _topic("min.cleanable.dirty.ratio", "double", 0.5, between(0, 1), "log.cleaner.min.cleanable.ratio"),
        _topic("min.compaction.lag.ms", "long", 0, between(0), "log.cleaner.min.compaction.lag.ms"),
        _topic("min.insync.replicas", "int", 1, between(1), "min.insync.replicas"),
        _topic("preallocate", "boolean", False, None, "log.preallocate"),
        _topic("retention.bytes", "long", -1, None, "log.retention.bytes"),
        _topic(
            "retention.ms",
            "long",
            604_800_000,
            between(-1),
            "log.retention.ms",
            ("log.retention.minutes", MINUTE_MS),
            ("log.retention.hours", HOUR_MS),
        ),
        _topic("segment.bytes", "int", 1_073_741_824, between(1_048_576), "log.segment.bytes"),
        _topic("segment.index.bytes", "int", 10_485_760, between(4), "log.index.size.max.bytes"),
        _topic("segment.jitter.ms", "long", 0, between(0), "log.roll.jitter.ms", ("log.roll.jitter.hours", HOUR_MS)),
        _topic("segment.ms", "long", 604_800_000, between(1), "log.roll.ms", ("log.roll.hours", HOUR_MS)),
        _topic("unclean.leader.election.enable", "boolean", False, None, "unclean.leader.election.enable"),
    )
}


def check_topic_configs(configs: Mapping[str, str]) -> dict[str, Any]:
    """Parse and validate overrides; raises at the first bad one, naming the config as Kafka does."""
    values = {}
    for name, text in configs.items():
        entry = TOPIC_PROPERTIES.get(name)
        if entry is None:
            raise ConfigError(f"Unknown topic config name: {name}")
        values[name] = entry.property.parse_new(text)
    shortest, longest = values.get("min.compaction.lag.ms", 0), values.get("max.compaction.lag.ms", LONG_MAX)
    if shortest > longest:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})"
        )
    return values


def log_config(overrides: Mapping[str, str], broker: Mapping[str, Any]) -> LogConfig:
    """The log configuration for these overrides and the broker's explicitly set values (by name)."""
    resolved = {}
    for name, entry in TOPIC_PROPERTIES.items():
        field = entry.property.field
        own = entry.property.stored(overrides[name]) if name in overrides else None
        resolved[field] = broker_default(entry, broker) if own is None else own
    resolved["cleanup_policy"] = frozenset(resolved["cleanup_policy"])
    return LogConfig(**resolved)


def broker_default(entry: TopicProperty, broker: Mapping[str, Any]) -> Any:
    for name, factor in entry.synonyms:
        value = broker.get(name)
        if value is not None:
            if entry.property.name == "retention.ms" and value < 0:
                return -1
            return value * factor if factor != 1 else value
    return entry.property.default


def check_log_times(broker: Mapping[str, Any]) -> None:
    """Check explicitly set values, in Kafka's words: with 0 all data would expire at once."""
    retention, roll, jitter = (
        broker_default(TOPIC_PROPERTIES[name], broker) for name in ("retention.ms", "segment.ms", "segment.jitter.ms")
    )
    for name, is_wrong, allowed in (
        ("log.retention.ms", retention == 0, "unlimited (-1) or, greater than or equal to 1"),
        ("log.roll.ms", roll < 1, "greater than or equal to 1"),
        ("log.roll.jitter.ms", jitter < 0, "greater than or equal to 0"),
    ):
        if is_wrong:
            raise ConfigError(f"requirement failed: {name} must be {allowed}")
