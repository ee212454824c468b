"""Handles requests on objects and collections: the verbs of the API, carried out by the pipeline (`objects`)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from ballast_local import requests, scale
from ballast_local.errors import (
    ApiError,
    Obj,
    bad_request,
    method_not_allowed,
    no_such_path,
    not_implemented,
    unsupported_media,
)
from ballast_local.listing import Page, Selection, Writer, page
from ballast_local.objects import Objects, Options
from ballast_local.patch import json_patch, merge_patch, strategic_patch
from ballast_local.requests import Target
from ballast_local.resources import Resource
from ballast_local.reviews import review
from ballast_local.store import Entry, Store, encode
from ballast_local.strategy import Strategy
from ballast_local.watch import Watch
from ballast_local.workloads.disruption import blocking_budget

LogReader = Callable[[web.Request, Obj], Awaitable[web.StreamResponse]]


def json_response(body: bytes, status: int = 200, warnings: list[str] | None = None) -> web.Response:
    response = web.Response(body=body, status=status, content_type="application/json")
    for text in warnings or ():
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')
    return response


class Routes:
    """The handlers of all requests. It has no state of its own."""

    def __init__(
        self, store: Store, objects: Objects, strategy: Strategy, closing: asyncio.Event, read_log: LogReader
    ) -> None:
        self._store, self._objects, self._strategy = store, objects, strategy
        self._closing, self._read_log = closing, read_log

    async def handle(self, request: web.Request, target: Target) -> web.StreamResponse:
        if target.subresource:
            return await self._subresource(request, target)
        if not target.resource.stored:
            if request.method != "POST" or target.name:
                raise method_not_allowed(request.method)
            body = requests.parse_object(await request.read(), request.content_type)
            return json_response(encode(review(target.resource, body)), 201)
        if target.name:
            return await self._named(request, target)
        return await self._collection(request, target)

    def _writer(self, request: web.Request, resource: Resource) -> Writer:
        form = requests.parse_form(request.headers.get("Accept", ""))
        return Writer(resource, form, request.query.get("includeObject", ""), self._strategy.served)

    def _options(self, request: web.Request, body: Obj | None = None) -> Options:
        return requests.parse_options(request.query, request.headers.get("User-Agent", ""), body)

    async def _answer(
        self, request: web.Request, target: Target, entry: Entry, options: Options, status: int = 200
    ) -> web.Response:
        await self._store.flush()
        return json_response(self._writer(request, target.resource).one(entry), status, options.warnings)

    # collections

    async def _collection(self, request: web.Request, target: Target) -> web.StreamResponse:
        if request.method == "GET":
            if request.query.get("watch") in ("true", "1"):
                return await self._watch(request, target)
            return await self._list(request, target)
        if request.method == "POST":
            if target.resource.namespaced and not target.namespace:
                raise method_not_allowed("POST")
            obj = requests.parse_object(await request.read(), request.content_type)
            options = self._options(request)
            entry = self._objects.create(target.resource, target.namespace, obj, options)
            return await self._answer(request, target, entry, options, 201)
        if request.method == "DELETE" and (target.namespace or not target.resource.namespaced):
            return await self._delete_collection(request, target)
        raise method_not_allowed(request.method)

    async def _list(self, request: web.Request, target: Target) -> web.Response:
        found = self._page(request.query, target)
        return json_response(self._writer(request, target.resource).many(found))

    def _page(self, query: Mapping[str, str], target: Target) -> Page:
        return page(self._store, target, query, Selection(target, query, self._strategy.served))

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        selection = Selection(target, request.query, self._strategy.served)
        watch = Watch(self._store, target, request.query, selection, self._writer(request, target.resource))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await watch.run(request, response, self._closing)
        await response.write_eof()
        return response

    async def _delete_collection(self, request: web.Request, target: Target) -> web.Response:
        body = await self._body(request)
        options = self._options(request, body)
        found = self._page(request.query, target)
        for entry in found.entries:
            try:
                self._objects.delete(
                    target.resource, entry.namespace, entry.name, self._delete_request(request, body), options
                )
            except ApiError as refusal:
                if refusal.code != 404:
                    raise
        await self._store.flush()
        return json_response(self._writer(request, target.resource).many(found))

    # single objects

    async def _named(self, request: web.Request, target: Target) -> web.StreamResponse:
        method = request.method
        if method == "GET":
            if request.query.get("watch") in ("true", "1"):
                return await self._watch(request, target)
            entry = self._objects.entry(target.resource, target.namespace, target.name)
            return json_response(self._writer(request, target.resource).one(entry))
        if method in ("PUT", "PATCH"):
            return await self._write(request, target)
        if method == "DELETE":
            return await self._delete(request, target)
        raise method_not_allowed(method)

    async def _write(self, request: web.Request, target: Target) -> web.Response:
        raw = await request.read()
        options = self._options(request)
        if request.method == "PUT":
            obj = requests.parse_object(raw, request.content_type)
            entry = self._objects.update(
                target.resource, target.namespace, target.name, obj, options, target.subresource
            )
            return await self._answer(request, target, entry, options)
        kind = request.content_type
        body = requests.parse_body(raw, kind)
        if kind == "application/apply-patch+yaml":
            if not isinstance(body, dict):
                raise bad_request("the body of an apply must be an object")
            if "fieldManager" not in request.query:
                raise bad_request(
                    'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
                )
            entry, created = self._objects.apply(
                target.resource, target.namespace, target.name, body, options, target.subresource
            )
            return await self._answer(request, target, entry, options, 201 if created else 200)
        change = self._patcher(target.resource, kind, body)
        entry = self._objects.change(
            target.resource, target.namespace, target.name, change, options, target.subresource
        )
        return await self._answer(request, target, entry, options)

    def _patcher(self, resource: Resource, kind: str, body: Any) -> Callable[[Obj], Obj]:
        if kind == "application/json-patch+json":
            return lambda old: json_patch(old, body)
        if not isinstance(body, dict):
            raise bad_request("the body of a merge patch must be an object")
        if kind == "application/merge-patch+json":
            return lambda old: _merged(old, body)
        if kind == "application/strategic-merge-patch+json" and not resource.custom:
            return lambda old: _versioned(strategic_patch(old, body), body)
        accepted = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
        if not resource.custom:
            accepted += ", application/strategic-merge-patch+json"
        raise unsupported_media(accepted)

    async def _body(self, request: web.Request) -> Obj:
        raw = await request.read()
        return requests.parse_object(raw, request.content_type) if raw.strip() else {}

    def _delete_request(self, request: web.Request, body: Obj) -> Obj:
        result = dict(body)
        if "propagationPolicy" in request.query:
            result["propagationPolicy"] = request.query["propagationPolicy"]
        if "gracePeriodSeconds" in request.query:
            result["gracePeriodSeconds"] = requests.whole_number(request.query["gracePeriodSeconds"])
        return result

    async def _delete(self, request: web.Request, target: Target) -> web.Response:
        body = await self._body(request)
        options = self._options(request, body)
        entry, gone = self._objects.delete(
            target.resource, target.namespace, target.name, self._delete_request(request, body), options
        )
        if not gone or target.resource.key == "pods.":
            return await self._answer(request, target, entry, options)
        await self._store.flush()
        row = target.resource
        details = {"name": target.name, "group": row.group, "kind": row.plural, "uid": entry.uid}
        details = {name: value for name, value in details.items() if value}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return json_response(encode(status))

    # subresources

    async def _subresource(self, request: web.Request, target: Target) -> web.StreamResponse:
        row, name = target.resource, target.subresource
        if name == "status" and row.status:
            if request.method == "GET":
                entry = self._objects.entry(row, target.namespace, target.name)
                return json_response(self._writer(request, row).one(entry))
            if request.method in ("PUT", "PATCH"):
                return await self._write(request, target)
            raise method_not_allowed(request.method)
        if name == "scale" and row.scale:
            return await self._scale(request, target)
        if name == "log" and row.key == "pods.":
            return await self._read_log(request, self._objects.get(row, target.namespace, target.name))
        if name == "eviction" and row.key == "pods.":
            return await self._evict(request, target)
        if not row.custom and name in ("exec", "attach", "portforward", "proxy", "eviction", "ephemeralcontainers",
                                       "finalize", "token", "resize", "binding"):  # fmt: skip
            raise not_implemented(f"the subresource {name!r} of {row.plural}")
        raise no_such_path()

    async def _evict(self, request: web.Request, target: Target) -> web.Response:
        """Delete the pod if all disruption budgets that cover it allow one more disruption."""
        if request.method != "POST":
            raise method_not_allowed(request.method)
        body = requests.parse_object(await request.read(), request.content_type)
        wanted = body.get("deleteOptions") or {}
        options = self._options(request, wanted)
        entry = self._objects.entry(target.resource, target.namespace, target.name)
        if budget := blocking_budget(self._store, entry):
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise ApiError(429, "TooManyRequests", message, {"name": budget, "kind": "PodDisruptionBudget"})
        self._objects.delete(target.resource, target.namespace, target.name, wanted, options)
        await self._store.flush()
        return json_response(encode({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}), 201)

    async def _scale(self, request: web.Request, target: Target) -> web.Response:
        row = target.resource
        if request.method == "GET":
            return json_response(encode(scale.scale_of(row, self._objects.get(row, target.namespace, target.name))))
        if request.method not in ("PUT", "PATCH"):
            raise method_not_allowed(request.method)
        body = requests.parse_body(await request.read(), request.content_type)
        options = self._options(request)

        def change(old: Obj) -> Obj:
            if request.method == "PUT":
                wanted = body
            elif request.content_type == "application/json-patch+json":
                wanted = json_patch(scale.scale_of(row, old), body)
            else:
                wanted = merge_patch(scale.scale_of(row, old), body)
            return scale.with_replicas(row, old, wanted)

        entry = self._objects.change(row, target.namespace, target.name, change, options, "scale")
        await self._store.flush()
        return json_response(encode(scale.scale_of(row, self._strategy.served(row, entry.object()))))


def _versioned(new: Obj, body: Obj) -> Obj:
    """Drop the old resourceVersion unless the patch contains one: only then is the patch conditional."""
    version = (body.get("metadata") or {}).get("resourceVersion")
    if version is None:
        new["metadata"].pop("resourceVersion", None)
    return new


def _merged(old: Obj, body: Obj) -> Obj:
    new = merge_patch(old, body)
    if not isinstance(new.get("metadata"), dict):
        raise bad_request("metadata must be an object")
    return _versioned(new, body)
