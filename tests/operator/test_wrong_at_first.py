"""A cluster that a person got wrong, or whose objects somebody took away: it heals when that is corrected."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaConsumer
from tests.operator.faults import behind_faults
from tests.operator.world import ApiError, World

from ballast_operator.apply.kubernetes import path_of

pytestmark = pytest.mark.timeout(300)
A, B = ({"name": name, "size": "4Gi"} for name in ("a", "b"))
SET = path_of("apps/v1", "statefulsets", "default", "demo")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world")) as found:
        yield found


def apply(world: World, **spec: Any) -> None:
    whole = {"brokers": 1, "metadataVolume": {"size": "1Gi"}, "volumes": [A, B], "resyncSeconds": 1, **spec}
    world.apply("KafkaCluster", "demo", whole)


def claims(world: World) -> dict[str, str]:
    found = world.objects("v1", "persistentvolumeclaims", "ballast.dev/cluster=demo")
    return {one["metadata"]["name"]: one["spec"]["resources"]["requests"]["storage"] for one in found}


def pod(world: World) -> dict[str, Any]:
    found = world.objects("v1", "pods", "ballast.dev/cluster=demo")
    return found[0] if found else {"metadata": {"uid": ""}, "spec": {"volumes": []}}


def mounted(world: World) -> set[str]:
    return {volume["name"] for volume in pod(world)["spec"]["volumes"] if "persistentVolumeClaim" in volume}


@pytest.mark.spec("OPR-01")
@pytest.mark.parametrize(
    ("name", "mode"), [("a.b", "Combined"), ("1a", "Combined"), ("x" * 53, "Combined"), ("y" * 42, "Dedicated")]
)
def test_a_name_that_pods_and_services_cannot_have_is_refused(world: World, name: str, mode: str) -> None:
    """Kubernetes tells it where nobody looks: in an Event of the StatefulSet, which then never makes a pod."""
    spec = {"brokers": 3, "volumes": [A], "controllers": {"mode": mode, "count": 3}}
    with pytest.raises(ApiError, match="are named after a cluster"):
        world.apply("KafkaCluster", name, spec)
    world.apply("KafkaCluster", name, {"external": {"bootstrapServers": "127.0.0.1:1"}})
    world.delete("KafkaCluster", name)


@pytest.mark.spec("OPR-01")
def test_a_name_that_no_label_can_have_is_refused(world: World) -> None:
    """The rebalance job and each Reassignment of the cluster's would be refused for it, one after the other."""
    spec = {"external": {"bootstrapServers": "127.0.0.1:1"}}
    with pytest.raises(ApiError, match="at most 63 characters"):
        world.apply("KafkaCluster", f"{'x' * 62}.y", spec)
    world.apply("KafkaCluster", f"{'x' * 61}.y", spec)
    world.delete("KafkaCluster", f"{'x' * 61}.y")


@pytest.mark.spec("OPR-01", "OPR-40")
def test_a_listener_whose_services_would_have_names_that_are_too_long_is_refused(world: World) -> None:
    """Found out later, it holds up whatever else is changed: configuration and StatefulSet come after the Services."""

    def with_listener(name: str, brokers: int = 10, **more: Any) -> dict[str, Any]:
        listener = {"name": name, "port": 9094, **more}
        return {"brokers": brokers, "volumes": [A], "listeners": [{"name": "INSIDE", "port": 9092}, listener]}

    cluster = "x" * 40
    ports: dict[str, Any] = {"nodePorts": {"host": "node.example", "first": 32000}}
    for refused in (with_listener("Y" * 21, **ports), with_listener("Y" * 20, brokers=11, **ports)):
        with pytest.raises(ApiError, match="give the listener a shorter name"):
            world.apply("KafkaCluster", cluster, refused)
    for taken in (with_listener("Y" * 20, **ports), with_listener("Y" * 21)):
        world.apply("KafkaCluster", cluster, taken, annotations={"ballast.dev/paused": "true"})
    world.delete("KafkaCluster", cluster)


@pytest.mark.spec("OPR-01", "OPR-40")
@pytest.mark.parametrize(
    "more", [{"nodePorts": {"host": "node.example", "first": 32000}}, {"tls": {"secretName": "s"}}]
)
def test_a_listener_that_no_service_or_volume_can_be_named_after_is_refused(world: World, more: dict[str, Any]) -> None:
    def with_listener(**listener: Any) -> dict[str, Any]:
        return {"volumes": [A], "listeners": [{"name": "INSIDE", "port": 9092}, {"port": 9094, **listener}]}

    with pytest.raises(ApiError, match="cannot end with an underscore"):
        world.apply("KafkaCluster", "under", with_listener(name="OUTSIDE_", **more))
    for taken in (with_listener(name="OUTSIDE_"), with_listener(name="OUT_SIDE", **more)):
        world.apply("KafkaCluster", "under", taken, annotations={"ballast.dev/paused": "true"})
    world.delete("KafkaCluster", "under")


