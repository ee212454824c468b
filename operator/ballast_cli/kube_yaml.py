"""YAML as Kubernetes takes it: what JSON can say, and each key once.

kubectl makes JSON of it, where a date or `12:30` is a text; the library's own loader makes a date and a number of
them. Of a key that stands twice the library would drop the first without a word.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

TIMESTAMP = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """Its constructors and what it takes for a date are this class's own."""


def _number(loader: _Loader, node: yaml.ScalarNode) -> Any:
    if ":" in node.value:  # to YAML 1.1 a number to the base of 60
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
    """Its documents. Raises yaml.YAMLError."""
    return [_as_json(document) for document in yaml.load_all(content, Loader=_Loader)]


def _as_json(document: Any) -> Any:
    try:
        return json.loads(json.dumps(document, allow_nan=False))
    except (TypeError, ValueError) as fault:
        raise yaml.YAMLError(f"JSON has no word for something in it: {fault}") from None
