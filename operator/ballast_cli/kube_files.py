"""Reads the objects from the YAML or JSON files given with -f."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from ballast_cli import CommandError
from ballast_cli.kube_api import Obj


def documents(names: list[str], recursive: bool = False) -> Iterator[Obj]:
    import yaml

    if not names:
        raise CommandError("say which file: -f FILE.")
    found = False
    for name in names:
        reading = Path(name)
        try:
            for reading in _files(Path(name), recursive):
                # As bytes: YAML itself tells UTF-8 from UTF-16, whatever the locale is.
                for document in parsed(sys.stdin.buffer.read() if name == "-" else reading.read_bytes()):
                    if document is not None:
                        found = True
                        yield from _members(reading, document)
        except OSError as fault:
            raise CommandError(f"cannot read {reading}: {fault.strerror}.") from None
        except yaml.YAMLError as fault:
            raise CommandError(f"{reading} is no YAML: {fault}") from None
    if not found:
        if names == ["-"]:
            raise CommandError("nothing came by the standard input.")
        own = "all" if recursive else "its own"
        raise CommandError(f"nothing is in {', '.join(names)}; of a folder, {own} .yaml, .yml and .json are read.")


def _files(path: Path, recursive: bool) -> list[Path]:
    """The file itself, or the files of a folder; if `recursive`, also those of its subfolders."""
    if not os.path.isdir(path):
        return [path]
    inside = path.rglob("*") if recursive else path.iterdir()
    return sorted(one for one in inside if one.suffix in (".yaml", ".yml", ".json"))


def parsed(content: bytes) -> list[Any]:
    """Parse as JSON first: JSON may be indented with tabs, which the YAML library refuses."""
    from ballast_cli.kube_yaml import yaml_documents

    try:
        return [json.loads(content, object_pairs_hook=_each_once, parse_constant=_refuse)]
    except ValueError:
        return yaml_documents(content)


def _each_once(pairs: list[tuple[str, Any]]) -> Obj:
    return dict(pairs) if len({key for key, _ in pairs}) == len(pairs) else _refuse("a key that is there twice")


def _refuse(what: str) -> NoReturn:
    raise ValueError(what)  # then the YAML loader fails as well, and says where


def _members(path: Path, document: Any) -> list[Obj]:
    """The items of a List, or the object itself."""
    is_list = isinstance(document, dict) and str(document.get("kind")).endswith("List")
    members = (document.get("items") or []) if is_list else [document]
    if not isinstance(members, list) or not all(isinstance(one, dict) for one in members):
        raise CommandError(f"{path} has something that is no object of Kubernetes: those have apiVersion and kind.")
    return members
