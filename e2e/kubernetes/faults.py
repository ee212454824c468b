"""Breaks things on a node while clients are at work, and waits until they are whole again.

Every fault lasts until it is seen to take effect, and is healed when its call returns, by the cluster itself or by what
a person would do (runbooks: repair the volume, then restart its broker). Randomness comes from the generator that is
passed in. The node's clock is this machine's and is left alone; only those of brokers are stepped.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from e2e import faulty_disk
from e2e.kubernetes.clocks import STEPS_MS, step_clock
from e2e.kubernetes.node import NodeError
from e2e.kubernetes.story import until_in_sync
from e2e.kubernetes.world import CLUSTER, World, cluster

DAEMONS = ("kubelet", "kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler", "containerd", "kube-proxy")
AWAY = ("kube-apiserver", "kubelet", "etcd")
FRAGILE_VOLUME = "disk-2"
HEAL_SECONDS = 480.0
MOUNT_SECONDS = 60.0
Fault = Callable[[World, random.Random], str]


# ---- conditions


def replaced(world: World, name: str, uid: str) -> bool:
    """Whether another pod of this name is ready. Without a grace period it may exist before the processes of the first
    one have ended, but it is not ready before."""
    pod = world.pods().get(name)
    if pod is None or pod["metadata"]["uid"] == uid:
        return False
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def api_answers(world: World) -> bool:
    return world.try_kubectl("get", "--raw", "/readyz", "--request-timeout=10s").returncode == 0


def out_of_sync(world: World, topic: str, broker: int) -> bool:
    """Whether no partition has this broker in its ISR."""
    return all(broker not in part.isr for part in world.view().topics[topic].partitions.values())


def seconds_pass(world: World, seconds: float) -> None:
    """Let a fault last for a while."""
    until = time.monotonic() + seconds
    world.until("time passes", lambda: time.monotonic() > until, seconds + 10)


# ---- pods and daemons


def replace_pod(world: World, name: str, *how: str) -> None:
    before = world.pods()[name]["metadata"]["uid"]
    world.kubectl("delete", "pod", name, *how)
    world.until(f"another {name}", lambda: replaced(world, name, before), HEAL_SECONDS)


def kill_pod(world: World, rng: random.Random) -> str:
    name = rng.choice(sorted(world.pods()))
    replace_pod(world, name, "--force", "--grace-period=0")
    return f"{name} was deleted without grace"


def broker_process(world: World, pod: str) -> str:
    """The pid of the broker inside the node; empty while it does not run."""
    return world.provider.node.inside("pgrep", "--oldest", "--full", f"{pod}.properties").stdout.strip()


def kill_process(world: World, rng: random.Random) -> str:
    name = rng.choice(sorted(world.pods()))
    before = broker_process(world, name)
    world.provider.node.inside("kill", "-9", before)
    world.until(f"{name} runs again", lambda: broker_process(world, name) not in ("", before))
    return f"the broker's process in {name} was killed"


def kill_daemon(name: str, world: World, _rng: random.Random) -> str:
    world.provider.node.kill(name)
    world.until(f"the API answers after {name} was killed", lambda: api_answers(world))
    return f"{name} was killed"


def daemon_away(name: str, world: World, rng: random.Random) -> str:
    seconds = rng.choice([5.0, 20.0])
    with world.provider.node.down(name):
        seconds_pass(world, seconds)
    world.until(f"the API answers after {name} was away", lambda: api_answers(world))
    return f"{name} was away for {seconds:.0f} s"


def operator_away(world: World, rng: random.Random) -> str:
    world.kubectl("scale", "deployment/ballast-operator", "--replicas=0")
    world.until("the operator is gone", lambda: not world.all("pods", "app.kubernetes.io/name=ballast-operator"))
    name = rng.choice(sorted(world.pods()))
    replace_pod(world, name, "--wait=false")
    world.kubectl("scale", "deployment/ballast-operator", "--replicas=2")
    return f"{name} was deleted while there was no operator"


def rolling_restart(world: World, rng: random.Random) -> str:
    before = {pod["metadata"]["uid"] for pod in world.pods().values()}
    world.apply(cluster(world, config={"num.network.threads": rng.randrange(5, 100_000)}))

    def all_new() -> bool:
        now = {pod["metadata"]["uid"] for pod in world.pods().values()}
        return len(now) == len(before) and not now & before

    world.until("every pod is another one", all_new, HEAL_SECONDS)
    return "another configuration restarted all brokers"


def clock_steps(world: World, rng: random.Random) -> str:
    name, offset_ms, seconds = rng.choice(sorted(world.pods())), rng.choice(STEPS_MS), rng.choice([3.0, 12.0])
    step_clock(world, name, offset_ms)
    seconds_pass(world, seconds)
    step_clock(world, name, 0)
    return f"the clock of {name} was {offset_ms / 1000:+.0f} s off for {seconds:.0f} s"


# ---- network


@contextmanager
def cut_off(world: World, pod: str, other: str = "") -> Iterator[None]:
    """Drop all traffic between a pod and all others, or one address, until the block ends."""
    node = world.provider.node
    # Use the pod's network namespace by name: it outlives the process, which may be restarted meanwhile.
    network = node.inside("ip", "netns", "identify", broker_process(world, pod)).stdout.strip()
    assert network, f"{pod} has no network of its own"
    enter = ("nsenter", f"--net=/run/netns/{network}", "iptables")
    rules = [("INPUT", *(("-s", other) if other else ())), ("OUTPUT", *(("-d", other) if other else ()))]
    with ExitStack() as undo:
        for rule in rules:
            done = node.inside(*enter, "-I", *rule, "-j", "DROP")
            assert done.returncode == 0, done.stderr
            undo.callback(node.inside, *enter, "-D", *rule, "-j", "DROP")
        yield


def one_cut_off(world: World, rng: random.Random) -> str:
    name, seconds = rng.choice(sorted(world.pods())), rng.choice([3.0, 12.0, 25.0])
    with cut_off(world, name):
        seconds_pass(world, seconds)
    return f"{name} was cut off for {seconds:.0f} s"


def two_cut_apart(world: World, rng: random.Random) -> str:
    one, other = rng.sample(sorted(world.pods()), 2)
    seconds = rng.choice([3.0, 12.0, 25.0])
    with cut_off(world, one, world.pods()[other]["status"]["podIP"]):
        seconds_pass(world, seconds)
    return f"{one} and {other} were cut apart for {seconds:.0f} s"


# ---- volumes


def fragile_volumes(world: World) -> None:
    """Put a file system that fails on demand under one volume of each broker. It stays until the node ends."""
    for pod in sorted(world.pods()):
        behind = _behind(world, pod)
        if behind.is_dir():
            continue
        (volume,) = (path for path in volume_folders(world, pod) if FRAGILE_VOLUME in path.name)
        behind.parent.mkdir(exist_ok=True)
        # Rename the folder rather than bind-mount it: a mount over the volume would cover the bind mount as well, and a
        # file system that serves itself never answers. The running pod keeps what it has open.
        volume.rename(behind)
        volume.mkdir()
        volume.chmod(0o777)
        _serve(world, behind, volume)
        replace_pod(world, pod)
        world.until_ready("kafkacluster", CLUSTER, HEAL_SECONDS)
        until_in_sync(world)


def volume_folders(world: World, pod: str) -> list[Path]:
    """Where on this machine the volumes of a pod are."""
    folders = sorted((world.provider.node.state / "volumes").glob(f"*-{pod}_*"))
    behind = _behind(world, pod)
    return [behind if FRAGILE_VOLUME in path.name and behind.is_dir() else path for path in folders]


def _behind(world: World, pod: str) -> Path:
    return world.provider.node.state / "fragile" / pod


def _fault(behind: Path) -> Path:
    """A file: while it holds the name of an error, the volume fails with that."""
    return behind.with_suffix(".fault")


def _serve(world: World, behind: Path, volume: Path) -> None:
    node = world.provider.node
    program = [sys.executable, "-P", faulty_disk.__file__, str(behind), str(volume), str(_fault(behind))]
    with (node.state / "log" / "faulty-disk.log").open("ab") as log:
        command = ["nsenter", "-t", str(node.pid), "-m", "-n", "-p", "--", "setsid", *program]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    deadline = time.monotonic() + MOUNT_SECONDS
    while node.inside("mountpoint", "--quiet", str(volume)).returncode != 0:
        if time.monotonic() > deadline:
            raise NodeError(f"nothing is mounted at {volume}: {node.last_words()}")
        time.sleep(0.1)


@contextmanager
def _failing(world: World, pod: str, word: str) -> Iterator[None]:
    fault = _fault(_behind(world, pod))
    fresh = fault.with_suffix(".new")
    fresh.write_text(word)
    fresh.rename(fault)
    try:
        yield
    finally:
        fault.unlink()


def volume_fails(error: str, world: World, rng: random.Random) -> str:
    """A disk that must be replaced; EROFS is what the kernel returns for a file system that it has given up on."""
    name = rng.choice(sorted(world.pods()))
    with _failing(world, name, error):
        _until_offline(world, name, FRAGILE_VOLUME)
    replace_pod(world, name)
    return f"{FRAGILE_VOLUME} of {name} failed with {error} and was repaired"


def volume_is_slow(world: World, rng: random.Random) -> str:
    name = rng.choice(sorted(world.pods()))
    with _failing(world, name, faulty_disk.SLOW):
        seconds_pass(world, 10)
    return f"every write to {FRAGILE_VOLUME} of {name} took {faulty_disk.SLOW_SECONDS:g} s, one after the other"


def _until_offline(world: World, pod: str, volume: str) -> None:
    broker = int(pod.rpartition("-")[2])

    def offline() -> bool:
        found = world.view().directories
        return any(one.broker == broker and volume in one.path and not told.online for one, told in found.items())

    world.until(f"{volume} of {pod} is offline", offline)


KINDS: tuple[Fault, ...] = (
    kill_pod, kill_process, clock_steps, operator_away, rolling_restart, one_cut_off, two_cut_apart, volume_is_slow,
    *(partial(volume_fails, error) for error in ("EIO", "ENOSPC", "EROFS")),
    *(partial(daemon_away, name) for name in AWAY),
    *(partial(kill_daemon, name) for name in DAEMONS),
)  # fmt: skip
