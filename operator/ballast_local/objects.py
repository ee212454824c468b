"""Creates, changes and deletes objects: the pipeline between a request and the store.

Guarantees: every operation, from reading the old version to storing the new one, runs without yielding to the event
loop, so requests never interleave; a refused request changes nothing. Only the loop's thread may call it. Callers await
durability (`Store.flush`).
"""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ballast_local import apply_fields, last_applied, meta
from ballast_local.builtin_defaults import without_job_marks
from ballast_local.builtin_shapes import check_shape
from ballast_local.errors import (
    MODIFIED,
    Obj,
    already_exists,
    bad_request,
    cause,
    conflict,
    forbidden,
    invalid,
    not_found,
)
from ballast_local.field_types import RootType
from ballast_local.resources import NO_GENERATION, Registry, Resource, storage_key
from ballast_local.store import Entry, Store, encode, entry_of
from ballast_local.strategy import Strategy


@dataclass(slots=True)
class Options:
    dry_run: bool = False
    manager: str = "unknown"
    force: bool = False
    field_validation: str = "Warn"
    warnings: list[str] | None = None

    def warn(self, text: str) -> None:
        if self.warnings is not None:
            self.warnings.append(text)


Change = Callable[[Obj], Obj]


class Objects:
    def __init__(self, store: Store, registry: Registry, strategy: Strategy) -> None:
        self.store = store
        self.registry = registry
        self._strategy = strategy

    # reading

    def entry(self, resource: Resource, namespace: str, name: str) -> Entry:
        found = self.store.get(storage_key(resource), namespace, name)
        if found is None:
            raise not_found(resource.group, resource.plural, name)
        return found

    def get(self, resource: Resource, namespace: str, name: str) -> Obj:
        return self._strategy.served(resource, self.entry(resource, namespace, name).object())

    # creating

    def create(
        self, resource: Resource, namespace: str, obj: Obj, options: Options, owned: list[Obj] | None = None
    ) -> Entry:
        """`owned` are the managedFields of an applied object; those in a client's object are ignored."""
        self._prepare(resource, namespace, obj)
        metadata = obj["metadata"]
        if not metadata.get("name"):
            metadata["name"] = self._free_name(resource, namespace, metadata)
        if metadata.get("resourceVersion") not in (None, "", "0"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        name = metadata["name"]
        if (held := self.store.get(storage_key(resource), namespace, name)) is not None:
            raise already_exists(resource.group, resource.plural, name, meta.is_deleting(held.object()))
        self._check_namespace(resource, namespace, name)
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"):
            metadata.pop(field, None)
        metadata["uid"] = meta.new_uid()
        metadata["creationTimestamp"] = meta.now()
        if resource.key not in NO_GENERATION:
            metadata["generation"] = 1
        metadata.pop("managedFields", None)
        if resource.status and resource.key != "nodes.":
            obj.pop("status", None)
        self._strategy.prepare(resource, obj, None, options.field_validation, options.warn)
        if owned is not None:
            metadata["managedFields"] = owned
        else:
            apply_fields.track(
                None, _own(resource, obj), [], RootType(resource.schema), options.manager, "", meta.now()
            )
        return self._file(resource, self._strategy.stored(resource, obj), options)

    def _prepare(self, resource: Resource, namespace: str, obj: Obj) -> None:
        if resource.custom and not obj.get("kind"):
            raise bad_request(
                f"the object provided is unrecognized (must be of type {resource.kind}): Object 'Kind' is missing"
            )
        if obj.get("kind") not in (None, "", resource.kind):
            raise bad_request(
                f"the kind of the object ({obj.get('kind')}) does not match the resource ({resource.kind})"
            )
        given = obj.get("apiVersion") or ""
        if given != resource.api_version and (given or resource.custom):
            raise bad_request(
                f"the API version in the data ({given}) does not match the expected API version"
                f" ({resource.api_version})"
            )
        obj["apiVersion"], obj["kind"] = resource.api_version, resource.kind
        metadata = obj.setdefault("metadata", {})
        if not isinstance(metadata, dict):
            raise bad_request("metadata must be an object")
        check_shape(resource, obj)
        if not resource.namespaced:
            metadata.pop("namespace", None)
            return
        if metadata.get("namespace") not in (None, "", namespace):
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        metadata["namespace"] = namespace

    def _free_name(self, resource: Resource, namespace: str, metadata: Obj) -> str:
        prefix = metadata.get("generateName")
        if not prefix:
            text = "Required value: name or generateName is required"
            causes = [cause("FieldValueRequired", text, "metadata.name")]
            raise invalid(resource.group, resource.kind, "", causes)
        while True:
            name = meta.generated_name(prefix)
            if self.store.get(storage_key(resource), namespace, name) is None:
                return name

    def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        if not resource.namespaced:
            return
        found = self.store.get("namespaces.", "", namespace)
        if found is None:
            raise not_found("", "namespaces", namespace)
        if found.object().get("status", {}).get("phase") == "Terminating":
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise forbidden(resource.group, resource.plural, name, why)

    def _check_node_ports(self, resource: Resource, obj: Obj) -> None:
        """Refuse a node port that another Service of any namespace has. A Service keeps those it has already."""
        metadata = obj["metadata"]
        taken: set[int] = set()
        own: set[int] = set()
        if any(port.get("nodePort") for port in obj["spec"].get("ports") or ()):
            for entry in self.store.entries(resource.key):
                mine = (entry.namespace, entry.name) == (metadata["namespace"], metadata["name"])
                ports = entry.object()["spec"].get("ports") or ()
                (own if mine else taken).update(port["nodePort"] for port in ports if port.get("nodePort"))
        causes = [
            cause(
                "FieldValueInvalid",
                f"Invalid value: {port['nodePort']}: provided port is already allocated",
                f"spec.ports[{index}].nodePort",
            )
            for index, port in enumerate(obj["spec"].get("ports") or ())
            if port.get("nodePort") in taken - own
        ]
        if causes:
            raise invalid(resource.group, resource.kind, metadata["name"], causes)

    def _file(self, resource: Resource, obj: Obj, options: Options) -> Entry:
        if resource.key == "services.":
            self._check_node_ports(resource, obj)
        if options.dry_run:
            return entry_of(storage_key(resource), obj, self.store.revision, encode(obj))
        return self.store.write(storage_key(resource), obj)

    # changing

    def update(
        self, resource: Resource, namespace: str, name: str, new: Obj, options: Options, subresource: str = ""
    ) -> Entry:
        self._prepare(resource, namespace, new)
        if resource.conditional and new["metadata"].get("resourceVersion") in (None, "", "0"):
            self.entry(resource, namespace, name)
            text = "Invalid value: 0: must be specified for an update"
            causes = [cause("FieldValueInvalid", text, "metadata.resourceVersion")]
            raise invalid(resource.group, resource.plural, name, causes)
        return self.change(resource, namespace, name, lambda _: new, options, subresource)

    def change(
        self, resource: Resource, namespace: str, name: str, change: Change, options: Options, subresource: str = ""
    ) -> Entry:
        """Replace the object by `change(old)`; the new version is checked like any update."""
        entry = self.entry(resource, namespace, name)
        old = self._strategy.served(resource, entry.object())
        new = change(copy.deepcopy(old))
        self._prepare(resource, namespace, new)
        given = new["metadata"].get("name")
        if not given:
            why = f"the name of the object ({name} based on URL) was undeterminable: name must be provided"
            raise bad_request(why)
        if given != name:
            raise bad_request(_other_name(given, name))
        self._check_preconditions(resource, name, old, new["metadata"])
        owned = _ownership(old, new, subresource)
        self._settle(resource, old, new, subresource)
        self._strategy.prepare(resource, new, old, options.field_validation, options.warn, subresource)
        apply_fields.track(old, new, owned, RootType(resource.schema), options.manager, subresource, meta.now())
        return self._file_change(resource, entry, old, new, options)

    def _check_preconditions(self, resource: Resource, name: str, old: Obj, wanted: Obj) -> None:
        version = wanted.get("resourceVersion")
        if version not in (None, "", "0", old["metadata"]["resourceVersion"]):
            raise conflict(resource.group, resource.plural, name, MODIFIED)
        uid = wanted.get("uid")
        if uid not in (None, "", old["metadata"]["uid"]):
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old['metadata']['uid']}"
            raise conflict(resource.group, resource.plural, name, why)

    def _settle(self, resource: Resource, old: Obj, new: Obj, subresource: str) -> None:
        """Restore everything that this kind of request may not change."""
        if subresource == "status":
            status = new.get("status")
            metadata = old["metadata"] | {
                "labels": new["metadata"].get("labels"),
                "annotations": new["metadata"].get("annotations"),
            }
            new.clear()
            new.update(copy.deepcopy(old))
            if not resource.custom:
                new["metadata"] = copy.deepcopy(metadata)
            new.pop("status", None)
            if status is not None:
                new["status"] = status
        elif resource.status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = copy.deepcopy(old["status"])
        had = set(old["metadata"].get("finalizers") or [])
        meta.keep_server_fields(new, old)
        if meta.is_deleting(old) and set(new["metadata"].get("finalizers") or []) - had:
            text = "Forbidden: no new finalizers can be added if the object is being deleted"
            causes = [cause("FieldValueForbidden", text, "metadata.finalizers")]
            raise invalid(resource.group, resource.kind, old["metadata"]["name"], causes)

    def _file_change(self, resource: Resource, entry: Entry, old: Obj, new: Obj, options: Options) -> Entry:
        if resource.key not in NO_GENERATION and _content(old) != _content(new):
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        if meta.is_deleting(new) and not new["metadata"].get("finalizers") and not _lingers(resource, new):
            if not options.dry_run:
                self._remove(entry)
            stored = self._strategy.stored(resource, new)
            return entry_of(storage_key(resource), stored, self.store.revision, encode(stored))
        if old == new:
            return entry
        return self._file(resource, self._strategy.stored(resource, new), options)

    def apply(
        self, resource: Resource, namespace: str, name: str, config: Obj, options: Options, subresource: str = ""
    ) -> tuple[Entry, bool]:
        """Server-side apply; the second value tells whether the object was created."""
        if (config.get("apiVersion"), config.get("kind")) != (resource.api_version, resource.kind):
            raise bad_request(f"invalid object type: {config.get('apiVersion', '/')}, Kind={config.get('kind', '')}")
        whole = copy.deepcopy(config)
        self._prepare(resource, namespace, config)
        if config["metadata"].get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        if config["metadata"].setdefault("name", name) != name:
            raise bad_request(_other_name(config["metadata"]["name"], name))
        self._strategy.check_applied(resource, config)
        kind = RootType(resource.schema)
        entry = self.store.get(storage_key(resource), namespace, name)
        if entry is None:
            if subresource:
                raise not_found(resource.group, resource.plural, name)
            config["metadata"].pop("resourceVersion", None)
            if uid := config["metadata"].get("uid"):
                why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                raise conflict(resource.group, resource.plural, name, why)
            empty: Obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {}}
            config = _only(config, subresource, resource)
            made = apply_fields.apply(empty, config, kind, options.manager, "", options.force, meta.now())
            return self.create(resource, namespace, made, options, made["metadata"].pop("managedFields", None)), True
        old = self._strategy.served(resource, entry.object())
        self._check_preconditions(resource, name, old, config["metadata"])
        config = _only(config, subresource, resource)
        live = copy.deepcopy(old)
        if "managedFields" not in live["metadata"]:
            mine = _own(resource, live)
            apply_fields.track(None, mine, [], kind, "before-first-apply", "", meta.now())
        from_client = options.manager == last_applied.KUBECTL and not subresource
        yielding = last_applied.yielding(old, kind) if from_client else set()
        new = apply_fields.apply(live, config, kind, options.manager, subresource, options.force, meta.now(), yielding)
        owned = new["metadata"].pop("managedFields", None)
        new = copy.deepcopy(new)
        if from_client:
            last_applied.remember(new, whole)
        self._settle(resource, old, new, subresource)
        self._strategy.prepare(resource, new, old, options.field_validation, options.warn, subresource)
        new["metadata"].pop("managedFields", None)
        if owned is not None:
            new["metadata"]["managedFields"] = owned
        return self._file_change(resource, entry, old, new, options), False

    # deleting

    def delete(
        self, resource: Resource, namespace: str, name: str, request: Obj, options: Options
    ) -> tuple[Entry, bool]:
        """Return the last version and whether it was removed: not while it has finalizers or a grace period."""
        entry = self.entry(resource, namespace, name)
        obj = self._strategy.served(resource, entry.object())
        self._check_preconditions(resource, name, obj, request.get("preconditions") or {})
        self._strategy.check_delete(resource, obj)
        if options.dry_run:
            return entry, True
        if request.get("propagationPolicy") and request.get("orphanDependents") is not None:
            text = "Invalid value: {}: orphanDependents and deletionPropagation cannot be both set"
            said = json.dumps(request["propagationPolicy"])
            causes = [cause("FieldValueInvalid", text.format(said), "propagationPolicy")]
            raise invalid("meta.k8s.io", "DeleteOptions", "", causes)
        policy = request.get("propagationPolicy") or ("Orphan" if request.get("orphanDependents") else "Background")
        if policy not in ("Background", "Foreground", "Orphan"):
            text = f'Unsupported value: "{policy}": supported values: "Foreground", "Background", "Orphan"'
            raise invalid(
                "meta.k8s.io", "DeleteOptions", "", [cause("FieldValueNotSupported", text, "propagationPolicy")]
            )
        if policy == "Orphan":
            self._orphan(obj["metadata"]["uid"])
        finalizers = list(obj["metadata"].get("finalizers") or [])
        if policy == "Foreground" and self.store.dependents(entry.uid) and "foregroundDeletion" not in finalizers:
            finalizers.append("foregroundDeletion")
        grace = self._strategy.grace_seconds(resource, obj, request.get("gracePeriodSeconds"))
        lingers = grace > 0 or resource.key == "namespaces."
        if not finalizers and not lingers:
            return self._remove(entry), True
        already = meta.is_deleting(obj)
        if (
            already
            and grace >= obj["metadata"].get("deletionGracePeriodSeconds", 0)
            and finalizers == (obj["metadata"].get("finalizers") or [])
        ):
            return entry, False
        obj["metadata"].setdefault("deletionTimestamp", self._strategy.deletion_time(grace))
        obj["metadata"]["deletionGracePeriodSeconds"] = grace
        if finalizers:
            obj["metadata"]["finalizers"] = finalizers
        if not already and resource.key not in NO_GENERATION:
            obj["metadata"]["generation"] = obj["metadata"].get("generation", 1) + 1
        if resource.key == "namespaces.":
            obj.setdefault("status", {})["phase"] = "Terminating"
        return self.store.write(storage_key(resource), self._strategy.stored(resource, obj)), False

    def finish_delete(self, resource: Resource, namespace: str, name: str) -> None:
        """Remove an object once a pod's processes or a namespace's content are gone, unless it has finalizers."""
        entry = self.store.get(storage_key(resource), namespace, name)
        if entry is None:
            return
        obj = entry.object()
        if obj["metadata"].get("finalizers"):
            if obj["metadata"].get("deletionGracePeriodSeconds"):
                obj["metadata"]["deletionGracePeriodSeconds"] = 0
                self.store.write(storage_key(resource), obj)
            return
        self._remove(entry)

    def _remove(self, entry: Entry) -> Entry:
        removed = self.store.remove(entry.resource, entry.namespace, entry.name)
        assert removed is not None
        return removed

    def _orphan(self, uid: str) -> None:
        for dependent in self.store.dependents(uid):
            obj = dependent.object()
            rest = [owner for owner in obj["metadata"]["ownerReferences"] if owner["uid"] != uid]
            obj["metadata"]["ownerReferences"] = rest
            if not rest:
                del obj["metadata"]["ownerReferences"]
            self.store.write(dependent.resource, obj)


