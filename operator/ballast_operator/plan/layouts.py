"""Decides the current layout of a cluster that the operator runs, and what of it is to go. PURE.

The layout always includes everything that may hold a replica: what is to go stays until it is known to be empty.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ballast_operator.model.cluster import KafkaCluster, Volume
from ballast_operator.model.quantity import parse_quantity
from ballast_operator.plan.claims import claims_of_other_classes
from ballast_operator.plan.kube import KubeFacts
from ballast_operator.resources.layout import Identity, Layout
from ballast_operator.resources.names import METADATA_VOLUME


def held_layout(cluster: KafkaCluster, identity: Identity, kube: KubeFacts) -> Layout:
    """The layout that loses nothing: the spec, plus the brokers and volumes that exist already."""
    brokers = max(cluster.spec.brokers, kube.replicas)
    wanted = {volume.name: volume for volume in cluster.spec.volumes}
    # Volumes keep the order that they have: another order of log.dirs alone is no reason to restart a broker.
    there = tuple(wanted.get(name, volume) for name, volume in kube.volumes.items())
    kept_out = {claim.volume for claim in claims_of_other_classes(cluster, kube)}
    new_volumes = tuple(volume for volume in cluster.spec.volumes if volume.name not in {*kube.volumes, *kept_out})
    # Nodes look for the metadata log in the first volume. Without a StatefulSet only the identity tells which it is.
    ordered = sorted((*there, *new_volumes), key=lambda volume: volume.name != identity.metadata)
    volumes = tuple(volume for volume in ordered if not _keeps_pods_away(volume.name, kube, brokers))
    new = _new_brokers(kube, brokers) if kube.exists and kube.replicas else []
    added = tuple(sorted({*kube.added, *new}))
    layout = Layout(
        cluster, identity, brokers, volumes, added, kube.racks, kube.principal, kube.controller_replicas, kube.tokens
    )
    return without_added(layout, kube, kube.waiting_to_be_added)


def without_added(layout: Layout, kube: KubeFacts, kept_out: Collection[int]) -> Layout:
    """The layout without these new brokers and those after them: a StatefulSet cannot skip an ordinal."""
    brokers = max(kube.replicas, min((*kept_out, layout.brokers))) if kept_out else layout.brokers
    return replace(layout, brokers=brokers, added=tuple(broker for broker in layout.added if broker < brokers))


def with_present(layout: Layout, kube: KubeFacts) -> Layout:
    """The layout with all nodes that StatefulSets still have: what their pods read has to stay as long as they do."""
    brokers, controllers = max(layout.brokers, kube.replicas), max(layout.controllers, kube.controller_replicas)
    return replace(layout, brokers=brokers, controllers=controllers)


def _new_brokers(kube: KubeFacts, brokers: int) -> list[int]:
    """Brokers that the set is to get and never had. One whose claims were not drained is not new: somebody has scaled
    down the set itself."""
    known = {claim.ordinal for claim in kube.claims if not claim.drained and not claim.deleting}
    return [ordinal for ordinal in range(kube.replicas, brokers) if ordinal not in known]


def _keeps_pods_away(volume: str, kube: KubeFacts, brokers: int) -> bool:
    """Whether a volume has to wait until missing pods are back without it.

    The StatefulSet controller handles pods by ordinal, and gets no further than the first one that lacks a claim of the
    templates: a missing pod behind that would not come back. It never had the volume, since `next_restart` keeps to
    that order.
    """
    lacking = [ordinal for ordinal, pod in kube.pods.items() if volume not in pod.claims]
    gone = [ordinal for ordinal in range(brokers) if ordinal not in kube.pods]
    return bool(lacking and gone) and min(gone) > min(lacking)


def wanted_layout(
    cluster: KafkaCluster, identity: Identity, kube: KubeFacts, brokers: int, volumes: Collection[str]
) -> Layout:
    """The layout with this number of brokers, and of the leaving volumes only these."""
    held = held_layout(cluster, identity, kube)
    wanted = {volume.name for volume in cluster.spec.volumes}
    kept = tuple(volume for volume in held.volumes if volume.name in wanted or volume.name in volumes)
    return replace(held, brokers=brokers, volumes=kept)


def excess_brokers(cluster: KafkaCluster, kube: KubeFacts) -> tuple[int, ...]:
    return tuple(range(cluster.spec.brokers, kube.replicas))


def leaving_volumes(cluster: KafkaCluster, kube: KubeFacts) -> tuple[str, ...]:
    wanted = {volume.name for volume in cluster.spec.volumes}
    return tuple(name for name in kube.volumes if name not in wanted)


def given_up(
    cluster: KafkaCluster, identity: Identity, kube: KubeFacts, brokers: Collection[int]
) -> tuple[set[int], tuple[str, ...]]:
    """(brokers, volumes) to cordon: those that leave, and volumes that pods still mount after the set has lost them.

    What is written to a volume after it was found empty would be lost when its pod restarts. Volumes that the spec no
    longer has stay open while one of them cannot go, for then none does.
    """
    mounted = {volume for pod in kube.pods.values() for volume in pod.claims}
    wanted = {volume.name for volume in cluster.spec.volumes}
    held = {*kube.volumes} if metadata_volume_leaves(cluster, identity, kube) is not None else set()
    volumes = (mounted | {*kube.volumes}) - wanted - held
    return {one for one in brokers if one >= cluster.spec.brokers}, tuple(sorted(volumes))


def metadata_volume(cluster: KafkaCluster, kube: KubeFacts) -> str:
    """The volume with the metadata log, as far as spec and StatefulSet tell; empty where they do not."""
    if cluster.spec.metadata_volume is not None:
        return METADATA_VOLUME
    return next(iter(kube.volumes), "") if kube.exists else ""


def metadata_volume_leaves(cluster: KafkaCluster, identity: Identity, kube: KubeFacts) -> str | None:
    """The volume with the metadata log, if the spec no longer has it."""
    found = identity.metadata or metadata_volume(cluster, kube)
    if not found or cluster.spec.metadata_volume is not None:
        return None
    return None if any(volume.name == found for volume in cluster.spec.volumes) else found


def same_templates(wanted: Collection[Volume], found: Mapping[str, Volume]) -> bool:
    """Whether a StatefulSet's claim templates, which are immutable, are as wanted."""
    sizes = {volume.name: parse_quantity(volume.size) for volume in wanted}
    return sizes == {name: parse_quantity(volume.size) for name, volume in found.items()}
