"""A Git working tree as the only input: people make commits; kustomize and `kubectl apply --prune` carry them out.

They stand in the place of Argo CD or Flux, which do the same: apply what is in the tree, delete what is not any more.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.kubernetes.story import produce
from e2e.kubernetes.world import World, reassignment, topic

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(900),
    pytest.mark.spec("OPR-33"),
    # Clients whose connections are cut leave them to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <(socket|ssl):pytest.PytestUnraisableExceptionWarning"),
]
TOPIC = "committed"
LABEL = "ballast-e2e/from"
IDENTITY = {f"GIT_{who}_{what}": "somebody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
KINDS = ("KafkaTopic", "Reassignment")


class Repository:
    """A working tree whose head is what the cluster is to be."""

    def __init__(self, folder: Path, world: World) -> None:
        self._folder = folder
        self._world = world
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words: str) -> str:
        command = ["git", "-C", str(self._folder), "-c", "commit.gpgsign=false", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | IDENTITY, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def commit(self, message: str, files: dict[str, dict[str, Any]]) -> None:
        """Writes objects into files, and the kustomization that lists them all."""
        for name, body in files.items():
            (self._folder / f"{name}.yaml").write_text(yaml.safe_dump(body))
        self._list()
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        self.sync()

    def revert(self, commits: int) -> None:
        self.git("revert", "--no-edit", f"HEAD~{commits}..HEAD")
        self.sync()

    def sync(self) -> None:
        """What a GitOps controller does after each commit."""
        allowed = [f"--prune-allowlist=ballast.dev/v1alpha1/{kind}" for kind in KINDS]
        self._world.kubectl("apply", "-k", str(self._folder), "--prune", "-l", f"{LABEL}=git", *allowed)

    def _list(self) -> None:
        resources = sorted(path.name for path in self._folder.glob("*.yaml") if path.stem != "kustomization")
        content = {"labels": [{"pairs": {LABEL: "git"}}], "resources": resources}
        (self._folder / "kustomization.yaml").write_text(yaml.safe_dump(content))


@pytest.fixture
def repository(installed: World, tmp_path: Path) -> Repository:
    found = Repository(tmp_path, installed)
    found.commit("A topic with one replica", {"topic": topic(TOPIC, partitions=1, replicas=1)})
    installed.until_ready("kafkatopic", TOPIC)
    produce(installed, TOPIC, [os.urandom(10_000) for _ in range(800)])
    return found


def test_git(installed: World, repository: Repository) -> None:
    (before,) = _replicas(installed)
    target = (before + 1) % 3
    rows = [{"topic": TOPIC, "partition": 0, "replicas": [target]}]

    def plan(**spec: Any) -> dict[str, dict[str, Any]]:
        throttle = spec.pop("throttle", {"interBroker": "128Ki"})
        return {"move": reassignment("move", partitions=rows, approval="Required", throttle=throttle, **spec)}

    repository.commit("Propose to move it", plan())
    digest = installed.until_phase("move", "AwaitingApproval")["status"]["plan"]["hash"]
    assert _replicas(installed) == [before]
    installed.say("a commit proposed a move; nothing has moved")
    repository.commit("Approve the move", plan(approvedPlan=digest))
    installed.until_phase("move", "Running")
    installed.say("a commit approved it; it runs")
    repository.revert(2)
    installed.until("the reassignment is gone", lambda: installed.get("reassignment", "move") is None)
    assert not installed.view().ongoing
    _until_on(installed, before)
    installed.say("both commits were reverted while it ran: it is cancelled, and the replica is where it was")
    quick = {"throttle": {"interBroker": "50Mi"}}
    repository.commit("Propose it again, faster", plan(**quick))
    digest = installed.until_phase("move", "AwaitingApproval")["status"]["plan"]["hash"]
    repository.commit("Approve it", plan(**quick, approvedPlan=digest))
    installed.until_phase("move", "Succeeded")
    _until_on(installed, target)
    installed.say("the second one ran to its end")
    repository.commit("Undo it", plan(**quick, approvedPlan=digest, rollback=True))
    installed.until_phase("move", "RolledBack")
    _until_on(installed, before)
    installed.say("a commit with spec.rollback has undone it")
    repository.git("rm", "--quiet", "move.yaml")
    repository.commit("Tidy up", {})
    installed.until("the reassignment is gone", lambda: installed.get("reassignment", "move") is None)


def _replicas(world: World) -> list[int]:
    return list(world.view().topics[TOPIC].partitions[0].replicas)


def _until_on(world: World, broker: int) -> None:
    """The broker that is asked hears of it a moment after the controller has told the operator."""
    world.until(f"{TOPIC} is on broker {broker}", lambda: _replicas(world) == [broker])
