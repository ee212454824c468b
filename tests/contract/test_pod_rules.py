"""What the schema of KafkaCluster refuses of pods: what the operator sets itself would have no effect, or be lost."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_local.rules import RuleSet, rule_faults
from ballast_local.schema import apply_defaults, validate
from ballast_operator.model.cluster import read_cluster
from ballast_operator.resources import pods
from ballast_operator.resources.layout import Layout, new_identity
from ballast_operator.resources.names import BROKER_ROLE, METADATA_VOLUME

CRD = yaml.safe_load((Path(__file__).parents[2] / "crds" / "kafkaclusters.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
TEMPLATE = SCHEMA["properties"]["podTemplate"]
RULES = RuleSet({"type": "object", "properties": {"spec": SCHEMA}})
VOLUMES = [{"name": "a", "size": "1Gi"}]
# A value of each field's type, which is none that the operator would set.
ANY = {"array": [{"name": "mine"}], "object": {"mine": True}, "string": "mine", "boolean": True}


def refused(template: dict[str, Any], volumes: list[dict[str, Any]] = VOLUMES) -> list[str]:
    spec = {"volumes": copy.deepcopy(volumes), "podTemplate": copy.deepcopy(template)}
    apply_defaults(SCHEMA, spec)
    causes = validate(SCHEMA, spec, "spec") or RULES.check({"spec": spec}, None)
    return [cause["message"] for cause in causes]


def made(template: dict[str, Any]) -> dict[str, Any]:
    """The pods that the operator makes of a template, past all rules."""
    body = {"metadata": {"name": "demo", "uid": "u"}, "spec": {"volumes": VOLUMES, "podTemplate": template}}
    cluster = read_cluster(body)
    layout = Layout(cluster, new_identity(cluster, "id"), 3, cluster.spec.volumes)
    return pods.pod_template(layout, BROKER_ROLE)


PLAIN = made({})
OWN_FIELDS = [name for name in PLAIN["spec"] if name != "affinity" and made({"spec": {name: "mine"}}) == PLAIN]


@pytest.mark.spec("OPR-01", "OPR-40")
@pytest.mark.parametrize("name", [*OWN_FIELDS, "serviceAccount"])
def test_a_field_that_the_operator_sets_itself_is_refused(name: str) -> None:
    """Whoever set one was told nothing, and the pods had another."""
    typed = ANY[TEMPLATE["properties"]["spec"]["properties"][name]["type"]]
    (message,) = refused({"spec": {name: typed}})
    assert "The operator sets containers, volumes, " in message
    assert name in message
    assert refused({"spec": {name: None}}) == [], "a template of Helm leaves it so where it is not set"


@pytest.mark.spec("OPR-01", "OPR-40")
@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_a_label_or_an_annotation_that_the_operator_sets_itself_is_refused(kind: str) -> None:
    for name in PLAIN["metadata"][kind]:
        (message,) = refused({kind: {name: "mine", "team": "a"}})
        assert name in message
    assert refused({kind: {"team": "a"}}) == []


@pytest.mark.spec("OPR-01", "OPR-40")
def test_a_volume_called_as_another_one_of_the_pods_is_refused() -> None:
    """A StatefulSet gives the pods its claim in place of that one, and no broker found its configuration."""
    taken = [volume["name"] for volume in PLAIN["spec"]["volumes"]]
    assert taken
    for name in (*taken, METADATA_VOLUME):
        (message,) = refused({}, [*VOLUMES, {"name": name, "size": "1Gi"}])
        assert f'"{name}"' in message
    assert refused({}, [*VOLUMES, {"name": "configs", "size": "1Gi"}]) == []


@pytest.mark.spec("OPR-01", "OPR-40")
def test_all_else_is_taken_over() -> None:
    spec = {
        "nodeSelector": {"disk": "fast"}, "terminationGracePeriodSeconds": 90, "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [], "priorityClassName": "high", "initContainers": [{"name": "i", "image": "i"}],
    }  # fmt: skip
    assert refused({"spec": spec}) == []
    assert made({"spec": spec})["spec"].items() >= spec.items()
    assert rule_faults(TEMPLATE["properties"]["spec"], "spec") == []
