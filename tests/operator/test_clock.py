"""Times in objects are the API server's: a wrong clock where the operator runs makes nothing seem lost or over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.operator.making import reassignment

from ballast_operator.clock import ServerClock
from ballast_operator.handlers.reassignment_statuses import ReassignmentStatuses
from ballast_operator.model.times import seconds_of

NINE = 1_767_258_000.0  # 2026-01-01T09:00:00Z


class Here:
    """The clocks of the operator's machine."""

    def __init__(self, wall: float) -> None:
        self.wall = wall
        self.steady = 5_000.0
        self.server = ServerClock(lambda: self.wall, lambda: self.steady)

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.mark.spec("OPR-04")
@pytest.mark.parametrize("wrong_by", [-86_400, -3, 0, 3, 3_600])
def test_the_api_servers_time_counts(wrong_by: float, caplog: pytest.LogCaptureFixture) -> None:
    here = Here(NINE + wrong_by)
    here.server.heard(None)
    here.server.heard("yesterday")
    assert seconds_of(here.server.now()) == NINE + wrong_by, "nothing else is known yet"
    here.server.heard("Thu, 01 Jan 2026 09:00:00 GMT")
    assert here.server.now() == "2026-01-01T09:00:00Z"
    here.passes(90)
    assert here.server.now() == "2026-01-01T09:01:30Z"
    # Answers tell whole seconds, and some are a while on their way.
    here.server.heard("Thu, 01 Jan 2026 09:01:29 GMT")
    assert here.server.now() == "2026-01-01T09:01:30Z"
    here.wall -= wrong_by  # somebody puts it right
    assert here.server.now() == "2026-01-01T09:01:30Z"
    here.server.heard("Thu, 01 Jan 2026 08:00:00 GMT")
    assert here.server.now() == "2026-01-01T08:00:00Z", "the server's own clock was set back"
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(" the API")[0] for text in told[:-1]] == {
        -86_400: ["the clock here is 86400 s behind"],
        3_600: ["the clock here is 3600 s ahead of"],
    }.get(int(wrong_by), [])


@pytest.mark.spec("OPR-02", "OPR-04")
def test_the_parts_of_a_second_that_answers_leave_out_do_not_make_it_late() -> None:
    """A condition of a new topic had changed a second before the topic was created."""
    here = Here(NINE)
    here.passes(0.9)
    here.server.heard("Thu, 01 Jan 2026 09:00:00 GMT")
    here.passes(1.2)
    here.server.heard("Thu, 01 Jan 2026 09:00:02 GMT")
    assert here.server.now() == "2026-01-01T09:00:02Z", "that is what the server has just written"
    here.passes(0.85)
    here.server.heard("Thu, 01 Jan 2026 09:00:02 GMT")
    here.passes(0.05)
    assert here.server.now() == "2026-01-01T09:00:02Z"
    here.passes(0.2)
    assert here.server.now() == "2026-01-01T09:00:03Z"


@pytest.mark.spec("OPR-34")
@pytest.mark.parametrize(("measured_at", "due"), [("08:59:58", False), ("08:59:57", True), ("11:00:00", True)])
def test_progress_that_a_wrong_clock_has_measured_is_told_anew(measured_at: str, due: bool) -> None:
    """It was told nothing more of until that time had come."""
    clock = Here(NINE).server
    statuses = ReassignmentStatuses(cast(Any, SimpleNamespace(now=clock.now)), cast(Any, None), cast(Any, None))
    before = reassignment(status={"progress": {"measuredAt": f"2026-01-01T{measured_at}Z"}}).status
    assert statuses.progress_due(before) is due
