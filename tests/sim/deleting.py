"""People delete records more often than all else goes wrong, and replicas begin anew where the log begins then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.sim.aimed import AimedFaults
from tests.sim.schedule import Run


class DeletingRun(Run):
    def _faults(self, hosts: list[str]) -> AimedFaults:
        return DeletingFaults(self, hosts)


class DeletingFaults(AimedFaults):
    def _kinds(self) -> list[Callable[[], Awaitable[None]]]:
        kinds = super()._kinds()
        return [*kinds, *[self._delete_records] * len(kinds)]
