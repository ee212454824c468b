"""Prepares an offset commit for appending, inside or outside a transaction."""

from __future__ import annotations

from ballast_broker.coordinator import records
from ballast_broker.coordinator.offsets import Offsets
from ballast_broker.coordinator.store import OUTSIDE, CoordinatorStore, Producer
from ballast_broker.turns import InTurns, Turn
from ballast_wire.names import java_length


async def made_ready(
    store: CoordinatorStore, group_id: str, offsets: Offsets, most_metadata: int, producer: Producer = OUTSIDE
) -> tuple[Offsets, bytearray]:
    """Return the offsets whose metadata is not too long, and their batch.

    Yields to other tasks meanwhile: check the committer's membership only when appending.
    """
    accepted = {p: o for p, o in offsets.items() if java_length(o.metadata) <= most_metadata}
    entries = [each async for each in InTurns(records.offset_entries(group_id, accepted))]
    turn = Turn()
    batch = store.batch_of(entries, producer)
    await turn.ends_if_long()
    return accepted, batch
