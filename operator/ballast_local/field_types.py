"""How lists and maps of an object merge: by key, as a set, or atomically. PURE.

One table serves server-side apply, field ownership and strategic merge patches of the built-in kinds; for custom
resources the CRD's schema defines it.
"""

from typing import Any

from ballast_local.errors import Obj

# Field name → the keys of its items, for lists of the built-in kinds.
_LIST_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "conditions": ("type",),
    "imagePullSecrets": ("name",),
    "secrets": ("name",),
    "ownerReferences": ("uid",),
    "hostAliases": ("ip",),
    "podIPs": ("ip",),
    "hostIPs": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "managedFields": (),
}
_SETS = frozenset({"finalizers"})
_ATOMIC_MAPS = frozenset({"selector", "matchLabels", "nodeSelector", "fieldRef", "resourceFieldRef", "secretKeyRef",
                          "configMapKeyRef", "lastState", "involvedObject", "regarding", "related",
                          "roleRef"})  # fmt: skip


class FieldType:
    """The merge behaviour of one field of an object; by default maps merge and lists are atomic."""

    list_keys: tuple[str, ...] = ()
    is_set = False
    is_atomic_map = False

    def has_field(self, name: str) -> bool:
        """Whether the schema names this field; the keys of a map have no names there."""
        return False

    def child(self, name: str) -> "FieldType":
        return FieldType()

    def item(self) -> "FieldType":
        return FieldType()

    def default_for(self, key: str) -> Any:
        return None


class BuiltInType(FieldType):
    def __init__(self, name: str = "", parent: str = "") -> None:
        self._name, self._parent = name, parent
        self.list_keys = self._keys()
        self.is_set = name in _SETS
        selector = name == "selector" and parent in ("spec", "")
        self.is_atomic_map = name in _ATOMIC_MAPS and (name != "selector" or selector)

    def _keys(self) -> tuple[str, ...]:
        if self._name == "ports":
            if self._parent in ("containers", "initContainers"):
                return ("containerPort", "protocol")
            return ("port", "protocol") if self._parent == "spec" else ()
        return _LIST_KEYS.get(self._name, ())

    def has_field(self, name: str) -> bool:
        return True

    def child(self, name: str) -> FieldType:
        return BuiltInType(name, self._name)

    def item(self) -> FieldType:
        return BuiltInType("", self._name) if not self.list_keys else _Item(self._name)

    def default_for(self, key: str) -> Any:
        return "TCP" if key == "protocol" else None

    @property
    def merge_key(self) -> str | None:
        """The key by which strategic merge patches match items."""
        return self.list_keys[0] if self.list_keys else None


class _Item(BuiltInType):
    """An item of a keyed list: its children see the list's name as their parent."""

    def __init__(self, list_name: str) -> None:
        super().__init__("", "")
        self._list_name = list_name

    def child(self, name: str) -> FieldType:
        return BuiltInType(name, self._list_name)


class SchemaType(FieldType):
    """A field of a custom resource, described by its structural schema."""

    def __init__(self, schema: Obj) -> None:
        self._schema = schema
        kind = schema.get("x-kubernetes-list-type")
        self.list_keys = tuple(schema.get("x-kubernetes-list-map-keys") or ()) if kind == "map" else ()
        self.is_set = kind == "set"
        self.is_atomic_map = schema.get("x-kubernetes-map-type") == "atomic"

    def has_field(self, name: str) -> bool:
        return name in (self._schema.get("properties") or {})

    def child(self, name: str) -> FieldType:
        properties = self._schema.get("properties") or {}
        if name in properties:
            return SchemaType(properties[name])
        more = self._schema.get("additionalProperties")
        return SchemaType(more) if isinstance(more, dict) else FieldType()

    def item(self) -> FieldType:
        items = self._schema.get("items")
        return SchemaType(items) if isinstance(items, dict) else FieldType()

    def default_for(self, key: str) -> Any:
        items = self._schema.get("items") or {}
        return ((items.get("properties") or {}).get(key) or {}).get("default")


class RootType(FieldType):
    """The root of an object: metadata is the same for all kinds, the rest depends on the kind."""

    def __init__(self, schema: Obj | None) -> None:
        self.custom = schema is not None
        self._rest: FieldType = BuiltInType() if schema is None else SchemaType(schema)

    def child(self, name: str) -> FieldType:
        return BuiltInType("metadata") if name == "metadata" else self._rest.child(name)
