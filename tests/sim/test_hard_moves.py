"""Replicas move between brokers and disks, segment by segment, under all kinds of faults; lookups by timestamp that
lead to the wrong record are found.
"""

from __future__ import annotations

import pytest
from tests.sim.hard_moves import PLAN, HardMovesRun
from tests.sim.planted import Plant, Planting
from tests.sim.test_many import check_that_all_are_found, check_that_all_hold, many
from tests.sim.test_schedules import simulate

from ballast_broker.storage import lookup
from ballast_broker.storage.segment import Segment
from ballast_wire.records import Header

pytestmark = [pytest.mark.spec("REP-24", "DIR-28", "LOG-05"), pytest.mark.timeout(120)]

SEEDS = range(900, 906)


def test_replicas_go_anywhere_in_many_segments() -> None:
    run = simulate(1, PLAN, HardMovesRun)
    assert isinstance(run, HardMovesRun)
    assert run.segments > 5


@pytest.mark.simulation
@pytest.mark.timeout(900)
def test_many_schedules() -> None:
    check_that_all_hold(many(SEEDS), HardMovesRun, PLAN)


def lead_to_the_first_record_of_the_batch(patch: Planting) -> None:
    def first(segment: Segment, position: int, header: Header, *rest: int) -> tuple[int, int, int]:
        return header.max_timestamp, header.base_offset, header.leader_epoch

    patch.setattr(lookup, "first_record_at", first)


def forget_what_came_before_in_the_index_of_times(patch: Planting) -> None:
    """A time index entry has too early a timestamp, which records before it may exceed."""

    def add(segment: Segment) -> None:
        index = segment.time_index
        last = index.last()
        if segment.max_timestamp > (last[0] if last else -1):
            index.append(segment.max_timestamp - 1, segment.offset_of_max_timestamp - segment.base_offset)

    patch.setattr(Segment, "add_time_entry", add)


@pytest.mark.simulation
@pytest.mark.interpreted
@pytest.mark.timeout(600)
def test_times_that_lead_elsewhere_are_found() -> None:
    plants: list[Plant] = [
        lead_to_the_first_record_of_the_batch, forget_what_came_before_in_the_index_of_times,
    ]  # fmt: skip
    check_that_all_are_found(plants, HardMovesRun, PLAN)
