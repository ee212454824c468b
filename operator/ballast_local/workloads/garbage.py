"""Garbage collection: deletes dependents of deleted owners, and the content of deleted namespaces and definitions."""

from collections.abc import Iterable

from ballast_local import meta
from ballast_local.errors import Obj
from ballast_local.store import Change, Entry
from ballast_local.workloads.client import Client
from ballast_local.workloads.controller import Controller, Key


class GarbageCollector(Controller):
    """Deletes dependents. Keys are (uid of an owner that is gone or in foreground deletion, "")."""

    def __init__(self, client: Client, resources: Iterable[str]) -> None:
        super().__init__(client)
        self._listened: set[str] = set()
        self._resources = list(resources)

    def start(self) -> None:
        for resource in self._resources:
            self.follow(resource)
        super().start()
        for resource in self.client.store.resources():
            for entry in self.client.store.entries(resource):
                for key in self._keys(entry, False):
                    self.enqueue(key)

    def follow(self, resource: str) -> None:
        """Listen to a resource; also called for those that a new definition adds."""
        if resource not in self._listened:
            self._listened.add(resource)
            self.client.listen(resource, self._changed)

    def keys_of(self, change: Change) -> Iterable[Key]:
        return self._keys(change.entry, change.kind == "DELETED")

    def _keys(self, entry: Entry, gone: bool) -> Iterable[Key]:
        if gone or b'"foregroundDeletion"' in entry.encoded:
            yield entry.uid, ""
        for owner in entry.owners:
            above = self.client.store.by_uid(owner)
            if above is None or (gone and b'"foregroundDeletion"' in above.encoded):
                yield owner, ""

    def reconcile(self, namespace: str, name: str) -> float | None:
        uid = namespace
        owner = self.client.store.by_uid(uid)
        if owner is None:
            for dependent in self.client.store.dependents(uid):
                self._owner_gone(dependent)
            return None
        obj = owner.object()
        if not meta.is_deleting(obj) or "foregroundDeletion" not in (obj["metadata"].get("finalizers") or []):
            return None
        blocking = False
        for dependent in self.client.store.dependents(uid):
            child = dependent.object()
            references = child["metadata"].get("ownerReferences") or []
            rest = [one for one in references if one["uid"] != uid]
            if any(self._stays(one["uid"]) for one in rest):
                self._keep(dependent, rest)
                continue
            blocking |= any(one["uid"] == uid and one.get("blockOwnerDeletion") for one in references)
            if not meta.is_deleting(child):
                request = {"propagationPolicy": "Foreground"}
                self.client.delete(dependent.resource, dependent.namespace, dependent.name, request)
        if not blocking or not self.client.store.dependents(uid):
            self.client.change(owner.resource, owner.namespace, owner.name, _drop_foreground)
        return None

    def _owner_gone(self, dependent: Entry) -> None:
        obj = dependent.object()
        if meta.is_deleting(obj):
            return
        references = obj["metadata"].get("ownerReferences") or []
        alive = [one for one in references if self.client.store.by_uid(one["uid"]) is not None]
        if not alive:
            request = {"propagationPolicy": "Background", "preconditions": {"uid": dependent.uid}}
            self.client.delete(dependent.resource, dependent.namespace, dependent.name, request)
        else:
            self._keep(dependent, alive)

    def _stays(self, uid: str) -> bool:
        """Whether the owner keeps its dependents: it exists and is not in foreground deletion."""
        owner = self.client.store.by_uid(uid)
        return owner is not None and b'"foregroundDeletion"' not in owner.encoded

    def _keep(self, dependent: Entry, references: list[Obj]) -> None:
        self.client.change(
            dependent.resource, dependent.namespace, dependent.name,
            lambda held: held["metadata"].update(ownerReferences=references),
        )  # fmt: skip


def _drop_foreground(obj: Obj) -> None:
    obj["metadata"]["finalizers"] = [one for one in obj["metadata"]["finalizers"] if one != "foregroundDeletion"]


class NamespaceController(Controller):
    """Deletes the content of a namespace that is being deleted, then removes the namespace."""

    primary = ("namespaces.",)
    kind = "Namespace"

    def reconcile(self, namespace: str, name: str) -> float | None:
        obj = self.client.get("namespaces.", "", name)
        if obj is None or not meta.is_deleting(obj):
            return None
        left: dict[str, int] = {}
        # Objects left by a definition whose finalizer was removed cannot be deleted, and must not block the namespace.
        for resource in filter(self.client.is_served, self.client.store.resources()):
            for entry in list(self.client.store.entries(resource, name)):
                if not meta.is_deleting(entry.object()):
                    self.client.delete(resource, name, entry.name)
                if self.client.store.get(resource, name, entry.name) is not None:
                    left[resource] = left.get(resource, 0) + 1
        if left:
            self._report(name, left)
            return 0.2
        self.client.finish_delete("namespaces.", "", name)
        return None

    def _report(self, name: str, left: dict[str, int]) -> None:
        listed = ", ".join(f"{resource} has {count} resource instances" for resource, count in sorted(left.items()))
        message = f"Some resources are remaining: {listed}"

        def report(obj: Obj) -> None:
            conditions = obj.setdefault("status", {}).setdefault("conditions", [])
            held = next((one for one in conditions if one["type"] == "NamespaceContentRemaining"), None)
            if held is None:
                held = {"type": "NamespaceContentRemaining", "lastTransitionTime": meta.now()}
                conditions.append(held)
            held.update(status="True", reason="SomeResourcesRemain", message=message)

        self.client.change("namespaces.", "", name, report, "status")


class DefinitionController(Controller):
    """Deletes the objects of a definition before the definition, with the same finalizer as Kubernetes."""

    primary = ("customresourcedefinitions.apiextensions.k8s.io",)

    def reconcile(self, namespace: str, name: str) -> float | None:
        definition = self.client.get(self.primary[0], "", name)
        finalizer = "customresourcecleanup.apiextensions.k8s.io"
        if definition is None:
            return None
        held = definition["metadata"].get("finalizers") or []
        if not meta.is_deleting(definition):
            if finalizer not in held:
                self.client.change(
                    self.primary[0], "", name, lambda obj: obj["metadata"].update(finalizers=[*held, finalizer])
                )
            return None
        if finalizer not in held:
            return None
        key = name.partition(".")[0] + "." + name.partition(".")[2]
        for entry in list(self.client.store.entries(key)):
            if not meta.is_deleting(entry.object()):
                self.client.delete(key, entry.namespace, entry.name)
        if self.client.store.count(key):
            return 0.2
        rest = [one for one in held if one != finalizer]
        self.client.change(self.primary[0], "", name, lambda obj: obj["metadata"].update(finalizers=rest))
        return None
