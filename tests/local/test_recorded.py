"""What kubectl, Kopf and our clients were recorded to ask: all of it is served, and as a real kube-apiserver does."""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest
from e2e.kubernetes.binaries import built
from tests.local.conftest import Api, Running
from tests.local.real_api import RealApi
from tests.local.replay import Request, comparable, differences, is_definition, recording, send, served
from tests.waiting import eventually

PROGRAMS = built()
DEFINED = r"^(\.items\[\d\]|\.rows\[\d\]\[1\]|\[0\]\.object|\.object)?"
# (request, what differs): each is explained in docs/embedded.md.
EXPLAINED = (
    ("GET /openapi/v2", r"^: embedded "),
    ("POST .*customresourcedefinitions", r"^\.status\.(acceptedNames|conditions|storedVersions)"),
    ("POST .*customresourcedefinitions", r"^\.metadata\.finalizers"),
    ("customresourcedefinitions", r"f:conversion\.\.: only the real"),
    ("GET .*customresourcedefinitions", DEFINED + r"\.metadata\.(finalizers|managedFields)"),
    ("GET .*customresourcedefinitions", r"^\.items\[\d\]\.(apiVersion|kind): only the embedded"),
    ("POST .*selfsubjectaccessreviews", r"^\.(metadata\.managedFields|status\.reason): only"),
    ("POST .*/events", r"^\.eventTime: only the real one says null"),
    ("GET .*/events", r"^\.(rows|items): embedded \[\], real .*ClusterIPNotAllocated"),
)


def _settle(api: Api, request: Request) -> None:
    """A real server establishes a definition a moment after it has answered."""
    if not is_definition(request):
        return
    name = request.body["definition"].removesuffix(".yaml")
    path = f"{request.path.partition('?')[0]}/{name}.ballast.dev"

    def established() -> bool:
        conditions = api.get(path)["status"].get("conditions") or ()
        return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)

    eventually(established, seconds=60)
    eventually(lambda: api.exists(f"/apis/ballast.dev/v1alpha1/{name}"), seconds=60)


def _differ(request: Request, embedded: tuple[int, Any], real: tuple[int, Any]) -> list[str]:
    found = [] if embedded[0] == real[0] else [f"status: embedded {embedded[0]}, real {real[0]}"]
    if not request.is_document:
        found += differences("", comparable(embedded[1]), comparable(real[1]))
    elif not found and isinstance(real[1], dict):
        ours, theirs = served(embedded[1]), served(real[1])
        found += differences("", ours, {name: theirs[name] for name in ours if name in theirs})
    return [
        text
        for text in found
        if not any(re.search(where, request.title) and re.search(what, text) for where, what in EXPLAINED)
    ]


@pytest.mark.spec("OPR-01")
def test_everything_recorded_is_served(own: Running) -> None:
    api = own.api()
    for request in recording():
        if "watch=true" not in request.path:
            assert send(api, request)[0] == request.status, request.title


@pytest.mark.kubernetes
@pytest.mark.timeout(300)
@pytest.mark.skipif(PROGRAMS is None or shutil.which("etcd") is None, reason="no kube-apiserver is built, or no etcd")
def test_a_real_server_answers_alike(own: Running, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert PROGRAMS is not None
    found = []
    with RealApi(PROGRAMS, tmp_path_factory.mktemp("real")) as server:
        embedded, real = own.api(), Api(server.kubeconfig)
        for request in recording():
            answers = send(embedded, request), send(real, request)
            found += [f"{request.title}: {text}" for text in _differ(request, *answers)]
            _settle(real, request)
        real.close()
    assert not found, "\n".join(found)
