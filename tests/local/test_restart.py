"""State that survives, processes that do not, and one owner per directory."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.local.conftest import DEFINITIONS, Api, Refused, Running, definition
from tests.waiting import eventually

from ballast_local.cluster import LocalCluster
from ballast_local.errors import ApiError
from ballast_local.folders import LONGEST_BYTES
from ballast_local.storage import RESTART_GAP, Storage
from ballast_local.store import Change, Store

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
PODS = "/api/v1/namespaces/default/pods"


def sleeper(name: str) -> dict[str, Any]:
    container = {"name": "c", "image": "none", "command": ["sh", "-c", "echo $$$$; exec sleep 600"]}
    return {"metadata": {"name": name}, "spec": {"containers": [container], "terminationGracePeriodSeconds": 2}}


def pid_of(api: Api, name: str) -> int:
    return int(eventually(lambda: api.raw("GET", f"{PODS}/{name}/log")[1].decode().strip().isdecimal()
                          and api.raw("GET", f"{PODS}/{name}/log")[1]))  # fmt: skip


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_everything_is_there_after_a_restart(own: Running) -> None:
    api = own.api()
    api.post(DEFINITIONS, definition())
    made = api.post("/apis/test.dev/v1/namespaces/default/widgets", {"metadata": {"name": "w"}, "spec": {"size": 2}})
    api.post(CONFIGMAPS, {"metadata": {"name": "gone"}})
    api.delete(f"{CONFIGMAPS}/gone")
    before, url, token = api.get(CONFIGMAPS)["metadata"]["resourceVersion"], own.cluster.url, api.token
    own.stop()
    own.start()
    api = own.api()
    assert api.get("/apis/test.dev/v1/namespaces/default/widgets/w") == made
    assert not api.exists(f"{CONFIGMAPS}/gone")
    assert (own.cluster.url, api.token) == (url, token), "a kubeconfig stays good"
    assert int(api.get(CONFIGMAPS)["metadata"]["resourceVersion"]) > int(before)
    (event,) = api.watch(f"{CONFIGMAPS}?watch=1&resourceVersion={before}", 1)
    assert event["object"]["code"] == 410, "what happened before the restart cannot be replayed, and it says so"


def test_pods_run_again_after_a_restart(own: Running) -> None:
    api = own.api()
    api.post(PODS, sleeper("p"))
    first = pid_of(api, "p")
    own.stop()
    eventually(lambda: not alive(first))
    own.start()
    api = own.api()
    eventually(lambda: pid_of(api, "p") != first)

    def running() -> dict[str, Any] | None:
        (status,) = api.get(f"{PODS}/p")["status"]["containerStatuses"]
        return status if "running" in status["state"] else None

    status = eventually(running)
    assert status["restartCount"] == 1


def _close_output(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    process.stdout.close()


def serve(data: Path) -> tuple[subprocess.Popen[str], Api]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "ballast_local", "--data", str(data)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    kubeconfig = process.stdout.readline().strip().partition("=")[2]
    process.stdout.readline()
    return process, Api(Path(kubeconfig))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help against strays is Linux's")
def test_killed_it_loses_no_answered_write_and_leaves_no_process(tmp_path: Path) -> None:
    process, api = serve(tmp_path)
    try:
        for index in range(50):
            api.post(CONFIGMAPS, {"metadata": {"name": f"c{index}"}})
        api.post(PODS, sleeper("p"))
        once = sleeper("once")
        once["spec"]["restartPolicy"] = "Never"
        api.post(PODS, once)
        pid_of(api, "once")
        pid = pid_of(api, "p")
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        api.close()
        eventually(lambda: not alive(pid))
        _close_output(process)
        process, api = serve(tmp_path)
        assert len(api.get(CONFIGMAPS)["items"]) == 50
        eventually(lambda: pid_of(api, "p") != pid)
        assert api.get(f"{PODS}/once")["status"]["phase"] == "Failed", "what must not run twice does not"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        _close_output(process)
        api.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells what environment a process has")
@pytest.mark.parametrize("start", ["", "setsid "])
def test_children_that_outlive_their_parents_do_not_outlive_the_next_start(tmp_path: Path, start: str) -> None:
    """They write to the volumes that the new pods have: also those whose parent has gone with the node."""
    process, api = serve(tmp_path)
    left = []
    try:
        body = sleeper("p")
        body["spec"]["containers"][0]["command"] = ["sh", "-c", f"trap 'exit 0' TERM; {start}sleep 600 & echo $!; wait"]
        api.post(PODS, body)
        left.append(pid_of(api, "p"))
        eventually(lambda: Path(f"/proc/{left[0]}/cmdline").read_bytes() == b"sleep\x00600\x00")
        parent = int(Path(f"/proc/{left[0]}/stat").read_text().rpartition(")")[2].split()[1])
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        api.close()
        _close_output(process)
        eventually(lambda: not alive(parent))
        assert alive(left[0])
        process, api = serve(tmp_path)
        assert not alive(left[0])
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        _close_output(process)
        api.close()
        for pid in filter(alive, left):
            os.kill(pid, signal.SIGKILL)


def test_one_process_per_directory(own: Running) -> None:
    async def second() -> None:
        await LocalCluster().start(own.data)

    with pytest.raises(RuntimeError, match="another embedded Kubernetes API uses"):
        asyncio.run(second())


def connection_of(storage: Storage) -> sqlite3.Connection:
    assert storage._connection is not None
    return storage._connection


def test_nobody_waits_for_ever_when_the_disk_is_full(tmp_path: Path) -> None:
    """Neither who waited before the write was tried, nor who came while it was."""

    async def fill() -> None:
        told: list[object] = []
        go = threading.Event()
        storage = Storage(tmp_path / "db", told.append)
        await storage.open()
        storage._executor.submit(lambda: connection_of(storage).execute("PRAGMA max_page_count = 8"))
        held = storage._executor.submit(go.wait)
        storage.put(2, "configmaps.", "n", "a", bytes(1 << 20))
        first = asyncio.create_task(storage.durable(2))
        while storage._pending:  # noqa: ASYNC110
            await asyncio.sleep(0)
        second = asyncio.create_task(storage.durable(2))
        await asyncio.sleep(0)
        go.set()
        held.result(10)
        async with asyncio.timeout(10):
            for waiting in (first, second, storage.durable(2)):
                with pytest.raises(ApiError, match=r"cannot write its database .*/db: .*full"):
                    await waiting
            await storage.failed.wait()
        await storage.close()
        assert told == []

    asyncio.run(fill())


def test_a_claim_whose_deletion_could_not_be_written_has_its_data(own: Running) -> None:
    """On a full disk, or killed at this moment: the next start finds the claim, and pods that use it."""
    api = own.api()
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = f"{CLAIMS}/data"
    made = api.post(CLAIMS, {"metadata": {"name": "data"}, "spec": spec})
    directory = own.data / "volumes" / "default" / "data"
    eventually(lambda: api.get(claim)["status"]["phase"] == "Bound" and directory.is_dir())
    (directory / "kept").write_text("data")
    assert own.cluster._store is not None
    storage = own.cluster._store._storage
    storage._executor.submit(lambda: connection_of(storage).execute("PRAGMA query_only = ON")).result(10)
    with pytest.raises(Refused, match="cannot write its database"):
        api.delete(claim)
    eventually(lambda: not api.exists(claim))
    own.stop()
    own.start()
    api = own.api()
    assert api.get(claim)["metadata"]["uid"] == made["metadata"]["uid"]
    assert (directory / "kept").read_text() == "data"
    api.delete(claim)
    eventually(lambda: not api.exists(claim) and not list(own.data.glob("volumes/.deleted/*")))
    assert not directory.exists()


def test_any_fault_of_writing_ends_the_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        storage = Storage(tmp_path / "db", lambda revision: None)
        await storage.open()

        def refuse(batch: object) -> None:
            raise MemoryError("no more of it")

        monkeypatch.setattr(storage, "_commit", refuse)
        storage.put(2, "configmaps.", "n", "a", b"{}")
        async with asyncio.timeout(10):
            with pytest.raises(ApiError, match="no more of it"):
                await storage.durable(2)
        assert storage.failed.is_set()
        await storage.close()

    asyncio.run(run())


@pytest.mark.parametrize("closing", [False, True])
def test_a_folder_that_is_taken_away_is_noticed(
    closing: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite went on in a file without a name, and who stopped was told that the data stays."""

    async def run() -> None:
        folder = tmp_path / "data"
        folder.mkdir()
        storage = Storage(folder / "db", lambda revision: None)
        await storage.open()
        storage.put(2, "configmaps.", "n", "a", b"{}")
        await storage.durable(2)
        folder.rename(tmp_path / "elsewhere")
        storage.put(3, "configmaps.", "n", "b", b"{}")
        if not closing:
            async with asyncio.timeout(10):
                with pytest.raises(ApiError, match=r"cannot write its database .*/data/db: .*No such file"):
                    await storage.durable(3)
                await storage.failed.wait()
        await storage.close()
        assert len(caplog.messages) == int(closing)
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection_of(storage).execute("SELECT 1")

    asyncio.run(run())