def _other_name(given: str, name: str) -> str:
    return f"the name of the object ({given}) does not match the name on the URL ({name})"


def _content(obj: Obj) -> Obj:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status", "apiVersion")}


def _own(resource: Resource, obj: Obj) -> Obj:
    """The part of a new object that its creator owns: without the status, and a namespace's spec (its finalizer)."""
    others = ("status", "spec") if resource.key == "namespaces." else ("status",)
    own = {key: value for key, value in obj.items() if key not in others} if resource.status else obj
    return without_job_marks(own) if resource.key == "jobs.batch" else own


def _ownership(old: Obj, new: Obj, subresource: str) -> list[Obj]:
    """The managedFields to start from: a client may set them, and one empty entry clears them."""
    held: list[Obj] = old["metadata"].get("managedFields") or []
    given: list[Obj] = new["metadata"].get("managedFields") or []
    if given == [{}] and not subresource:
        return []
    readable = bool(given) and all(map(apply_fields.is_entry, given))
    return given if readable and not subresource else held


def _lingers(resource: Resource, obj: Obj) -> bool:
    """Whether deletion also waits for a pod's processes or a namespace's content."""
    if resource.key == "namespaces.":
        return True
    return resource.key == "pods." and bool(obj["metadata"].get("deletionGracePeriodSeconds"))


def _only(config: Obj, subresource: str, resource: Resource) -> Obj:
    """The part of an applied configuration that this endpoint (main or subresource) may change."""
    if subresource == "status":
        kept: Any = ("apiVersion", "kind", "metadata", "status")
        result = {key: value for key, value in config.items() if key in kept}
        result["metadata"] = {
            key: config["metadata"][key] for key in ("name", "namespace") if key in config["metadata"]
        }
        return result
    return {key: value for key, value in config.items() if key != "status"} if resource.status else config
