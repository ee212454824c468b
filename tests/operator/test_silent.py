"""A Kubernetes that answers everything but one kind, or one object: what does not depend on that goes on.

So it is while the API server's cache of one kind is being filled, or a webhook's object alone is not let through.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from tests.operator.faults import FaultyApi, behind_faults
from tests.operator.making import NOW, cluster, view
from tests.operator.world import World

from ballast_operator.apply.kubernetes import ApiUnavailableError, KubernetesApi
from ballast_operator.apply.writer import Writer
from ballast_operator.cache import Cache
from ballast_operator.cycle import ClusterCycle, Outage, Shared
from ballast_operator.events import Events
from ballast_operator.handlers import clusters
from ballast_operator.handlers.clusters import ClusterHandler, WrongClusterError
from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.kubeconfig import ApiAccess
from ballast_operator.metrics import Metrics
from ballast_operator.model.cluster import External
from ballast_operator.model.kafka import KafkaView
from ballast_operator.model.meta import Key
from ballast_operator.worker import Part, Requeue, Work

CORE = "/api/v1/namespaces/default"
OURS = "/apis/ballast.dev/v1alpha1/namespaces/default"


@pytest.fixture(scope="module")
def faulty(ballast_world: World) -> Iterator[FaultyApi]:
    with behind_faults(ballast_world) as proxy:
        ballast_world.topic("silent-first", partitions=1, deletionPolicy="Delete")
        ballast_world.until_ready("KafkaTopic", "silent-first")
        ballast_world.until_ready("KafkaCluster", "demo")
        yield proxy
        ballast_world.delete("KafkaTopic", "silent-first")


def pods(world: World) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.objects("v1", "pods", "ballast.dev/role=broker")}


@pytest.mark.spec("OPR-04", "OPR-05", "OPR-08")
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("moving", "silent"),
    [
        ("silent-claims", f"GET {CORE}/persistentvolumeclaims"),
        ("silent-services", f"GET {CORE}/services/demo-.*"),
        ("silent-status", f"(PATCH|GET) {OURS}/kafkaclusters/demo.*"),
    ],
)
def test_topics_and_moves_go_on_where_something_of_the_cluster_is_never_answered(
    ballast_world: World, faulty: FaultyApi, moving: str, silent: str
) -> None:
    """One request without an answer ended the cycle before any of them was looked at."""
    world, before = ballast_world, pods(ballast_world)
    world.movable_topic(moving, [[0, 1]])
    faulty.silent, faulty.did["silent"] = [silent], 0
    try:
        world.until("something is not answered", lambda: faulty.did["silent"])
        world.topic("silent", partitions=1, deletionPolicy="Delete")
        world.reassign("silent", partitions=[{"topic": moving, "partition": 0, "replicas": [2, 1]}])
        world.until_ready("KafkaTopic", "silent")
        world.until_phase("silent", "Succeeded")
        if "kafkaclusters" not in silent:
            assert "ServiceUnavailable" in world.until_reason("KafkaCluster", "demo", "KubernetesSilent")
    finally:
        faulty.silent = []
    world.until_ready("KafkaCluster", "demo", 60)
    assert pods(world) == before
    world.delete("Reassignment", "silent")
    for name in ("silent", moving):
        world.pause("KafkaTopic", name, wanted=False)
        world.delete("KafkaTopic", name)
        world.until_gone("KafkaTopic", name)
    world.until_gone("Reassignment", "silent")


@pytest.mark.spec("OPR-05", "OPR-33")
@pytest.mark.timeout(180)
def test_a_reassignment_whose_status_nobody_takes_holds_up_no_other(ballast_world: World, faulty: FaultyApi) -> None:
    world = ballast_world
    world.movable_topic("silent-move", [[0, 1], [0, 1]])
    faulty.silent, faulty.did["silent"] = [f"PATCH {OURS}/reassignments/silent(/status)?"], 0
    try:
        for index, name in enumerate(("silent", "silent-other")):
            world.reassign(name, partitions=[{"topic": "silent-move", "partition": index, "replicas": [2, 1]}])
        world.until_phase("silent-other", "Succeeded")
        assert faulty.did["silent"]
        assert world.view().topics["silent-move"].partitions[0].replicas == (0, 1), "nothing is begun before it is told"
    finally:
        faulty.silent = []
    world.until_phase("silent", "Succeeded")
    for name in ("silent", "silent-other"):
        world.delete("Reassignment", name)
    world.pause("KafkaTopic", "silent-move", wanted=False)
    world.delete("KafkaTopic", "silent-move")
    world.until_gone("KafkaTopic", "silent-move")


@pytest.mark.spec("OPR-05", "OPR-08")
@pytest.mark.parametrize(
    ("uid", "address", "out", "served"),
    [("u", "a:1", False, True), ("other", "a:1", False, False), ("u", "b:1", False, False), ("u", "a:1", True, False)],
)
async def test_the_connection_that_there_is_is_used_for_the_very_cluster_that_it_is_to(
    uid: str, address: str, out: bool, served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for one that was made anew, is pointed elsewhere, or has not answered since it was away."""
    cache, looked_at = Cache(), list[object]()
    api = KubernetesApi(ApiAccess("http://127.0.0.1:1"))
    shared = Shared(api, cache, Writer(api, cache), Events(api, lambda: NOW), Metrics(), lambda: NOW)
    meta = {"name": "demo", "namespace": "default", "uid": uid, "resourceVersion": "7", "generation": 1}
    cache.clusters.put({"metadata": meta, "spec": {"external": {"bootstrapServers": address}}})
    cycle = ClusterCycle(Key("default", "demo"), shared)
    cycle._reached = ("u", External("a:1"))
    cycle._outage = Outage(NOW, 0.0, "it was away") if out else None
    kafka = cast(KafkaConnection, object())

    async def silent(*_: object) -> None:
        raise ApiUnavailableError("GET /secret: 503")

    async def same(*_: object) -> None:
        return None

    async def serve(_: Work, __: Requeue, kafka: object, *___: object) -> None:
        looked_at.append(kafka)

    monkeypatch.setattr(cycle._connections, "_current", kafka)
    monkeypatch.setattr(cycle, "_reach", silent)
    monkeypatch.setattr(cycle._clusters, "unobserved", same)
    monkeypatch.setattr(cycle, "_serve", serve)
    requeue = await cycle.run(Work({Key("default", "orders")}))
    assert looked_at == [kafka] * served
    assert requeue.failed == ({Part.CLUSTER} if served else set(Part))
    assert requeue.topics == (set() if served else {Key("default", "orders")})


@pytest.mark.spec("OPR-08")
async def test_another_cluster_at_the_address_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nobody tells where its pods are, somebody else's may have their addresses."""
    cache = Cache()
    api = KubernetesApi(ApiAccess("http://127.0.0.1:1"))
    shared = Shared(api, cache, Writer(api, cache), Events(api, lambda: NOW), Metrics(), lambda: NOW)
    subject = cluster(status={"clusterId": "another"})

    async def observed(_: KafkaConnection) -> KafkaView:
        return view()

    monkeypatch.setattr(clusters, "observe_brokers", observed)
    handler = ClusterHandler(Key("default", "demo"), shared)
    with pytest.raises(WrongClusterError):
        await handler.unobserved(subject, cast(KafkaConnection, object()), ApiUnavailableError("GET: 503"), Requeue())
