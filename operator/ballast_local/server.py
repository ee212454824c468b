"""The HTTPS server on loopback: authentication, discovery, OpenAPI documents, and errors as Status objects."""

import asyncio
import hmac
import logging
import ssl
from pathlib import Path

from aiohttp import web

from ballast_local import discovery, openapi, protobuf, requests
from ballast_local.builtin_schemas import BuiltInSchemas
from ballast_local.errors import ApiError, Obj, no_such_path, not_implemented
from ballast_local.resources import Registry
from ballast_local.routes import Routes, json_response
from ballast_local.store import Store, encode

LOG = logging.getLogger("ballast.local")
MAX_BODY_BYTES = 3 * 1024 * 1024
KEEP_ALIVE_SECONDS = 600.0


class Server:
    def __init__(self, store: Store, registry: Registry, schemas: BuiltInSchemas, routes: Routes, token: str) -> None:
        self._store, self._registry, self._schemas, self._routes = store, registry, schemas, routes
        self._authorization = f"Bearer {token}"
        self._documents: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._runner: web.AppRunner | None = None
        self.port = 0
        self.requests_served = 0

    async def start(self, port: int, certificate: Path, key: Path) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        application = web.Application(client_max_size=MAX_BODY_BYTES)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=1.0,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=context)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests_served += 1
        try:
            return await self._dispatch(request)
        except ApiError as refusal:
            return json_response(encode(refusal.status()), refusal.code)
        except web.HTTPRequestEntityTooLarge:
            too_large = ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY_BYTES}")
            return json_response(encode(too_large.status()), 413)
        except Exception as fault:
            if isinstance(fault, ConnectionError) and requests.is_gone(request):
                return web.Response()  # nobody receives it, but raising would be logged as our fault
            LOG.exception("%s %s", request.method, request.path)
            broken = ApiError(500, "InternalError", f"Internal error occurred: {fault!r}")
            return json_response(encode(broken.status()), 500)

    async def _dispatch(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path in ("/healthz", "/readyz", "/livez") or path.startswith(("/healthz/", "/readyz/", "/livez/")):
            return web.Response(text="ok")
        if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), self._authorization.encode()):
            raise ApiError(401, "Unauthorized", "Unauthorized")
        if path == "/version":
            return json_response(encode(discovery.version_document()))
        if f"{path}/".startswith(("/api/", "/apis/")):
            document = self._discover(request)
            if document is not None:
                return document
            return await self._routes.handle(request, requests.parse_target(self._registry, path))
        if f"{path}/".startswith("/openapi/v3/"):
            return await self._openapi(path)
        if path == "/openapi/v2":
            # kubectl asks for protobuf and looks there for kinds that v3 lacks. If this failed, kubectl would report
            # that error instead of the unknown kind.
            if not requests.takes_json(request.headers.get("Accept", "")):
                return web.Response(body=protobuf.EMPTY_OPENAPI, content_type=protobuf.OPENAPI)
            raise not_implemented("OpenAPI v2; the v3 documents are at /openapi/v3")
        if path in ("/", "/metrics", "/logs", "/configz"):
            raise not_implemented(f"the path {path}")
        raise no_such_path()

    def _discover(self, request: web.Request) -> web.Response | None:
        parts = [part for part in request.path.split("/") if part]
        core = parts[0] == "api"
        accept = request.headers.get("Accept", "")
        document: Obj | None
        if len(parts) == 1:
            offered = accept.split(",")[0]
            if "as=APIGroupDiscoveryList" in offered:
                version = "v2" if "v=v2;" in offered + ";" and "v2beta1" not in offered else "v2beta1"
                body = discovery.aggregated(self._registry, core, f"apidiscovery.k8s.io/{version}")
                response = json_response(encode(body))
                kind = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
                response.headers["Content-Type"] = kind
                return response
            document = discovery.core_versions() if core else discovery.group_list(self._registry)
        elif core and len(parts) == 2 and parts[1] == "v1":
            document = discovery.resource_list(self._registry, "", "v1")
        elif not core and len(parts) == 2:
            document = discovery.group_document(self._registry, parts[1])
        elif not core and len(parts) == 3:
            document = discovery.resource_list(self._registry, parts[1], parts[2])
        else:
            return None
        if document is None:
            raise no_such_path()
        return json_response(encode(document))

    async def _openapi(self, path: str) -> web.Response:
        parts = [part for part in path.split("/") if part][2:]
        if not parts:
            return json_response(encode(openapi.index(self._registry)))
        group, version = ("", parts[-1]) if parts[0] == "api" else (parts[1] if len(parts) > 2 else "", parts[-1])
        if not self._registry.rows(group, version):
            raise no_such_path()
        held = self._documents.get((group, version))
        if held is None or held[0] != self._registry.changes:
            changes = self._registry.changes
            body = await asyncio.to_thread(self._document, group, version)
            held = self._documents[(group, version)] = (changes, body)
        return json_response(held[1])

    def _document(self, group: str, version: str) -> bytes:
        return encode(openapi.document(self._registry, self._schemas, group, version))
