"""Manages the Reassignments that the operator itself creates for a cluster: drains and proposals.

The prefix of their names tells what they are for, so that an operator that takes over finds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from ballast_operator.handlers.second_tries import SecondTries
from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.fields import write
from ballast_operator.model.meta import Key
from ballast_operator.model.reassignment import ENDS, Phase, Reassignment
from ballast_operator.plan.lifecycle import without_place
from ballast_operator.status import ready_condition, why_it_failed

if TYPE_CHECKING:
    from ballast_operator.cycle import Shared
    from ballast_operator.handlers.scene import Scene

ADDING = "add-brokers"  # the purpose of those that give added brokers their share


class OwnReassignments:
    """The operator's own Reassignments of one cluster. Used by that cluster's worker only."""

    def __init__(self, key: Key, shared: Shared) -> None:
        self._key = key
        self._shared = shared
        self._second_tries = SecondTries(shared.cache)

    async def drain(self, scene: Scene, prefix: str, mode: Mapping[str, Any]) -> str | None:
        """Ensure that a Reassignment drains what has to go. Returns why it cannot until a person acts, if so."""
        current = self.last(prefix)
        if current is None:
            await self.create(scene, unique(prefix, mode), mode)
            return None
        if current.meta.deleting:
            return None
        phase = current.status.phase
        if current.stopped:
            return f"Reassignment {current.meta.name} was stopped; delete it to try again"
        if phase is Phase.FAILED and _same_mode(current, mode) and not await self._would_move(scene, current):
            return why_it_failed(current.status.conditions) or f"Reassignment {current.meta.name} failed"
        if phase in ENDS or phase is Phase.STALE or without_place(current) or not _same_mode(current, mode):
            # What to drain, or its destination, has changed, or new replicas arrived meanwhile: the next cycle creates
            # another one.
            await self._shared.writer.delete_reassignment(current)
        return None

    async def retry(self, scene: Scene, failed: Reassignment) -> None:
        """Delete it once another one of its name, which then takes its place, would move something."""
        if failed.status.phase is Phase.FAILED and await self._would_move(scene, failed):
            await self._shared.writer.delete_reassignment(failed)

    async def _would_move(self, scene: Scene, failed: Reassignment) -> bool:
        return await self._second_tries.would_move(failed, scene.view)

    def carried_out(self, prefix: str, left: str) -> str:
        """What is left, which Reassignment moves it, and what that one waits for."""
        current = self.last(prefix)
        if current is None or current.status.phase in ENDS:
            return left
        text = f"{left}, moved by Reassignment {current.meta.name}"
        said = ready_condition(current.status.conditions)
        if said is None or current.status.phase is Phase.RUNNING:
            return text
        return f"{text}. {said.message.rstrip('.')}"

    def drained(self, prefix: str) -> bool:
        """Whether the drain has ended: its throttles have to be put back while the drained brokers still answer."""
        current = self.last(prefix)
        return current is None or current.status.phase in ENDS

    async def drop(self, prefix: str) -> None:
        """Delete these: what they drain is wanted again or is gone. A failed one would block the next."""
        for one in self._all(prefix):
            if not one.meta.deleting and one.status.phase is not Phase.SUCCEEDED:
                await self._shared.writer.delete_reassignment(one)

    async def withdraw(self, prefix: str, brokers: Collection[int]) -> None:
        """Delete those that give these brokers replicas, or propose to."""
        for one in self._all(prefix):
            goes = one.status.phase in ENDS or one.meta.deleting
            if not goes and not set(brokers).isdisjoint(one.spec.add_brokers):
                await self._shared.writer.delete_reassignment(one)

    def name(self, prefix: str) -> str | None:
        """The name of the `last` one, unless it is done."""
        current = self.last(prefix)
        return None if current is None or current.status.phase is Phase.SUCCEEDED else current.meta.name

    def last(self, prefix: str) -> Reassignment | None:
        """The Reassignment with this prefix that has not ended, else the last one."""
        found = sorted(self._all(prefix), key=lambda one: (one.status.phase not in ENDS, one.meta.age_order))
        return found[-1] if found else None

    def named(self, prefix: str, name: str) -> Reassignment | None:
        return next((one for one in self._all(prefix) if one.meta.name == name), None)

    def _all(self, prefix: str) -> list[Reassignment]:
        known = self._shared.cache.reassignments_of(self._key)
        return [one for one in known if one.meta.name.startswith(f"{prefix}-") and one.meta.owner_references]

    async def create(self, scene: Scene, name: str, mode: Mapping[str, Any], approval: str = "Automatic") -> None:
        cluster = scene.cluster
        spec: dict[str, Any] = {"clusterRef": {"name": cluster.meta.name}, "approval": approval, **mode}
        if cluster.spec.rebalance is not None and cluster.spec.rebalance.throttle is not None:
            spec["throttle"] = write(cluster.spec.rebalance.throttle)
        await self._shared.writer.create_reassignment(cluster, name, spec, cluster.meta.name)
        # The cache has it already, so its watch event will trigger nothing.
        scene.requeue.reassignments_within(0.0)


def prefix_of(cluster: KafkaCluster, purpose: str) -> str:
    """What the names of the cluster's own Reassignments for this purpose begin with."""
    return f"{cluster.meta.name[:150]}-{purpose}"


def unique(prefix: str, content: Any) -> str:
    return f"{prefix}-{hashlib.sha256(repr(content).encode()).hexdigest()[:8]}"


def _same_mode(reassignment: Reassignment, mode: Mapping[str, Any]) -> bool:
    """Whether the existing drain covers everything that has to be drained now."""
    spec = reassignment.spec
    if "drainBrokers" in mode:
        return set(spec.drain_brokers) == set(mode["drainBrokers"])
    rows = {(row["broker"], row["directory"]) for row in mode["drainDirectories"]}
    return rows <= {(row.broker, row.directory) for row in spec.drain_directories}