@pytest.mark.spec("OPR-01")
def test_a_directory_of_no_size_is_refused(world: World) -> None:
    """The job, which would be given it, could never begin."""
    for capacity in ("0", "0.0Gi", "1.5Gi"):
        spec = {"volumes": [A], "rebalance": {"job": {"directoryCapacity": capacity}}}
        if capacity == "1.5Gi":
            world.apply("KafkaCluster", "sizeless", spec, annotations={"ballast.dev/paused": "true"})
            continue
        with pytest.raises(ApiError, match="directoryCapacity"):
            world.apply("KafkaCluster", "sizeless", spec)
    world.delete("KafkaCluster", "sizeless")


@pytest.mark.spec("OPR-01")
def test_a_secret_for_a_prometheus_that_is_not_named_is_refused(world: World) -> None:
    job: dict[str, Any] = {"prometheusSecret": "reader", "schedule": "0 0 1 1 *"}
    with pytest.raises(ApiError, match="The Secret is for a Prometheus; name it in prometheus"):
        world.apply("KafkaCluster", "asked", {"volumes": [A], "rebalance": {"job": job}})
    for name, message in (("Reader", "prometheusSecret"), ("", "prometheusSecret")):
        wrong = {"prometheus": "http://p:9090", "prometheusSecret": name}
        with pytest.raises(ApiError, match=message):
            world.apply("KafkaCluster", "asked", {"volumes": [A], "rebalance": {"job": wrong}})
    right = {"volumes": [A], "rebalance": {"job": job | {"prometheus": "http://p:9090"}}}
    world.apply("KafkaCluster", "asked", right, annotations={"ballast.dev/paused": "true"})
    found = world.get("KafkaCluster", "asked")
    assert found is not None
    assert found["spec"]["rebalance"]["job"]["prometheusSecret"] == "reader"
    world.delete("KafkaCluster", "asked")


@pytest.mark.spec("OPR-02", "OPR-40")
def test_an_affinity_of_the_wrong_shape_is_told_where_racks_add_to_it(world: World) -> None:
    """Once it is corrected it is looked at: at the change, not at the next resync."""
    more = {"volumes": [A], "brokers": 1, "resyncSeconds": 3600}
    wrong = {"podTemplate": {"spec": {"affinity": []}}, "rack": {"topologyKey": "zone"}}
    world.apply("KafkaCluster", "shape", {**more, **wrong})
    assert "spec.podTemplate.spec.affinity" in world.until_reason("KafkaCluster", "shape", "InvalidSpec")
    world.apply("KafkaCluster", "shape", more)
    world.until_ready("KafkaCluster", "shape", 60)
    world.delete("KafkaCluster", "shape")
    world.until_gone("KafkaCluster", "shape")


@pytest.mark.spec("OPR-44", "OPR-45")
def test_a_configuration_with_which_no_broker_starts_is_corrected(world: World) -> None:
    """Kafka cannot be asked whether a restart does harm, and a pod is not made anew by itself."""
    apply(world, config={"num.partitions": "many"})
    said = "Invalid value many for configuration num.partitions"
    world.until("its words are told", lambda: said in world.condition("KafkaCluster", "demo")[2], 60)
    assert "CrashLoopBackOff" in world.condition("KafkaCluster", "demo")[2]
    apply(world)
    world.bootstrap = world.until_ready("KafkaCluster", "demo", 60)["status"]["bootstrapServers"]


@pytest.mark.spec("OPR-40", "OPR-43")
def test_the_volume_of_the_metadata_log_grows(world: World) -> None:
    apply(world, metadataVolume={"size": "2Gi"})
    world.until("the claim has grown", lambda: claims(world)["metadata-demo-0"] == "2Gi", 30)
    world.until_ready("KafkaCluster", "demo", 60)


@pytest.mark.spec("OPR-44")
def test_nothing_is_restarted_for_what_kubernetes_refuses(world: World) -> None:
    """A pod that is deleted while its StatefulSet could not be changed comes back as it was, again and again."""
    before, spec = pod(world)["metadata"]["uid"], {"metadataVolume": {"size": "2Gi"}, "config": {"num.partitions": 2}}
    with behind_faults(world) as api:
        api.policy.append(f"PATCH {SET}")
        apply(world, **spec)
        world.until_reason("KafkaCluster", "demo", "KubernetesRefused")
        deadline = time.monotonic() + 4
        world.until("looks pass", lambda: time.monotonic() > deadline)
        assert pod(world)["metadata"]["uid"] == before
    world.until("the change has arrived", lambda: pod(world)["metadata"]["uid"] not in ("", before), 60)
    world.until_ready("KafkaCluster", "demo", 60)


