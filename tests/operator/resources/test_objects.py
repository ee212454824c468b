"""The Kubernetes objects of a cluster."""

import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.making import cluster

from ballast_operator.model.cluster import Controllers, KafkaCluster
from ballast_operator.plan.kube import kube_facts
from ballast_operator.resources import names, others, pods
from ballast_operator.resources.layout import Layout, new_identity, read_identity, voters_for, write_identity
from ballast_operator.resources.names import BROKER_ROLE, CONTROLLER_ROLE
from ballast_operator.resources.properties import config_map_data, config_map_name


def layout(brokers: int = 4, **spec: Any) -> Layout:
    subject = cluster(brokers=brokers, **spec)
    return Layout(subject, new_identity(subject, "cluster-id"), brokers, subject.spec.volumes)


def properties(found: Layout, pod: str, controllers: int = 0) -> dict[str, str]:
    text = config_map_data(found, controllers)[f"{pod}.properties"]
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.spec("OPR-40")
@pytest.mark.parametrize(("brokers", "voters"), [(1, 1), (2, 1), (3, 3), (4, 3), (9, 3)])
def test_an_odd_number_of_the_first_brokers_votes(brokers: int, voters: int) -> None:
    assert len(voters_for(None, brokers)) == voters


def test_the_identity_comes_back_as_it_was() -> None:
    identity = new_identity(cluster(brokers=5), "x")
    assert read_identity(write_identity(identity)) == identity


@pytest.mark.spec("OPR-40")
def test_each_broker_has_a_file_of_its_own_with_its_directories_in_order() -> None:
    found = layout()
    first, last = properties(found, "demo-0"), properties(found, "demo-3")
    assert first["process.roles"] == "broker,controller"
    assert last["process.roles"] == "broker"
    assert (first["node.id"], last["node.id"]) == ("0", "3")
    assert first["log.dirs"] == "/var/lib/ballast/a/data,/var/lib/ballast/b/data"
    assert first["cluster.id"] == "cluster-id"
    assert first["controller.quorum.voters"].split(",")[1] == "1@demo-1.demo-brokers.default.svc:9093"
    assert last["advertised.listeners"] == "PLAINTEXT://demo-3.demo-brokers.default.svc:9092"


@pytest.mark.spec("OPR-42", "CLU-05")
def test_once_voters_can_change_nodes_ask_for_the_quorum_and_who_votes_is_in_no_other_file() -> None:
    found = layout()
    changed = replace(found, identity=replace(found.identity, dynamic=True))
    voter, other = properties(changed, "demo-0"), properties(changed, "demo-3")
    hosts = [f"demo-{number}.demo-brokers.default.svc" for number in range(4)]
    for file in (voter, other):
        assert "controller.quorum.voters" not in file
        assert file["controller.quorum.bootstrap.servers"] == ",".join(f"{host}:9093" for host in hosts[:3])
    assert voter["advertised.listeners"] == f"PLAINTEXT://{hosts[0]}:9092,CONTROLLER://{hosts[0]}:9093"
    assert other["advertised.listeners"] == f"PLAINTEXT://{hosts[3]}:9092"
    assert config_map_name(changed) != config_map_name(found)
    fewer = replace(changed, identity=replace(changed.identity, controllers=(0,)))
    assert config_map_name(fewer) == config_map_name(changed), "nobody is restarted who votes as before"
    assert properties(fewer, "demo-1")["process.roles"] == "broker"


@pytest.mark.spec("OPR-40")
def test_a_listener_with_node_ports_is_reached_from_outside_broker_by_broker() -> None:
    outside = {"name": "OUT_SIDE", "port": 9094, "nodePorts": {"host": "node.example", "first": 32000}}
    found = layout(3, listeners=[{"name": "INSIDE", "port": 9092}, outside])
    assert properties(found, "demo-2")["advertised.listeners"].split(",") == [
        "INSIDE://demo-2.demo-brokers.default.svc:9092",
        "OUT_SIDE://node.example:32002",
    ]
    mapped = properties(found, "demo-2")["listener.security.protocol.map"]
    assert mapped == "INSIDE:PLAINTEXT,OUT_SIDE:PLAINTEXT,CONTROLLER:PLAINTEXT"
    services = others.outside_services(found.cluster, 3)
    assert [one["spec"]["ports"][0]["nodePort"] for one in services] == [32000, 32001, 32002]
    assert services[2]["metadata"]["name"] == "demo-2-out-side"
    assert services[2]["spec"]["selector"] == {"statefulset.kubernetes.io/pod-name": "demo-2"}
    (container,) = pods.stateful_set(found, BROKER_ROLE)["spec"]["template"]["spec"]["containers"]
    assert container["args"][1].startswith("listeners=INSIDE://$(POD_IP):9092,OUT_SIDE://$(POD_IP):9094,CONTROLLER")
    assert {"name": "kafka-2", "containerPort": 9094} in container["ports"]
    assert others.outside_services(layout().cluster, 3) == []


