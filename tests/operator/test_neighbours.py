"""An operator for all namespaces leaves those alone that have one of their own: two versions would undo each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from tests.operator.world import World

from ballast_operator import leader as leader_module
from ballast_operator.apply.kubernetes import ApiError, KubernetesApi, path_of
from ballast_operator.leader import LEASE_SECONDS
from ballast_operator.neighbours import Neighbours

pytestmark = [pytest.mark.spec("OPR-04", "OPR-07"), pytest.mark.timeout(120)]


class Leases:
    """By namespace: who holds the one that is there, and how often it was renewed."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[str, int]] = {}
        self.refused: dict[str, int] = {}
        self.asked: list[str] = []

    async def find(self, path: str) -> dict[str, Any] | None:
        namespace = path.split("/")[-3]
        self.asked.append(namespace)
        if namespace in self.refused:
            raise ApiError(self.refused[namespace], "Refused", "no")
        if namespace not in self.held:
            return None
        holder, version = self.held[namespace]
        spec = {"holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS}
        return {"metadata": {"resourceVersion": str(version)}, "spec": spec}


@pytest.fixture
def leases() -> Leases:
    return Leases()


async def test_a_namespace_is_left_to_who_renews_a_lease_in_it(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(leader_module, "monotonic", lambda: now)
    wanted, back = {"own", "a", "b", "c"}, list[str]()
    neighbours = Neighbours(cast(KubernetesApi, leases), "own", "ballast-operator", lambda: wanted, back.append)
    leases.held |= {"a": ("theirs", 1), "own": ("ours", 1)}
    leases.refused["c"] = 403
    assert [neighbours.has(each) for each in ("own", "a", "b")] == [False, True, True], "nobody has looked yet"
    await neighbours.look()
    assert [neighbours.has(each) for each in ("own", "a", "b", "c")] == [False, True, False, False]
    assert (back, leases.asked) == (["b", "c"], ["a", "b", "c"])
    for version in (2, 3):
        now += LEASE_SECONDS
        leases.held["a"] = ("theirs", version)
        await neighbours.look()
        assert neighbours.has("a"), "it renews it"
    leases.held["b"] = ("another", 7)
    leases.refused["a"] = 500
    now += LEASE_SECONDS + 1
    await neighbours.look()
    assert [neighbours.has("a"), neighbours.has("b")] == [True, True], "one has come, and of the other nothing is known"
    del leases.refused["a"]
    leases.held["b"] = ("", 8)
    await neighbours.look()
    assert [neighbours.has("a"), neighbours.has("b")] == [False, False], "it ran out, and was given back"
    assert back == ["b", "c", "a", "b"]
    wanted.discard("b")
    await neighbours.look()
    assert (set(neighbours._holders), set(neighbours._seen)) == ({"a", "c"}, {"a"}), "b may be gone for good"
    wanted.clear()  # another one of ours leads
    await neighbours.look()
    assert neighbours.has("a"), "nobody looks"


def test_it_acts_where_the_operator_of_a_namespace_is_gone(ballast_world: World, tmp_path: Path) -> None:
    world = ballast_world
    config = yaml.safe_load(world.kubeconfig.read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = "another-home"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    world.api("create", path_of("v1", "namespaces", None), {"metadata": {"name": "another-home"}})
    other = world.start_another_operator(path)
    log = world.data / "other.log"
    try:
        world.until("it leaves the namespace alone", lambda: "it is left to that one" in log.read_text())
        leads = path_of("coordination.k8s.io/v1", "leases", "another-home", "ballast-operator")
        assert world.api("find", leads)["spec"]["holderIdentity"], "it leads all the same"
        world.end_operator()
        world.topic("taken-over", partitions=1, replicas=1)
        world.until_ready("KafkaTopic", "taken-over")
        world.restart_operator()
        world.until("the one of the namespace is back", lambda: log.read_text().count("it is left to that one") == 2)
        assert "looks after it again" in log.read_text()
    finally:
        other.terminate()
        other.wait(20)
    world.delete("KafkaTopic", "taken-over")
    world.until_gone("KafkaTopic", "taken-over")
