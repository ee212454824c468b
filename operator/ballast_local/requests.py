"""Parses requests: the path, the query, the body and the requested form of the response."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import yaml
from aiohttp import web

from ballast_local.errors import Obj, bad_request, no_such_path, unsupported_media
from ballast_local.objects import Options
from ballast_local.protobuf import decode_body
from ballast_local.resources import Registry, Resource


@dataclass(frozen=True, slots=True)
class Target:
    resource: Resource
    namespace: str
    name: str
    subresource: str


def is_gone(request: web.Request) -> bool:
    """Whether the client has closed its connection; a waiting handler has no other way to notice."""
    return request.transport is None or request.transport.is_closing()


@dataclass(frozen=True, slots=True)
class Form:
    """The form of the response that the Accept header asks for."""

    table: bool = False
    partial: bool = False


def parse_target(registry: Registry, path: str) -> Target:
    parts = [part for part in path.split("/") if part]
    if parts[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise no_such_path()
    namespace = ""
    if (
        rest[:1] == ["namespaces"]
        and len(rest) > 2
        and not (not group and len(rest) == 3 and rest[2] in ("status", "finalize"))
    ):
        namespace, rest = rest[1], rest[2:]
    if not rest or len(rest) > 3:
        raise no_such_path()
    resource = registry.find(group, version, rest[0])
    if resource is None or (namespace and not resource.namespaced):
        raise no_such_path()
    name = rest[1] if len(rest) > 1 else ""
    if name and resource.namespaced and not namespace:
        raise no_such_path()
    return Target(resource, namespace, name, rest[2] if len(rest) > 2 else "")


_JSON = ("application/json", "*/*", "application/*", "")


def takes_json(accept: str) -> bool:
    return any(offer.partition(";")[0].strip() in _JSON for offer in accept.split(","))


def parse_form(accept: str) -> Form:
    for offer in accept.split(","):
        words = [word.strip() for word in offer.split(";")]
        if words[0] not in _JSON:
            continue
        kind = next((word[3:] for word in words[1:] if word.startswith("as=")), "")
        if kind == "Table":
            return Form(table=True)
        if kind in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return Form(partial=True)
        return Form()
    return Form()


class _Yaml(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Does not parse timestamps: they are strings, as in JSON."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _no_number(text: str) -> Any:
    raise ValueError(f"invalid character {text[0]!r} looking for beginning of value")


def parse_body(raw: bytes, content_type: str) -> Any:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/vnd.kubernetes.protobuf":
        return decode_body(raw)
    if "protobuf" in kind or "cbor" in kind:
        raise unsupported_media("application/json, application/yaml")
    try:
        if "yaml" in kind:
            return yaml.load(raw, Loader=_Yaml)
        return json.loads(raw, parse_constant=_no_number)
    except (ValueError, yaml.YAMLError) as fault:
        raise bad_request(f"the body of the request is not {'YAML' if 'yaml' in kind else 'JSON'}: {fault}") from None


def parse_object(raw: bytes, content_type: str) -> Obj:
    body = parse_body(raw, content_type)
    if not isinstance(body, dict):
        raise bad_request("the body of the request must be an object")
    return body


def whole_number(text: str | None) -> int | None:
    """Parse a number of the query; raises a BadRequest if it is none."""
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def parse_options(query: Mapping[str, str], user_agent: str, body: Obj | None = None) -> Options:
    dry_run = query.get("dryRun") or ",".join((body or {}).get("dryRun") or [])
    if dry_run not in ("", "All"):
        raise bad_request(f'Invalid value: "{dry_run}": dryRun: Unsupported value: supported values: "All"')
    validation = query.get("fieldValidation") or "Warn"
    if validation not in ("Strict", "Warn", "Ignore"):
        raise bad_request(
            f'fieldValidation: Unsupported value: "{validation}": supported values: "Ignore", "Strict", "Warn"'
        )
    manager = query.get("fieldManager") or user_agent.partition("/")[0] or "unknown"
    return Options(bool(dry_run), manager[:128], query.get("force") == "true", validation, [])
