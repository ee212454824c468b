"""What groups of either protocol need of the coordinator that they belong to."""

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

Ending = tuple[Sequence[KeyValue], Settled]
"""What is written where something ends, and what is to be called once it is known whether it is."""


@dataclass(frozen=True, slots=True)
class Host:
    shard_of: Callable[[str], Shard]
    is_current: Callable[[Shard], bool]
    now: Callable[[], Now]
    image: Callable[[], MetadataImage]
    start: Callable[[Coroutine[Any, Any, object]], None]
    append: Callable[[Shard, Sequence[KeyValue], Settled], Awaitable[ErrorCode]]
    end_classic: Callable[[Shard, str], Ending]
    """What ends a group of the classic protocol that has this name, for one of the other: who looked whether it may go
    over has to call it at once."""
    begin_classic: Callable[[Shard, Group, bool], Ending]
    """What makes a group of the classic protocol of one of the other; its members may have to join again."""
    join_consumers: Callable[[str, JoinAsk], Awaitable[JoinResult | None]]
    """Of the classic protocol, to a group of the other that has members; None: by now there is none of that name."""
    end_consumers: Callable[[Shard, str], Awaitable[None]]
    """Ends an empty group of the consumer protocol."""
