"""Services by which brokers are reached from outside, whose ports belong to all of Kubernetes; and the monitor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.operator.making import cluster

from ballast_operator.apply.kubernetes import ApiError
from ballast_operator.handlers.kube_objects import KubeObjects, LayoutRefusals
from ballast_operator.plan.kube import KubeFacts, PodFacts
from ballast_operator.resources.layout import Layout, new_identity
from ballast_operator.resources.properties import config_map_name

Body = dict[str, Any]
PORTS = (9092, 9094)


class Api:
    """Keeps what is applied, and gives each node port once."""

    def __init__(self) -> None:
        self.objects: dict[str, Body] = {}
        self.listed = 0

    def ports(self) -> dict[str, int]:
        """By the name of the Service."""
        found = ((path.rpartition("/")[2], body) for path, body in self.objects.items() if body["kind"] == "Service")
        return {name: port["nodePort"] for name, body in found for port in body["spec"]["ports"] if "nodePort" in port}

    async def find(self, path: str) -> Body | None:
        return self.objects.get(path)

    async def items(self, path: str, label_selector: str = "") -> AsyncIterator[Body]:
        self.listed += 1
        assert label_selector == "ballast.dev/cluster=demo"
        for key, body in list(self.objects.items()):
            if key.startswith(f"{path}/"):
                yield body

    async def merge(self, path: str, patch: Body) -> Body:
        """What is taken out of another's object; all of these are ours, and are applied as a whole next."""
        assert path in self.objects
        return self.objects[path]

    async def apply(self, path: str, body: Body) -> Body:
        others = {port for name, port in self.ports().items() if name != path.rpartition("/")[2]}
        for port in body["spec"]["ports"] if body["kind"] == "Service" else ():
            if port.get("nodePort") in others:
                raise ApiError(422, "Invalid", "spec.ports[0].nodePort: provided port is already allocated")
        self.objects[path] = {**body, "metadata": {**body["metadata"], "uid": f"uid-{path}"}}
        return self.objects[path]

    async def delete(self, path: str, uid: str) -> None:
        assert self.objects.pop(path)["metadata"]["uid"] == uid


async def lay_out(
    objects: KubeObjects, brokers: int, generation: int, monitor: bool = False, before: Collection[int] = (),
    there: int | None = None, **listener: Any,
) -> LayoutRefusals:  # fmt: skip
    """`before`: brokers that run with another configuration yet; `there`: how many the set has, all if that is None."""
    listeners = [{"name": "INSIDE", "port": 9092}, *([listener] if listener else [])]
    metrics = {"podMonitor": monitor}
    subject = cluster(meta={"generation": generation}, brokers=brokers, listeners=listeners, metrics=metrics)
    layout = Layout(subject, new_identity(subject, "id"), brokers, subject.spec.volumes)
    there = brokers if there is None else there
    pods = {
        n: PodFacts(f"demo-{n}", "u", n, config="of-before" if n in before else config_map_name(layout), ports=PORTS)
        for n in range(there)
    }
    refusals = await objects.apply_layout(layout, KubeFacts(exists=there > 0, replicas=there, pods=pods))
    await objects.apply_monitor(layout.cluster)
    return refusals


def monitors(api: Api) -> list[str]:
    return [path.rpartition("/")[2] for path, body in api.objects.items() if body["kind"] == "PodMonitor"]


def outside(first: int, name: str = "OUTSIDE") -> Body:
    return {"name": name, "port": 9094, "nodePorts": {"host": "node.example", "first": first}}


