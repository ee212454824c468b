"""Writes objects of the three custom resource kinds; nothing else does. Decides nothing.

A status is written only if it differs from the one observed, and only onto the resourceVersion that was observed: on a
conflict the caller observes again. The answer to a write goes into the cache at once, so the watch event that follows
it is a no-op.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ballast_operator.apply.kubernetes import ApiError, KubernetesApi, ballast_path, path_of
from ballast_operator.cache import Cache
from ballast_operator.logs import about
from ballast_operator.model import cluster as cluster_model
from ballast_operator.model import reassignment as reassignment_model
from ballast_operator.model import topic as topic_model
from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.fields import write
from ballast_operator.model.meta import API_VERSION, CLUSTER_LABEL, FINALIZER, MANAGED_BY, Key, Meta, owner_reference
from ballast_operator.model.reassignment import Reassignment
from ballast_operator.model.topic import KafkaTopic
from ballast_operator.status import difference

log = logging.getLogger(__name__)
Resource = KafkaCluster | KafkaTopic | Reassignment
MANAGER = "ballast-operator"


def plural_of(resource: Resource) -> str:
    if isinstance(resource, KafkaTopic):
        return topic_model.PLURAL
    return reassignment_model.PLURAL if isinstance(resource, Reassignment) else cluster_model.PLURAL


def kind_of(resource: Resource) -> str:
    if isinstance(resource, KafkaTopic):
        return topic_model.KIND
    return reassignment_model.KIND if isinstance(resource, Reassignment) else cluster_model.KIND


class Writer:
    """Writes, counts status writes, and tracks which objects are being written (`in_flight`)."""

    def __init__(self, api: KubernetesApi, cache: Cache) -> None:
        self._api = api
        self._cache = cache
        self.in_flight: set[tuple[str, Key]] = set()
        self.status_writes = 0

    async def write_status(self, resource: Resource, status: Any) -> bool:
        """Whether the object now has this status; False means that it was changed or deleted meanwhile."""
        patch = difference(write(resource.status), write(status))
        if not patch:
            return True
        self.status_writes += 1
        return await self._write(resource, "status", {"status": patch})

    async def set_finalizer(self, resource: Resource, wanted: bool) -> bool:
        """Add or remove our finalizer; False means that the object was changed or deleted meanwhile."""
        others = [one for one in resource.meta.finalizers if one != FINALIZER]
        finalizers = [*others, FINALIZER] if wanted else others
        return await self._write(resource, "", {"metadata": {"finalizers": finalizers}})

    async def _write(self, resource: Resource, sub: str, patch: Mapping[str, Any]) -> bool:
        plural, meta = plural_of(resource), resource.meta
        metadata = {**(patch.get("metadata") or {}), "resourceVersion": meta.resource_version, "uid": meta.uid}
        flight = (plural, meta.key)
        self.in_flight.add(flight)
        try:
            body = await self._api.merge(ballast_path(plural, meta.key, sub), {**patch, "metadata": metadata})
        except ApiError as error:
            if error.not_found or error.status == 409:
                where = about(kind_of(resource), meta.key)
                log.info("%s changed while it was being written: %s", where["object"], error.message, extra=where)
                return False
            raise
        finally:
            self.in_flight.discard(flight)
        if body.get("metadata", {}).get("uid"):
            self._put(resource, body)
        return True

    def _put(self, resource: Resource, body: Mapping[str, Any]) -> None:
        meta = body["metadata"]
        if meta.get("deletionTimestamp") and not meta.get("finalizers"):
            return
        if isinstance(resource, KafkaTopic):
            self._cache.put_topic(body)
        elif isinstance(resource, Reassignment):
            self._cache.put_reassignment(body)
        else:
            self._cache.clusters.put(body)

    async def create_reassignment(self, owner: Resource, name: str, spec: Mapping[str, Any], cluster: str) -> None:
        """Create a Reassignment owned by `owner`; an existing one of that name is left as it is."""
        body = {
            "apiVersion": API_VERSION,
            "kind": reassignment_model.KIND,
            "metadata": {
                "name": name,
                "namespace": owner.meta.namespace,
                "labels": {MANAGED_BY: MANAGER, CLUSTER_LABEL: cluster[:63]},
                "ownerReferences": [owner_reference(kind_of(owner), owner.meta)],
            },
            "spec": dict(spec),
        }
        path = path_of(API_VERSION, reassignment_model.PLURAL, owner.meta.namespace)
        try:
            self._cache.put_reassignment(await self._api.create(path, body))
        except ApiError as error:
            if not error.already_exists:
                raise

    async def delete_reassignment(self, reassignment: Reassignment) -> None:
        await self._api.delete(ballast_path(reassignment_model.PLURAL, reassignment.key), uid=reassignment.meta.uid)

    async def keep_config_map(self, meta: Meta, name: str, owner: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Create an owned ConfigMap, or update the existing one to this content."""
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "namespace": meta.namespace,
                "labels": {MANAGED_BY: MANAGER},
                "ownerReferences": [dict(owner)],
            },
            **data,
        }
        await self._api.apply(path_of("v1", "configmaps", meta.namespace, name), body)
