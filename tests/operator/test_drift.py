"""What people do by hand to the objects of a KafkaCluster is put back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.operator.world import World

from ballast_operator.apply.kubernetes import path_of

pytestmark = pytest.mark.timeout(240)
SERVICE = path_of("v1", "services", "default", "demo-bootstrap")
BUDGET = path_of("policy/v1", "poddisruptionbudgets", "default", "demo")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world")) as found:
        found.start_cluster(brokers=1, volumes=[{"name": "a", "size": "1Gi"}], resyncSeconds=1)
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


@pytest.mark.spec("OPR-04", "OPR-41")
@pytest.mark.parametrize("path", [SERVICE, BUDGET])
def test_what_somebody_deletes_is_there_again(world: World, path: str) -> None:
    uid = world.api("find", path)["metadata"]["uid"]
    world.api("delete", path)
    world.until("another one", lambda: (world.api("find", path) or {"metadata": {}})["metadata"].get("uid", uid) != uid)
