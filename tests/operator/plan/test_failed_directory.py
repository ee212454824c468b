"""Replicas of a directory that failed are made anew on other brokers."""

from dataclasses import replace

import pytest
from tests.operator.making import reassignment, topic_view, view

from ballast_operator.model.kafka import DirectoryId, DirectoryView, KafkaView, LogView
from ballast_operator.plan.making import make_plan
from ballast_operator.plan.moves import State, assess

FAILED = DirectoryView("KAFKA_STORAGE_ERROR", -1, -1)


def broken(*replicas: tuple[int, ...]) -> KafkaView:
    """Directory /a of broker 1 has failed; what broker 1 has is in it, and so is not described."""
    logs = {("orders", n, b): LogView("/b", 100) for n, row in enumerate(replicas) for b in row if b != 1}
    seen = view({"orders": topic_view(*replicas)}, logs)
    return replace(seen, directories={**seen.directories, DirectoryId(1, "/a"): FAILED})


@pytest.mark.spec("OPR-46")
def test_they_go_to_another_broker_and_never_to_another_directory_of_the_same() -> None:
    seen = broken((1, 0), (0, 2))
    spec = reassignment(drainDirectories=[{"broker": 1, "directory": "/a"}]).spec
    plan = make_plan(spec, {}, seen)
    (move,) = plan.moves
    assert (move.partition, sorted(move.to.replicas), plan.unplaced) == (0, [0, 2], ())
    assert assess(move, seen).state is State.PENDING, "it can start as the cluster is"


@pytest.mark.spec("OPR-46")
def test_what_has_no_other_broker_or_no_other_copy_is_said() -> None:
    spec = reassignment(drainDirectories=[{"broker": 1, "directory": "/a"}]).spec
    everywhere = make_plan(spec, {}, broken((0, 1, 2)))
    assert [(row.partition, row.broker) for row in everywhere.unplaced] == [(0, 1)]
    alone = make_plan(spec, {}, broken((1,)))
    assert "no live replica" in alone.unplaced[0].reason


@pytest.mark.spec("OPR-30")
def test_thousands_of_directories_whose_sizes_nobody_tells_are_planned_for() -> None:
    """As of brokers before Kafka 3.3."""
    told = view({"orders": topic_view((0, 1))}, {("orders", 0, 0): LogView("/a", 100)}, brokers=range(2_000))
    silent = {where: DirectoryView(None, -1, -1) for where in told.directories}
    (move,) = make_plan(reassignment(drainBrokers=[1]).spec, {}, replace(told, directories=silent)).moves
    assert 1 not in move.to.replicas
