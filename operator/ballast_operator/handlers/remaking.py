"""A StatefulSet is made anew for other volumes: its claim templates cannot be changed. Its pods stay meanwhile.

What is to be there afterwards is noted before, on the ConfigMap with the cluster's identity: of an operator that is
killed between deletion and remaking nothing else would tell which brokers it adds, nor what people put on the set.
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


class Remaking:
    """The StatefulSets of one cluster; `apply` is the way to one."""

    def __init__(self, api: KubernetesApi, apply: Callable[[KafkaCluster, Object], Awaitable[None]]) -> None:
        self._api = api
        self._apply = apply
        self._notes: dict[str, str] = {}

    def read(self, identity: Mapping[str, Any]) -> None:
        """What the ConfigMap has of an operator before."""
        annotations = identity["metadata"].get("annotations") or {}
        self._notes = {key: text for key, text in annotations.items() if key.startswith(NOTES)}

    async def make(self, cluster: KafkaCluster, found: Object, wanted: Object) -> None:
        """Instead of the one that was found."""
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
        """What an operator before was about to make: it counts as there, so that it is made as it was to be."""
        note = self._noted(cluster, name)
        return None if note is None else note["set"]

    async def end(self, cluster: KafkaCluster, name: str, before: Object | None) -> None:
        """It is there: what people put on the former one is put on it. `before` is what was there until now: with the
        former one nothing has been made anew as yet."""
        note = self._noted(cluster, name)
        if note is None or (before is not None and before["metadata"]["uid"] == note["former"]):
            return
        patch = _lacking(note["others"], before or note["set"])
        if patch:
            await self._api.merge(_path_of(note["set"]), patch)
        await self._note(cluster, NOTES + name, None)

    async def forget(self, cluster: KafkaCluster) -> None:
        """Nothing is to be made anew any more."""
        for key in list(self._notes):
            await self._note(cluster, key, None)

    def _noted(self, cluster: KafkaCluster, name: str) -> Object | None:
        try:
            note: Object = json.loads(self._notes.get(NOTES + name, "{}"))
        except ValueError:  # somebody has changed it: then it is as if it were not there
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
        """Before this cycle ends: found without its set, a cluster would be laid out by its pods."""
        for _ in range(GONE_POLLS):
            if await self._api.find(path) is None:
                return
            await asyncio.sleep(GONE_POLL_SECONDS)
        raise ApiUnavailableError(f"{path} is still being deleted")


def _path_of(stateful_set: Object) -> str:
    meta = stateful_set["metadata"]
    return path_of("apps/v1", "statefulsets", meta["namespace"], meta["name"])


def _of_others(found: Object) -> Object:
    """What people put on the set and on its pods, as a patch: ours is what the new one is made with."""
    of_pods = {"metadata": {"annotations": _beside_ours(found, "spec", "template", "metadata", "annotations")}}
    return {"metadata": {"annotations": _beside_ours(found, "metadata", "annotations")}, "spec": {"template": of_pods}}


def _lacking(patch: Object, present: Object) -> Object:
    """What of a patch is not there as yet."""
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
