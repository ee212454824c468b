"""Runs in which the set of voters changes all the time, through kills, partitions and power losses.

The first controller bootstraps a standalone quorum; the others are added by requests to any broker, as an administrator
or an operator would do it. Checked in addition: the committed metadata log is the same on every node, and stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.sim.aimed import AimedFaults
from tests.sim.clients import SimClient
from tests.sim.history import MetadataHistory, driver_of
from tests.sim.schedule import CHECK_INTERVAL_S, Plan, Run

from ballast_broker.raft.voters import DYNAMIC
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

ANSWER_S = 20.0
PAUSE_S = 0.7


class VotersRun(Run):
    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed, plan)
        self.changes = 0
        self.history = MetadataHistory()

    def _properties(self, node_id: int) -> dict[str, str]:
        properties = super()._properties(node_id)
        del properties["controller.quorum.voters"]
        properties["controller.quorum.bootstrap.servers"] = ",".join(
            f"n{number}:9093" for number in range(1, self.plan.brokers + 1)
        )
        if node_id == 1:
            properties["controller.quorum.standalone"] = "true"
        return properties

    def _faults(self, hosts: list[str]) -> AimedFaults:
        return VoterFaults(self, hosts)

    async def _watch(self) -> None:
        watching = self.loop.create_task(self._watch_metadata())
        try:
            await super()._watch()
        finally:
            watching.cancel()
            if watching.done() and not watching.cancelled():
                watching.result()

    async def _watch_metadata(self) -> None:
        while True:
            self.history.look(self.machines)
            await asyncio.sleep(CHECK_INTERVAL_S)

    def _verdict(self) -> None:
        super()._verdict()
        self.history.check_everywhere(self.machines)


class UpgradedRun(VotersRun):
    """Begins with a static quorum, which is upgraded in the middle of it all."""

    def _properties(self, node_id: int) -> dict[str, str]:
        return Run._properties(self, node_id)


def upgrade() -> Any:
    kind = message("UpdateFeaturesRequest")
    update = kind.FeatureUpdateKey(version=2, feature="kraft.version", max_version_level=DYNAMIC, upgrade_type=1)
    return kind(timeout_ms=3000, feature_updates=[update], validate_only=False)


class VoterFaults(AimedFaults):
    run: VotersRun

    def __init__(self, run: VotersRun, hosts: list[str]) -> None:
        super().__init__(run, hosts)
        self._people = [SimClient(run.fabric, name, hosts) for name in ("somebody", "else")]

    def _all_the_while(self) -> list[Coroutine[Any, Any, None]]:
        return [self._keep_changing(people) for people in self._people]

    async def _keep_changing(self, people: SimClient) -> None:
        """Change voters, whatever else goes wrong; now and then the leader dies meanwhile."""
        while True:
            request = self._request()
            if request is not None:
                asking = self.run.loop.create_task(self._ask(people, request))
                if self.rng.random() < 0.1:
                    await asyncio.sleep(self.rng.choice([0.0, 0.003, 0.02, 0.3]))
                    await self._kill_the_leader()
                await asking
            await asyncio.sleep(self.rng.expovariate(1 / PAUSE_S))

    def _request(self) -> Any:
        """A request to remove a machine that the leader counts as a voter, or to add one that it does not."""
        leaders = [driver for each in self.run.machines if (driver := driver_of(each)) is not None and driver.is_leader]
        machine = self.rng.choice(self.run.machines)
        driver = driver_of(machine)
        if not leaders or driver is None or driver.directory is None:
            return None
        if leaders[0].kraft_version < DYNAMIC:
            return upgrade()
        if machine.node_id in leaders[0].core.voters:
            self.run.note(f"{machine.host} is to vote no more")
            return message("RemoveRaftVoterRequest")(
                cluster_id=None, voter_id=machine.node_id, voter_directory_id=driver.directory
            )
        self.run.note(f"{machine.host} is to vote")
        kind = message("AddRaftVoterRequest")
        return kind(
            cluster_id=None,
            timeout_ms=3000,
            voter_id=machine.node_id,
            voter_directory_id=driver.directory,
            listeners=[kind.Listener(name="CONTROLLER", host=machine.host, port=9093)],
        )

    async def _ask(self, people: SimClient, request: Any) -> None:
        whose = getattr(request, "voter_id", "all")
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await people.ask_any(request, 2 if whose == "all" else 0)
        except TimeoutError:
            return
        self.run.note(f"{type(request).__name__} of {whose}: {ErrorCode(answer.error_code).name}")
        self.run.changes += answer.error_code == 0

    async def _kill_the_leader(self) -> None:
        for machine in self.run.machines:
            driver = driver_of(machine)
            if driver is not None and driver.is_leader:
                await self._kill_and_return(machine)
                return
