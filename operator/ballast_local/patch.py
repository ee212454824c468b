"""JSON patch, JSON merge patch and strategic merge patch: (object, patch) → new object. PURE."""

import copy
from typing import Any

from ballast_local.errors import ApiError, Obj, bad_request, not_implemented
from ballast_local.field_types import BuiltInType, FieldType, RootType


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


# JSON patch, RFC 6902


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def _pointer(text: Any) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise bad_request(f"a JSON patch path must begin with '/': {text!r}")
    return [_unescape(part) for part in text.split("/")[1:]]


def _failed(message: str) -> ApiError:
    return ApiError(422, "Invalid", f"the server rejected our request due to an error in our request: {message}")


def _index(part: str, limit: int) -> int:
    if not part.isdecimal() or int(part) >= limit:
        raise _failed(f"the index {part!r} is not in the list")
    return int(part)


def _walk(document: Any, parts: list[str]) -> Any:
    for part in parts:
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list):
            document = document[_index(part, len(document))]
        else:
            raise _failed(f"the path has no {part!r}")
    return document


def _add(document: Any, parts: list[str], value: Any) -> Any:
    if not parts:
        return value
    parent = _walk(document, parts[:-1])
    if isinstance(parent, list):
        position = len(parent) if parts[-1] == "-" else _index(parts[-1], len(parent) + 1)
        parent.insert(position, value)
    elif isinstance(parent, dict):
        parent[parts[-1]] = value
    else:
        raise _failed(f"cannot add at {'/'.join(parts)!r}")
    return document


def _remove(document: Any, parts: list[str]) -> Any:
    value = _walk(document, parts)
    parent = _walk(document, parts[:-1])
    if isinstance(parent, list):
        del parent[int(parts[-1])]
    else:
        del parent[parts[-1]]
    return value


def _found(document: Any, parts: list[str]) -> Any:
    """The value at a path; a missing member of an object is null."""
    parent = _walk(document, parts[:-1])
    return parent.get(parts[-1]) if parts and isinstance(parent, dict) else _walk(document, parts)


def _same(left: Any, right: Any) -> bool:
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def json_patch(target: Obj, operations: Any) -> Obj:
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    document: Any = copy.deepcopy(target)
    for operation in operations:
        if not isinstance(operation, dict):
            raise bad_request("an operation of a JSON patch is an object")
        name, parts = operation.get("op"), _pointer(operation.get("path"))
        if name == "add":
            document = _add(document, parts, copy.deepcopy(operation.get("value")))
        elif name == "remove":
            _remove(document, parts)
        elif name == "replace":
            # It also adds missing members of objects, like the library of the real API server.
            if parts and not isinstance(_walk(document, parts[:-1]), dict):
                _remove(document, parts)
            document = _add(document, parts, copy.deepcopy(operation.get("value")))
        elif name == "test":
            if not _same(_found(document, parts), operation.get("value")):
                raise _failed(f"testing path {operation['path']} failed")
        elif name == "copy":
            document = _add(document, parts, copy.deepcopy(_walk(document, _pointer(operation.get("from")))))
        elif name == "move":
            document = _add(document, parts, _remove(document, _pointer(operation.get("from"))))
        else:
            raise bad_request(f"unknown JSON patch operation {name!r}")
    if not isinstance(document, dict):
        raise bad_request("the JSON patch does not leave an object")
    return document


# strategic merge patch


def strategic_patch(target: Obj, patch: Obj) -> Obj:
    result: Obj = _strategic(target, patch, RootType(None))
    return result


def _strategic(target: Any, patch: Any, kind: FieldType) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    result = dict(target) if isinstance(target, dict) else {}
    if "$retainKeys" in patch:
        result = {key: value for key, value in result.items() if key in patch["$retainKeys"]}
    for key, value in patch.items():
        if key in ("$patch", "$retainKeys"):
            continue
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [item for item in result.get(name) or [] if item not in value]
        elif key.startswith("$setElementOrder/"):
            continue
        elif key.startswith("$"):
            raise not_implemented(f"the strategic merge directive {key!r}")
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _strategic_list(result.get(key) or [], value, kind.child(key))
        else:
            result[key] = _strategic(result.get(key), value, kind.child(key))
    for key, order in patch.items():
        if key.startswith("$setElementOrder/"):
            name = key.partition("/")[2]
            _reorder(result, target, name, order, kind.child(name))
    return result


def _strategic_list(target: list[Any], patch: list[Any], kind: FieldType) -> list[Any]:
    key = kind.merge_key if isinstance(kind, BuiltInType) else None
    if key is None:
        if kind.is_set:
            return _arranged(target + [item for item in patch if item not in target], patch, target, None)
        return copy.deepcopy(patch)
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [copy.deepcopy(item) for item in patch if "$patch" not in item]
    result = list(target)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        position = next((at for at, old in enumerate(result) if old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            if position is not None:
                del result[position]
        elif position is None:
            result.append(_strategic({}, item, kind.item()))
        else:
            result[position] = _strategic(result[position], item, kind.item())
    return _arranged(result, patch, target, key)


def _reorder(result: Obj, target: Any, name: str, order: list[Any], kind: FieldType) -> None:
    items = result.get(name)
    if isinstance(items, list):
        held = target.get(name) if isinstance(target, dict) else None
        key = kind.merge_key if isinstance(kind, BuiltInType) else None
        result[name] = _arranged(items, order, held if isinstance(held, list) else [], key)


def _arranged(items: list[Any], patch: list[Any], before: list[Any], key: str | None) -> list[Any]:
    """Order items: those of the patch as there; the others keep their place between them, and follow new ones."""

    def mark(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    wanted, held = [mark(item) for item in patch], [mark(item) for item in before]
    mine = sorted((item for item in items if mark(item) in wanted), key=lambda item: wanted.index(mark(item)))
    others = [item for item in items if mark(item) not in wanted]
    result: list[Any] = []
    while mine and others:
        first, other = mark(mine[0]), mark(others[0])
        earlier = first in held and other in held and held.index(other) < held.index(first)
        result.append((others if earlier else mine).pop(0))
    return result + mine + others
