"""What Flux and others make of our objects: the rules of kstatus for kinds that it does not know, and CEL for those
that wait for a person. The rules were compared with those of sigs.k8s.io/cli-utils 0.37.2 over all of our reasons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
import yaml
from tests.docs.commands import block
from tests.local.conftest import DEFINITIONS, Running

from ballast_cli.places import ROOT
from ballast_local.cel import compile_expression
from ballast_operator.model.fields import write
from ballast_operator.model.reassignment import Phase
from ballast_operator.status import CLUSTER, REASSIGNMENT, SHARED, TOPIC, Reason, conditions

pytestmark = pytest.mark.spec("OPR-02")
TABLES = {"KafkaCluster": CLUSTER, "KafkaTopic": TOPIC, "Reassignment": REASSIGNMENT}
REASONS = [(kind, one) for kind, table in TABLES.items() for one in (*SHARED.values(), *table.values())]
OF_DEMO = {"clusterRef": {"name": "demo"}}
SPECS = {
    "KafkaCluster": {"volumes": [{"name": "a", "size": "1Gi"}]},
    "KafkaTopic": OF_DEMO,
    "Reassignment": {**OF_DEMO, "drainBrokers": [1]},
}
Object = dict[str, Any]


def kstatus(found: Object) -> str:
    """Of an object of a kind that it does not know."""
    meta, status = found["metadata"], found.get("status", {})
    if meta.get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration", meta["generation"]) != meta["generation"]:
        return "InProgress"
    told = {one["type"]: one["status"] for one in status.get("conditions", ())}
    if told.get("Reconciling") == "True":
        return "InProgress"
    if told.get("Stalled") == "True":
        return "Failed"
    return "Current" if told.get("Ready", "True") == "True" else "InProgress"


def flux(expressions: Object, found: Object) -> str:
    """What Flux makes of it by `healthCheckExprs`."""
    if found["status"]["observedGeneration"] != found["metadata"]["generation"]:
        return "InProgress"
    for status in ("inProgress", "failed", "current"):
        if status in expressions and compile_expression(expressions[status], found).evaluate(found):
            return status.title()
    return "InProgress"


def told(reason: Reason, **status: Any) -> Object:
    """An object with the conditions that the operator writes for this reason."""
    verdict = reason.says(**dict.fromkeys(_words(reason), "x"))
    said = [write(one) for one in conditions((), verdict, 3, "2026-01-01T00:00:00Z")]
    return {"metadata": {"generation": 3}, "status": {"observedGeneration": 3, "conditions": said, **status}}


def _words(reason: Reason) -> list[str]:
    return [name for _, name, _, _ in Formatter().parse(reason.text + reason.advice) if name]


@pytest.mark.parametrize(("kind", "reason"), REASONS, ids=lambda one: getattr(one, "name", one))
def test_what_is_done_is_current_and_what_needs_a_person_has_failed(kind: str, reason: Reason) -> None:
    expected = "Failed" if reason.stalled else "Current" if reason.ready == "True" else "InProgress"
    assert kstatus(told(reason)) == expected


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path)
    yield found
    found.close()


def test_an_object_that_no_operator_has_seen_is_in_progress(running: Running) -> None:
    """Without a status it would pass for one of a kind that has no conditions, which is current as it is."""
    api = running.api()
    for kind, spec in SPECS.items():
        plural = f"{kind.lower()}s"
        api.post(DEFINITIONS, yaml.safe_load((ROOT / "crds" / f"{plural}.yaml").read_text()))
        body = {"apiVersion": "ballast.dev/v1alpha1", "kind": kind, "metadata": {"name": "new"}, "spec": spec}
        path = f"/apis/ballast.dev/v1alpha1/namespaces/default/{plural}"
        assert kstatus(api.post(path, body)) == "InProgress"
        assert kstatus(api.get(f"{path}/new")) == "InProgress"


def test_with_the_expressions_of_the_page_a_reassignment_that_waits_for_approval_holds_up_nothing() -> None:
    (shown,) = yaml.safe_load(block("docs/kubernetes.md", "healthCheckExprs:"))["healthCheckExprs"]
    assert (shown["apiVersion"], shown["kind"]) == ("ballast.dev/v1alpha1", "Reassignment")
    waits = told(REASSIGNMENT["AwaitingApproval"], phase="AwaitingApproval")
    assert (kstatus(waits), flux(shown, waits)) == ("InProgress", "Current")
    for phase in Phase:
        expected = "InProgress" if phase is Phase.PLANNING else "Current"
        assert flux(shown, told(REASSIGNMENT["Running"], phase=str(phase))) == expected
        assert flux(shown, told(REASSIGNMENT["Stale"], phase=str(phase))) == "Failed"
    assert flux(shown, {"metadata": {"generation": 1}, "status": {"observedGeneration": -1}}) == "InProgress"
