"""Run a Kafka cluster and its operator on this machine.

Starts an embedded Kubernetes API, the operator, and the cluster of
manifests/examples/cluster.yaml. Ctrl-C stops everything; the next start
continues with the same data. The exit code is 0 if the cluster was ready by
then. Listens only on loopback addresses and writes only to the data directory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import os
import shlex
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ballast_cli import DISK_FULL, CommandError
from ballast_cli.arguments import at_least_one, pods_folder, port
from ballast_cli.kube import MANAGER
from ballast_cli.places import ROOT, kept
from ballast_cli.reach import CONNECT_SECONDS
from ballast_local.last_applied import ANNOTATION

CLUSTER = "demo"
LITTLE_BYTES = 2**20
NAMESPACE = "default"
READY_SECONDS = 120.0
STOP_SECONDS = 20.0
PLURALS_APPLIED = ("kafkaclusters", "kafkatopics", "reassignments")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--brokers", type=at_least_one, metavar="N", help="brokers (default for a new cluster: 3)")
    parser.add_argument(
        "--volumes", type=at_least_one, metavar="N", help="volumes per broker (default for a new cluster: 3)"
    )
    parser.add_argument(
        "--data", type=pods_folder, default=str(kept("up")), metavar="DIR",
        help="data directory (default: .ballast/up)",
    )  # fmt: skip
    parser.add_argument("--port", type=port, default=0, metavar="P", help="port of the Kubernetes API (default: any)")


def run(args: argparse.Namespace) -> int:
    with refusals(args.data):
        code = asyncio.run(_run(Stack(args.data, args.port), args.brokers, args.volumes))
    return code


@contextlib.contextmanager
def refusals(data: Path) -> Iterator[None]:
    """Turn errors of the embedded API over `data` into a CommandError."""
    from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError

    try:
        yield
    except ApiError as refusal:
        raise CommandError(refusal.message) from refusal
    except ApiUnavailableError as fault:
        raise CommandError(f"the embedded Kubernetes API does not answer: {fault}{_advice(fault, data)}") from fault


class Stack:
    """The embedded API in this process, the operator in a process of its own, and a client."""

    def __init__(self, data: Path, port: int = 0) -> None:
        from ballast_local.cluster import LocalCluster

        self.data = data
        self._port = port
        self._local = LocalCluster()
        self._operator: asyncio.subprocess.Process | None = None
        self.kubeconfig = data / "kubeconfig"
        self.operator_settings: Sequence[str] = ()
        self.api: Any = None

    async def start(self) -> None:
        from ballast_local.cluster import InUseError
        from ballast_local.errors import ApiError
        from ballast_operator.apply.kubernetes import KubernetesApi
        from ballast_operator.kubeconfig import read_kubeconfig

        try:
            self.kubeconfig = await self._local.start(self.data, self._port)
        except InUseError as error:
            raise CommandError(f"{error}. Stop it, or choose another directory with --data.") from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CommandError(f"port {self._port} is in use; without --port, a free port is used.") from error
            raise CommandError(f"cannot start in {self.data}: {_why(error)}{_advice(error, self.data)}") from error
        except (sqlite3.Error, ApiError) as error:
            raise CommandError(f"cannot start in {self.data}: {error}{_advice(error, self.data)}") from error
        self.api = KubernetesApi(read_kubeconfig(self.kubeconfig))
        await self._apply_crds()
        await self._start_operator()

    async def stop(self, gently: bool = True) -> None:
        """Stop the operator first, so that it does not see the brokers go. Unless `gently`, brokers are killed."""
        if self._operator is not None and self._operator.returncode is None:
            self._operator.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._operator.wait()
            if self._operator.returncode is None:
                self._operator.kill()
                await self._operator.wait()
        if self.api is not None:
            await self.api.close()
        await (self._local.stop() if gently else self._local.stop(grace_seconds=0.0))

    def environment(self) -> dict[str, str]:
        """The environment for our own processes that use this API."""
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PYTHONUNBUFFERED": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in ("operator", "spark", "broker-image"))
        return environment

    async def ended(self) -> str:
        """Wait until one of the parts fails, and return a message that says which."""
        assert self._operator is not None
        failed = asyncio.create_task(self._local.failed())
        operator = asyncio.create_task(self._operator.wait())
        try:
            await asyncio.wait({failed, operator}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            failed.cancel()
            operator.cancel()
        if operator.done() and not operator.cancelled():
            how = f"was killed by {signal.Signals(-code).name}" if (code := operator.result()) < 0 else "has exited"
            return f"the operator {how}; see {self.data / 'operator.log'}"
        return f"cannot write to {self.data} any more: is the disk full, or was the directory removed?"

    async def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Server-side apply with the field manager of `./ballast apply`, so that users can continue with that."""
        from ballast_operator.apply.kubernetes import path_of

        plural = body["kind"].lower() + "s"
        namespace = None if body["kind"] == "CustomResourceDefinition" else NAMESPACE
        path = path_of(body["apiVersion"], plural, namespace, body["metadata"]["name"])
        applied: dict[str, Any] = await self.api.apply(path, body, MANAGER)
        return applied

    async def get(self, plural: str, name: str) -> dict[str, Any] | None:
        from ballast_operator.apply.kubernetes import path_of

        found: dict[str, Any] | None = await self.api.find(path_of("ballast.dev/v1alpha1", plural, NAMESPACE, name))
        return found

    async def _apply_crds(self) -> None:
        import yaml

        for plural in PLURALS_APPLIED:
            await self.apply(yaml.safe_load((ROOT / "crds" / f"{plural}.yaml").read_text()))
            await self._served(plural)

    async def _served(self, plural: str) -> None:
        """Wait until the new resource is served, which is a moment after its definition was stored."""
        from ballast_operator.apply.kubernetes import ApiError, path_of

        deadline = time.monotonic() + 10
        while True:
            try:
                await self.api.get(path_of("ballast.dev/v1alpha1", plural, NAMESPACE))
                return
            except ApiError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)

    async def _start_operator(self, kubeconfig: Path | None = None) -> None:
        from ballast_local.workloads import launch

        path = self.data / "operator.log"
        log = path.open("ab")  # for output from before the operator opens its log itself
        # A session of its own: Ctrl-C reaches only this process, which stops the parts in order. `launch.under` makes
        # the operator die with this process, even if that is killed.
        self._operator = await asyncio.create_subprocess_exec(
            *launch.under(
                sys.executable, "-m", "ballast_cli", "operator", "--namespace", NAMESPACE, "--log-file", str(path),
                *self.operator_settings,
            ),
            stdout=log, stderr=log, env=self.environment() | ({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}),
            start_new_session=True,
        )  # fmt: skip
        log.close()


