"""Recreates a StatefulSet whose volumes change, since its claim templates are immutable. Its pods stay meanwhile.

The new set is noted first, on the ConfigMap with the cluster's identity: if the operator is killed between deletion and
creation, nothing else tells which brokers were being added, nor what people had put on the set.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ballast_operator.apply.kubernetes import FIELD_MANAGER, ApiUnavailableError, KubernetesApi, path_of
from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.meta import GROUP
from ballast_operator.resources import names

log = logging.getLogger(__name__)

NOTES = f"{GROUP}/made-anew-"
GONE_POLLS = 50
GONE_POLL_SECONDS = 0.2

Object = dict[str, Any]


class Recreation:
    """Recreates the StatefulSets of one cluster; `apply` applies one."""

    def __init__(self, api: KubernetesApi, apply: Callable[[KafkaCluster, Object], Awaitable[None]]) -> None:
        self._api = api
        self._apply = apply
        self._notes: dict[str, str] = {}

    def read(self, identity: Mapping[str, Any]) -> None:
        """Read the notes that an earlier operator process left on the ConfigMap."""
        annotations = identity["metadata"].get("annotations") or {}
        self._notes = {key: text for key, text in annotations.items() if key.startswith(NOTES)}

    async def make(self, cluster: KafkaCluster, found: Object, wanted: Object) -> None:
        """Replace the set that was found by the wanted one."""
        name, path = wanted["metadata"]["name"], _path_of(wanted)
        log.info("StatefulSet %s of %s is made anew, for other volumes", name, cluster.key)
        former = found["metadata"]["uid"]
        note = {"cluster": cluster.meta.uid, "former": former, "set": wanted, "others": _of_others(found)}
        await self._note(cluster, NOTES + name, json.dumps(note, sort_keys=True))
        await self._api.delete(path, uid=former, propagation="Orphan")
        await self._until_gone(path)
        await self._apply(cluster, wanted)
        await self.end(cluster, name, None)

    def begun(self, cluster: KafkaCluster, name: str) -> Object | None:
        """The set that an earlier process was about to create: it counts as existing, so it is created as noted."""
        note = self._noted(cluster, name)
        return None if note is None else note["set"]

    async def end(self, cluster: KafkaCluster, name: str, before: Object | None) -> None:
        """The new set exists: transfer to it what people had put on the former one. `before` is the set as it was
        found before the apply; if that is still the former one, it has not been recreated yet."""
        note = self._noted(cluster, name)
        if note is None or (before is not None and before["metadata"]["uid"] == note["former"]):
            return
        patch = _lacking(note["others"], before or note["set"])
        if patch:
            await self._api.merge(_path_of(note["set"]), patch)
        await self._note(cluster, NOTES + name, None)

    async def forget(self, cluster: KafkaCluster) -> None:
        """Delete all notes: no set has to be recreated any more."""
        for key in list(self._notes):
            await self._note(cluster, key, None)

    def _noted(self, cluster: KafkaCluster, name: str) -> Object | None:
        try:
            note: Object = json.loads(self._notes.get(NOTES + name, "{}"))
        except ValueError:  # somebody has edited it: ignore it
            return None
        return note if note.get("cluster") == cluster.meta.uid else None

    async def _note(self, cluster: KafkaCluster, key: str, text: str | None) -> None:
        if self._notes.get(key) == text:
            return
        path = path_of("v1", "configmaps", cluster.meta.namespace, names.identity(cluster))
        await self._api.merge(path, {"metadata": {"annotations": {key: text}}})
        self._notes.pop(key, None)
        if text is not None:
            self._notes[key] = text

    async def _until_gone(self, path: str) -> None:
        """Wait within this cycle: one that finds no set would derive the layout from the pods."""
        for _ in range(GONE_POLLS):
            if await self._api.find(path) is None:
                return
            await asyncio.sleep(GONE_POLL_SECONDS)
        raise ApiUnavailableError(f"{path} is still being deleted")


def _path_of(stateful_set: Object) -> str:
    meta = stateful_set["metadata"]
    return path_of("apps/v1", "statefulsets", meta["namespace"], meta["name"])


def _of_others(found: Object) -> Object:
    """The annotations that people put on the set and on its pods, as a patch; the new set comes with our own."""
    of_pods = {"metadata": {"annotations": _beside_ours(found, "spec", "template", "metadata", "annotations")}}
    return {"metadata": {"annotations": _beside_ours(found, "metadata", "annotations")}, "spec": {"template": of_pods}}


def _lacking(patch: Object, present: Object) -> Object:
    """The part of a patch that is not present yet."""
    left: Object = {}
    for key, value in patch.items():
        if not isinstance(value, dict):
            if key not in present:
                left[key] = value
        elif inner := _lacking(value, present.get(key) or {}):
            left[key] = inner
    return left


def _beside_ours(found: Object, *way: str) -> dict[str, str]:
    ours = [
        _at(entry.get("fieldsV1"), *(f"f:{key}" for key in way))
        for entry in found["metadata"].get("managedFields") or ()
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply"
    ]
    return {key: text for key, text in _at(found, *way).items() if not any(f"f:{key}" in keys for keys in ours)}


def _at(found: Any, *way: str) -> Object:
    for key in way:
        found = (found or {}).get(key)
    return found or {}
