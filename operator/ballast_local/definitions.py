"""Registers CustomResourceDefinitions in the resource table, and sets their status."""

from ballast_local import meta
from ballast_local.errors import Obj
from ballast_local.resources import Registry, Resource, ScalePaths
from ballast_local.schema import apply_defaults
from ballast_local.store import Change, Store, encode

CRD_KEY = "customresourcedefinitions.apiextensions.k8s.io"


def rows_of(definition: Obj) -> list[Resource]:
    spec = definition["spec"]
    names = spec["names"]
    storage = next(version["name"] for version in spec["versions"] if version.get("storage"))
    rows: list[Resource] = []
    for version in spec["versions"]:
        if not version.get("served"):
            continue
        subresources = version.get("subresources") or {}
        scale = subresources.get("scale")
        rows.append(
            Resource(
                group=spec["group"],
                version=version["name"],
                plural=names["plural"],
                kind=names["kind"],
                namespaced=spec["scope"] == "Namespaced",
                singular=names["singular"],
                list_kind=names["listKind"],
                short_names=tuple(names.get("shortNames") or ()),
                categories=tuple(names.get("categories") or ()),
                status="status" in subresources,
                scale=ScalePaths(scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath"))
                if scale
                else None,
                schema=version["schema"]["openAPIV3Schema"],
                columns=tuple(version.get("additionalPrinterColumns") or ()),
                custom=True,
                storage_version=storage,
            )
        )
    return rows


class Definitions:
    """Keeps the resource table in sync with the stored definitions."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store, self._registry = store, registry

    def start(self) -> None:
        for entry in self._store.entries(CRD_KEY):
            self._register(entry.object())
        self._store.listen(CRD_KEY, self._changed)

    def _changed(self, change: Change) -> None:
        definition = change.entry.object()
        if change.kind == "DELETED":
            self._registry.remove(definition["spec"]["group"], definition["spec"]["names"]["plural"])
        else:
            self._register(definition)
            self._complete(definition)

    def _complete(self, definition: Obj) -> None:
        """Add the defaults of a changed definition to the objects that are already stored."""
        storage = next(version for version in definition["spec"]["versions"] if version.get("storage"))
        names, schema = definition["spec"]["names"], storage["schema"]["openAPIV3Schema"]
        for entry in list(self._store.entries(f"{names['plural']}.{definition['spec']['group']}")):
            obj = entry.object()
            apply_defaults(schema, obj)
            if encode(obj) != entry.encoded:
                self._store.write(entry.resource, obj)

    def _register(self, definition: Obj) -> None:
        spec = definition["spec"]
        self._registry.remove(spec["group"], spec["names"]["plural"])
        for row in rows_of(definition):
            self._registry.add(row)


def establish(definition: Obj) -> None:
    """Set the status Established: a definition is served as soon as it is stored."""
    status = definition.setdefault("status", {})
    status["acceptedNames"] = definition["spec"]["names"]
    stored = status.setdefault("storedVersions", [])
    storage = next(version["name"] for version in definition["spec"]["versions"] if version.get("storage"))
    if storage not in stored:
        stored.append(storage)
    now = meta.now()
    held = {one["type"]: one for one in status.get("conditions") or []}
    wanted = (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    )
    status["conditions"] = [
        held.get(kind)
        or {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}
        for kind, reason, message in wanted
    ]
