"""What a cluster that the operator runs needs next: nothing that holds a replica is removed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.making import cluster, topic_view, view

from ballast_operator.model.cluster import KafkaCluster, Volume
from ballast_operator.model.kafka import DirectoryId, DirectoryView, KafkaView, LogView, OngoingView
from ballast_operator.model.quorum import STATIC, Member, QuorumView
from ballast_operator.plan import claims, contents, layouts, liveness, restarts
from ballast_operator.plan import kube as kube_module
from ballast_operator.plan.cluster_status import health
from ballast_operator.plan.kube import ClaimFacts, KubeFacts, NodeFacts, PodFacts, kube_facts, with_racks
from ballast_operator.resources.layout import Identity, Layout, new_identity, read_identity, write_identity

IDENTITY = Identity("id", (0, 1, 2), replication=3)
A, B, C = (Volume(name, "10Gi") for name in "abc")


def kube(
    replicas: int = 3,
    revision: str = "new",
    volumes: tuple[Volume, ...] = (A, B),
    pods: Mapping[int, PodFacts] | None = None,
    **more: Any,
) -> KubeFacts:
    running = {n: PodFacts(f"demo-{n}", f"uid-{n}", n, True, f"10.0.0.{n}", revision) for n in range(replicas)}
    running |= pods or {}
    for n, pod in running.items():
        running[n] = replace(pod, claims=pod.claims or {v.name: f"{v.name}-demo-{n}" for v in volumes})
    return KubeFacts(True, False, replicas, {v.name: v for v in volumes}, pods=running, **more)


@pytest.mark.spec("OPR-42")
def test_brokers_that_are_too_many_stay_until_they_are_drained() -> None:
    subject = cluster(brokers=3)
    assert layouts.held_layout(subject, IDENTITY, kube(5)).brokers == 5
    assert layouts.excess_brokers(subject, kube(5)) == (3, 4)
    assert layouts.held_layout(cluster(brokers=7), IDENTITY, kube(5)).brokers == 7


@pytest.mark.spec("OPR-44")
def test_what_somebody_wants_restarted_is_outdated_until_it_was() -> None:
    layout = Layout(cluster(), IDENTITY, 2, (A, B))
    seen = view()
    asked = kube(2, restarted_at="then")
    assert [pod.ordinal for pod in restarts.outdated_brokers(asked, "new", seen, layout)] == [0, 1]
    done = kube(2, restarted_at="then", pods={1: replace(asked.pods[1], restarted_at="then")})
    assert [pod.ordinal for pod in restarts.outdated_brokers(done, "new", seen, layout)] == [0]
    assert restarts.outdated_brokers(replace(done, restarted_at=None), "new", seen, layout) == []
    controllers = replace(kube(0), controllers=asked.pods, controllers_restarted_at="then")
    assert len(restarts.outdated_controllers(controllers, "new")) == 2
    assert restarts.outdated_controllers(replace(controllers, controllers_restarted_at=None), "new") == []
    assert restarts.next_controller_restart(controllers, "new", (), None).left == 1


@pytest.mark.spec("OPR-42")
def test_brokers_that_are_added_are_marked_for_a_proposal() -> None:
    assert layouts.held_layout(cluster(brokers=5), IDENTITY, kube(3)).added == (3, 4)
    assert layouts.held_layout(cluster(brokers=3), IDENTITY, KubeFacts()).added == ()
    # Who scales the StatefulSet itself takes brokers out of it that have their share: it is put back, and that is all.
    rows = {n: ClaimFacts(f"a-demo-{n}", "u", "a", f"demo-{n}", "10Gi", drained=n == 2) for n in (1, 2, 3)}
    taken_out = kube(1, claims=(rows[1], rows[2], replace(rows[3], deleting=True)))
    assert layouts.held_layout(cluster(brokers=4), IDENTITY, taken_out).added == (2, 3)


@pytest.mark.spec("OPR-42")
def test_replicas_that_are_arriving_count_and_unread_topics_make_it_unknown() -> None:
    held = view({"orders": topic_view((0, 3), (1, 2))})
    assert contents.replicas_on(held, [3]) == 1
    arriving = view({"orders": topic_view((0, 1))}, ongoing={("orders", 0): OngoingView((0, 3, 1), (3,), (1,))})
    assert contents.replicas_on(arriving, [3]) == 1
    assert contents.replicas_on(view(topic_errors={"secret": "TOPIC_AUTHORIZATION_FAILED"}), [3]) is None
    assert contents.replicas_on(KafkaView(), [3]) is None


@pytest.mark.spec("OPR-43")
def test_a_volume_that_leaves_the_spec_stays_until_it_is_drained() -> None:
    subject = cluster()
    layout = layouts.held_layout(subject, IDENTITY, kube(volumes=(A, C, B)))
    assert layout.volume_names == ("a", "c", "b")
    assert layouts.leaving_volumes(subject, kube(volumes=(A, C, B))) == ("c",)
    assert layouts.wanted_layout(subject, IDENTITY, kube(volumes=(A, C, B)), 3, ()).volume_names == ("a", "b")


@pytest.mark.spec("OPR-43")
def test_a_volume_that_is_added_comes_last_and_a_new_order_alone_changes_nothing() -> None:
    turned = cluster(
        volumes=[{"name": "b", "size": "10Gi"}, {"name": "a", "size": "10Gi"}, {"name": "d", "size": "1Gi"}]
    )
    assert layouts.held_layout(turned, IDENTITY, kube()).volume_names == ("a", "b", "d")


@pytest.mark.spec("OPR-40")
def test_the_volume_with_the_metadata_log_is_kept() -> None:
    subject = cluster(volumes=[{"name": "b", "size": "10Gi"}])
    assert layouts.metadata_volume_leaves(subject, IDENTITY, kube()) == "a"
    own = cluster(volumes=[{"name": "b", "size": "10Gi"}], metadataVolume={"size": "1Gi"})
    assert layouts.metadata_volume_leaves(own, IDENTITY, kube()) is None


@pytest.mark.spec("OPR-40", "OPR-43", "OPR-45")
def test_the_metadata_log_is_looked_for_where_it_is_whatever_the_order_of_the_volumes() -> None:
    """A cluster that was deleted and comes back with another order would begin with an empty metadata log."""
    born = new_identity(cluster(), "id")
    assert read_identity(write_identity(born)) == born
    turned = cluster(volumes=[{"name": name, "size": "10Gi"} for name in ("b", "a")])
    found = kube_facts(turned, None, [], [stored("b-demo-0"), stored("a-demo-0")])
    assert layouts.held_layout(turned, born, found).volume_names == ("a", "b")
    fewer = cluster(volumes=[{"name": "b", "size": "10Gi"}])
    assert layouts.metadata_volume_leaves(fewer, born, found) == "a"
    own = new_identity(cluster(metadataVolume={"size": "1Gi"}), "id")
    assert layouts.held_layout(turned, own, found).volume_names == ("b", "a")


@pytest.mark.spec("OPR-08")
@pytest.mark.spec("OPR-43")
def test_what_a_directory_holds_is_known_only_when_all_brokers_told() -> None:
    held = view(logs={("orders", 0, 0): LogView("/b", 1), ("orders", 1, 1): LogView("/a", 1, "/b", 1)})
    both = [DirectoryId(0, "/b"), DirectoryId(1, "/b")]
    assert contents.replicas_in(held, both, [0, 1, 2]) == 2
    assert contents.replicas_in(view(offline=[2]), both, [0, 1, 2]) is None


@pytest.mark.spec("OPR-08")
@pytest.mark.spec("OPR-43")
def test_a_directory_that_failed_is_not_empty_because_nothing_can_be_read_there() -> None:
    held = view({"orders": topic_view((0, 1), (1, 0))}, {("orders", n, 1): LogView("/a", 1) for n in range(2)})
    dead = {**held.directories, DirectoryId(0, "/b"): DirectoryView("KAFKA_STORAGE_ERROR", -1, -1)}
    failed = replace(held, directories=dead)
    assert contents.replicas_in(failed, [DirectoryId(0, "/b")], [0, 1, 2]) == 2
    assert contents.replicas_in(failed, [DirectoryId(1, "/b")], [0, 1, 2]) == 0
    assert contents.replicas_in(replace(failed, topic_errors={"x": "E"}), [DirectoryId(0, "/b")], [0, 1, 2]) is None


@pytest.mark.spec("OPR-43")
def test_directories_are_known_by_mount_path_and_by_claim() -> None:
    seen = view(
        directories=("/var/lib/ballast/b/data", "/x/volumes/default/b-demo-0/data", "/x/volumes/default/b-demo-1/data")
    )
    found = contents.directories_of(cluster(), seen, ("b",), (0,))
    assert {where.path for where in found} == {"/var/lib/ballast/b/data", "/x/volumes/default/b-demo-0/data"}


def restart(
    facts: KubeFacts, seen: KafkaView, least: int = 2, volumes: tuple[Volume, ...] = (A, B)
) -> restarts.Restart:
    layout = Layout(cluster(), IDENTITY, 3, volumes)
    return restarts.next_restart(facts, "new", seen, dict.fromkeys(seen.topics, least), layout)


WHOLE = view({"orders": topic_view((0, 1, 2), (1, 2, 0))})


@pytest.mark.spec("OPR-40", "OPR-44")
def test_who_is_not_to_be_restarted_keeps_only_those_waiting_whose_pods_would_not_come_back() -> None:
    old = kube(revision="old", waiting_to_restart=frozenset({1}))
    assert (restart(old, WHOLE).node, restart(old, WHOLE).left) == (2, 1)
    done = replace(old, pods={**kube().pods, 1: old.pods[1]})
    assert restart(done, WHOLE) == restarts.Restart()
    # A set makes no pod behind one that lacks a volume.
    assert restart(old, WHOLE, volumes=(A, B, C)).node == 0
    first = replace(old, waiting_to_restart=frozenset({0}))
    assert restart(first, WHOLE, volumes=(A, B, C)) == restarts.Restart()


@pytest.mark.spec("OPR-40", "OPR-42")
def test_brokers_are_added_up_to_the_first_that_nobody_outside_could_reach() -> None:
    facts = kube(3, waiting_to_be_added=frozenset({5, 4}))
    held = layouts.held_layout(cluster(brokers=7), IDENTITY, facts)
    assert (held.brokers, held.added) == (4, (3,))
    assert layouts.held_layout(cluster(brokers=2), IDENTITY, facts).brokers == 3


@pytest.mark.spec("OPR-44")
def test_the_active_controller_is_restarted_last_and_nobody_needlessly() -> None:
    assert restart(kube(), WHOLE) == restarts.Restart()
    old = kube(revision="old")
    assert restart(old, WHOLE).node == 1
    only_controller_left = kube(pods={0: PodFacts("demo-0", "u", 0, True, "10.0.0.0", "old")})
    assert restart(only_controller_left, WHOLE).node == 0


@pytest.mark.spec("OPR-44")
def test_a_pod_that_does_not_work_is_restarted_first_and_without_waiting() -> None:
    broken = kube(revision="old", pods={2: PodFacts("demo-2", "u", 2, False, None, "old")})
    assert restart(broken, view({"orders": topic_view((0, 1, 2), isr={0: (0,)})})).node == 2
    starting = {n: PodFacts(f"demo-{n}", "u", n, False, None, "new") for n in (1, 2)}
    assert restart(kube(revision="old", pods={2: starting[2]}), WHOLE).waits == "demo-2 is not ready"
    assert restart(kube(revision="old", pods=starting), WHOLE).waits == "demo-1, demo-2 are not ready"


@pytest.mark.spec("OPR-44")
def test_a_broker_whose_kubelet_is_silent_is_up_while_kafka_says_so() -> None:
    silent = PodFacts("demo-1", "u", 1, False, "10.0.0.1", kubelet_silent=True)
    assert liveness.is_up(silent, WHOLE, 0.0)
    assert not liveness.is_up(replace(silent, ordinal=7), WHOLE, 0.0)
    assert not liveness.is_up(replace(silent, kubelet_silent=False), WHOLE, 0.0), "its pod tells sooner than Kafka"


@pytest.mark.spec("OPR-44")
def test_brokers_that_work_are_not_restarted_together_because_their_kubelets_are_silent() -> None:
    """Nodes that Kubernetes does not hear have pods that are not ready, and end them all when they are heard again."""
    silent = {n: PodFacts(f"demo-{n}", "u", n, False, f"10.0.0.{n}", "old") for n in (1, 2)}
    assert restart(kube(revision="old", pods=silent), WHOLE).node == 1
    ending = silent | {1: replace(silent[1], deleting_since="2026-01-02T03:04:05Z")}
    assert restart(kube(revision="old", pods=ending), WHOLE).waits == "demo-1 is not ready"
    # That one has ended, and is not back.
    without = kube(revision="old", pods={2: silent[2]})
    without = replace(without, pods={n: pod for n, pod in without.pods.items() if n != 1})
    gone = view({"orders": topic_view((0, 1, 2), isr={0: (0, 2)})}, offline=[1])
    assert restart(without, gone, least=1).waits == "the pod of broker 1 is not ready"
    back = kube(revision="old", pods={1: PodFacts("demo-1", "v", 1, True, "10.0.0.1", "new"), 2: silent[2]})
    lagging = view({"orders": topic_view((0, 1, 2), isr={0: (0, 2)})})
    assert restart(back, lagging).waits == "broker 1 is catching up with orders-0"
    assert restart(back, WHOLE).node == 2
    # Who is not in sync himself is missed by nobody.
    behind = view({"orders": topic_view((0, 1, 2), isr={0: (0,)})})
    assert restart(kube(revision="old", pods={2: silent[2]}), behind).node == 2


@pytest.mark.spec("OPR-43")
def test_while_a_volume_is_added_pods_are_restarted_by_their_numbers() -> None:
    """A StatefulSet makes no pod behind one that lacks a claim of its templates."""
    with_claims, without = {"a": "x", "b": "x", "c": "x"}, {"a": "x", "b": "x"}
    old = {n: PodFacts(f"demo-{n}", "u", n, True, f"10.0.0.{n}", "old", claims=without) for n in range(3)}
    new = PodFacts("demo-0", "u", 0, True, "10.0.0.0", "new", claims=with_claims)
    controller = replace(WHOLE, controller=0)
    assert restart(kube(pods=old), controller, volumes=(A, B, C)).node == 0
    assert restart(kube(volumes=(A, B, C), pods=old | {0: new}), controller, volumes=(A, B, C)).node == 1


@pytest.mark.spec("OPR-43")
@pytest.mark.spec("OPR-45")
def test_a_pod_that_is_lost_while_a_volume_is_added_comes_back_without_it() -> None:
    subject = cluster(volumes=[{"name": name, "size": "10Gi"} for name in "abc"])
    facts = kube(volumes=(A, B, C))
    without = replace(facts.pods[1], claims={"a": "x", "b": "x"})
    restarting = {n: pod for n, pod in {**facts.pods, 1: without}.items() if n != 0}
    lost = {n: pod for n, pod in {**facts.pods, 1: without}.items() if n != 2}
    assert layouts.held_layout(subject, IDENTITY, replace(facts, pods=restarting)).volume_names == ("a", "b", "c")
    assert layouts.held_layout(subject, IDENTITY, replace(facts, pods=lost)).volume_names == ("a", "b")
    assert layouts.held_layout(subject, IDENTITY, replace(facts, pods=lost | {2: without})).volume_names[2:] == ("c",)


@pytest.mark.spec("OPR-44")
def test_it_waits_while_a_pod_is_not_ready() -> None:
    starting = kube(revision="old", pods={2: PodFacts("demo-2", "u", 2, False, None, "new")})
    found = restart(starting, WHOLE)
    assert found.node is None
    assert "demo-2" in str(found.waits)


@pytest.mark.spec("OPR-44")
def test_it_waits_until_the_isr_is_whole_again() -> None:
    found = restart(kube(revision="old"), view({"orders": topic_view((0, 1, 2), isr={0: (0, 1)})}))
    assert found.node is None
    assert found.waits == "broker 2 is catching up with orders-0"


@pytest.mark.spec("OPR-44")
def test_it_waits_until_a_broker_whose_pod_is_ready_is_back_in_the_cluster() -> None:
    """With a change that lets brokers listen but not join, the next one would be taken down, too."""
    fenced = view({"orders": topic_view((0, 1, 2), isr={0: (1, 2)})}, offline=[0])
    rolled = kube(revision="old", pods={0: PodFacts("demo-0", "u", 0, True, "10.0.0.0", "new")})
    found = restart(rolled, fenced, least=1)
    assert (found.node, found.waits) == (None, "broker 0 is not online")
    # What may mend it is not waited for: several that did not join may all have to be told anew.
    both = view({"orders": topic_view((0, 1, 2), isr={0: (1,)})}, offline=[0, 2])
    assert restart(kube(revision="old"), both, least=1).node == 2


@pytest.mark.spec("OPR-44")
def test_no_partition_falls_below_min_insync_replicas() -> None:
    gone = view({"orders": topic_view((0, 1, 3), isr={0: (0, 1)})}, brokers=range(4), offline=[3])
    found = restart(kube(revision="old"), gone)
    assert found.node is None
    assert found.waits == "orders-0 would have 1 replica in sync, fewer than 2"


@pytest.mark.spec("OPR-44")
def test_partitions_that_cannot_be_protected_are_listed_and_not_waited_for() -> None:
    found = restart(kube(revision="old"), view({"single": topic_view((1,))}), least=1)
    assert found.node == 1
    assert found.unprotected == ("single-0",)


@pytest.mark.spec("OPR-08")
def test_it_waits_when_something_could_not_be_read() -> None:
    assert restart(kube(revision="old"), view(topic_errors={"x": "UNKNOWN"})).node is None
    unknown = restarts.next_restart(kube(revision="old"), "new", WHOLE, {}, Layout(cluster(), IDENTITY, 3, (A, B)))
    assert unknown.node is None


@pytest.mark.spec("OPR-43")
@pytest.mark.spec("OPR-45")
def test_claims_grow_and_unused_ones_are_listed() -> None:
    rows = (
        ClaimFacts("a-demo-0", "u", "a", "demo-0", "5Gi"),
        ClaimFacts("b-demo-0", "u", "b", "demo-0", "20Gi"),
        ClaimFacts("a-demo-4", "u", "a", "demo-4", "10Gi", drained=True),
        ClaimFacts("c-demo-0", "u", "c", "demo-0", "10Gi", drained=True),
    )
    facts = kube(claims=rows)
    layout = layouts.held_layout(cluster(), IDENTITY, facts)
    assert claims.claims_to_grow(layout, facts) == {"a-demo-0": "10Gi"}
    assert [claim.name for claim in claims.unused_claims(layout, facts)] == ["a-demo-4", "c-demo-0"]
    in_use = kube(claims=rows, pods={0: PodFacts("demo-0", "u", 0, claims={"c": "c-demo-0"})})
    assert [claim.name for claim in claims.unused_claims(layout, in_use)] == ["a-demo-4"]
    holds = view({"orders": topic_view((0, 4))}, brokers=range(5), offline=[4])
    assert [claim.name for claim in claims.claims_to_delete(layout, facts, holds)] == ["c-demo-0"]
    assert [claim.name for claim in claims.claims_to_delete(layout, facts, view())] == ["a-demo-4", "c-demo-0"]
    undrained = replace(facts, claims=tuple(replace(claim, drained=False) for claim in rows))
    assert claims.claims_to_delete(layout, undrained, view()) == [], "nobody has seen that they are empty"
    again = layouts.held_layout(cluster(volumes=[{"name": "c", "size": "10Gi"}]), IDENTITY, facts)
    assert [claim.name for claim in claims.claims_in_use_again(again, facts)] == ["c-demo-0"]


@pytest.mark.spec("OPR-08", "OPR-43")
def test_a_volume_comes_back_on_another_storage_class_only_when_its_claims_of_before_are_gone() -> None:
    """Its pods would take these, and the data would lie on the class that it was to leave."""

    def wanted(storage_class: str | None) -> KafkaCluster:
        rows = [{"name": "a", "size": "10Gi"}, {"name": "c", "size": "10Gi", "storageClassName": storage_class}]
        return cluster(volumes=rows)

    former = ClaimFacts("c-demo-0", "u", "c", "demo-0", "10Gi", "slow", drained=True)
    facts = kube(volumes=(A,), claims=(former,))
    layout = layouts.held_layout(wanted("fast"), IDENTITY, facts)
    assert layout.volume_names == ("a",)
    assert [claim.name for claim in claims.claims_of_other_classes(wanted("fast"), facts)] == ["c-demo-0"]
    assert claims.claims_in_use_again(layout, facts) == []
    assert claims.claims_to_delete(layout, facts, view()) == [former]
    assert layouts.held_layout(wanted("slow"), IDENTITY, facts).volume_names == ("a", "c")
    # The claims of volumes without a class tell which one they get.
    for default, added in (("slow", True), ("fast", False), (None, False)):
        other = ClaimFacts("a-demo-0", "u", "a", "demo-0", "10Gi", default)
        known = kube(volumes=(A,), claims=(other, former) if default else (former,))
        assert ("c" in layouts.held_layout(wanted(None), IDENTITY, known).volume_names) is added
    unclassed = kube(volumes=(A,), claims=(replace(former, storage_class=None),))
    assert layouts.held_layout(wanted(None), IDENTITY, unclassed).volume_names == ("a", "c")
    # What pods use already is as it is.
    assert layouts.held_layout(wanted("fast"), IDENTITY, kube(volumes=(A, C), claims=(former,))).volume_names[1] == "c"


@pytest.mark.spec("OPR-42", "OPR-08")
def test_claims_of_controllers_that_went_are_listed_and_deleted_only_when_they_were_given_up() -> None:
    born = Identity("id", (100_000,), dedicated=True)
    rows = tuple(
        ClaimFacts(f"metadata-demo-controller-{n}", "u", "metadata", f"demo-controller-{n}", "5Gi", drained=n == 2)
        for n in range(3)
    )
    there = kube(controllers={n: PodFacts(f"demo-controller-{n}", "u", n) for n in range(3)}, controller_claims=rows)
    three = layouts.held_layout(cluster(), born, replace(there, controller_replicas=3))
    assert claims.unused_claims(three, there) == []
    assert claims.claims_in_use_again(three, there) == [rows[2]], "it is in use again"
    one = layouts.held_layout(cluster(), born, replace(there, controller_replicas=1))
    assert claims.unused_claims(one, there) == [], "their pods are still there"
    gone = replace(there, controllers={0: there.controllers[0]}, controller_replicas=1)
    assert claims.unused_claims(one, gone) == [*rows[1:]]
    assert claims.claims_to_delete(one, gone, view()) == [rows[2]], "nobody has given up the other"
    assert claims.claims_in_use_again(one, gone) == []


def stored(name: str, role: str = "broker", drained: bool = False) -> dict[str, object]:
    annotations = {"ballast.dev/drained": "true"} if drained else {}
    meta = {"name": name, "uid": name, "labels": {"ballast.dev/role": role}, "annotations": annotations}
    return {"metadata": meta, "spec": {"resources": {"requests": {"storage": "10Gi"}}}}


@pytest.mark.spec("OPR-08", "OPR-43", "OPR-45")
def test_without_its_stateful_set_a_cluster_is_what_its_claims_hold() -> None:
    """Somebody deleted it while brokers and volumes were being drained."""
    found = [stored(f"{volume}-demo-{n}") for n in range(5) for volume in ("c", "b", "metadata")]
    found += [stored("a-demo-7", drained=True), stored("d-demo-0", drained=True)]
    # What is called in another way is somebody's own, whatever its labels.
    found += [stored("a-demo-0-copy-9"), stored("b-demo-restored"), stored("metadata-demo-controller-0", "controller")]
    subject = cluster(volumes=[{"name": "b", "size": "10Gi"}])
    facts = kube_facts(subject, None, [], found)
    assert (facts.replicas, list(facts.volumes)) == (5, ["b", "c"])
    layout = layouts.held_layout(subject, IDENTITY, facts)
    assert (layout.brokers, layout.volume_names) == (5, ("b", "c"))
    assert [claim.name for claim in claims.unused_claims(layout, facts)] == [
        "a-demo-7", "d-demo-0", "metadata-demo-controller-0",
    ]  # fmt: skip
    assert [(claim.name, claim.pod) for claim in facts.controller_claims] == [
        ("metadata-demo-controller-0", "demo-controller-0")
    ]


def running(*volumes: str) -> list[dict[str, Any]]:
    """The pods of three brokers with these volumes."""

    def mounted(broker: int) -> list[dict[str, Any]]:
        return [{"name": one, "persistentVolumeClaim": {"claimName": f"{one}-demo-{broker}"}} for one in volumes]

    labels = {"ballast.dev/role": "broker"}
    return [
        {"metadata": {"name": f"demo-{n}", "uid": f"uid-{n}", "labels": labels}, "spec": {"volumes": mounted(n)}}
        for n in range(3)
    ]


@pytest.mark.spec("OPR-04", "OPR-43")
def test_a_volume_that_was_emptied_does_not_come_back_with_a_set_that_was_to_be_made_anew_without_it() -> None:
    """An operator that was killed between the two was followed by one that began again, and so on for ever."""
    subject = cluster(volumes=[{"name": "a", "size": "10Gi"}])
    for drained, volumes in (((0, 1, 2), ["a"]), ((0, 2), ["a", "b"]), ((), ["a", "b"])):
        claims = [stored(f"a-demo-{n}") for n in range(3)] + [
            stored(f"b-demo-{n}", drained=n in drained) for n in range(3)
        ]
        facts = kube_facts(subject, None, running("a", "b"), claims)
        assert (facts.replicas, list(facts.volumes)) == (3, volumes)
    assert list(kube_facts(subject, None, running("a", "b"), []).volumes) == ["a", "b"], "nobody knows what is in it"


@pytest.mark.spec("OPR-04", "OPR-42")
@pytest.mark.parametrize("spoilt", ["x", "[]", '{"a": "east"}', "{", "3,", ",four,"])
def test_marks_that_somebody_has_spoilt_are_none(spoilt: str) -> None:
    """Every look at the cluster failed by them, and nothing told why."""
    marks = {"ballast.dev/racks": spoilt, "ballast.dev/added-brokers": spoilt}
    found = {"metadata": {"annotations": marks}, "spec": {"replicas": 3, "template": {"spec": {}}}}
    facts = kube_facts(cluster(rack={"topologyKey": "zone"}), found, [], [])
    assert (facts.replicas, facts.racks, facts.added) == (3, {}, (3,) if spoilt == "3," else ())


@pytest.mark.spec("OPR-40", "OPR-43")
def test_the_volume_of_the_metadata_log_grows_wherever_it_is() -> None:
    names = {"broker": "metadata-demo-0", "controller": "metadata-demo-controller-0"}
    subject = cluster(metadataVolume={"size": "20Gi"})
    facts = kube_facts(subject, None, [], [stored(name, role) for role, name in names.items()])
    layout = layouts.held_layout(subject, IDENTITY, facts)
    assert claims.claims_to_grow(layout, facts) == dict.fromkeys(names.values(), "20Gi")


# Racks.

ZONE = {"rack": {"topologyKey": "zone"}}
TOLD = ("east", "", None)
NODES = {"n-0": NodeFacts("n-0", {"zone": "east"}), "n-1": NodeFacts("n-1", {"zone": "west"}), "n-2": NodeFacts("n-2")}


def on_nodes(racks: dict[int, str] | None = None) -> KubeFacts:
    """Broker N on node N."""
    found = kube(racks=racks or {})
    return replace(found, pods={n: replace(pod, node=f"n-{n}") for n, pod in found.pods.items()})


@pytest.mark.spec("OPR-40")
def test_a_broker_is_in_the_rack_of_its_node_and_stays_there_while_it_has_none() -> None:
    assert with_racks(cluster(**ZONE), on_nodes(), NODES).racks == {0: "east", 1: "west"}
    assert with_racks(cluster(), on_nodes(), NODES).racks == {}
    unscheduled = kube(racks={0: "south"})
    assert with_racks(cluster(**ZONE), unscheduled, {}).racks == {0: "south"}
    denied = {"n-0": NodeFacts("n-0", error="nodes is forbidden")}
    assert with_racks(cluster(**ZONE), on_nodes({0: "south"}), denied).racks == {0: "south"}


@pytest.mark.spec("OPR-40")
def test_a_broker_that_tells_another_rack_is_restarted_and_one_without_is_named() -> None:
    subject = cluster(**ZONE)
    facts = with_racks(subject, on_nodes(), NODES)
    seen = view({})
    told = {n: broker._replace(rack=rack) for (n, broker), rack in zip(seen.brokers.items(), TOLD, strict=True)}
    seen = replace(seen, brokers=told)
    layout = layouts.held_layout(subject, IDENTITY, facts)
    assert [pod.ordinal for pod in restarts.outdated_brokers(facts, "new", seen, layout)] == [1]
    assert restarts.next_restart(facts, "new", seen, {}, layout).node == 1
    lacking, error = liveness.racks_unknown(subject, facts, NODES)
    assert (lacking, error) == ([2], "node n-2 has no label zone")
    assert liveness.racks_unknown(cluster(), facts, NODES) == ([], "")
    denied = dict.fromkeys(NODES, NodeFacts("n", error="nodes is forbidden"))
    assert liveness.racks_unknown(subject, on_nodes(), denied) == ([0, 1, 2], "nodes is forbidden")


# Controllers with pods of their own.


OWN = (100_000, 100_001, 100_002)


def controllers(*states: tuple[bool, str]) -> KubeFacts:
    rows = {n: PodFacts(f"c-{n}", f"uid-{n}", n, ready, revision=r) for n, (ready, r) in enumerate(states)}
    return kube(controllers=rows)


def quorum(leader: int, voters: tuple[int, ...] = OWN, behind: tuple[int, ...] = ()) -> QuorumView:
    rows = {n: Member(n, None, 9, 100_000, 0 if n in behind else 100_000) for n in voters}
    return QuorumView(STATIC, leader, 9, rows)


@pytest.mark.spec("OPR-44")
def test_controllers_restart_one_at_a_time_while_all_are_there_the_active_one_last() -> None:
    old, new = (True, "old"), (True, "new")
    assert restarts.next_controller_restart(controllers(new, new, new), "new", OWN, quorum(OWN[0])).node is None
    found = restarts.next_controller_restart(controllers(old, old, new), "new", OWN, quorum(OWN[0]))
    assert (found.node, found.left) == (100_001, 1)
    assert restarts.next_controller_restart(controllers(old, new, new), "new", OWN, quorum(OWN[0])).node == 100_000
    waits = restarts.next_controller_restart(controllers(old, (False, "new"), new), "new", OWN, quorum(OWN[2]))
    assert (waits.node, waits.next, waits.waits) == (None, 100_000, "controller 100001 is not ready")
    # One that does not work with its old configuration may be just what the change mends.
    broken = restarts.next_controller_restart(controllers((False, "old"), old, new), "new", OWN, quorum(OWN[1]))
    assert broken.node == 100_000
    assert restarts.next_controller_restart(controllers((False, "old"), old, new), "new", OWN, None).node == 100_000


@pytest.mark.spec("OPR-44", "OPR-42")
def test_a_controller_is_restarted_only_while_the_others_follow() -> None:
    """Its pod is ready as soon as it listens: the next one was restarted while it still had a long way to go, and of
    three that vote a single one had the metadata."""
    old, new = (True, "old"), (True, "new")
    restarted = controllers(new, old, old)
    waits = restarts.next_controller_restart(restarted, "new", OWN, quorum(OWN[2], behind=(OWN[0],)))
    assert (waits.node, waits.next) == (None, 100_001)
    assert waits.waits == "controller 100000 does not follow the metadata log"
    assert restarts.next_controller_restart(restarted, "new", OWN, quorum(OWN[2])).node == 100_001
    waits = restarts.next_controller_restart(restarted, "new", OWN, None)
    assert (waits.node, waits.waits) == (None, "nobody tells which controllers follow")
    # Who does not follow is missed by nobody, and may need just that restart.
    behind = quorum(OWN[0], behind=(OWN[2],))
    assert restarts.next_controller_restart(controllers(old, old, old), "new", OWN, behind).node == 100_002
    alone = restarts.next_controller_restart(controllers(old), "new", OWN[:1], None)
    assert alone.node == 100_000, "there is nobody who could take over"
    # One that does not vote, or not yet, is missed by nobody either.
    watching = quorum(OWN[1], voters=OWN[1:], behind=(OWN[2],))
    assert restarts.next_controller_restart(controllers(old, new, new), "new", OWN, watching).node == 100_000


@pytest.mark.spec("OPR-44")
def test_controllers_that_follow_are_not_restarted_together_because_their_kubelets_are_silent() -> None:
    silent, leads = (False, "old"), quorum(OWN[2])
    facts = controllers(silent, silent, silent)
    assert restarts.next_controller_restart(facts, "new", OWN, leads).node == OWN[0]
    ending = replace(facts.controllers[0], deleting_since="2026-01-02T03:04:05Z")
    waits = restarts.next_controller_restart(
        replace(facts, controllers={**facts.controllers, 0: ending}), "new", OWN, leads
    )
    assert (waits.node, waits.waits) == (None, f"controller {OWN[0]} is not ready")
    back = controllers((True, "new"), silent, silent)
    waits = restarts.next_controller_restart(back, "new", OWN, quorum(OWN[2], behind=(OWN[0],)))
    assert waits.waits == f"controller {OWN[0]} does not follow the metadata log"
    assert restarts.next_controller_restart(back, "new", OWN, leads).node == OWN[1]
    # Who does not follow is missed by nobody.
    behind = quorum(OWN[2], behind=(OWN[0],))
    assert restarts.next_controller_restart(facts, "new", OWN, behind).node == OWN[0]


@pytest.mark.spec("OPR-44", "OPR-42")
def test_a_broker_that_votes_stays_until_the_others_that_vote_follow() -> None:
    layout = Layout(cluster(), IDENTITY, 3, (A, B))

    def found(told: QuorumView) -> restarts.Restart:
        return restarts.next_restart(kube(revision="old"), "new", WHOLE, {"orders": 2}, layout, told)

    assert found(quorum(2, IDENTITY.controllers, behind=(0,))).waits == "controller 0 does not follow the metadata log"
    assert found(quorum(2, (2, 3), behind=(3,))).node == 1, "it does not vote"
    assert found(quorum(2, IDENTITY.controllers)).node == 1


@pytest.mark.spec("OPR-45")
def test_a_pod_whose_end_is_overdue_is_lost_with_its_node() -> None:
    ending = PodFacts("demo-1", "uid-1", 1, node="n-1", deleting_since="2026-01-02T03:04:05Z")
    facts = kube(pods={1: ending})
    due = 1_767_323_045.0
    assert liveness.lost_pods(facts, due + 59) == []
    assert [pod.name for pod in liveness.lost_pods(facts, due + 61)] == ["demo-1"]
    assert liveness.lost_pods(kube(pods={1: replace(ending, node=None)}), due + 3_600) == []


@pytest.mark.spec("OPR-45")
def test_a_pod_that_has_ended_and_is_kept_by_a_finalizer_is_not_lost_with_its_node() -> None:
    """People were told to taint a node that is well, which ends by force all that runs there."""
    body = {
        "metadata": {"name": "demo-1", "uid": "u", "deletionTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["x/y"]},
        "spec": {"nodeName": "n-1"},
    }
    due = 1_767_323_045.0
    ended = kube_module.pod_facts({**body, "status": {"phase": "Succeeded"}})
    assert liveness.lost_pods(kube(pods={1: ended}), due + 61) == []
    assert liveness.kept_pods(kube(pods={1: ended}), due + 59) == []
    assert [pod.held_by for pod in liveness.kept_pods(kube(pods={1: ended}), due + 61)] == [("x/y",)]
    running = kube_module.pod_facts({**body, "status": {"phase": "Running"}})
    assert [pod.name for pod in liveness.lost_pods(kube(pods={1: running}), due + 61)] == ["demo-1"]
    assert liveness.kept_pods(kube(pods={1: running}), due + 61) == []


def _troubled(claim: ClaimFacts, trouble: str) -> ClaimFacts:
    return replace(claim, deleting=True) if trouble == "deleting" else replace(claim, lost=True)


@pytest.mark.spec("OPR-08", "OPR-45")
@pytest.mark.parametrize("trouble", ["deleting", "lost"])
def test_a_pod_whose_claim_it_would_not_find_again_is_restarted_by_no_change(trouble: str) -> None:
    found = [ClaimFacts(f"a-demo-{n}", "u", "a", f"demo-{n}", "10Gi") for n in range(3)]
    found[1] = _troubled(found[1], trouble)
    old = kube(revision="old", claims=tuple(found))
    assert [claim.name for claim in claims.claims_going(old)] == ["a-demo-1"]
    assert restart(old, WHOLE).node == 2
    assert restart(kube(pods={1: old.pods[1]}, claims=tuple(found)), WHOLE) == restarts.Restart()
    # Who is not at work has nothing to lose, and is to come to what it is told anew.
    waits = {1: replace(old.pods[1], ready=False)}
    assert claims.claims_going(kube(pods=waits, claims=tuple(found))) == []
    # What no pod uses goes as it should.
    assert claims.claims_going(kube(volumes=(B,), claims=tuple(found))) == []
    metadata = _troubled(ClaimFacts("metadata-c-0", "u", "metadata", "c-0", "5Gi"), trouble)
    own = replace(controllers((True, "old"), (True, "old")), controller_claims=(metadata,))
    assert [claim.name for claim in claims.claims_going(own)] == ["metadata-c-0"]
    assert restarts.next_controller_restart(own, "new", OWN[:2], quorum(OWN[1], OWN[:2])).node == OWN[1]


@pytest.mark.spec("OPR-42", "OPR-45")
def test_a_broker_that_is_not_wanted_but_holds_replicas_is_missed() -> None:
    """Its pod went with a StatefulSet or KafkaCluster that was deleted; nobody would bring it back."""
    left = view({"orders": topic_view((0, 4))}, brokers=range(6), offline=[4, 5])
    assert health(left, 3).reason == "BrokersOffline"
    assert "online: 4." in health(left, 3).message
    assert health(view({"orders": topic_view((0, 1))}, brokers=range(6), offline=[4, 5]), 3).reason == "Ready"


@pytest.mark.spec("OPR-41")
def test_nodes_lag_until_their_replicas_and_their_metadata_are_where_the_others_are() -> None:
    topics = {"a": topic_view((0, 1, 2), (1, 2), isr={0: (0, 1)}), "b": topic_view((0, 1, 2))}
    assert restarts.lagging_nodes(view(topics), None) == {2}
    moving = {("a", 0): OngoingView((0, 1, 2), adding=(2,), removing=())}
    assert restarts.lagging_nodes(view(topics, ongoing=moving), None) == frozenset(), "nobody misses it yet"
    voters = {node: Member(node, None, 100, 50_000 - 10_000 * (node == 1), 50_000) for node in range(3)}
    assert restarts.lagging_nodes(view(topics), QuorumView(0, 0, 100, voters)) == {1, 2}
