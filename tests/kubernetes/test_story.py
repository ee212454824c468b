"""The life of a cluster on Kubernetes, from its installation to the day when somebody removes it by mistake."""

from __future__ import annotations

import json
import time
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from e2e.clients import QUIET
from e2e.kubernetes.faults import replace_pod
from e2e.kubernetes.load import load
from e2e.kubernetes.story import (
    IN_POD,
    consume,
    ensure_cluster,
    ensure_operator,
    inside,
    produce,
    until_in_sync,
)
from e2e.kubernetes.world import CLUSTER, NAMESPACE, World, as_json, cluster, reassignment, topic

from ballast_operator.definitions import DOCUMENT
from ballast_operator.model.kafka import ReplicaId
from ballast_operator.plan.dropped import dropped_fields

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(900),
    # Clients whose connections are cut leave them to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <(socket|ssl):pytest.PytestUnraisableExceptionWarning"),
]
READY_GOAL_SECONDS = 30.0


@pytest.fixture
def orders(installed: World) -> None:
    """The topic as it is after its expansion, also where a scenario is run by itself."""
    installed.apply_example("topic-expanded")
    installed.until_ready("kafkatopic", "orders")


@pytest.mark.spec("OPR-07")
def test_install(world: World) -> None:
    began = time.monotonic()
    ensure_operator(world)
    world.say(f"the operator is installed after {time.monotonic() - began:.1f} s, in a namespace that is restricted")
    assert (world.get("deployment", "ballast-operator") or {})["status"]["readyReplicas"] == 2
    if world.provider.name != "embedded":  # which has no impersonation
        account = f"--as=system:serviceaccount:{NAMESPACE}:ballast-operator"
        served = partial(world.kubectl, "get", "--raw", DOCUMENT, account)
        world.until("it finds definitions of its version", lambda: dropped_fields(json.loads(served())) == ())
        assert "DefinitionsOutdated" not in world.kubectl("get", "kafkaclusters", "-o", "yaml")


@pytest.mark.spec("OPR-41")
def test_cluster_ready(world: World) -> None:
    ensure_operator(world)
    took = ensure_cluster(world)
    world.say(f"a cluster of 3 brokers with 3 volumes each is Ready after {took:.1f} s (goal {READY_GOAL_SECONDS:.0f})")
    assert sorted(world.pods()) == ["demo-0", "demo-1", "demo-2"]
    assert len(world.all("persistentvolumeclaims", f"ballast.dev/cluster={CLUSTER}")) == 9
    status = (world.get("kafkacluster", CLUSTER) or {})["status"]
    assert status["clusterId"] == world.view().cluster_id
    assert [len(broker["directories"]) for broker in status["brokers"]] == [3, 3, 3]
    assert world.get("poddisruptionbudget", CLUSTER) is not None


@pytest.mark.spec("OPR-20")
@pytest.mark.spec("OPR-02")
def test_topic(installed: World) -> None:
    installed.apply_example("topic")
    installed.kubectl("wait", "--for=condition=Ready", "kafkatopic/orders", "--timeout=170s")
    _until_partitions(installed, "orders", 6)
    installed.say("topic orders is Ready: " + installed.kubectl("get", "kafkatopic", "orders", "--no-headers").strip())


def test_produce_and_consume(installed: World) -> None:
    said = installed.run_in_pod("produces", IN_POD, "produce", inside(installed), "orders", "100")
    installed.say(f"a pod produced {said.strip()} records")
    produce(installed, "orders", [b"from outside %d" % number for number in range(100)])
    installed.say("100 more came from outside, by node ports")
    values = consume(installed, "orders", 200)
    assert set(values) == {b"from a pod %d" % n for n in range(100)} | {b"from outside %d" % n for n in range(100)}
    said = installed.run_in_pod("consumes", IN_POD, "consume", inside(installed), "orders", "200")
    assert said.strip() == "200"
    installed.say("a pod and a client outside read all 200")


def test_the_brokers_of_an_image_are_compiled(installed: World) -> None:
    if not installed.provider.containers:
        pytest.skip("its pods are processes that run the sources")
    script = (
        "import ballast_broker.storage.log as log, ballast_wire.records as wire; print(log.__file__, wire.__file__)"
    )
    said = installed.run_in_pod("looks", script).split()
    assert [path.rpartition(".")[2] for path in said] == ["so", "so"], said


@pytest.mark.spec("OPR-21")
def test_expansion_and_configuration(installed: World) -> None:
    installed.apply_example("topic-expanded")
    installed.until_ready("kafkatopic", "orders")
    _until_partitions(installed, "orders", 12)
    installed.apply_example("topic-config")
    installed.until_ready("kafkatopic", "orders")
    installed.say("orders has 12 partitions and is compacted")
    fewer = installed.try_kubectl("patch", "kafkatopic", "orders", "--type=merge", "-p", '{"spec":{"partitions":6}}')
    assert fewer.returncode != 0
    installed.say(f"fewer partitions are refused: {fewer.stderr.strip()[-120:]}")
    # Compaction would remove what later scenarios count.
    installed.apply_example("topic-expanded")
    installed.until_ready("kafkatopic", "orders")


