"""Configs of a single group that override the broker's: names and validation. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_broker.config_types import ConfigError, Property, between

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
GROUP_PROPERTIES = {
    each.name: each
    for each in (
        Property(HEARTBEAT_INTERVAL, "int", 5000, between(1)),
        Property(SESSION_TIMEOUT, "int", 45_000, between(1)),
    )
}


def broker_property(name: str, part: str = "") -> str:
    """The corresponding broker property; `part` is `min.` or `max.` for its bounds."""
    return "group.consumer." + part + name.removeprefix("consumer.")


def check_group_configs(configs: Mapping[str, str], broker: Mapping[str, Any]) -> None:
    """Validate group configs; `broker`: the broker's properties. Raises ConfigError, in Kafka's words."""
    values = {name: broker[broker_property(name)] for name in GROUP_PROPERTIES}
    for name, text in configs.items():
        known = GROUP_PROPERTIES.get(name)
        if known is None:
            raise ConfigError(f"Unknown group config name: {name}")
        values[name] = known.parse_new(text)
    for name in configs:
        least, most = (broker_property(name, part) for part in ("min.", "max."))
        if values[name] < broker[least]:
            raise ConfigError(f"{name} must be greater than or equal to {least}")
        if values[name] > broker[most]:
            raise ConfigError(f"{name} must be less than or equal to {most}")
    if values[SESSION_TIMEOUT] <= values[HEARTBEAT_INTERVAL]:
        raise ConfigError(f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")
