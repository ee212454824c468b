"""Makes claims and identity go with their KafkaCluster or outlive it, as `storage.deleteClaim` says.

A KafkaCluster becomes their owner only if it is known to exist: otherwise Kubernetes would delete them at once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ballast_operator.apply.kubernetes import ApiError, ballast_path, path_of
from ballast_operator.model import cluster as cluster_model
from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.plan.kube import ClaimFacts, KubeFacts
from ballast_operator.plan.ownership import Owner, is_owned, owners_wanted
from ballast_operator.resources import names, others
from ballast_operator.resources.layout import Identity
from ballast_operator.side_by_side import side_by_side

if TYPE_CHECKING:
    from ballast_operator.cycle import Shared

log = logging.getLogger(__name__)


class Ownership:
    """Who owns the claims and the identity of one cluster. Used by that cluster's worker only."""

    def __init__(self, shared: Shared) -> None:
        self._api = shared.api

    async def bring(self, cluster: KafkaCluster, kube: KubeFacts, born: Identity) -> bool:
        """Write the owners; whether all are as the spec says. The order ensures that the identity stays as long as any
        claim does: without it nobody could read the claim."""
        path = path_of("v1", "configmaps", cluster.meta.namespace, names.identity(cluster))
        identity = await self._api.find(path)
        if identity is None:
            await self._restore(cluster, born)
            return False
        if not cluster.spec.deletes_claims:
            return await self._identity(cluster, path, identity) and await self._claims(cluster, kube)
        every = [*(claim.owners for claim in kube.all_claims), _owners(identity)]
        if not all(is_owned(cluster, owners) for owners in every) and not await self._is_current(cluster):
            return False
        return await self._claims(cluster, kube) and await self._identity(cluster, path, identity)

    async def _restore(self, cluster: KafkaCluster, born: Identity) -> None:
        """Recreate the identity that somebody deleted. While the KafkaCluster exists it was not garbage collection."""
        if await self._is_current(cluster):
            collection = path_of("v1", "configmaps", cluster.meta.namespace)
            await self._api.create(collection, others.identity(cluster, born))

    async def _is_current(self, cluster: KafkaCluster) -> bool:
        """Whether the KafkaCluster exists now, and with the spec that we have: the cached one may be outdated."""
        found = await self._api.find(ballast_path(cluster_model.PLURAL, cluster.key))
        meta = (found or {}).get("metadata") or {}
        seen = (meta.get("uid"), meta.get("generation"), meta.get("deletionTimestamp"))
        return bool(seen == (cluster.meta.uid, cluster.meta.generation, None))

    async def _claims(self, cluster: KafkaCluster, kube: KubeFacts) -> bool:
        async def bring(claim: ClaimFacts) -> bool:
            path = path_of("v1", "persistentvolumeclaims", cluster.meta.namespace, claim.name)
            version = {"uid": claim.uid, "resourceVersion": claim.resource_version}
            wanted = owners_wanted(cluster, claim.owners, kube.sets)
            return await self._write(path, version, claim.owners, wanted)

        return all(await side_by_side(kube.all_claims, bring))

    async def _identity(self, cluster: KafkaCluster, path: str, found: Mapping[str, Any]) -> bool:
        version = {key: found["metadata"][key] for key in ("uid", "resourceVersion")}
        return await self._write(path, version, _owners(found), owners_wanted(cluster, _owners(found)))

    async def _write(
        self, path: str, version: Mapping[str, str], found: Sequence[Owner], wanted: Sequence[Owner]
    ) -> bool:
        """Write the owners if they differ. False if the object has changed since it was observed."""
        if list(found) == list(wanted):
            return True
        try:
            await self._api.merge(path, {"metadata": {**version, "ownerReferences": list(wanted) or None}})
        except ApiError as error:
            if not error.not_found and error.status != 409:
                raise
            log.info("%s has changed while its owner was being written: %s", path, error)
            return False
        return True


def _owners(found: Mapping[str, Any]) -> tuple[Owner, ...]:
    return tuple(found["metadata"].get("ownerReferences") or ())
