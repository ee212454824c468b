"""A broker or volume that is to go: what is done to it, and when, from what one cycle saw."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from tests.operator.making import GIB, NOW, cluster, topic_view, view

from ballast_operator.apply import kafka as kafka_actions
from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError
from ballast_operator.cache import Cache
from ballast_operator.handlers import leaving, restarts
from ballast_operator.handlers import managed as managed_handler
from ballast_operator.handlers import scene as scene_module
from ballast_operator.handlers import voters as voters_handler
from ballast_operator.handlers.clusters import ClusterHandler
from ballast_operator.handlers.kube_objects import KubeObjects, LayoutRefusals
from ballast_operator.handlers.leaving import CORDON, Leaving
from ballast_operator.handlers.managed import ManagedCluster
from ballast_operator.handlers.scene import Scene
from ballast_operator.kafka_client import KafkaUnavailableError
from ballast_operator.model.actions import AlterConfig
from ballast_operator.model.cluster import ClusterStatus, Drain, Volume
from ballast_operator.model.kafka import DirectoryId, DirectoryView, KafkaView, LogView, ReplicaId
from ballast_operator.model.meta import Key, owner_reference
from ballast_operator.model.reassignment import Reassignment
from ballast_operator.plan.kube import ClaimFacts, KubeFacts, PodFacts
from ballast_operator.resources import pods
from ballast_operator.resources.layout import Identity
from ballast_operator.status import CLUSTER, Verdict
from ballast_operator.worker import Part, Requeue

FOUR = KubeFacts(exists=True, replicas=4, pods={n: PodFacts(f"demo-{n}", "uid", n, ready=True) for n in range(4)})


class Told:
    """Where the cluster's objects and Reassignments are written; keeps what it is told."""

    def __init__(self) -> None:
        self.replicas: list[int] = []
        self.created: list[str] = []
        self.deleted: list[str] = []
        self.marked: list[str] = []
        self.evicted: list[str] = []
        self.budget_lets_go = True
        self.nodes: dict[str, Any] = {}

    async def mark_claim(self, _: object, claim: ClaimFacts, drained: bool) -> None:
        assert not self.replicas, "before it is given up"
        self.marked.append(claim.name)

    async def restart(self, _: object, pod: PodFacts) -> None:
        self.deleted.append(pod.name)

    async def evict(self, _: object, pod: PodFacts) -> bool:
        if not self.budget_lets_go:
            return False
        self.evicted.append(pod.name)
        return True

    async def apply_layout(self, layout: Any, _: KubeFacts) -> LayoutRefusals:
        self.replicas.append(layout.brokers)
        return LayoutRefusals()

    async def apply_monitor(self, _: object) -> None: ...

    async def drop_old_configs(self, *_: object) -> None: ...

    async def forget_recreation(self, _: object) -> None: ...

    async def hold_evictions(self, _: object, lagging: Collection[int]) -> None: ...

    async def create_reassignment(self, _: object, name: str, spec: Mapping[str, Any], cluster: str) -> None:
        self.created.append(name)

    async def delete_reassignment(self, one: Reassignment) -> None:
        self.deleted.append(one.meta.name)


def scene_of(seen: KafkaView, cache: Cache | None = None, **spec: Any) -> tuple[ManagedCluster, Scene, Told]:
    told, subject = Told(), cluster(brokers=3, **spec)
    shared = SimpleNamespace(api=None, cache=cache or Cache(), writer=told, events=None, now=lambda: NOW)
    managed = ManagedCluster(subject.key, cast(Any, shared))
    managed._objects = managed._leaving._objects = cast(Any, told)
    kube = KubeFacts(
        exists=True, replicas=4, pods=FOUR.pods, volumes={volume.name: volume for volume in subject.spec.volumes}
    )
    return managed, Scene(subject, Identity("id", (0, 1, 2)), kube, seen, cast(Any, None), Requeue()), told


@pytest.mark.spec("OPR-42")
async def test_an_empty_broker_goes_only_when_nothing_new_could_be_put_on_it_before_it_was_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it holds it says itself: any broker may lag behind a topic that was made just before the cordon."""
    topics = {"late": topic_view((3,))}

    async def said_by(
        _: object, names: Collection[str] | None = None, broker: int | None = None
    ) -> tuple[Any, Any, Any]:
        assert broker == 3
        return topics, frozenset(), {}

    monkeypatch.setattr(scene_module, "observe_topics", said_by)
    managed, scene, told = scene_of(view(brokers=range(4)))
    said = await managed._leaving.scale_down(scene, [], frozenset({3}))
    assert (said and said.reason, told.replicas) == ("ScalingDown", [])
    await managed._leaving.scale_down(scene, [], frozenset())
    assert told.replicas == []
    topics.clear()
    claims = tuple(ClaimFacts(f"a-demo-{n}", "u", "a", f"demo-{n}", "1Gi") for n in range(4))
    await managed._leaving.scale_down(replace(scene, kube=replace(scene.kube, claims=claims)), [], frozenset({1}))
    assert (told.replicas, told.marked) == ([3], ["a-demo-3"])


@pytest.mark.spec("OPR-08", "OPR-42")
async def test_of_a_broker_that_is_offline_all_others_tell_that_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could cordon it. It may have been back for a moment, and one that lags does not know what it got then."""
    holds = {2: {"late": topic_view((3,))}}
    silent = {1}

    async def said_by(
        _: object, names: Collection[str] | None = None, broker: int | None = None
    ) -> tuple[Any, Any, Any]:
        assert broker in {0, 1, 2}
        if broker in silent:
            raise KafkaUnavailableError("nobody there")
        return holds.get(broker, {}), frozenset(), {}

    monkeypatch.setattr(scene_module, "observe_topics", said_by)
    managed, scene, told = scene_of(view(brokers=range(4), offline=(3,)))
    said = await managed._leaving.scale_down(scene, [], frozenset())
    assert said is not None
    assert (said.reason, said.stalled) == ("ScaleDownHeld", False)
    assert "broker 1 does not answer: nobody there" in said.message
    silent.clear()
    said = await managed._leaving.scale_down(scene, [], frozenset())
    assert (said and said.reason, told.replicas) == ("ScalingDown", [])
    holds.clear()
    await managed._leaving.scale_down(scene, [], frozenset())
    assert told.replicas == [3]


