"""How a cluster is reached by the way that its pods speak, and what is held while they speak another one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kafka.cluster import get_ip_port_afi
from tests.operator.making import cluster

from ballast_operator.plan.kube import KubeFacts, PodFacts, kube_facts, pod_facts
from ballast_operator.plan.secured import reach_of, security_held, subject_changed
from ballast_operator.reachability import why_unreachable
from ballast_operator.resources import pods
from ballast_operator.resources.layout import Layout, new_identity
from ballast_operator.resources.names import BROKER_ROLE
from ballast_operator.resources.properties import node_properties

CRDS = Path(__file__).parents[3] / "crds"
pytestmark = pytest.mark.spec("OPR-40", "OPR-45")
INSIDE = {"internal": {"tls": {"secretName": "inside"}}}
RIGHTS = {**INSIDE, "authorization": {"type": "Simple"}}


def seen(number: int, with_set: bool = True, principal: str = "", **spec: Any) -> KubeFacts:
    """What Kubernetes shows of a cluster with this spec."""
    subject = cluster(brokers=number, **spec)
    layout = Layout(subject, new_identity(subject, "id"), number, subject.spec.volumes, principal=principal)
    stateful_set = pods.stateful_set(layout, BROKER_ROLE)
    template = pods.pod_template(layout, BROKER_ROLE)
    found = [
        {
            "metadata": {**template["metadata"], "name": f"demo-{ordinal}", "uid": f"uid-{ordinal}"},
            "spec": template["spec"],
            "status": {"podIP": f"10.0.0.{ordinal}", "conditions": [{"type": "Ready", "status": "True"}]},
        }
        for ordinal in range(number)
    ]
    return kube_facts(subject, stateful_set if with_set else None, found, [])


def test_by_tls_each_address_has_to_show_the_name_of_its_pod() -> None:
    reach = reach_of(cluster(security=INSIDE), seen(2, security=INSIDE))
    assert reach is not None
    assert reach.bootstrap == "10.0.0.0:9091,10.0.0.1:9091"
    assert reach.secret == "inside"
    assert dict(reach.hosts)["10.0.0.1"] == "demo-1.demo-brokers.default.svc"


@pytest.mark.spec("OPR-44")
def test_pods_whose_kubelets_are_all_silent_are_asked_themselves() -> None:
    """Kubernetes says then that they are not ready, and knows nothing of their containers."""

    def told(**conditions: str) -> PodFacts:
        status = {"podIP": "10.0.0.7", "conditions": [{"type": t, "status": s} for t, s in conditions.items()]}
        return pod_facts({"metadata": {"name": "demo-1", "uid": "u"}, "spec": {}, "status": status})

    whole, silent = seen(1), told(Ready="False", ContainersReady="True")
    ready = reach_of(cluster(), replace(whole, pods={**whole.pods, 1: silent}))
    assert ready is not None
    assert ready.bootstrap == "10.0.0.0:9092"
    alone = reach_of(cluster(), replace(whole, pods={1: silent}))
    assert alone is not None
    assert alone.bootstrap == "10.0.0.7:9092"
    starting = told(Ready="False", ContainersReady="False")
    assert reach_of(cluster(), replace(whole, pods={1: starting})) is None


def test_pods_with_ipv6_addresses_are_reached_at_their_port() -> None:
    """Without brackets the client took the port for the end of the address."""
    kube = seen(1)
    kube = replace(kube, pods={0: replace(kube.pods[0], address="fd00:10:244::5")})
    reach = reach_of(cluster(), kube)
    assert reach is not None
    assert get_ip_port_afi(reach.bootstrap)[:2] == ("fd00:10:244::5", 9092)
    assert why_unreachable("[::1]:1", None, None).startswith("[::1]:1: ")


def test_listeners_outside_and_external_clusters_may_have_ipv6_addresses() -> None:
    outside = {"name": "OUTSIDE", "port": 9094, "nodePorts": {"host": "2001:db8::7", "first": 32000}}
    subject = cluster(brokers=1, listeners=[{"name": "INSIDE", "port": 9092}, outside])
    layout = Layout(subject, new_identity(subject, "id"), 1, subject.spec.volumes)
    told = node_properties(layout, 0, BROKER_ROLE)["advertised.listeners"]
    assert told.endswith(",OUTSIDE://[2001:db8::7]:32000")
    schema = yaml.safe_load((CRDS / "kafkaclusters.yaml").read_text())["spec"]["versions"][0]["schema"]
    spec = schema["openAPIV3Schema"]["properties"]["spec"]["properties"]
    host = spec["listeners"]["items"]["properties"]["nodePorts"]["properties"]["host"]["pattern"]
    servers = spec["external"]["properties"]["bootstrapServers"]["pattern"]
    for text in ("2001:db8::7", "::1", "10.0.0.1", "node.example"):
        assert re.search(host, text), text
    for text in ("node.example:9092", "[::1]", "", "a b"):
        assert not re.search(host, text), text
    for text in ("[fd00::1]:9092", "a:1,[fd00::1]:9092,b:2"):
        assert re.search(servers, text), text
    for text in ("fd00::1:9092", "[fd00::1]", "a:1,", "[a:9092"):
        assert not re.search(servers, text), text


def test_pods_are_reached_as_they_were_made_whatever_the_spec_says_now() -> None:
    before = seen(1, listeners=[{"name": "OLD", "port": 9999}])
    reach = reach_of(cluster(security=INSIDE), before)
    assert reach is not None
    assert (reach.bootstrap, reach.secret, reach.hosts) == ("10.0.0.0:9999", None, ())
    reach = reach_of(cluster(), seen(1, security=INSIDE))
    assert reach is not None
    assert (reach.bootstrap, reach.secret) == ("10.0.0.0:9091", "inside")
    assert reach_of(cluster(), KubeFacts()) is None


@pytest.mark.parametrize("with_set", [True, False])
def test_another_way_to_speak_is_held_while_a_pod_or_a_set_has_the_old_one(with_set: bool) -> None:
    held = security_held(cluster(security=INSIDE), seen(1, with_set))
    assert held is not None
    assert (held.reason, held.stalled) == ("SecurityHeld", True)
    assert "speak no TLS among themselves, and spec.security.internal asks for TLS by Secret inside" in held.message
    back = security_held(cluster(), seen(1, with_set, security=INSIDE))
    assert back is not None
    assert "delete StatefulSet demo:" in back.message
    renamed = {"internal": {"tls": {"secretName": "other"}}}
    assert security_held(cluster(security=renamed), seen(1, with_set, security=INSIDE)) is not None
    assert security_held(cluster(security=INSIDE), seen(1, with_set, security=INSIDE)) is None
    assert security_held(cluster(security=INSIDE), KubeFacts()) is None


def test_whose_certificate_it_is_may_not_change_where_there_are_rights() -> None:
    facts = seen(1, principal="CN=old", security=RIGHTS)
    subject = cluster(security=RIGHTS)
    changed = subject_changed(subject, facts, "CN=new")
    assert changed is not None
    assert changed.reason == "SubjectChanged"
    assert "Secret inside is of CN=new, and the brokers take only CN=old" in changed.message
    assert subject_changed(subject, facts, "CN=old") is None
    assert subject_changed(subject, seen(1, security=INSIDE), "CN=new") is None
    assert subject_changed(cluster(security=INSIDE), facts, "CN=new") is None
