"""Decodes the Protocol Buffers that kubectl insists on: bodies of `kubectl create` for the simplest kinds. PURE.

kubectl's typed commands do not send JSON. These messages have few fields, whose numbers never change; every other kind
is refused by name, and `kubectl create --dry-run=client -o yaml | kubectl apply -f -` works for all of them.
"""

import base64
from collections.abc import Iterator
from typing import Any

from ballast_local.errors import ApiError, Obj, bad_request

MAGIC = b"k8s\x00"
OPENAPI = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"  # kubectl sends it with an @, which MIME forbids
EMPTY_OPENAPI = b"\x0a\x032.0"  # only field 1, the version: no definitions
_NOT_READ = (
    "the embedded Kubernetes API reads no {kind} in protobuf, which this command sends; with `--dry-run=client -o yaml`"
    " it writes the {kind} down for `kubectl apply -f -`"
)
# number → (name, form); form: str, bytes, int, bool, list, map (to text), bytemap (to bytes), or a message's fields
Fields = dict[int, tuple[str, Any]]

_META: Fields = {
    1: ("name", "str"), 2: ("generateName", "str"), 3: ("namespace", "str"), 5: ("uid", "str"),
    6: ("resourceVersion", "str"), 11: ("labels", "map"), 12: ("annotations", "map"), 14: ("finalizers", "list"),
}  # fmt: skip
_ACCESS: Fields = {
    1: ("namespace", "str"), 2: ("verb", "str"), 3: ("group", "str"), 4: ("version", "str"), 5: ("resource", "str"),
    6: ("subresource", "str"), 7: ("name", "str"),
}  # fmt: skip
_URL: Fields = {1: ("path", "str"), 2: ("verb", "str")}
_KINDS: dict[str, Fields] = {
    "Namespace": {1: ("metadata", _META)},
    "ConfigMap": {1: ("metadata", _META), 2: ("data", "map"), 3: ("binaryData", "bytemap"), 4: ("immutable", "bool")},
    "Secret": {1: ("metadata", _META), 2: ("data", "bytemap"), 3: ("type", "str"), 4: ("stringData", "map"),
               5: ("immutable", "bool")},
    "ServiceAccount": {1: ("metadata", _META)},
    "SelfSubjectAccessReview": {
        1: ("metadata", _META),
        2: ("spec", {1: ("resourceAttributes", _ACCESS), 2: ("nonResourceAttributes", _URL)}),
        3: ("status", {1: ("allowed", "bool"), 2: ("reason", "str")}),
    },
    "SelfSubjectReview": {1: ("metadata", _META)},
}  # fmt: skip


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _parts(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (field number, number or bytes) for each field of a message."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(raw, at)
            yield tag >> 3, value
        elif wire == 2:
            size, at = _varint(raw, at)
            if at + size > len(raw):
                raise IndexError("the message ends early")
            yield tag >> 3, raw[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {wire}")


def _message(raw: bytes, fields: Fields) -> Obj:
    found: Obj = {}
    for number, value in _parts(raw):
        if number not in fields:
            continue
        name, form = fields[number]
        if isinstance(form, dict):
            found[name] = _message(value, form)
        elif form in ("map", "bytemap"):
            pair = dict(_parts(value))
            content = pair.get(2, b"")
            text = content.decode() if form == "map" else base64.b64encode(content).decode()
            found.setdefault(name, {})[pair.get(1, b"").decode()] = text
        elif form == "list":
            found.setdefault(name, []).append(value.decode())
        elif form == "bool":
            found[name] = bool(value)
        elif value:
            found[name] = value.decode()
    return found


def decode_body(raw: bytes) -> Obj:
    """Decode a request's object from Kubernetes' envelope."""
    try:
        if not raw.startswith(MAGIC):
            raise ValueError("the envelope is missing")
        envelope = dict(_parts(raw[len(MAGIC) :]))
        meta = dict(_parts(envelope.get(1, b"")))
        kind = meta.get(2, b"").decode()
        if kind not in _KINDS:
            raise ApiError(415, "UnsupportedMediaType", _NOT_READ.format(kind=kind))
        obj = _message(envelope.get(2, b""), _KINDS[kind])
    except (IndexError, ValueError, AttributeError, TypeError) as fault:
        raise bad_request(f"the body of the request is no Kubernetes protobuf: {fault}") from None
    metadata = obj.setdefault("metadata", {})
    obj["metadata"] = {name: value for name, value in metadata.items() if value}
    return {"apiVersion": meta.get(1, b"").decode(), "kind": kind, **obj}
