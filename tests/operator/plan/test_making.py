"""Every mode of a Reassignment becomes a plan of the one planner, or a sentence that says why not."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.making import GIB, cluster, reassignment, topic_view, view

from ballast_operator.model.kafka import DirectoryId, KafkaView, LogView
from ballast_operator.plan.making import (
    BrokersAwayError,
    InvalidPlanError,
    PlanMissingError,
    StalePlanError,
    TopicMissingError,
    make_plan,
)
from ballast_operator.plan.volumes import directory_weights, mounted_paths
from ballast_planner import Plan

SKEWED = {("orders", n, n % 3): LogView("/a", 10 * GIB) for n in range(6)}


def filled(seen: KafkaView) -> KafkaView:
    """With directories as full as their logs."""
    full = {
        where: found._replace(
            usable_bytes=found.total_bytes
            - sum(log.size_bytes for replica, log in seen.logs.items() if (replica.broker, log.path) == where)
        )
        for where, found in seen.directories.items()
    }
    return replace(seen, directories=full)


SEEN = view({"orders": topic_view(*[(n % 3,) for n in range(6)])}, SKEWED)


def plan(seen: KafkaView = SEEN, config_maps: Any = None, paths: Any = None, **spec: Any) -> Plan:
    return make_plan(reassignment(**spec).spec, config_maps or {}, seen, paths)


def targets(found: Plan) -> dict[int, tuple[tuple[int, ...], tuple[str, ...]]]:
    return {move.partition: (move.to.replicas, move.to.log_dirs) for move in found.moves}


@pytest.mark.spec("OPR-30")
def test_rows_are_taken_as_they_are_and_any_becomes_a_directory() -> None:
    rows = [
        {"topic": "orders", "partition": 0, "replicas": [1], "logDirs": ["/b"]},
        {"topic": "orders", "partition": 1, "replicas": [2]},
    ]
    found = targets(plan(partitions=rows))
    assert found[0] == ((1,), ("/b",))
    assert found[1][0] == (2,)
    assert found[1][1][0] in ("/a", "/b")


@pytest.mark.spec("OPR-30")
@pytest.mark.spec("DIR-10")
@pytest.mark.parametrize(
    "text",
    [
        json.dumps([{"topic": "orders", "partition": 0, "replicas": [1], "logDirs": ["/b"]}]),
        json.dumps(
            {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1], "log_dirs": ["/b"]}]}
        ),
    ],
)
def test_plans_come_from_config_maps_too_as_rows_or_as_kafkas_json(text: str) -> None:
    source = [{"configMapRef": {"name": "big"}}]
    found = plan(config_maps={"big": {"data": {"partitions.json": text}}}, planFrom=source)
    assert targets(found) == {0: ((1,), ("/b",))}
    with pytest.raises(PlanMissingError, match="ConfigMap big does not exist"):
        plan(planFrom=source)
    with pytest.raises(PlanMissingError, match="no key"):
        plan(config_maps={"big": {"data": {}}}, planFrom=source)
    for wrong in ("[{]", "[" * 100_000):  # what was thrown for the latter held up all topics of the cluster
        with pytest.raises(InvalidPlanError, match="ConfigMap big holds no JSON"):
            plan(config_maps={"big": {"data": {"partitions.json": wrong}}}, planFrom=source)


@pytest.mark.spec("OPR-30")
@pytest.mark.parametrize(
    "spec",
    [
        {"drainDirectories": [{"broker": 1, "directory": "/a"}]},
        {"partitions": [{"topic": "orders", "partition": 0, "replicas": [1], "logDirs": ["/b"]}]},
        {"partitions": [{"topic": "orders", "partition": 0, "replicas": [1]}]},
    ],
)
def test_directories_of_a_broker_that_is_away_are_not_said_not_to_exist(spec: dict[str, Any]) -> None:
    away = replace(
        SEEN,
        brokers={**SEEN.brokers, 1: SEEN.brokers[1]._replace(online=False)},
        described=SEEN.described - {1},
        directories={where: found for where, found in SEEN.directories.items() if where.broker != 1},
        logs={replica: found for replica, found in SEEN.logs.items() if replica.broker != 1},
    )
    with pytest.raises(BrokersAwayError, match=r"brokers \[1\] are away"):
        plan(away, **spec)
    assert plan(away, partitions=[{"topic": "orders", "partition": 0, "replicas": [2]}]).moves
    with pytest.raises(InvalidPlanError, match="broker 1 has no directory /c"):
        plan(drainDirectories=[{"broker": 1, "directory": "/c"}])


@pytest.mark.spec("OPR-30")
def test_drains_empty_brokers_and_directories_by_bytes() -> None:
    assert all(0 not in to for to, _ in targets(plan(drainBrokers=[0])).values())
    moved = targets(plan(drainDirectories=[{"broker": 1, "directory": "/a"}]))
    assert set(moved) == {1, 4}
    assert all(to == ((1,), ("/b",)) for to in moved.values())


@pytest.mark.spec("OPR-30")
def test_replication_factor_new_brokers_and_generation() -> None:
    assert all(len(to) == 2 for to, _ in targets(plan(replicationFactor=[{"topic": "orders", "replicas": 2}])).values())
    levelled = plan(filled(SEEN), generate={})
    assert levelled.quality is not None
    assert levelled.quality.after.spread < levelled.quality.before.spread
    grown = view({"orders": topic_view(*[(n % 3,) for n in range(6)])}, SKEWED, brokers=(0, 1, 2, 3))
    assert {to for to, _ in targets(plan(filled(grown), addBrokers=[3])).values()} == {(3,)}


@pytest.mark.spec("OPR-32")
def test_rows_whose_from_is_not_true_are_named() -> None:
    row = {"topic": "orders", "partition": 0, "replicas": [1], "from": {"replicas": [2]}}
    with pytest.raises(StalePlanError) as raised:
        plan(partitions=[row])
    assert raised.value.rows == ("orders-0",)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"drainBrokers": [9]}, "9"),
        ({"partitions": [{"topic": "orders", "partition": 0, "replicas": [1], "logDirs": ["/z"]}]}, "/z"),
    ],
)
def test_what_cannot_be_planned_says_why(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidPlanError, match=words):
        plan(**spec)


@pytest.mark.spec("OPR-30")
@pytest.mark.parametrize(
    ("spec", "words", "topics"),
    [
        ({"partitions": [{"topic": "none", "partition": 0, "replicas": [1]}]}, "topic none is not there", {"none"}),
        (
            {"partitions": [{"topic": "orders", "partition": n, "replicas": [1]} for n in (0, 6)]},
            "partition orders-6 is not there", {"orders"},
        ),
        ({"replicationFactor": [{"topic": "none", "replicas": 2}]}, "topic none is not there", {"none"}),
        ({"generate": {"topics": ["none", "orders", "nor"]}}, "topic none, topic nor are not there", {"none", "nor"}),
    ],
)  # fmt: skip
def test_topics_and_partitions_that_may_yet_come_are_named(spec: dict[str, Any], words: str, topics: set[str]) -> None:
    with pytest.raises(TopicMissingError, match=words) as raised:
        plan(**spec)
    assert raised.value.topics == topics


@pytest.mark.spec("OPR-30")
def test_a_topic_that_was_there_when_the_rows_were_made_is_not_one_that_is_yet_to_come() -> None:
    with pytest.raises(InvalidPlanError, match="none-0") as raised:
        plan(partitions=[{"topic": "none", "partition": 0, "replicas": [1], "from": {"replicas": [2]}}])
    assert not isinstance(raised.value, TopicMissingError)


def test_a_volume_may_be_named_by_the_path_that_pods_mount_it_at() -> None:
    real = {b: f"/data/volumes/default/b-demo-{b}/data" for b in range(3)}
    seen = view({"orders": topic_view((0,))}, {("orders", 0, 0): LogView("/a", 5)}, directories=("/a", *real.values()))
    paths = mounted_paths(cluster(), seen)
    assert paths[DirectoryId(0, "/var/lib/ballast/b/data")] == real[0]
    rows = [{"topic": "orders", "partition": 0, "replicas": [0], "logDirs": ["/var/lib/ballast/b/data"]}]
    assert targets(plan(seen, paths=paths, partitions=rows)) == {0: ((0,), (real[0],))}


def weighted(light: int) -> KafkaView:
    """One broker with all bytes in one of its directories, as the pods of a cluster mount them."""
    paths = ("/var/lib/ballast/a/data", "/var/lib/ballast/b/data")
    logs = {("orders", n, 0): LogView(paths[light], 2 * GIB) for n in range(30)}
    return filled(view({"orders": topic_view(*[(0,)] * 30)}, logs, brokers=(0,), directories=paths))


@pytest.mark.spec("OPR-40")
@pytest.mark.parametrize("light", [0, 1])
def test_a_volume_of_half_the_weight_is_kept_half_as_full(light: int) -> None:
    volumes: list[dict[str, Any]] = [{"name": "a", "size": "100Gi"}, {"name": "b", "size": "100Gi"}]
    volumes[light]["weight"] = 50
    seen = weighted(light)
    weights = directory_weights(cluster(volumes=volumes), seen)
    assert list(weights.values()) == [50]
    found = make_plan(reassignment(generate={}).spec, {}, seen, weights=weights)
    # 60 GiB: 20 on the light one, 40 on the other, within the band; it began with all of it, beyond its half.
    assert 18 <= len(found.moves) <= 22
    rows = [{"topic": "orders", "partition": n, "replicas": [0], "logDirs": [next(iter(weights)).path]} for n in (0,)]
    assert make_plan(reassignment(partitions=rows).spec, {}, seen, weights=weights).moves == ()


@pytest.mark.spec("OPR-20", "OPR-30")
def test_what_levels_leaves_topics_whose_brokers_are_named_where_they_are() -> None:
    """Their KafkaTopics would have them moved back, and the next plan would move them again."""
    names = ("orders", "pinned")
    logs = {(name, n, n % 2): LogView("/a", 10 * GIB) for name in names for n in range(6)}
    seen = filled(view({name: topic_view(*[(n % 2,) for n in range(6)]) for name in names}, logs))
    modes: list[dict[str, Any]] = [{"generate": {}}, {"addBrokers": [2]}]
    for mode in modes:
        spec = reassignment(**mode).spec
        assert {move.topic for move in make_plan(spec, {}, seen).moves} == {"orders", "pinned"}
        assert {move.topic for move in make_plan(spec, {}, seen, pinned={"pinned"}).moves} == {"orders"}
    away = reassignment(drainBrokers=[0]).spec
    assert "pinned" in {move.topic for move in make_plan(away, {}, seen, pinned={"pinned"}).moves}, "it has to go"
