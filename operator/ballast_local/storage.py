"""Durable storage of objects in SQLite, written with group commit by one thread.

Guarantees: a write that was awaited (`durable`) survives a kill of the process at any instant; the database is always
consistent. A power failure may lose the last writes (synchronous=NORMAL), but not consistency. `put` and `remove` are
called in the event loop; only the writer thread touches the connection.
"""

import asyncio
import errno
import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ballast_local.errors import ApiError

LOG = logging.getLogger("ballast.local")
Row = tuple[str, str, str, int, bytes]

# Revisions skipped at each start: more than can have been assigned but not written, so none is ever assigned twice.
RESTART_GAP = 10_000


class Storage:
    def __init__(self, path: Path, on_durable: Callable[[int], None]) -> None:
        self._path = path
        self._on_durable = on_durable
        self._connection: sqlite3.Connection | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ballast-local-storage")
        self._pending: list[tuple[int, str, str, str, bytes | None]] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self.failed = asyncio.Event()
        """Set once the database can no longer be written."""

    async def open(self) -> tuple[int, list[Row]]:
        """Open the database; returns a revision that is at least as high as any assigned before, and all objects."""
        loop = asyncio.get_running_loop()
        revision, rows = await loop.run_in_executor(self._executor, self._open)
        self._task = asyncio.create_task(self._write_forever())
        return revision, rows

    def _open(self) -> tuple[int, list[Row]]:
        self._path.touch(0o600)  # it holds secrets; SQLite's WAL files get the same mode
        self._path.chmod(0o600)
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS objects (resource TEXT, namespace TEXT, name TEXT, revision INTEGER,"
            " body BLOB, PRIMARY KEY (resource, namespace, name)) WITHOUT ROWID"
        )
        connection.execute("CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER)")
        found = connection.execute("SELECT value FROM facts WHERE name = 'revision'").fetchone()
        rows = connection.execute("SELECT resource, namespace, name, revision, body FROM objects").fetchall()
        self._connection = connection
        return (found[0] + RESTART_GAP if found else 1), rows

    def put(self, revision: int, resource: str, namespace: str, name: str, body: bytes) -> None:
        self._pending.append((revision, resource, namespace, name, body))
        self._wake.set()

    def remove(self, revision: int, resource: str, namespace: str, name: str) -> None:
        self._pending.append((revision, resource, namespace, name, None))
        self._wake.set()

    async def durable(self, revision: int) -> None:
        """Return once everything up to this revision is written."""
        if self._failure is not None:
            raise self._unwritable()
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, future))
        self._wake.set()
        await future

    async def _write_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._pending = self._pending, []
            waiting, self._waiting = self._waiting, []
            try:
                if batch:
                    await loop.run_in_executor(self._executor, self._commit, batch)
                    self._on_durable(batch[-1][0])
            except Exception as failure:  # whatever it is, nobody may wait forever for a write that will not happen
                self._failure = failure
                self.failed.set()
                # Also those that arrived during the commit: this task ends here and would never answer them.
                for _, future in waiting + self._waiting:
                    if not future.done():
                        future.set_exception(self._unwritable())
                return
            for _, future in waiting:
                if not future.done():
                    future.set_result(None)

    def _unwritable(self) -> ApiError:
        why = f"the embedded Kubernetes API cannot write its database {self._path}: {self._failure}"
        return ApiError(500, "InternalError", why)

    def _commit(self, batch: list[tuple[int, str, str, str, bytes | None]]) -> None:
        assert self._connection is not None
        if not self._path.exists():  # removed or moved: SQLite would keep writing to a file that nobody finds
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        final = {row[1:4]: row for row in batch}
        puts = [(r, ns, n, revision, body) for revision, r, ns, n, body in final.values() if body is not None]
        gone = [key for key, row in final.items() if row[4] is None]
        connection = self._connection
        connection.execute("BEGIN")
        try:
            connection.executemany("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", puts)
            connection.executemany("DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?", gone)
            connection.execute("INSERT OR REPLACE INTO facts VALUES ('revision', ?)", (batch[-1][0],))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # a full disk has rolled it back already
                connection.execute("ROLLBACK")
            raise

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._pending and self._failure is None:
            try:
                await loop.run_in_executor(self._executor, self._commit, self._pending)
            except Exception as failure:  # the rest must be closed nevertheless
                self._failure = failure
                LOG.error("%s", self._unwritable().message)
        if self._connection is not None:
            await loop.run_in_executor(self._executor, self._connection.close)
        self._executor.shutdown(wait=True)
