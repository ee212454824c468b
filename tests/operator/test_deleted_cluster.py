"""`storage.deleteClaim`: claims go with their KafkaCluster and with nothing else, and stay when it is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.operator.world import World

from ballast_operator.apply.kubernetes import path_of

pytestmark = pytest.mark.timeout(300)
SET = path_of("apps/v1", "statefulsets", "default", "demo")
IDENTITY = path_of("v1", "configmaps", "default", "demo-identity")
Owners = dict[str, set[str]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world")) as found:
        yield found


def apply(world: World, delete: bool, brokers: int = 1, volumes: str = "a") -> str:
    """The uid of the KafkaCluster, once what it wants is so."""
    rows = [{"name": name, "size": "1Gi"} for name in volumes]
    spec: dict[str, Any] = {"brokers": brokers, "volumes": rows, "storage": {"deleteClaim": delete}}
    world.apply("KafkaCluster", "demo", {**spec, "resyncSeconds": 1})
    return str(world.until_ready("KafkaCluster", "demo", 90)["metadata"]["uid"])


def claims(world: World) -> list[dict[str, Any]]:
    return world.objects("v1", "persistentvolumeclaims", "ballast.dev/cluster=demo")


def owners(world: World) -> Owners:
    """Of each claim and of the identity, the uids."""
    found = [*claims(world), world.api("find", IDENTITY)]
    return {
        one["metadata"]["name"]: {owner["uid"] for owner in one["metadata"].get("ownerReferences") or ()}
        for one in found
    }


def directories(world: World) -> set[str]:
    return {path.name for path in (world.data / "volumes" / "default").glob("*-demo-*")}


def until_owned(world: World, names: set[str], by: set[str]) -> None:
    wanted = dict.fromkeys({*names, "demo-identity"}, by)
    world.until(f"{sorted(wanted)} belong to {by or 'nobody'}", lambda: owners(world) == wanted, 30)


def pod_uid(world: World) -> str:
    pods = world.objects("v1", "pods", "ballast.dev/cluster=demo")
    return str(pods[0]["metadata"]["uid"]) if pods else ""


@pytest.mark.spec("OPR-08", "OPR-43", "OPR-45")
def test_claims_outlive_their_stateful_set_and_go_with_the_cluster(world: World) -> None:
    uid = apply(world, delete=True)
    until_owned(world, {"a-demo-0"}, {uid})
    apply(world, delete=True, brokers=2, volumes="ab")
    every = {f"{volume}-demo-{n}" for volume in "ab" for n in range(2)}
    until_owned(world, every, {uid})

    before = {one["metadata"]["name"]: one["metadata"]["uid"] for one in claims(world)}
    pod = pod_uid(world)
    world.api("delete", SET)
    world.until("another pod", lambda: pod_uid(world) not in ("", pod), 60)
    world.until_ready("KafkaCluster", "demo", 90)
    assert {one["metadata"]["name"]: one["metadata"]["uid"] for one in claims(world)} == before

    assert directories(world) >= every
    world.end_operator()
    world.delete("KafkaCluster", "demo")
    world.until("all claims are gone, without the operator", lambda: not claims(world), 60)
    world.until("their directories, too", lambda: not directories(world), 60)
    assert world.api("find", IDENTITY) is None
    world.restart_operator()


@pytest.mark.spec("OPR-08", "OPR-45")
def test_claims_stay_when_it_is_taken_back_and_belong_to_a_later_cluster_that_wants_it(world: World) -> None:
    former = apply(world, delete=True)
    until_owned(world, {"a-demo-0"}, {former})
    cluster_id = (world.get("KafkaCluster", "demo") or {})["status"]["clusterId"]
    apply(world, delete=False)
    assert owners(world) == {"a-demo-0": set(), "demo-identity": set()}, "as soon as the status is of this spec"
    world.delete("KafkaCluster", "demo")
    world.until("the pods are gone", lambda: not pod_uid(world), 60)
    assert [one["metadata"]["name"] for one in claims(world)] == ["a-demo-0"]

    later = apply(world, delete=True)
    assert later != former
    until_owned(world, {"a-demo-0"}, {later})
    assert (world.get("KafkaCluster", "demo") or {})["status"]["clusterId"] == cluster_id


@pytest.mark.spec("OPR-08", "OPR-45")
@pytest.mark.parametrize("delete", [True, False])
def test_an_identity_that_somebody_deletes_is_there_again(world: World, delete: bool) -> None:
    """The next KafkaCluster of this name got another cluster id, with which no broker starts on these claims."""
    uid = apply(world, delete=delete)
    until_owned(world, {"a-demo-0"}, {uid} if delete else set())
    before = world.api("find", IDENTITY)
    world.api("delete", IDENTITY)
    world.until(
        "another of the same content", lambda: (world.api("find", IDENTITY) or {}).get("data") == before["data"]
    )
    assert world.api("find", IDENTITY)["metadata"]["uid"] != before["metadata"]["uid"]
    until_owned(world, {"a-demo-0"}, {uid} if delete else set())


@pytest.mark.spec("OPR-08", "OPR-43")
def test_what_a_version_before_had_tied_to_the_stateful_set_is_untied_without_a_restart(world: World) -> None:
    uid = apply(world, delete=True)
    until_owned(world, {"a-demo-0"}, {uid})
    pod, stateful_set = pod_uid(world), world.api("find", SET)
    world.end_operator()
    world.api("merge", SET, {
        "metadata": {"annotations": {"ballast.dev/applied": "of a version before"}},
        "spec": {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}},
    })  # fmt: skip
    tied = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "demo", "uid": stateful_set["metadata"]["uid"]}
    claim = path_of("v1", "persistentvolumeclaims", "default", "a-demo-0")
    world.api("merge", claim, {"metadata": {"ownerReferences": [tied]}})
    world.restart_operator()
    until_owned(world, {"a-demo-0"}, {uid})
    world.until_ready("KafkaCluster", "demo", 60)
    policy = world.api("find", SET)["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert policy == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert pod_uid(world) == pod


@pytest.mark.spec("OPR-08", "OPR-45")
def test_nothing_is_written_where_it_is_so_already(world: World) -> None:
    uid = apply(world, delete=True)
    until_owned(world, {"a-demo-0"}, {uid})
    versions = [one["metadata"]["resourceVersion"] for one in claims(world)]
    world.patch("KafkaCluster", "demo", {"spec": {"config": {"num.partitions": "2"}}})
    world.until_ready("KafkaCluster", "demo", 90)
    assert [one["metadata"]["resourceVersion"] for one in claims(world)] == versions
