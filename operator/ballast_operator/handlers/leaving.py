"""Removes brokers and volumes: cordons and drains them, and gives them up once they are known to be empty."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ballast_operator.apply import kafka as kafka_actions
from ballast_operator.handlers import claims
from ballast_operator.handlers.kube_objects import KubeObjects
from ballast_operator.handlers.own_reassignments import ADDING, OwnReassignments, prefix_of
from ballast_operator.kafka_client import KafkaUnavailableError
from ballast_operator.model.actions import AlterConfig
from ballast_operator.model.cluster import Drain
from ballast_operator.model.kafka import BROKER, DirectoryId
from ballast_operator.model.quantity import counted
from ballast_operator.model.times import seconds_of
from ballast_operator.observe import observe_broker_configs, observe_directories
from ballast_operator.plan import contents, layouts
from ballast_operator.plan.kube import KubeFacts
from ballast_operator.plan.liveness import is_on_its_way
from ballast_operator.resources.layout import Layout
from ballast_operator.status import CLUSTER, Verdict

if TYPE_CHECKING:
    from ballast_operator.cycle import Shared
    from ballast_operator.handlers.scene import Scene

log = logging.getLogger(__name__)

CORDON = "cordoned.log.dirs"


class Leaving:
    """What leaves one cluster. Used by that cluster's worker only."""

    def __init__(
        self,
        shared: Shared,
        objects: KubeObjects,
        own: OwnReassignments,
        lay_out: Callable[[Layout, KubeFacts], Awaitable[object]],
    ) -> None:
        self._shared = shared
        self._objects = objects
        self._own = own
        self._lay_out = lay_out

    async def cordon(self, scene: Scene) -> frozenset[int]:
        """Cordon what leaves, uncordon the rest. Returns the brokers whose cordon was changed or unreadable: they
        may have got replicas since they were observed."""
        online = [broker.id for broker in scene.view.brokers.values() if broker.online]
        configs = await observe_broker_configs(scene.kafka, online)
        excess, volumes = layouts.given_up(scene.cluster, scene.identity, scene.kube, online)
        leaving = contents.directories_of(scene.cluster, scene.view, volumes, online)
        unread = set(online) - configs.keys()
        changes = []
        for broker, found in configs.items():
            wanted = "*" if broker in excess else contents.paths_of(broker, leaving)
            if found.get(CORDON) != wanted:
                changes.append(AlterConfig(BROKER, str(broker), {CORDON: wanted}))
        for (_, name), outcome in (await kafka_actions.alter_configs(scene.kafka, changes)).items():
            if not outcome.ok:
                log.warning("cluster %s: broker %s could not be cordoned: %s", scene.cluster.key, name, outcome.message)
        return frozenset({int(change.name) for change in changes} | unread)

    async def scale_down(self, scene: Scene, drains: list[Drain], exposed: frozenset[int]) -> Verdict | None:
        excess = layouts.excess_brokers(scene.cluster, scene.kube)
        name = prefix_of(scene.cluster, "drain-brokers")
        if not excess:
            await self._own.drop(name)
            return None
        await self._own.withdraw(prefix_of(scene.cluster, ADDING), excess)
        left = contents.replicas_on(scene.view, excess)
        if left == 0 and exposed.isdisjoint(excess) and self._own.drained(name):
            doubt = await self._doubt(scene, excess)
            if doubt is not None:
                return doubt
            if not scene.voting.isdisjoint(excess):
                return CLUSTER["ScalingDown"].says(brokers=_ids(excess), left="they are empty, and leave the quorum")
            layout = layouts.wanted_layout(
                scene.cluster, scene.identity, scene.kube, scene.cluster.spec.brokers,
                layouts.leaving_volumes(scene.cluster, scene.kube),
            )  # fmt: skip
            await claims.mark_drained(
                self._objects, scene.cluster, [claim for claim in scene.kube.claims if claim.ordinal in excess]
            )
            await self._lay_out(layout, scene.kube)
            return CLUSTER["ScalingDown"].says(brokers=_ids(excess), left=_left(0))
        held = await self._own.drain(scene, name, {"drainBrokers": list(excess)}) if left else None
        drains += [
            Drain(broker, reassignment=self._own.name(name), replicas_left=contents.replicas_on(scene.view, [broker]))
            for broker in excess
        ]
        if left is None:
            return CLUSTER["ScaleDownHeld"].says(brokers=_ids(excess), error="it cannot be read what they hold")
        if held is not None:
            return CLUSTER["ScaleDownHeld"].says(brokers=_ids(excess), error=held)._replace(stalled=True)
        return CLUSTER["ScalingDown"].says(brokers=_ids(excess), left=self._own.carried_out(name, _left(left)))

    async def unregister(self, scene: Scene) -> None:
        """Unregister brokers that are gone for good: offline, no pod, no replica, no vote, not wanted."""
        for broker in scene.view.brokers.values():
            wanted = broker.id < max(scene.kube.replicas, scene.cluster.spec.brokers)
            if broker.online or wanted or broker.id in scene.kube.pods or broker.id in scene.voting:
                continue
            if contents.replicas_on(scene.view, [broker.id]) == 0:
                outcome = await kafka_actions.unregister_broker(scene.kafka, broker.id)
                said = outcome.error or "done"
                log.info("cluster %s: broker %d unregistered: %s", scene.cluster.key, broker.id, said)

    async def remove_volumes(self, scene: Scene, drains: list[Drain], exposed: frozenset[int]) -> Verdict | None:
        leaving = layouts.leaving_volumes(scene.cluster, scene.kube)
        name = prefix_of(scene.cluster, "drain-volumes")
        if not leaving:
            await self._own.drop(name)
            return None
        kept = layouts.metadata_volume_leaves(scene.cluster, scene.identity, scene.kube)
        if kept is not None:
            return CLUSTER["VolumeNeeded"].says(volume=kept)
        brokers = sorted(broker.id for broker in scene.view.brokers.values() if broker.id < scene.kube.replicas)
        directories = contents.directories_of(scene.cluster, scene.view, leaving, brokers)
        left = contents.replicas_in(scene.view, directories, range(scene.kube.replicas))
        shown = ", ".join(leaving)
        if left is None:
            return self._not_told(scene, name, shown)
        empty = left == 0 and exposed.isdisjoint(brokers) and self._own.drained(name)
        if empty and await self._hold_nothing(scene, directories, brokers):
            layout = layouts.wanted_layout(scene.cluster, scene.identity, scene.kube, scene.kube.replicas, ())
            emptied = [
                claim for claim in scene.kube.claims if claim.volume in leaving and claim.ordinal < scene.kube.replicas
            ]
            await claims.mark_drained(self._objects, scene.cluster, emptied)
            await self._lay_out(layout, scene.kube)
            return CLUSTER["DrainingVolume"].says(volume=shown, left=_left(0))
        coming = self._not_there_yet(scene, brokers)
        if coming and left and self._own.last(name) is None:
            # Else all of it would go to the volumes that stay, on the brokers that were not restarted yet.
            there = "; ".join(f"volume {volume} is there on {_named(missing)}" for volume, missing in coming.items())
            return CLUSTER["DrainingVolume"].says(volume=shown, left=f"{_left(left)}, which begin to go once {there}")
        full = {d: contents.replicas_in(scene.view, [d], [d.broker]) or 0 for d in directories}
        rows = [{"broker": d.broker, "directory": d.path} for d, count in full.items() if count]
        held = await self._own.drain(scene, name, {"drainDirectories": rows}) if rows else None
        drains += [Drain(d.broker, d.path, self._own.name(name), count) for d, count in full.items() if count]
        if held is not None:
            return CLUSTER["VolumeHeld"].says(volume=shown, error=held)._replace(stalled=True)
        return CLUSTER["DrainingVolume"].says(volume=shown, left=self._own.carried_out(name, _left(left)))

    def _not_there_yet(self, scene: Scene, brokers: Sequence[int]) -> dict[str, list[int]]:
        """Volumes of the spec, each with the brokers that have no directory on it so far."""
        volumes = [volume.name for volume in scene.cluster.spec.volumes]
        found = contents.directories_of(scene.cluster, scene.view, volumes, brokers)
        there = {(directory.broker, volume) for directory, volume in found.items()}
        missing = {volume: [broker for broker in brokers if (broker, volume) not in there] for volume in volumes}
        return {volume: without for volume, without in missing.items() if without}

    def _not_told(self, scene: Scene, name: str, volumes: str) -> Verdict:
        """The verdict while brokers do not report what they hold. A restart passes by itself; anything else holds up
        the removal."""
        silent = sorted(set(range(scene.kube.replicas)) - scene.view.described)
        now = seconds_of(self._shared.now())
        if silent and all(is_on_its_way(broker, scene.kube, scene.view, now) for broker in silent):
            left = f"what is left is not known while {_named(silent)} restarts"
            return CLUSTER["DrainingVolume"].says(volume=volumes, left=self._own.carried_out(name, left))
        error = f"{_named(silent)} does not tell what it holds" if silent else "it cannot be read what it holds"
        return CLUSTER["VolumeHeld"].says(volume=volumes, error=error)

    # Each leaving broker is asked itself, and only after its cordon was observed: it knows of all replicas placed until
    # then, and none are placed after. The metadata of any other broker might lag.

    async def _doubt(self, scene: Scene, brokers: Sequence[int]) -> Verdict | None:
        """Why it is not certain that these brokers are empty, if so. One that is offline may have been back for a
        moment and got replicas; all others are asked instead, so that one that is gone for good can leave."""
        all_online = all(scene.view.is_online(broker) for broker in brokers)
        for one in scene.view.brokers.values():
            if not one.online or (all_online and one.id not in brokers):
                continue
            try:
                told = contents.replicas_on(await scene.as_told_by(one.id), brokers)
            except KafkaUnavailableError as error:
                silent = f"broker {one.id} does not answer: {error}"
                return CLUSTER["ScaleDownHeld"].says(brokers=_ids(brokers), error=silent)
            if told != 0:
                left = f"broker {one.id} does not tell that they are empty"
                return CLUSTER["ScalingDown"].says(brokers=_ids(brokers), left=left)
        return None

    async def _hold_nothing(self, scene: Scene, directories: Collection[DirectoryId], brokers: Sequence[int]) -> bool:
        found, logs, described = await observe_directories(scene.kafka, brokers)
        seen = replace(scene.view, directories=found, logs=logs, described=described)
        return contents.replicas_in(seen, directories, range(scene.kube.replicas)) == 0


def _left(replicas: int) -> str:
    return f"{counted(replicas, 'replica')} left"


def _named(brokers: Sequence[int]) -> str:
    return f"broker {brokers[0]}" if len(brokers) == 1 else f"each of brokers {_ids(brokers)}"


def _ids(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))
