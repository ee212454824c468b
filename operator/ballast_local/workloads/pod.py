"""Runs one pod on this node: its volumes, its containers, its status.

A pod is run by one task, which ends when all containers have finished or the pod is stopped. The status is written
whenever it differs from the stored one.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

from ballast_local import meta
from ballast_local.errors import ApiError, Obj
from ballast_local.workloads.client import Client
from ballast_local.workloads.container import Container, Launch, PodContext
from ballast_local.workloads.environment import command_line, variables
from ballast_local.workloads.logs import Logs, log_path
from ballast_local.workloads.mounts import Mounts
from ballast_local.workloads.process import MARK
from ballast_local.workloads.substitution import Resolve, Substitution
from ballast_local.workloads.volume import NotYet

WAIT_SECONDS = 0.5


class PodRunner:
    def __init__(
        self,
        client: Client,
        pod: Obj,
        data: Path,
        address: str,
        resolve: Resolve,
        logs: Logs,
        base_environment: dict[str, str],
    ) -> None:
        self.client, self.pod = client, pod
        metadata = pod["metadata"]
        self.namespace, self.name, self.uid = metadata["namespace"], metadata["name"], metadata["uid"]
        self.address = address
        self.directory = data / "pods" / self.uid
        self._pods = data / "pods"
        self._logs, self._resolve, self._base = logs, resolve, base_environment
        self._mounts = Mounts(pod, self.directory, data / "volumes", self._lookup)
        self._containers: dict[str, Container] = {}
        self._initialized = not pod["spec"].get("initContainers")
        self._failure = self._reason = ""
        self._mounting = asyncio.Lock()
        self._stopping = False
        self._grace: float | None = None
        self.task: asyncio.Task[None] | None = None
        self.broken = False
        """Set if the runner failed with an unexpected error before the pod was finished."""

    def _lookup(self, kind: str, name: str) -> Obj | None:
        key = {"ConfigMap": "configmaps.", "Secret": "secrets.", "PersistentVolumeClaim": "persistentvolumeclaims."}[
            kind
        ]
        return self.client.get(key, self.namespace, name)

    # running

    async def run(self) -> None:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        deadline = None if seconds is None else asyncio.create_task(self._out_of_time(float(seconds)))
        try:
            await self._run()
        finally:
            if deadline is not None:
                deadline.cancel()

    async def _out_of_time(self, seconds: float) -> None:
        began = self.pod.get("status", {}).get("startTime")
        await asyncio.sleep(seconds - (time.time() - meta.parse_time(began).timestamp() if began else 0.0))
        self._failure = "Pod was active on the node longer than the specified deadline"
        self._reason = "DeadlineExceeded"
        self._event("Normal", self._reason, self._failure)
        await self._stop_containers(float(self.pod["spec"].get("terminationGracePeriodSeconds", 30)))

    async def _run(self) -> None:
        if await self._mounted():
            if not await self._init():
                self.write_status()
                return
            policy = self.pod["spec"].get("restartPolicy", "Always")
            containers = [self._container(spec, policy) for spec in self.pod["spec"]["containers"]]
            self.write_status()
            if not self._stopping:
                await asyncio.gather(*(container.run() for container in containers))
        self.write_status()

    async def _mounted(self) -> bool:
        """Wait for claims, config maps and secrets; returns False if the pod is stopped before."""
        told = ""
        while not self._stopping:
            try:
                await self._mount()
                return True
            except (NotYet, OSError) as missing:
                if str(missing) != told:
                    told = str(missing)
                    self._event("Warning", "FailedMount", f"MountVolume.SetUp failed: {missing}")
                    self.write_status()
                await asyncio.sleep(WAIT_SECONDS)
        return False

    async def _mount(self) -> None:
        """Prepare the volumes; serialized, so that the data read last is also written last."""
        async with self._mounting:
            await asyncio.to_thread(self._mounts.prepare, Substitution(self._mounts.all_paths(), self._resolve))

    async def refresh(self) -> None:
        """Update mounted files after a config map or secret has changed."""
        try:
            await self._mount()
        except (NotYet, OSError) as missing:
            self._event("Warning", "FailedMount", str(missing))

    async def _init(self) -> bool:
        """Run init containers one after another; returns False if the pod has failed or is being stopped."""
        policy = self.pod["spec"].get("restartPolicy", "Always")
        for spec in self.pod["spec"].get("initContainers") or []:
            container = self._container(spec, "Never" if policy == "Never" else "OnFailure")
            code = await container.run()
            if self._stopping:
                return False
            if code != 0:
                self._failure = f"init container {container.name} exited with {code}"
                return False
        self._initialized = True
        return True

    def _container(self, spec: Obj, policy: str) -> Container:
        before = {one["name"]: one for field in ("containerStatuses", "initContainerStatuses")
                  for one in self.pod.get("status", {}).get(field) or []}  # fmt: skip
        old = before.get(spec["name"])
        ran = old is not None and "waiting" not in (old.get("state") or {})
        restarts = (old or {}).get("restartCount", 0) + (1 if ran else 0)
        context = PodContext(
            prepare=self._launch,
            log=self._rotated_log,
            record=self.directory / "pids" / spec["name"],
            address=self.address,
            changed=self.write_status,
            event=self._event,
            running=self._note_running,
            restart_policy=policy,
            grace_seconds=float(self.pod["spec"].get("terminationGracePeriodSeconds", 30)),
        )
        container = self._containers[spec["name"]] = Container(spec, context, restarts)
        return container

    def _note_running(self, name: str, running: bool) -> None:
        (self._logs.running.add if running else self._logs.running.discard)((self.uid, name))

    def _rotated_log(self, name: str) -> Path:
        path = log_path(self._pods, self.uid, name)
        if path.exists():
            path.replace(log_path(self._pods, self.uid, name, previous=True))
        return path

    async def _launch(self, spec: Obj) -> Launch:
        pod = self.client.get("pods.", self.namespace, self.name) or self.pod
        declared = variables(pod, spec, self._lookup)
        substitute = Substitution(self._mounts.paths(spec, declared), self._resolve)
        environment = self._base | {
            "HOSTNAME": self.name,
            "HOME": str(self.directory),
            "TMPDIR": str(self.directory / "tmp"),
        }
        environment |= self._mounts.variables(spec)
        environment |= {name: substitute(value) for name, value in declared.items()}
        environment[MARK] = str(self.directory)
        directory = Path(substitute(spec["workingDir"])) if spec.get("workingDir") else self.directory
        if not directory.is_dir():
            raise NotYet(f"the working directory {spec.get('workingDir')!r} does not exist")
        (self.directory / "tmp").mkdir(exist_ok=True)

        def translate(command: list[str]) -> list[str]:
            return command_line({"command": command}, declared, substitute)

        return Launch(command_line(spec, declared, substitute), environment, directory, translate)

    # what the node asks

    @property
    def stopping(self) -> bool:
        return self._stopping

    @property
    def started(self) -> bool:
        return bool(self._containers)

    def uses(self, kind: str, name: str) -> bool:
        return self._mounts.uses(kind, name)

    def ports(self) -> set[int]:
        containers = self.pod["spec"]["containers"]
        return {port["containerPort"] for container in containers for port in container.get("ports") or []}

    def tell(self, reason: str, message: str) -> None:
        self._event("Warning", reason, message)

    def begin_stop(self, grace_seconds: float, spawn: Callable[[Coroutine[None, None, None], str], object]) -> None:
        """Start to stop the pod. A later call with a shorter grace period shortens it; others have no effect."""
        if self._grace is not None and grace_seconds >= self._grace:
            return
        first = self._grace is None
        self._grace = grace_seconds
        if first:
            self._event("Normal", "Killing", "Stopping containers")
        if grace_seconds <= 0:
            self.kill()
        else:
            spawn(self.stop(grace_seconds), f"stop {self.name}")

    # stopping

    async def stop(self, grace_seconds: float) -> None:
        """Stop all containers; returns once no process is left."""
        await self._stop_containers(grace_seconds)
        if self.task is not None:
            await asyncio.wait({self.task})

    async def _stop_containers(self, grace_seconds: float) -> None:
        self._stopping = True
        await asyncio.gather(*(container.stop(grace_seconds) for container in self._containers.values()))

    def shut_down(self) -> None:
        """The node shuts down: a running pod that will not be restarted has failed, whatever its exit codes."""
        if self.pod["spec"].get("restartPolicy") != "Always" and self._is_running():
            self._failure = "Pod was terminated in response to imminent node shutdown."
            self._reason = "Terminated"

    def _is_running(self) -> bool:
        mains = (self._containers.get(spec["name"]) for spec in self.pod["spec"]["containers"])
        return any(container is not None and container.is_running for container in mains)

    def kill(self) -> None:
        self._stopping = True
        for container in self._containers.values():
            container.kill()

    # status

    def _event(self, kind: str, reason: str, message: str) -> None:
        self.client.event(self.client.get("pods.", self.namespace, self.name) or self.pod, kind, reason, message)

    def phase(self) -> str:
        if self._failure:
            return "Failed"
        mains = [self._containers.get(spec["name"]) for spec in self.pod["spec"]["containers"]]
        if all(container is None for container in mains):
            return "Pending"
        if all(container is not None and container.finished for container in mains):
            if self._stopping and self.pod["spec"].get("restartPolicy") == "Always":
                return "Running"
            return (
                "Succeeded"
                if all(container is not None and container.exit_code == 0 for container in mains)
                else "Failed"
            )
        waiting = all(container is not None and "waiting" in container.status()["state"] and not container.restarts
                      for container in mains)  # fmt: skip
        return "Pending" if waiting else "Running"

    def write_status(self) -> None:
        """Write the status if it has changed and the pod still exists."""
        stored = self.client.get("pods.", self.namespace, self.name)
        if stored is None or stored["metadata"]["uid"] != self.uid:
            return
        status = dict(stored.get("status") or {})
        status["phase"] = self.phase()
        status.setdefault("startTime", meta.now())
        status["hostIP"] = "127.0.0.1"
        status["podIP"], status["podIPs"] = self.address, [{"ip": self.address}]
        for field, specs in (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")):
            shown = [self._shown(spec) for spec in self.pod["spec"].get(specs) or []]
            if shown:
                status[field] = shown
        if self._failure:
            status["message"] = self._failure
        if self._reason:
            status["reason"] = self._reason
        status["conditions"] = self._conditions(status)
        try:
            self.client.set_status("pods.", self.namespace, self.name, status)
        except ApiError as refusal:
            if refusal.code != 409:
                raise

    def _shown(self, spec: Obj) -> Obj:
        container = self._containers.get(spec["name"])
        if container is not None:
            return container.status()
        waiting = {"waiting": {"reason": "ContainerCreating" if self._initialized else "PodInitializing"}}
        return {"name": spec["name"], "image": spec.get("image", ""), "imageID": "", "ready": False, "started": False,
                "restartCount": 0, "state": waiting, "lastState": {}}  # fmt: skip

    def _conditions(self, status: Obj) -> list[Obj]:
        held = {one["type"]: one for one in status.get("conditions") or []}
        ready = all(one["ready"] for one in status["containerStatuses"])
        gates = [gate["conditionType"] for gate in self.pod["spec"].get("readinessGates") or []]
        gated = all(held.get(gate, {}).get("status") == "True" for gate in gates)
        done = status["phase"] == "Succeeded"
        reason = "PodCompleted" if done else "ContainersNotReady"
        wanted = (
            ("PodScheduled", True, ""),
            ("PodReadyToStartContainers", True, ""),
            ("Initialized", self._initialized, "ContainersNotInitialized"),
            ("ContainersReady", ready, reason),
            ("Ready", ready and gated, reason if not ready else "ReadinessGatesNotReady"),
        )
        result: list[Obj] = []
        for kind, holds, why in wanted:
            old = held.pop(kind, None)
            one: Obj = {"type": kind, "status": "True" if holds else "False", "lastProbeTime": None}
            if not holds:
                one["reason"] = why
            unchanged = old is not None and old["status"] == one["status"]
            one["lastTransitionTime"] = old["lastTransitionTime"] if old is not None and unchanged else meta.now()
            result.append(one)
        return result + list(held.values())


def project_paths() -> list[str]:
    """The directories of this project's packages, so that pods can import them."""
    operator = Path(__file__).resolve().parents[2]
    beside = [operator.parent / name for name in ("broker-image", "spark")]
    return [str(path) for path in (operator, *beside) if path.is_dir()]


def base_environment(kubeconfig: Path) -> dict[str, str]:
    """The environment of every container: only what programs need to run, and the kubeconfig of this API."""
    found = {name: value for name in ("LANG", "LC_ALL", "TZ", "JAVA_HOME") if (value := os.environ.get(name))}
    scripts = str(Path(sys.executable).parent)
    found["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH") or os.defpath])
    found["PYTHONPATH"] = os.pathsep.join(project_paths())
    found["PYTHONUNBUFFERED"] = "1"
    found["KUBECONFIG"] = str(kubeconfig)
    return found
