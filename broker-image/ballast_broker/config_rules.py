"""What the controller asks about configs: which there are, which values they take, what they begin from. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ballast_broker.config import BROKER_PROPERTIES, BrokerConfig
from ballast_broker.config_types import ConfigError, Property
from ballast_broker.controller.commands.context import ConfigEntry
from ballast_broker.topic_config import TOPIC_PROPERTIES, ConfigSource, broker_default, check_topic_configs
from ballast_wire.errors import ApiError, ErrorCode

TOPIC = 2
BROKER = 4

DYNAMIC_BROKER_PROPERTIES = frozenset(
    {
        "compression.type",
        "cordoned.log.dirs",
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.cleanup.policy",
        "log.flush.interval.messages",
        "log.flush.interval.ms",
        "log.index.interval.bytes",
        "log.index.size.max.bytes",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.type",
        "log.preallocate",
        "log.retention.bytes",
        "log.retention.ms",
        "log.roll.jitter.ms",
        "log.roll.ms",
        "log.segment.bytes",
        "log.segment.delete.delay.ms",
        "message.max.bytes",
        "min.insync.replicas",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "unclean.leader.election.enable",
    }
)


def dynamic_values(*layers: Mapping[str, str]) -> dict[str, Any]:
    """Values of broker configs that were set at run time; later layers win: all brokers' first, then this one's."""
    texts = {name: text for layer in layers for name, text in layer.items() if name in BROKER_PROPERTIES}
    return {name: BROKER_PROPERTIES[name].parse(text) for name, text in texts.items()}


class Rules:
    def __init__(self, config: BrokerConfig) -> None:
        self._given = config.values_set

    def validate(self, resource_type: int, resource_name: str, configs: Mapping[str, str]) -> None:
        try:
            if resource_type == TOPIC:
                check_topic_configs(configs)
            elif resource_type == BROKER:
                self._check_broker(resource_name, configs)
            else:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"Configs of resource type {resource_type} are not kept here."
                )
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None

    def _check_broker(self, broker: str, configs: Mapping[str, str]) -> None:
        fixed = sorted(name for name in configs if name in BROKER_PROPERTIES and name not in DYNAMIC_BROKER_PROPERTIES)
        if fixed:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: Set({', '.join(fixed)})"
            )
        for name, text in configs.items():
            known = BROKER_PROPERTIES.get(name)
            if known is None:
                raise ConfigError(f"Unknown broker config name: {name}")
            known.parse(text)

    def is_list(self, resource_type: int, name: str) -> bool:
        known = self._property(resource_type, name)
        return known is not None and known.kind == "list"

    def default(self, resource_type: int, name: str) -> str | None:
        if resource_type == TOPIC:
            entry = TOPIC_PROPERTIES.get(name)
            return None if entry is None else entry.property.text_of(broker_default(entry, self._given))
        known = BROKER_PROPERTIES.get(name)
        return None if known is None else known.text_of(self._given.get(name, known.default))

    def _property(self, resource_type: int, name: str) -> Property | None:
        if resource_type == TOPIC:
            entry = TOPIC_PROPERTIES.get(name)
            return None if entry is None else entry.property
        return BROKER_PROPERTIES.get(name)

    def effective_topic_configs(self, overrides: Mapping[str, str]) -> Iterable[ConfigEntry]:
        for name, entry in TOPIC_PROPERTIES.items():
            if name in overrides:
                yield ConfigEntry(name, overrides[name], False, ConfigSource.TOPIC, False)
                continue
            source = ConfigSource.DEFAULT
            if any(broker_name in self._given for broker_name, _ in entry.synonyms):
                source = ConfigSource.STATIC_BROKER
            text = entry.property.text_of(broker_default(entry, self._given))
            yield ConfigEntry(name, text, False, source, False)
