"""Builds a container's environment and command line from its spec. PURE."""

import base64
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ballast_local.errors import Obj
from ballast_local.workloads.substitution import expand
from ballast_local.workloads.volume import NotYet

# (kind of source, name) → object or None
Lookup = Callable[[str, str], Obj | None]


def field_text(pod: Obj, path: str) -> str:
    """The downward API: metadata.name, metadata.labels['x'], spec.nodeName, status.podIP, ..."""
    head, bracket, key = path.partition("[")
    value: Any = pod
    for part in head.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if bracket:
        return str((value or {}).get(key.rstrip("]").strip("'\""), ""))
    if isinstance(value, dict):
        return "\n".join(f'{name}="{text}"' for name, text in sorted(value.items()))
    if value is None:
        raise NotYet(f"the field {path} is not available")
    return str(value)


def _keyed(lookup: Lookup, source: str, reference: Obj) -> str | None:
    held = lookup(source, reference["name"])
    if held is None:
        if reference.get("optional"):
            return None
        raise NotYet(f'{source.lower()} "{reference["name"]}" not found')
    value = (held.get("data") or {}).get(reference["key"])
    if value is None:
        if reference.get("optional"):
            return None
        raise NotYet(f"couldn't find key {reference['key']} in {source} {reference['name']}")
    return _secret_text(value) if source == "Secret" else str(value)


def _secret_text(encoded: str) -> str:
    """Decode a secret so that the process gets exactly its bytes, whatever they are."""
    return base64.b64decode(encoded).decode(errors="surrogateescape")


def resource_text(container: Obj, reference: Obj) -> str:
    area, _, name = reference["resource"].partition(".")
    value = ((container.get("resources") or {}).get(area) or {}).get(name)
    return "0" if value is None else str(value)


def _value_from(source: Obj, pod: Obj, container: Obj, lookup: Lookup) -> str | None:
    if "fieldRef" in source:
        return field_text(pod, source["fieldRef"]["fieldPath"])
    if "configMapKeyRef" in source:
        return _keyed(lookup, "ConfigMap", source["configMapKeyRef"])
    if "secretKeyRef" in source:
        return _keyed(lookup, "Secret", source["secretKeyRef"])
    if "resourceFieldRef" in source:
        return resource_text(container, source["resourceFieldRef"])
    raise NotYet(f"the embedded Kubernetes API cannot take a variable from {', '.join(source)}")


def _from_all(container: Obj, lookup: Lookup) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            reference = source.get(field)
            if reference is None:
                continue
            held = lookup(kind, reference["name"])
            if held is None:
                if reference.get("optional"):
                    continue
                raise NotYet(f'{kind.lower()} "{reference["name"]}" not found')
            for key, value in (held.get("data") or {}).items():
                text = _secret_text(value) if kind == "Secret" else value
                found[source.get("prefix", "") + key] = text
    return found


def variables(pod: Obj, container: Obj, lookup: Lookup) -> dict[str, str]:
    """The declared variables, each expanded with those before it; raises NotYet if a source is missing."""
    found = _from_all(container, lookup)
    for one in container.get("env") or []:
        if "valueFrom" in one:
            value = _value_from(one["valueFrom"], pod, container, lookup)
            if value is not None:
                found[one["name"]] = value
        else:
            found[one["name"]] = expand(str(one.get("value") or ""), found)
    return found


def command_line(container: Obj, known: Mapping[str, str], substitute: Callable[[str], str]) -> list[str]:
    """The command and its arguments. `python...` is this interpreter, `ballast` this project: there is no image."""
    command = list(container.get("command") or [])
    if not command:
        raise NotYet("there are no images here: a container needs a command")
    words = [substitute(expand(str(word), known)) for word in command + list(container.get("args") or [])]
    program = words[0].rpartition("/")[2]
    if program.startswith("python"):
        return [sys.executable, *words[1:]]
    if program == "ballast":
        return [sys.executable, "-m", "ballast_cli", *words[1:]]
    return words