@pytest.mark.spec("OPR-42")
async def test_what_gives_replicas_to_brokers_that_are_to_go_is_withdrawn() -> None:
    """It kept their partitions, and with them its throttles and the drain: for ever, as such brokers take none."""
    cache = Cache()
    owner = {"apiVersion": "ballast.dev/v1alpha1", "kind": "KafkaCluster", "name": "demo", "uid": "uid-demo"}
    for name, brokers, phase, owners in (
        ("demo-add-brokers-1", [3], "Running", [owner]),
        ("demo-add-brokers-2", [2, 3], "AwaitingApproval", [owner]),
        ("demo-add-brokers-3", [3], "Succeeded", [owner]),
        ("demo-add-brokers-4", [2], "Running", [owner]),
        ("demo-add-brokers-5", [3], "AwaitingApproval", []),
    ):
        meta = {"name": name, "namespace": "default", "uid": name, "generation": 1, "ownerReferences": owners}
        spec = {"clusterRef": {"name": "demo"}, "addBrokers": brokers}
        cache.put_reassignment({"metadata": meta, "spec": spec, "status": {"phase": phase}})
    managed, scene, told = scene_of(view({"orders": topic_view((0, 3))}, brokers=range(4)), cache)
    said = await managed._leaving.scale_down(scene, [], frozenset())
    assert (said and said.reason, sorted(told.deleted)) == ("ScalingDown", ["demo-add-brokers-1", "demo-add-brokers-2"])


@pytest.mark.spec("OPR-36", "OPR-42")
async def test_a_drain_to_where_nothing_is_taken_any_more_is_planned_anew() -> None:
    """A volume was removed while brokers were drained to it."""
    cache = Cache()
    owner = {"apiVersion": "ballast.dev/v1alpha1", "kind": "KafkaCluster", "name": "demo", "uid": "uid-demo"}
    meta = {"name": "demo-drain-brokers-1", "namespace": "default", "uid": "u", "ownerReferences": [owner]}
    said = {"type": "Ready", "status": "False", "message": "", "lastTransitionTime": NOW}
    managed, scene, told = scene_of(view({"orders": topic_view((0, 3))}, brokers=range(4)), cache)
    for version, reason in enumerate(("Running", "DirectoriesClosed"), 1):
        status = {"phase": "Waiting", "conditions": [{**said, "reason": reason}]}
        spec = {"clusterRef": {"name": "demo"}, "drainBrokers": [3]}
        cache.put_reassignment({"metadata": {**meta, "resourceVersion": f"{version}"}, "spec": spec, "status": status})
        assert told.deleted == []
        await managed._leaving.scale_down(scene, [], frozenset())
    assert told.deleted == ["demo-drain-brokers-1"]


