"""placeholder"""

from __future__ import annotations

from collections.abc import Callable

from ballast_planner.options import PlanOptions
from ballast_planner.workbench import Workbench


def improve_exactly(
    make: Callable[[], Workbench], pursue: Callable[[Workbench], None], options: PlanOptions
) -> Workbench:
    bench = make()
    pursue(bench)
    return bench
