"""Server-side apply and field ownership. PURE.

`apply` merges a configuration into the live object, drops fields that the manager no longer applies, and refuses to
overwrite what others own unless forced. `track` records the owners of fields changed by other requests.
"""

import copy
from typing import Any

from ballast_local.errors import ApiError, Obj
from ballast_local.field_sets import (
    FieldSet,
    Path,
    decode_set,
    describe,
    encode_set,
    item_element,
    leaves,
)
from ballast_local.field_types import FieldType, RootType

# Fields set by the server, which no manager owns.
_UNOWNED: frozenset[Path] = frozenset(
    {("f:apiVersion",), ("f:kind",), ("f:metadata",)}
    | {
        ("f:metadata", "f:" + name)
        for name in ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "selfLink",
                     "deletionTimestamp", "deletionGracePeriodSeconds")
    }
)  # fmt: skip


def owned_leaves(obj: Obj, kind: FieldType) -> dict[Path, Any]:
    found = leaves({key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}, kind)
    ledger = ("f:metadata", "f:managedFields")
    return {path: value for path, value in found.items() if path not in _UNOWNED and path[:2] != ledger}


# Maps of the built-in kinds that can be owned; all other parents of their fields are always present and have no owner.
_BUILT_IN_MAPS = frozenset({"f:metadata", "f:data", "f:binaryData"})


def _with_branches(found: dict[Path, Any], custom: bool) -> dict[Path, Any]:
    """Add the maps and lists above the leaves: whoever creates the first member of a map owns the map as well."""
    result = dict(found)
    for path in found:
        if custom or path[0] in _BUILT_IN_MAPS:
            for length in range(2 if path[0] == "f:metadata" else 1, len(path)):
                result.setdefault(path[:length], None)
    return result


class Ledger:
    """metadata.managedFields, decoded."""

    def __init__(self, entries: list[Obj]) -> None:
        self.sets: dict[tuple[str, str, str], FieldSet] = {}
        self._facts: dict[tuple[str, str, str], Obj] = {}
        for entry in entries:
            key = (entry.get("manager", ""), entry.get("operation", "Update"), entry.get("subresource", ""))
            self.sets[key] = decode_set(entry.get("fieldsV1") or {})
            self._facts[key] = entry

    def versions(self) -> dict[tuple[str, str, str], str]:
        """The part of a conflict's message that names the API version of an updating manager."""
        return {key: f" using {fact.get('apiVersion')}" for key, fact in self._facts.items() if key[1] == "Update"}

    def entries(self, touched: tuple[str, str, str], api_version: str, now: str) -> list[Obj]:
        result: list[Obj] = []
        for key, paths in self.sets.items():
            if not paths:
                continue
            fact = self._facts.get(key)
            if fact is not None and decode_set(fact.get("fieldsV1") or {}) == paths:
                result.append(fact)
                continue
            manager, operation, subresource = key
            entry: Obj = {
                "manager": manager,
                "operation": operation,
                "apiVersion": api_version,
                "time": now if key == touched or fact is None else fact.get("time", now),
                "fieldsType": "FieldsV1",
                "fieldsV1": encode_set(paths),
            }
            if subresource:
                entry["subresource"] = subresource
            result.append(entry)
        return result


def is_entry(value: Any) -> bool:
    """Whether a client's entry of managedFields is well-formed."""
    return (
        isinstance(value, dict)
        and value.get("operation") in ("Apply", "Update")
        and value.get("fieldsType") == "FieldsV1"
        and isinstance(value.get("fieldsV1"), dict)
    )


def track(
    old: Obj | None, new: Obj, owned: list[Obj], kind: FieldType, manager: str, subresource: str, now: str
) -> None:
    """Set new's managedFields, starting from `owned`, after an update, patch or create by `manager`.

    If an object's managedFields were cleared, nothing is tracked until it is applied."""
    ledger = Ledger(owned)
    custom = isinstance(kind, RootType) and kind.custom
    before = _with_branches(owned_leaves(old, kind), custom) if old else {}
    after = _with_branches(owned_leaves(new, kind), custom)
    key = (manager, "Update", subresource)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    removed = before.keys() - after.keys()
    if owned or old is None:
        for other, paths in ledger.sets.items():
            paths -= removed
            if other != key:
                paths -= changed
        if changed:
            ledger.sets[key] = ledger.sets.get(key, set()) | changed
    _set_entries(new, ledger.entries(key, new["apiVersion"], now))


def _set_entries(obj: Obj, entries: list[Obj]) -> None:
    obj["metadata"].pop("managedFields", None)
    if entries:
        obj["metadata"]["managedFields"] = entries


def apply(
    live: Obj, config: Obj, kind: FieldType, manager: str, subresource: str, force: bool, now: str,
    yielding: FieldSet | None = None,
) -> Obj:  # fmt: skip
    """Return the merged object with managedFields; raises a Conflict. `yielding` fields are taken over without one."""
    ledger = Ledger(live.get("metadata", {}).get("managedFields") or [])
    key = (manager, "Apply", subresource)
    wanted = owned_leaves(config, kind)
    current = owned_leaves(live, kind)
    conflicts: dict[tuple[str, str, str], list[Path]] = {}
    for other, paths in ledger.sets.items():
        if other == key:
            continue
        fought = [path for path, value in wanted.items() if _owns(paths, path) and _changes(path, value, current)]
        refused = [path for path in fought if path not in (yielding or ())]
        if refused and not force:
            conflicts[other] = refused
        for path in fought:
            paths -= {mine for mine in paths if mine[: len(path)] == path}
    if conflicts:
        raise _conflict(conflicts, ledger.versions())
    merged: Obj = _merge(live, config, kind)
    before = ledger.sets.get(key, set())
    others = set().union(*(paths for other, paths in ledger.sets.items() if other != key))
    given_up = _with_parents(before - wanted.keys(), kind)
    dropped = {path for path in given_up if not any(one[: len(path)] == path for one in others | wanted.keys())}
    merged = _drop(merged, kind, dropped)
    after = owned_leaves(merged, kind)
    ledger.sets[key] = set(wanted)
    for other, paths in ledger.sets.items():
        if other != key:
            paths &= after.keys() | {path for path in paths if _present(path, after)}
    merged["metadata"] = dict(merged["metadata"])
    _set_entries(merged, ledger.entries(key, config["apiVersion"], now))
    return merged