@pytest.mark.spec("OPR-02", "OPR-40", "OPR-44")
def test_a_node_port_that_is_taken_keeps_nothing_else_waiting(world: World) -> None:
    """Topics were served, but nothing of the cluster was changed any more before somebody gave the port free."""
    theirs = path_of("v1", "services", "default", "theirs")
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "theirs", "namespace": "default"},
    }
    body["spec"] = {"type": "NodePort", "ports": [{"name": "x", "port": 9094}]}
    world.api("create", path_of("v1", "services", "default"), body)
    first = world.until("they have it", lambda: world.api("get", theirs)["spec"]["ports"][0].get("nodePort"))
    before = pod(world)["metadata"]["uid"]
    outside = {"name": "OUTSIDE", "port": 9094, "nodePorts": {"host": "127.0.0.1", "first": first}}
    spec = {"metadataVolume": {"size": "2Gi"}, "config": {"num.partitions": 3}}
    apply(world, **spec, listeners=[{"name": "PLAINTEXT", "port": 9092}, outside])
    message = world.until_reason("KafkaCluster", "demo", "KubernetesRefused")
    assert "Service demo-0-outside" in message
    assert "provided port is already allocated" in message
    world.until("the change has arrived", lambda: pod(world)["metadata"]["uid"] not in ("", before), 60)
    world.topic("counted")
    world.until_ready("KafkaTopic", "counted")
    assert len(world.view().topics["counted"].partitions) == 3
    world.until_reason("KafkaCluster", "demo", "KubernetesRefused")
    world.api("delete", theirs)
    world.until_ready("KafkaCluster", "demo", 60)
    with closing(KafkaConsumer(bootstrap_servers=f"127.0.0.1:{first}")) as reader:
        assert reader.topics() >= {"counted"}
    apply(world, **{**spec, "config": {"num.partitions": 2}})
    world.until_ready("KafkaCluster", "demo", 60)


@pytest.mark.spec("OPR-08", "OPR-41")
def test_a_stateful_set_of_somebody_else_is_left_alone(world: World) -> None:
    labels = {"app": "theirs"}
    theirs = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "theirs", "namespace": "default"},
        "spec": {
            "replicas": 0,
            "serviceName": "theirs",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "it", "image": "it"}]}},
        },
    }
    made = world.api("create", path_of("apps/v1", "statefulsets", "default"), theirs)
    world.apply("KafkaCluster", "theirs", {"brokers": 1, "volumes": [A]})
    assert "StatefulSet theirs exists already" in world.until_reason("KafkaCluster", "theirs", "KubernetesRefused")
    found = world.api("find", path_of("apps/v1", "statefulsets", "default", "theirs"))
    assert (found["metadata"]["uid"], found["spec"]) == (made["metadata"]["uid"], made["spec"])
    world.delete("KafkaCluster", "theirs")
    world.until_gone("KafkaCluster", "theirs")


@pytest.mark.spec("OPR-08", "OPR-43")
def test_a_volume_that_is_not_empty_outlives_its_stateful_set_and_is_drained_after_all(world: World) -> None:
    spec: dict[str, Any] = {"metadataVolume": {"size": "2Gi"}, "config": {"num.partitions": 2}}
    world.topic("orders", partitions=6, replicas=1)
    world.until_ready("KafkaTopic", "orders")
    world.fill(["orders"], partitions=6, records=3)
    apply(world, volumes=[A], rebalance={"throttle": {"intraBroker": "10k"}}, **spec)
    names = world.until(
        "a drain", lambda: [r["metadata"]["name"] for r in world.list("Reassignment") if "-drain-" in str(r)]
    )
    world.until_phase(names[0], "Running")
    before = pod(world)["metadata"]["uid"]
    world.api("delete", SET)
    world.until("another pod", lambda: pod(world)["metadata"]["uid"] not in ("", before), 60)
    assert mounted(world) == {"metadata", "a", "b"}
    # Whether unused claims are deleted is another question than whether this one may be.
    copy = {
        "metadata": {
            "name": "a-demo-0-copy-1",
            "labels": {"ballast.dev/cluster": "demo", "ballast.dev/role": "broker"},
        },
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    world.api("create", path_of("v1", "persistentvolumeclaims", "default"), copy)
    apply(world, volumes=[A], storage={"deleteClaim": True}, **spec)
    world.until("it is still being drained", lambda: world.condition("KafkaCluster", "demo")[1] == "DrainingVolume", 60)
    assert "b-demo-0" in claims(world)
    world.patch("Reassignment", names[0], {"spec": {"throttle": None}})
    world.until("volume b is not mounted any more", lambda: mounted(world) == {"metadata", "a"}, 90)
    world.until_ready("KafkaCluster", "demo", 60)
    assert set(claims(world)) == {"metadata-demo-0", "a-demo-0", "a-demo-0-copy-1"}
    world.until_ready("KafkaTopic", "orders", 60)