def test_the_spec_overrides_defaults_but_not_what_the_operator_sets() -> None:
    found = layout(config={"min.insync.replicas": 1, "auto.create.topics.enable": "true"})
    assert properties(found, "demo-0")["min.insync.replicas"] == "1"
    assert properties(found, "demo-0")["auto.create.topics.enable"] == "true"


@pytest.mark.spec("OPR-40", "CLI-05")
@pytest.mark.parametrize(("brokers", "replicas"), [(1, ["1", "1"]), (2, ["1", "2"]), (3, []), (4, [])])
def test_few_brokers_have_a_transaction_log_too(brokers: int, replicas: list[str]) -> None:
    """Of those whose defaults do, nothing changes: a change would restart the brokers of those that there are."""
    found = properties(layout(brokers), "demo-0")
    assert [value for name, value in sorted(found.items()) if name.startswith("transaction.")] == replicas


@pytest.mark.spec("OPR-40")
def test_a_metadata_volume_of_its_own() -> None:
    found = layout(metadataVolume={"size": "5Gi"})
    assert properties(found, "demo-0")["metadata.log.dir"] == "/var/lib/ballast/metadata/data"
    claims = [c["metadata"]["name"] for c in pods.stateful_set(found, BROKER_ROLE)["spec"]["volumeClaimTemplates"]]
    assert claims == ["metadata", "a", "b"]


@pytest.mark.spec("OPR-40")
def test_controllers_with_pods_of_their_own() -> None:
    found = layout(controllers={"mode": "Dedicated", "count": 3})
    assert found.cluster.spec.controllers == Controllers("Dedicated", 3)  # type: ignore[arg-type]
    assert properties(found, "demo-0", 3)["process.roles"] == "broker"
    controller = properties(found, "demo-controller-1", 3)
    assert (controller["process.roles"], controller["node.id"]) == ("controller", "100001")
    assert pods.stateful_set(found, CONTROLLER_ROLE)["spec"]["replicas"] == 3


