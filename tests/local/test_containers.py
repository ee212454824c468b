"""Containers at bad moments: stopped while they start, between two runs, or before they ever ran."""

import asyncio
import base64
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.local.conftest import Api, Running
from tests.waiting import eventually

from ballast_local.workloads import node
from ballast_local.workloads.container import Container, Launch, PodContext
from ballast_local.workloads.pod import PodRunner
from ballast_local.workloads.process import start_time


def container(tmp_path: Path, command: list[str], interrupt: Callable[[], None], policy: str = "File") -> Container:
    """`interrupt` is called when everything is prepared and the process is about to be started."""

    async def prepare(spec: dict[str, Any]) -> Launch:
        return Launch(command, {"PATH": "/usr/bin:/bin"}, tmp_path, lambda words: words)

    def log(name: str) -> Path:
        interrupt()
        return tmp_path / "logs" / "c.log"

    context = PodContext(
        prepare=prepare,
        log=log,
        record=tmp_path / "pids" / "c",
        address="127.0.0.1",
        changed=lambda: None,
        event=lambda *told: None,
        running=lambda name, running: None,
        restart_policy="Never",
    )
    return Container({"name": "c", "terminationMessagePolicy": policy}, context, 0)


@pytest.mark.parametrize("grace", [0.0, 5.0])
async def test_stopped_while_it_starts_it_leaves_no_process(tmp_path: Path, grace: float) -> None:
    stops = []

    def interrupt() -> None:
        if grace:
            stops.append(asyncio.create_task(one.stop(grace)))
        else:
            one.kill()

    one = container(tmp_path, ["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600"], interrupt)
    async with asyncio.timeout(10):
        assert await one.run() > 128
        await asyncio.gather(*stops)
    if (tmp_path / "pid").exists():
        assert not start_time(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("policy", "script", "said"),
    [
        ("FallbackToLogsOnError", "seq 100; exit 3", "".join(f"{line}\n" for line in range(21, 101))),
        ("FallbackToLogsOnError", "printf %03000d 7; exit 3", "7".zfill(2048)),
        ("FallbackToLogsOnError", "exit 3", None),
        ("FallbackToLogsOnError", "seq 100", None),
        ("File", "seq 100; exit 3", None),
    ],
)
async def test_the_end_of_a_failed_containers_log_is_told_where_its_policy_says_so(
    tmp_path: Path, policy: str, script: str, said: str | None
) -> None:
    one = container(tmp_path, ["sh", "-c", script], lambda: None, policy)
    await one.run()
    assert one.status()["state"]["terminated"].get("message") == said


