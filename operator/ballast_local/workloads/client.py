"""The controllers' access to objects: like an API client, without HTTP. Only the loop's thread may use it."""

import hashlib
from collections.abc import Callable
from typing import Any

from ballast_local import meta
from ballast_local.errors import ApiError, Obj
from ballast_local.objects import Objects, Options
from ballast_local.resources import Registry, Resource
from ballast_local.selectors import selector_matches
from ballast_local.store import Listener, Store


class Client:
    def __init__(self, store: Store, registry: Registry, objects: Objects, manager: str) -> None:
        self.store, self._registry, self._objects, self._manager = store, registry, objects, manager

    def resource(self, key: str) -> Resource:
        found = self._registry.by_key(key)
        assert found is not None, key
        return found

    def is_served(self, key: str) -> bool:
        return self._registry.by_key(key) is not None

    def _options(self) -> Options:
        return Options(manager=self._manager, force=True, field_validation="Ignore")

    def get(self, key: str, namespace: str, name: str) -> Obj | None:
        entry = self.store.get(key, namespace, name)
        return entry.object() if entry is not None else None

    def find(self, key: str, namespace: str = "", selector: Obj | None = None) -> list[Obj]:
        entries = self.store.entries(key, namespace)
        if selector is None:
            return [entry.object() for entry in entries]
        return [entry.object() for entry in entries if selector_matches(selector, entry.labels)]

    def owned(self, uid: str, key: str) -> list[Obj]:
        found = [entry.object() for entry in self.store.dependents(uid) if entry.resource == key]
        return [obj for obj in found if (meta.controller_of(obj) or {}).get("uid") == uid]

    def create(self, key: str, namespace: str, obj: Obj) -> Obj:
        return self._objects.create(self.resource(key), namespace, obj, self._options()).object()

    def change(
        self, key: str, namespace: str, name: str, change: Callable[[Obj], None], subresource: str = ""
    ) -> Obj | None:
        """Change the object in place; returns the new version, or None if the object is gone."""

        def changed(old: Obj) -> Obj:
            change(old)
            return old

        try:
            row = self.resource(key)
            return self._objects.change(row, namespace, name, changed, self._options(), subresource).object()
        except ApiError as refusal:
            if refusal.code == 404:
                return None
            raise

    def set_status(self, key: str, namespace: str, name: str, status: Obj) -> None:
        """Write the status if it differs from the stored one."""
        held = self.get(key, namespace, name)
        if held is not None and held.get("status") != status:
            self.change(key, namespace, name, lambda obj: obj.update(status=status), "status")

    def delete(self, key: str, namespace: str, name: str, request: Obj | None = None) -> None:
        try:
            self._objects.delete(self.resource(key), namespace, name, request or {}, self._options())
        except ApiError as refusal:
            if refusal.code != 404:
                raise

    def finish_delete(self, key: str, namespace: str, name: str) -> None:
        self._objects.finish_delete(self.resource(key), namespace, name)

    def listen(self, key: str, listener: Listener) -> None:
        self.store.listen(key, listener)

    def event(self, about: Obj, kind: str, reason: str, message: str) -> None:
        """Record an event about an object; a repeated event only increments its count."""
        metadata = about["metadata"]
        namespace = metadata.get("namespace") or "default"
        digest = hashlib.sha256(f"{metadata['uid']}{kind}{reason}{message}".encode()).hexdigest()[:16]
        name, now = f"{metadata['name'][:200].rstrip('-.')}.{digest}", meta.now()

        def again(obj: Obj) -> None:
            obj["count"] = obj.get("count", 1) + 1
            obj["lastTimestamp"] = now

        try:
            if self.change("events.", namespace, name, again) is None:
                self.create("events.", namespace, self._event(about, name, kind, reason, message, now))
        except ApiError as refusal:
            if refusal.code not in (403, 404):
                raise

    def _event(self, about: Obj, name: str, kind: str, reason: str, message: str, now: str) -> Obj:
        metadata = about["metadata"]
        involved: dict[str, Any] = {"apiVersion": about["apiVersion"], "kind": about["kind"], "name": metadata["name"],
                                    "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}  # fmt: skip
        if metadata.get("namespace"):
            involved["namespace"] = metadata["namespace"]
        return {
            "metadata": {"name": name},
            "involvedObject": involved,
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": self._manager, "host": "local"},
            "reportingComponent": self._manager,
            "reportingInstance": "local",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
