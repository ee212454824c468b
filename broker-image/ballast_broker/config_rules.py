"""The controller's view of configs: names, validation, defaults. PURE."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ballast_broker.config.broker import BrokerConfig
from ballast_broker.config.broker_properties import BROKER_PROPERTIES
from ballast_broker.config.entries import DYNAMIC_BROKER_PROPERTIES, ConfigEntries
from ballast_broker.config.groups import GROUP_PROPERTIES, check_group_configs
from ballast_broker.config.topics import TOPIC_PROPERTIES, broker_default, check_log_times, check_topic_configs
from ballast_broker.config_types import ConfigError, Property
from ballast_broker.controller.commands.context import ConfigEntry
from ballast_broker.metadata.image import RESOURCE_BROKER, RESOURCE_CLIENT_METRICS, RESOURCE_GROUP, RESOURCE_TOPIC
from ballast_broker.security.properties import listener_property
from ballast_wire.errors import ApiError, ErrorCode

_STORE = re.compile(r"(^|\.)ssl\.(key|trust)store\.location$")


class Rules:
    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._given = config.values_set

    def validate(self, resource_type: int, resource_name: str, configs: Mapping[str, str]) -> None:
        try:
            if resource_type == RESOURCE_TOPIC:
                check_topic_configs(configs)
            elif resource_type == RESOURCE_BROKER:
                self._check_broker(resource_name, configs)
            elif resource_type == RESOURCE_GROUP:
                check_group_configs(configs, self._config.values)
            else:
                kind = (
                    "client metrics" if resource_type == RESOURCE_CLIENT_METRICS else f"resource type {resource_type}"
                )
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Configs of {kind} are not kept here.")
        except ConfigError as error:
            code = ErrorCode.INVALID_REQUEST if resource_type == RESOURCE_BROKER else ErrorCode.INVALID_CONFIG
            raise ApiError(code, str(error)) from None

    def _check_broker(self, broker: str, configs: Mapping[str, str]) -> None:
        known_here = (name for name in configs if name in BROKER_PROPERTIES or listener_property(name) is not None)
        fixed = sorted(name for name in known_here if name not in DYNAMIC_BROKER_PROPERTIES)
        if fixed:
            # Apache Kafka reloads a store when its location is set again.
            hint = ": stores are read again when their files change" if any(map(_STORE.search, fixed)) else ""
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: Set({', '.join(fixed)}){hint}"
            )
        values = {}
        for name, text in configs.items():
            known = BROKER_PROPERTIES.get(name)
            if known is None:
                raise ConfigError(f"Unknown broker config name: {name}")
            values[name] = known.parse_new(text)
        check_log_times(values)

    def is_list(self, resource_type: int, name: str) -> bool:
        known = self._property(resource_type, name)
        return known is not None and known.kind == "list"

    def default(self, resource_type: int, name: str) -> str | None:
        if resource_type == RESOURCE_TOPIC:
            entry = TOPIC_PROPERTIES.get(name)
            return None if entry is None else entry.property.text_of(broker_default(entry, self._given))
        known = BROKER_PROPERTIES.get(name)
        return None if known is None else known.text_of(self._given.get(name, known.default))

    def _property(self, resource_type: int, name: str) -> Property | None:
        if resource_type == RESOURCE_TOPIC:
            entry = TOPIC_PROPERTIES.get(name)
            return None if entry is None else entry.property
        if resource_type == RESOURCE_GROUP:
            return GROUP_PROPERTIES.get(name)
        return BROKER_PROPERTIES.get(name)

    def effective_topic_configs(
        self, overrides: Mapping[str, str], own: Mapping[str, str], cluster: Mapping[str, str]
    ) -> Iterable[ConfigEntry]:
        for each in ConfigEntries(self._config, own, cluster).of_topic(overrides):
            yield ConfigEntry(each.name, each.value, False, each.source, False)