def _why(error: OSError) -> str:
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{error.filename} is not a directory"
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")


def _advice(error: Exception, data: Path) -> str:
    """Advice to append if the disk or quota is full or the database damaged, else an empty string.

    That is recognized by the system's or SQLite's message. SQLite reports a disk without room for its index as an
    I/O error, so with any SQLite error a nearly full disk counts, too."""
    full = any(each in str(error) for each in (*map(os.strerror, DISK_FULL), "disk is full"))
    if full or (isinstance(error, sqlite3.Error) and shutil.disk_usage(data).free < LITTLE_BYTES):
        return f". Make room in {data}, or choose another directory with --data."
    if any(each in str(error) for each in ("file is not a database", "disk image is malformed")):
        return f". {data / 'objects.db'} is damaged, or not Ballast's; choose another directory with --data."
    return ""


def require_ports(cluster: Mapping[str, Any]) -> None:
    """Fail at once, not after two minutes, if another process, such as another Kafka, occupies the brokers' ports."""
    from ballast_local.workloads.addresses import taken_everywhere
    from ballast_operator.model.cluster import ClusterSpec, Metrics
    from ballast_operator.resources.names import CONTROLLER_PORT

    spec = cluster["spec"]
    if spec.get("external"):  # runs elsewhere
        return
    clients = [one["port"] for one in spec.get("listeners") or ()] or [one.port for one in ClusterSpec().listeners]
    metrics = (spec.get("metrics") or {}).get("port", Metrics().port)
    if taken := [str(port) for port in (*clients, CONTROLLER_PORT, metrics) if taken_everywhere(port)]:
        raise CommandError(
            f"another process listens on port {', '.join(taken)} on all addresses, and the brokers need that port. "
            f"Stop it, or let it listen only on 127.0.0.1; `ss -ltnp` shows which process it is."
        )


def example_cluster(brokers: int | None, volumes: int | None) -> dict[str, Any]:
    """The example of manifests/, with the given numbers of brokers and volumes."""
    import yaml

    body = yaml.safe_load((ROOT / "manifests" / "examples" / "cluster.yaml").read_text())
    return _numbered(body, brokers, volumes)


def changed_cluster(present: Mapping[str, Any], brokers: int | None, volumes: int | None) -> dict[str, Any]:
    """The existing cluster with the given numbers of brokers and volumes; everything else stays as users made it."""
    metadata: dict[str, Any] = {"name": present["metadata"]["name"]}
    if (applied := (present["metadata"].get("annotations") or {}).get(ANNOTATION)) is not None:
        metadata["annotations"] = {ANNOTATION: applied}
    body = {"apiVersion": present["apiVersion"], "kind": present["kind"], "metadata": metadata}
    return _numbered(body | {"spec": dict(present["spec"])}, brokers, volumes)


