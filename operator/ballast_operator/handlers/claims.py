"""Grows the claims of a cluster that the operator runs, marks drained ones, and deletes them if the spec says so."""

from __future__ import annotations

from collections.abc import Iterable

from ballast_operator.handlers.kube_objects import KubeObjects
from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.kafka import KafkaView
from ballast_operator.plan import claims as plan
from ballast_operator.plan.kube import ClaimFacts, KubeFacts
from ballast_operator.resources.layout import Layout
from ballast_operator.side_by_side import side_by_side
from ballast_operator.status import CLUSTER, Verdict


async def mark_drained(objects: KubeObjects, cluster: KafkaCluster, claims: Iterable[ClaimFacts]) -> None:
    """Mark claims as drained before they are given up: afterwards they look like any other unused claim."""
    lacking = [claim for claim in claims if not claim.drained]
    await side_by_side(lacking, lambda claim: objects.mark_claim(cluster, claim, True))


async def take_back(objects: KubeObjects, layout: Layout, kube: KubeFacts) -> None:
    """Unmark drained claims that are wanted again, before anything can be written to them."""
    again = plan.claims_in_use_again(layout, kube)
    await side_by_side(again, lambda claim: objects.mark_claim(layout.cluster, claim, False))


async def bring(objects: KubeObjects, layout: Layout, kube: KubeFacts, view: KafkaView) -> Verdict | None:
    """Grow and delete claims. Returns why one does not match the spec yet, if any."""
    cluster = layout.cluster
    sizes = plan.claims_to_grow(layout, kube).items()
    refusals = await side_by_side(sizes, lambda each: objects.grow_claim(cluster, *each))
    going = _going(layout, kube, view)
    await side_by_side(going, lambda unused: objects.delete_claim(cluster, unused.name, unused.uid))
    for refusal in filter(None, reversed(refusals)):
        return CLUSTER["VolumeTooSmall"].says(error=refusal.rstrip(".") + ".")
    growing = sorted(plan.growing_claims(layout, kube), key=lambda claim: (not claim.growth_failed, claim.name))
    if growing:
        name, error = growing[0].name, f"claim {growing[0].name}: {growing[0].growing}"
        if growing[0].growth_failed:
            return CLUSTER["VolumeTooSmall"].says(error=error)
        return CLUSTER["VolumeGrowing"].says(claim=name, error=error)
    former = plan.claims_of_other_classes(cluster, kube)
    if former:
        volume, found = former[0].volume, former[0].storage_class
        return CLUSTER["VolumeClaimed"].says(volume=volume, claim=former[0].name, found=found)
    return None


def retained(layout: Layout, kube: KubeFacts, view: KafkaView) -> tuple[str, ...]:
    going = _going(layout, kube, view)
    return tuple(sorted(claim.name for claim in plan.unused_claims(layout, kube) if claim not in going))


def _going(layout: Layout, kube: KubeFacts, view: KafkaView) -> list[ClaimFacts]:
    return plan.claims_to_delete(layout, kube, view) if layout.cluster.spec.deletes_claims else []