def _with_parents(paths: FieldSet, kind: FieldType) -> FieldSet:
    """Add the fields above them: when nobody owns anything in one, it goes as a whole, with its defaults."""
    result = set(paths)
    for path in paths:
        parent = kind
        for length, element in enumerate(path[:-1], 1):
            name = element.removeprefix("f:")
            if name == element:
                parent = parent.item()
                continue
            if length > 1 and parent.has_field(name):
                result.add(path[:length])
            parent = parent.child(name)
    return result


_ABSENT = object()


def _owns(paths: FieldSet, path: Path) -> bool:
    return path in paths and not path[-1].startswith("k:")


def _changes(path: Path, value: Any, current: dict[Path, Any]) -> bool:
    if not value and isinstance(value, (dict, list)) and path not in current:
        return not _present(path, current)  # applying an empty map or list does not change one with members
    return bool(current.get(path, _ABSENT) != value)


def _present(path: Path, after: dict[Path, Any]) -> bool:
    return any(one[: len(path)] == path for one in after)


def _conflict(conflicts: dict[tuple[str, str, str], list[Path]], versions: dict[tuple[str, str, str], str]) -> ApiError:
    """A conflict with the text and order of the real API server, which users and kubectl's hints rely on."""
    causes: list[Obj] = []
    told: list[str] = []
    for key in sorted(conflicts):
        manager, _, subresource = key
        who = f'"{manager}"' + (f' with subresource "{subresource}"' if subresource else "") + versions.get(key, "")
        fields = [describe(path) for path in sorted(conflicts[key], key=lambda path: (len(path), path))]
        causes += [
            {"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": field} for field in fields
        ]
        told += [f"conflicts with {who}:", *(f"- {field}" for field in fields)]
    if len(causes) == 1:
        listed = f"1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        listed = f"{len(causes)} conflicts: " + "\n".join(told)
    return ApiError(409, "Conflict", f"Apply failed with {listed}", {"causes": causes})


def _merge(live: Any, config: Any, kind: FieldType) -> Any:
    if isinstance(config, dict) and isinstance(live, dict) and not kind.is_atomic_map:
        result = dict(live)
        for name, value in config.items():
            result[name] = _merge(live.get(name), value, kind.child(name))
        return result
    if isinstance(config, list) and isinstance(live, list) and (kind.list_keys or kind.is_set):
        return _merge_list(live, config, kind)
    return copy.deepcopy(config)


def _merge_list(live: list[Any], config: list[Any], kind: FieldType) -> list[Any]:
    """Merge in the order of the configuration; items only in `live` keep their place between the shared ones."""
    mine = [(item_element(item, kind), item) for item in config]
    theirs = [(item_element(item, kind), item) for item in live]
    wanted, held = dict(mine), dict(reversed(theirs))
    if None in wanted or None in held:
        return copy.deepcopy(config)
    shared = iter([element for element, _ in mine if element in held])
    due = next(shared, None)
    done: set[str | None] = set()
    result: list[Any] = []
    left = right = 0
    while left < len(theirs) or right < len(mine):
        if left < len(theirs):
            element, item = theirs[left]
            if element not in wanted:
                result.append(item)
                left += 1
                continue
            if element in done or (right < len(mine) and element not in (due, mine[right][0])):
                left += 1  # already merged, or merged later
                continue
        element, item = mine[right]
        result.append(_merge(held[element], item, kind.item()) if element in held else copy.deepcopy(item))
        done.add(element)
        due = next(shared, None) if element == due else due
        right += 1
    return result


def duplicate(config: Any, kind: FieldType, path: Path = ()) -> Path | None:
    """The path of the first duplicate item in a list with unique keys or values."""
    if isinstance(config, dict) and not kind.is_atomic_map:
        found = (duplicate(value, kind.child(name), (*path, "f:" + name)) for name, value in config.items())
        return next(filter(None, found), None)
    if not isinstance(config, list) or not (kind.list_keys or kind.is_set):
        return None
    seen: set[str] = set()
    for item in config:
        element = item_element(item, kind)
        if element is None:
            return None
        below = (*path, element)
        if element in seen:
            return below
        seen.add(element)
        if inside := duplicate(item, kind.item(), below):
            return inside
    return None


def _drop(value: Any, kind: FieldType, paths: set[Path], path: Path = ()) -> Any:
    """The value without the given leaves; maps and lists that become empty are removed, too."""
    if not paths:
        return value
    if isinstance(value, dict) and not kind.is_atomic_map:
        result: Obj = {}
        for name, member in value.items():
            below = (*path, "f:" + name)
            if below in paths:
                continue
            if not any(one[: len(below)] == below for one in paths):
                result[name] = member
                continue
            rest = _drop(member, kind.child(name), paths, below)
            if rest or not member:
                result[name] = rest
        return result
    if isinstance(value, list) and (kind.list_keys or kind.is_set):
        kept = []
        for item in value:
            below = (*path, item_element(item, kind) or "")
            if below not in paths:
                kept.append(_drop(item, kind.item(), paths, below))
        return kept
    return value
