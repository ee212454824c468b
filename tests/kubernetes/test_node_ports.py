"""Node ports that lead to pods of before are found, by rules as the kernel's own tools write and print them."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.kubernetes import world as vocabulary
from e2e.kubernetes.node import Node, missing_for_node
from e2e.kubernetes.node_ports import POD_NAME, Way, ways
from e2e.kubernetes.providers import Host
from tests.waiting import eventually

from ballast_cli.kube_api import Obj

pytestmark = pytest.mark.timeout(240)

# As kube-proxy writes them.
RULES = """*nat
:KUBE-NODEPORTS - [0:0]
:KUBE-EXT-A - [0:0]
:KUBE-SVC-A - [0:0]
:KUBE-SEP-A - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-NODEPORTS -m comment --comment "kafka/demo-0-outside:kafka" -m tcp -p tcp --dport 32000 -j KUBE-EXT-A
-A KUBE-EXT-A -j KUBE-SVC-A
-A KUBE-SVC-A -m comment --comment "kafka/demo-0-outside:kafka -> 10.244.0.7:9094" -j KUBE-SEP-A
-A KUBE-SEP-A -m comment --comment kafka/demo-0-outside:kafka -s 10.244.0.7 -j KUBE-MARK-MASQ
-A KUBE-SEP-A -m comment --comment kafka/demo-0-outside:kafka -m tcp -p tcp -j DNAT --to-destination 10.244.0.7:9094
COMMIT
"""


# A node with these rules and with one daemon, the process that `pid` names last: the one before it has ended. It lives
# on without its daemon: with it would end who has killed that one, before he can say so.
INIT = """
iptables-restore < rules || exit 1
mkdir pid log hold
echo $$ > own
true &
echo $! > pid/kube-proxy
wait $!
sleep 1000 &
echo $! > next
wait $!
touch killed
exec sleep 1000
"""


class FakeHost(Host):
    """A node that only has rules and a daemon; all its processes are real."""

    def __init__(self, state: Path) -> None:
        super().__init__(print)
        self._node = Node(state)
        self._node.state = state
        (state / "rules").write_text(RULES)
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "sh", "-c"]
        self._process = subprocess.Popen([*command, INIT], cwd=state, stdin=subprocess.DEVNULL)
        eventually(lambda: (state / "next").exists() and (state / "next").read_text())
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        self._node.pid = int(children.read_text().split()[0])

    def start_again(self) -> None:
        """The daemon is the one that runs."""
        (self.node.state / "next").rename(self.node.state / "pid" / "kube-proxy")

    def killed(self) -> bool:
        return (self.node.state / "killed").exists()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class WorldOfOneBroker(vocabulary.World):
    """What its Kubernetes knows is written down here."""

    pod_at = "10.244.0.7"
    bootstrap = "127.0.0.1:1"  # nobody listens there

    def all(self, kind: str, selector: str = "") -> list[Obj]:
        return {
            "services": [service("demo-0-outside", "demo-0")],
            "pods": [pods(demo_0=self.pod_at)["demo-0"] | {"metadata": {"name": "demo-0"}}],
            "endpointslices": [slice_of("demo-0-outside", self.pod_at)],
        }[kind]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[FakeHost]:
    if missing_for_node():
        pytest.skip(f"needs {'; '.join(missing_for_node())}")
    found = FakeHost(tmp_path)
    yield found
    found.stop()


@pytest.fixture
def rules(host: FakeHost) -> str:
    return host.rules() or ""


def service(name: str, pod: str, kind: str = "NodePort") -> dict[str, Any]:
    spec = {"type": kind, "selector": {POD_NAME: pod}}
    return {"metadata": {"name": name, "namespace": "kafka"}, "spec": spec}


def pods(**addresses: str | None) -> dict[str, dict[str, Any]]:
    running = {"phase": "Running"}
    return {name.replace("_", "-"): {"status": running | {"podIP": at}} for name, at in addresses.items()}


def slice_of(name: str, *addresses: str) -> dict[str, Any]:
    """EndpointSlices without endpoints have null there."""
    endpoints = [{"addresses": [address]} for address in addresses] or None
    return {"metadata": {"labels": {"kubernetes.io/service-name": name}}, "endpoints": endpoints}


@pytest.mark.parametrize(
    ("address", "slices", "late"),
    [
        ("10.244.0.7", ["10.244.0.7"], ""),
        ("10.244.0.9", ["10.244.0.9"], "kube-proxy"),
        ("10.244.0.9", ["10.244.0.7"], "kube-controller-manager"),
        ("10.244.0.9", [], "kube-controller-manager"),
    ],
)
def test_who_does_not_follow_a_pod(rules: str, address: str, slices: list[str], late: str) -> None:
    found = ways(
        [service("demo-0-outside", "demo-0")], pods(demo_0=address), [slice_of("demo-0-outside", *slices)], rules
    )
    assert found == [Way("demo-0-outside", "demo-0", address, set(slices), {"10.244.0.7"})]
    assert found[0].late == late


def test_a_service_without_rules_leads_nowhere(rules: str) -> None:
    slices = [slice_of("demo-1-outside", "10.244.0.8")]
    (found,) = ways([service("demo-1-outside", "demo-1")], pods(demo_1="10.244.0.8"), slices, rules)
    assert found.late == "kube-proxy"
    assert str(found) == (
        "demo-1 is at 10.244.0.8; of Service demo-1-outside, slices name 10.244.0.8, rules lead nowhere"
    )


def test_what_has_no_address_or_no_node_port_is_not_looked_at(rules: str) -> None:
    services = [service("demo-0-outside", "demo-0"), service("demo-2-outside", "demo-2"),
                service("other", "demo-1", "ClusterIP")]  # fmt: skip
    assert ways(services, pods(demo_0=None, demo_1="10.244.0.8"), [], rules) == []


def test_who_does_not_follow_is_restarted_when_kafka_does_not_answer(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host.start_again()
    monkeypatch.setattr(vocabulary, "ASTRAY_SECONDS", 0.0)
    world = WorldOfOneBroker(host)
    world.pod_at = "10.244.0.9"

    class EnoughError(Exception):
        pass

    def mended() -> None:
        vocabulary.World.mend_node_ports(world)
        raise EnoughError

    monkeypatch.setattr(world, "mend_node_ports", mended)
    with pytest.raises(EnoughError):
        world.view()
    eventually(host.killed)
    said = capsys.readouterr().out
    assert "kube-proxy does not follow and is restarted: demo-0 is at 10.244.0.9" in said
    assert "sleep 1000" in said  # what it was doing


def test_who_follows_is_left_alone(host: FakeHost) -> None:
    host.start_again()
    WorldOfOneBroker(host).mend_node_ports()
    assert host.node.inside("kill", "-0", (host.node.state / "pid" / "kube-proxy").read_text().strip()).returncode == 0


def test_a_daemon_that_has_just_ended_is_killed_when_it_runs_again(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Event()

    def inside(*command: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        done = Node.inside(host.node, *command, seconds=seconds)
        tried.set()
        return done

    monkeypatch.setattr(host.node, "inside", inside)
    killing = threading.Thread(target=host.node.kill, args=("kube-proxy",), daemon=True)
    killing.start()
    assert tried.wait(60)
    host.start_again()
    killing.join(60)
    eventually(host.killed)


def test_a_daemon_that_has_ended_and_is_to_stay_down_is_down(host: FakeHost) -> None:
    with host.node.down("kube-proxy"):
        assert (host.node.state / "hold" / "kube-proxy").exists()
