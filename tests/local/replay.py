"""Replays recorded requests of clients against any API server, and compares the answers of two servers.

`recorded.jsonl` holds requests in the order in which kubectl, Kopf and our clients sent them, each with the status of
its response; `record.py` makes it. Comparisons leave out what differs by nature: ids, versions and times.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.local.conftest import Api

ROOT = Path(__file__).parents[2]
RECORDING = Path(__file__).with_name("recorded.jsonl")
BY_NATURE = frozenset(
    {"uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "time", "lastTransitionTime"}
)
DOCUMENT = r"/(version|openapi/.*|apis?(/[^/]+)?(/v[0-9a-z]+)?)(\?|$)"
SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class Request:
    agent: str
    method: str
    path: str
    accept: str
    kind: str
    body: Any
    status: int

    @property
    def title(self) -> str:
        return f"{self.agent} {self.method} {self.path}"

    @property
    def is_document(self) -> bool:
        """Discovery and OpenAPI: the embedded API serves fewer kinds."""
        return re.match(DOCUMENT, self.path) is not None


def recording() -> Iterator[Request]:
    for line in RECORDING.read_text().splitlines():
        yield Request(**json.loads(line))


def is_definition(request: Request) -> bool:
    return isinstance(request.body, dict) and "definition" in request.body


def send(api: Api, request: Request) -> tuple[int, Any]:
    """Status and decoded response; the lines of a watch are a list."""
    # The real server would answer in protobuf where it is offered, the embedded one in the next format that is.
    offers = [offer for offer in request.accept.split(",") if "protobuf" not in offer]
    headers = {"Accept": ",".join(offers) or request.accept or "application/json", "User-Agent": f"{request.agent}/1"}
    status, answer = api.raw(request.method, request.path, _body(api, request), request.kind, **headers)
    try:
        return status, json.loads(answer)
    except ValueError:
        return status, [json.loads(line) for line in answer.splitlines()] if answer.startswith(b"{") else answer


def _body(api: Api, request: Request) -> bytes | None:
    body = request.body
    if body is None:
        return None
    if is_definition(request):
        return json.dumps(yaml.safe_load((ROOT / "crds" / body["definition"]).read_text())).encode()
    if isinstance(body, dict) and "base64" in body:
        return base64.b64decode(body["base64"])
    text = body if isinstance(body, str) else json.dumps(body)
    if "{resourceVersion}" in text or "{uid}" in text:
        path = re.sub(r"/(status|scale)(?=\?|$)", "", request.path).partition("?")[0]
        metadata = api.get(path)["metadata"]
        for name in ("resourceVersion", "uid"):
            text = text.replace("{" + name + "}", metadata[name])
    return text.encode()


def comparable(value: Any) -> Any:
    """The part of a response that must be equal for two servers."""
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("kind") == "Table":
        return _table(value)
    kept = {name: comparable(item) for name, item in value.items() if name not in BY_NATURE}
    if "managedFields" in kept:
        kept["managedFields"] = sorted(kept["managedFields"], key=lambda one: json.dumps(one, sort_keys=True))
    return kept


def _table(table: dict[str, Any]) -> dict[str, Any]:
    columns = [(one["name"], one["type"], one["priority"]) for one in table.get("columnDefinitions") or ()]
    timeless = [place for place, (name, _, _) in enumerate(columns) if name not in ("Age", "Created At")]
    rows = [
        [[row["cells"][place] for place in timeless], comparable(row.get("object"))] for row in table.get("rows") or ()
    ]
    return {"columns": columns, "rows": rows}


def served(document: Any) -> Any:
    """What a discovery document says, by resource or group, so that those that both servers have can be compared."""
    if document.get("kind") == "APIResourceList":
        keep = ("kind", "namespaced", "shortNames", "singularName", "categories")
        return {one["name"]: {key: one.get(key) for key in keep} for one in document["resources"]}
    if document.get("kind") == "APIGroupList":
        return {one["name"]: one["preferredVersion"]["groupVersion"] for one in document["groups"]}
    return {}


def differences(path: str, embedded: Any, real: Any) -> Iterator[str]:
    """Where two comparable responses differ."""
    if isinstance(embedded, dict) and isinstance(real, dict):
        for name in sorted({*embedded, *real}):
            below = f"{path}.{name}"
            if name not in embedded:
                yield f"{below}: only the real one says {_shown(real[name])}"
            elif name not in real:
                yield f"{below}: only the embedded one says {_shown(embedded[name])}"
            else:
                yield from differences(below, embedded[name], real[name])
    elif isinstance(embedded, list) and isinstance(real, list) and len(embedded) == len(real):
        for number, (one, other) in enumerate(zip(embedded, real, strict=True)):
            yield from differences(f"{path}[{number}]", one, other)
    elif embedded != real:
        yield f"{path}: embedded {_shown(embedded)}, real {_shown(real)}"


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)[:SHOWN_CHARACTERS]
