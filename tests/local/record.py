"""Records `recorded.jsonl` again, with a kubectl that is built or named and what `./ballast test` has installed:

    PYTHONPATH=broker-image:operator:spark .ballast/env/bin/python -m tests.local.record

kubectl and the operator (Kopf and our own client) talk to an embedded API that records their requests.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from aiohttp import web
from e2e.kubernetes.binaries import kubectl
from tests.local.conftest import Running
from tests.local.replay import DOCUMENT, RECORDING, ROOT
from tests.waiting import eventually

from ballast_local.errors import ApiError
from ballast_local.server import Server

LEASE_ROUNDS = 2
CLUSTER = """
apiVersion: ballast.dev/v1alpha1
kind: KafkaCluster
metadata: {name: demo}
spec: {external: {bootstrapServers: "127.0.0.1:1"}}
"""
CONDITION = {
    "type": "Ready", "status": "True", "reason": "UpToDate", "message": "m", "observedGeneration": 5,
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}  # fmt: skip

STATUS = json.dumps({"status": {"conditions": [CONDITION]}}, separators=(",", ":"))


def topic(name: str, partitions: int, more: str = "") -> str:
    spec = f"spec: {{clusterRef: {{name: demo}}, partitions: {partitions}, replicas: 2, config: {{retention.ms: '1'}}}}"
    return f"apiVersion: ballast.dev/v1alpha1\nkind: KafkaTopic\nmetadata: {{name: {name}}}\n{spec}\n{more}"


# (arguments, standard input); refused requests are recorded as well.
STORY: tuple[tuple[str, str | None], ...] = (
    ("version", None),
    ("api-resources", None),
    *((f"apply -f crds/{name}.yaml", None) for name in ("kafkaclusters", "kafkatopics", "reassignments")),
    ("wait --for=condition=Established crd/kafkatopics.ballast.dev --timeout=20s", None),
    ("apply -f -", CLUSTER),
    *(("apply -f -", topic("orders", count)) for count in (3, 3, 6, 4)),
    ("apply -f -", topic("bad", 0)),
    ("apply --server-side -f -", topic("events", 3)),
    ("apply --server-side --field-manager=other -f -", topic("events", 5)),
    ("apply --server-side --field-manager=other --force-conflicts -f -", topic("events", 5)),
    ("diff --server-side --field-manager=other -f -", topic("events", 6)),
    ("create -f -", topic("orders", 3)),
    *((f"get {what}", None) for what in ("kafkatopics", "bkt orders -o yaml", "bkt -o wide", "bkt -A", "bkt none",
                                         "ballast", "bkt orders --watch-only --request-timeout=1s")),
    ("describe bkt orders", None),
    ("explain kafkatopic.spec.partitions", None),
    ("label bkt orders team=a", None),
    ("annotate bkt orders ballast.dev/paused=true", None),
    ("get bkt -l team=a -o name", None),
    ("get bkt --field-selector metadata.name=orders -o name", None),
    ('patch bkt orders --type=merge -p {"spec":{"config":{"cleanup.policy":"compact"}}}', None),
    ('patch bkt orders --type=json -p [{"op":"remove","path":"/spec/config/retention.ms"}]', None),
    ('patch bkt orders --type=merge -p {"spec":{"topicName":"other"}}', None),
    ("patch bkt orders --type=strategic -p {}", None),
    (f"patch bkt orders --subresource=status --type=merge -p {STATUS}", None),
    ("wait --for=condition=Ready bkt/orders --timeout=5s", None),
    ("edit bkt orders", None),
    ("replace -f -", topic("orders", 8)),
    ("scale bkc/demo --replicas=4", None),
    *(("create configmap c --from-literal=a=" + value, None) for value in "bc"),
    ("create secret generic s --from-literal=x=y", None),
    ("get cm c -o yaml", None),
    ('patch cm c -p {"data":{"d":"e"}}', None),
    ("create namespace n1", None),
    ("get ns n1", None),
    ("create configmap Bad_Name", None),
    ("-n nowhere create configmap c", None),
    ("apply --dry-run=server -f -", topic("dry", 3)),
    ("apply --validate=strict -f -", topic("odd", 3, "more: 1\n")),
    *((f"get {what}", None) for what in ("events", "crd kafkatopics.ballast.dev", "crd", "nothing")),
    ("auth can-i get pods", None),
    *(("delete bkt events", None),) * 2,
    ("delete cm c --wait=false", None),
    ("delete bkt --all", None),
    ("apply -f -", topic("clicks", 3)),
)  # fmt: skip


class Recorder:
    """Records all requests by wrapping the server's dispatch."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        dispatch = Server._dispatch

        async def record(server: Server, request: web.Request) -> web.StreamResponse:
            row = row_of(request, await request.read())
            self.rows.append(row)
            try:
                response = await dispatch(server, request)
            except ApiError as refusal:
                row["status"] = refusal.code
                raise
            row["status"] = response.status
            return response

        Server._dispatch = record  # type: ignore[method-assign, assignment]

    def kept(self) -> list[dict[str, Any]]:
        """The requests without repetitions: of documents, of the same GET twice in a row, of Lease renewals."""
        kept: list[dict[str, Any]] = []
        for row in self.rows:
            same = sum(one["path"] == row["path"] and one["method"] == row["method"] for one in kept)
            document = re.match(DOCUMENT, row["path"]) and row in kept
            repeated = row["method"] == "GET" and kept and kept[-1] == row
            if not (document or repeated or ("leases" in row["path"] and same >= LEASE_ROUNDS)):
                kept.append(row)
        return kept


