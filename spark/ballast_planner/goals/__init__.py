"""The goals, one per file, in the order in which they are pursued (REB-05).

A goal is a module with a NAME and `improve(bench, options)`. It may move replicas that have not moved yet and must not
undo what an earlier goal reached. To add one: write the module and give it a place in SPACE or PREFERENCES. PURE.
"""

from __future__ import annotations

from typing import Protocol

from ballast_planner.goals import brokers, directories, evacuation, giants, large, leaders, racks, remainder, traffic
from ballast_planner.options import PlanOptions
from ballast_planner.workbench import Workbench


class Goal(Protocol):
    """The interface of every module in this package."""

    NAME: str

    def improve(self, bench: Workbench, options: PlanOptions) -> None: ...


class LargeAtOnce:
    """The goal `large` in its other mode."""

    NAME = large.NAME

    def improve(self, bench: Workbench, options: PlanOptions) -> None:
        large.improve_at_once(bench, options)


LEVELLING: tuple[Goal, ...] = (large, brokers, directories)
PREPARATION: tuple[Goal, ...] = (evacuation, racks, giants)
# LEVELLING twice: which replicas have no room anywhere shows only once the easy bytes have moved.
SPACE: tuple[Goal, ...] = (*PREPARATION, *LEVELLING, *LEVELLING, remainder)
# The alternative to SPACE: PREPARATION, LARGE_AT_ONCE, AFTER_LARGE.
LARGE_AT_ONCE: Goal = LargeAtOnce()
AFTER_LARGE: tuple[Goal, ...] = (brokers, directories, remainder)
PREFERENCES: tuple[Goal, ...] = (traffic, leaders)
ORDER = SPACE + PREFERENCES
