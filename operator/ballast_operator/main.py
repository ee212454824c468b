"""Runs the operator's process: Kopf watches, the runtime does the rest.

Kopf only logs in, lists, watches and reconnects, and hands every event to the runtime. It stores nothing on objects: no
finalizers, no annotations, no peering.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, cast

import kopf
from aiohttp import web

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError
from ballast_operator.clock import monotonic
from ballast_operator.kubeconfig import ApiAccess, find_access
from ballast_operator.logs import configure_logging
from ballast_operator.model.cluster import KIND as CLUSTER_KIND
from ballast_operator.model.cluster import PLURAL as CLUSTERS
from ballast_operator.model.meta import CLUSTER_LABEL, GROUP, MANAGED_BY, VERSION, Key
from ballast_operator.model.reassignment import KIND as REASSIGNMENT_KIND
from ballast_operator.model.reassignment import PLURAL as REASSIGNMENTS
from ballast_operator.model.topic import KIND as TOPIC_KIND
from ballast_operator.model.topic import PLURAL as TOPICS
from ballast_operator.runtime import RELIST_SECONDS, Runtime
from ballast_operator.scram import use_for_scram

log = logging.getLogger(__name__)
KINDS = {TOPICS: TOPIC_KIND, REASSIGNMENTS: REASSIGNMENT_KIND, CLUSTERS: CLUSTER_KIND}
MANAGER = "ballast-operator"
# Watches that fail at once this often are no network glitch: the process exits, so that somebody notices.
FAILURES_IN_A_ROW = 5
LONG_LIFE_SECONDS = 30.0
WATCH_AGAIN_SECONDS = 0.5
WAY_OUT_SECONDS = 10.0
# The cache is large and long-lived; with Python's defaults the collector would traverse it far too often.
GC_THRESHOLDS = (50_000, 20, 100)


class KopfStuckError(Exception):
    """Kopf was told to stop and did not."""


_left_alone: list[asyncio.Task[None]] = []


def registry_of(
    runtime: Runtime, access: ApiAccess, stop: asyncio.Event, ending: asyncio.Event
) -> kopf.OperatorRegistry:
    """The handlers: one per kind that tells the runtime, and one for what belongs to clusters."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return connection_info(access)

    @kopf.on.startup(registry=registry)
    async def begin(**_: Any) -> None:
        """Take the signals back: Kopf installs its handlers in this turn of the loop, after this. Without our own we
        could not tell a requested stop from a failure."""
        asyncio.get_running_loop().call_soon(take_signals, stop)

    @kopf.on.cleanup(registry=registry)
    async def let_go(**_: Any) -> None:
        """End what Kopf would otherwise wait 5 s for: workers, the task that waits for its stop flag."""
        runtime.end_workers()
        ending.set()

    for plural, kind in KINDS.items():
        _watch(registry, runtime, plural, kind)
    for resource in ("pods", "persistentvolumeclaims", "statefulsets"):
        _watch_below(registry, runtime, resource)
    return registry


def _watch(registry: kopf.OperatorRegistry, runtime: Runtime, plural: str, kind: str) -> None:
    @kopf.on.event(GROUP, VERSION, plural, registry=registry, id=f"watch-{plural}")
    async def tell(event: Mapping[str, Any], **_: Any) -> None:
        body = event["object"]
        if event.get("type") == "DELETED":
            runtime.vanished(kind, body)
        else:
            runtime.heard(kind, body)


def _watch_below(registry: kopf.OperatorRegistry, runtime: Runtime, resource: str) -> None:
    selector: dict[str, Any] = {MANAGED_BY: MANAGER, CLUSTER_LABEL: kopf.PRESENT}

    @kopf.on.event(resource, labels=selector, registry=registry, id=f"watch-{resource}")
    async def tell(event: Mapping[str, Any], **_: Any) -> None:
        meta = event["object"]["metadata"]
        runtime.changed_below(Key(meta["namespace"], meta["labels"][CLUSTER_LABEL]))


def connection_info(access: ApiAccess) -> kopf.ConnectionInfo:
    return kopf.ConnectionInfo(
        server=access.server,
        ca_data=access.ca_pem,
        insecure=access.insecure or None,
        certificate_data=access.certificate_pem,
        private_key_data=access.key_pem,
        token=access.bearer_token(),
        username=access.username,
        password=access.password,
        default_namespace=access.namespace,
    )


