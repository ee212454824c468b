"""The CRDs, the operator's model and the reference pages say the same."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_operator.model import cluster, fields, reassignment, topic
from ballast_operator.model.reference import reference_page

ROOT = Path(__file__).parents[2]
KINDS = {
    "kafkaclusters": (cluster.ClusterSpec, cluster.ClusterStatus),
    "kafkatopics": (topic.TopicSpec, topic.TopicStatus),
    "reassignments": (reassignment.ReassignmentSpec, reassignment.ReassignmentStatus),
}
SHORT_NAMES = {"kafkaclusters": "bkc", "kafkatopics": "bkt", "reassignments": "bkr"}


def crd(plural: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "crds" / f"{plural}.yaml").read_text())


def schema(plural: str) -> dict[str, Any]:
    return crd(plural)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def nodes(node: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    found = [(path, node)]
    for name, inner in node.get("properties", {}).items():
        if (path, name) != ("", "metadata"):  # an API server lets nothing be said of it but its name
            found += nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            found += nodes(node[key], f"{path}[]")
    return found


def differences(cls: type[Any], node: dict[str, Any], path: str) -> list[str]:
    """What the class and the schema of an object do not agree on."""
    found = []
    hints = typing.get_type_hints(cls)
    by_name = {fields.camel_case(f.name): f for f in dataclasses.fields(cls)}
    if missing := by_name.keys() ^ node["properties"].keys():
        found.append(f"{path}: only on one side: {sorted(missing)}")
    for name in by_name.keys() & node["properties"].keys():
        field, inner, where = by_name[name], node["properties"][name], f"{path}.{name}"
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required != (name in node.get("required", ())) and "observed" not in name and cls.__name__ != "Condition":
            found.append(f"{where}: required differs")
        if "default" in inner:
            default = fields._json(field.default)
            if default != inner["default"]:
                found.append(f"{where}: default is {default!r} here and {inner['default']!r} there")
        elif "[]" in where:
            pass  # Argo CD compares items of lists as wholes: what is filled into them would differ for ever
        elif field.default not in (None, (), dataclasses.MISSING) and cls.__name__ != "Condition":
            found.append(f"{where}: default {field.default!r} is missing in the schema")
        found += type_differences(fields.unwrap_optional(hints[field.name]), inner, where)
    return found


def type_differences(hint: Any, node: dict[str, Any], where: str) -> list[str]:
    origin = typing.get_origin(hint)
    if origin is tuple:
        if node.get("type") != "array":
            return [f"{where}: a list here"]
        return type_differences(typing.get_args(hint)[0], node["items"], f"{where}[]")
    if origin is Mapping:
        open_object = node.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in node
        return [] if node.get("type") == "object" and open_object else [f"{where}: a map here"]
    if dataclasses.is_dataclass(hint):
        return (
            differences(typing.cast(type, hint), node, where) if "properties" in node else [f"{where}: an object here"]
        )
    if issubclass(hint, StrEnum):
        return [] if [str(v) for v in hint] == node.get("enum") else [f"{where}: the enum differs"]
    wanted = {str: "string", int: "integer", bool: "boolean"}[hint]
    given = "string" if node.get("x-kubernetes-int-or-string") else node.get("type")
    return [] if given == wanted else [f"{where}: {wanted} here, {given} there"]


@pytest.mark.spec("OPR-01")
@pytest.mark.parametrize("plural", KINDS)
def test_model_and_schema_have_the_same_fields_types_and_defaults(plural: str) -> None:
    spec, status = KINDS[plural]
    properties = schema(plural)["properties"]
    assert differences(spec, properties["spec"], "spec") + differences(status, properties["status"], "status") == []


@pytest.mark.spec("OPR-03")
@pytest.mark.parametrize("plural", KINDS)
def test_every_field_has_a_description_that_is_a_sentence(plural: str) -> None:
    lacking = [path for path, node in nodes(schema(plural)) if not node.get("description", "").endswith(".")]
    assert lacking == []


@pytest.mark.spec("OPR-01")
@pytest.mark.parametrize("plural", KINDS)
def test_every_rule_has_a_message_that_says_what_to_do(plural: str) -> None:
    for path, node in nodes(schema(plural)):
        for rule in node.get("x-kubernetes-validations", ()):
            assert rule["message"].endswith("."), path


@pytest.mark.parametrize("plural", KINDS)
def test_names_category_and_subresources(plural: str) -> None:
    spec = crd(plural)["spec"]
    assert spec["group"] == "ballast.dev"
    assert spec["names"]["shortNames"] == [SHORT_NAMES[plural]]
    assert spec["names"]["categories"] == ["ballast"]
    assert spec["versions"][0]["subresources"]["status"] == {}


@pytest.mark.spec("OPR-03")
@pytest.mark.parametrize("plural", KINDS)
def test_printer_columns_and_scale_paths_point_at_fields_that_exist(plural: str) -> None:
    version = crd(plural)["spec"]["versions"][0]
    known = {path for path, _ in nodes(schema(plural))} | {".metadata.creationTimestamp"}
    paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    paths += list(version["subresources"].get("scale", {}).values())
    for path in paths:
        plain = path.split("[?")[0] + ("[]" + path.split(")]")[1] if "[?" in path else "")
        assert plain in known, path


@pytest.mark.parametrize("plural", KINDS)
def test_the_reference_page_is_what_the_crd_says(plural: str) -> None:
    page = ROOT / "docs" / "reference" / f"{crd(plural)['spec']['names']['singular']}.md"
    assert page.read_text() == reference_page(crd(plural)), (
        "run: python -m ballast_operator.model.reference crds docs/reference"
    )


def test_schemas_are_structural_enough_to_be_read_back() -> None:
    body = {"metadata": {"name": "t"}, "spec": {"clusterRef": {"name": "c"}, "config": {"retention.ms": 5}}}
    parsed = topic.read_topic(body)
    assert parsed.spec.config == {"retention.ms": "5"}
    assert json.loads(json.dumps(fields.write(parsed.spec)))["clusterRef"] == {"name": "c"}