def _numbered(body: dict[str, Any], brokers: int | None, volumes: int | None) -> dict[str, Any]:
    if brokers is not None:
        body["spec"]["brokers"] = brokers
    if volumes is not None:
        held = body["spec"]["volumes"]
        names = [name for index in range(volumes) if (name := f"disk-{index}") not in {one["name"] for one in held}]
        more = [{"name": name, "size": held[0]["size"]} for name in names]
        body["spec"]["volumes"] = [*held, *more][:volumes]
    return body


def _as_kubectl_would(body: dict[str, Any]) -> dict[str, Any]:
    """Add the last-applied annotation, so that users can continue with `kubectl apply`."""
    body["metadata"]["annotations"] = {ANNOTATION: json.dumps(body)}
    return body


async def wait_ready(
    stack: Stack, plural: str, name: str, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Return the object once it is Ready for its current generation; raises TimeoutError with its last message.

    `tell` is called with each message of the Ready condition until then.
    """
    deadline = time.monotonic() + READY_SECONDS
    said = "no status yet"
    while time.monotonic() < deadline:
        found = await stack.get(plural, name)
        status = (found or {}).get("status") or {}
        ready = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), None)
        if found and ready:
            if said != ready["message"] and ready["status"] != "True":  # True is left over from before a restart
                tell(ready["message"])
            said = ready["message"]
            current = status.get("observedGeneration") == found["metadata"]["generation"]
            if ready["status"] == "True" and current and (plural != "kafkaclusters" or await _serving(found)):
                return found
        await asyncio.sleep(0.1)
    raise TimeoutError(f"{name} is not ready after {READY_SECONDS:.0f} s: {said}")


async def _serving(body: Mapping[str, Any]) -> bool:
    """Whether all brokers of a KafkaCluster answer: after a restart its status is still that from before."""
    from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection, KafkaUnavailableError
    from ballast_operator.observe import observe_brokers

    listener = body["spec"]["listeners"][0]
    if listener.get("tls") or listener.get("authentication"):
        # The listener authenticates, and we have no credentials: all we can check is whether it accepts connections.
        takes = await asyncio.gather(*map(_takes_connections, body["status"]["bootstrapServers"].split(",")))
        return sum(takes) >= int(body["spec"]["brokers"])
    kafka = KafkaConnection(ConnectionSettings(body["status"]["bootstrapServers"]))
    try:
        brokers = (await observe_brokers(kafka)).brokers.values()
    except KafkaUnavailableError:
        return False
    finally:
        await kafka.close()
    return sum(broker.online for broker in brokers) >= int(body["spec"]["brokers"])


async def _takes_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError:  # includes TimeoutError
        return False
    writer.close()
    return True


async def _run(stack: Stack, brokers: int | None, volumes: int | None) -> int:
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[int] = loop.create_future()

    def stop(number: int) -> None:
        if not stopping.done():
            stopping.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    began = time.monotonic()
    try:
        await stack.start()
        print(f"KUBECONFIG={stack.kubeconfig}", flush=True)
        present = await stack.get("kafkaclusters", CLUSTER)
        cluster = present or example_cluster(brokers, volumes)
        require_ports(cluster)
        if present is None:
            await stack.apply(_as_kubectl_would(cluster))
        elif brokers is not None or volumes is not None:
            await stack.apply(changed_cluster(present, brokers, volumes))
        up, ended = asyncio.ensure_future(_up(stack, began)), asyncio.ensure_future(stack.ended())
        tasks = (up, ended, stopping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if up.done() and up.result():
                await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                print("stopping; the data is kept", flush=True)
                return 0 if up.done() and up.result() else 128 + stopping.result()
            if ended.done():
                print(ended.result(), file=sys.stderr)
            return 1
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        await stack.stop()


async def _up(stack: Stack, began: float) -> bool:
    print(f"waiting for the cluster {CLUSTER}", flush=True)
    try:
        cluster = await wait_ready(stack, "kafkaclusters", CLUSTER, tell=partial(print, flush=True))
    except TimeoutError as error:
        print(f"{error}\nsee {stack.data / 'operator.log'}", file=sys.stderr)
        return False
    print(f"bootstrap address: {cluster['status']['bootstrapServers']}")
    print(f"ready after {time.monotonic() - began:.1f} s. Press Ctrl-C to stop; the next start has the same data.\n")
    print(_next_steps(stack.kubeconfig), flush=True)
    return True


def _next_steps(kubeconfig: Path) -> str:
    return f"""To see how it levels uneven disks, in two minutes and on a cluster of its own:
  ./ballast demo

Next, in another terminal:
  export KUBECONFIG={shlex.quote(str(kubeconfig))}
  kubectl get kafkaclusters,kafkatopics,reassignments      (or ./ballast get ballast)
  kubectl apply -f manifests/examples/topic.yaml && kubectl wait --for=condition=Ready kafkatopic/orders
  ./ballast status --watch"""
