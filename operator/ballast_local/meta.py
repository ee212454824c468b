"""Metadata of objects: names, times, uids, validation, and the fields that only the server sets."""

import random
import re
import uuid
from datetime import UTC, datetime

from ballast_local.errors import Obj, cause

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_MOST_OF_A_LABEL = 63
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")
_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"

ANNOTATIONS_LIMIT = 256 * 1024

# Kinds whose names follow other rules than a DNS subdomain.
_FREE_NAMES = frozenset({"roles", "rolebindings", "clusterroles", "clusterrolebindings"})
_LABEL_NAMES = frozenset({"namespaces", "services"})


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def new_uid() -> str:
    return str(uuid.uuid4())


def generated_name(prefix: str) -> str:
    return prefix[:58] + "".join(random.choices(_SUFFIX, k=5))


def is_label(name: str) -> bool:
    """Whether the name is a lowercase RFC 1123 label."""
    return len(name) <= _MOST_OF_A_LABEL and _LABEL.match(name) is not None


def name_causes(plural: str, name: str) -> list[Obj]:
    if plural in _FREE_NAMES:
        bad = "/" in name or "%" in name or name in (".", "..")
        return (
            [cause("FieldValueInvalid", f'Invalid value: "{name}": may not contain / or %', "metadata.name")]
            if bad
            else []
        )
    label = plural in _LABEL_NAMES
    limit, pattern = (_MOST_OF_A_LABEL, _LABEL) if label else (253, _SUBDOMAIN)
    if len(name) <= limit and pattern.match(name):
        return []
    messages = [] if pattern.match(name) else [_LABEL_RULE if label else _SUBDOMAIN_RULE]
    messages += [f"must be no more than {limit} bytes"] if len(name) > limit else []
    return [cause("FieldValueInvalid", f'Invalid value: "{name}": {text}', "metadata.name") for text in messages]


_FIELDS = frozenset({
    "name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation", "creationTimestamp",
    "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences", "finalizers",
    "managedFields",
})  # fmt: skip


def unknown_fields(meta: Obj) -> list[str]:
    return [f"metadata.{name}" for name in meta if name not in _FIELDS]


def tidy(meta: Obj) -> None:
    """Remove unknown and empty fields."""
    for name in [name for name in meta if name not in _FIELDS]:
        del meta[name]
    for field in ("labels", "annotations", "ownerReferences", "finalizers"):
        if field in meta and not meta[field]:
            del meta[field]


def causes_of(meta: Obj, built_in: bool) -> list[Obj]:
    causes: list[Obj] = []
    for field in ("labels", "annotations"):
        held = meta.get(field)
        if held is None:
            continue
        if not isinstance(held, dict):
            causes.append(
                cause("FieldValueTypeInvalid", "Invalid value: must be a map of strings", f"metadata.{field}")
            )
            continue
        for key, value in held.items():
            if not _QUALIFIED.match(key):
                causes.append(
                    cause("FieldValueInvalid", f'Invalid value: "{key}": not a qualified name', f"metadata.{field}")
                )
            if not isinstance(value, str):
                message = f"Invalid value: {value!r}: must be a string"
                causes.append(cause("FieldValueTypeInvalid", message, f"metadata.{field}"))
            elif field == "labels" and (len(value) > 63 or not _LABEL_VALUE.match(value)):
                causes.append(
                    cause("FieldValueInvalid", f'Invalid value: "{value}": not a label value', "metadata.labels")
                )
    annotations = meta.get("annotations")
    if isinstance(annotations, dict):
        size = sum(len(str(key)) + len(str(value)) for key, value in annotations.items())
        if size > ANNOTATIONS_LIMIT:
            text = f"Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"
            causes.append(cause("FieldValueTooLong", text, "metadata.annotations"))
    for finalizer in meta.get("finalizers") or []:
        known = "/" in finalizer or not built_in or finalizer in ("foregroundDeletion", "orphan", "kubernetes")
        if not known or not _QUALIFIED.match(finalizer):
            why = "name is neither a standard finalizer name nor is it fully qualified"
            causes.append(cause("FieldValueInvalid", f'Invalid value: "{finalizer}": {why}', "metadata.finalizers"))
    controllers = [owner for owner in meta.get("ownerReferences") or [] if owner.get("controller")]
    if len(controllers) > 1:
        first, second = (f"{one.get('kind')}/{one.get('name')}" for one in controllers[:2])
        text = (
            f'Only one reference can have Controller set to true. Found "true" in references for {first} and {second}'
        )
        causes.append(cause("FieldValueInvalid", f"Invalid value: {text}", "metadata.ownerReferences"))
    for owner in meta.get("ownerReferences") or []:
        missing = [name for name in ("apiVersion", "kind", "name", "uid") if not owner.get(name)]
        causes += [
            cause("FieldValueRequired", "Required value", f"metadata.ownerReferences.{name}") for name in missing
        ]
    return causes


def keep_server_fields(new: Obj, old: Obj) -> None:
    """Take the fields that only the server sets from the old version, whatever the client sent."""
    meta, before = new.setdefault("metadata", {}), old["metadata"]
    for field in (
        "uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "namespace",
        "name", "generateName", "managedFields", "resourceVersion",
    ):  # fmt: skip
        if field in before:
            meta[field] = before[field]
        else:
            meta.pop(field, None)
    meta.pop("selfLink", None)


def is_deleting(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def controller_of(obj: Obj) -> Obj | None:
    return next((owner for owner in obj["metadata"].get("ownerReferences") or [] if owner.get("controller")), None)


def owner_reference(owner: Obj) -> Obj:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