def row_of(request: web.Request, body: bytes) -> dict[str, Any]:
    headers = request.headers
    return {
        "agent": headers.get("User-Agent", "").split(" ")[0].split("/")[0],
        "method": request.method,
        "path": _path(request.path_qs),
        "accept": headers.get("Accept", ""),
        "kind": headers.get("Content-Type", ""),
        "body": _body(request, body) if body else None,
        "status": 200,  # stays for what still runs at the end: a watch
    }


def _path(path: str) -> str:
    """Make a path replayable: a watch begins with what is there and ends after a second, and documents lose their
    hashes. Not every etcd supports bookmarks for a watch from 0, so they are left out."""
    path = re.sub(r"hash=[0-9A-F]+&?", "", path)
    if "watch=" not in path:
        return path
    path = re.sub(r"&?(timeoutSeconds=\d+|allowWatchBookmarks=true)", "", path).replace("?&", "?")
    return re.sub(r"resourceVersion=\d+", "resourceVersion=0", path) + "&timeoutSeconds=1"


def _body(request: web.Request, body: bytes) -> Any:
    if b"\0" in body:
        return {"base64": base64.b64encode(body).decode()}
    text = body.decode()
    if request.method == "POST" and request.path.endswith("/customresourcedefinitions"):
        return {"definition": json.loads(text)["metadata"]["name"].split(".")[0] + ".yaml"}
    if request.method != "POST":
        text = re.sub(r'("resourceVersion":\s*")\d+"', r'\1{resourceVersion}"', text)
        text = re.sub(r'("uid":\s*")[0-9a-f-]{36}"', r'\1{uid}"', text, count=1)
    try:
        return json.loads(text)
    except ValueError:
        return text


def _operate(recorder: Recorder, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "ballast_cli", "operator", "--namespace", "default"]
    process = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)

    def asked(what: str) -> bool:
        return any(what in row["path"] for row in recorder.rows)

    try:
        eventually(
            lambda: all(map(asked, ("kafkatopics/clicks/status", "/events?", "kafkaclusters?watch"))), seconds=60
        )
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    recorder = Recorder()
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        running = Running(Path(folder) / "api")
        environment = {"KUBECONFIG": str(running.kubeconfig), "HOME": folder, "PATH": os.environ["PATH"]}
        environment["EDITOR"] = "sed -i 's/partitions: 6/partitions: 7/'"
        for arguments, given in STORY:
            command = [kubectl(), *arguments.split(" ")]
            subprocess.run(command, env=environment, input=given, text=True, timeout=60, check=False)
        _operate(recorder, environment)
        running.close()
    RECORDING.write_text("".join(json.dumps(row) + "\n" for row in recorder.kept()))


if __name__ == "__main__":
    main()