@pytest.mark.spec("OPR-44")
async def test_a_broker_that_is_to_be_restarted_is_asked_itself_who_is_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is cut off from the controllers still answers, and tells how it was before."""
    topics = {"orders": topic_view((0, 1, 2), isr={0: (0,)})}

    async def said_by(
        _: object, names: Collection[str] | None = None, broker: int | None = None
    ) -> tuple[Any, Any, Any]:
        assert broker == 0
        if not topics:
            raise KafkaUnavailableError("nobody there")
        return topics, frozenset(), {}

    async def least(*_: object) -> dict[str, int]:
        return {"orders": 1}

    monkeypatch.setattr(scene_module, "observe_topics", said_by)
    monkeypatch.setattr(restarts, "observe_min_insync", least)
    managed, scene, told = scene_of(view({"orders": topic_view((0, 1, 2))}, brokers=range(4)))
    said = await managed._roll(scene)
    assert (said and said.reason, told.deleted) == ("RollWaits", [])
    topics.clear()
    said = await managed._roll(scene)
    assert (said and said.reason, told.deleted) == ("RollWaits", []), "the cluster answers, only this one does not"
    topics["orders"] = topic_view((0, 1, 2))
    told.budget_lets_go = False
    said = await managed._roll(scene)
    assert (said and said.reason, told.evicted, told.deleted) == ("RollWaits", [], []), "a node is being drained"
    told.budget_lets_go = True
    await managed._roll(scene)
    assert (told.evicted, told.deleted) == (["demo-0"], [])
    # What lags closes the budget for all others, so nobody else goes meanwhile.
    lagging = view({"elsewhere": topic_view((1, 2), isr={0: (1,)})}, brokers=range(4))
    await managed._roll(replace(scene, view=lagging))
    assert (told.evicted, told.deleted) == (["demo-0"], ["demo-0"])


@pytest.mark.spec("OPR-43")
async def test_an_empty_volume_goes_only_when_its_brokers_say_so_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/var/lib/ballast/b/data"
    seen = view(brokers=range(4), directories=("/var/lib/ballast/a/data", path))
    logs = {ReplicaId("late", 0, 2): LogView(path, 1)}

    async def said_by(_: object, brokers: object, only: object = None) -> tuple[Any, Any, Any]:
        return seen.directories, logs, seen.described

    monkeypatch.setattr(leaving, "observe_directories", said_by)
    managed, scene, told = scene_of(seen, metadataVolume={"size": "1Gi"})
    fewer = cluster(brokers=4, volumes=[{"name": "a", "size": "10Gi"}])
    shrinking = replace(scene, cluster=fewer)
    await managed._leaving.remove_volumes(shrinking, [], frozenset())
    assert told.replicas == []
    logs.clear()
    await managed._leaving.remove_volumes(shrinking, [], frozenset())
    assert told.replicas == [4]


@pytest.mark.spec("OPR-04")
async def test_a_reassignment_that_was_made_is_looked_at_although_its_event_tells_nothing_new() -> None:
    managed, scene, told = scene_of(view(brokers=range(4)))
    before = scene.requeue.reassignments_seconds
    await managed._own.create(scene, "demo-drain-brokers-1", {"drainBrokers": [3]})
    assert (told.created, before, scene.requeue.reassignments_seconds) == (["demo-drain-brokers-1"], None, 0.0)


@pytest.mark.spec("OPR-46")
async def test_a_directory_that_fails_a_second_time_is_drained_a_second_time() -> None:
    cache = Cache()
    failing = {**view().directories, DirectoryId(1, "/b"): DirectoryView("KAFKA_STORAGE_ERROR", -1, -1)}
    storage = {"onDirectoryFailure": "Drain"}
    managed, scene, told = scene_of(view(), cache, storage=storage)
    bad = replace(scene, view=replace(scene.view, directories=failing))
    await managed._heal_directories(bad)
    (name,) = told.created
    owner = {"apiVersion": "ballast.dev/v1alpha1", "kind": "KafkaCluster", "name": "demo", "uid": "uid-demo"}
    meta = {"name": name, "namespace": "default", "uid": "u", "generation": 1, "ownerReferences": [owner]}
    spec = {"clusterRef": {"name": "demo"}, "drainDirectories": [{"broker": 1, "directory": "/b"}]}
    cache.put_reassignment({"metadata": meta, "spec": spec, "status": {"phase": "Succeeded"}})
    await managed._heal_directories(bad)
    assert (told.created, told.deleted) == ([name], []), "it was drained, and is still bad"
    await managed._heal_directories(scene)
    assert told.deleted == [name], "it is well again: the next failure is another one"


@pytest.mark.spec("OPR-46")
@pytest.mark.parametrize("stopped", [True, False])
async def test_a_directory_that_fails_again_while_another_one_stays_bad_is_drained_again(stopped: bool) -> None:
    """The Reassignment that had drained both of them kept the name, so that nothing was made, and nothing said so."""
    cache = Cache()
    one, two = DirectoryId(1, "/b"), DirectoryId(2, "/a")
    managed, scene, told = scene_of(view(), cache, storage={"onDirectoryFailure": "Drain"})
    owner = {"apiVersion": "ballast.dev/v1alpha1", "kind": "KafkaCluster", "name": "demo", "uid": "uid-demo"}

    async def look(*failed: DirectoryId) -> None:
        bad = {**view().directories, **{each: DirectoryView("KAFKA_STORAGE_ERROR", -1, -1) for each in failed}}
        await managed._heal_directories(replace(scene, view=replace(scene.view, directories=bad)))

    for second, failed in enumerate(((one, two), (two,), (one, two))):
        await look(*failed)
        if len(told.created) > second:
            meta = {"name": told.created[-1], "namespace": "default", "uid": f"u{second}", "generation": 1}
            meta |= {"ownerReferences": [owner], "creationTimestamp": f"2026-01-01T00:00:0{second}Z"}
            spec = {"clusterRef": {"name": "demo"}, "drainDirectories": [{"broker": 1, "directory": "/b"}]}
            phase = "Cancelled" if stopped and second == 0 else "Succeeded"
            cache.put_reassignment({"metadata": meta, "spec": spec, "status": {"phase": phase}})
    assert len(told.created) == 2
    assert told.deleted == ([] if stopped else told.created[:1])


@pytest.mark.spec("OPR-04", "CLU-02")
async def test_who_votes_is_not_chosen_a_second_time() -> None:
    """The ConfigMap that keeps it was deleted after the cluster had grown."""

    class Api:
        """There is no such ConfigMap yet."""

        async def find(self, _: str) -> None:
            return None

        async def create(self, _: str, body: dict[str, Any]) -> dict[str, Any]:
            return body

    grown = cluster({"clusterId": "known", "voters": [0]}, brokers=5)
    objects = KubeObjects(cast(Any, SimpleNamespace(api=Api())))
    identity = await objects.identity(grown)
    assert (identity.cluster_id, identity.controllers, identity.dedicated) == ("known", (0,), False)
    assert not identity.dynamic
    changed = cluster({"clusterId": "known", "voters": [100_000, 100_001], "kraftVersion": 1})
    identity = await KubeObjects(cast(Any, SimpleNamespace(api=Api()))).identity(changed)
    assert (identity.controllers, identity.dedicated, identity.dynamic) == ((100_000, 100_001), True, True)


@pytest.mark.spec("OPR-04")
async def test_a_cluster_that_was_made_anew_at_once_does_not_get_what_the_former_one_was_born_with() -> None:
    handler = ClusterHandler(Key("default", "demo"), cast(Any, SimpleNamespace(api=None, cache=None)))
    external = {"bootstrapServers": "kafka:9092"}
    former = handler._managed
    await handler.prepare(cluster(external=external), True, Requeue())
    assert handler._managed is former
    await handler.prepare(cluster(meta={"uid": "another"}, external=external), True, Requeue())
    assert handler._managed is not former


def changes_of(configs: dict[int, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> list[AlterConfig]:
    """What is changed of these configurations of brokers from now on."""
    changed: list[AlterConfig] = []

    async def told(*_: object) -> dict[int, dict[str, str]]:
        return configs

    async def alter(_: object, changes: Sequence[AlterConfig]) -> dict[Any, Any]:
        changed.extend(changes)
        return {}

    monkeypatch.setattr(leaving, "observe_broker_configs", told)
    monkeypatch.setattr(kafka_actions, "alter_configs", alter)
    return changed


@pytest.mark.spec("OPR-42", "OPR-43")
async def test_what_is_given_up_stays_cordoned_until_no_broker_uses_it_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A StatefulSet loses the volume, and the broker, at once; its pods go on with them until they have ended. What is
    put there meanwhile would be lost, and the emptiest directory is the first to be given something."""
    gone = "/var/lib/ballast/b/data"
    seen = view(brokers=range(4), directories=("/var/lib/ballast/a/data", gone))
    configs = {0: {CORDON: gone}, 1: {CORDON: gone}, 2: {}, 3: {CORDON: "*"}}
    changed = changes_of(configs, monkeypatch)
    managed, scene, _ = scene_of(seen, volumes=[{"name": "a", "size": "10Gi"}])
    both, one = {"a": "a-demo", "b": "b-demo"}, {"a": "a-demo"}
    pods = {n: replace(FOUR.pods[n], claims=both if n < 2 else one) for n in range(4)}
    # Of the set there are three brokers left, and volume a: broker 3 is just ending, 0 and 1 wait to be restarted.
    kube = replace(scene.kube, replicas=3, pods=pods)
    del seen.directories[DirectoryId(2, gone)]  # type: ignore[attr-defined]
    assert (await managed._leaving.cordon(replace(scene, kube=kube)), changed) == (frozenset(), [])
    # As soon as it is restarted its cordon goes.
    pods[1] = replace(pods[1], claims=one)
    del seen.directories[DirectoryId(1, gone)]  # type: ignore[attr-defined]
    assert await managed._leaving.cordon(replace(scene, kube=replace(kube, pods=pods))) == frozenset({1})
    assert [(change.name, change.values) for change in changed] == [("1", {CORDON: None})]


