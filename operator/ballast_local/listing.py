"""Lists of objects: selection, pages, and encoding."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ballast_local.errors import ApiError, Obj, bad_request, cause, invalid
from ballast_local.requests import Form, Target, whole_number
from ballast_local.resources import Resource, storage_key
from ballast_local.selectors import LabelPredicate, fields_match, parse_fields, parse_labels
from ballast_local.store import Entry, Store, encode
from ballast_local.table import table

_SELECTABLE: dict[str, tuple[str, ...]] = {
    "pods.": ("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase",
              "status.podIP", "status.nominatedNodeName", "spec.hostNetwork"),
    "events.": ("involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
                "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
                "reportingComponent", "source", "type", "regarding.kind", "regarding.name", "regarding.namespace",
                "regarding.uid", "reportingController"),
    "secrets.": ("type",),
    "namespaces.": ("status.phase",),
    "nodes.": ("spec.unschedulable",),
    "services.": ("spec.clusterIP", "spec.type"),
    "jobs.batch": ("status.successful",),
}  # fmt: skip


class Selection:
    """labelSelector and fieldSelector as one predicate on entries."""

    def __init__(self, target: Target, query: Mapping[str, str], served: Callable[[Resource, Obj], Obj]) -> None:
        self._labels: LabelPredicate | None = parse_labels(query.get("labelSelector"))
        terms = parse_fields(query.get("fieldSelector"))
        if target.name:
            terms.append(("metadata.name", True, target.name))
        allowed = _SELECTABLE.get(storage_key(target.resource), ())
        for path, _, _ in terms:
            if path not in ("metadata.name", "metadata.namespace", *allowed):
                raise bad_request(f'field label not supported: "{path}"')
        self._meta = [term for term in terms if term[0].startswith("metadata.")]
        self._terms = [term for term in terms if not term[0].startswith("metadata.")]
        self._target, self._served = target, served

    def __call__(self, entry: Entry) -> bool:
        if self._target.namespace and entry.namespace != self._target.namespace:
            return False
        if self._labels is not None and not self._labels(entry.labels):
            return False
        for path, equal, value in self._meta:
            held = entry.name if path == "metadata.name" else entry.namespace
            if (held == value) != equal:
                return False
        return not self._terms or fields_match(self._terms, self._served(self._target.resource, entry.object()))


@dataclass(frozen=True, slots=True)
class Page:
    entries: list[Entry]
    revision: int
    token: str
    remaining: int


def _decode_token(token: str) -> tuple[int, str, str]:
    try:
        revision, namespace, name = json.loads(base64.urlsafe_b64decode(token))
        return int(revision), str(namespace), str(name)
    except (ValueError, TypeError):
        raise bad_request("continue key is not valid") from None


def check_options(query: Mapping[str, str], watch: bool) -> None:
    """Refuse invalid combinations of a list's or a watch's options."""
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    initial = query.get("sendInitialEvents")
    field, why = "resourceVersionMatch", ""
    if watch and initial is not None and match != "NotOlderThan":
        why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
    elif watch and initial is None and match:
        why = "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
    elif not watch and initial is not None:
        field, why = "sendInitialEvents", "Forbidden: sendInitialEvents is forbidden for list"
    elif not watch and match and not version:
        why = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
    elif not watch and match and query.get("continue"):
        why = "Forbidden: resourceVersionMatch is forbidden when continue is provided"
    elif match not in ("", "Exact", "NotOlderThan"):
        why = f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan", ""'
    elif match == "Exact" and version == "0":
        why = 'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
    if why:
        reason = "FieldValueForbidden" if why.startswith("Forbidden") else "FieldValueNotSupported"
        raise invalid("meta.k8s.io", "ListOptions", "", [cause(reason, why, field)])


def page(store: Store, target: Target, query: Mapping[str, str], selection: Selection) -> Page:
    """Read one page of a list; later pages show the objects as of the revision of the first."""
    check_options(query, watch=False)
    limit = max(0, whole_number(query.get("limit")) or 0)
    asked = whole_number(query.get("resourceVersion")) or 0
    token = query.get("continue")
    resource = storage_key(target.resource)
    revision = store.revision
    if asked > revision:
        told = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
        text = f"Timeout: Too large resource version: {asked}, current: {revision}"
        raise ApiError(504, "Timeout", text, told | {"retryAfterSeconds": 1})
    after: tuple[str, str] | None = None
    source: Iterator[Entry]
    if token:
        revision, namespace, name = _decode_token(token)
        after = (namespace, name)
        source = store.entries_at(resource, revision, target.namespace)
    elif query.get("resourceVersionMatch") == "Exact":
        revision = asked
        source = store.entries_at(resource, revision, target.namespace)
    else:
        source = store.entries(resource, target.namespace)
    found = [entry for entry in source if (after is None or (entry.namespace, entry.name) > after) and selection(entry)]
    if not limit or len(found) <= limit:
        return Page(found, revision, "", 0)
    last = found[limit - 1]
    place = json.dumps([revision, last.namespace, last.name]).encode()
    return Page(found[:limit], revision, base64.urlsafe_b64encode(place).decode(), len(found) - limit)


class Writer:
    """Encodes entries in the form and version that a request asked for."""

    def __init__(self, resource: Resource, form: Form, include: str, served: Callable[[Resource, Obj], Obj]) -> None:
        self._resource, self._form, self._include, self._served = resource, form, include or "Metadata", served
        self._plain = not form.table and not form.partial
        self._as_stored = resource.api_version == resource.storage_api_version and resource.group != "events.k8s.io"

    def _object(self, entry: Entry) -> Obj:
        return self._served(self._resource, entry.object())

    def one(self, entry: Entry) -> bytes:
        if self._plain:
            return entry.encoded if self._as_stored else encode(self._object(entry))
        if self._form.partial:
            return encode(_partial(self._object(entry)))
        metadata = {"resourceVersion": str(entry.revision)}
        return encode(table(self._resource, [self._object(entry)], metadata, datetime.now(UTC), self._include))

    def many(self, page_: Page) -> bytes:
        metadata: Obj = {"resourceVersion": str(page_.revision)}
        if page_.token:
            metadata |= {"continue": page_.token, "remainingItemCount": page_.remaining}
        if self._form.table:
            objects = (self._object(entry) for entry in page_.entries)
            return encode(table(self._resource, objects, metadata, datetime.now(UTC), self._include))
        if self._resource.custom:
            metadata.setdefault("continue", "")
        kind, api_version = self._resource.list_kind or f"{self._resource.kind}List", self._resource.api_version
        if self._form.partial:
            kind, api_version = "PartialObjectMetadataList", "meta.k8s.io/v1"
        head = encode({"kind": kind, "apiVersion": api_version, "metadata": metadata})[:-1]
        return head + b',"items":[' + b",".join(self.each(page_.entries)) + b"]}"

    def each(self, entries: Iterable[Entry]) -> Iterator[bytes]:
        if self._plain and self._as_stored:
            return (entry.encoded for entry in entries)
        return (self.one(entry) for entry in entries)


def _partial(obj: Obj) -> Obj:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
