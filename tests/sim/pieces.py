"""Runs with failing directories in which all work that is done in pieces is done item by item, each in its own turn.

A simulated cluster is too small to fill a piece otherwise. Here, between any two items, controllers and brokers may
die, other requests may arrive, and the observer of the metadata log looks.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.broker import turning
from tests.sim.directories import DirectoriesRun
from tests.sim.history import MetadataHistory
from tests.sim.schedule import CHECK_INTERVAL_S, Plan

from ballast_broker import turns
from ballast_broker.controller import service, snapshots
from ballast_broker.controller.commands import brokers, configs, pieces, topics
from ballast_broker.coordinator import service as groups
from ballast_broker.raft import commit_feed
from ballast_broker.replication import assignments, isr

PLAN = Plan(seconds=30.0, faults=5)


def in_pieces_of_one(patch: pytest.MonkeyPatch) -> None:
    turning.end_at_once(patch)
    patch.setattr(turns, "STEPS", 1)
    patch.setattr(commit_feed, "LONGEST_TURN_S", -1.0)
    for module, name in (
        (pieces, "PLACES_PER_PIECE"), (brokers, "PLACES_PER_PIECE"), (pieces, "RECORDS_PER_PIECE"),
        (topics, "RECORDS_PER_PIECE"), (topics, "TOPICS_PER_PIECE"), (configs, "RESOURCES_PER_PIECE"),
        (service, "RECORDS_PER_SLICE"), (snapshots, "RECORDS_PER_SLICE"), (isr, "MAXIMUM_PER_REQUEST"),
        (assignments, "MAXIMUM_PER_REQUEST"), (groups, "FORGOTTEN_AT_ONCE"),
    ):  # fmt: skip
        patch.setattr(module, name, 1)


class PiecesRun(DirectoriesRun):
    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed, plan)
        self.history = MetadataHistory()

    async def play(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            in_pieces_of_one(patch)
            await super().play()

    def _clients(self, hosts: list[str]) -> list[asyncio.Task[None]]:
        return [*super()._clients(hosts), self.loop.create_task(self._along())]

    async def _along(self) -> None:
        while True:
            self.history.look(self.everybody)
            await asyncio.sleep(CHECK_INTERVAL_S)

    def _verdict(self) -> None:
        super()._verdict()
        self.history.look(self.everybody)
        self.history.check_everywhere(self.everybody)
