"""The load model and the plan's formats."""

import json
from typing import Any

import pytest

from ballast_planner import (
    Broker,
    ClusterLoad,
    Directory,
    LoadError,
    Move,
    Placement,
    Plan,
    PlanFormatError,
    Replica,
    ResourceOptions,
    plan_hash,
    reassignment_resources,
    rows_from_kafka_json,
    rows_from_resource,
    to_kafka_json,
)

BROKERS = [Broker(1, "a"), Broker(2, "b")]
DIRECTORIES = [Directory(1, "/a", 100, 60), Directory(1, "/b", 100, 0), Directory(2, "/a", 100, 30)]
REPLICAS = [
    Replica("t", 0, 1, "/a", 20, True, 0),
    Replica("t", 0, 2, "/a", 20, False, 1),
    Replica("s", 3, 1, "/a", 30, True, 0),
]


# As many may an object have; `kubectl apply` keeps the whole object in one.
ANNOTATIONS_BYTES = 256 * 1024


def a_move(partition: int = 0, wave: int = 0, size: int = 5) -> Move:
    return Move("t", partition, Placement((1, 2), ("/a", "/a")), Placement((1, 2), ("/b", "/a")), 0, size, wave)


def test_rows_in_any_order_give_the_same_load() -> None:
    one = ClusterLoad.from_rows(BROKERS, DIRECTORIES, REPLICAS)
    other = ClusterLoad.from_rows(reversed(BROKERS), reversed(DIRECTORIES), reversed(REPLICAS))
    assert one.topics == other.topics == ("s", "t")
    assert one.replicas.size.tolist() == other.replicas.size.tolist() == [30, 20, 20]
    assert one.replicas.directory.tolist() == other.replicas.directory.tolist()


@pytest.mark.parametrize(
    ("brokers", "directories", "replicas", "says"),
    [
        ([*BROKERS, Broker(1)], DIRECTORIES, REPLICAS, "twice"),
        (BROKERS, [*DIRECTORIES, Directory(9, "/a", 1, 0)], REPLICAS, "not listed"),
        (BROKERS, [Directory(1, "/a", 0, 0)], [], "capacity"),
        (BROKERS, DIRECTORIES, [Replica("t", 0, 1, "/nowhere", 1)], "not listed"),
        (BROKERS, DIRECTORIES, [Replica("t", 0, 1, "/a", 1), Replica("t", 0, 1, "/b", 1)], "on one broker"),
        (BROKERS, DIRECTORIES, [Replica("t", 0, 1, "/a", -1)], "negative"),
        (BROKERS, DIRECTORIES, [Replica("t", 0, 7, None, 1)], "not listed"),
        (BROKERS, DIRECTORIES, [Replica("t", p, 1, "/a", 2**62) for p in range(5)], "which nobody has"),
        (BROKERS, [Directory(1, path, 2**62, 0) for path in ("/a", "/b", "/c", "/d")], [], "which nobody has"),
        (BROKERS, [Directory(1, "/a", 100, 2**70)], [], "which nobody has"),
    ],
)
def test_contradictions_are_refused(
    brokers: list[Broker], directories: list[Directory], replicas: list[Replica], says: str
) -> None:
    with pytest.raises(LoadError, match=says):
        ClusterLoad.from_rows(brokers, directories, replicas)


@pytest.mark.spec("OPR-32")
def test_hash_depends_on_moves_and_waves_only() -> None:
    assert plan_hash([a_move(0), a_move(1)]) == plan_hash(Plan((a_move(1, size=9), a_move(0, size=7))))
    assert plan_hash([a_move(0)]) != plan_hash([a_move(0, wave=1)])
    assert plan_hash([a_move(0)]) != plan_hash([a_move(1)])
    assert len(plan_hash([])) == 64


@pytest.mark.spec("DIR-10")
def test_kafka_json_round_trip_and_refusals() -> None:
    (row,) = rows_from_kafka_json(to_kafka_json([a_move()]))
    assert (row.topic, row.partition, row.to) == ("t", 0, Placement((1, 2), ("/b", "/a")))
    plain: dict[str, Any] = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}
    assert rows_from_kafka_json(json.dumps(plain))[0].to.log_dirs == ("any", "any")
    plain["partitions"][0]["log_dirs"] = ["/a"]
    with pytest.raises(PlanFormatError, match="t-0: 1 log_dirs for 2 replicas"):
        rows_from_kafka_json(json.dumps(plain))
    plain["partitions"][0]["log_dirs"] = ["/a", "b"]
    with pytest.raises(PlanFormatError, match="absolute"):
        rows_from_kafka_json(json.dumps(plain))
    with pytest.raises(PlanFormatError, match="version"):
        rows_from_kafka_json('{"version":2,"partitions":[]}')


def test_rollback_is_the_inverse() -> None:
    plan = Plan((a_move(0, wave=0), a_move(1, wave=1)))
    back = plan.inverse()
    assert [(move.partition, move.wave) for move in back] == [(0, 1), (1, 0)]
    assert back[0].to == plan.moves[0].from_


@pytest.mark.spec("OPR-30")
def test_small_plan_is_one_resource_that_reads_back() -> None:
    plan = Plan((a_move(0), a_move(1, wave=1)))
    (resource,) = reassignment_resources(
        plan, ResourceOptions("r", "ns", "c", inter_broker_throttle="50Mi", expires_at="2030-01-01T00:00:00Z")
    )
    spec = resource["spec"]
    assert spec["approval"] == "Required"
    assert spec["planHash"] == plan_hash(plan)
    assert spec["throttle"] == {"interBroker": "50Mi"}
    rows = rows_from_resource(resource, {})
    assert [(row.partition, row.to, row.from_, row.wave) for row in rows] == [
        (move.partition, move.to, move.from_, move.wave) for move in plan.moves
    ]


@pytest.mark.spec("OPR-30")
def test_large_plan_is_cut_into_config_maps() -> None:
    plan = Plan(tuple(a_move(partition) for partition in range(6_000)))
    *maps, resource = reassignment_resources(plan, ResourceOptions("r", "ns", "c"))
    assert len(maps) > 1
    assert all(len(json.dumps(item)) <= ANNOTATIONS_BYTES for item in maps)
    assert "partitions" not in resource["spec"]
    by_name = {item["metadata"]["name"]: item for item in maps}
    assert [row.partition for row in rows_from_resource(resource, by_name)] == list(range(6_000))
    by_name.popitem()
    with pytest.raises(PlanFormatError, match="does not exist"):
        rows_from_resource(resource, by_name)


@pytest.mark.spec("OPR-30")
def test_few_rows_with_long_names_are_cut_into_config_maps_as_well() -> None:
    topic, here, there = "t" * 249, Placement((1, 2, 3), ("/" + "a" * 100,) * 3), Placement((3, 2, 1), ("/b",) * 3)
    plan = Plan(tuple(Move(topic, partition, here, there, 0, 5) for partition in range(500)))
    made = reassignment_resources(plan, ResourceOptions("r", "ns", "c"))
    assert len(made) > 1
    assert all(len(json.dumps(item)) <= ANNOTATIONS_BYTES for item in made)
