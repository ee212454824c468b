"""What definitions of a version before this one drop is found, whatever it is."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.operator.making import NOW

from ballast_operator.model.meta import Condition
from ballast_operator.plan.dropped import OUTDATED, dropped_fields, outdated_condition

pytestmark = pytest.mark.spec("OPR-02")
CRDS = Path(__file__).parents[3] / "crds"
SERVED: dict[str, Any] = {
    crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for crd in (yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml")))
    if crd["kind"] == "CustomResourceDefinition"
}


def document(served: dict[str, Any]) -> dict[str, Any]:
    """As an API server publishes it."""

    def named(kind: str) -> list[dict[str, str]]:
        return [{"group": "ballast.dev", "version": "v1alpha1", "kind": kind}]

    schemas = {
        f"dev.ballast.v1alpha1.{kind}": {**schema, "x-kubernetes-group-version-kind": named(kind)}
        for kind, schema in served.items()
    }
    return {"components": {"schemas": {**schemas, "io.k8s.apimachinery.v1.ObjectMeta": {"type": "object"}}}}


def places(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(how it is told, the object's properties, the name) of every field below that would be dropped without it."""
    kept = node.get("x-kubernetes-preserve-unknown-fields", False)
    for name, inner in node.get("properties", {}).items():
        told = f"{path}.{name}".replace(" .", " ")
        if told.split(" ")[1] not in ("apiVersion", "kind", "metadata"):
            if not kept:
                yield told, node["properties"], name
            yield from places(inner, told)
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(node.get(key), dict):
            yield from places(node[key], f"{path}{mark}")


def test_of_those_that_belong_to_it_nothing_is_dropped() -> None:
    assert dropped_fields(document(SERVED)) == ()


def test_each_field_that_one_of_before_does_not_have_is_named() -> None:
    """Only one field was looked at: every other newer one was lost in silence."""
    seen = 0
    for kind in SERVED:
        for told, properties, name in list(places(SERVED[kind], f"{kind} ")):
            kept = properties.pop(name)
            assert dropped_fields(document(SERVED)) == (told,)
            properties[name] = kept
            seen += 1
    assert seen > 200


def test_a_word_that_one_of_before_refuses_is_named() -> None:
    former = deepcopy(SERVED)
    former["Reassignment"]["properties"]["status"]["properties"]["phase"]["enum"].remove("RolledBack")
    former["KafkaTopic"]["properties"]["spec"]["properties"]["configPolicy"]["enum"].remove("Exact")
    found = ("KafkaTopic spec.configPolicy Exact", "Reassignment status.phase RolledBack")
    assert dropped_fields(document(former)) == found


def test_what_a_later_one_has_more_and_what_nobody_tells_is_no_lack() -> None:
    later = deepcopy(SERVED)
    later["KafkaTopic"]["properties"]["spec"]["properties"]["later"] = {"type": "string"}
    later["KafkaTopic"]["properties"]["spec"]["properties"]["configPolicy"]["enum"].append("Later")
    assert dropped_fields(document(later)) == ()
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert dropped_fields(document({"KafkaTopic": anything})) == ()
    assert dropped_fields({}) == dropped_fields({"components": None}) == ()


def test_the_condition_has_the_time_since() -> None:
    found = outdated_condition(("KafkaTopic spec.later",), (), 4, NOW)
    assert found is not None
    assert (found.type, found.status, found.last_transition_time, found.observed_generation) == (
        OUTDATED,
        "True",
        NOW,
        4,
    )
    assert "dropped, often without a word, or refused: KafkaTopic spec.later." in found.message
    again = outdated_condition(("KafkaTopic spec.other",), (found,), 5, "2027-01-02T03:04:05Z")
    assert again is not None
    assert (again.last_transition_time, again.message != found.message) == (NOW, True)
    ready = Condition("Ready", "True", "Ready", "")
    assert outdated_condition((), (ready, found), 5, NOW) is None