@pytest.mark.spec("OPR-30")
@pytest.mark.spec("DIR-13")
@pytest.mark.usefixtures("orders")
def test_move_between_volumes(installed: World) -> None:
    before = installed.view().logs[ReplicaId("orders", 0, 0)].path
    target = next(one for one in _paths(installed, 0) if one != before)
    row = {"topic": "orders", "partition": 0, "replicas": [0, 1, 2], "logDirs": [target, "any", "any"]}
    with load(installed.bootstrap, "orders") as account:
        installed.apply(reassignment("move-orders-0", partitions=[row], throttle={"intraBroker": "20Mi"}))
        installed.until_phase("move-orders-0", "Succeeded")
    assert account.problems == []
    assert installed.view().logs[ReplicaId("orders", 0, 0)].path == target
    installed.say(f"orders-0 moved from {before} to {target} on broker 0; meanwhile {account}")


@pytest.mark.spec("OPR-30")
@pytest.mark.usefixtures("orders")
def test_drain_a_volume(installed: World) -> None:
    installed.apply_example("drain-volume")
    installed.until_phase("drain-disk-2", "Succeeded")
    logs = installed.view().logs.items()
    left = [replica for replica, log in logs if replica.broker == 1 and "disk-2" in (log.path or "")]
    assert left == []
    installed.say("disk-2 of broker 1 is empty")
    installed.kubectl("delete", "reassignment", "drain-disk-2", "move-orders-0", "--ignore-not-found")


@pytest.mark.spec("OPR-32")
@pytest.mark.spec("OPR-42")
@pytest.mark.usefixtures("orders")
def test_scale_up_drain_a_broker_and_scale_down(installed: World) -> None:
    with load(installed.bootstrap, "orders") as account:
        installed.kubectl("scale", "kafkacluster", CLUSTER, "--replicas=4")
        installed.until("broker 3 is online", lambda: 3 in installed.view().brokers)
        proposal = installed.until("a proposal for broker 3", lambda: _proposed(installed, [3]))
        installed.say(f"{proposal} is proposed")
        installed.apply_example("drain-broker")
        waiting = installed.until_phase("drain-broker-2", "AwaitingApproval")
        approved = f'{{"spec":{{"approvedPlan":"{waiting["status"]["plan"]["hash"]}"}}}}'
        installed.kubectl("patch", "reassignment", "drain-broker-2", "--type=merge", "-p", approved)
        installed.until_phase("drain-broker-2", "Succeeded", seconds=240)
        installed.until("all of orders is elsewhere", lambda: _brokers_of(installed, "orders") == {0, 1, 3})
        installed.say("broker 2 holds nothing of orders any more; broker 3 has it")
        installed.kubectl("delete", "reassignment", "drain-broker-2", proposal)
        installed.kubectl("scale", "kafkacluster", CLUSTER, "--replicas=3")
        installed.until("the pod of broker 3 is gone", lambda: "demo-3" not in installed.pods(), 240)
        installed.until_ready("kafkacluster", CLUSTER)
    assert account.problems == []
    installed.until("all of orders is on the three", lambda: _brokers_of(installed, "orders") == {0, 1, 2})
    installed.say(f"three brokers again; meanwhile {account}")


@pytest.mark.spec("OPR-43")
@pytest.mark.usefixtures("orders")
def test_a_volume_more_and_one_less(installed: World) -> None:
    volumes = [{"name": f"disk-{index}", "size": "1Gi"} for index in range(4)]
    with load(installed.bootstrap, "orders") as account:
        installed.apply(cluster(installed, volumes=volumes))
        installed.until_ready("kafkacluster", CLUSTER, 300)
        installed.until("12 directories", lambda: _volumes(installed) == [4, 4, 4])
        installed.say("every broker has a fourth volume")
        installed.apply(cluster(installed))
        installed.until_ready("kafkacluster", CLUSTER, 300)
        installed.until("9 directories", lambda: _volumes(installed) == [3, 3, 3])
    assert account.problems == []
    retained = (installed.get("kafkacluster", CLUSTER) or {})["status"]["retainedClaims"]
    assert {f"disk-3-demo-{broker}" for broker in range(3)} <= set(retained)
    installed.say(f"and it is gone again, emptied before; meanwhile {account}")


@pytest.mark.spec("OPR-44")
@pytest.mark.usefixtures("orders")
def test_rolling_restart_under_load(installed: World) -> None:
    until_in_sync(installed)
    before = {name: pod["metadata"]["uid"] for name, pod in installed.pods().items()}
    with load(installed.bootstrap, "orders") as account:
        installed.apply(cluster(installed, config={"num.network.threads": 4}))
        installed.until(
            "every pod is another one",
            lambda: not {pod["metadata"]["uid"] for pod in installed.pods().values()} & set(before.values()),
            300,
        )
        installed.until_ready("kafkacluster", CLUSTER, 300)
        until_in_sync(installed)
    assert account.problems == []
    assert account.acknowledged == account.sent
    installed.say(f"all brokers were restarted one after the other; meanwhile {account}")


