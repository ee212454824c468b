"""Sets of field paths, and their encoding in metadata.managedFields. PURE.

A path is a tuple of the elements that fieldsV1 uses: `f:name`, `k:{"name":"x"}` and `v:"x"`.
"""

import json
from collections.abc import Iterable
from typing import Any

from ballast_local.errors import Obj
from ballast_local.field_types import FieldType

Path = tuple[str, ...]
FieldSet = set[Path]


def item_element(item: Any, kind: FieldType) -> str | None:
    """The path element of an item of a set or a keyed list; None if the item lacks a key."""
    if kind.is_set:
        return "v:" + json.dumps(item, separators=(",", ":"))
    keys: Obj = {}
    for key in kind.list_keys:
        value = item.get(key) if isinstance(item, dict) else None
        value = kind.default_for(key) if value is None else value
        if value is None:
            return None
        keys[key] = value
    return "k:" + json.dumps(keys, separators=(",", ":"), sort_keys=True)


def collect(value: Any, kind: FieldType, path: Path, found: dict[Path, Any]) -> None:
    """Collect all leaves of a value, and the items of its sets and keyed lists, with their values."""
    if isinstance(value, dict) and value and not kind.is_atomic_map:
        for name, member in value.items():
            collect(member, kind.child(name), (*path, "f:" + name), found)
    elif isinstance(value, list) and value and (kind.list_keys or kind.is_set):
        item_kind = kind.item()
        for item in value:
            element = item_element(item, kind)
            if element is None:
                found[path] = value
                return
            found[(*path, element)] = item if kind.is_set else None
            if not kind.is_set:
                collect(item, item_kind, (*path, element), found)
    elif path:
        found[path] = value


def leaves(value: Obj, kind: FieldType) -> dict[Path, Any]:
    found: dict[Path, Any] = {}
    collect(value, kind, (), found)
    return found


def encode_set(paths: Iterable[Path]) -> Obj:
    root: Obj = {}
    for path in sorted(paths):
        node = root
        for element in path:
            node = node.setdefault(element, {})
        node["."] = {}
    return _tidy(root)


def _tidy(node: Obj) -> Obj:
    """Drop the "." of leaves: it marks only members that have members below as well."""
    if node.keys() == {"."}:
        return {}
    return {name: {} if name == "." else _tidy(child) for name, child in node.items()}


def decode_set(fields: Obj) -> FieldSet:
    found: FieldSet = set()

    def walk(node: Obj, path: Path) -> None:
        if not node and path:
            found.add(path)
        for name, child in node.items():
            if name == ".":
                found.add(path)
            else:
                walk(child, (*path, name))

    walk(fields, ())
    return found


def describe(path: Path) -> str:
    """A path in readable form: .spec.containers[name="x"].image"""
    text = ""
    for element in path:
        if element.startswith("f:"):
            text += "." + element[2:]
        elif element.startswith("k:"):
            keys = json.loads(element[2:])
            text += "[" + ",".join(f"{name}={json.dumps(value)}" for name, value in keys.items()) + "]"
        else:
            text += f"[={element[2:]}]"
    return text
