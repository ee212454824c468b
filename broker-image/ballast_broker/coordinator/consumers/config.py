"""Timeouts and size limits of consumer-protocol groups."""

from __future__ import annotations

from dataclasses import dataclass, field

from ballast_broker.config.groups import HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from ballast_broker.coordinator.consumers.heartbeat import ConsumerLimits
from ballast_broker.metadata.image import RESOURCE_GROUP, MetadataImage


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    session_timeouts_ms: tuple[int, int] = (45_000, 60_000)  # minimum and maximum a group may configure
    heartbeat_intervals_ms: tuple[int, int] = (5_000, 15_000)
    limits: ConsumerLimits = field(default_factory=ConsumerLimits)
    patterns_take_rights: bool = False
    upgrades: bool = True  # convert classic groups with members when a consumer-protocol member joins
    downgrades: bool = True  # and back when the last such member is gone

    def session_timeout_of(self, group_id: str, image: MetadataImage) -> int:
        """In milliseconds."""
        own = image.configs.of(RESOURCE_GROUP, group_id).get(SESSION_TIMEOUT)
        return _within(own, self.session_timeout_ms, self.session_timeouts_ms)

    def heartbeat_interval_of(self, group_id: str, image: MetadataImage) -> int:
        """In milliseconds."""
        own = image.configs.of(RESOURCE_GROUP, group_id).get(HEARTBEAT_INTERVAL)
        return _within(own, self.heartbeat_interval_ms, self.heartbeat_intervals_ms)


def _within(own: str | None, default: int, allowed: tuple[int, int]) -> int:
    return default if own is None else min(max(int(own), allowed[0]), allowed[1])
