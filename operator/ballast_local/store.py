"""Keeps all objects in memory, encoded once, with a bounded history from which watches read.

Guarantees: revisions only increase, also across restarts; a watch sees every change after its revision in order, once
it is durable, or gets Expired if the history no longer reaches back. Only the loop's thread may touch it.
"""

import asyncio
import json
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ballast_local.errors import Obj, expired
from ballast_local.storage import Storage

LOG = logging.getLogger("ballast.local")
HISTORY_LIMIT = 20_000
HISTORY_TRIM = 4_000
HISTORY_BYTES = 32 * 1024 * 1024

# NaN is not JSON: it must fail before it is stored, and not for every client that lists it.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False, allow_nan=False)


def encode(obj: Obj) -> bytes:
    return _ENCODER.encode(obj).encode()


@dataclass(slots=True)
class Entry:
    """One version of one object. `object()` decodes a private copy."""

    resource: str
    namespace: str
    name: str
    uid: str
    revision: int
    encoded: bytes
    labels: dict[str, str]
    owners: tuple[str, ...]

    def object(self) -> Obj:
        decoded: Obj = json.loads(self.encoded)
        return decoded


@dataclass(slots=True)
class Change:
    revision: int
    kind: str  # ADDED, MODIFIED, DELETED
    entry: Entry
    previous: Entry | None


Listener = Callable[[Change], None]


@dataclass(slots=True)
class _Shelf:
    """The objects and the history of one resource."""

    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
    ordered: list[tuple[str, str]] | None = None
    changes: list[Change] = field(default_factory=list)
    revisions: list[int] = field(default_factory=list)
    size: int = 0
    oldest: int = 0
    listeners: list[Listener] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)


def entry_of(resource: str, obj: Obj, revision: int, encoded: bytes) -> Entry:
    meta = obj["metadata"]
    owners = tuple(owner["uid"] for owner in meta.get("ownerReferences") or ())
    labels = meta.get("labels") or {}
    return Entry(resource, meta.get("namespace", ""), meta["name"], meta["uid"], revision, encoded, labels, owners)


