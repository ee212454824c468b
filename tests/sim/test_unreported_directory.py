"""A directory fails while no controller can be told: as others still count on its replicas, the broker exits."""

from __future__ import annotations

import asyncio
import contextvars
import errno

import pytest
from tests.sim.clients import SimClient, create_topic
from tests.sim.faults import DIRECTORIES
from tests.sim.loop import NODE, run
from tests.sim.schedule import TOPIC, Plan, Run

TIMEOUT_S = 8.0


def find_failed(cluster: Run) -> None:
    """Fail a directory of the last broker, which notices it; the metadata log is in another one."""
    process = cluster.machines[-1].process
    assert process is not None
    cluster.machines[-1].store.fail(DIRECTORIES[1])
    directory = next(each for each in process.node.logs.directories if each.path == DIRECTORIES[1])
    context = contextvars.copy_context()
    context.run(NODE.set, process.name)
    cluster.loop.call_soon(directory.fail, OSError(errno.EIO, "EIO"), context=context)


async def until(cluster: Run, seconds: float) -> float:
    """Wait until the last broker exits, at most `seconds`; return the seconds waited."""
    began, machine = cluster.loop.time(), cluster.machines[-1]
    while machine.is_up and cluster.loop.time() < began + seconds:  # noqa: ASYNC110  (virtual time)
        await asyncio.sleep(0.1)
    return cluster.loop.time() - began


@pytest.mark.spec("DIR-41")
@pytest.mark.parametrize("cut_off", [True, False])
def test_a_broker_that_cannot_report_a_failed_directory_ends(cut_off: bool) -> None:
    async def play() -> None:
        cluster = Run(1, Plan(properties={"log.dir.failure.timeout.ms": str(int(TIMEOUT_S * 1000))}))
        hosts = [machine.host for machine in cluster.machines]
        try:
            for machine in cluster.machines:
                machine.start()
            await create_topic(SimClient(cluster.fabric, "admin", hosts), TOPIC, 3, 3)
            await asyncio.sleep(5.0)
            if cut_off:
                cluster.fabric.partition({hosts[-1]}, set(hosts[:-1]))
            find_failed(cluster)
            ended_after = await until(cluster, 2 * TIMEOUT_S)
        finally:
            for machine in cluster.machines:
                machine.kill()
        if cut_off:
            assert TIMEOUT_S <= ended_after <= TIMEOUT_S + 1
        else:
            assert ended_after >= 2 * TIMEOUT_S, "it was told, and the broker lives on its other directory"

    run(play())
