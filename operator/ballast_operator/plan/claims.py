"""Decides which claims of a cluster that the operator runs grow, are unused, or may be deleted. PURE."""

from __future__ import annotations

from collections.abc import Iterable

from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.kafka import KafkaView
from ballast_operator.model.quantity import parse_quantity
from ballast_operator.plan.contents import replicas_on
from ballast_operator.plan.kube import ClaimFacts, KubeFacts
from ballast_operator.resources import names
from ballast_operator.resources.layout import Layout
from ballast_operator.resources.names import METADATA_VOLUME


def claims_to_grow(layout: Layout, kube: KubeFacts) -> dict[str, str]:
    """Claims that are smaller than the spec says, with the size that they should have."""
    sizes = {volume.name: volume.size for volume in layout.volumes}
    if layout.cluster.spec.metadata_volume is not None:
        sizes[names.METADATA_VOLUME] = layout.cluster.spec.metadata_volume.size
    return {
        claim.name: sizes[claim.volume]
        for claim in kube.all_claims
        if claim.volume in sizes
        and not claim.deleting
        and parse_quantity(claim.size) < parse_quantity(sizes[claim.volume])
    }


def growing_claims(layout: Layout, kube: KubeFacts) -> list[ClaimFacts]:
    """Claims in use that do not have the requested size yet."""
    unused = {claim.name for claim in unused_claims(layout, kube)}
    return [claim for claim in kube.all_claims if claim.growing and not claim.deleting and claim.name not in unused]


def unused_claims(layout: Layout, kube: KubeFacts) -> list[ClaimFacts]:
    """Claims that no node of the layout needs and no pod uses."""
    in_use = {claim for pod in kube.pods.values() for claim in pod.claims.values()}
    pods = {names.pod_name(layout.cluster, ordinal) for ordinal in range(layout.brokers)}
    volumes = set(layout.volume_names) | {names.METADATA_VOLUME}
    of_brokers = [
        claim
        for claim in kube.claims
        if claim.name not in in_use and not claim.deleting and (claim.pod not in pods or claim.volume not in volumes)
    ]
    there = {pod.name for pod in kube.controllers.values()}
    gone = spare_controller_claims(kube.controller_claims, layout.controller_pods)
    return of_brokers + [claim for claim in gone if claim.pod not in there and not claim.deleting]


def spare_controller_claims(claims: Iterable[ClaimFacts], controllers: int) -> list[ClaimFacts]:
    """The claims of all but the first `controllers` controllers."""
    return [claim for claim in claims if claim.ordinal >= controllers]


def claims_to_delete(layout: Layout, kube: KubeFacts, view: KafkaView) -> list[ClaimFacts]:
    """Unused claims that were drained, except those of a broker beyond the layout that still has replicas.

    An unused claim need not be empty: somebody may have deleted its StatefulSet. What a controller's claim has, the
    other controllers have, too.
    """
    of_controllers = {claim.name for claim in kube.controller_claims}
    return [
        claim
        for claim in unused_claims(layout, kube)
        if claim.drained
        and (claim.name in of_controllers or claim.ordinal < layout.brokers or replicas_on(view, [claim.ordinal]) == 0)
    ]


def claims_in_use_again(layout: Layout, kube: KubeFacts) -> list[ClaimFacts]:
    """Claims that were drained and are wanted again: from now on they may hold something."""
    spec = layout.cluster.spec
    wanted = {volume.name for volume in spec.volumes}.intersection(layout.volume_names) | {names.METADATA_VOLUME}
    of_brokers = [claim for claim in kube.claims if claim.volume in wanted and claim.ordinal < spec.brokers]
    of_controllers = [claim for claim in kube.controller_claims if claim.ordinal < layout.controller_pods]
    return [claim for claim in (*of_brokers, *of_controllers) if claim.drained]


def claims_of_other_classes(cluster: KafkaCluster, kube: KubeFacts) -> list[ClaimFacts]:
    """The claims that block a volume which was removed and is to come back with another storage class.

    A StatefulSet uses an existing claim of the right name as it is: the data would stay on the former class.
    """
    if not kube.volumes:
        return []
    asked = {one.name: one.storage_class_name for one in cluster.spec.volumes if one.name not in kube.volumes}
    defaults = _default_classes(cluster, kube)

    def fits(claim: ClaimFacts) -> bool:
        wanted = asked[claim.volume]
        return claim.storage_class in (defaults if wanted is None else {wanted})

    return [claim for claim in kube.claims if claim.volume in asked and not fits(claim)]


def _default_classes(cluster: KafkaCluster, kube: KubeFacts) -> set[str | None]:
    """The classes that volumes without a storageClassName get, as far as existing claims of such volumes tell."""
    plain = {one.name for one in cluster.spec.volumes if one.storage_class_name is None}.intersection(kube.volumes)
    metadata = cluster.spec.metadata_volume
    if metadata is not None and metadata.storage_class_name is None:
        plain.add(names.METADATA_VOLUME)
    return {claim.storage_class for claim in kube.all_claims if claim.volume in plain} | {None}


def claims_going(kube: KubeFacts) -> list[ClaimFacts]:
    """Claims of running pods that would be gone after a restart: somebody has deleted them, so that they stay only
    until their pod ends, or their volume is lost."""
    at_work = {pod.name: {*pod.claims.values(), f"{METADATA_VOLUME}-{pod.name}"} for pod in kube.all_pods if pod.ready}
    return [one for one in kube.all_claims if (one.deleting or one.lost) and one.name in at_work.get(one.pod, ())]