def obj(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "namespace": "n"}}


def test_revisions_never_repeat(tmp_path: Path) -> None:
    async def run() -> list[int]:
        found = []
        for _ in range(2):
            store = Store(tmp_path / "db")
            await store.open()
            entry = store.write("things.", obj("a"))
            await store.flush()
            found.append(entry.revision)
            await store.close()
        return found

    first, second = asyncio.run(run())
    assert second > first + RESTART_GAP - 1


def test_watchers_see_only_what_is_durable(tmp_path: Path) -> None:
    async def run() -> tuple[int, int]:
        store = Store(tmp_path / "db")
        await store.open()
        start = store.revision
        store.write("things.", obj("a"))
        before = len(store.changes_after("things.", start))
        await store.flush()
        after = len(store.changes_after("things.", start))
        await store.close()
        return before, after

    assert asyncio.run(run()) == (0, 1)


def test_the_history_is_short_where_objects_are_large(tmp_path: Path) -> None:
    async def run() -> None:
        store = Store(tmp_path / "db", history_bytes=10_000)
        await store.open()
        start = store.revision
        for _ in range(100):
            store.write("things.", obj("a") | {"data": "x" * 1000})
            store.write("others.", obj("b"))
        await store.flush()
        assert len(store.changes_after("others.", start)) == 100
        with pytest.raises(ApiError, match="too old resource version"):
            store.changes_after("things.", start)
        assert 9 <= len(store._shelf("things.").changes) <= 12
        await store.close()

    asyncio.run(run())


