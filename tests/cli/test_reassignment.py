"""Plans in Kafka's format, and how far one is, from what the cluster said."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ballast_cli import CommandError
from ballast_cli.reassignment import Directory, Key, Place, Snapshot, Target, progress, read_plan, write_plan

ORDERS = Key("orders", 0)


def rows(*partitions: dict[str, object]) -> str:
    return json.dumps({"version": 1, "partitions": list(partitions)})


@pytest.mark.spec("DIR-10")
def test_a_plan_without_directories_means_any() -> None:
    plan = read_plan(rows({"topic": "orders", "partition": 0, "replicas": [1, 2]}))
    assert plan == {ORDERS: Target((1, 2), ("any", "any"))}
    assert read_plan(write_plan(plan)) == plan
    assert plan[ORDERS].directories() == {}


@pytest.mark.spec("DIR-10")
def test_a_directory_may_be_written_with_more_slashes_than_it_has() -> None:
    """Brokers take it, so the move is made: it has not failed when it is there."""
    text = rows({"topic": "orders", "partition": 0, "replicas": [1, 2], "log_dirs": ["/d1/", "any"]})
    assert [state.text for state in progress(read_plan(text), SEEN)] == ["complete"]


@pytest.mark.spec("DIR-10")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (rows({"topic": "orders", "partition": 0, "replicas": [1, 2], "log_dirs": ["any"]}), "orders-0: 2 replicas"),
        (
            rows({"topic": "orders", "partition": 0, "replicas": [1], "log_dirs": ["any", "any"]}),
            "orders-0: 1 replica but 2 log_dirs",
        ),
        (rows({"topic": "orders", "partition": 0, "replicas": [1], "log_dirs": ["d1"]}), "'d1'"),
        (rows({"topic": "orders", "partition": 0, "replicas": [1, 1]}), "twice"),
        (rows({"topic": "orders", "partition": 0, "replicas": []}), "empty"),
        (rows(*[{"topic": "orders", "partition": 0, "replicas": [1]}] * 2), "twice"),
        ('{"version": 2, "partitions": []}', "version 2"),
        ("[]", "JSON: it is not an object with partitions"),
        ("{", "JSON: Expecting property name"),
        ("{}", "JSON: 'partitions' is missing"),
        (rows({"topic": "orders", "partition": 0}), "JSON: 'replicas' is missing"),
        (rows({"topic": "orders", "partition": 0.5, "replicas": [1]}), "JSON: 0.5 is not an integer"),
        (rows({"topic": "orders", "partition": 0, "replicas": [1.5]}), "JSON: 1.5 is not an integer"),
        (rows({"topic": "orders", "partition": 0, "replicas": 1}), "JSON: replicas is not a list: 1"),
        (
            rows({"topic": "orders", "partition": 0, "replicas": [1], "log_dirs": "any"}),
            "log_dirs is not a list: 'any'",
        ),
    ],
)
def test_a_wrong_plan_is_refused_with_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(CommandError, match=says):
        read_plan(text)


SEEN = Snapshot(
    taken_s=0.0,
    brokers=((1, None), (2, None)),
    replicas={ORDERS: (1, 2)},
    leaders={ORDERS: 1},
    in_sync={ORDERS: frozenset({1, 2})},
    current={(ORDERS, 1): Place("/d1", 1000, 0), (ORDERS, 2): Place("/d1", 1000, 0)},
    future={},
    directories=(Directory(1, "/d1", 10_000, 5_000, True),),
    reassigning=frozenset(),
)


@pytest.mark.spec("DIR-40", "CLU-32")
def test_the_states_of_a_partition() -> None:
    plan = {ORDERS: Target((1, 2), ("/d2", "any"))}
    [state] = progress(plan, SEEN)
    assert (state.done, state.failed) == (True, True)
    assert "not being moved to /d2" in state.text

    moving = replace(SEEN, future={(ORDERS, 1): Place("/d2", 400, 6)})
    [state] = progress(plan, moving)
    assert (state.done, state.left_bytes) == (False, 600)

    there = replace(SEEN, current={**SEEN.current, (ORDERS, 1): Place("/d2", 1000, 0)})
    [state] = progress(plan, there)
    assert (state.text, state.done, state.failed) == ("complete", True, False)


@pytest.mark.spec("DIR-45")
@pytest.mark.parametrize(("usable", "lacks"), [(10_000, False), (1_500, True), (599, True), (-1, False)])
def test_of_a_move_that_its_destination_has_no_room_for_one_is_told(usable: int, lacks: bool) -> None:
    """It pauses, and nothing that brokers answer says so."""
    plan = {ORDERS: Target((1, 2), ("/d2", "any"))}
    directories = (*SEEN.directories, Directory(1, "/d2", 10_000, usable, True))
    moving = replace(SEEN, future={(ORDERS, 1): Place("/d2", 400, 6)}, directories=directories)
    [state] = progress(plan, moving)
    assert state.lacks_room is lacks
    assert (" free for the remaining 600 B" in state.text) is lacks


@pytest.mark.spec("DIR-40", "CLU-32")
def test_what_a_broker_does_that_is_away_is_not_known() -> None:
    """It may be moving: neither a failure nor done."""
    alone = replace(SEEN, away=((1, None),), current={(ORDERS, 2): Place("/d1", 1000, 0)})
    [state] = progress({ORDERS: Target((1, 2), ("/d2", "/d1"))}, alone)
    assert (state.done, state.failed) == (False, False)
    assert state.text == "on broker 1, which is offline: cannot tell whether it is in /d2"
    [state] = progress({ORDERS: Target((1, 2), ("any", "/d1"))}, alone)
    assert state.text == "complete"


@pytest.mark.spec("CLU-32")
def test_a_partition_that_is_being_reassigned_and_one_that_is_not() -> None:
    plan = {ORDERS: Target((1, 3), ("any", "any"))}
    running = replace(
        SEEN,
        replicas={ORDERS: (1, 3, 2)},
        reassigning=frozenset({ORDERS}),
        current={**SEEN.current, (ORDERS, 3): Place("/d1", 250, 0)},
    )
    [state] = progress(plan, running)
    assert (state.done, state.left_bytes, state.text) == (False, 750, "replicas [3] are catching up")
    [state] = progress(plan, SEEN)
    assert state.failed
    assert "not being moved" in state.text


@pytest.mark.spec("CLU-32")
def test_the_plan_that_puts_everything_back() -> None:
    assert SEEN.present([ORDERS]) == {ORDERS: Target((1, 2), ("/d1", "/d1"))}
    with pytest.raises(CommandError, match="does not exist"):
        SEEN.present([Key("nowhere", 0)])
