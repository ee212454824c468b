"""A hung disk blocks every thread that uses it, but not the metadata quorum."""

from __future__ import annotations

import asyncio

import pytest
from tests.sim.clients import SimClient, create_topic
from tests.sim.loop import run
from tests.sim.machine import SimThreads
from tests.sim.schedule import TOPIC, Plan, Run


@pytest.mark.spec("DIR-41")
def test_metadata_is_committed_while_all_threads_wait_for_a_disk() -> None:
    async def play() -> None:
        cluster = Run(1, Plan())
        hosts = [machine.host for machine in cluster.machines]
        try:
            for machine in cluster.machines:
                machine.start()
            admin = SimClient(cluster.fabric, "admin", hosts)
            await create_topic(admin, TOPIC, 3, 3)
            for machine in cluster.machines:
                assert machine.process is not None
                threads = machine.process.node.world.threads
                assert isinstance(threads, SimThreads)
                threads.hung = True
            async with asyncio.timeout(20):
                await create_topic(admin, "another", 3, 3)
        finally:
            for machine in cluster.machines:
                machine.kill()

    run(play())
