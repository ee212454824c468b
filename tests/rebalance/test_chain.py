"""From the brokers through the job and the Kubernetes API to level disks; and the store against the embedded API."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.certificates import Authority
from tests.rebalance.test_measured import measured

from ballast_cli import demo
from ballast_cli.up import Stack
from ballast_local.cluster import LocalCluster
from ballast_planner import Plan, PlanOptions, plan_balance, plan_hash
from ballast_planner.resource import rows_from_resource
from ballast_rebalance import kubernetes_store
from ballast_rebalance.job import JobOptions, planning_for
from ballast_rebalance.kubernetes_store import KubernetesStore
from ballast_rebalance.measured import Refusal
from ballast_rebalance.proposal import ProposalOptions, build, submit

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "default"


def proposed(band: float = 0.10) -> tuple[Plan, list[dict[str, Any]]]:
    found, planning = measured(), PlanOptions(band=band)
    plan = plan_balance(found.load(), planning)
    return plan, build(plan, found, ProposalOptions("demo", NAMESPACE, intra_broker_throttle="50Mi"), planning)


async def opened(local: LocalCluster, data: Path) -> KubernetesStore:
    """A store for an embedded API that has our definitions; the job's own client makes the rest."""
    kubeconfig = await local.start(data, 0)
    store = await asyncio.to_thread(KubernetesStore, NAMESPACE, str(kubeconfig))
    await asyncio.to_thread(define, store)
    await served(store)
    return store


def define(store: KubernetesStore) -> None:
    from kubernetes import client

    for plural in ("kafkatopics", "reassignments"):
        body = yaml.safe_load((ROOT / "crds" / f"{plural}.yaml").read_text(encoding="utf-8"))
        client.ApiextensionsV1Api(store._client).create_custom_resource_definition(body)


@pytest.mark.spec("REB-08")
def test_an_api_that_takes_connections_and_says_nothing_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_store, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = KubernetesStore(NAMESPACE, kubeconfig_of(tmp_path, {"server": address(silent)}))
        try:
            with pytest.raises(Refusal, match=r"Reassignments cannot be listed: .*timed out") as caught:
                store.list_reassignments()
            assert caught.value.reason == "KubernetesUnavailable"
            assert "timed out" in str(store.tell("demo", {"reason": "Balanced"}))
        finally:
            store.close()


@pytest.mark.parametrize("named", [False, True])
def test_an_api_on_this_machine_is_asked_by_way_of_no_proxy_but_one_that_the_kubeconfig_names(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a proxy for the world outside, the demonstration ended with that one's refusal."""
    monkeypatch.setattr(kubernetes_store, "ANSWER_SECONDS", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as api,
        socket.create_server(("127.0.0.1", 0)) as outside,
        socket.create_server(("127.0.0.1", 0)) as own,
    ):
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, address(outside))
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        cluster = {"server": address(api)} | ({"proxy-url": address(own)} if named else {})
        store = KubernetesStore(NAMESPACE, kubeconfig_of(tmp_path, cluster))
        try:
            with pytest.raises(Refusal, match="timed out"):
                store.list_reassignments()
        finally:
            store.close()
        assert select.select([api, outside, own], [], [], 0)[0] == [own if named else api]


class NoReassignments(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"items": []}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
@pytest.mark.parametrize("believed", ["tests-ca.crt", "api.crt", "others-ca.crt", None])
def test_an_api_is_believed_by_what_the_kubeconfig_holds_with_every_python(
    tmp_path: Path, believed: str | None
) -> None:
    """An authority without a key usage, which Python 3.13 refuses by itself, and the API's own certificate, which those
    before refuse; whoever says so looks at none."""
    authority, _ = Authority(tmp_path), Authority(tmp_path, "others")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("api"))
    with HTTPServer(("127.0.0.1", 0), NoReassignments) as api:
        api.socket = context.wrap_socket(api.socket, server_side=True)
        serving = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        cluster: dict[str, Any] = {"server": address(api.socket).replace("http:", "https:")}
        cluster |= (
            {"certificate-authority": str(tmp_path / believed)} if believed else {"insecure-skip-tls-verify": True}
        )
        store = KubernetesStore(NAMESPACE, kubeconfig_of(tmp_path, cluster))
        try:
            if believed == "others-ca.crt":
                with pytest.raises(Refusal, match="unable to get local issuer"):
                    store.list_reassignments()
            else:
                assert store.list_reassignments() == []
        finally:
            store.close()
            api.shutdown()
            serving.join()


