"""All that the schedules of faults show holds as well while disks are slow and work in threads is delayed (LOG-32).

An append that ignores what happened while its thread was writing is found.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from tests.sim.planted import Planting, found_by
from tests.sim.schedule import Plan
from tests.sim.slow_disks import SlowDisksRun
from tests.sim.test_many import check_that_all_are_found, check_that_all_hold, many
from tests.sim.test_schedules import simulate

from ballast_broker.storage import slow_append
from ballast_broker.storage.log import Log
from ballast_broker.storage.slices import AppendInfo

pytestmark = [pytest.mark.spec("LOG-32"), pytest.mark.timeout(120)]

SEEDS = range(5000, 5014)


@pytest.mark.interpreted  # compiled code calls its own functions, not the counting one
def test_a_schedule_with_slow_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    by_thread: list[Log] = []
    append = slow_append.append_as_leader

    def counted(log: Log, *arguments: Any, **keywords: Any) -> Coroutine[Any, Any, AppendInfo]:
        by_thread.append(log)
        return append(log, *arguments, **keywords)

    monkeypatch.setattr(slow_append, "append_as_leader", counted)
    simulate(1, Plan(seconds=20.0), SlowDisksRun)
    assert len(by_thread) > 20


@pytest.mark.simulation
@pytest.mark.timeout(1200)
def test_everything_holds_while_disks_are_slow() -> None:
    check_that_all_hold(many(SEEDS), SlowDisksRun)


@found_by(3)
def take_no_notice_of_what_happened_meanwhile(patch: Planting) -> None:
    patch.setattr(slow_append._Turn, "_over", property(lambda turn: False))


@pytest.mark.simulation
@pytest.mark.interpreted
@pytest.mark.timeout(600)
def test_appends_that_go_on_whatever_happened_meanwhile_are_found() -> None:
    check_that_all_are_found([take_no_notice_of_what_happened_meanwhile], SlowDisksRun)
