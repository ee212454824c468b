"""Show in two minutes how Ballast levels the disks of a skewed cluster.

Starts a cluster, writes uneven data, proposes moves, approves them, and runs
them. As in production, the Spark job measures the load (from Prometheus if that
is installed, otherwise from the brokers) and creates the Reassignment. Uses a
temporary directory, which is removed at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ballast_cli import CommandError
from ballast_cli.arguments import pods_folder
from ballast_cli.demo_data import VALUE
from ballast_cli.up import CLUSTER, NAMESPACE, Stack, refusals, require_ports, wait_ready
from ballast_local.workloads import launch

if TYPE_CHECKING:
    from ballast_operator.kafka_client import KafkaConnection
    from ballast_operator.model.kafka import LogView, ReplicaId

API = "ballast.dev/v1alpha1"
TOPIC = "events"
PARTITIONS = 27
VOLUME = "128Mi"
LARGE_BYTES = 32 << 20
SMALL_BYTES = 2 << 20
# For the data, and for moved replicas until their sources are deleted.
ROOM_BYTES = 640 << 20
THROTTLE = "24Mi"
# Generous: a busy machine is slow, and the user sees the progress.
MOVE_SECONDS = 180.0
SPARK_SECONDS = 600.0
ENDS = ("Succeeded", "Failed", "Stale", "Cancelled")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=pods_folder, metavar="DIR", help="use and keep this directory instead")
    parser.add_argument("--quick", action="store_true", help="plan in the operator, without installing Spark")


def run(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="ballast-demo-") as temporary:
        try:
            data = args.data or Path(temporary)
            require_room(data)
            with refusals(data):
                story = _tell(Stack(data), args.quick, kept=args.data is not None)
                code = asyncio.run(_until_stopped(story))
            return code
        except TimeoutError as error:
            raise CommandError(str(error)) from error


def require_room(data: Path) -> None:
    """Check for free disk space now: brokers would only report its lack in their logs, three minutes later."""
    there = next(folder for folder in (data.absolute(), *data.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < ROOM_BYTES:
        raise CommandError(
            f"{there} has room for {free >> 20} MiB, but the demo needs up to {ROOM_BYTES >> 20} MiB. "
            "Choose another directory with --data or TMPDIR."
        )


async def _until_stopped(story: Coroutine[Any, Any, int]) -> int:
    """Run the story so that SIGTERM, like Ctrl-C, stops all processes and removes all files."""
    telling = asyncio.ensure_future(story)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, telling.cancel)
    try:
        return await telling
    except asyncio.CancelledError:
        if telling.cancelled() and not cast(asyncio.Task[Any], asyncio.current_task()).cancelling():
            return 128 + signal.SIGTERM
        telling.cancel()
        await asyncio.wait({telling})
        raise


async def _tell(stack: Stack, quick: bool, kept: bool) -> int:
    from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection

    began = time.monotonic()
    try:
        await stack.start()
        bootstrap = await start_cluster(stack)
        kafka = KafkaConnection(ConnectionSettings(bootstrap))
        try:
            await create_topic(stack)
            await skew(stack, kafka, bootstrap)
            name = await (propose_by_operator(stack) if quick else _proposed(stack, kafka, bootstrap))
            await show_proposal(stack, name)
            phase = await approve(stack, name)
            level = phase == "Succeeded"
            _say(
                "6. Level disks, and the throttles are gone:"
                if level
                else f"6. The Reassignment did not succeed; it is {phase}:"
            )
            await _show(stack, kafka)
        finally:
            await kafka.close()
    finally:
        await stack.stop(gently=kept)
    planner = "the operator itself (without --quick: the Spark job)" if quick else "the Spark job"
    _say(f"That took {time.monotonic() - began:.0f} s; planned by {planner}. To start your own cluster: ./ballast up")
    return 0 if level else 1


def _say(text: str) -> None:
    bold = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(f"\n\x1b[1m{text}\x1b[0m" if bold else f"\n{text}", flush=True)


async def start_cluster(stack: Stack) -> str:
    """Create the cluster, wait until it is ready, and return its bootstrap address."""
    _say(f"1. A KafkaCluster: three brokers, each with three volumes of {VOLUME}.")
    volumes = [{"name": f"disk-{index}", "size": VOLUME} for index in range(3)]
    # Small segments, so that the demonstration's small sizes show; and no need to delay the first rebalance of groups.
    config = {"log.segment.bytes": "8388608", "group.initial.rebalance.delay.ms": "0"}
    spec = {"brokers": 3, "volumes": volumes, "config": config}
    cluster = {"apiVersion": API, "kind": "KafkaCluster", "metadata": {"name": CLUSTER}, "spec": spec}
    require_ports(cluster)
    await stack.apply(cluster)
    ready = await wait_ready(stack, "kafkaclusters", CLUSTER)
    return str(ready["status"]["bootstrapServers"])


async def create_topic(stack: Stack) -> None:
    _say(f"2. A KafkaTopic with {PARTITIONS} partitions. Kafka spreads them by number: three on every volume.")
    spec = {"clusterRef": {"name": CLUSTER}, "partitions": PARTITIONS, "replicas": 1}
    await stack.apply({"apiVersion": API, "kind": "KafkaTopic", "metadata": {"name": TOPIC}, "spec": spec})
    await wait_ready(stack, "kafkatopics", TOPIC)


async def skew(stack: Stack, kafka: KafkaConnection, bootstrap: str) -> None:
    """Write much data to the partitions on one volume of each broker, as it happens in real life."""
    _say("3. But partitions differ in size. Those on one volume of each broker grow faster than the rest:")
    favoured: dict[int, str] = {}
    sizes = {}
    for replica, log in sorted((await _described(kafka, dict.fromkeys(range(PARTITIONS), 0))).items()):
        if log.path is not None:
            favoured.setdefault(replica.broker, log.path)
            sizes[replica.partition] = LARGE_BYTES if favoured[replica.broker] == log.path else SMALL_BYTES
    held = await fill(stack, bootstrap, sizes)
    await _described(kafka, held)
    await _show(stack, kafka)


async def _described(kafka: KafkaConnection, held: dict[int, int]) -> dict[ReplicaId, LogView]:
    """Wait until brokers report every log of the topic with at least the bytes of `held`, and return the logs.

    A topic is ready before its last log is created, and plans are made from what brokers report.
    """
    from ballast_cli.status import observe_cluster

    deadline = time.monotonic() + MOVE_SECONDS
    while True:
        logs = {where: log for where, log in (await observe_cluster(kafka)).logs.items() if where.topic == TOPIC}
        found = {where.partition: log.size_bytes for where, log in logs.items()}
        lacking = sorted(number for number, size in held.items() if found.get(number, -1) < size)
        if not lacking:
            return logs
        if time.monotonic() > deadline:
            raise TimeoutError(f"the brokers do not report all data of partitions {lacking} of {TOPIC}")
        await asyncio.sleep(0.2)


async def fill(stack: Stack, bootstrap: str, sizes: dict[int, int]) -> dict[int, int]:
    """Fill partitions up to these sizes; returns the bytes of values written to each."""
    counts = {partition: size // len(VALUE) for partition, size in sizes.items()}
    command = ["-m", "ballast_cli.demo_data", bootstrap, TOPIC, json.dumps(counts)]
    code, _, complaints = await _run_python(stack, command, MOVE_SECONDS, "writing the data")
    if code:
        raise CommandError(f"writing the data failed:\n{complaints}")
    return {partition: count * len(VALUE) for partition, count in counts.items()}


async def propose_by_operator(stack: Stack) -> str:
    """Create a Reassignment whose moves the operator plans, and return its name."""
    _say("4. A Reassignment asks the operator to level them by bytes. Nothing moves until it is approved.")
    spec = {
        "clusterRef": {"name": CLUSTER},
        "generate": {},
        "approval": "Required",
        "throttle": {"interBroker": THROTTLE, "intraBroker": THROTTLE},
    }
    await stack.apply({"apiVersion": API, "kind": "Reassignment", "metadata": {"name": "level"}, "spec": spec})
    return "level"


async def _proposed(stack: Stack, kafka: KafkaConnection, bootstrap: str) -> str:
    """Let the Spark job propose, from Prometheus if that is installed, else from the brokers; prints which."""
    from ballast_cli.demo_prometheus import scraping, seen
    from ballast_cli.status import observe_cluster

    async with scraping(stack, CLUSTER) as url:
        if url is None:
            print("   Prometheus is not on the PATH: the job asks the brokers instead.", flush=True)
        else:
            view = await observe_cluster(kafka)
            await seen(url, sum(log.size_bytes for log in view.logs.values()))
            print(f"   Prometheus scrapes the brokers: {url}", flush=True)
        return await propose_by_job(stack, bootstrap, url)


async def propose_by_job(stack: Stack, bootstrap: str, prometheus: str | None = None) -> str:
    """Run the Spark job on data from Prometheus or the brokers; returns the name of the Reassignment it creates."""
    source = "reads Prometheus" if prometheus else "asks the brokers"
    _say(f"4. The Spark job {source}, plans, and creates a Reassignment. Nothing moves until it is approved.")
    code, said, complaints = await _run_job(stack, bootstrap, prometheus)
    created = [line.split("/", 1)[1] for line in said.splitlines() if "created reassignment/" in line]
    if code or len(created) != 1:
        raise CommandError(f"the Spark job proposed nothing:\n{said}{complaints}")
    print(f"   {said.splitlines()[0]}", flush=True)
    return created[0]


async def _run_job(stack: Stack, bootstrap: str, prometheus: str | None) -> tuple[int, str, str]:
    """Run the job as a process, as it is a pod elsewhere. Needs --capacity: here all volumes are on one disk."""
    command = [
        "-m", "ballast_cli", "rebalance", "--bootstrap", bootstrap, "--apply",
        "--cluster", CLUSTER, "--namespace", NAMESPACE, "--kubeconfig", str(stack.kubeconfig),
        "--capacity", VOLUME, "--throttle-network", THROTTLE, "--throttle-disk", THROTTLE,
        "--master", "local[2]", "--memory", "512m", *(["--prometheus", prometheus] if prometheus else []),
    ]  # fmt: skip
    return await _run_python(stack, command, SPARK_SECONDS, "the Spark job")


async def _run_python(stack: Stack, command: list[str], seconds: float, what: str) -> tuple[int, str, str]:
    """Run a process that does not outlive this one; returns its exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *launch.under(sys.executable, *command),
        env=stack.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(seconds):
            said, complaints = await process.communicate()
    except TimeoutError:
        raise TimeoutError(f"{what} took more than {seconds:.0f} s; see {stack.data / 'operator.log'}") from None
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, said.decode(), complaints.decode()