@pytest.mark.spec("OPR-45")
@pytest.mark.usefixtures("orders")
def test_a_deleted_pod_comes_back(installed: World) -> None:
    until_in_sync(installed)
    with load(installed.bootstrap, "orders") as account:
        replace_pod(installed, "demo-1", "--wait=false")
        installed.until_ready("kafkacluster", CLUSTER)
        until_in_sync(installed)
    assert account.problems == []
    installed.say(f"demo-1 was deleted and came back by itself; meanwhile {account}")


@pytest.mark.spec("OPR-41")
@pytest.mark.spec("OPR-45")
@pytest.mark.usefixtures("orders")
def test_a_broker_loses_its_disks_and_nobody_else_is_evicted_until_they_are_filled_again(installed: World) -> None:
    throttled = {"follower.replication.throttled.replicas": "*"}
    installed.apply(topic("bulk", partitions=6, replicas=3, config=throttled, deletionPolicy="Delete"))
    installed.until_ready("kafkatopic", "bulk")
    produce(installed, "bulk", [bytes(100_000)] * 300, partitions=6)
    until_in_sync(installed)
    _throttle(installed, 1, "500000")
    with load(installed.bootstrap, "orders") as account:
        installed.kubectl("delete", "pvc", *(f"disk-{index}-demo-1" for index in range(3)), "--wait=false")
        replace_pod(installed, "demo-1", "--wait=false")
        installed.until_ready("kafkacluster", CLUSTER)
        refused = _evict(installed, "demo-0")
        assert "disruption budget" in refused, refused
        installed.say(f"demo-1 is back with empty disks, and demo-0 may not go: {refused.strip()[-100:]}")
        _throttle(installed, 1, None)
        until_in_sync(installed)
        installed.until("demo-0 may go now", lambda: _evict(installed, "demo-0") == "")
        installed.until_ready("kafkacluster", CLUSTER)
        until_in_sync(installed)
    assert account.problems == []
    assert len(consume(installed, "bulk", 300)) == 300
    installed.kubectl("delete", "kafkatopic", "bulk")
    installed.until("bulk is gone", lambda: "bulk" not in installed.view().topics)
    installed.say(f"then it went; meanwhile {account}")


@pytest.mark.spec("OPR-45")
@pytest.mark.spec("OPR-08")
def test_uninstalled_by_mistake(installed: World) -> None:
    installed.apply({"apiVersion": "ballast.dev/v1alpha1", "kind": "KafkaTopic", "metadata": {"name": "kept"},
                     "spec": {"clusterRef": {"name": CLUSTER}, "partitions": 3, "replicas": 3}})  # fmt: skip
    installed.until_ready("kafkatopic", "kept")
    values = [b"kept %d" % number for number in range(300)]
    produce(installed, "kept", values)
    identity = installed.view().cluster_id
    installed.kubectl("delete", "kafkacluster", CLUSTER)
    installed.until("the brokers are gone", lambda: not installed.pods())
    installed.kubectl("delete", "deployment", "ballast-operator")
    installed.until(
        "the operator is gone", lambda: not installed.all("pods", "app.kubernetes.io/name=ballast-operator")
    )
    assert len(installed.all("persistentvolumeclaims", f"ballast.dev/cluster={CLUSTER}")) >= 9
    installed.say("cluster and operator are deleted; the volumes are kept")
    ensure_operator(installed)
    took = ensure_cluster(installed)
    assert installed.view().cluster_id == identity
    assert sorted(consume(installed, "kept", len(values))) == sorted(values)
    installed.say(f"installed again, Ready after {took:.1f} s, with every record")


def _evict(world: World, pod: str) -> str:
    """As `kubectl drain` does; the refusal, if there is one."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    done = world.try_kubectl("create", "--raw", path, "-f", "-", stdin=as_json(body))
    return "" if done.returncode == 0 else done.stderr


def _throttle(world: World, broker: int, rate: str | None) -> None:
    operation = AlterConfigOpType.DELETE if rate is None else AlterConfigOpType.SET
    entry = ConfigEntry("follower.replication.throttled.rate", rate or "", incremental_operation=operation)
    resource = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[entry])
    admin = AdminClient({**QUIET, "bootstrap.servers": world.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(60)


def _until_partitions(world: World, topic: str, count: int) -> None:
    """The broker that is asked hears of it a moment after the one that the operator has asked."""

    def there() -> bool:
        found = world.view().topics.get(topic)
        return found is not None and len(found.partitions) == count

    world.until(f"{topic} has {count} partitions", there)


def _paths(world: World, broker: int) -> list[str]:
    return sorted(one.path for one in world.view().directories if one.broker == broker)


def _volumes(world: World) -> list[int]:
    """How many log directories each broker tells."""
    return [len(_paths(world, broker)) for broker in range(3)]


def _proposed(world: World, brokers: list[int]) -> str:
    found = [one for one in world.all("reassignments") if one["spec"].get("addBrokers") == brokers]
    return found[0]["metadata"]["name"] if found else ""


def _brokers_of(world: World, topic: str) -> set[int]:
    return {broker for part in world.view().topics[topic].partitions.values() for broker in part.replicas}
