"""Loads YAML as Kubernetes does: only what JSON can express, and without duplicate keys.

kubectl converts YAML to JSON, where a date or `12:30` is a string; the library's own loader turns them into a date and
a number. Of duplicate keys the library would silently drop the first.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

TIMESTAMP = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """A class of our own, so that its constructors and resolvers can differ from SafeLoader's."""


def _number(loader: _Loader, node: yaml.ScalarNode) -> Any:
    if ":" in node.value:  # a base-60 number in YAML 1.1
        return node.value
    return loader.construct_yaml_float(node) if node.tag.endswith("float") else loader.construct_yaml_int(node)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Any:
    seen: set[tuple[str, str]] = set()
    for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
        if (key.tag, key.value) in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} is there twice", key.start_mark)
        seen.add((key.tag, key.value))
    return loader.construct_yaml_map(node)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor("tag:yaml.org,2002:int", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def yaml_documents(content: bytes) -> list[Any]:
    """Parse all documents. Raises yaml.YAMLError."""
    return [_as_json(document) for document in yaml.load_all(content, Loader=_Loader)]


def _as_json(document: Any) -> Any:
    try:
        return json.loads(json.dumps(document, allow_nan=False))
    except (TypeError, ValueError) as fault:
        raise yaml.YAMLError(f"JSON has no word for something in it: {fault}") from None