@pytest.mark.spec("OPR-43")
async def test_what_cannot_go_takes_replicas_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first volume has the metadata log: it stays, and with it the others that the same change takes away. All of
    them were cordoned all the same, and took no new replica until somebody put them back."""
    paths = [f"/var/lib/ballast/{volume}/data" for volume in "abcd"]
    seen = view(brokers=range(3), directories=paths)
    configs: dict[int, dict[str, str]] = {0: {}, 1: {CORDON: paths[1]}, 2: {CORDON: paths[3]}}
    changed = changes_of(configs, monkeypatch)
    managed, scene, _ = scene_of(seen, volumes=[{"name": "c", "size": "10Gi"}])
    volumes = {name: Volume(name, "10Gi") for name in "abc"}
    # The set has lost volume d before, which broker 2 still mounts: that one goes.
    pods = {n: replace(FOUR.pods[n], claims={"d": "d-demo"} if n == 2 else {}) for n in range(3)}
    kube = replace(scene.kube, replicas=3, volumes=volumes, pods=pods)
    for directory in [one for one in seen.directories if one.path == paths[3] and one.broker != 2]:
        del seen.directories[directory]  # type: ignore[attr-defined]
    held = replace(scene, kube=kube, identity=replace(scene.identity, metadata="a"))
    said = await managed._leaving.remove_volumes(held, [], frozenset())
    assert said is not None
    assert said.reason == "VolumeNeeded"
    assert await managed._leaving.cordon(held) == frozenset({1})
    assert [(change.name, change.values) for change in changed] == [("1", {CORDON: None})]


@pytest.mark.spec("OPR-42", "OPR-43")
async def test_what_is_wanted_again_counts_as_empty_no_more_before_it_takes_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator that was killed in between left replicas on a claim that was told to be empty: without a StatefulSet
    nobody would have made that broker anew."""
    done: list[str] = []

    async def nothing(*_: object) -> dict[Any, Any]:
        return {}

    async def configs(*_: object) -> dict[int, dict[str, str]]:
        return {3: {CORDON: "*"}}

    async def alter(_: object, changes: Sequence[AlterConfig]) -> dict[Any, Any]:
        done.extend(f"broker {change.name}: {change.values[CORDON]}" for change in changes)
        return {}

    async def mark(_: object, claim: ClaimFacts, drained: bool) -> None:
        done.append(f"{claim.name}: {drained}")

    async def observed(_: object, __: object, seen: KafkaView) -> tuple[None, KafkaView]:
        return None, seen

    monkeypatch.setattr(voters_handler, "observe", observed)
    monkeypatch.setattr(restarts, "roll", AsyncMock(return_value=None))
    monkeypatch.setattr(managed_handler, "observe_ongoing", nothing)
    monkeypatch.setattr(leaving, "observe_broker_configs", configs)
    monkeypatch.setattr(kafka_actions, "alter_configs", alter)
    seen = view(brokers=range(4))
    managed, scene, told = scene_of(seen)
    told.mark_claim = mark  # type: ignore[method-assign]
    drained = ClaimFacts("a-demo-3", "u", "a", "demo-3", "10Gi", drained=True)
    managed._identity, managed._kube = scene.identity, replace(scene.kube, claims=(drained,))
    await managed.finish(cluster(brokers=4), scene.kafka, seen, ClusterStatus(), Requeue())
    assert done[:2] == ["a-demo-3: False", "broker 3: None"]


