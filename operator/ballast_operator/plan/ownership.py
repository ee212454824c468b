"""Decides who owns a cluster's claims and identity, that is, what Kubernetes deletes with a KafkaCluster. PURE.

An object with an ownerReference to the KafkaCluster is garbage collected when that is deleted, whether the operator is
up or not. Only `storage.deleteClaim` adds one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ballast_operator.model import cluster as cluster_model
from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.meta import GROUP, owner_reference

Owner = Mapping[str, Any]


def owners_wanted(cluster: KafkaCluster, owners: Sequence[Owner], sets: Collection[str] = ()) -> list[Owner]:
    """The owners that an object should have. Earlier versions let StatefulSets own claims; `sets` are removed."""
    own = [one for one in owners if _is_cluster(one) and one["uid"] == cluster.meta.uid]
    others = [one for one in owners if not _is_cluster(one) and one["uid"] not in sets]
    if not cluster.spec.deletes_claims:
        return others
    # Not as its controller: there can be only one, and a StatefulSet may still be it.
    return [*others, *(own or [owner_reference(cluster_model.KIND, cluster.meta, controller=False)])]


def is_owned(cluster: KafkaCluster, owners: Sequence[Owner]) -> bool:
    return any(one["uid"] == cluster.meta.uid for one in owners)


def goes_with_another(cluster: KafkaCluster, owners: Sequence[Owner]) -> bool:
    """Whether it is garbage: it belonged to a KafkaCluster of this name that was deleted."""
    return any(_is_cluster(one) for one in owners) and not is_owned(cluster, owners)


def _is_cluster(owner: Owner) -> bool:
    return owner["kind"] == cluster_model.KIND and str(owner["apiVersion"]).startswith(f"{GROUP}/")