class Store:
    def __init__(self, path: Path, history_limit: int = HISTORY_LIMIT, history_bytes: int = HISTORY_BYTES) -> None:
        self._storage = Storage(path, self._became_durable)
        self._shelves: dict[str, _Shelf] = {}
        self._history_limit, self._history_bytes = history_limit, history_bytes
        self._dependents: dict[str, dict[tuple[str, str, str], Entry]] = {}
        self._by_uid: dict[str, Entry] = {}
        self._opened_at = 0
        self.revision = 0
        self.durable_revision = 0

    async def open(self) -> None:
        self.revision, rows = await self._storage.open()
        self.durable_revision = self._opened_at = self.revision
        for resource, namespace, name, revision, body in rows:
            entry = entry_of(resource, json.loads(body), revision, body)
            self._shelf(resource).entries[(namespace, name)] = entry
            self._index(entry)

    async def close(self) -> None:
        await self._storage.close()

    @property
    def failed(self) -> asyncio.Event:
        """Set once the database can no longer be written: later changes are lost."""
        return self._storage.failed

    async def flush(self) -> None:
        """Return once all writes so far are durable."""
        if self.durable_revision < self.revision:
            await self._storage.durable(self.revision)

    def _shelf(self, resource: str) -> _Shelf:
        shelf = self._shelves.get(resource)
        if shelf is None:
            shelf = self._shelves[resource] = _Shelf(oldest=self._opened_at)
        return shelf

    # reading

    def get(self, resource: str, namespace: str, name: str) -> Entry | None:
        return self._shelf(resource).entries.get((namespace, name))

    def by_uid(self, uid: str) -> Entry | None:
        return self._by_uid.get(uid)

    def dependents(self, uid: str) -> list[Entry]:
        return list(self._dependents.get(uid, {}).values())

    def resources(self) -> list[str]:
        return [resource for resource, shelf in self._shelves.items() if shelf.entries]

    def keys(self, resource: str) -> list[tuple[str, str]]:
        """All keys (namespace, name) in listing order."""
        shelf = self._shelf(resource)
        if shelf.ordered is None:
            shelf.ordered = sorted(shelf.entries)
        return shelf.ordered

    def entries(self, resource: str, namespace: str = "") -> Iterator[Entry]:
        entries = self._shelf(resource).entries
        for key in self.keys(resource):
            if not namespace or key[0] == namespace:
                yield entries[key]

    def count(self, resource: str) -> int:
        return len(self._shelf(resource).entries)

    def entries_at(self, resource: str, revision: int, namespace: str = "") -> Iterator[Entry]:
        """Yield the objects as of a revision, reconstructed from the history."""
        shelf = self._shelf(resource)
        if revision < shelf.oldest:
            raise expired("The provided continue parameter is too old; start again without it")
        if not shelf.revisions or shelf.revisions[-1] <= revision:
            yield from self.entries(resource, namespace)
            return
        then = dict(shelf.entries)
        for change in reversed(shelf.changes[bisect_right(shelf.revisions, revision) :]):
            key = (change.entry.namespace, change.entry.name)
            if change.previous is None:
                then.pop(key, None)
            else:
                then[key] = change.previous
        for key in sorted(then):
            if not namespace or key[0] == namespace:
                yield then[key]

    # writing

    def write(self, resource: str, obj: Obj) -> Entry:
        """Store a new version; sets metadata.resourceVersion in the given object."""
        obj["metadata"]["resourceVersion"] = str(self.revision + 1)
        entry = entry_of(resource, obj, self.revision + 1, encode(obj))
        self.revision += 1
        shelf = self._shelf(resource)
        key = (entry.namespace, entry.name)
        previous = shelf.entries.get(key)
        if previous is None:
            shelf.ordered = None
        else:
            self._unindex(previous)
        shelf.entries[key] = entry
        self._index(entry)
        self._storage.put(self.revision, resource, entry.namespace, entry.name, entry.encoded)
        self._record(shelf, Change(self.revision, "MODIFIED" if previous else "ADDED", entry, previous))
        return entry

    def remove(self, resource: str, namespace: str, name: str) -> Entry | None:
        shelf = self._shelf(resource)
        previous = shelf.entries.pop((namespace, name), None)
        if previous is None:
            return None
        shelf.ordered = None
        self._unindex(previous)
        self.revision += 1
        last = previous.object()
        last["metadata"]["resourceVersion"] = str(self.revision)
        entry = entry_of(resource, last, self.revision, encode(last))
        self._storage.remove(self.revision, resource, namespace, name)
        self._record(shelf, Change(self.revision, "DELETED", entry, previous))
        return entry

    def _index(self, entry: Entry) -> None:
        self._by_uid[entry.uid] = entry
        for owner in entry.owners:
            self._dependents.setdefault(owner, {})[(entry.resource, entry.namespace, entry.name)] = entry

    def _unindex(self, entry: Entry) -> None:
        self._by_uid.pop(entry.uid, None)
        for owner in entry.owners:
            dependents = self._dependents.get(owner, {})
            dependents.pop((entry.resource, entry.namespace, entry.name), None)
            if not dependents:
                self._dependents.pop(owner, None)

    def _record(self, shelf: _Shelf, change: Change) -> None:
        shelf.changes.append(change)
        shelf.revisions.append(change.revision)
        shelf.size += len(change.entry.encoded)
        most = self._history_limit + min(HISTORY_TRIM, self._history_limit)
        if len(shelf.changes) > most or shelf.size > self._history_bytes * 5 // 4:
            self._forget(shelf)
        for listener in shelf.listeners:
            try:
                listener(change)
            except Exception:  # a bug in one listener: the change is stored, and the others must be told
                LOG.exception("%s %s/%s", change.kind, change.entry.namespace, change.entry.name)

    def _forget(self, shelf: _Shelf) -> None:
        """Trim the history to its limits in changes and in bytes."""
        cut = 0
        while len(shelf.changes) - cut > self._history_limit or shelf.size > self._history_bytes:
            shelf.size -= len(shelf.changes[cut].entry.encoded)
            cut += 1
        shelf.oldest = shelf.revisions[cut - 1]
        del shelf.changes[:cut]
        del shelf.revisions[:cut]

    # following

    def listen(self, resource: str, listener: Listener) -> None:
        """Call the listener at every change, before it is durable: for controllers in this process."""
        self._shelf(resource).listeners.append(listener)

    def _became_durable(self, revision: int) -> None:
        before, self.durable_revision = self.durable_revision, max(self.durable_revision, revision)
        for shelf in self._shelves.values():
            if shelf.revisions and shelf.revisions[-1] > before:
                shelf.news.set()
                shelf.news = asyncio.Event()

    def changes_after(self, resource: str, revision: int) -> list[Change]:
        """The durable changes after a revision; raises Expired if the history does not reach back that far."""
        shelf = self._shelf(resource)
        if revision < shelf.oldest:
            raise expired(f"too old resource version: {revision} ({shelf.oldest})")
        start = bisect_right(shelf.revisions, revision)
        stop = bisect_right(shelf.revisions, self.durable_revision)
        return shelf.changes[start:stop]

    def news(self, resource: str) -> asyncio.Event:
        """An event that is set once at the next durable change; get it before reading `changes_after`."""
        return self._shelf(resource).news
