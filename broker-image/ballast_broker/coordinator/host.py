"""The interface to the coordinator that groups of either protocol depend on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from ballast_broker.coordinator.effects import JoinResult
from ballast_broker.coordinator.group import Group
from ballast_broker.coordinator.rebalance import JoinAsk, Now
from ballast_broker.coordinator.shard import Shard
from ballast_broker.coordinator.store import KeyValue, Settled
from ballast_broker.metadata.image import MetadataImage
from ballast_wire.errors import ErrorCode

ExtraWrite = tuple[Sequence[KeyValue], Settled]
"""Entries to write, and a callback for when it is known whether they are committed."""


@dataclass(frozen=True, slots=True)
class Host:
    shard_of: Callable[[str], Shard]
    is_current: Callable[[Shard], bool]
    now: Callable[[], Now]
    image: Callable[[], MetadataImage]
    start: Callable[[Coroutine[Any, Any, object]], None]
    append: Callable[[Shard, Sequence[KeyValue], Settled], Awaitable[ErrorCode]]
    end_classic: Callable[[Shard, str], ExtraWrite]
    """What ends the classic group of this name in favour of a consumer-protocol one. Call it at once after checking
    that the group may be converted.
    """
    begin_classic: Callable[[Shard, Group, bool], ExtraWrite]
    """What turns a consumer-protocol group into this classic one; the flag says whether its members have to rejoin."""
    join_consumers: Callable[[str, JoinAsk], Awaitable[JoinResult | None]]
    """A classic member joins a consumer-protocol group with members; None: there is no longer one of that name."""
    end_consumers: Callable[[Shard, str], Awaitable[None]]
    """Delete an empty consumer-protocol group."""
