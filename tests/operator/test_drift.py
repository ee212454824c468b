"""What people do by hand to the objects of a KafkaCluster is put back, or told where that cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.operator.world import World

from ballast_operator.apply.kubernetes import path_of

pytestmark = pytest.mark.timeout(240)
SERVICE = path_of("v1", "services", "default", "demo-bootstrap")
POD = path_of("v1", "pods", "default", "demo-0")
BUDGET = path_of("policy/v1", "poddisruptionbudgets", "default", "demo")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world")) as found:
        volumes = [{"name": name, "size": "1Gi"} for name in "ab"]
        found.start_cluster(brokers=1, volumes=volumes, resyncSeconds=1)
        yield found


def spec(world: World, path: str) -> dict[str, Any]:
    found: dict[str, Any] = (world.api("find", path) or {}).get("spec", {})
    return found


@pytest.mark.spec("OPR-04", "OPR-41")
def test_a_service_that_somebody_has_given_another_selector_leads_to_the_brokers_again(world: World) -> None:
    before = spec(world, SERVICE)["selector"]
    world.api("merge", SERVICE, {"spec": {"selector": {"moved": "elsewhere"}}, "metadata": {"labels": {"team": "x"}}})
    world.until("it leads to them again", lambda: spec(world, SERVICE)["selector"] == before, 30)
    assert world.api("find", SERVICE)["metadata"]["labels"]["team"] == "x", "what takes nothing from us stays"


@pytest.mark.spec("OPR-04", "OPR-41")
def test_a_budget_that_somebody_has_written_in_the_other_way_lets_one_pod_go_again(world: World) -> None:
    """Both ways at once are refused, so that it was told as that for ever, and no node could be drained."""
    before = spec(world, BUDGET)
    selector = {"matchLabels": {"tier": "gold"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]}
    other = {"maxUnavailable": None, "minAvailable": 1, "selector": selector}
    world.api("merge", BUDGET, {"spec": other})
    world.until("it is as it was", lambda: spec(world, BUDGET) == before, 30)
    world.until_ready("KafkaCluster", "demo")


@pytest.mark.spec("OPR-08", "OPR-45")
def test_a_claim_that_somebody_deletes_is_told_and_no_change_takes_it_from_its_pod(world: World) -> None:
    """It lasts until the pod ends: a change of configuration lost the data of one broker after the other."""
    uid = str(world.api("find", POD)["metadata"]["uid"])
    world.api("delete", path_of("v1", "persistentvolumeclaims", "default", "b-demo-0"))
    told = world.until_reason("KafkaCluster", "demo", "ClaimsGoing", 30)
    assert "b-demo-0" in str(told)
    world.patch("KafkaCluster", "demo", {"spec": {"config": {"num.partitions": "2"}}})
    world.until("the change has been looked at", lambda: observed(world), 30)
    world.until_reason("KafkaCluster", "demo", "ClaimsGoing", 30)
    assert world.api("find", POD)["metadata"]["uid"] == uid
    world.api("delete", POD)
    world.until("another pod", lambda: (world.api("find", POD) or {"metadata": {}})["metadata"].get("uid", uid) != uid)
    world.until_ready("KafkaCluster", "demo", 60)


def observed(world: World) -> bool:
    body = world.get("KafkaCluster", "demo") or {}
    return bool(body["status"].get("observedGeneration") == body["metadata"]["generation"])


@pytest.mark.spec("OPR-04", "OPR-41")
@pytest.mark.parametrize("path", [SERVICE, BUDGET])
def test_what_somebody_deletes_is_there_again(world: World, path: str) -> None:
    uid = world.api("find", path)["metadata"]["uid"]
    world.api("delete", path)
    world.until("another one", lambda: (world.api("find", path) or {"metadata": {}})["metadata"].get("uid", uid) != uid)
