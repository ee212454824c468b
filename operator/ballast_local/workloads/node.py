"""The node: runs all pods, and completes the deletion of pods once their processes have ended."""

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path

from ballast_local import meta
from ballast_local.errors import Obj
from ballast_local.store import Change
from ballast_local.workloads.addresses import SHARED, Addresses
from ballast_local.workloads.client import Client
from ballast_local.workloads.logs import Logs
from ballast_local.workloads.pod import PodRunner, base_environment
from ballast_local.workloads.process import kill_strays
from ballast_local.workloads.volume import remove_tree

LOG = logging.getLogger("ballast.local")
Key = tuple[str, str]
STOP_SECONDS = 30.0
AGAIN_SECONDS = 5.0


class Node:
    def __init__(self, client: Client, data: Path, addresses: Addresses, logs: Logs, kubeconfig: Path) -> None:
        self._client, self._data, self._addresses, self._logs = client, data, addresses, logs
        self._environment = base_environment(kubeconfig)
        self._runners: dict[Key, PodRunner] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    async def start(self) -> None:
        pods = self._data / "pods"
        await asyncio.to_thread(kill_strays, pods)
        known = {pod["metadata"]["uid"] for pod in self._client.find("pods.")}
        for directory in list(pods.iterdir()):
            if directory.name not in known:
                await asyncio.to_thread(remove_tree, directory)
        self._client.listen("pods.", self._pod_changed)
        for kind, key in (("ConfigMap", "configmaps."), ("Secret", "secrets.")):
            self._client.listen(key, lambda change, kind=kind: self._source_changed(kind, change))  # type: ignore[misc]
        for pod in self._client.find("pods."):
            if _was_cut_off(pod):
                self._client.set_status("pods.", pod["metadata"]["namespace"], pod["metadata"]["name"], _lost(pod))
            self._consider(self._client.get("pods.", pod["metadata"]["namespace"], pod["metadata"]["name"]) or pod)

    async def stop(self, grace_seconds: float) -> None:
        """Stop pods like a node that shuts down, with at most this grace period; they stay stored, to run again."""
        self._closing = True
        runners = list(self._runners.values())
        if runners:
            for runner in runners:
                runner.shut_down()
            graces = [min(self._grace(runner.pod), grace_seconds) for runner in runners]
            stops = [asyncio.create_task(one.stop(grace)) for one, grace in zip(runners, graces, strict=True)]
            _, late = await asyncio.wait(stops, timeout=STOP_SECONDS)
            for runner in runners if late else []:
                runner.kill()
            await asyncio.gather(*stops, return_exceptions=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _grace(self, pod: Obj) -> float:
        return min(float(pod["spec"].get("terminationGracePeriodSeconds", 30)), STOP_SECONDS)

    # following the store

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _pod_changed(self, change: Change) -> None:
        if self._closing:
            return
        key = (change.entry.namespace, change.entry.name)
        if change.kind == "DELETED":
            runner = self._runners.get(key)
            if runner is not None and runner.uid == change.entry.uid:
                runner.kill()
        elif change.kind == "ADDED" or b'"deletionTimestamp"' in change.entry.encoded:
            self._consider(change.entry.object())

    def _source_changed(self, kind: str, change: Change) -> None:
        if self._closing or change.kind == "DELETED":
            return
        for (namespace, _), runner in self._runners.items():
            if namespace == change.entry.namespace and runner.uses(kind, change.entry.name):
                self._spawn(runner.refresh(), f"refresh {runner.name}")

    def _consider(self, pod: Obj) -> None:
        metadata = pod["metadata"]
        key = (metadata["namespace"], metadata["name"])
        runner = self._runners.get(key)
        if meta.is_deleting(pod):
            self._end(key, pod, runner)
        elif runner is None:
            if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                self._begin(key, pod)
        elif runner.uid != metadata["uid"]:
            # A new pod of the same name: the task of the old one starts it once the old processes have ended.
            runner.kill()

    def _begin(self, key: Key, pod: Obj) -> None:
        address = self._addresses.take(f"pod/{key[0]}/{key[1]}")
        runner = PodRunner(self._client, pod, self._data, address, self.resolve, self._logs, self._environment)
        self._runners[key] = runner
        if not pod["spec"].get("nodeName"):
            self._client.change("pods.", *key, lambda held: held["spec"].update(nodeName="local"))
        runner.task = self._spawn(self._run(key, runner), f"pod {key[0]}/{key[1]}")

    async def _run(self, key: Key, runner: PodRunner) -> None:
        try:
            while collision := self._collision(runner):
                runner.tell("FailedScheduling", collision)
                await asyncio.sleep(1.0)
                if runner.stopping:
                    return
            await runner.run()
        except Exception as fault:
            LOG.exception("pod %s/%s", *key)
            runner.kill()
            runner.tell("FailedSync", f"the node cannot run this pod: {fault!r}")
            await asyncio.sleep(AGAIN_SECONDS)
            runner.broken = True
        finally:
            self._ended(key, runner)

    def _collision(self, runner: PodRunner) -> str:
        """The port conflict that prevents the pod from running, if all pods share one address; else empty."""
        if runner.address != SHARED:
            return ""
        wanted = runner.ports()
        for other in self._runners.values():
            if other is not runner and other.started and wanted & other.ports():
                ports = ", ".join(str(port) for port in sorted(wanted & other.ports()))
                holder = f"{other.namespace}/{other.name}"
                return f"port {ports} is in use by pod {holder}: on this system all pods share 127.0.0.1"
        return ""

    def _ended(self, key: Key, runner: PodRunner) -> None:
        if self._closing or self._runners.get(key) is not runner:
            return
        del self._runners[key]
        pod = self._client.get("pods.", *key)
        if pod is None or pod["metadata"]["uid"] != runner.uid:
            self._clean(key, runner.uid, pod)
            if pod is not None:
                self._consider(pod)
        elif meta.is_deleting(pod) or runner.broken:
            self._consider(pod)

    # deletion

    def _end(self, key: Key, pod: Obj, runner: PodRunner | None) -> None:
        if runner is None or runner.uid != pod["metadata"]["uid"]:
            uid = pod["metadata"]["uid"]
            self._client.finish_delete("pods.", *key)
            left = self._client.get("pods.", *key)
            if left is None or left["metadata"]["uid"] != uid:
                self._clean(key, uid, left)
            return
        # Not the time left until deletionTimestamp: it shrinks with every change of the pod, and clocks may be set.
        runner.begin_stop(float(pod["metadata"].get("deletionGracePeriodSeconds", 30)), self._spawn)

    def _clean(self, key: Key, uid: str, successor: Obj | None) -> None:
        """Remove the pod's own directory. Pods that may be recreated by a StatefulSet keep their address."""
        self._spawn(asyncio.to_thread(remove_tree, self._data / "pods" / uid), f"clean {uid}")
        if successor is None and not key[1].rpartition("-")[2].isdecimal():
            self._addresses.release(f"pod/{key[0]}/{key[1]}")

    # names

    def resolve(self, namespace: str, service: str, pod: str) -> str | None:
        """Resolve an in-cluster name for the substitution: a pod of a headless service, or a service."""
        held = self._client.get("services.", namespace, service)
        if held is None:
            return None
        if pod:
            return self._addresses.take(f"pod/{namespace}/{pod}")
        address = held["spec"].get("clusterIP")
        return address if address and address != "None" else None


def _was_cut_off(pod: Obj) -> bool:
    """Whether a pod that must not be restarted (Never) was running when the node went down."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    unfinished = pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ran = any("running" in (one.get("state") or {}) for one in statuses)
    return pod["spec"].get("restartPolicy") == "Never" and unfinished and ran


def _lost(pod: Obj) -> Obj:
    message = "The container could not be located when the node came back"
    ended = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": message, "finishedAt": meta.now()}
    statuses = [
        one | {"state": {"terminated": ended}, "ready": False, "started": False} if "running" in one["state"] else one
        for one in pod["status"]["containerStatuses"]
    ]
    status: Obj = pod["status"]
    return status | {"phase": "Failed", "reason": "NodeLost", "containerStatuses": statuses}
