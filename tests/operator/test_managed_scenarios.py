"""A cluster that the operator runs, as a person changes it: scaling, volumes, restarts, failures; clients go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.operator.world import ApiError, World

from ballast_operator.apply.kubernetes import path_of
from ballast_operator.model.kafka import ReplicaId

pytestmark = pytest.mark.timeout(240)
VOLUMES = [{"name": name, "size": "4Gi"} for name in ("a", "b")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world")) as found:
        found.topic("orders", partitions=6, replicas=3)
        found.until_reason("KafkaTopic", "orders", "ClusterNotFound", 60)
        apply(found)
        found.until_reason("KafkaTopic", "orders", "ClusterStarting", 60)
        found.until_ready("KafkaCluster", "demo", 90)
        found.bootstrap = (found.get("KafkaCluster", "demo") or {})["status"]["bootstrapServers"]
        found.until_ready("KafkaTopic", "orders")
        yield found


def apply(world: World, **spec: Any) -> None:
    world.apply("KafkaCluster", "demo", {"brokers": 3, "volumes": VOLUMES, "resyncSeconds": 2, **spec})


def pods(world: World) -> dict[str, dict[str, Any]]:
    found = world.objects("v1", "pods", "ballast.dev/cluster=demo")
    return {pod["metadata"]["name"]: pod for pod in found}


def named(world: World, part: str) -> str:
    """The Reassignment with this in its name; empty while there is none."""
    return next((r["metadata"]["name"] for r in world.list("Reassignment") if part in r["metadata"]["name"]), "")


def until_in_sync(world: World) -> None:
    def whole() -> bool:
        return all(len(part.isr) == 3 for part in world.view().topics["orders"].partitions.values())

    world.until("every replica is in sync", whole, 60)


@contextmanager
def producing(world: World) -> Iterator[list[str]]:
    """Records with acks=all all the time, in a thread; the list gets the errors."""
    from kafka import KafkaProducer

    errors: list[str] = []
    stop = threading.Event()
    sent = threading.Event()
    producer = KafkaProducer(
        bootstrap_servers=world.bootstrap.split(","), acks="all", linger_ms=5, delivery_timeout_ms=60_000
    )

    def run() -> None:
        while not stop.is_set():
            try:
                producer.send("orders", b"x" * 100).get(70)
                sent.set()
            except Exception as error:
                errors.append(repr(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert sent.wait(30)
    try:
        yield errors
    finally:
        stop.set()
        thread.join(80)
        producer.close()


@pytest.mark.spec("OPR-41")
def test_what_is_built(world: World) -> None:
    assert set(pods(world)) == {"demo-0", "demo-1", "demo-2"}
    claims = world.objects("v1", "persistentvolumeclaims", "ballast.dev/cluster=demo")
    assert len(claims) == 6
    budget = world.objects("policy/v1", "poddisruptionbudgets")
    assert [one["metadata"]["name"] for one in budget] == ["demo"]
    status = (world.get("KafkaCluster", "demo") or {})["status"]
    assert status["voters"] == [0, 1, 2]
    assert [broker["pod"] for broker in status["brokers"]] == ["demo-0", "demo-1", "demo-2"]
    assert status["clusterId"] == world.view().cluster_id


@pytest.mark.spec("OPR-02", "OPR-41")
def test_what_kubernetes_refuses_is_told_and_topics_go_on(world: World) -> None:
    """Without the Prometheus operator nobody knows a PodMonitor."""
    apply(world, metrics={"podMonitor": True})
    message = world.until_reason("KafkaCluster", "demo", "KubernetesRefused")
    assert "PodMonitor demo: " in message
    world.topic("meanwhile", partitions=1)
    world.until_ready("KafkaTopic", "meanwhile")
    apply(world)
    world.until_ready("KafkaCluster", "demo", 60)
    world.delete("KafkaTopic", "meanwhile")


@pytest.mark.spec("OPR-42")
def test_scale_up_proposes_and_scale_down_holds_until_everything_is_drained(world: World) -> None:
    apply(world, brokers=4)
    world.until_ready("KafkaCluster", "demo", 60)
    world.until("broker 3 is online", lambda: 3 in world.view().brokers and world.view().brokers[3].online)
    proposals = world.until(
        "a proposal for broker 3",
        lambda: [r for r in world.list("Reassignment") if r["spec"].get("addBrokers") == [3]],
    )
    assert proposals[0]["spec"]["approval"] == "Required"
    world.reassign("give", partitions=[{"topic": "orders", "partition": n, "replicas": [3, 1, 2]} for n in range(3)])
    world.until_phase("give", "Succeeded")
    world.topic("everywhere", partitions=1, replicas=4)
    world.until_ready("KafkaTopic", "everywhere")
    with producing(world) as errors:
        apply(world)
        # A partition with as many replicas as brokers has no other place: the broker stays, and it is said why.
        assert "everywhere-0" in world.until_reason("KafkaCluster", "demo", "ScaleDownHeld", 60)
        assert "demo-3" in pods(world)
        assert 3 in world.view().topics["everywhere"].partitions[0].replicas
        apply(world, brokers=4)
        world.until_ready("KafkaCluster", "demo", 60)
        world.until(
            "what drained broker 3 is gone",
            lambda: not [one for one in world.list("Reassignment") if "-drain-brokers-" in one["metadata"]["name"]],
        )
        apply(world)
        world.until_reason("KafkaCluster", "demo", "ScaleDownHeld", 60)
        world.patch("KafkaTopic", "everywhere", {"spec": {"replicas": 3}})
        world.until("the pod of broker 3 is gone", lambda: "demo-3" not in pods(world), 90)
        world.until_ready("KafkaCluster", "demo", 60)
    assert errors == []
    seen = world.view()
    assert {b for part in seen.topics["orders"].partitions.values() for b in part.replicas} <= {0, 1, 2}
    assert all(len(part.replicas) == 3 for part in seen.topics["orders"].partitions.values())
    world.until("broker 3 is unregistered", lambda: 3 not in world.view().brokers)
    retained = (world.get("KafkaCluster", "demo") or {})["status"]["retainedClaims"]
    assert retained == ["a-demo-3", "b-demo-3"]


@pytest.mark.spec("OPR-43")
@pytest.mark.spec("OPR-44")
def test_a_changed_configuration_and_another_volume_roll_while_clients_go_on(world: World) -> None:
    before = {name: pod["metadata"]["uid"] for name, pod in pods(world).items()}
    with producing(world) as errors:
        apply(world, config={"num.partitions": 2}, volumes=[*VOLUMES, {"name": "c", "size": "4Gi"}])

        def rolled() -> bool:
            after = {name: pod["metadata"]["uid"] for name, pod in pods(world).items()}
            return len(after) == 3 and not set(after.values()) & set(before.values())

        world.until("all pods are new", rolled, 150)
        world.until_ready("KafkaCluster", "demo", 60)
    assert errors == []
    assert all(part.leader >= 0 for part in world.view().topics["orders"].partitions.values())
    assert len(world.view().directories) == 9


@pytest.mark.spec("OPR-43")
def test_a_volume_is_drained_and_removed(world: World) -> None:
    spec = {"config": {"num.partitions": 2}}
    more = [*VOLUMES, {"name": "c", "size": "4Gi"}]
    less = [more[0], more[2]]
    # So slow that it can be cancelled on the way; what is in the volume stays there then, and the volume with it.
    world.fill(["orders"], partitions=6, records=3)
    apply(world, volumes=less, rebalance={"throttle": {"intraBroker": "10k"}}, **spec)
    drain = world.until(
        "a drain", lambda: [r for r in world.list("Reassignment") if "drain-volumes" in r["metadata"]["name"]]
    )
    name = drain[0]["metadata"]["name"]
    world.until_phase(name, "Running")
    world.patch("Reassignment", name, {"spec": {"cancel": True}})
    assert name in world.until_reason("KafkaCluster", "demo", "VolumeHeld")
    apply(world, volumes=less, **spec)
    world.delete("Reassignment", name)

    def given_up() -> bool:
        sets = world.objects("apps/v1", "statefulsets", "ballast.dev/role=broker")
        return bool(sets) and "b" not in [c["metadata"]["name"] for c in sets[0]["spec"]["volumeClaimTemplates"]]

    world.until("the StatefulSet has no volume b any more", given_up, 100)
    open_again: set[str] = set()

    def unmounted() -> bool:
        found = world.view().directories
        open_again.update(d.path for d, seen in found.items() if "/b-demo-" in d.path and not seen.cordoned)
        mounted = [
            v["name"] for pod in pods(world).values() for v in pod["spec"]["volumes"] if "persistentVolumeClaim" in v
        ]
        return sorted(set(mounted)) == ["a", "c"] and len(mounted) == 6

    world.until("volume b is not mounted any more", unmounted, 200)
    assert not open_again, "what is put there before the restart is lost with it"
    world.until_ready("KafkaCluster", "demo", 60)
    assert len(world.view().directories) == 6
    until_in_sync(world)
    retained = (world.get("KafkaCluster", "demo") or {})["status"]["retainedClaims"]
    assert {"b-demo-0", "b-demo-1", "b-demo-2"} <= set(retained)


@pytest.mark.spec("OPR-43")
def test_the_volume_with_the_metadata_log_is_not_removed(world: World) -> None:
    spec = {"config": {"num.partitions": 2}}
    apply(world, volumes=[{"name": "c", "size": "4Gi"}], **spec)
    assert "Volume a" in world.until_reason("KafkaCluster", "demo", "VolumeNeeded")
    apply(world, volumes=[{"name": "a", "size": "4Gi"}, {"name": "c", "size": "4Gi"}], **spec)
    world.until_ready("KafkaCluster", "demo")


@pytest.mark.spec("OPR-45")
def test_a_deleted_pod_heals_without_a_person(world: World) -> None:
    old = pods(world)["demo-1"]["metadata"]["uid"]
    world.api("delete", path_of("v1", "pods", "default", "demo-1"))

    def healed() -> bool:
        pod = pods(world).get("demo-1")
        return pod is not None and pod["metadata"]["uid"] != old

    world.until("another pod", healed, 60)
    world.until_ready("KafkaCluster", "demo", 60)
    until_in_sync(world)


@pytest.mark.spec("OPR-44")
def test_a_rollout_restart_restarts_one_broker_after_the_other(world: World) -> None:
    """As `kubectl rollout restart` asks for it: the StatefulSet itself restarts nothing, so nothing happened."""
    before = {name: pod["metadata"]["uid"] for name, pod in pods(world).items()}
    asked = {"kubectl.kubernetes.io/restartedAt": "2026-01-02T03:04:05Z"}
    most: list[int] = []
    with producing(world) as errors:
        patch = {"spec": {"template": {"metadata": {"annotations": asked}}}}
        world.api("merge", path_of("apps/v1", "statefulsets", "default", "demo"), patch)

        def restarted() -> bool:
            found = pods(world)
            most.append(sum(name not in found or "deletionTimestamp" in found[name]["metadata"] for name in before))
            return found.keys() == before.keys() and all(found[n]["metadata"]["uid"] != before[n] for n in before)

        world.until("all are restarted", restarted, 150)
        world.until_ready("KafkaCluster", "demo", 60)
        until_in_sync(world)
    assert errors == []
    assert max(most) <= 1
    after = {name: pod["metadata"]["uid"] for name, pod in pods(world).items()}
    world.patch("KafkaCluster", "demo", {"metadata": {"annotations": {"looked": "again"}}})
    world.until_ready("KafkaCluster", "demo", 60)
    assert {name: pod["metadata"]["uid"] for name, pod in pods(world).items()} == after


@pytest.mark.spec("OPR-43")
def test_volumes_grow_but_do_not_shrink(world: World) -> None:
    spec = {"config": {"num.partitions": 2}}
    apply(world, volumes=[{"name": "a", "size": "5Gi"}, {"name": "c", "size": "4Gi"}], **spec)

    def grown() -> bool:
        claims = world.objects("v1", "persistentvolumeclaims", "ballast.dev/cluster=demo")
        sizes = {c["metadata"]["name"]: c["spec"]["resources"]["requests"]["storage"] for c in claims}
        return all(sizes[f"a-demo-{n}"] == "5Gi" for n in range(3))

    world.until("claims have grown", grown, 30)
    from tests.operator.world import ApiError

    with pytest.raises(ApiError, match="cannot shrink"):
        apply(world, volumes=[{"name": "a", "size": "4Gi"}, {"name": "c", "size": "4Gi"}], **spec)
    world.until_ready("KafkaCluster", "demo")


@pytest.mark.spec("OPR-46")
def test_a_directory_that_fails_is_shown_and_its_replicas_are_made_elsewhere(world: World) -> None:
    spec = {"config": {"num.partitions": 2}, "volumes": [{"name": "a", "size": "5Gi"}, {"name": "c", "size": "4Gi"}]}
    apply(world, storage={"onDirectoryFailure": "Drain"}, **spec)
    world.movable_topic("precious", [[1, 0]] * 4, records=2)
    held = {
        log.path or ""
        for replica, log in world.view().logs.items()
        if (replica.topic, replica.broker) == ("precious", 1)
    }
    lost = next(path for path in sorted(held) if "/c-demo-1/" in path or "/c/" in path)
    Path(lost).rename(f"{lost}.lost")
    Path(lost).write_text("a disk that is gone")
    # Nothing is asked of a disk at rest; whoever makes a log finds out.
    world.topic("finder", replicaAssignment=[[1]] * 6)

    def failed() -> bool:
        rows = (world.get("KafkaCluster", "demo") or {})["status"]["brokers"][1]["directories"]
        return any(row["path"] == lost and not row["online"] for row in rows)

    world.until("the status shows it", failed, 60)
    assert lost in world.until_reason("KafkaCluster", "demo", "DirectoryFailed")
    healed = world.until("a Reassignment", lambda: named(world, "-heal-"))
    # What has a copy on every other broker has no place to go to, and is told; everything else went.
    world.until_phase(healed, "Succeeded", "Failed", seconds=90)

    def elsewhere() -> bool:
        seen = world.view()
        parts = seen.topics["precious"].partitions.items()
        return all(
            len(p.isr) == 2 and (1 not in p.replicas or ReplicaId("precious", n, 1) in seen.logs) for n, p in parts
        )

    world.until("every replica is whole again", elsewhere, 60)
    told = {event["reason"] for event in world.objects("v1", "events") if event["involvedObject"]["name"] == "demo"}
    assert "DirectoryFailed" in told
    Path(lost).unlink()
    Path(f"{lost}.lost").rename(lost)
    for name in ("precious", "finder"):
        world.delete("KafkaTopic", name)
    world.api("delete", path_of("v1", "pods", "default", "demo-1"))
    world.until("the disk is back", lambda: not failed(), 60)
    world.until_ready("KafkaCluster", "demo", 60)
    world.until("should it fail again, it is drained again", lambda: not named(world, "-heal-"))
    apply(world, **spec)
    world.until_ready("KafkaCluster", "demo", 60)


@pytest.mark.spec("OPR-45")
def test_claims_outlive_the_cluster_and_it_comes_back_with_its_data(world: World) -> None:
    cluster_id = world.view().cluster_id
    world.delete("KafkaCluster", "demo")
    world.until_gone("KafkaCluster", "demo")
    world.until("no pods", lambda: pods(world) == {}, 90)
    assert world.condition("KafkaTopic", "orders")[1] != ""
    world.until_reason("KafkaTopic", "orders", "ClusterNotFound")
    apply(world, volumes=[{"name": "a", "size": "5Gi"}, {"name": "c", "size": "4Gi"}], config={"num.partitions": 2})
    world.until_ready("KafkaCluster", "demo", 90)
    world.until("the same cluster", lambda: world.view().cluster_id == cluster_id)
    world.until_ready("KafkaTopic", "orders", 60)


@pytest.mark.spec("OPR-43")
def test_a_volume_is_exchanged_for_another_in_one_go(world: World) -> None:
    """The drain is planned once all brokers were restarted for the new volume."""
    world.fill(["orders"], partitions=6, records=3)
    volumes = [{"name": "a", "size": "5Gi"}, {"name": "d", "size": "4Gi"}]
    apply(world, volumes=volumes, config={"num.partitions": 2})

    def exchanged() -> bool:
        mounted = [
            v["name"] for pod in pods(world).values() for v in pod["spec"]["volumes"] if "persistentVolumeClaim" in v
        ]
        return sorted(set(mounted)) == ["a", "d"] and len(mounted) == 6

    world.until("d is mounted instead of the other", exchanged, 200)
    world.until_ready("KafkaCluster", "demo", 60)
    until_in_sync(world)


@pytest.mark.spec("OPR-01", "OPR-44")
def test_brokers_come_to_another_first_listener_only_by_way_of_both(world: World) -> None:
    """The one that is restarted first would find the others no more, nor be found: it was fenced, and all waited."""
    rest = {"volumes": [{"name": "a", "size": "5Gi"}, {"name": "d", "size": "4Gi"}], "config": {"num.partitions": 2}}
    old, new = {"name": "PLAINTEXT", "port": 9092}, {"name": "CLIENTS", "port": 9094}
    for refused in ([{**old, "name": "CLIENTS"}], [new, old]):
        with pytest.raises(ApiError, match="find each other by the first"):
            apply(world, listeners=refused, **rest)
    with producing(world) as errors:
        for step in ([old, new], [new, old]):
            apply(world, listeners=step, **rest)
            world.until_ready("KafkaCluster", "demo", 90)
        until_in_sync(world)
    assert errors == []
    with pytest.raises(ApiError, match="find each other by the first"):
        apply(world, listeners=[old, {**new, "authentication": {"type": "SCRAM-SHA-512"}}], **rest)
    apply(world, listeners=[new], **rest)
    world.bootstrap = world.until_ready("KafkaCluster", "demo", 90)["status"]["bootstrapServers"]
    until_in_sync(world)


@pytest.mark.spec("OPR-03")
def test_what_happened_to_the_cluster_was_told_in_events(world: World) -> None:
    told = {event["reason"] for event in world.objects("v1", "events") if event["involvedObject"]["name"] == "demo"}
    assert {"Rolling", "RollWaits", "ScalingDown", "ScaleDownHeld", "DrainingVolume", "VolumeHeld", "Ready"} <= told