class NoDiffs(kopf.DiffBaseStorage):
    """Stores no diffs: only change handlers need them, and we have none; it saves a copy of each object."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return cast(kopf.BodyEssence, {})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        raise NotImplementedError("nothing is kept on objects")


def settings_of() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.peering.mandatory = False
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.persistence.progress_storage = kopf.StatusProgressStorage(field="status.kopf")
    settings.persistence.diffbase_storage = NoDiffs()
    settings.watching.server_timeout = 300
    # The watched resources are known; scanning for them would need additional cluster-wide permissions.
    settings.scanning.disabled = True
    settings.watching.reconnect_backoff = 0.5
    settings.queueing.idle_timeout = 1.0
    settings.networking.error_backoffs = (0.2, 0.5, 1, 2, 3)
    settings.networking.enforce_retry_after = True
    return settings


async def operate(
    access: ApiAccess, namespaces: Sequence[str], probe_at: str | None, stop: asyncio.Event, runtime: Runtime
) -> None:
    """Run the operator until it is told to stop."""
    await runtime.start()
    probes = await serve_probes(runtime, probe_at) if probe_at is not None else None
    try:
        await await_definitions(runtime, stop)
        await _watch_all(runtime, access, namespaces, stop)
    finally:
        if probes is not None:
            await probes.cleanup()
        await runtime.stop()


async def _watch_all(
    runtime: Runtime,
    access: ApiAccess,
    namespaces: Sequence[str],
    stop: asyncio.Event,
    ready: asyncio.Event | None = None,
) -> None:
    """Run Kopf until `stop`. It exits when a watch is refused (with 410, say), and is then started again."""
    failures = 0
    while not stop.is_set():
        began = monotonic()
        ending = asyncio.Event()
        # Created before Kopf, which cancels all younger tasks and waits for them.
        passing_on = asyncio.create_task(_pass_on(stop, ending))
        watching = kopf.operator(
            registry=registry_of(runtime, access, stop, ending),
            settings=settings_of(),
            # By default Kopf looks up the user's name, and a container's user may have none.
            identity=cast(Any, runtime.leader.identity),
            memories=kopf.ResourceMemories() if hasattr(kopf, "ResourceMemories") else None,
            namespaces=list(namespaces),
            clusterwide=not namespaces,
            stop_flag=ending,
            ready_flag=ready,
        )
        try:
            return await _to_its_end(watching, ending)
        except Exception as error:
            failures = 1 if monotonic() - began > LONG_LIFE_SECONDS else failures + 1
            if _is_servers(error):
                failures = min(failures, FAILURES_IN_A_ROW)
            if failures > FAILURES_IN_A_ROW or stop.is_set():
                raise
            log.warning("the watches failed and begin anew: %s", error)
        finally:
            take_signals(stop)  # it may have ended before it logged in
            passing_on.cancel()
        await asyncio.sleep(failures * WATCH_AGAIN_SECONDS)
        runtime.begin_anew()
        await await_definitions(runtime, stop)


def _is_servers(error: Exception) -> bool:
    """Whether the API server or a proxy before it has failed (5xx). Exiting for that would put the operator into a
    restart backoff of minutes, in which it would miss the recovery. Kopf's API errors have a `status`."""
    return int(getattr(error, "status", 0)) >= 500


async def _to_its_end(watching: Coroutine[Any, Any, None], ending: asyncio.Event) -> None:
    """Await Kopf's end, but abandon it if it hangs: it waits for all its tasks, and a stream whose connection broke may
    wait forever for a login, mistaking its own cancellation for that of the wait."""
    told = asyncio.create_task(ending.wait())  # as old as Kopf, so that it does not count among its tasks
    running = asyncio.create_task(watching)
    try:
        await asyncio.wait({told, running}, return_when=asyncio.FIRST_COMPLETED)
        _, stuck = await asyncio.wait({running}, timeout=WAY_OUT_SECONDS)
    finally:
        told.cancel()
        running.cancel()
    if stuck:
        _left_alone.append(running)
        raise KopfStuckError(f"Kopf has not ended within {WAY_OUT_SECONDS:.0f} s")
    running.result()


def take_signals(stop: asyncio.Event) -> None:
    """SIGINT and SIGTERM set the flag."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _pass_on(stop: asyncio.Event, ending: asyncio.Event) -> None:
    await stop.wait()
    ending.set()


async def await_definitions(runtime: Runtime, stop: asyncio.Event) -> None:
    """Wait until the API server knows the three kinds: what is unknown at the start would never be watched."""
    told, trouble = False, ""
    while not stop.is_set():
        try:
            found = await runtime.api.find(f"/apis/{GROUP}/{VERSION}")
        except (ApiError, ApiUnavailableError) as error:
            # An outage at the start is no reason to exit: there may be nobody to restart the operator.
            if str(error) != trouble:
                trouble = str(error)
                log.warning("the API server cannot be asked: %s", error)
            await asyncio.sleep(1.0)
            continue
        if found is not None and KINDS.keys() <= {resource["name"] for resource in found.get("resources") or ()}:
            return
        if not told:
            told = True
            log.warning("the API server does not know KafkaCluster, KafkaTopic and Reassignment: apply crds/ first")
        await asyncio.sleep(1.0)


async def serve_probes(runtime: Runtime, at: str) -> web.AppRunner:
    """/live, /ready and /metrics, at a port of one address or of all."""
    host, _, port = at.rpartition(":")

    async def live(_: web.Request) -> web.Response:
        trouble = runtime.alive()
        return web.Response(text=trouble or "ok", status=500 if trouble else 200)

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="leads" if runtime.leader.leads else "waits")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=runtime.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.add_routes([web.get("/live", live), web.get("/ready", ready), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host=host.strip("[]") or None, port=int(port)).start()
    return runner


async def _main(namespaces: Sequence[str], probe_at: str | None, access: ApiAccess, relist_seconds: float) -> None:
    stop = asyncio.Event()
    take_signals(stop)
    runtime = Runtime(access, namespaces, relist_seconds=relist_seconds)
    try:
        await operate(access, namespaces, probe_at, stop, runtime)
    finally:
        if _left_alone:  # the loop would wait for them as Kopf did
            code = 0 if sys.exc_info()[0] is None else 1
            log.info("what Kopf could not end ends with the process")
            logging.shutdown()
            os._exit(code)


def main(
    namespaces: Sequence[str] = (),
    probe_at: str | None = None,
    kubeconfig: str | None = None,
    relist_seconds: float = RELIST_SECONDS,
    log_file: str | None = None,
) -> int:
    """Run the process; missing access to Kubernetes is reported before any process-wide setting changes."""
    access = find_access(kubeconfig)
    configure_logging(machines="KUBERNETES_SERVICE_HOST" in os.environ, file=log_file)
    gc.set_threshold(*GC_THRESHOLDS)
    use_for_scram()
    asyncio.run(_main(namespaces, probe_at, access, relist_seconds))
    return 0