WEBHOOK = 'failed calling webhook "pods.example"'


@pytest.mark.spec("OPR-02", "OPR-05")
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ApiError(403, "Forbidden", 'pods "demo-1" is forbidden: the policy says no.'), "the policy says no"),
        (ApiUnavailableError("DELETE: 500", ApiError(500, "InternalError", WEBHOOK)), WEBHOOK),
        (ApiUnavailableError("connection refused"), "connection refused"),
        (ApiError(409, "Conflict", "the object has been modified"), None),
    ],
)
async def test_what_kubernetes_refuses_in_the_middle_is_told_and_the_rest_is_served(
    error: Exception, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that lets no pod be deleted kept all topics and Reassignments waiting, and the status said nothing."""

    async def refused(*_: object) -> None:
        raise error

    async def observed(_: object, __: object, seen: KafkaView) -> tuple[None, KafkaView]:
        return None, seen

    async def nothing(*_: object) -> dict[Any, Any]:
        return {}

    for where in ("managed.observe_ongoing", "leaving.observe_broker_configs", "leaving.kafka_actions.alter_configs"):
        monkeypatch.setattr(f"ballast_operator.handlers.{where}", nothing)
    monkeypatch.setattr(voters_handler, "observe", observed)

    async def tidy(*_: object) -> None:
        tidied.append(True)

    tidied: list[bool] = []
    monkeypatch.setattr(restarts, "roll", refused)
    monkeypatch.setattr(ManagedCluster, "_tidy", tidy)
    seen = view({"orders": topic_view((0, 1))}, brokers=range(3))
    managed, scene, _ = scene_of(seen)
    managed._identity, managed._kube = scene.identity, replace(scene.kube, replicas=3)
    known = replace(scene.cluster.status, retained_claims=("a-demo-7",))
    subject, requeue = replace(scene.cluster, status=known), Requeue()
    if told is None:
        with pytest.raises(type(error)):
            await managed.finish(subject, scene.kafka, seen, ClusterStatus(), requeue)
        return
    verdict, status = await managed.finish(subject, scene.kafka, seen, ClusterStatus(), requeue)
    silent = isinstance(error, ApiUnavailableError) and error.answer is None
    assert (verdict.reason, told in verdict.message) == ("KubernetesSilent" if silent else "KubernetesRefused", True)
    assert tidied, "what comes after it does not wait for it"
    assert requeue.failed == {Part.CLUSTER}
    assert (status.retained_claims, status.broker_count) == (("a-demo-7",), 3)


@pytest.mark.spec("OPR-02", "OPR-05", "OPR-41")
@pytest.mark.parametrize(
    ("where", "error", "told"),
    [
        ("claims", ApiError(403, "Forbidden", "a policy keeps claims as they are."), "a policy keeps claims"),
        ("claims", ApiUnavailableError("PATCH", ApiError(500, "InternalError", WEBHOOK)), WEBHOOK),
        ("claims", ApiUnavailableError("connection refused"), "connection refused"),
        ("layout", ApiUnavailableError("connection refused"), "connection refused"),
        ("monitor", ApiUnavailableError("connection refused"), "connection refused"),
        ("budget", ApiUnavailableError("connection refused"), "connection refused"),
        ("budget", ApiError(403, "Forbidden", "budgets are ours"), "budgets are ours"),
        ("monitor", ApiError(404, "NotFound", "PodMonitor demo: there is no such kind"), "there is no such kind"),
    ],
)
async def test_what_is_refused_beside_the_layout_keeps_nothing_else_waiting(
    where: str, error: ApiError | ApiUnavailableError, told: str
) -> None:
    """Whom a claim belongs to has nothing to do with topics, which were told that the cluster does not answer; and
    where nobody knows a PodMonitor, there was no StatefulSet either."""
    managed, scene, writer = scene_of(view())
    pods = {0: PodFacts("demo-0", "uid", 0, ready=True, address="10.0.0.1", ports=(9092,))}

    async def identity(_: object) -> Identity:
        return replace(scene.identity, metadata="a")

    async def facts(_: object) -> KubeFacts:
        return replace(scene.kube, pods=pods)

    async def refused(*_: object) -> bool:
        raise error

    async def fine(*_: object) -> bool:
        return True

    async def without_budget(*_: object) -> LayoutRefusals:
        return LayoutRefusals(failed=error)

    monitor = refused if where == "monitor" else fine
    layout = {"layout": refused, "budget": without_budget}.get(where, writer.apply_layout)
    objects = SimpleNamespace(identity=identity, facts=facts, apply_layout=layout, apply_monitor=monitor)
    managed._objects = cast(Any, objects)
    managed._ownership = cast(Any, SimpleNamespace(bring=refused if where == "claims" else fine))
    reach = await managed.prepare(scene.cluster, True, Requeue())
    assert reach is not None
    assert reach.bootstrap == "10.0.0.1:9092"
    said = managed.explain()
    assert said is not None
    silent = isinstance(error, ApiUnavailableError) and error.answer is None
    assert (said.reason, told in said.message) == ("KubernetesSilent" if silent else "KubernetesRefused", True)
    assert (managed._refused is None) == (where != "layout"), "restarts go on, but for what is not laid out"


def drains(*phases_and_modes: tuple[str, str, dict[str, Any]], **spec: Any) -> Cache:
    """Of (name, phase, mode), made by the operator for the cluster."""
    cache = Cache()
    owner = {"apiVersion": "ballast.dev/v1alpha1", "kind": "KafkaCluster", "name": "demo", "uid": "uid-demo"}
    message = (
        "Moved 1 partition, but it found no place. Add brokers, directories or room, then create another Reassignment."
    )
    said = {"type": "Ready", "status": "False", "reason": "Incomplete", "message": message}
    for name, phase, mode in phases_and_modes:
        meta = {"name": name, "namespace": "default", "uid": name, "generation": 1, "ownerReferences": [owner]}
        body = {"clusterRef": {"name": "demo"}, **mode, **spec}
        cache.put_reassignment({"metadata": meta, "spec": body, "status": {"phase": phase, "conditions": [said]}})
    return cache


PATH = "/var/lib/ballast/b/data"
ONE_BROKER = ("demo-drain-brokers-1", {"drainBrokers": [3]})
DIRECTORIES = ("demo-drain-volumes-1", {"drainDirectories": [{"broker": n, "directory": PATH} for n in range(4)]})


def holding(*replicas: int, size: int = 1) -> KafkaView:
    """One partition on these of four brokers, whose directories are of 100 GiB and half full."""
    logs = {("orders", 0, broker): LogView(PATH, size) for broker in replicas}
    paths = ("/var/lib/ballast/a/data", PATH)
    return view({"orders": topic_view(replicas)}, logs, brokers=range(4), directories=paths)


async def held(managed: ManagedCluster, scene: Scene) -> list[tuple[str, bool]]:
    """What a broker and a volume that are to go are said to be."""
    fewer = cluster(brokers=4, volumes=[{"name": "a", "size": "10Gi"}], metadataVolume={"size": "1Gi"})
    found = [
        await managed._leaving.scale_down(scene, [], frozenset()),
        await managed._leaving.remove_volumes(replace(scene, cluster=fewer), [], frozenset()),
    ]
    return [(said.reason, said.stalled) for said in found if said is not None]


@pytest.mark.spec("OPR-02", "OPR-42", "OPR-43")
async def test_a_drain_that_found_no_place_goes_on_when_there_is_one_and_is_not_progressing_for_ever() -> None:
    cache = drains((ONE_BROKER[0], "Failed", ONE_BROKER[1]), (DIRECTORIES[0], "Failed", DIRECTORIES[1]))
    managed, scene, told = scene_of(holding(0, 1, 2, 3, size=60 * GIB), cache, metadataVolume={"size": "1Gi"})
    assert await held(managed, scene) == [("ScaleDownHeld", True), ("VolumeHeld", True)]
    assert told.deleted == []
    said = await managed._leaving.scale_down(scene, [], frozenset())
    assert said is not None
    assert said.message.startswith("Brokers 3 cannot be removed: moved 1 partition, but it found no place. Mend that")
    # What cannot be told just now may be told a moment later.
    unread = replace(scene, view=replace(scene.view, topic_errors={"orders": "?"}, described=frozenset()))
    said = await managed._leaving.scale_down(unread, [], frozenset())
    assert (said and said.reason, said and said.stalled) == ("ScaleDownHeld", False)
    while not told.deleted:  # not at every look, but soon
        await managed._leaving.scale_down(replace(scene, view=holding(0, 3)), [], frozenset())
    told.deleted.clear()
    while DIRECTORIES[0] not in told.deleted:
        await held(managed, replace(scene, view=holding(0, 3)))


@pytest.mark.spec("OPR-42", "OPR-43")
@pytest.mark.parametrize(("phase", "spec"), [("Cancelled", {}), ("RolledBack", {}), ("Failed", {"rollback": True})])
async def test_a_drain_that_a_person_stopped_is_not_tried_again(phase: str, spec: dict[str, Any]) -> None:
    cache = drains((ONE_BROKER[0], phase, ONE_BROKER[1]), (DIRECTORIES[0], phase, DIRECTORIES[1]), **spec)
    managed, scene, told = scene_of(holding(0, 3), cache, metadataVolume={"size": "1Gi"})
    assert await held(managed, scene) == [("ScaleDownHeld", True), ("VolumeHeld", True)]
    assert told.deleted == []


@pytest.mark.spec("OPR-42")
async def test_a_drain_that_came_to_nothing_goes_when_the_brokers_are_wanted_again() -> None:
    """The next one would have been held by it from the start."""
    cache = drains(
        ("demo-drain-brokers-1", "Failed", {"drainBrokers": [3]}),
        ("demo-drain-brokers-2", "Cancelled", {"drainBrokers": [2, 3]}),
        ("demo-drain-brokers-3", "Succeeded", {"drainBrokers": [2]}),
    )
    managed, scene, told = scene_of(holding(0, 3), cache)
    assert await managed._leaving.scale_down(replace(scene, cluster=cluster(brokers=4)), [], frozenset()) is None
    assert sorted(told.deleted) == ["demo-drain-brokers-1", "demo-drain-brokers-2"]


@pytest.mark.spec("OPR-02", "OPR-42")
async def test_a_drain_names_the_reassignment_that_carries_it_out_and_none_that_is_done() -> None:
    cache, told_drains = drains(("demo-drain-brokers-1", "Succeeded", {"drainBrokers": [3]})), list[Drain]()
    managed, scene, told = scene_of(holding(0, 3), cache)
    await managed._leaving.scale_down(scene, told_drains, frozenset())
    assert (told.deleted, told_drains) == (["demo-drain-brokers-1"], [Drain(3, replicas_left=1)]), "more came meanwhile"

    class Keeping(Told):
        async def create_reassignment(self, owner: Any, name: str, spec: Mapping[str, Any], cluster: str) -> None:
            owners = [owner_reference("KafkaCluster", owner.meta)]
            meta = {"name": name, "namespace": "default", "uid": name, "generation": 1, "ownerReferences": owners}
            cache.put_reassignment({"metadata": meta, "spec": spec})

    managed._shared.writer = cast(Any, Keeping())  # type: ignore[misc]
    cache.remove_reassignment(Key("default", "demo-drain-brokers-1"), "demo-drain-brokers-1")
    told_drains.clear()
    await managed._leaving.scale_down(scene, told_drains, frozenset())
    (made,) = cache.reassignments_of(scene.cluster.key)
    assert [one.reassignment for one in told_drains] == [made.meta.name]


@pytest.mark.spec("OPR-42")
async def test_brokers_that_are_empty_and_vote_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> tuple[Any, Any, Any]:
        return {}, frozenset(), {}

    monkeypatch.setattr(scene_module, "observe_topics", nothing)
    managed, scene, told = scene_of(view(brokers=range(4)))
    voting = replace(scene, identity=Identity("id", (0, 1, 2, 3)))
    said = await managed._leaving.scale_down(voting, [], frozenset())
    assert (said and said.reason, told.replicas) == ("ScalingDown", [])


@pytest.mark.spec("OPR-02", "OPR-42", "OPR-43")
async def test_what_is_being_drained_names_the_reassignment_and_what_that_one_waits_for() -> None:
    path, cache = "/var/lib/ballast/b/data", Cache()
    owner = {"apiVersion": "ballast.dev/v1alpha1", "kind": "KafkaCluster", "name": "demo", "uid": "uid-demo"}
    said = {"type": "Ready", "status": "False", "reason": "Waiting", "message": "It waits for give, which moves it."}
    for name, mode, status in (
        ("demo-drain-brokers-1", {"drainBrokers": [3]}, {"phase": "Running"}),
        (
            "demo-drain-volumes-1",
            {"drainDirectories": [{"broker": 0, "directory": path}]},
            {"phase": "Waiting", "conditions": [said]},
        ),
    ):
        meta = {"name": name, "namespace": "default", "uid": name, "generation": 1, "ownerReferences": [owner]}
        cache.put_reassignment({"metadata": meta, "spec": {"clusterRef": {"name": "demo"}, **mode}, "status": status})
    logs = {("orders", 0, 0): LogView(path, 1), ("orders", 0, 3): LogView("/var/lib/ballast/a/data", 1)}
    seen = view({"orders": topic_view((0, 3))}, logs, brokers=range(4), directories=("/var/lib/ballast/a/data", path))
    managed, scene, _ = scene_of(seen, cache, metadataVolume={"size": "1Gi"})
    drains: list[Drain] = []
    goes = await managed._leaving.scale_down(scene, drains, frozenset())
    assert goes is not None
    assert goes.message == "Brokers 3 are being drained: 1 replica left, moved by Reassignment demo-drain-brokers-1."
    fewer = cluster(brokers=4, volumes=[{"name": "a", "size": "10Gi"}])
    goes = await managed._leaving.remove_volumes(replace(scene, cluster=fewer), drains, frozenset())
    assert goes is not None
    assert goes.message == (
        "Volume b is being drained: 1 replica left, moved by Reassignment demo-drain-volumes-1. "
        "It waits for give, which moves it."
    )
    assert [one.reassignment for one in drains] == ["demo-drain-brokers-1", "demo-drain-volumes-1"]


@pytest.mark.spec("OPR-02", "OPR-43")
async def test_a_volume_is_drained_once_the_one_in_its_place_is_there() -> None:
    """All of it went to the volumes that stay, on the brokers that were not restarted yet."""
    seen = holding(0, 3)
    coming = {each: known for each, known in seen.directories.items() if each.path == "/var/lib/ballast/a/data"}
    coming = {DirectoryId(each.broker, "/var/lib/ballast/d/data"): known for each, known in coming.items()}
    two = {each: known for each, known in coming.items() if each.broker in (0, 2)}
    managed, scene, told = scene_of(
        replace(seen, directories={**seen.directories, **two}), metadataVolume={"size": "1Gi"}
    )
    volumes = [{"name": "a", "size": "10Gi"}, {"name": "d", "size": "10Gi"}]
    scene = replace(scene, cluster=cluster(brokers=4, volumes=volumes, metadataVolume={"size": "1Gi"}))
    said = await managed._leaving.remove_volumes(scene, [], frozenset())
    assert said is not None
    assert (said.reason, told.created) == ("DrainingVolume", [])
    assert said.message == (
        "Volume b is being drained: 2 replicas left, which begin to go once volume d is there on each of brokers 1, 3."
    )
    there = replace(seen, directories={**seen.directories, **coming})
    assert await managed._leaving.remove_volumes(replace(scene, view=there), [], frozenset())
    assert told.created


@pytest.mark.spec("OPR-02", "OPR-43")
@pytest.mark.parametrize(
    ("silent", "online", "reason"),
    [
        (None, False, "DrainingVolume"),
        (PodFacts("demo-2", "uid", 2), False, "DrainingVolume"),
        (PodFacts("demo-2", "uid", 2, ready=True), True, "DrainingVolume"),
        (PodFacts("demo-2", "uid", 2, ready=True, ready_since=NOW), False, "DrainingVolume"),
        (PodFacts("demo-2", "uid", 2, trouble="CrashLoopBackOff"), False, "VolumeHeld"),
        (PodFacts("demo-2", "uid", 2, ready=True), False, "VolumeHeld"),
    ],
)
async def test_a_broker_that_restarts_holds_no_volume_that_is_being_drained(
    silent: PodFacts | None, online: bool, reason: str
) -> None:
    """Each restart told VolumeHeld and sent people to put the volume back."""
    seen = view(brokers=range(4), directories=("/var/lib/ballast/a/data", "/var/lib/ballast/b/data"))
    brokers = dict(seen.brokers)
    brokers[2] = brokers[2]._replace(online=online)
    managed, scene, _ = scene_of(
        replace(seen, brokers=brokers, described=seen.described - {2}), metadataVolume={"size": "1Gi"}
    )
    found = {n: pod for n, pod in FOUR.pods.items() if n != 2} | ({2: silent} if silent else {})
    fewer = cluster(brokers=4, volumes=[{"name": "a", "size": "10Gi"}])
    restarting = replace(scene, cluster=fewer, kube=replace(scene.kube, pods=found))
    said = await managed._leaving.remove_volumes(restarting, [], frozenset())
    assert said is not None
    assert (said.reason, "broker 2" in said.message) == (reason, True)


@pytest.mark.spec("OPR-44", "OPR-45")
async def test_what_has_not_begun_to_run_is_told_anew_before_kafka_answers() -> None:
    """For a runtimeClassName that no node knows, say: nobody else would ever make these pods anew."""
    managed, scene, told = scene_of(view())
    wanted = pods.revision(scene.layout, "broker")
    rows = (
        PodFacts("demo-0", "uid", 0, revision="before", starting=True),
        PodFacts("demo-1", "uid", 1, revision="before"),
        PodFacts("demo-2", "uid", 2, revision=wanted, starting=True),
    )
    managed._kube = replace(scene.kube, pods={pod.ordinal: pod for pod in rows})
    await managed._restart_troubled(scene.layout)
    assert told.deleted == ["demo-0"]


@pytest.mark.spec("OPR-02", "OPR-44")
@pytest.mark.parametrize(("brokers", "told"), [(3, "BrokersOffline"), (2, "RollWaits")])
async def test_a_change_that_waits_for_a_pod_that_cannot_run_does_not_say_that_it_goes_on_by_itself(
    brokers: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a broker that is to go anyway it does not matter."""

    async def observed(_: object, __: object, seen: KafkaView) -> tuple[None, KafkaView]:
        return None, seen

    async def nothing(*_: object) -> dict[Any, Any]:
        return {}

    async def waits(*_: object) -> Verdict:
        return CLUSTER["RollWaits"].says(node="broker 1", error="demo-2 is not ready")

    async def none(*_: object) -> None: ...

    for where in ("managed.observe_ongoing", "leaving.observe_broker_configs", "leaving.kafka_actions.alter_configs"):
        monkeypatch.setattr(f"ballast_operator.handlers.{where}", nothing)
    monkeypatch.setattr(voters_handler, "observe", observed)
    monkeypatch.setattr(restarts, "roll", waits)
    monkeypatch.setattr(Leaving, "scale_down", none)
    seen = view(brokers=range(3))
    managed, scene, _ = scene_of(seen)
    subject = replace(scene.cluster, spec=replace(scene.cluster.spec, brokers=brokers))
    loops = PodFacts("demo-2", "uid", 2, trouble="CrashLoopBackOff: see its logs")
    managed._identity, managed._kube = scene.identity, replace(scene.kube, replicas=3, pods={**FOUR.pods, 2: loops})
    verdict, _status = await managed.finish(subject, scene.kafka, seen, ClusterStatus(), Requeue())
    assert (verdict.reason, "CrashLoopBackOff" in verdict.message) == (told, told == "BrokersOffline")
