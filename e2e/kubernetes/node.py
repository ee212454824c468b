"""Runs a real single-node Kubernetes on this machine, in its own PID, mount and network namespaces.

It is one process tree whose first process is node_files/init, joined to the machine by a veth pair. When that process
ends, the kernel ends all the others; it ends with the process that started it, however that ends. Its data on disk is
in one folder, which `stop` removes. Only one node can run on a machine at a time (the addresses are fixed): a file lock
ensures that, and whoever gets the lock removes what another run has left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import string
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from e2e.kubernetes.certificates import make_certificates

from ballast_cli.image_archive import write_archive, write_layer

HERE = Path(__file__).parent / "node_files"
LOCK = Path("/run/lock/ballast-e2e")
STATE_ROOT = Path(os.environ.get("TMPDIR") or "/var/tmp")
STATE_PREFIX = "ballast-e2e-"
LINK = "ballast0"
HOST, NODE = "172.30.0.1", "172.30.0.2"
PODS, SERVICES, FIRST_SERVICE = "10.244.0.0/24", "10.96.0.0/16", "10.96.0.1"
API = f"https://{NODE}:6443"
# Program → the Debian or Ubuntu package that has it.
PROGRAMS = {
    "containerd": "containerd", "ctr": "containerd", "runc": "runc", "etcd": "etcd-server", "iptables": "iptables",
    "conntrack": "conntrack", "ip": "iproute2", "openssl": "openssl", "unshare": "util-linux", "socat": "socat",
    "mount": "mount", "sysctl": "procps", "debootstrap": "debootstrap",
}  # fmt: skip
BRIDGE_PLUGIN = Path("/usr/lib/cni/bridge")
LOCK_SECONDS = 600.0
START_SECONDS = 400.0
STOP_SECONDS = 15.0
KILL_SECONDS = 60.0
SHOWN_LINES = 12


class NodeError(Exception):
    """The node cannot be started; the text says why."""


def missing_for_node() -> list[str]:
    """What this machine lacks."""
    missing = [] if os.geteuid() == 0 else ["to run as root"]
    packages = {package for program, package in PROGRAMS.items() if _which(program) is None}
    if not BRIDGE_PLUGIN.exists():
        packages.add("containernetworking-plugins")
    if packages:
        missing.append(f"programs (apt-get install -y --no-install-recommends {' '.join(sorted(packages))})")
    if not os.access("/sys/fs/cgroup", os.W_OK) or not _cgroups_writable():
        missing.append("cgroups that can be written")
    if os.geteuid() == 0 and _quiet("unshare", "--mount", "--net", "--pid", "--fork", "true") != 0:
        missing.append("the right to make namespaces")
    return missing


class Node:
    """A node: start it, use it, stop it."""

    def __init__(self, tools: Path) -> None:
        self.tools = tools
        self.state = Path()
        self._lock = -1
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0

    @property
    def kubeconfig(self) -> Path:
        return self.state / "pki" / "admin.conf"

    @property
    def _socket(self) -> Path:
        return self.state / "containerd.sock"

    def start(self, archives: list[Path], say: Callable[[str], None]) -> None:
        self._lock = _take_lock()
        began = time.monotonic()  # not before: it may have waited for another node
        remove_leftovers()
        self.state = Path(tempfile.mkdtemp(prefix=STATE_PREFIX, dir=STATE_ROOT))
        for name in ("log", "pid", "hold", "etcd", "containerd", "kubelet", "volumes", "conf", "cni"):
            (self.state / name).mkdir()
        make_certificates(self.state / "pki", API, [NODE, "127.0.0.1", FIRST_SERVICE])
        self._write_configuration()
        self._launch()
        deadline = began + START_SECONDS
        self._until(lambda: self.kubectl("get", "--raw", "/readyz").returncode == 0, "the API server answers", deadline)
        self._until(lambda: self._ctr("version") == 0, "containerd answers", deadline)
        for archive in [self._pause_archive(), *archives]:
            if self._ctr("--namespace", "k8s.io", "images", "import", str(archive)) != 0:
                raise NodeError(f"containerd cannot import {archive}; see {self.state / 'log'}")
        base = str(HERE / "base.yaml")
        self._until(lambda: self.kubectl("apply", "-f", base).returncode == 0, "objects can be made", deadline)
        self._until(self._node_ready, "the node is Ready", deadline)
        say(f"Kubernetes is up after {time.monotonic() - began:.1f} s, with {len(archives)} image(s)")

    def stop(self) -> None:
        """End everything and remove all that is left. May be called at any time, and twice."""
        if self.pid:
            _end(self.pid)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._process = None
        self.pid = 0
        if self._lock >= 0:
            remove_leftovers()
            os.close(self._lock)
            self._lock = -1

    def load(self, archive: Path) -> None:
        """Import another image into containerd."""
        if self._ctr("--namespace", "k8s.io", "images", "import", str(archive)) != 0:
            raise NodeError(f"containerd cannot import {archive}")

    # ---- from outside

    def kubectl(self, *arguments: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        command = [str(self.tools / "kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)

    def inside(self, *command: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command in the node's namespaces."""
        entered = ["nsenter", "-t", str(self.pid), "-m", "-n", "-p", "--", *command]
        return subprocess.run(entered, capture_output=True, text=True, timeout=seconds, check=False)

    def kill(self, name: str) -> None:
        """kill -9 to one of the node's own processes; node_files/init starts it again. One that has just ended by
        itself, as some do without an API server, is killed when it runs again, unless it is to stay down."""
        deadline = time.monotonic() + KILL_SECONDS
        while True:
            number = _read(self.state / "pid" / name).strip()
            done = self.inside("kill", "-9", number)
            if done.returncode == 0 or (self.state / "hold" / name).exists():
                return
            if time.monotonic() > deadline:
                raise NodeError(f"{name} cannot be killed: {done.stderr.strip()}")
            time.sleep(0.1)

    def shown(self, name: str) -> str:
        """What one of the node's own processes does: its last lines, and the processes that it has started."""
        number = _read(self.state / "pid" / name).strip()
        found = self.inside("ps", "-o", "pid,ppid,stat,etime,args", "--pid", number, "--ppid", number).stdout
        lines = _read(self.state / "log" / f"{name}.log").splitlines()[-SHOWN_LINES:]
        return "\n".join([f"-- {name}", *(line[:300] for line in lines), found])

    @contextlib.contextmanager
    def down(self, name: str) -> Iterator[None]:
        """Kill one of the node's own processes, and keep it down until the block ends."""
        hold = self.state / "hold" / name
        hold.touch()
        try:
            self.kill(name)
            yield
        finally:
            hold.unlink(missing_ok=True)

    # ---- starting

    def _variables(self) -> dict[str, str]:
        return {
            "STATE": str(self.state), "TOOLS": str(self.tools), "SOCKET": str(self._socket), "HOST": HOST, "NODE": NODE,
            "PODS": PODS, "SERVICES": SERVICES,
        }  # fmt: skip

    def _write_configuration(self) -> None:
        for template in (HERE / "conf").iterdir():
            text = string.Template(template.read_text()).substitute(self._variables())
            folder = "cni" if template.suffix == ".conflist" else "conf"
            (self.state / folder / template.name).write_text(text)

    def _launch(self) -> None:
        """Start the node. It ends with this process: the kernel kills `unshare`, then the node's first process."""
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--fork"]
        command += ["--kill-child=KILL", "--mount-proc", str(HERE / "init")]
        with (self.state / "log" / "init.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=os.environ | self._variables(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        self._until(lambda: bool(_read(children).strip()), "the node's first process", time.monotonic() + 10)
        self.pid = int(_read(children).split()[0])
        (self.state / "node.pid").write_text(str(self.pid))
        _run("ip", "link", "add", LINK, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        _run("ip", "addr", "add", f"{HOST}/30", "dev", LINK)
        _run("ip", "link", "set", LINK, "up")
        for network in (PODS, SERVICES):
            _run("ip", "route", "replace", network, "via", NODE)

    def _pause_archive(self) -> Path:
        with tempfile.TemporaryDirectory(dir=self.state) as place:
            shutil.copy(self.tools / "pause", Path(place) / "pause")
            layer = self.state / "pause-layer.tar"
            write_layer(layer, Path(place), "/")
        archive = self.state / "pause.tar"
        settings = {"architecture": "amd64", "config": {"Cmd": ["/pause"], "User": "65535:65535"}}
        write_archive(archive, "localhost/pause:1", [layer], settings)
        return archive

    def _node_ready(self) -> bool:
        """The condition may be stale, so the kubelet itself must answer, too, through the API server."""
        if self.kubectl("get", "--raw", "/api/v1/nodes/node1/proxy/healthz").returncode != 0:
            return False
        return self.kubectl("wait", "--for=condition=Ready", "node/node1", "--timeout=1s").returncode == 0

    def _ctr(self, *arguments: str) -> int:
        return _quiet("ctr", "--address", str(self._socket), *arguments)

    def _until(self, holds: Callable[[], bool], what: str, deadline: float) -> None:
        while not holds():
            if self._process is None or self._process.poll() is not None:
                raise NodeError(f"the node ended: {_read(self.state / 'log' / 'init.log')[-500:]}")
            if time.monotonic() > deadline:
                raise NodeError(f"not within {START_SECONDS:.0f} s: {what}\n{self.last_words()}")
            time.sleep(0.1)

    def last_words(self) -> str:
        """The last lines of every log, for whoever has to find out what went wrong."""
        parts = []
        for log in sorted((self.state / "log").glob("*.log")):
            lines = _read(log).splitlines()[-4:]
            parts.append("\n".join([f"-- {log.name}", *(line[:300] for line in lines)]))
        return "\n".join(parts)


# ---- one at a time, and nothing left behind


def _take_lock() -> int:
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(handle)
                raise NodeError(f"another node has been on this machine for {LOCK_SECONDS:.0f} s") from None
            time.sleep(0.5)


def remove_leftovers() -> None:
    """Remove what nodes have left on this machine. Only the holder of the lock may call it."""
    for state in STATE_ROOT.glob(f"{STATE_PREFIX}*"):
        number = _read(state / "node.pid").strip()
        if number and b"node_files/init" in _read_bytes(Path(f"/proc/{number}/cmdline")):
            _end(int(number))
        shutil.rmtree(state, ignore_errors=True)
    _quiet("ip", "link", "del", LINK)
    for root in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*")):
        _remove_cgroups(root / "kubepods")


def _remove_cgroups(group: Path) -> None:
    if not group.is_dir():
        return
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _end(pid: int) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + (1.0 if number == signal.SIGTERM else STOP_SECONDS)
        while time.monotonic() < deadline:
            if not Path(f"/proc/{pid}").exists():
                return
            time.sleep(0.05)


def _cgroups_writable() -> bool:
    """The kubelet creates cgroups of its own."""
    roots = [path for path in Path("/sys/fs/cgroup").glob("memory") if path.is_dir()] or [Path("/sys/fs/cgroup")]
    probe = roots[0] / f"ballast-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def _which(program: str) -> str | None:
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def _quiet(*command: str) -> int:
    try:
        return subprocess.run(command, capture_output=True, timeout=300, check=False).returncode
    except (OSError, subprocess.TimeoutExpired):
        return -1


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise NodeError(f"{' '.join(command)}: {done.stderr.strip()}")


def _read(path: Path) -> str:
    return _read_bytes(path).decode(errors="replace")


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
