"""The output formats of `get`: tables, YAML, JSON, names, JSONPath, custom columns."""

from __future__ import annotations

import argparse
import json

from ballast_cli.kube_api import Kind, Obj
from ballast_local import jsonpath

OUTPUTS = ("wide", "yaml", "json", "name")
FORMS = f"{', '.join(OUTPUTS)}, jsonpath=TEMPLATE, custom-columns=HEAD:PATH,..."


def output(text: str) -> str:
    form, _, rest = text.partition("=")
    try:
        if form == "jsonpath" and rest:
            jsonpath.template(rest)
        elif form == "custom-columns" and rest:
            _columns(rest)
        elif text not in ("", *OUTPUTS):
            raise argparse.ArgumentTypeError(f"{text!r} is not {FORMS}")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def is_table(form: str) -> bool:
    return form in ("", "wide")


def print_objects(found: list[tuple[Kind, Obj]], form: str, by_name: bool) -> None:
    """Print in any format but the server's table; `by_name` prints a single object instead of a List."""
    if form == "name":
        for kind, obj in found:
            print(f"{kind.qualified}/{obj['metadata']['name']}")
        return
    objects = [obj for _, obj in found]
    for obj in objects:
        obj["metadata"].pop("managedFields", None)
    named, _, rest = form.partition("=")
    if named == "custom-columns":
        print(aligned(_with_columns(objects, rest)))
        return
    whole: Obj = objects[0] if by_name and len(objects) == 1 else {"apiVersion": "v1", "kind": "List", "items": objects}
    if named == "jsonpath":
        print(jsonpath.rendered(jsonpath.template(rest), whole), end="")
    elif form == "yaml":
        import yaml

        print(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True), end="")
    else:
        print(json.dumps(whole, indent=4, ensure_ascii=False))


def aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)


def _columns(text: str) -> list[tuple[str, jsonpath.Path]]:
    pairs = [column.partition(":") for column in text.split(",")]
    for head, _, path in pairs:
        if not head or not path:
            raise ValueError(f"{head!r} is no column such as NAME:.metadata.name")
    return [(head, jsonpath.path(path)) for head, _, path in pairs]


def _with_columns(objects: list[Obj], text: str) -> list[list[str]]:
    columns = _columns(text)
    cells = [[",".join(map(jsonpath.shown, path.find(obj))) or "<none>" for _, path in columns] for obj in objects]
    return [[head for head, _ in columns], *cells]