def running_with(text: str) -> list[str]:
    """The processes of this machine that have a text in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if text in path.read_bytes().decode(errors="replace"):
                found.append(path.parent.name)
    return found


async def test_what_cannot_be_noted_does_not_run(tmp_path: Path) -> None:
    """On a full disk: started anew it would have the same volumes a second time."""
    (tmp_path / "pids" / "c").mkdir(parents=True)
    one = container(tmp_path, ["sh", "-c", f"sleep 600; : {tmp_path}"], lambda: None)
    assert await one.run() == 128
    assert one.status()["state"]["terminated"]["reason"] == "StartError"
    assert running_with(str(tmp_path)) == []


async def test_a_fault_of_ours_leaves_no_process(tmp_path: Path) -> None:
    one = container(tmp_path, ["sh", "-c", f"sleep 600; : {tmp_path}"], lambda: None)

    def refuse(*told: object) -> None:
        raise KeyError(told)

    one._context.event = refuse
    with pytest.raises(KeyError):
        await one.run()
    assert running_with(str(tmp_path)) == []


def test_what_keeps_a_container_from_its_start_is_waited_for(api: Api, running: Running, pods: str) -> None:
    """Not only what is not there yet."""
    mount = {"name": "d", "mountPath": "/d"}
    body = pod("p", "echo ran", "Never", volumeMounts=[mount | {"subPath": "a/b"}])
    first = {"name": "first", "image": "none", "command": ["touch", "/d/a"], "volumeMounts": [mount]}
    body["spec"] |= {"initContainers": [first], "volumes": [{"name": "d", "emptyDir": {}}]}
    home = running.data / "pods" / api.post(pods, body)["metadata"]["uid"]
    eventually(lambda: waits(api, f"{pods}/p", "CreateContainerConfigError"))
    (home / "volumes" / "d" / "a").unlink()
    eventually(lambda: api.get(f"{pods}/p")["status"]["phase"] == "Succeeded")
    api.patch(f"{pods}/p", {"metadata": {"finalizers": None}})


def test_a_secret_that_is_no_text_is_a_variable_too(api: Api, namespace: str) -> None:
    base = f"/api/v1/namespaces/{namespace}"
    api.post(f"{base}/secrets", {"metadata": {"name": "s"}, "data": {"K": base64.b64encode(b"\xff\xfe").decode()}})
    names = {"envFrom": [{"secretRef": {"name": "s"}}],
             "env": [{"name": "L", "valueFrom": {"secretKeyRef": {"name": "s", "key": "K"}}}]}  # fmt: skip
    api.post(f"{base}/pods", pod("p", 'printf "$K$L" | od -An -tx1', "Never", **names))
    eventually(lambda: api.get(f"{base}/pods/p")["status"]["phase"] == "Succeeded")
    assert api.raw("GET", f"{base}/pods/p/log")[1].decode().split() == ["ff", "fe", "ff", "fe"]
    api.patch(f"{base}/pods/p", {"metadata": {"finalizers": None}})


def test_events_tell_of_pods_with_long_names(api: Api, pods: str) -> None:
    name = "a" * 199 + "-" + "b" * 20
    api.post(pods, pod(name, "true", "Never"))
    eventually(lambda: api.get(f"{pods}/{name}")["status"]["phase"] == "Succeeded")
    api.patch(f"{pods}/{name}", {"metadata": {"finalizers": None}})


def test_a_pod_that_the_node_gave_up_is_taken_up_again(
    api: Api, running: Running, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    fault = [KeyError("none of a pod's faults")]
    launch = PodRunner._launch

    async def refuse(runner: PodRunner, spec: dict[str, Any]) -> Launch:
        if runner.namespace == namespace and fault:
            raise fault.pop()
        return await launch(runner, spec)

    monkeypatch.setattr(PodRunner, "_launch", refuse)
    monkeypatch.setattr(node, "AGAIN_SECONDS", 0.1)
    api.post(path, pod("p", "true", "Never"))
    eventually(lambda: api.get(f"{path}/p")["status"]["phase"] == "Succeeded")
    assert not fault
    api.patch(f"{path}/p", {"metadata": {"finalizers": None}})


def pod(name: str, text: str, policy: str, **more: Any) -> dict[str, Any]:
    first = {"name": "main", "image": "none", "command": ["sh", "-c", text], **more}
    return {"metadata": {"name": name, "finalizers": ["test.dev/look"]},
            "spec": {"restartPolicy": policy, "containers": [first], "terminationGracePeriodSeconds": 1}}  # fmt: skip


def waits(api: Api, path: str, reason: str) -> bool:
    (status,) = api.get(path)["status"].get("containerStatuses") or [{}]
    return (status.get("state") or {}).get("waiting", {}).get("reason") == reason


def test_deleted_in_its_back_off_a_pod_has_not_succeeded(api: Api, pods: str) -> None:
    api.post(pods, pod("p", "exit 3", "OnFailure"))
    eventually(lambda: waits(api, f"{pods}/p", "CrashLoopBackOff"))
    api.delete(f"{pods}/p")
    eventually(lambda: api.get(f"{pods}/p")["metadata"]["deletionGracePeriodSeconds"] == 0)
    assert api.get(f"{pods}/p")["status"]["phase"] == "Failed"
    api.patch(f"{pods}/p", {"metadata": {"finalizers": None}})


def test_deleted_before_it_ran_a_pod_has_not_succeeded(api: Api, pods: str) -> None:
    missing = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "a"}}}
    api.post(pods, pod("p", "true", "Never", env=[missing]))
    eventually(lambda: waits(api, f"{pods}/p", "CreateContainerConfigError"))
    api.delete(f"{pods}/p")
    eventually(lambda: api.get(f"{pods}/p")["metadata"]["deletionGracePeriodSeconds"] == 0)
    assert api.get(f"{pods}/p")["status"]["phase"] == "Pending"
    api.patch(f"{pods}/p", {"metadata": {"finalizers": None}})


def test_a_job_that_the_node_interrupted_is_not_complete(own: Running) -> None:
    """However its process takes the end: this one says that all went well."""
    api = own.api()
    path = "/apis/batch/v1/namespaces/default/jobs/j"
    text = 'trap "exit 0" TERM; echo up; while :; do sleep 0.05; done'
    first = {"name": "main", "image": "none", "command": ["sh", "-c", f"test -e $HOME/../done || {{ {text}; }}"]}
    spec = {"template": {"spec": {"restartPolicy": "Never", "containers": [first]}}}
    api.post("/apis/batch/v1/namespaces/default/jobs", {"metadata": {"name": "j"}, "spec": spec})
    pods = "/api/v1/namespaces/default/pods"
    (name,) = eventually(lambda: [one["metadata"]["name"] for one in api.get(pods)["items"]])
    eventually(lambda: b"up" in api.raw("GET", f"{pods}/{name}/log")[1])
    own.stop()
    (own.data / "pods" / "done").touch()  # before the next pod can look for it
    own.start()
    api = own.api()
    assert api.get(f"{pods}/{name}")["status"]["phase"] == "Failed"
    done = eventually(lambda: (found := api.get(path)["status"]).get("succeeded") and found)
    assert done["failed"] == 1


def test_a_pod_that_is_out_of_time_fails(api: Api, pods: str) -> None:
    body = pod("p", "sleep 600", "Never")
    body["spec"]["activeDeadlineSeconds"] = 1
    del body["metadata"]["finalizers"]
    api.post(pods, body)
    status = eventually(lambda: (found := api.get(f"{pods}/p")["status"])["phase"] == "Failed" and found)
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")


def test_following_a_log_shows_the_last_words_of_a_run(running: Running, api: Api, pods: str) -> None:
    """The next run, which begins at once, writes a log of its own."""
    body = pod("p", "echo first; until test -e $HOME/go; do sleep 0.02; done; rm $HOME/go; echo last; exit 1", "Always")
    uid = api.post(pods, body)["metadata"]["uid"]
    eventually(lambda: api.raw("GET", f"{pods}/p/log")[1] == b"first\n")
    connection = api.connect()
    connection.request("GET", f"{pods}/p/log?follow=true", headers={"Authorization": f"Bearer {api.token}"})
    answer = connection.getresponse()
    assert answer.readline() == b"first\n"
    (running.data / "pods" / uid / "go").touch()
    assert answer.read() == b"last\n"
    connection.close()
    api.patch(f"{pods}/p", {"metadata": {"finalizers": None}})


def test_whose_end_is_wanted_is_told_once_however_often_its_pod_changes(api: Api, running: Running, pods: str) -> None:
    """A second SIGTERM means "at once" to many programs."""
    hook = {"exec": {"command": ["sh", "-c", "echo hook >> $HOME/told"]}}
    body = pod("p", "trap 'echo term >> $HOME/told' TERM; touch $HOME/on; while :; do sleep 0.1; done", "Always",
               lifecycle={"preStop": hook})  # fmt: skip
    body["spec"]["containers"].append({"name": "other", "image": "none", "command": ["sleep", "600"]})
    body["spec"]["terminationGracePeriodSeconds"] = 30
    home = running.data / "pods" / api.post(pods, body)["metadata"]["uid"]
    eventually(lambda: (home / "on").exists())

    def state(name: str) -> dict[str, Any]:
        return next(one["state"] for one in api.get(f"{pods}/p")["status"]["containerStatuses"] if one["name"] == name)

    eventually(lambda: "running" in state("other"))
    api.delete(f"{pods}/p")
    eventually(lambda: "terminated" in state("other"))
    for number in range(3):
        api.patch(f"{pods}/p", {"metadata": {"annotations": {"n": str(number)}}})
    eventually(lambda: (home / "told").read_text() == "hook\nterm\n")
    api.delete(f"{pods}/p", {"gracePeriodSeconds": 1})
    eventually(lambda: "terminated" in state("main"))
    assert (home / "told").read_text() == "hook\nterm\n"
    api.patch(f"{pods}/p", {"metadata": {"finalizers": None}})