class Slow(Api):
    """`turns` counts how often it was asked something while nothing else was being asked."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = self.asked = self._now = 0

    async def _take_time(self) -> None:
        self.turns += self._now == 0
        self.asked += 1
        self._now += 1
        await asyncio.sleep(0.01)
        self._now -= 1

    async def find(self, path: str) -> Body | None:
        await self._take_time()
        if path.startswith("/api/v1/nodes/"):
            return {"metadata": {"labels": {"zone": path.rpartition("-")[2]}}}
        return await super().find(path)

    async def items(self, path: str, label_selector: str = "") -> AsyncIterator[Body]:
        await self._take_time()
        for ordinal in range(12 if path.endswith("/pods") else 0):
            meta = {"name": f"demo-{ordinal}", "uid": f"u{ordinal}", "labels": {"ballast.dev/role": "broker"}}
            yield {"metadata": meta, "spec": {"nodeName": f"node-{ordinal}"}}


@pytest.mark.spec("OPR-05", "OPR-41")
async def test_objects_of_a_cluster_are_asked_for_side_by_side() -> None:
    """Of twelve brokers that can be reached from outside a look was dozens of requests, one after the other."""
    api = Slow()
    objects = KubeObjects(cast(Any, SimpleNamespace(api=api)))
    await lay_out(objects, 12, 1, **outside(32000))
    api.turns = api.asked = 0
    await lay_out(objects, 12, 1, before=range(12), **outside(32000))
    assert (api.turns, api.asked) == (6, 31)
    api.turns = api.asked = 0
    found = await objects.facts(cluster(brokers=12, rack={"topologyKey": "zone"}))
    assert len(found.pods) == 12
    assert (api.turns, api.asked) == (2, 15)


@pytest.mark.spec("OPR-40", "OPR-41")
async def test_node_ports_that_are_not_wanted_any_more_are_given_back() -> None:
    api = Api()
    objects = KubeObjects(cast(Any, SimpleNamespace(api=api)))
    await lay_out(objects, 3, 1, **outside(32000))
    foreign = {"kind": "Service", "metadata": {"name": "mine", "uid": "u"}, "spec": {"type": "NodePort", "ports": []}}
    api.objects["/api/v1/namespaces/default/services/mine"] = foreign
    await lay_out(objects, 2, 2, **outside(32000))
    assert api.ports() == {"demo-0-outside": 32000, "demo-1-outside": 32001}
    # Under another name, with the same ports.
    await lay_out(objects, 2, 3, **outside(32000, "EXTERNAL"))
    assert api.ports() == {"demo-0-external": 32000, "demo-1-external": 32001}
    await lay_out(objects, 2, 4)
    assert api.ports() == {}
    listed = api.listed
    await lay_out(objects, 2, 4)
    assert api.listed == listed, "nothing has changed"
    names = {path.rpartition("/")[2] for path, body in api.objects.items() if body["kind"] == "Service"}
    assert names == {"demo-brokers", "demo-bootstrap", "mine"}


def files(api: Api) -> set[str]:
    """What configuration there is for nodes."""
    found = (body["data"] for body in api.objects.values() if body["kind"] == "ConfigMap")
    return {name.removesuffix(".properties") for data in found for name in data}


@pytest.mark.spec("OPR-04", "OPR-36")
async def test_what_a_broker_reads_and_is_reached_by_goes_after_it() -> None:
    """It went first, and operators that were killed before the StatefulSet was smaller put it back, and took it away
    again; a broker that was restarted in between found nothing to start with."""
    api = Api()
    objects = KubeObjects(cast(Any, SimpleNamespace(api=api)))
    await lay_out(objects, 4, 1, **outside(32000))
    there = {f"demo-{broker}" for broker in range(4)}
    await lay_out(objects, 3, 2, there=4, **outside(32000))
    assert replicas(api) == 3
    assert (files(api), set(api.ports())) == (there, {f"{name}-outside" for name in there})
    await lay_out(objects, 3, 2, there=3, **outside(32000))
    there.remove("demo-3")
    assert (files(api), set(api.ports())) == (there, {f"{name}-outside" for name in there})


@pytest.mark.spec("OPR-04", "OPR-42")
async def test_what_a_controller_reads_goes_after_it() -> None:
    api = Api()
    objects = KubeObjects(cast(Any, SimpleNamespace(api=api)))
    subject = cluster(brokers=1, controllers={"mode": "Dedicated", "count": 1})
    layout = Layout(subject, new_identity(subject, "id"), 1, subject.spec.volumes, controllers=0)
    names = {}
    for there in (3, 1):
        await objects.apply_layout(layout, KubeFacts(exists=True, replicas=1, controller_replicas=there))
        names[there] = files(api)
    assert names == {there: {"demo-0", *(f"demo-controller-{n}" for n in range(there))} for there in (3, 1)}


@pytest.mark.spec("OPR-40")
@pytest.mark.parametrize("first", [32001, 31999, 32003])
async def test_node_ports_move_up_and_down_although_the_brokers_have_each_others(first: int) -> None:
    api = Api()
    objects = KubeObjects(cast(Any, SimpleNamespace(api=api)))
    await lay_out(objects, 4, 1, **outside(32000))
    await lay_out(objects, 4, 2, **outside(first))
    assert list(api.ports().values()) == [first + broker for broker in range(4)]


@pytest.mark.spec("OPR-40", "OPR-44")
async def test_a_broker_is_reached_at_the_node_port_of_before_until_it_is_restarted() -> None:
    """It tells clients that one; they were refused until the restarts came to it."""
    api = Api()
    objects = KubeObjects(cast(Any, SimpleNamespace(api=api)))

    def ports(broker: int) -> dict[int, int]:
        service = api.objects[f"/api/v1/namespaces/default/services/demo-{broker}-outside"]
        return {port["nodePort"]: port["targetPort"] for port in service["spec"]["ports"]}

    await lay_out(objects, 3, 1, **outside(32000))
    for _ in range(2):  # what was kept is kept on
        await lay_out(objects, 3, 2, before=(0, 1, 2), **outside(31000))
        assert [ports(broker) for broker in range(3)] == [{31000 + n: 9094, 32000 + n: 9094} for n in range(3)]
    await lay_out(objects, 3, 2, before=(1,), **outside(31000))
    assert [len(ports(broker)) for broker in range(3)] == [1, 2, 1]
    await lay_out(objects, 3, 2, **outside(31000))
    assert [ports(broker) for broker in range(3)] == [{31000 + n: 9094} for n in range(3)]
    # Numbers that go from one broker to another cannot be kept.
    await lay_out(objects, 3, 3, before=(0, 1, 2), **outside(31001))
    assert [ports(broker) for broker in range(3)] == [{31001: 9094, 31000: 9094}, {31002: 9094}, {31003: 9094}]


async def taken(api: Api, port: int) -> None:
    """By somebody else, in another namespace."""
    body = {"kind": "Service", "metadata": {}, "spec": {"ports": [{"nodePort": port}]}}
    await api.apply("/api/v1/namespaces/other/services/x", body)


def replicas(api: Api) -> int:
    found: int = api.objects["/apis/apps/v1/namespaces/default/statefulsets/demo"]["spec"]["replicas"]
    return found


@pytest.mark.spec("OPR-02", "OPR-40")
async def test_a_node_port_that_somebody_else_has_is_told_and_the_rest_is_laid_out() -> None:
    """It kept the whole layout waiting: there was no StatefulSet, and nothing was changed in one that there was."""
    api = Api()
    await taken(api, 32001)
    refusals = await lay_out(KubeObjects(cast(Any, SimpleNamespace(api=api))), 3, 1, there=0, **outside(32000))
    assert refusals.refused == "Service demo-1-outside: spec.ports[0].nodePort: provided port is already allocated"
    assert set(api.ports()) == {"x", "demo-0-outside", "demo-2-outside"}
    assert (replicas(api), refusals.waiting_to_be_added, refusals.waiting_to_restart) == (3, frozenset(), frozenset())


@pytest.mark.spec("OPR-40", "OPR-42")
async def test_brokers_that_nobody_outside_could_reach_are_not_added() -> None:
    """They would be given partitions that are led where clients outside cannot go."""
    api = Api()
    objects = KubeObjects(cast(Any, SimpleNamespace(api=api)))
    await lay_out(objects, 3, 1, **outside(32000))
    await taken(api, 32004)
    refusals = await lay_out(objects, 6, 2, there=3, **outside(32000))
    assert (replicas(api), refusals.waiting_to_be_added) == (4, frozenset({4}))
    del api.objects["/api/v1/namespaces/other/services/x"]
    assert await lay_out(objects, 6, 2, there=4, **outside(32000)) == LayoutRefusals()
    assert replicas(api) == 6


@pytest.mark.spec("OPR-40", "OPR-44")
async def test_a_broker_whose_new_node_port_is_taken_keeps_the_former_one_and_is_not_restarted() -> None:
    """Restarted it would tell clients a port behind which there is somebody else."""
    api = Api()
    objects = KubeObjects(cast(Any, SimpleNamespace(api=api)))
    await lay_out(objects, 3, 1, **outside(32000))
    await taken(api, 31001)
    for _ in range(2):
        refusals = await lay_out(objects, 3, 2, before=(0, 1, 2), **outside(31000))
        assert (refusals.waiting_to_be_added, refusals.waiting_to_restart) == (frozenset(), frozenset({1}))
        assert api.ports()["demo-1-outside"] == 32001
    # A broker that tells the port already, whose Service somebody has deleted, has nothing to lose by a restart.
    del api.objects["/api/v1/namespaces/default/services/demo-1-outside"]
    refusals = await lay_out(objects, 3, 2, before=(1,), **outside(31000))
    assert (refusals.refused is not None, refusals.waiting_to_restart) == (True, frozenset())


@pytest.mark.spec("OPR-41")
async def test_without_a_disruption_budget_there_is_a_cluster_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    api, apply = Api(), Api.apply

    async def refused(self: Api, path: str, body: Body) -> Body:
        if body["kind"] == "PodDisruptionBudget":
            raise ApiError(403, "Forbidden", "budgets are ours")
        return await apply(self, path, body)

    monkeypatch.setattr(Api, "apply", refused)
    refusals = await lay_out(KubeObjects(cast(Any, SimpleNamespace(api=api))), 3, 1)
    assert isinstance(refusals.failed, ApiError)
    assert (refusals.failed.message, replicas(api)) == ("PodDisruptionBudget demo: budgets are ours", 3)


@pytest.mark.spec("OPR-41")
async def test_evictions_stay_held_until_kafka_has_told_a_new_operator_that_all_have_caught_up() -> None:
    api = Api()

    def allowed() -> int:
        return int(
            api.objects["/apis/policy/v1/namespaces/default/poddisruptionbudgets/demo"]["spec"]["maxUnavailable"]
        )

    objects = KubeObjects(cast(Any, SimpleNamespace(api=api)))
    await lay_out(objects, 3, 1)
    assert allowed() == 1
    await objects.hold_evictions(cluster(), {1})
    await lay_out(objects, 3, 2)
    assert allowed() == 0
    objects = KubeObjects(cast(Any, SimpleNamespace(api=api)))
    await lay_out(objects, 3, 3)
    assert allowed() == 0, "whether that is still so it has not heard"
    await objects.hold_evictions(cluster(), frozenset())
    assert allowed() == 1


@pytest.mark.spec("OPR-41")
async def test_a_monitor_that_is_not_wanted_any_more_goes_after_a_restart_of_the_operator_too() -> None:
    api = Api()
    await lay_out(KubeObjects(cast(Any, SimpleNamespace(api=api))), 3, 1, monitor=True)
    assert monitors(api) == ["demo"]
    objects = KubeObjects(cast(Any, SimpleNamespace(api=api)))
    await lay_out(objects, 3, 2)
    assert monitors(api) == []
    await lay_out(objects, 3, 3, monitor=True)
    await lay_out(objects, 3, 4)
    assert monitors(api) == []
    theirs = {"kind": "PodMonitor", "metadata": {"name": "demo", "uid": "u"}}
    api.objects["/apis/monitoring.coreos.com/v1/namespaces/default/podmonitors/demo"] = theirs
    await lay_out(KubeObjects(cast(Any, SimpleNamespace(api=api))), 3, 4)
    assert monitors(api) == ["demo"], "somebody else's"
