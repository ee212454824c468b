"""What the pages say to type at plain brokers, without Kubernetes; `commands.py` says which."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from e2e.processes import free_ports
from tests.docs.commands import block, to_type
from tests.docs.up import ROOT, installed
from tests.moves.brokers import Brokers, plan

from ballast_local.workloads import launch

pytestmark = pytest.mark.timeout(180)
HERE = "tests/docs/test_typed_at_brokers.py::"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    installed(tmp_path / ".ballast")
    (tmp_path / "ballast").symlink_to(ROOT / "ballast")
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "BALLAST_HOME": str(folder / ".ballast")}


def with_lock(folder: Path, lock: str) -> dict[str, str]:
    """An environment in which Python finds the packages of this lock alone, as where nothing else is installed."""
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements" / f"{lock}.lock").read_text(), re.MULTILINE))
    others = [
        module
        for module, owners in packages_distributions().items()
        if locked.isdisjoint(re.sub("[-_.]+", "-", owner).lower() for owner in owners)
    ]
    assert "aiohttp" in others
    (folder / "only").mkdir()
    (folder / "only" / "sitecustomize.py").write_text(f"import sys\nsys.modules |= dict.fromkeys({others})\n")
    return environment(folder) | {"PYTHONPATH": str(folder / "only")}


def test_migrate_by_hand(folder: Path) -> None:
    """All volumes of this machine are one disk, so there is nothing to level: what is executed is another plan."""
    told = {}
    with Brokers(folder / "brokers", 2, [0, 1]) as brokers:
        brokers.create("orders", [[0], [0], [1]])
        brokers.produce("orders", [0], 1)
        for command in to_type(f"{HERE}test_migrate_by_hand"):
            typed = command.replace("kafka-0:9092", brokers.bootstrap)
            if " execute " in command:
                (folder / "plan.json").write_text(plan([("orders", 0, [1], None)]))
            done = subprocess.run(
                ["sh", "-ec", typed], cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, f"{typed}\n{done.stdout}{done.stderr}"
            told[command.split(" --")[0]] = done.stdout
        assert brokers.replicas("orders") == [[1], [0], [1]]
    assert "2 of 2 brokers online" in told["./ballast status"]
    assert "Balanced: all directories are within the band" in told["./ballast rebalance"]
    assert "Proposed partition reassignment configuration" in told["./ballast reassign generate"]
    assert '"replicas": [0]' in told["./ballast reassign execute"], "the plan that puts everything back"
    assert "orders-0: complete" in told["./ballast reassign verify"]


@contextmanager
def foreground(folder: Path, command: str, address: str, variables: dict[str, str]) -> Iterator[None]:
    """A broker that is ready under the address; it ends well when it is interrupted."""
    with subprocess.Popen(
        launch.under("sh", "-c", f"exec {command}"),
        cwd=folder, env=variables, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert f"is ready on PLAINTEXT://{address}" in process.stdout.readline()
        yield
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_a_broker_in_the_foreground(folder: Path) -> None:
    (command,) = to_type(f"{HERE}test_a_broker_in_the_foreground")
    port, controller = free_ports(2)
    (folder / "FILE.properties").write_text(
        "node.id=0\nprocess.roles=broker,controller\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        f"controller.quorum.voters=0@127.0.0.1:{controller}\nlog.dirs={folder}/a,{folder}/b\n"
    )
    with foreground(folder, command, f"127.0.0.1:{port}", environment(folder)):
        pass


def test_a_broker_by_itself(folder: Path) -> None:
    """With the file of the page; its port and its directories may be somebody's here. Nothing of the operator's is
    installed for it."""
    broker, status = to_type(f"{HERE}test_a_broker_by_itself")
    (port,) = free_ports(1)
    text = block("docs/configuration.md", "node.id=1").replace("9092", str(port)).replace("/tmp/one", str(folder))
    (folder / "one.properties").write_text(text)
    alone = with_lock(folder, "broker")
    with foreground(folder, broker, f"localhost:{port}", alone):
        seen = subprocess.run(
            ["sh", "-ec", status.replace("9092", str(port))],
            cwd=folder, env=alone, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert seen.returncode == 0, seen.stderr
    assert "1 of 1 brokers online" in seen.stdout
    assert "\n  disk-1  " in seen.stdout
