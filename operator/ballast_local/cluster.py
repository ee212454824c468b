"""LocalCluster: the embedded Kubernetes API with its controllers and pods, started and stopped as one.

This module wires all other modules together. All state is in one data directory; the server binds to loopback only.
"""

import asyncio
import base64
import errno
import json
import os
import secrets
from pathlib import Path

from ballast_local.bootstrap import create_defaults
from ballast_local.builtin_schemas import BuiltInSchemas
from ballast_local.certificates import make_certificate
from ballast_local.definitions import Definitions
from ballast_local.folders import why_unusable
from ballast_local.objects import Objects
from ballast_local.resources import Registry
from ballast_local.routes import Routes
from ballast_local.server import Server
from ballast_local.store import HISTORY_LIMIT, Store
from ballast_local.strategy import Strategy
from ballast_local.workloads.controllers import Workloads
from ballast_local.workloads.node import STOP_SECONDS


class InUseError(RuntimeError):
    """Another process uses the data directory."""


class LocalCluster:
    """Start it, use the kubeconfig that it returns, stop it; a later start on the same directory resumes from there."""

    def __init__(self, history_limit: int = HISTORY_LIMIT) -> None:
        self._history_limit = history_limit
        self._store: Store | None = None
        self._server: Server | None = None
        self._workloads: Workloads | None = None
        self._closing = asyncio.Event()
        self._lock: int | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"https://127.0.0.1:{self._server.port}"

    @property
    def requests_served(self) -> int:
        return self._server.requests_served if self._server else 0

    async def failed(self) -> None:
        """Return when the database can no longer be written, for instance because the disk is full."""
        assert self._store is not None
        await self._store.failed.wait()

    async def start(self, data_dir: Path | str, port: int = 0) -> Path:
        """Start everything and return the path of the kubeconfig. Port 0 means the previous port, or any free one."""
        data = await asyncio.to_thread(_directory, Path(data_dir))
        self._lock = _lock(data / "lock")
        try:
            return await self._start(data, port)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, data: Path, port: int) -> Path:
        facts = await asyncio.to_thread(_facts, data)
        store = self._store = Store(data / "objects.db", self._history_limit)
        await store.open()
        registry, schemas = Registry(), BuiltInSchemas()
        strategy = Strategy(schemas)
        objects = Objects(store, registry, strategy)
        Definitions(store, registry).start()
        kubeconfig = data / "kubeconfig"
        workloads = self._workloads = Workloads(store, registry, objects, data, kubeconfig)
        routes = Routes(store, objects, strategy, self._closing, workloads.logs.read)
        self._server = Server(store, registry, schemas, routes, facts["token"])
        await self._listen(self._server, data, port or int(facts.get("port") or 0), bool(port))
        create_defaults(objects, registry, store)
        await store.flush()
        _write_private(data / "facts.json", json.dumps({"token": facts["token"], "port": self._server.port}))
        _write_private(kubeconfig, _kubeconfig(self.url, facts["token"], (data / "tls.crt").read_text()))
        await workloads.start()
        return kubeconfig

    async def _listen(self, server: Server, data: Path, port: int, demanded: bool) -> None:
        try:
            await server.start(port, data / "tls.crt", data / "tls.key")
        except OSError:
            if demanded or not port:
                raise
            await server.start(0, data / "tls.crt", data / "tls.key")

    async def stop(self, grace_seconds: float = STOP_SECONDS) -> None:
        """End watches, stop the pods' processes like a node that shuts down, and close the store. Idempotent."""
        self._closing.set()
        workloads, self._workloads = self._workloads, None
        if workloads is not None:
            await workloads.stop(grace_seconds)
        server, self._server = self._server, None
        if server is not None:
            await server.stop()
        store, self._store = self._store, None
        if store is not None:
            await store.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _directory(path: Path) -> Path:
    if why := why_unusable(path):
        raise OSError(errno.EINVAL, why)
    for name in () if (path / "objects.db").exists() else ("pods", "volumes"):
        if (path / name).is_dir() and any(one.name != ".deleted" for one in (path / name).iterdir()):
            why = f"its folder {name} is not one of an embedded Kubernetes, which would remove what is in it"
            raise OSError(errno.ENOTEMPTY, why)
    path.mkdir(parents=True, exist_ok=True)
    for name in ("pods", "volumes", "volumes/.deleted"):  # mounted secrets, and the data of claims
        (path / name).mkdir(exist_ok=True)
        (path / name).chmod(0o700)
    return path.resolve()


def _lock(path: Path) -> int:
    """Lock the data directory, so that only one process uses it."""
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise InUseError(f"another embedded Kubernetes API uses the directory {path.parent}") from None
    return handle


def _write_private(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(handle)  # otherwise a power failure may leave the renamed file empty
    temporary.replace(path)


def _facts(data: Path) -> dict[str, str]:
    """Return the token and port of earlier starts, and make the certificate; each is made once and kept."""
    certificate, key = data / "tls.crt", data / "tls.key"
    if not all(path.exists() and path.stat().st_size for path in (certificate, key)):  # empty after a power failure
        made = make_certificate()
        _write_private(key, made[1])
        _write_private(certificate, made[0])
    try:
        facts = json.loads((data / "facts.json").read_text())
    except (OSError, ValueError):
        facts = {}
    return {"token": facts.get("token") or secrets.token_urlsafe(32), "port": facts.get("port") or ""}


def _kubeconfig(url: str, token: str, certificate: str) -> str:
    authority = base64.b64encode(certificate.encode()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "ballast-local", "cluster": {"server": url, "certificate-authority-data": authority}}],
        "users": [{"name": "ballast-local", "user": {"token": token}}],
        "contexts": [
            {"name": "ballast-local",
             "context": {"cluster": "ballast-local", "user": "ballast-local", "namespace": "default"}}
        ],
        "current-context": "ballast-local",
    }  # fmt: skip
    return json.dumps(config, indent=1)
