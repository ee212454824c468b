"""Provides a running embedded API in a thread of its own, and a small HTTP client for it."""

import asyncio
import http.client
import json
import re
import shutil
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from e2e.kubernetes.binaries import built
from e2e.sockets import forget_sockets
from tests.local.real_api import RealApi
from tests.waiting import eventually

from ballast_local.cluster import LocalCluster

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


class Refused(Exception):
    def __init__(self, status: dict[str, Any]) -> None:
        super().__init__(status.get("message"))
        self.code, self.reason, self.status = status["code"], status.get("reason", ""), status


class Api:
    """A client with one connection; it decodes every response and raises refusals."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        self.token = config["users"][0]["user"]["token"]
        parts = urlsplit(config["clusters"][0]["cluster"]["server"])
        self._context = ssl.create_default_context(cafile=str(kubeconfig.parent / "tls.crt"))
        self._address = (parts.hostname or "", parts.port or 0)
        self._connection = self.connect()
        self.warnings: list[str] = []

    def connect(self, timeout: float = 20.0) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(*self._address, context=self._context, timeout=timeout)

    def close(self) -> None:
        self._connection.close()

    def raw(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", **headers: str
    ) -> tuple[int, bytes]:
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {self.token}", "User-Agent": "tests/1", **headers}
        if content is not None:
            sent["Content-Type"] = kind
        self._connection.request(method, path, content, sent)
        response = self._connection.getresponse()
        self.warnings = response.headers.get_all("Warning") or []
        return response.status, response.read()

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json", **headers: str) -> Any:
        status, answer = self.raw(method, path, body, kind, **headers)
        decoded = json.loads(answer)
        if status >= 400:
            raise Refused(decoded)
        return decoded

    def get(self, path: str, **headers: str) -> Any:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any) -> Any:
        return self.call("POST", path, _typed(path, body))

    def put(self, path: str, body: Any) -> Any:
        return self.call("PUT", path, _typed(path, body))

    def patch(self, path: str, body: Any, kind: str = MERGE) -> Any:
        return self.call("PATCH", path, body, kind)

    def delete(self, path: str, body: Any = None) -> Any:
        return self.call("DELETE", path, body)

    def find(self, path: str) -> Any:
        """The object, or None if there is none (any more), in a single request."""
        status, answer = self.raw("GET", path)
        return json.loads(answer) if status == 200 else None

    def exists(self, path: str) -> bool:
        return self.find(path) is not None

    def watch(self, path: str, count: int, timeout: float = 10.0) -> list[dict[str, Any]]:
        """The first events of a watch."""
        connection = self.connect(timeout)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
            response = connection.getresponse()
            found: list[dict[str, Any]] = []
            while len(found) < count:
                line = response.readline()
                if not line:
                    break
                found.append(json.loads(line))
            return found
        finally:
            connection.close()


def _typed(path: str, body: Any) -> Any:
    """The body of a custom resource with its apiVersion and kind, which the API requires and tests leave out."""
    found = re.match(r"/apis/(test\.dev/\w+)/(?:namespaces/[^/]+/)?(\w+)", path)
    return {"apiVersion": found[1], "kind": found[2].rstrip("s").capitalize()} | body if found else body


class Running:
    """A LocalCluster on an event loop in a thread."""

    def __init__(self, data: Path, **options: Any) -> None:
        self.data = data
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.cluster: LocalCluster
        self.kubeconfig: Path
        self._apis: list[Api] = []
        self.start()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def start(self) -> None:
        async def start() -> Path:
            self.cluster = LocalCluster(**self._options)
            return await self.cluster.start(self.data)

        self.kubeconfig = self.run(start())

    def api(self) -> Api:
        self._apis.append(Api(self.kubeconfig))
        return self._apis[-1]

    def stop(self) -> None:
        for api in self._apis:
            api.close()
        self._apis.clear()
        self.run(self.cluster.stop())

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        forget_sockets()  # of clients that did not complete the TLS shutdown


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    cluster = Running(tmp_path_factory.mktemp("local"))
    yield cluster
    cluster.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Running]:
    """An embedded API that a test may stop and start."""
    cluster = Running(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
def api(running: Running) -> Api:
    return running.api()


_COUNT = iter(range(10_000))


@pytest.fixture
def namespace(api: Api) -> str:
    name = f"ns-{next(_COUNT)}"
    api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def definition(plural: str = "widgets", **schema: Any) -> dict[str, Any]:
    kind = plural.rstrip("s").capitalize()
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    spec = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": "integer", "minimum": 1, "description": "How large it is."},
            "replicas": {"type": "integer", "default": 1},
            "mode": {"type": "string", "enum": ["Fast", "Safe"]},
            "config": {"type": "object", "additionalProperties": {"type": "string"}},
            "box": {
                "type": "object",
                "properties": {"colour": {"type": "string"}, "lid": {"type": "string", "default": "closed"}},
            },
            "parts": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}, "weight": {"type": "integer", "default": 1}},
                },
            },
        },
        "x-kubernetes-validations": [
            {"rule": "self.size >= oldSelf.size", "message": "size cannot shrink"},
            {"rule": "self.replicas <= 5", "messageExpression": "string(self.replicas) + ' replicas are too many'"},
        ],
    }
    root = {
        "type": "object",
        "properties": {"spec": spec, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root | schema},
        "additionalPrinterColumns": columns,
        "subresources": {
            "status": {},
            "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
        },
    }
    names = {"plural": plural, "kind": kind, "shortNames": [plural[:2]]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.test.dev"},
        "spec": {"group": "test.dev", "scope": "Namespaced", "names": names, "versions": [version]},
    }


DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def widgets(api: Api, namespace: str) -> str:
    """The path of a collection of custom resources in the test's own namespace."""
    if not api.exists(f"{DEFINITIONS}/widgets.test.dev"):
        api.post(DEFINITIONS, definition())
    return f"/apis/test.dev/v1/namespaces/{namespace}/widgets"


# the same tests against the embedded API and a real kube-apiserver

PROGRAMS = built()
REAL = pytest.param(
    "real",
    marks=[
        pytest.mark.kubernetes,
        pytest.mark.timeout(300),
        pytest.mark.skipif(PROGRAMS is None or shutil.which("etcd") is None, reason="no kube-apiserver, or no etcd"),
    ],
)


@pytest.fixture(scope="module", params=["embedded", REAL])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    data = tmp_path_factory.mktemp("api")
    if request.param == "embedded":
        running = Running(data)
        yield _prepared(running.api())
        running.close()
        return
    assert PROGRAMS is not None
    with RealApi(PROGRAMS, data) as real:
        api = Api(real.kubeconfig)
        yield _prepared(api)
        api.close()


def _prepared(api: Api) -> Api:
    made = definition()
    spec = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["x-kubernetes-validations"][1]["messageExpression"]  # a real kube-apiserver finds it too costly
    api.post(DEFINITIONS, made)
    eventually(lambda: api.raw("GET", "/apis/test.dev/v1/widgets")[0] == 200, seconds=60)
    return api


@pytest.fixture
def place(server: Api) -> str:
    name = server.call("POST", "/api/v1/namespaces", {"metadata": {"generateName": "alike-"}})["metadata"]["name"]
    return f"namespaces/{name}"


@pytest.fixture
def path(place: str) -> str:
    return f"/apis/test.dev/v1/{place}/widgets"


@pytest.fixture
def maps(place: str) -> str:
    return f"/api/v1/{place}/configmaps"


def refusal(api: Api, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, str]:
    with pytest.raises(Refused) as refused:
        api.call(method, path, body, kind)
    return refused.value.code, str(refused.value)