@pytest.mark.spec("OPR-41")
def test_the_stateful_set_leaves_restarts_to_the_operator_and_keeps_claims() -> None:
    spec = pods.stateful_set(layout(), BROKER_ROLE)["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    gone = pods.stateful_set(layout(storage={"deleteClaim": True}), BROKER_ROLE)["spec"]
    assert gone["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain", "a set may be deleted by mistake"


@pytest.mark.spec("OPR-07")
def test_pods_pass_the_restricted_standard() -> None:
    spec = pods.pod_template(layout(podTemplate={"spec": {"nodeSelector": {"disk": "fast"}}}), BROKER_ROLE)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    container = spec["containers"][0]["securityContext"]
    assert container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    assert spec["nodeSelector"] == {"disk": "fast"}


@pytest.mark.spec("OPR-44")
def test_the_revision_changes_with_what_needs_a_restart_and_with_nothing_else() -> None:
    same = pods.revision(layout(), BROKER_ROLE)
    assert pods.revision(layout(brokers=9), BROKER_ROLE) == same
    assert pods.revision(layout(rebalance={"onScaleUp": "None"}), BROKER_ROLE) == same
    assert pods.revision(layout(config={"num.partitions": 3}), BROKER_ROLE) != same
    assert pods.revision(layout(image="other"), BROKER_ROLE) != same
    assert pods.revision(layout(podTemplate={"annotations": {"restarted": "today"}}), BROKER_ROLE) != same


@pytest.mark.spec("OPR-44", "OPR-45")
@pytest.mark.parametrize("role", [BROKER_ROLE, CONTROLLER_ROLE])
def test_no_pod_is_restarted_so_that_the_end_of_its_log_will_be_told(role: str) -> None:
    template = pods.pod_template(layout(), role)
    assert template["spec"]["containers"][0].pop("terminationMessagePolicy") == "FallbackToLogsOnError"
    revision = template["metadata"]["annotations"].pop(names.REVISION)
    assert revision == hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:16]


def test_another_configuration_is_another_config_map_so_a_container_that_restarts_alone_finds_its_own() -> None:
    assert config_map_name(layout()) == config_map_name(layout(brokers=9))
    assert config_map_name(layout()) != config_map_name(layout(config={"num.partitions": 3}))
    volumes = pods.pod_template(layout(), BROKER_ROLE)["spec"]["volumes"]
    assert volumes[0]["configMap"]["name"] == config_map_name(layout())


@pytest.mark.spec("OPR-40", "OPR-44")
@pytest.mark.parametrize("changed", [{"host": "other.example"}, {"first": 32100}])
def test_brokers_that_are_reached_elsewhere_from_outside_are_restarted_to_say_so(changed: dict[str, Any]) -> None:
    def with_node_ports(**more: Any) -> Layout:
        outside = {"name": "OUTSIDE", "port": 9094, "nodePorts": {"host": "node.example", "first": 32000, **more}}
        return layout(3, listeners=[{"name": "INSIDE", "port": 9092}, outside])

    before, after = with_node_ports(), with_node_ports(**changed)
    advertised = [properties(found, "demo-1")["advertised.listeners"] for found in (before, after)]
    assert advertised[0] != advertised[1]
    assert config_map_name(before) != config_map_name(after)
    assert pods.revision(before, BROKER_ROLE) != pods.revision(after, BROKER_ROLE)


@pytest.mark.spec("OPR-41")
def test_services_and_disruption_budget() -> None:
    subject = cluster()
    headless = others.headless_service(subject)["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    assert others.bootstrap_service(subject)["spec"]["selector"] == names.selector(subject, BROKER_ROLE)
    budget = others.disruption_budget(subject)["spec"]
    assert (budget["maxUnavailable"], "matchExpressions" in budget["selector"]) == (1, False)
    budget = others.disruption_budget(subject, ["demo-1"])["spec"]
    assert (budget["maxUnavailable"], budget["selector"]["matchExpressions"][0]["values"]) == (0, ["demo-1"])
    budget = others.disruption_budget(subject, ["demo-0", "demo-1"])["spec"]
    assert (budget["maxUnavailable"], "matchExpressions" in budget["selector"]) == (0, False)
    assert others.pod_monitor(subject) is None
    assert others.pod_monitor(cluster(metrics={"podMonitor": True})) is not None


@pytest.mark.spec("OPR-40")
def test_a_field_of_the_pods_that_is_null_is_one_that_is_not_set() -> None:
    """As Kubernetes takes it; every look at the cluster failed, and nothing told why."""
    racks: list[dict[str, Any]] = [{}, {"rack": {"topologyKey": "topology.kubernetes.io/zone"}}]
    spec = dict.fromkeys(("affinity", "topologySpreadConstraints", "terminationGracePeriodSeconds"))
    for more in racks:
        found, unset = layout(podTemplate={"spec": spec}, **more), layout(**more)
        assert pods.pod_template(found, BROKER_ROLE) == pods.pod_template(unset, BROKER_ROLE)


@pytest.mark.spec("OPR-40")
def test_racks_spread_the_pods() -> None:
    spec = pods.pod_template(layout(rack={"topologyKey": "topology.kubernetes.io/zone"}), BROKER_ROLE)["spec"]
    assert spec["topologySpreadConstraints"][0]["topologyKey"] == "topology.kubernetes.io/zone"
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "topology.kubernetes.io/zone", "operator": "Exists"}]
    assert "podAntiAffinity" in spec["affinity"]
    own: dict[str, Any] = {"spec": {"affinity": {"nodeAffinity": {}}}}
    spec = pods.pod_template(layout(rack={"topologyKey": "zone"}, podTemplate=own), BROKER_ROLE)["spec"]
    assert spec["affinity"] == {"nodeAffinity": {}}


@pytest.mark.spec("OPR-40")
def test_each_broker_is_told_its_rack_and_the_next_look_knows_them() -> None:
    subject = cluster(rack={"topologyKey": "zone"})
    found = replace(layout(), cluster=subject, racks={0: "east", 2: "west"})
    files = [config_map_data(found, 0)[f"demo-{n}.properties"] for n in range(3)]
    assert [re.findall("^broker.rack=(.*)$", text, re.MULTILINE) for text in files] == [["east"], [], ["west"]]
    assert config_map_name(found) == config_map_name(replace(found, racks={}))
    stored = pods.stateful_set(found, BROKER_ROLE)
    assert kube_facts(subject, stored, (), ()).racks == {0: "east", 2: "west"}
    assert kube_facts(cluster(), stored, (), ()).racks == {}


