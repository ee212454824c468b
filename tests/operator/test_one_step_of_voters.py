"""One step towards who is to vote: what is asked of whom, and what is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.operator.making import cluster, view

from ballast_operator.handlers import voters
from ballast_operator.handlers.kube_objects import KubeObjects
from ballast_operator.handlers.scene import Scene
from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.kafka import Outcome
from ballast_operator.model.quorum import DYNAMIC, STATIC, Member, QuorumView
from ballast_operator.plan.kube import KubeFacts
from ballast_operator.resources.layout import Identity, read_identity, write_identity
from ballast_operator.worker import Requeue

pytestmark = pytest.mark.spec("OPR-42", "OPR-04")
THREE = {"mode": "Combined", "count": 3}


class Asked:
    """Kafka and the ConfigMap with the identity; the answers are those that are put here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answer = Outcome()
        for name in ("finalize_feature", "add_voter", "remove_voter"):
            monkeypatch.setattr(f"ballast_operator.handlers.voters.quorum_actions.{name}", self._answers(name))

    def _answers(self, name: str) -> Any:
        async def answer(_: object, *arguments: Any) -> Outcome:
            self.asked.append((name, arguments))
            return self.answer

        return answer

    async def change_identity(self, _: KafkaCluster, before: Identity, after: Identity) -> None:
        self.asked.append(("change_identity", (before, after)))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def member(node: int, fetched_ms: int = 1_000_000) -> Member:
    return Member(node, cast(Any, f"directory-{node}"), 9, fetched_ms, fetched_ms)


def scene(identity: Identity, version: int, *nodes: Member, looking_on: tuple[Member, ...] = (), **spec: Any) -> Scene:
    found = QuorumView(version, nodes[0].node, 9, {one.node: one for one in nodes}, looking_on)
    seen = replace(view(brokers=range(3)), controllers=dict.fromkeys(identity.controllers, True))
    kube = KubeFacts(exists=True, replicas=3)
    return Scene(cluster(brokers=3, **spec), identity, kube, seen, cast(Any, None), Requeue(), found)


async def bring(asked: Asked, what: Scene, restarts: bool = False) -> tuple[str, str, bool]:
    went = await voters.bring(cast(KubeObjects, asked), what, lambda: restarts)
    return (went.verdict.reason, went.verdict.message, went.acted) if went.verdict else ("", "", went.acted)


async def test_a_quorum_that_cannot_be_made_changeable_is_told_and_tried_again(asked: Asked) -> None:
    static = scene(Identity("id", (0,)), STATIC, member(0), controllers=THREE)
    asked.answer = Outcome("INVALID_UPDATE_VERSION", "voter 2 does not support it.")
    reason, message, acted = await bring(asked, static)
    assert (reason, acted) == ("VotersHeld", False)
    assert "Controllers 0 vote and 0, 1, 2 are to, but that cannot be: voter 2 does not support it." in message
    asked.answer = Outcome()
    assert (await bring(asked, static))[::2] == ("VotersChanging", True)
    assert asked.asked == [("finalize_feature", ("kraft.version", 1))] * 2


async def test_what_kafka_refuses_for_now_is_told_with_the_step(asked: Asked) -> None:
    identity = Identity("id", (0, 1, 2), dynamic=True)
    asked.answer = Outcome("REQUEST_TIMED_OUT", "it is lagging behind")
    growing = scene(identity, DYNAMIC, member(0), looking_on=(member(1), member(2)), controllers=THREE)
    reason, message, acted = await bring(asked, growing)
    assert (reason, acted) == ("VotersChanging", True)
    assert "controller 1 is being added (it is lagging behind)" in message
    place = ("CONTROLLER", "demo-1.demo-brokers.default.svc", 9093)
    assert asked.asked == [("add_voter", ("id", 1, "directory-1", *place))]
    assert await bring(asked, growing, restarts=True) == ("", "", False), "the restart is told instead"


async def test_none_is_removed_without_whom_too_few_would_follow(asked: Asked) -> None:
    gone = (member(1, 0), member(2, 0))
    five = scene(
        Identity("id", (0, 1, 2, 3, 4), dynamic=True),
        DYNAMIC,
        member(0),
        *gone,
        member(3),
        member(4),
        controllers=THREE,
    )
    reason, message, acted = await bring(asked, five)
    assert (reason, acted, asked.asked) == ("VotersHeld", False, [])
    assert "controller 4 stays until controllers 1, 2 follow" in message


async def test_controllers_do_not_move_out_of_the_brokers(asked: Asked) -> None:
    """As when the KafkaCluster is made anew and its claims are those of the former one."""
    moved = scene(Identity("id", (0,)), STATIC, member(0), controllers={"mode": "Dedicated", "count": 1})
    reason, message, _ = await bring(asked, moved)
    assert (reason, asked.asked) == ("ControllersElsewhere", [])
    assert "controllers.mode Combined" in message
    assert await bring(asked, replace(moved, quorum=None)) == ("", "", False), "nobody can tell who votes"


class Kept:
    """The ConfigMap with the identity."""

    def __init__(self, identity: Identity) -> None:
        self.data: Mapping[str, str] = write_identity(identity)
        self.version = 1

    async def find(self, _: str) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": str(self.version)}, "data": self.data}

    async def merge(self, _: str, patch: Mapping[str, Any]) -> None:
        assert patch["metadata"] == {"resourceVersion": str(self.version)}
        self.data, self.version = patch["data"], self.version + 1


async def test_an_identity_that_somebody_else_has_changed_is_left_alone() -> None:
    before, after = Identity("id", (0,)), Identity("id", (0, 1, 2), dynamic=True)
    kept = Kept(before)
    objects = KubeObjects(cast(Any, SimpleNamespace(api=kept)))
    assert await objects.identity(cluster()) == before
    kept.version = 7
    await objects.change_identity(cluster(), before, after)
    assert await objects.identity(cluster()) == after
    kept.data = write_identity(replace(after, controllers=(0,)))
    await objects.change_identity(cluster(), after, replace(after, controllers=(0, 1)))
    assert read_identity(kept.data).controllers == (0,)
