"""Providers of a Kubernetes for the scenarios, and of an image that it can run; scenarios see no difference.

`missing()` says what this machine lacks, in words that a person can act on. `start()` returns once the API answers;
`stop()` may be called at any time and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

from e2e.kubernetes.binaries import binaries, missing_for_build
from e2e.kubernetes.node import NODE, Node, missing_for_node

from ballast_cli.image import build_archive, build_layers
from ballast_cli.image_archive import write_archive
from ballast_cli.image_base import missing_for_base
from ballast_cli.image_contents import PLACE, USER, Flavour, content_key, missing_for_contents
from ballast_cli.places import ROOT

Say = Callable[[str], None]
KIND_CLUSTER = "ballast-e2e"
START_SECONDS = 120.0
NODE_PORTS = range(30000, 32768)
MOST_BROKERS = 8
KEPT_ARCHIVES = 3
# The .pyc files of an image are not checked against their sources, so they are compiled anew.
LAYERED = f"""FROM {{image}}
USER 0
ADD layer.tar /
RUN python3 -m compileall -f -q --invalidation-mode unchecked-hash {PLACE}/broker-image
USER {USER}:{USER}
"""


class ProviderError(Exception):
    """The provider cannot do what was asked; the text says why."""


class Provider(ABC):
    name: str
    # The host name or address at which node ports answer.
    outside: str
    # The node port of the first broker; the next ones follow.
    first_node_port = 32000
    # Whether pods are real containers with their own files and processes; else they are processes of this machine.
    containers = True

    def __init__(self, say: Say) -> None:
        self.say = say
        self.kubectl_program = shutil.which("kubectl") or "kubectl"
        self.kubeconfig = Path()
        self.image = ""

    @abstractmethod
    def missing(self) -> list[str]: ...

    def prepare(self) -> None:
        """Build what `start` needs and the cache does not have."""
        return

    def prepare_spark(self) -> None:
        """The same as `prepare`, for `spark_image`."""
        return

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def evidence(self) -> str:
        """What the provider itself can tell about a failure."""
        return ""

    def rules(self) -> str | None:
        """The rules by which node ports lead to pods; None if nobody may look at them."""
        return None

    def spark_image(self) -> str:
        """Load the image of the Spark job on the nodes; returns its name, or empty if that is not possible."""
        return ""

    def image_with(self, what: str, write_layer: Callable[[Path], None]) -> str:
        """The same for our image with one more layer, only for a test."""
        return ""

    def load(self, _archive: Path) -> bool:
        """Load another image on the nodes; False if that is not possible."""
        return False

    @property
    def node(self) -> Node:
        raise ProviderError(f"{self.name} lets nobody at its nodes")


def image_name(flavour: Flavour = Flavour.BROKER) -> str:
    """Includes a hash of the sources, so that nobody runs what was built from others."""
    return f"localhost/{flavour.image}:e2e-{content_key(flavour)}"


class Host(Provider):
    """The real programs of Kubernetes on this machine, in their own Linux namespaces."""

    name = "host"
    outside = NODE

    def __init__(self, say: Say) -> None:
        super().__init__(say)
        self._node: Node | None = None
        self._tools = Path()
        self._archive = Path()

    def missing(self) -> list[str]:
        return missing_for_node() or missing_for_build() + missing_for_base() + missing_for_contents(Flavour.BROKER)

    def prepare(self) -> None:
        self._tools = binaries(self.say)
        self.image = image_name()
        self._archive = build_archive(Flavour.BROKER, self.image, say=self.say).path
        _forget_old_archives(self._archive)

    def prepare_spark(self) -> None:
        build_layers(Flavour.SPARK, self.say)

    def start(self) -> None:
        self.prepare()
        self.kubectl_program = str(self._tools / "kubectl")
        self._node = Node(self._tools)
        self._node.start([self._archive], self.say)
        self.kubeconfig = self._node.kubeconfig

    def stop(self) -> None:
        if self._node is not None:
            self._node.stop()

    def evidence(self) -> str:
        return self._node.last_words() if self._node is not None else ""

    def rules(self) -> str | None:
        return self.node.inside("iptables-save", "-t", "nat").stdout

    def spark_image(self) -> str:
        name = image_name(Flavour.SPARK)
        archive = self.node.state / "spark.tar"  # too large to keep one for every change of the sources
        build_archive(Flavour.SPARK, name, archive, say=self.say)
        self.node.load(archive)
        archive.unlink()
        return name

    def image_with(self, what: str, write_layer: Callable[[Path], None]) -> str:
        name = f"{self.image}-{what}"
        layer, archive = self.node.state / "layer.tar", self.node.state / "layered.tar"
        write_layer(layer)
        built = build_archive(Flavour.BROKER, self.image, say=self.say)
        layers = [built.base.with_suffix(".tar"), *built.layers, layer]
        write_archive(archive, name, layers, Flavour.BROKER.settings(platform.machine()))
        self.node.load(archive)
        archive.unlink()
        return name

    def load(self, archive: Path) -> bool:
        self.node.load(archive)
        return True

    @property
    def node(self) -> Node:
        assert self._node is not None
        return self._node


class Embedded(Provider):
    """Ballast's own Kubernetes API in this process; pods are processes."""

    name = "embedded"
    outside = "127.0.0.1"
    containers = False

    def __init__(self, say: Say) -> None:
        super().__init__(say)
        self.image = "ballast-operator"
        self._data: tempfile.TemporaryDirectory[str] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._local: object | None = None

    def missing(self) -> list[str]:
        return [] if shutil.which("kubectl") else ["kubectl (any version from 1.30 on)"]

    def start(self) -> None:
        from ballast_local.cluster import LocalCluster

        self._data = tempfile.TemporaryDirectory(prefix="ballast-e2e-embedded-")
        self.first_node_port = _free_ports(NODE_PORTS, MOST_BROKERS)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        local = LocalCluster()
        self._local = local
        starting = asyncio.run_coroutine_threadsafe(local.start(Path(self._data.name), 0), self._loop)
        self.kubeconfig = starting.result(START_SECONDS)

    def stop(self) -> None:
        from ballast_local.cluster import LocalCluster

        if self._loop is None or self._thread is None or self._data is None:
            return
        if isinstance(self._local, LocalCluster):
            asyncio.run_coroutine_threadsafe(self._local.stop(), self._loop).result(START_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._loop = None
        self._data.cleanup()


class Current(Provider):
    """Whichever Kubernetes the current kubeconfig names. The image must be one that its nodes can run."""

    name = "current"

    def __init__(self, say: Say) -> None:
        super().__init__(say)
        self.image = os.environ.get("BALLAST_E2E_IMAGE", "")
        self.outside = os.environ.get("BALLAST_E2E_NODE", "")

    def spark_image(self) -> str:
        return os.environ.get("BALLAST_E2E_SPARK_IMAGE", "")

    def missing(self) -> list[str]:
        missing = [] if shutil.which("kubectl") else ["kubectl"]
        if not self.image:
            missing.append("BALLAST_E2E_IMAGE: the name of an image that the nodes can run (./ballast image makes one)")
        if not missing and self._ask("get", "--raw", "/readyz") is None:
            missing.append("a Kubernetes API that answers: kubectl get --raw /readyz fails")
        return missing

    def start(self) -> None:
        configured = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or "~/.kube/config"
        self.kubeconfig = Path(configured).expanduser()
        path = "{.items[0].status.addresses[?(@.type=='InternalIP')].address}"
        self.outside = self.outside or self._ask("get", "nodes", "-o", f"jsonpath={path}") or ""
        if not self.outside:
            raise ProviderError("no node tells its address; name one that can be reached in BALLAST_E2E_NODE")

    def stop(self) -> None:
        """Does nothing: the cluster is not ours. Scenarios remove what they made."""

    def _ask(self, *arguments: str) -> str | None:
        done = subprocess.run(
            [self.kubectl_program, *arguments], capture_output=True, text=True, timeout=30, check=False
        )
        return done.stdout if done.returncode == 0 else None


class Kind(Provider):
    """Kubernetes in Docker. Needs kind, Docker with its daemon, and kind's node image, which Docker pulls.

    BALLAST_E2E_KIND_IMAGE names another node image, BALLAST_E2E_BASE another base image for ours.
    """

    name = "kind"
    outside = ""

    def __init__(self, say: Say) -> None:
        super().__init__(say)
        self._created = False
        self._built: list[str] = []

    def missing(self) -> list[str]:
        missing = [program for program in ("kind", "docker", "kubectl") if shutil.which(program) is None]
        if "docker" not in missing and _run(["docker", "info"], 30)[0] != 0:
            missing.append("a running Docker daemon (docker info fails)")
        if platform.system() != "Linux":
            missing.append("Linux (elsewhere nobody outside of Docker reaches the address of a node)")
        if not missing and KIND_CLUSTER in _run(["kind", "get", "clusters"], 60)[1].split():
            missing.append(
                f"the name {KIND_CLUSTER}, which a cluster of another run has; if that run was killed: "
                f"kind delete cluster --name {KIND_CLUSTER}"
            )
        return missing

    def prepare(self) -> None:
        self.image = self._build(Flavour.BROKER, 1200)

    def prepare_spark(self) -> None:
        self._build(Flavour.SPARK, 1800)

    def start(self) -> None:
        self.prepare()
        self._built.append(self.image)
        self._created = True
        self.kubeconfig = Path(tempfile.mkdtemp(prefix="ballast-e2e-kind-")) / "kubeconfig"
        create = ["kind", "create", "cluster", "--name", KIND_CLUSTER, "--kubeconfig", str(self.kubeconfig)]
        self._must([*create, *_option("--image", os.environ.get("BALLAST_E2E_KIND_IMAGE"))], 600)
        self._load(self.image)
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        node = f"{KIND_CLUSTER}-control-plane"
        self.outside = self._must(["docker", "inspect", "--format", form, node], 30).strip()

    def spark_image(self) -> str:
        name = self._build(Flavour.SPARK, 1800)
        self._built.append(name)
        self._load(name)
        return name

    def image_with(self, what: str, write_layer: Callable[[Path], None]) -> str:
        name = f"{self.image}-{what}"
        with tempfile.TemporaryDirectory(prefix="ballast-e2e-layer-") as context:
            write_layer(Path(context) / "layer.tar")
            (Path(context) / "Dockerfile").write_text(LAYERED.format(image=self.image))
            self._must(["docker", "build", "--tag", name, context], 300)
        self._built.append(name)
        self._load(name)
        return name

    def load(self, archive: Path) -> bool:
        self._must(["kind", "load", "image-archive", str(archive), "--name", KIND_CLUSTER], 600)
        return True

    def stop(self) -> None:
        if self._created:
            _run(["kind", "delete", "cluster", "--name", KIND_CLUSTER], 300)
            shutil.rmtree(self.kubeconfig.parent, ignore_errors=True)
        if self._built:
            _run(["docker", "image", "rm", *self._built], 120)
        self._created, self._built = False, []

    def _build(self, flavour: Flavour, seconds: float) -> str:
        name = image_name(flavour)
        base = os.environ.get("BALLAST_E2E_BASE")
        options = _option("--build-arg", base and f"BASE={base}")
        self._must(["docker", "build", "--file", str(flavour.dockerfile), "--tag", name, *options, str(ROOT)], seconds)
        return name

    def _load(self, image: str) -> None:
        self._must(["kind", "load", "docker-image", image, "--name", KIND_CLUSTER], 600)

    def _must(self, command: list[str], seconds: float) -> str:
        self.say(" ".join(command))
        code, out = _run(command, seconds)
        if code != 0:
            raise ProviderError(f"{' '.join(command[:3])} failed:\n{out[-2000:]}")
        return out


def _option(name: str, value: str | None) -> list[str]:
    """An option with its value, or nothing without a value."""
    return [name, value] if value else []


def _forget_old_archives(present: Path) -> None:
    """Keep only the newest: each change of the sources makes another. Other runs may be doing the same."""
    with contextlib.suppress(FileNotFoundError):
        others = set(present.parent.glob(f"{Flavour.BROKER.image}-*-e2e-*.tar")) - {present}
        for old in sorted(others, key=lambda path: path.stat().st_mtime)[:-KEPT_ARCHIVES]:
            old.unlink()


def _free_ports(ports: range, count: int) -> int:
    """The first of `count` consecutive ports that nobody on this machine listens on."""
    for first in range(ports.start, ports.stop - count, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise ProviderError(f"no {count} ports in a row are free between {ports.start} and {ports.stop}")


def _run(command: list[str], seconds: float) -> tuple[int, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, str(error)
    return done.returncode, done.stdout + done.stderr


PROVIDERS: dict[str, type[Provider]] = {one.name: one for one in (Host, Embedded, Current, Kind)}


@contextlib.contextmanager
def running(provider: Provider) -> Iterator[Provider]:
    """Start the provider, and stop it whatever happens."""
    missing = provider.missing()
    if missing:
        raise ProviderError(f"provider {provider.name} needs {'; '.join(missing)}")
    try:
        provider.start()
        yield provider
    finally:
        provider.stop()