@pytest.mark.spec("OPR-40")
def test_pods_of_others_with_the_clusters_label_are_no_members() -> None:
    """Whoever copies an object's labels to pods of its own: a Spark operator does, and people who debug."""

    def pod(name: str, role: str | None) -> dict[str, Any]:
        labels = names.labels(subject, role)
        return {"metadata": {"name": name, "uid": f"uid-{name}", "labels": labels}, "spec": {}}

    subject = cluster()
    members = [pod("demo-0", BROKER_ROLE), pod("demo-1", BROKER_ROLE), pod("demo-controller-2", CONTROLLER_ROLE)]
    of_others = [
        pod("demo-rebalance-1795335480003211572-driver", "rebalance"),
        pod("demo-rebalance-exec-1", "rebalance"),
        pod("demo-0-debug", BROKER_ROLE),
        pod("look-7", BROKER_ROLE),
        pod("look-8", None),
    ]
    found = kube_facts(subject, None, [*members, *of_others], ())
    assert ({one.name for one in found.pods.values()}, set(found.pods)) == ({"demo-0", "demo-1"}, {0, 1})
    assert {ordinal: one.name for ordinal, one in found.controllers.items()} == {2: "demo-controller-2"}
    assert found.replicas == 2


def service_ports(subject: KafkaCluster, *running: tuple[int, ...]) -> dict[int, int | str]:
    found = others.bootstrap_service(subject, running)["spec"]["ports"]
    assert len({port["name"] for port in found}) == len(found)
    return {port["port"]: port["targetPort"] for port in found}


@pytest.mark.spec("OPR-41", "OPR-44")
def test_while_a_listener_comes_or_gets_another_port_clients_reach_the_brokers_that_have_it() -> None:
    """The Service sent them to any broker at the new port, and to none at the former one, from the first moment on."""
    old, new = {"name": "PLAINTEXT", "port": 9092}, {"name": "CLIENTS", "port": 9094}
    both = cluster(listeners=[old, new])
    assert service_ports(both) == {9092: 9092, 9094: 9094}
    # By its name the port of a pod that lacks it is none.
    assert service_ports(both, (9092,), (9092, 9094)) == {9092: 9092, 9094: "kafka-2"}
    assert service_ports(both, (9092, 9094), (9092, 9094)) == {9092: 9092, 9094: 9094}
    # In another order, all brokers have both ports; one that is to go is gone at once.
    assert service_ports(cluster(listeners=[new, old]), (9092, 9094), (9094, 9092)) == {9092: 9092, 9094: 9094}
    assert service_ports(cluster(listeners=[new]), (9094, 9092), (9094,)) == {9094: 9094}
    # Another port for the same listener, which only is possible where brokers have a listener of their own.
    inside = {"internal": {"tls": {"secretName": "inside"}}}
    moved = cluster(listeners=[{**old, "port": 9095}, new], security=inside)
    rolling = [(9091, 9092, 9094), (9091, 9095, 9094)]
    assert service_ports(moved, *rolling) == {9095: "kafka-2", 9094: 9094, 9092: "kafka-2"}
    assert service_ports(moved, rolling[1], ()) == {9095: 9095, 9094: 9094}
    # What cannot be told apart by its place goes by its number.
    exchanged = cluster(listeners=[{**new, "port": 9096}], security=inside)
    assert service_ports(exchanged, (9091, 9092, 9094), (9091, 9096)) == {9096: 9096}


@pytest.mark.spec("OPR-40", "OPR-44")
def test_a_broker_is_reached_from_outside_at_the_port_that_it_has_until_it_is_restarted() -> None:
    outside = {"name": "OUTSIDE", "port": 9095, "nodePorts": {"host": "node.example", "first": 32000}}
    subject = cluster(brokers=3, listeners=[{"name": "INSIDE", "port": 9092}, outside])
    running = {0: (9092, 9095), 1: (9092, 9094)}
    found = others.outside_services(subject, 3, running)
    assert [one["spec"]["ports"][0]["targetPort"] for one in found] == [9095, "kafka-2", 9095]
    made = pods.pod_template(layout(listeners=[{"name": "INSIDE", "port": 9092}, outside]), BROKER_ROLE)
    assert {"name": "kafka-2", "containerPort": 9095} in made["spec"]["containers"][0]["ports"]