def kubeconfig_of(folder: Path, cluster: dict[str, Any]) -> str:
    config = folder / "kubeconfig"
    parts = {"clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {}}]}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    config.write_text(json.dumps(parts | {"contexts": [context], "current-context": "x"}))
    return str(config)


def address(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


async def with_store(data: Path, story: Callable[[KubernetesStore], Awaitable[None]]) -> None:
    local = LocalCluster()
    try:
        store = await opened(local, data)
        try:
            await story(store)
        finally:
            store.close()
    finally:
        await local.stop()


async def served(store: KubernetesStore) -> None:
    """A definition is served a moment after it was stored."""
    deadline = asyncio.get_running_loop().time() + 30
    while True:
        try:
            await asyncio.to_thread(store.list_reassignments)
            await asyncio.to_thread(store.pinned_topics, "demo")
            return
        except Refusal:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)


@pytest.mark.spec("REB-08")
def test_the_store_keeps_one_open_proposal_in_a_real_api(tmp_path: Path) -> None:
    asyncio.run(with_store(tmp_path, _one_open_proposal))


async def _one_open_proposal(store: KubernetesStore) -> None:
    first_plan, first = proposed()
    name = await asyncio.to_thread(submit, first, store)
    (kept,) = await asyncio.to_thread(store.list_reassignments)
    assert (kept["metadata"]["name"], kept["spec"]["planHash"]) == (name, plan_hash(first_plan))
    assert kept["spec"].items() >= first[-1]["spec"].items(), "as sent, with the defaults of the definition"
    with pytest.raises(Refusal) as same:
        await asyncio.to_thread(submit, first, store)
    assert same.value.reason == "AlreadyProposed"
    _, second = proposed(band=0.05)
    newer = await asyncio.to_thread(submit, second, store)
    (left,) = await asyncio.to_thread(store.list_reassignments)
    assert left["metadata"]["name"] == newer
    assert await asyncio.to_thread(store.delete_unchanged, kept), "what is gone is gone"
    stale = {"metadata": left["metadata"] | {"resourceVersion": "1"}}
    assert not await asyncio.to_thread(store.delete_unchanged, stale)
    assert len(await asyncio.to_thread(store.list_reassignments)) == 1


@pytest.mark.spec("REB-08")
def test_a_plan_found_again_waits_until_its_ended_namesake_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's finalizer keeps a Reassignment that was carried out for a moment longer than its deletion."""
    asyncio.run(with_store(tmp_path, partial(_found_again, monkeypatch)))


async def _found_again(monkeypatch: pytest.MonkeyPatch, store: KubernetesStore) -> None:
    def patch(change: dict[str, Any], status: str = "") -> None:
        asked = getattr(store._objects, f"patch_namespaced_custom_object{status}")
        asked("ballast.dev", "v1alpha1", NAMESPACE, "reassignments", name, change)

    async def look() -> dict[str, Any]:
        (found,) = await asyncio.to_thread(store.list_reassignments)
        return found

    _, resources = proposed()
    name = await asyncio.to_thread(submit, resources, store)
    await asyncio.to_thread(patch, {"metadata": {"finalizers": ["ballast.dev/operator"]}})
    await asyncio.to_thread(patch, {"status": {"phase": "Succeeded"}}, "_status")
    ended = await look()
    with monkeypatch.context() as impatient:
        impatient.setattr("ballast_rebalance.kubernetes_store.GONE_SECONDS", 0.0)
        with pytest.raises(Refusal) as kept:
            await asyncio.to_thread(submit, resources, store)
    assert (kept.value.reason, str(kept.value)) == ("ReassignmentInProgress", f"{name} is still being deleted")
    again = asyncio.create_task(asyncio.to_thread(submit, resources, store))
    await asyncio.wait([again], timeout=0.5)
    assert not again.done()
    await asyncio.to_thread(patch, {"metadata": {"finalizers": []}})
    assert await again == name
    assert (await look())["metadata"]["uid"] != ended["metadata"]["uid"]


@pytest.mark.spec("REB-08")
def test_a_look_that_was_cut_off_is_no_obstacle_and_an_api_that_is_away_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ballast_planner.resource.MAX_ROWS", 1)
    asyncio.run(_away(tmp_path))


async def _away(data: Path) -> None:
    local = LocalCluster()
    try:
        store = await opened(local, data)
        _, resources = proposed()
        await asyncio.to_thread(store.create_plan, resources[0])
        name = await asyncio.to_thread(submit, resources, store)
        # Another job found the same at the same time: it has seen no Reassignment yet.
        with pytest.raises(Refusal) as twice:
            await asyncio.to_thread(store.create, resources[-1])
        assert twice.value.reason == "AlreadyProposed"
        assert str(twice.value) == f"the same plan was proposed just now, as {name}"
    finally:
        await local.stop()
    with pytest.raises(Refusal) as away:
        await asyncio.to_thread(submit, resources, store)
    assert away.value.reason == "KubernetesUnavailable"
    assert "was not told" in str(await asyncio.to_thread(store.tell, "demo", {"reason": "Balanced"}))
    store.close()


@pytest.mark.spec("OPR-30")
def test_the_rows_of_a_large_plan_go_to_config_maps_of_the_reassignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ballast_planner.resource.MAX_ROWS", 1)
    monkeypatch.setattr("ballast_planner.resource.MAX_OBJECT_BYTES", 9 * 1024)
    asyncio.run(with_store(tmp_path, _config_maps))


async def _config_maps(store: KubernetesStore) -> None:
    plan, resources = proposed()
    assert len(resources) > 1
    await asyncio.to_thread(submit, resources, store)
    (kept,) = await asyncio.to_thread(store.list_reassignments)
    answer = await asyncio.to_thread(store._core.list_namespaced_config_map, NAMESPACE)
    maps = {item.metadata.name: item for item in answer.items}
    assert {item["metadata"]["name"] for item in resources[:-1]} <= maps.keys()
    for item in resources[:-1]:
        (owner,) = maps[item["metadata"]["name"]].metadata.owner_references
        assert (owner.kind, owner.uid) == ("Reassignment", kept["metadata"]["uid"])
    names = [item["metadata"]["name"] for item in resources[:-1]]
    plans = {name: await asyncio.to_thread(store.read_plan, name) for name in names}
    rows = rows_from_resource(kept, {name: plan or {} for name, plan in plans.items()})
    assert {(row.topic, row.partition, row.to, row.from_, row.wave) for row in rows} == {
        (move.topic, move.partition, move.to, move.from_, move.wave) for move in plan.moves
    }
    assert await asyncio.to_thread(store.read_plan, "absent") is None


@pytest.mark.spec("REB-08", "OPR-30")
def test_a_large_plan_found_again_does_not_take_the_rows_that_go_with_its_ended_namesake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes collects them a moment after their owner."""
    monkeypatch.setattr("ballast_planner.resource.MAX_ROWS", 1)
    asyncio.run(with_store(tmp_path, _rows_that_go))


async def _rows_that_go(store: KubernetesStore) -> None:
    _, resources = proposed()
    rows = resources[0]["metadata"]["name"]
    name = await asyncio.to_thread(submit, resources, store)

    def hold(finalizers: list[str]) -> None:
        store._core.patch_namespaced_config_map(rows, NAMESPACE, {"metadata": {"finalizers": finalizers}})

    def end() -> None:
        status = {"status": {"phase": "Stale"}}
        asked = store._objects.patch_namespaced_custom_object_status
        asked("ballast.dev", "v1alpha1", NAMESPACE, "reassignments", name, status)

    await asyncio.to_thread(hold, ["ballast.dev/slow"])
    await asyncio.to_thread(end)
    again = asyncio.create_task(asyncio.to_thread(submit, resources, store))
    await asyncio.wait([again], timeout=1)
    kept = await asyncio.to_thread(store.list_reassignments)
    await asyncio.to_thread(store._core.patch_namespaced_config_map, rows, NAMESPACE, [
        {"op": "remove", "path": "/metadata/finalizers"}
    ])  # fmt: skip
    assert (await again, kept) == (name, [])
    assert await asyncio.to_thread(store.read_plan, rows)


@pytest.mark.spec("REB-08", "OPR-20")
def test_a_topic_whose_brokers_are_named_by_its_kafka_topic_is_left_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator puts such a topic back, so a proposal that moves it would have it move for ever."""
    monkeypatch.setattr("ballast_rebalance.kubernetes_store.PAGE", 2)
    asyncio.run(with_store(tmp_path, _pinned))


async def _pinned(store: KubernetesStore) -> None:
    def describe(name: str, cluster: str = "demo", **spec: Any) -> None:
        body = {
            "apiVersion": "ballast.dev/v1alpha1", "kind": "KafkaTopic", "metadata": {"name": name},
            "spec": {"clusterRef": {"name": cluster}, **spec},
        }  # fmt: skip
        store._objects.create_namespaced_custom_object("ballast.dev", "v1alpha1", NAMESPACE, "kafkatopics", body)

    plan, _ = proposed()
    moved = sorted({move.topic for move in plan.moves})
    rows = [[0], [1]]
    await asyncio.to_thread(describe, "anything", topicName=moved[0], replicaAssignment=rows)
    await asyncio.to_thread(describe, "pinned", replicaAssignment=rows)
    await asyncio.to_thread(describe, "free", partitions=2)
    await asyncio.to_thread(describe, "elsewhere", cluster="other", replicaAssignment=rows)
    assert await asyncio.to_thread(store.pinned_topics, "demo") == {moved[0], "pinned"}
    options = JobOptions(ProposalOptions("demo", NAMESPACE), PlanOptions(excluded_topics=frozenset({"by-hand"})))
    planning = await asyncio.to_thread(planning_for, options, store)
    assert planning.excluded_topics == {moved[0], "pinned", "by-hand"}
    assert moved[0] not in {move.topic for move in plan_balance(measured().load(), planning).moves}
    assert planning_for(options, None) == options.planning


VERBS = {"POST": "create", "DELETE": "delete", "PATCH": "patch"}


@pytest.mark.spec("REB-01")
def test_the_drivers_role_is_what_the_driver_was_seen_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ballast_planner.resource.MAX_ROWS", 1)
    asyncio.run(with_store(tmp_path, _seen))


async def _seen(store: KubernetesStore) -> None:
    seen: set[tuple[str, str]] = set()
    plain = store._client.rest_client.request

    def recording(method: str, url: str, **more: Any) -> Any:
        parts = url.split("?")[0].split(f"/namespaces/{NAMESPACE}/")[1].split("/")
        resource = parts[0] if len(parts) < 3 else f"{parts[0]}/{parts[2]}"
        seen.add((resource, VERBS.get(method) or ("list" if len(parts) == 1 else "get")))
        return plain(method, url, **more)

    store._client.rest_client.request = recording
    for band in (0.10, 0.05):
        _, resources = proposed(band)
        await asyncio.to_thread(submit, resources, store, lambda _: False)
    await asyncio.to_thread(store.pinned_topics, "demo")
    look = {"reason": "Balanced", "message": "", "time": "2026-01-02T03:04:05Z", "proposal": None}
    told = await asyncio.to_thread(store.tell, "absent", look)
    assert "absent was not told: 404" in str(told)
    role = yaml.safe_load((ROOT / "manifests" / "spark" / "role.yaml").read_text(encoding="utf-8"))
    assert seen == {(name, verb) for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]}


