"""An operator beside definitions of before it: it says so, and begins nothing that it could not put back."""

from __future__ import annotations

import re
import urllib.request
from copy import deepcopy

import pytest
from tests.operator.world import World

from ballast_operator.apply.kubernetes import path_of
from ballast_operator.observe import observe_broker_configs, observe_topic_configs

DEFINITION = path_of("apiextensions.k8s.io/v1", "customresourcedefinitions", None, "reassignments.ballast.dev")


@pytest.mark.timeout(240)
@pytest.mark.spec("OPR-02", "OPR-35")
def test_a_throttle_that_could_not_be_put_back_is_not_set_and_what_is_missing_is_told(ballast_world: World) -> None:
    """Only the operator's log said why it went no further."""
    world = ballast_world
    world.topic("before", replicaAssignment=[[0]], deletionPolicy="Delete")
    world.until_ready("KafkaTopic", "before")
    world.pause("KafkaTopic", "before")
    definition = world.api("get", DEFINITION)
    former = deepcopy(definition["spec"]["versions"])
    fields = former[0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    known = fields.pop("throttledLists")
    world.api("merge", DEFINITION, {"spec": {"versions": former}})
    try:
        rows = [{"topic": "before", "partition": 0, "replicas": [1]}]
        world.reassign("before", partitions=rows, throttle={"interBroker": "10Mi"})
        said = world.until_reason("Reassignment", "before", "KubernetesRefused")
        assert "drops status.throttledLists; apply the CRDs that belong to this operator." in said
        assert world.run(observe_topic_configs(world.kafka, ["before"])) == {"before": {}}
        assert world.view().topics["before"].partitions[0].replicas == (0,)
        events = [one["message"] for one in world.objects("v1", "events") if one["involvedObject"]["name"] == "before"]
        assert said in events
        world.delete("Reassignment", "before")
        world.until_gone("Reassignment", "before")
        assert world.run(observe_broker_configs(world.kafka, [0, 1, 2])) == {0: {}, 1: {}, 2: {}}
        world.reassign("before", partitions=rows, throttle={"interBroker": "10Mi"})
        world.until_reason("Reassignment", "before", "KubernetesRefused")
    finally:
        fields["throttledLists"] = known
        world.api("merge", DEFINITION, {"spec": {"versions": former}})
    world.touch("Reassignment", "before")
    world.until_phase("before", "Succeeded")
    assert world.view().topics["before"].partitions[0].replicas == (1,)
    assert world.run(observe_broker_configs(world.kafka, [0, 1, 2])) == {0: {}, 1: {}, 2: {}}
    world.delete("Reassignment", "before")
    world.pause("KafkaTopic", "before", False)
    world.delete("KafkaTopic", "before")
    world.until_gone("KafkaTopic", "before")


def dropped(world: World) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{world.probe_port}/metrics", timeout=10) as answer:
        found = re.search(r"^ballast_operator_dropped_fields (.*)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def outdated(world: World) -> str:
    told = (world.get("KafkaCluster", world.cluster) or {})["status"]["conditions"]
    return next((one["message"] for one in told if one["type"] == "DefinitionsOutdated"), "")


@pytest.mark.timeout(120)
@pytest.mark.spec("OPR-02", "OPR-06")
def test_each_field_that_is_dropped_is_told_until_the_definitions_are_of_this_version(ballast_world: World) -> None:
    """Only one was looked at. Whoever set another saw his spec without it, and an operator that took no notice."""
    world = ballast_world
    path = path_of("apiextensions.k8s.io/v1", "customresourcedefinitions", None, "kafkatopics.ballast.dev")
    versions = world.api("get", path)["spec"]["versions"]
    former = deepcopy(versions)
    schema = former[0]["schema"]["openAPIV3Schema"]["properties"]
    del schema["spec"]["properties"]["configPolicy"]
    del schema["status"]["properties"]["managedConfig"]
    said = "KafkaTopic spec.configPolicy, KafkaTopic status.managedConfig."
    world.until("nothing is dropped", lambda: dropped(world) == 0 and not outdated(world))  # of the test before this
    world.api("merge", path, {"spec": {"versions": former}})
    try:
        assert said in world.until("the cluster tells it", lambda: outdated(world))
        assert dropped(world) == 2
        world.until_ready("KafkaCluster", world.cluster)
        told = [one["message"] for one in world.objects("v1", "events") if one["reason"] == "DefinitionsOutdated"]
        assert sum(said in message for message in told) == 1
    finally:
        world.api("merge", path, {"spec": {"versions": versions}})
    world.until("it is told no more", lambda: not outdated(world))
    assert dropped(world) == 0
    assert world.operator_log.count(said) == 1
