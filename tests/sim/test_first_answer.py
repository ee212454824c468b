"""A starting broker is in its own first Metadata response: a client that is told of no broker forgets its address."""

from __future__ import annotations

import asyncio

import pytest
from tests.sim.clients import SimClient, create_topic
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.schedule import TOPIC, Plan, Run

from ballast_wire.messages import message

ROUNDS = 5


async def first_told(cluster: Run, machine: Machine, name: str) -> set[int]:
    """The brokers in the first response that any client gets from this one."""
    client = SimClient(cluster.fabric, name, [machine.host])
    while True:
        try:
            answer = await client.ask(machine.host, message("MetadataRequest")(topics=[]), 9)
        except (OSError, TimeoutError):
            await asyncio.sleep(0.001)
        else:
            return {broker.node_id for broker in answer.brokers}


@pytest.mark.spec("CLU-01")
@pytest.mark.parametrize("seed", range(4))
def test_a_broker_that_starts_tells_of_itself_from_the_first_answer_on(seed: int) -> None:
    async def play() -> None:
        cluster = Run(seed, Plan())
        try:
            for machine in cluster.machines:
                machine.start()
            hosts = [machine.host for machine in cluster.machines]
            await create_topic(SimClient(cluster.fabric, "admin", hosts), TOPIC, 3, 3)
            for number in range(ROUNDS):
                machine = cluster.machines[number % len(cluster.machines)]
                machine.kill()
                await asyncio.sleep(1.0)
                machine.start()
                told = await first_told(cluster, machine, f"early-{number}")
                assert machine.node_id in told
        finally:
            for machine in cluster.machines:
                machine.kill()

    run(play())
