"""A broker or volume that is to go: what is done to it, and when, from what one cycle saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from making import NOW, cluster, view

from ballast_operator.cache import Cache
from ballast_operator.handlers.managed import ManagedCluster, Scene
from ballast_operator.model.kafka import DirectoryId, DirectoryView, KafkaView
from ballast_operator.model.reassignment import Reassignment
from ballast_operator.plan.kube import KubeFacts, PodFacts
from ballast_operator.resources.layout import Identity
from ballast_operator.worker import Again

FOUR = KubeFacts(exists=True, replicas=4, pods={n: PodFacts(f"demo-{n}", "uid", n, ready=True) for n in range(4)})


class Told:
    """Where the cluster's objects and Reassignments are written; keeps what it is told."""

    def __init__(self) -> None:
        self.replicas: list[int] = []
        self.created: list[str] = []
        self.deleted: list[str] = []

    async def apply_layout(self, layout: Any, _: KubeFacts) -> None:
        self.replicas.append(layout.brokers)

    async def create_reassignment(self, _: object, name: str, spec: Mapping[str, Any], cluster: str) -> None:
        self.created.append(name)

    async def delete_reassignment(self, one: Reassignment) -> None:
        self.deleted.append(one.meta.name)


def scene_of(seen: KafkaView, cache: Cache | None = None, **spec: Any) -> tuple[ManagedCluster, Scene, Told]:
    told, subject = Told(), cluster(brokers=3, **spec)
    shared = SimpleNamespace(api=None, cache=cache or Cache(), writer=told, now=lambda: NOW)
    managed = ManagedCluster(subject.key, cast(Any, shared))
    managed._objects = cast(Any, told)
    kube = KubeFacts(
        exists=True, replicas=4, pods=FOUR.pods, volumes={volume.name: volume for volume in subject.spec.volumes}
    )
    return managed, Scene(subject, Identity("id", (0, 1, 2)), kube, seen, cast(Any, None), Again()), told


@pytest.mark.spec("OPR-42")
async def test_an_empty_broker_goes_only_when_nothing_new_could_be_put_on_it_before_it_was_looked_at() -> None:
    managed, scene, told = scene_of(view(brokers=range(4)))
    said = await managed._scale_down(scene, [], frozenset({3}))
    assert (said and said.reason, told.replicas) == ("ScalingDown", [])
    await managed._scale_down(scene, [], frozenset({1}))
    assert told.replicas == [3]


@pytest.mark.spec("OPR-04")
async def test_a_reassignment_that_was_made_is_looked_at_although_its_event_tells_nothing_new() -> None:
    managed, scene, told = scene_of(view(brokers=range(4)))
    assert scene.again.reassignments_seconds is None
    await managed._create(scene, "demo-drain-brokers-1", {"drainBrokers": [3]})
    assert (told.created, scene.again.reassignments_seconds) == (["demo-drain-brokers-1"], 0.0)


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
