"""Where a move stands is told from the cluster alone."""

from collections.abc import Mapping

import pytest
from tests.operator.making import move, topic_view, view

from ballast_operator.model.kafka import LogView, OngoingView, TopicView
from ballast_operator.plan.moves import State, assess, not_in_sync

BETWEEN = move(((0, "/a"), (1, "/a")), ((0, "/a"), (2, "/b")), network=100)
WITHIN = move(((0, "/a"), (1, "/a")), ((0, "/b"), (1, "/a")), disk=100)
AT_SOURCE = {("orders", 0, 0): LogView("/a", 100), ("orders", 0, 1): LogView("/a", 100)}


def orders(*replicas: int, isr: Mapping[int, tuple[int, ...]] | None = None) -> dict[str, TopicView]:
    return {"orders": topic_view(replicas, isr=isr)}


def test_a_move_whose_replicas_are_where_they_were_is_pending() -> None:
    assert assess(BETWEEN, view(orders(0, 1), AT_SOURCE)).state is State.PENDING
    assert assess(WITHIN, view(orders(0, 1), AT_SOURCE)).state is State.PENDING


def test_a_reassignment_in_progress_to_the_target_is_ours_and_its_bytes_count() -> None:
    logs = {**AT_SOURCE, ("orders", 0, 2): LogView("/b", 40)}
    ongoing = {("orders", 0): OngoingView((0, 2, 1), (2,), (1,))}
    state = assess(BETWEEN, view(orders(0, 2, 1), logs, ongoing))
    assert (state.state, state.bytes_done) == (State.MOVING, 40)


@pytest.mark.spec("OPR-33")
def test_a_reassignment_in_progress_to_elsewhere_is_waited_for() -> None:
    ongoing = {("orders", 0): OngoingView((1, 2, 0), (), (0,))}
    state = assess(BETWEEN, view(orders(1, 2, 0), AT_SOURCE, ongoing))
    assert state.state is State.BLOCKED
    assert "[1, 2]" in state.note


@pytest.mark.spec("DIR-13")
def test_a_replica_that_arrived_in_another_directory_is_moved_on() -> None:
    logs = {("orders", 0, 0): LogView("/a", 100), ("orders", 0, 2): LogView("/a", 100)}
    state = assess(BETWEEN, view(orders(0, 2), logs))
    assert state.state is State.MOVING
    assert [(replica.broker, path) for replica, path in state.correct] == [(2, "/b")]
    arriving = {**logs, ("orders", 0, 2): LogView("/a", 100, "/b", 30)}
    assert assess(BETWEEN, view(orders(0, 2), arriving)).correct == ()


def test_metadata_that_lags_behind_the_controller_makes_nothing_stale() -> None:
    assert assess(BETWEEN, view(orders(0, 2, 1), AT_SOURCE)).state is State.MOVING
    grown = move(((0, "/a"),), ((0, "/a"), (1, "/a")))
    assert assess(grown, view(orders(0), AT_SOURCE)).state is State.PENDING


def test_all_in_place_is_done() -> None:
    logs = {("orders", 0, 0): LogView("/a", 100), ("orders", 0, 2): LogView("/b", 100)}
    state = assess(BETWEEN, view(orders(0, 2), logs))
    assert (state.state, state.bytes_done) == (State.DONE, 100)


def test_a_future_log_in_the_target_is_a_move_within_the_broker() -> None:
    logs = {**AT_SOURCE, ("orders", 0, 0): LogView("/a", 100, "/b", 60)}
    state = assess(WITHIN, view(orders(0, 1), logs))
    assert (state.state, state.bytes_done) == (State.MOVING, 60)


@pytest.mark.spec("OPR-32")
def test_replicas_that_are_neither_here_nor_there_make_a_row_stale() -> None:
    assert assess(BETWEEN, view(orders(1, 2), AT_SOURCE)).state is State.STALE
    elsewhere = {**AT_SOURCE, ("orders", 0, 1): LogView("/c", 100)}
    assert assess(BETWEEN, view(orders(0, 1), elsewhere)).state is State.STALE
    moved = {**AT_SOURCE, ("orders", 0, 0): LogView("/c", 100)}
    assert assess(WITHIN, view(orders(0, 1), moved)).state is State.STALE


@pytest.mark.spec("OPR-36")
def test_a_broker_that_does_not_answer_blocks_and_is_named() -> None:
    gone = view(orders(0, 1), AT_SOURCE, offline=[0])
    state = assess(WITHIN, gone)
    assert state.state is State.BLOCKED
    assert "broker 0" in state.note


def test_a_partition_that_no_longer_exists_has_ended_but_one_that_was_not_read_has_not() -> None:
    assert assess(BETWEEN, view(missing=frozenset({"orders"}))).state is State.GONE
    assert assess(BETWEEN, view()).state is State.BLOCKED


def test_any_directory_will_do_where_none_is_named() -> None:
    anywhere = move(((0, "any"), (1, "any")), ((0, "any"), (2, "any")))
    logs = {("orders", 0, 2): LogView("/b", 1)}
    assert assess(anywhere, view(orders(0, 2), logs)).state is State.DONE


def test_another_order_alone_is_a_move() -> None:
    turned = move(((0, "/a"), (1, "/a")), ((1, "/a"), (0, "/a")))
    assert assess(turned, view(orders(0, 1), AT_SOURCE)).state is State.PENDING
    assert assess(turned, view(orders(1, 0), AT_SOURCE)).state is State.DONE


def test_replicas_that_arrived_but_lag_are_named() -> None:
    logs = {("orders", 0, 0): LogView("/a", 100), ("orders", 0, 2): LogView("/b", 100)}
    lagging = view({"orders": topic_view((0, 2), isr={0: (0,)})}, logs)
    assert not_in_sync([assess(BETWEEN, lagging)], lagging) == ["orders-0"]
