"""The goals, one per file, in the order in which they are pursued (REB-05).

A goal is a module with a NAME and `improve(bench, options)`. It may move replicas that have not moved yet and must not
undo what an earlier goal reached. To add one: write the module and give it a place in ORDER. PURE.
"""

from __future__ import annotations

from types import ModuleType

from ballast_planner.goals import brokers, directories, evacuation, leaders, racks, remainder, traffic

SPACE: tuple[ModuleType, ...] = (evacuation, racks, brokers, directories, remainder)
PREFERENCES: tuple[ModuleType, ...] = (traffic, leaders)
ORDER = SPACE + PREFERENCES
