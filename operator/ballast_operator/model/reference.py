"""Writes the reference page of a kind from its CRD, so that it cannot drift from what the API server checks.

`python -m ballast_operator.model.reference CRDS_DIR DOCS_DIR` writes all pages; a contract test compares them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ballast_operator.status import reasons_page

Schema = Mapping[str, Any]


def reference_page(crd: Mapping[str, Any]) -> str:
    """The page in Markdown."""
    names, version = crd["spec"]["names"], crd["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    lines = [
        f"# {names['kind']}",
        "",
        schema["description"],
        "",
        f"`apiVersion: {crd['spec']['group']}/{version['name']}`, short name `{names['shortNames'][0]}`. "
        f"This page is generated from `crds/{names['plural']}.yaml`.",
    ]
    for part in ("spec", "status"):
        lines += ["", f"## {part}", "", schema["properties"][part]["description"], ""]
        lines += ["| field | type | description |", "| --- | --- | --- |"]
        lines += [_row(path, node, required) for path, node, required in walk(schema["properties"][part])]
    whole = [("metadata.name", rule["message"]) for rule in schema.get("x-kubernetes-validations", ())]
    rules = [*whole, *_rules("spec", schema["properties"]["spec"])]
    if rules:
        lines += ["", "## What is refused at once", ""] + [f"- `{path}`: {message}" for path, message in rules]
    return "\n".join(lines) + "\n"


def walk(schema: Schema, prefix: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """(path, schema, required) of every field below an object, in the order of the file."""
    for name, node in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        yield path, node, name in schema.get("required", ())
        inner = node
        while inner.get("type") == "array":
            path, inner = f"{path}[]", inner["items"]
        yield from walk(inner, f"{path}.")


def _row(path: str, node: Schema, required: bool) -> str:
    notes = [node["description"]]
    if required:
        notes.append("Required.")
    if "default" in node:
        notes.append(f"Default: `{json.dumps(node['default'])}`.")
    if "enum" in node:
        notes.append("One of " + ", ".join(f"`{value}`" for value in node["enum"]) + ".")
    limits = [f"{word} {node[key]}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in node]
    if limits:
        notes.append(" and ".join(limits).capitalize() + ".")
    return f"| `{path}` | {_type(node)} | {' '.join(notes)} |"


def _type(node: Schema) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if "type" not in node:
        return "string, number or boolean"
    if node.get("type") == "array":
        return f"list of {_type(node['items'])}"
    if "additionalProperties" in node:
        return f"map of {_type(node['additionalProperties'])}"
    return str(node.get("format") if node.get("format") == "date-time" else node["type"])


def _rules(path: str, node: Schema) -> Iterator[tuple[str, str]]:
    for rule in node.get("x-kubernetes-validations", ()):
        yield path, rule["message"]
    for name, inner in node.get("properties", {}).items():
        yield from _rules(f"{path}.{name}", inner)
    if "items" in node:
        yield from _rules(f"{path}[]", node["items"])


def main(crds: Path, docs: Path) -> None:
    (docs / "reasons.md").write_text(reasons_page())
    for file in sorted(crds.glob("*.yaml")):
        crd = yaml.safe_load(file.read_text())
        if crd["kind"] != "CustomResourceDefinition":
            continue
        (docs / f"{crd['spec']['names']['singular']}.md").write_text(reference_page(crd))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
