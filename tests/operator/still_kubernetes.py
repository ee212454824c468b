"""The embedded Kubernetes in the test's own process, without a server, a disk or pods; it advances step by step.

Objects are stored, validated and merged by the real code, and its own controllers run. Instead of a kubelet, each step
marks new pods as Ready and removes those that are being deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from multidict import CIMultiDict
from tests.operator.still_kafka import Node

from ballast_cli.places import ROOT
from ballast_local import meta, requests
from ballast_local.bootstrap import create_defaults
from ballast_local.builtin_schemas import BuiltInSchemas
from ballast_local.definitions import Definitions
from ballast_local.errors import ApiError, no_such_path
from ballast_local.objects import Objects
from ballast_local.resources import Registry
from ballast_local.routes import Routes
from ballast_local.store import Store, encode
from ballast_local.strategy import Strategy
from ballast_local.workloads.claims import ClaimController
from ballast_local.workloads.client import Client
from ballast_local.workloads.controller import Controller, is_ready
from ballast_local.workloads.garbage import GarbageCollector
from ballast_local.workloads.statefulset import StatefulSetController
from ballast_operator.apply.kubernetes import path_of

Object = dict[str, Any]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ROUNDS = 20


@cache
def _definitions() -> tuple[str, ...]:
    bodies = [yaml.safe_load(file.read_text()) for file in sorted((ROOT / "crds").glob("*.yaml"))]
    return tuple(json.dumps(body) for body in bodies if body["kind"] == "CustomResourceDefinition")


class _Nowhere:
    """A storage that keeps nothing."""

    def put(self, *_: object) -> None:
        pass

    remove = put


class _Store(Store):
    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self._storage = _Nowhere()  # type: ignore[assignment]

    async def flush(self) -> None:
        pass


class _Request:
    """What `Routes` needs of a request."""

    def __init__(self, method: str, path: str, query: Mapping[str, str], body: bytes, content_type: str) -> None:
        self.method, self.path, self.query, self.content_type = method, path, dict(query), content_type
        self.headers = CIMultiDict({"Accept": "application/json"})
        self._body = body

    async def read(self) -> bytes:
        return self._body


class StillKubernetes:
    def __init__(self, data: Path) -> None:
        self.store, self._registry, schemas = _Store(), Registry(), BuiltInSchemas()
        strategy = Strategy(schemas)
        objects = Objects(self.store, self._registry, strategy)
        Definitions(self.store, self._registry).start()
        self._routes = Routes(self.store, objects, strategy, None, None)  # type: ignore[arg-type]
        create_defaults(objects, self._registry, self.store)
        self.client = Client(self.store, self._registry, objects, "kubelet")
        self._garbage = GarbageCollector(self.client, ())
        self._controllers: list[Controller] = [
            StatefulSetController(self.client), ClaimController(self.client, data),
        ]  # fmt: skip

    async def begin(self) -> None:
        for text in _definitions():
            await self.ask("POST", CRDS, json.loads(text))

    async def answer(
        self, method: str, path: str, body: bytes, query: Mapping[str, str], content_type: str
    ) -> tuple[int, bytes]:
        request: Any = _Request(method, path, query, body, content_type)
        try:
            if path.count("/") < 4 and not path.startswith("/api/v1/"):
                raise no_such_path()
            answer: Any = await self._routes.handle(request, requests.parse_target(self._registry, path))
        except ApiError as refusal:
            return refusal.code, encode(refusal.status())
        return answer.status, answer.body

    async def ask(self, method: str, path: str, body: Object | None = None, **query: str) -> Object:
        """Make a request as a user; it must succeed."""
        kind = "application/json"
        if method == "PATCH":
            kind = "application/apply-patch+yaml" if "fieldManager" in query else "application/merge-patch+json"
        status, text = await self.answer(method, path, json.dumps(body).encode() if body else b"", query, kind)
        assert status < 400, text
        return dict(json.loads(text))

    # What happens by itself.

    def step(self) -> None:
        """Do the kubelet's next thing with each pod, then run the controllers until nothing changes."""
        for pod in self.client.find("pods."):
            self._tend(pod)
        for _ in range(ROUNDS):
            before = self.store.revision
            self._reconcile()
            if self.store.revision == before:
                return
        raise AssertionError("the controllers come to no end")

    def _reconcile(self) -> None:
        for controller in self._controllers:
            for resource in controller.primary:
                for namespace, name in list(self.store.keys(resource)):
                    controller.reconcile(namespace, name)
        for uid in list(self.store._dependents):
            self._garbage.reconcile(uid, "")

    def _tend(self, pod: Object) -> None:
        metadata = pod["metadata"]
        if meta.is_deleting(pod):
            self.client.finish_delete("pods.", metadata["namespace"], metadata["name"])
        elif not is_ready(pod):
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": meta.now()}
            status = {**(pod.get("status") or {}), "phase": "Running", "podIP": f"ip-{metadata['name']}"}
            self.client.set_status("pods.", metadata["namespace"], metadata["name"], {**status, "conditions": [ready]})

    # The state.

    def find(self, api_version: str, plural: str, name: str) -> Object | None:
        row = requests.parse_target(self._registry, path_of(api_version, plural, "default", name)).resource
        entry = self.store.get(row.key, "default" if row.namespaced else "", name)
        return None if entry is None else entry.object()

    def all(self, key: str) -> list[Object]:
        return self.client.find(key, "default")

    def nodes(self, cluster: str) -> dict[int, Node]:
        """What runs in the ready pods, according to their configuration."""
        found = {}
        for pod in self.client.find("pods.", "default"):
            name = pod["metadata"]["name"]
            if is_ready(pod) and name.rpartition("-")[0] in (cluster, f"{cluster}-controller"):
                ordinal = int(name.rpartition("-")[2])
                number = ordinal if name == f"{cluster}-{ordinal}" else 100_000 + ordinal
                found[number] = self._node(pod)
        return found

    def _node(self, pod: Object) -> Node:
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        config = next(one["configMap"]["name"] for one in volumes.values() if "configMap" in one)
        held = self.client.get("configmaps.", "default", config)
        text = "" if held is None else held["data"].get(f"{pod['metadata']['name']}.properties", "")
        told = dict(line.split("=", 1) for line in text.splitlines())
        claims = {}
        for path in told.get("log.dirs", "").split(","):
            volume = path.split("/")[-2] if path else ""
            source = volumes.get(volume, {}).get("persistentVolumeClaim")
            claim = self.client.get("persistentvolumeclaims.", "default", source["claimName"]) if source else None
            if claim is not None and volume != "metadata":
                claims[path] = claim["metadata"]["uid"]
        born = (told.get("metadata.log.dir") or told["log.dirs"].split(",")[0], told["default.replication.factor"])
        return Node(claims, "controller" in told["process.roles"], born)
