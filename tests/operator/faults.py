"""A proxy between the operator and the Kubernetes API that fails as networks and busy API servers do.

It refuses requests (409, 410, 429, 500, 503, and 403 by a policy of the test), carries a request out and loses the
answer, is unreachable for a while, and duplicates, drops and truncates watch events. It counts its faults, so that a
test can tell that there were any. The operator gets a kubeconfig of its own; Leases are left alone, since leader
election is not what is tested. The rights that the operator's requests need are recorded, in the terms of RBAC.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import ssl
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

if TYPE_CHECKING:
    from tests.operator.world import World

Right = tuple[str, str, str]  # group, resource, verb
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
HOP_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})


@dataclass(frozen=True)
class Chances:
    """How likely each fault is, per request or per watch event."""

    conflict: float = 0.05
    too_many: float = 0.04
    unavailable: float = 0.03
    internal: float = 0.02
    lost_answer: float = 0.03
    expired: float = 0.02
    doubled: float = 0.1
    dropped: float = 0.05
    cut_off: float = 0.02


class FaultyApi:
    """The proxy; start it on the test's event loop. Without `chances` it only forwards."""

    def __init__(self, kubeconfig: Path, seed: int) -> None:
        self._config = json.loads(kubeconfig.read_text())
        self._server = self._config["clusters"][0]["cluster"]["server"]
        self._authority = str(kubeconfig.parent / "tls.crt")
        self._random = random.Random(seed)
        self._down_until = 0.0
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self._watches: list[web.Request] = []
        self.chances: Chances | None = None
        # The delay, from and to, before a request is handled.
        self.slow = (0.0, 0.0)
        # The most concurrent requests of each kind ("METHOD plural").
        self.most: Counter[str] = Counter()
        self._now: Counter[str] = Counter()
        # What a policy or an admission webhook refuses, as patterns of "METHOD path".
        self.policy: list[str] = []
        # What is always answered with 503, as such patterns.
        self.silent: list[str] = []
        self.did: Counter[str] = Counter()
        self.rights: set[Right] = set()
        self.kubeconfig = kubeconfig.parent / "kubeconfig.faulty"

    async def start(self) -> None:
        context = await asyncio.to_thread(ssl.create_default_context, cafile=self._authority)
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=200, ssl=context)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=1 << 22)
        application = web.Application(client_max_size=1 << 24)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            application, access_log=None, handle_signals=False, shutdown_timeout=0.1, handler_cancellation=True
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        cluster = {"server": f"http://127.0.0.1:{self._runner.addresses[0][1]}"}
        config = {**self._config, "clusters": [{"name": "ballast-local", "cluster": cluster}]}
        self.kubeconfig.write_text(json.dumps(config))

    async def stop(self) -> None:
        self._hang_up()
        if self._session is not None:
            await self._session.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def go_down(self, seconds: float) -> None:
        """An outage: watches are cut and requests get no answer."""
        self._down_until = time.monotonic() + seconds
        self.did["outage"] += 1
        self._hang_up()

    def _hang_up(self) -> None:
        for request in list(self._watches):
            _cut(request)

    def _happens(self, name: str) -> bool:
        chances = self.chances
        if chances is None or self._random.random() >= getattr(chances, name):
            return False
        self.did[name] += 1
        return True

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if time.monotonic() < self._down_until:
            _cut(request)
            raise web.HTTPServiceUnavailable
        body = await request.read()
        await self._take_time(request)
        if "/leases" not in request.path:
            fault = self._fault(request, body)
            if fault is not None:
                return fault
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_HEADERS}
        assert self._session is not None
        url = self._server + request.raw_path
        async with self._session.request(request.method, url, data=body or None, headers=headers) as answer:
            if request.query.get("watch") in ("1", "true"):
                self.rights |= _rights(request)
                return await self._watch(request, answer)
            self.rights |= _rights(request, made=answer.status == 201)
            content = await answer.read()
        if request.method != "GET" and "/leases" not in request.path and self._happens("lost_answer"):
            _cut(request)
        return web.Response(body=content, status=answer.status, content_type=answer.content_type)

    async def _take_time(self, request: web.Request) -> None:
        kind = f"{request.method} {request.path.partition('/default/')[2].partition('/')[0]}"
        self._now[kind] += 1
        self.most[kind] = max(self.most[kind], self._now[kind])
        try:
            if self.slow[1]:
                await asyncio.sleep(self._random.uniform(*self.slow))
        finally:
            self._now[kind] -= 1

    def _fault(self, request: web.Request, body: bytes) -> web.Response | None:
        """A refusal that does not come from the API server, if one is due."""
        if any(re.fullmatch(refused, f"{request.method} {request.path}") for refused in self.policy):
            self.did["refused"] += 1
            return _refusal(403, "Forbidden")
        if any(re.fullmatch(silent, f"{request.method} {request.path}") for silent in self.silent):
            self.did["silent"] += 1
            return _refusal(503, "ServiceUnavailable")
        if self._happens("too_many"):
            return _refusal(429, "TooManyRequests", {"Retry-After": "1"})
        if self._happens("unavailable"):
            return _refusal(503, "ServiceUnavailable")
        if self._happens("internal"):
            return _refusal(500, "InternalError")
        if request.method in ("PUT", "PATCH") and b"resourceVersion" in body and self._happens("conflict"):
            return _refusal(409, "Conflict")
        if request.method == "GET" and request.query.keys() & {"watch", "continue"} and self._happens("expired"):
            return _refusal(410, "Expired")
        return None

    async def _watch(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
        await response.prepare(request)
        self._watches.append(request)
        try:
            async for line in answer.content:
                if self._happens("dropped"):
                    continue
                if self._happens("cut_off"):
                    await response.write(line[: len(line) // 2])
                    _cut(request)
                    break
                if self._happens("expired"):
                    await response.write(
                        json.dumps({"type": "ERROR", "object": _status(410, "Expired")}).encode() + b"\n"
                    )
                    break
                await response.write(line * 2 if self._happens("doubled") else line)
        except (ConnectionError, aiohttp.ClientError):
            pass
        finally:
            self._watches.remove(request)
        return response


def _rights(request: web.Request, made: bool = False) -> set[Right]:
    """The rights that a request needs; a server-side apply that created its object (`made`) needs `create` as well."""
    parts = request.path.strip("/").split("/")
    if parts[0] == "openapi":  # any authenticated user may read it
        return set()
    group, rest = ("", parts[2:]) if parts[0] == "api" else ("".join(parts[1:2]), parts[3:])
    if not rest:  # discovery, which is open to all
        return set()
    resource, *named = rest[2:] if rest[0] == "namespaces" and len(rest) > 2 else rest
    resource = "/".join([resource, *named[1:]])
    if request.method == "GET":
        watches = request.query.get("watch") in ("1", "true")
        return {(group, resource, "watch" if watches else "get" if named else "list")}
    verbs = {VERBS[request.method]} | ({"create"} if made else set())
    return {(group, resource, verb) for verb in verbs}


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _status(code: int, reason: str) -> dict[str, Any]:
    return {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": f"{reason}, says the proxy of the test",
    }  # fmt: skip


def _refusal(code: int, reason: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response(_status(code, reason), status=code, headers=headers)


@contextmanager
def behind_faults(world: World) -> Iterator[FaultyApi]:
    """Run the world's operator behind a faulty API, at first one without faults."""
    proxy = FaultyApi(world.kubeconfig, seed=1)
    world.run(proxy.start())
    world.kill_operator()
    world.restart_operator(proxy.kubeconfig)
    try:
        yield proxy
    finally:
        world.kill_operator()
        world.restart_operator()
        world.run(proxy.stop())
