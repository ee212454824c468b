"""Runs one container of a pod: start, probes, restarts with back-off, stop; and its containerStatus.

Only the loop's thread may use it. `changed` is called whenever the status may have changed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ballast_local import meta
from ballast_local.errors import Obj
from ballast_local.workloads.logs import last_words
from ballast_local.workloads.probe import attempt
from ballast_local.workloads.process import Process, run_command
from ballast_local.workloads.volume import NotYet

BACKOFF_SECONDS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
STABLE_SECONDS = 60.0
WAIT_SECONDS = 1.0


@dataclass(slots=True)
class Launch:
    """What one run needs; prepared for every start, because config maps and secrets may have changed."""

    command: list[str]
    environment: dict[str, str]
    directory: Path
    # translates the command of a probe or hook by the same rules as the container's
    translate: Callable[[list[str]], list[str]]


@dataclass(slots=True)
class PodContext:
    """What a container needs from its pod."""

    prepare: Callable[[Obj], Awaitable[Launch]]
    log: Callable[[str], Path]
    record: Path
    address: str
    changed: Callable[[], None]
    event: Callable[[str, str, str], None]
    running: Callable[[str, bool], None]
    restart_policy: str = "Always"
    grace_seconds: float = 30.0


@dataclass(slots=True)
class _Probes:
    started: bool = True
    ready: bool = False


class Container:
    def __init__(self, spec: Obj, context: PodContext, restarts: int) -> None:
        self.spec, self._context = spec, context
        self.name: str = spec["name"]
        self.restarts = restarts
        self.exit_code: int | None = None
        self._state: Obj = {"waiting": {"reason": "ContainerCreating"}}
        self._last_state: Obj = {}
        self._process: Process | None = None
        self._launch: Launch | None = None
        self._probes = _Probes()
        self._stopping = asyncio.Event()
        self._stop_grace = 0.0
        self._told = False
        self._unhealthy = ""
        self._ending: asyncio.Task[None] | None = None

    # state

    @property
    def finished(self) -> bool:
        return self.exit_code is not None

    @property
    def is_running(self) -> bool:
        return "running" in self._state

    @property
    def is_ready(self) -> bool:
        return self.is_running and self._probes.started and self._probes.ready

    def status(self) -> Obj:
        return {
            "name": self.name,
            "image": self.spec.get("image", ""),
            "imageID": "",
            "ready": self.is_ready,
            "started": self.is_running and self._probes.started,
            "restartCount": self.restarts,
            "state": self._state,
            "lastState": self._last_state,
        }

    def _set_state(self, state: Obj) -> None:
        self._state = state
        self._context.running(self.name, self.is_running)
        self._context.changed()

    # the life of a container

    async def run(self) -> int:
        """Run, and restart by the policy, until it is finished or stopped; returns the last exit code."""
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run_once()
            if self._stopping.is_set():
                break
            again = self._context.restart_policy == "Always" or (
                self._context.restart_policy == "OnFailure" and code != 0
            )
            if not again:
                self.exit_code = code
                self._context.changed()
                return code
            failures = 0 if time.monotonic() - began > STABLE_SECONDS else failures + 1
            await self._back_off(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1] if failures else 0.0)
            self.restarts += 1
        # Stopped: the exit code is that of the last run, if there was one.
        ended = self._state.get("terminated") or self._last_state.get("terminated")
        self.exit_code = ended["exitCode"] if ended else None
        return self.exit_code or 0

    async def _back_off(self, seconds: float) -> None:
        if not seconds:
            return
        ended = self._state
        self._last_state = {"terminated": ended["terminated"]} if "terminated" in ended else self._last_state
        message = f"back-off {seconds:g}s restarting failed container={self.name}"
        self._set_state({"waiting": {"reason": "CrashLoopBackOff", "message": message}})
        self._context.event("Warning", "BackOff", f"Back-off restarting failed container {self.name}")
        await self._sleep(seconds)

    async def _sleep(self, seconds: float) -> bool:
        """Sleep; returns True as soon as the container is being stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    async def _prepared(self) -> Launch | None:
        """Wait until everything that the container needs exists; returns None if it is stopped before."""
        while not self._stopping.is_set():
            try:
                return await self._context.prepare(self.spec)
            except (NotYet, OSError, ValueError) as missing:
                state = {"waiting": {"reason": "CreateContainerConfigError", "message": str(missing)}}
                if self._state != state:
                    self._set_state(state)
                    self._context.event("Warning", "Failed", f"Error: {missing}")
                await self._sleep(WAIT_SECONDS)
        return None

    async def _run_once(self) -> int:
        launch = self._launch = await self._prepared()
        if launch is None:
            return 0
        try:
            log = self._context.log(self.name)
            process = await Process.start(
                launch.command, launch.environment, launch.directory, log, self._context.record
            )
        except (OSError, ValueError) as fault:  # ValueError: e.g. a NUL in an argument or variable
            now = meta.now()
            ended = {
                "exitCode": 128,
                "reason": "StartError",
                "message": str(fault),
                "startedAt": now,
                "finishedAt": now,
            }
            self._set_state({"terminated": ended})
            return 128
        self._process, self._told = process, False
        started_at = meta.now()
        try:
            code = await self._attend(process, started_at)
        except BaseException:
            process.kill()  # nobody would supervise it any more
            await process.wait()
            raise
        finally:
            self._process = None
        ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "startedAt": started_at,
                 "finishedAt": meta.now()}  # fmt: skip
        if code > 128:
            ended["signal"] = code - 128
        # There is no termination message file: /dev is shared by all processes.
        if code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            ended |= {"message": said} if (said := await asyncio.to_thread(last_words, log)) else {}
        self._set_state({"terminated": ended})
        return code

    async def _attend(self, process: Process, started_at: str) -> int:
        if self._stopping.is_set():  # `stop` was called while it was being started
            self._ending = asyncio.create_task(self._end(self._stop_grace))
        self._probes = _Probes(started="startupProbe" not in self.spec, ready="readinessProbe" not in self.spec)
        self._unhealthy = ""
        if "terminated" in self._state:
            self._last_state = {"terminated": self._state["terminated"]}
        self._set_state({"running": {"startedAt": started_at}})
        self._context.event("Normal", "Started", f"Started container {self.name}")
        probing = asyncio.create_task(self._probe())
        try:
            return await process.wait()
        finally:
            probing.cancel()
            await asyncio.wait((probing,))  # the loop may close as soon as the container has ended

    # stopping

    async def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM, then SIGKILL after the grace period. Does not wait for `run`."""
        self._stop_grace = grace_seconds
        self._stopping.set()
        await self._end(grace_seconds)

    async def _end(self, grace_seconds: float) -> None:
        """End the process. It gets preStop and SIGTERM only once; another call can only shorten its grace period."""
        process = self._process
        if process is None:
            return
        deadline = time.monotonic() + grace_seconds
        if grace_seconds > 0:
            if not self._told:
                self._told = True
                await self._pre_stop(grace_seconds)
                process.terminate()
            if await process.wait_ended(max(0.0, deadline - time.monotonic())):
                return
        process.kill()

    async def _pre_stop(self, grace_seconds: float) -> None:
        hook = ((self.spec.get("lifecycle") or {}).get("preStop") or {}).get("exec")
        if hook and self._launch is not None:
            try:
                code, output = await self._execute(hook["command"], grace_seconds)
            except (TimeoutError, OSError, ValueError) as fault:
                code, output = 1, str(fault)
            if code:
                self._context.event("Warning", "FailedPreStopHook", f"preStop of {self.name} failed: {output[-300:]}")

    def kill(self) -> None:
        """Kill at once, without a grace period."""
        self._stop_grace = 0.0
        self._stopping.set()
        if self._process is not None:
            self._process.kill()

    # probes

    async def _execute(self, command: list[str], seconds: float) -> tuple[int, str]:
        assert self._launch is not None
        words = self._launch.translate(command)
        return await run_command(words, self._launch.environment, self._launch.directory, seconds)

    async def _probe(self) -> None:
        if "startupProbe" in self.spec and not await self._until_started(self.spec["startupProbe"]):
            return
        tasks = [
            asyncio.create_task(self._repeat(kind)) for kind in ("readinessProbe", "livenessProbe") if kind in self.spec
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _until_started(self, probe: Obj) -> bool:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        failures = 0
        while True:
            due = time.monotonic()
            fault = await attempt(probe, self.spec, self._context.address, self._execute)
            if fault is None:
                self._probes.started = True
                self._context.changed()
                return True
            failures += 1
            if failures >= probe.get("failureThreshold", 3):
                await self._fail("startup", fault, kill=True)
                return False
            await asyncio.sleep(due + probe.get("periodSeconds", 10) - time.monotonic())

    async def _repeat(self, kind: str) -> None:
        probe = self.spec[kind]
        short = kind.removesuffix("Probe")
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        failures = successes = 0
        first = True
        while True:
            due = time.monotonic()
            fault = await attempt(probe, self.spec, self._context.address, self._execute)
            failures, successes = (failures + 1, 0) if fault else (0, successes + 1)
            if kind == "readinessProbe":
                self._readiness(probe, failures, successes)
            if fault is not None and failures >= probe.get("failureThreshold", 3):
                await self._fail(short, fault, kill=kind == "livenessProbe")
                if kind == "livenessProbe":
                    return
            # While it starts, probe readiness often, so that a pod becomes ready without waiting for a full period. Not
            # liveness: more frequent failures would kill a container that starts slowly.
            first = first and bool(fault) and kind == "readinessProbe"
            period = probe.get("periodSeconds", 10)
            await asyncio.sleep(min(0.25, period) if first else due + period - time.monotonic())

    def _readiness(self, probe: Obj, failures: int, successes: int) -> None:
        ready = self._probes.ready
        if successes >= probe.get("successThreshold", 1):
            ready = True
        elif failures >= probe.get("failureThreshold", 3):
            ready = False
        if ready != self._probes.ready:
            self._probes.ready = ready
            self._context.changed()

    async def _fail(self, kind: str, fault: str, kill: bool) -> None:
        message = f"{kind.capitalize()} probe failed: {fault}"
        if kill or self._unhealthy != message:
            self._context.event("Warning", "Unhealthy", message)
        self._unhealthy = message
        if kill:
            self._context.event("Normal", "Killing", f"Container {self.name} failed {kind} probe, will be restarted")
            self._ending = asyncio.create_task(self._end(self._context.grace_seconds))
