"""A partition's traffic counters disappear with the partition."""

from __future__ import annotations

import asyncio

import pytest
from tests.sim.clients import Ledger, SimClient, create_topic, produce_for_ever
from tests.sim.loop import run
from tests.sim.schedule import TOPIC, Plan, Run

from ballast_wire.messages import message
from ballast_wire.names import TopicPartition


def counted(cluster: Run) -> set[TopicPartition]:
    traffics = [machine.process.node.traffic for machine in cluster.machines if machine.process is not None]
    return {partition for traffic in traffics for partition in (*traffic.bytes_in, *traffic.bytes_out)}


@pytest.mark.spec("LOG-33")
def test_what_was_counted_of_a_topic_goes_with_it() -> None:
    async def play() -> None:
        cluster = Run(1, Plan())
        try:
            for machine in cluster.machines:
                machine.start()
            client = SimClient(cluster.fabric, "client", [machine.host for machine in cluster.machines])
            for name in (TOPIC, "kept"):
                await create_topic(client, name, 3, 3)
            partitions = [TopicPartition(name, number) for name in (TOPIC, "kept") for number in range(3)]
            producing = asyncio.create_task(produce_for_ever(client, Ledger(), partitions, cluster.rng))
            async with asyncio.timeout(60):
                while counted(cluster) != set(partitions):  # noqa: ASYNC110  (virtual time)
                    await asyncio.sleep(0.1)
            producing.cancel()
            kind = message("DeleteTopicsRequest")
            await client.ask_any(kind(topic_names=[TOPIC], timeout_ms=5000), 5)
            await asyncio.sleep(5)
            assert counted(cluster) == {partition for partition in partitions if partition.topic == "kept"}
        finally:
            for machine in cluster.machines:
                machine.kill()

    run(play())
