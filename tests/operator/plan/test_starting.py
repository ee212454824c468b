"""Which moves may start: waves, limits, room."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.operator.making import GIB, move, topic_view, view

from ballast_operator.model.kafka import DirectoryId, DirectoryView, KafkaView, LogView, OngoingView, TopicPartition
from ballast_operator.model.reassignment import MaxConcurrentMoves
from ballast_operator.plan.moves import assess_all
from ballast_operator.plan.starting import choose_starts, observe_traffic
from ballast_planner import Move


def moves(count: int, wave: int = 0) -> list[Move]:
    return [move(((0, "/a"),), ((0, "/b"),), partition=index, wave=wave, disk=GIB) for index in range(count)]


def scene(
    count: int, size: int = GIB, moved: Mapping[tuple[str, int, int], LogView] | None = None, **more: Any
) -> KafkaView:
    logs = {("orders", index, 0): LogView("/a", size) for index in range(count)}
    return view({"orders": topic_view(*[(0,)] * count)}, {**logs, **(moved or {})}, **more)


def start(
    rows: list[Move], seen: KafkaView, limits: MaxConcurrentMoves | None = None
) -> tuple[list[int], dict[TopicPartition, str]]:
    states = assess_all(rows, seen)
    chosen, notes = choose_starts(states, seen, limits or MaxConcurrentMoves(), observe_traffic(states, seen))
    return [one.partition for one in chosen], notes


@pytest.mark.spec("OPR-31")
def test_no_more_than_the_limit_go_into_one_directory() -> None:
    assert start(moves(4), scene(4))[0] == [0, 1]
    running = scene(4, moved={("orders", 0, 0): LogView("/a", GIB, "/b", 5)})
    assert start(moves(4), running)[0] == [1]


@pytest.mark.spec("OPR-31")
def test_a_broker_takes_part_in_no_more_than_the_limit_counting_moves_of_others() -> None:
    rows = [move(((0, "/a"),), ((broker, "/a"),), partition=index) for index, broker in enumerate((1, 2, 1))]
    seen = scene(3, size=0)
    assert start(rows, seen, MaxConcurrentMoves(per_broker=2, per_directory=9))[0] == [0, 1]
    foreign = scene(3, size=0, ongoing={("other", 0): OngoingView((1, 2), (2,), (1,))})
    assert start(rows, foreign, MaxConcurrentMoves(per_broker=1, per_directory=9))[0] == []


@pytest.mark.spec("OPR-31")
def test_a_wave_starts_when_the_one_before_has_ended() -> None:
    rows = [*moves(1), move(((0, "/a"),), ((0, "/b"),), partition=1, wave=1, disk=GIB)]
    assert start(rows, scene(2))[0] == [0]
    first_done = scene(2, moved={("orders", 0, 0): LogView("/b", GIB)})
    assert start(rows, first_done)[0] == [1]


@pytest.mark.spec("OPR-31")
def test_no_directory_passes_its_high_water_mark_while_both_copies_exist() -> None:
    seen = scene(2, size=30 * GIB)
    chosen, notes = start(moves(2), seen, MaxConcurrentMoves(per_directory=9))
    assert chosen == [0]
    assert "95 %" in notes[TopicPartition("orders", 1)]


@pytest.mark.spec("OPR-36")
def test_what_is_lost_is_told_and_does_not_hold_the_waves_after_it() -> None:
    lost = move(((0, "/a"),), ((7, "/a"),), partition=0)
    later = move(((0, "/a"),), ((0, "/b"),), partition=1, wave=1, disk=GIB)
    chosen, notes = start([lost, later], scene(2))
    assert chosen == [1]
    assert notes == {TopicPartition("orders", 0): "broker 7 is not online"}


@pytest.mark.spec("OPR-36")
def test_a_failed_directory_takes_nothing() -> None:
    seen = scene(1)
    failed = dict(seen.directories) | {DirectoryId(0, "/b"): DirectoryView("KAFKA_STORAGE_ERROR", -1, -1)}
    from dataclasses import replace

    chosen, notes = start(moves(1), replace(seen, directories=failed))
    assert chosen == []
    assert "has failed" in notes[TopicPartition("orders", 0)]


@pytest.mark.spec("OPR-36")
def test_a_move_to_a_broker_that_was_lost_on_the_way_is_told_and_does_not_hold_the_waves_after_it() -> None:
    stuck = move(((0, "/a"),), ((1, "/a"),), partition=0)
    later = move(((0, "/a"),), ((0, "/b"),), partition=1, wave=1, disk=GIB)
    seen = scene(2, ongoing={("orders", 0): OngoingView((1, 0), (1,), (0,))}, offline=[1])
    chosen, notes = start([stuck, later], seen)
    assert chosen == [1]
    assert notes == {TopicPartition("orders", 0): "broker 1 is not online"}
    assert start([stuck, later], scene(2, ongoing={("orders", 0): OngoingView((1, 0), (1,), (0,))}))[0] == []


@pytest.mark.spec("OPR-31", "OPR-36")
def test_a_wave_that_has_no_room_lets_the_next_one_make_it() -> None:
    """Logs grow after the plan was made: what would free the room must not wait for what lacks it."""
    into_the_full = move(((0, "/a"),), ((0, "/b"),), partition=0, disk=50 * GIB)
    out_of_it = move(((0, "/b"),), ((0, "/a"),), partition=1, wave=1, disk=20 * GIB)
    logs = {("orders", 0, 0): LogView("/a", 50 * GIB), ("orders", 1, 0): LogView("/b", 20 * GIB)}
    seen = view({"orders": topic_view((0,), (0,))}, logs)
    chosen, notes = start([into_the_full, out_of_it], seen)
    assert chosen == [1]
    assert "95 %" in notes[TopicPartition("orders", 0)]
    moving = view({"orders": topic_view((0,), (0,))}, {**logs, ("orders", 1, 0): LogView("/b", 20 * GIB, "/a", 5)})
    assert start([into_the_full, out_of_it], moving)[0] == []