async def show_proposal(stack: Stack, name: str) -> None:
    plan = (await _until(stack, name, ("AwaitingApproval",)))["status"]["plan"]
    for line in plan["preview"]:
        print(f"   {_shortened(line, stack)}")
    print(f"   hash {plan['hash']}", flush=True)


def _shortened(line: str, stack: Stack) -> str:
    return line.replace(str(stack.data.resolve() / "volumes" / "default") + "/", "").replace("/data", "")


async def approve(stack: Stack, name: str) -> str:
    """Approve the plan and follow it; returns its final phase, or the current one after MOVE_SECONDS."""
    from ballast_operator.apply.kubernetes import path_of

    _say("5. The plan is approved by its hash. It runs throttled, while clients keep working.")
    found = await _until(stack, name, ("AwaitingApproval",))
    approval = {"spec": {"approvedPlan": found["status"]["plan"]["hash"]}}
    await stack.api.merge(path_of(API, "reassignments", NAMESPACE, name), approval)
    shown, phase = "", ""
    deadline = time.monotonic() + MOVE_SECONDS
    while time.monotonic() < deadline:
        status = (await stack.get("reassignments", name) or {}).get("status", {})
        progress, phase = status.get("progress", {}), str(status.get("phase"))
        line = f"   {phase}: {progress.get('percent', 0)} %, {progress.get('movesText', '')} partitions"
        if line != shown:
            print(line, flush=True)
            shown = line
        if phase in ENDS:
            break
        await asyncio.sleep(0.5)
    return phase


async def _until(stack: Stack, name: str, phases: tuple[str, ...]) -> dict[str, Any]:
    deadline = time.monotonic() + MOVE_SECONDS
    while time.monotonic() < deadline:
        found = await stack.get("reassignments", name)
        if found and found.get("status", {}).get("phase") in phases:
            return found
        await asyncio.sleep(0.2)
    raise TimeoutError(f"the Reassignment did not reach {phases}; see {stack.data / 'operator.log'}")


async def _show(stack: Stack, kafka: KafkaConnection) -> None:
    from ballast_cli.picture import draw
    from ballast_cli.status import observe_cluster
    from ballast_operator.model.cluster import read_cluster
    from ballast_operator.plan.claimed import as_claimed

    body = await stack.get("kafkaclusters", CLUSTER)
    assert body is not None
    picture = draw(as_claimed(read_cluster(body), await observe_cluster(kafka)))
    print("\n".join(f"   {line}" for line in picture.splitlines()), flush=True)