@pytest.mark.java
@pytest.mark.timeout(600)
@pytest.mark.spec("REB-08", "OPR-32")
def test_from_skewed_brokers_through_spark_to_level_disks(tmp_path: Path) -> None:
    asyncio.run(_whole_chain(Stack(tmp_path)))


async def _whole_chain(stack: Stack) -> None:
    from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection

    try:
        await stack.start()
        bootstrap = await demo.start_cluster(stack)
        kafka = KafkaConnection(ConnectionSettings(bootstrap))
        try:
            await demo.create_topic(stack)
            await demo.skew(stack, kafka, bootstrap)
            before = await fills(kafka)
            name = await demo.propose_by_job(stack, bootstrap)
            await demo.show_proposal(stack, name)
            waiting = await stack.get("reassignments", name)
            assert waiting is not None
            assert waiting["status"]["plan"]["hash"] == waiting["spec"]["planHash"]
            assert waiting["status"]["plan"]["moves"] == len(waiting["spec"]["partitions"])
            assert await fills(kafka) == before, "nothing moves before it is approved"
            assert await demo.approve(stack, name) == "Succeeded"
            after = await fills(kafka)
            assert max(before) - min(before) > 64 << 20
            assert sum(after) == sum(before)
            assert max(after) - min(after) < 8 << 20
            await no_throttles(kafka)
        finally:
            await kafka.close()
    finally:
        await stack.stop()


async def fills(kafka: Any) -> list[int]:
    """Bytes in each directory of each broker, future replicas included."""
    from ballast_cli.status import observe_cluster

    view = await observe_cluster(kafka)
    held = {(where.broker, where.path): 0 for where in view.directories}
    for replica, log in view.logs.items():
        assert log.path is not None
        assert log.future_path is None
        held[replica.broker, log.path] += log.size_bytes
    return [held[where] for where in sorted(held)]


async def no_throttles(kafka: Any) -> None:
    from ballast_operator.observe import observe_broker_configs, observe_topic_configs

    topics = await observe_topic_configs(kafka, [demo.TOPIC])
    brokers = await observe_broker_configs(kafka, range(3))
    assert sorted(brokers) == [0, 1, 2]
    left = json.dumps([topics[demo.TOPIC], *brokers.values()])
    assert "throttled" not in left
    assert "io.max.bytes.per.second" not in left
