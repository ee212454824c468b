"""Runs in which half of the faults delete records, and replicas then start over at the new log start offset."""

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
