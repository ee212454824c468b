"""Reads the schemas of the built-in kinds from the models of the installed Kubernetes client library.

The library has the type and description of every field; its source is parsed as text, each model when first needed,
because importing all of it costs a second and tens of megabytes. Without the library there are no schemas: then
`kubectl explain` knows only custom resources, and unknown fields of built-in kinds are not reported.
"""

import ast
import importlib.util
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from ballast_local.errors import Obj
from ballast_local.field_types import BuiltInType
from ballast_local.resources import Resource

_MODEL_NAMES = {("", "Event"): "CoreV1Event", ("events.k8s.io", "Event"): "EventsV1Event"}
_SCALARS: dict[str, Obj] = {
    "str": {"type": "string"},
    "int": {"type": "integer", "format": "int32"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "datetime": {"type": "string", "format": "date-time"},
    "object": {},
    "bytearray": {"type": "string", "format": "byte"},
    "bytes": {"type": "string", "format": "byte"},
}
_LIST_PARENTS = {"V1Container": "containers", "V1ServiceSpec": "spec"}
REF = "#/components/schemas/"


def _models_directory() -> Path | None:
    spec = importlib.util.find_spec("kubernetes")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "client" / "models"


def _file_name(model: str) -> str:
    text = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", model)
    return re.sub(r"([a-z\d])([A-Z])", r"\1_\2", text).lower()


class BuiltInSchemas:
    def __init__(self) -> None:
        self._directory = _models_directory()
        self._models: dict[str, Obj | None] = {}

    def model_of(self, resource: Resource) -> str:
        version = resource.version[0].upper() + resource.version[1:]
        return _MODEL_NAMES.get((resource.group, resource.kind), version + resource.kind)

    def model(self, name: str) -> Obj | None:
        """The schema of one model with references unresolved; None if the library does not have it."""
        if name not in self._models:
            self._models[name] = self._read(name)
        return self._models[name]

    def _read(self, name: str) -> Obj | None:
        if self._directory is None:
            return None
        path = self._directory / f"{_file_name(name)}.py"
        if not path.is_file():
            return None
        return _schema(name, path.read_text())

    def closure(self, names: list[str]) -> Obj:
        """The models and all models that they refer to, by name."""
        found: Obj = {}
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            schema = self.model(name)
            if name in found or schema is None:
                continue
            found[name] = schema
            waiting += _references(schema)
        for schema in found.values():
            _drop_dangling(schema, found)
        return found

    def unknown_fields(self, resource: Resource, obj: Obj, field_validation: str) -> list[str]:
        """The fields that the kind does not have; checked only with strict validation, because it takes time."""
        if field_validation != "Strict" or resource.custom:
            return []
        schema = self.model(self.model_of(resource))
        return [] if schema is None else self._unknown(schema, obj, "")

    def _unknown(self, schema: Obj, value: Any, path: str) -> list[str]:
        schema = self._resolve(schema)
        found: list[str] = []
        if isinstance(value, dict) and schema.get("properties"):
            for name, member in value.items():
                below = f"{path}.{name}" if path else name
                if name in schema["properties"]:
                    found += self._unknown(schema["properties"][name], member, below)
                else:
                    found.append(below)
        elif isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
            for name, member in value.items():
                found += self._unknown(schema["additionalProperties"], member, f"{path}.{name}")
        elif isinstance(value, list) and isinstance(schema.get("items"), dict):
            for index, item in enumerate(value):
                found += self._unknown(schema["items"], item, f"{path}[{index}]")
        return found

    def _resolve(self, schema: Obj) -> Obj:
        reference = schema.get("$ref") or next((one["$ref"] for one in schema.get("allOf", ()) if "$ref" in one), None)
        if reference is None:
            return schema
        return self.model(reference.removeprefix(REF)) or {}


def _references(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        own = [schema["$ref"].removeprefix(REF)] if isinstance(schema.get("$ref"), str) else []
        return own + [name for child in schema.values() for name in _references(child)]
    if isinstance(schema, list):
        return [name for child in schema for name in _references(child)]
    return []


def _drop_dangling(schema: Any, known: Obj) -> None:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str) and schema["$ref"].removeprefix(REF) not in known:
            del schema["$ref"]
        for child in schema.values():
            _drop_dangling(child, known)
    elif isinstance(schema, list):
        for child in schema:
            _drop_dangling(child, known)


@lru_cache(maxsize=64)
def _type_pattern() -> re.Pattern[str]:
    return re.compile(r"(?:list|List)\[(.*)\]\Z|(?:dict|Dict)[\[(]str, ?(.*)[\])]\Z")


def _type(text: str) -> Obj:
    match = _type_pattern().match(text)
    if match and match[1]:
        return {"type": "array", "items": _type(match[1])}
    if match and match[2]:
        return {"type": "object", "additionalProperties": _type(match[2])}
    if text in _SCALARS:
        return dict(_SCALARS[text])
    if not re.match(r"[A-Z]\w*\Z", text) or text == "IntOrString":
        return {}
    return {"$ref": REF + text}


def _schema(model: str, source: str) -> Obj:
    """Build a schema from the source of a model's module; only the attributes of its class are parsed."""
    start = source.index(f"class {model}(")
    stop = source.find("\n    def ", start)
    facts: dict[str, Any] = {}
    descriptions: dict[str, str] = {}
    required: list[str] = []
    body = re.split(r"\n    (?=@classmethod|@property|@field|model_config|__properties)", source[start:stop])[0]
    tree = ast.parse(body).body[0]
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if not isinstance(target, ast.Name) or not isinstance(node, (ast.AnnAssign, ast.Assign)):
            continue
        if isinstance(node.value, ast.Dict):
            facts[target.id] = ast.literal_eval(node.value)
        elif isinstance(node.value, ast.Call):
            words = {word.arg: word.value for word in node.value.keywords}
            if isinstance(words.get("description"), ast.Constant):
                descriptions[target.id] = str(ast.literal_eval(words["description"]))
            if "default" not in words:
                required.append(target.id)
    names: dict[str, str] = facts.get("attribute_map", {})
    schema: Obj = {
        "type": "object",
        "description": (ast.get_docstring(tree) or "").split("\n\nAttributes:")[0].strip(),
        "properties": {},
    }
    for attribute, text in facts.get("openapi_types", {}).items():
        name = names[attribute]
        described = _type(text)
        if "$ref" in described:
            described = {"allOf": [described], "default": {}}
        merge_key = (
            BuiltInType(name, _LIST_PARENTS.get(model, "")).merge_key if described.get("type") == "array" else None
        )
        if merge_key:
            described |= {"x-kubernetes-patch-merge-key": merge_key, "x-kubernetes-patch-strategy": "merge"}
            described |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [merge_key]}
        if attribute in descriptions:
            described["description"] = descriptions[attribute]
        schema["properties"][name] = described
    wanted = [names[one] for one in required if one in names]
    return schema | ({"required": wanted} if wanted else {})