def test_a_moment_before_the_restart_is_not_made_up(tmp_path: Path) -> None:
    """The next page of a list that began before it: nobody knows any more what was there."""

    async def run() -> None:
        store = Store(tmp_path / "db")
        await store.open()
        then = store.write("things.", obj("a")).revision
        store.remove("things.", "n", "a")
        await store.close()
        store = Store(tmp_path / "db")
        await store.open()
        with pytest.raises(ApiError) as refused:
            list(store.entries_at("things.", then))
        assert refused.value.code == 410
        await store.close()

    asyncio.run(run())


@pytest.mark.parametrize("name", ["my data, all of it", "it's", 'a "b"', "c\\d", os.fsdecode(b"\xd6rdner")])
def test_a_path_that_lists_would_tear_apart_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="does not survive in the lists and texts of pods"):
        asyncio.run(LocalCluster().start(tmp_path / name))
    assert not (tmp_path / name).exists()


def test_a_path_that_is_too_long_for_its_database_is_refused_and_one_that_is_not_serves(tmp_path: Path) -> None:
    """SQLite was unable to open a file, and did not say why."""
    there = tmp_path
    while (left := LONGEST_BYTES - len(str(there)) - 1) > 200:
        there /= "d" * min(100, left - 100)
    with pytest.raises(OSError, match=f"has {LONGEST_BYTES + 1} bytes.*choose a shorter one"):
        asyncio.run(LocalCluster().start(there / ("d" * (left + 1))))
    assert not there.exists()

    async def run() -> None:
        local = LocalCluster()
        try:
            assert (await local.start(there / ("d" * left), 0)).is_file()
        finally:
            await local.stop()

    asyncio.run(run())


@pytest.mark.parametrize("folder", ["pods", "volumes"])
def test_folders_of_somebody_else_are_left_alone(tmp_path: Path, folder: str) -> None:
    """`--data .` where manifests are in a folder named pods: what no pod is known by would be removed."""
    kept = tmp_path / folder / "web"
    kept.mkdir(parents=True)
    (kept / "pod.yaml").write_text("kind: Pod")
    with pytest.raises(OSError, match=f"its folder {folder} is not one of an embedded Kubernetes"):
        asyncio.run(LocalCluster().start(tmp_path))
    assert (kept / "pod.yaml").read_text() == "kind: Pod"
    assert [one.name for one in tmp_path.iterdir()] == [folder]


def test_a_fault_of_one_who_listens_is_not_one_of_others(tmp_path: Path) -> None:
    async def run() -> None:
        store = Store(tmp_path / "db")
        await store.open()
        heard: list[Change] = []

        def fault(change: Change) -> None:
            raise RuntimeError(f"of {change} nobody wants to hear")

        store.listen("things.", fault)
        store.listen("things.", heard.append)
        entry = store.write("things.", obj("a"))
        assert [change.entry for change in heard] == [entry]
        await store.close()

    asyncio.run(run())


def test_empty_files_of_a_loss_of_power_are_made_anew(own: Running) -> None:
    own.stop()
    for name in ("tls.crt", "facts.json", "addresses.log"):
        (own.data / name).write_bytes(b"")
    own.start()
    assert own.api().get(CONFIGMAPS)["items"] == []


def test_what_is_no_json_is_not_stored(tmp_path: Path) -> None:
    async def run() -> None:
        store = Store(tmp_path / "db")
        await store.open()
        before = store.revision
        with pytest.raises(ValueError, match="JSON compliant"):
            store.write("things.", obj("a") | {"data": float("inf")})
        assert (store.revision, list(store.entries("things."))) == (before, [])
        await store.close()

    asyncio.run(run())


def test_what_others_may_not_read_is_private(own: Running) -> None:
    for name in ("objects.db", "objects.db-wal", "pods", "volumes", "facts.json", "tls.key"):
        assert (own.data / name).stat().st_mode & 0o077 == 0, name


def test_the_kubeconfig_is_private(own: Running) -> None:
    assert own.kubeconfig.stat().st_mode & 0o077 == 0
    assert json.loads(own.kubeconfig.read_text())["clusters"][0]["cluster"]["server"].startswith("https://127.0.0.1:")
