"""A topic is deleted while one of its brokers is down: that broker deletes its logs too, even if the name is reused."""

from __future__ import annotations

import asyncio

import pytest
from tests.sim.checkers import entries
from tests.sim.clients import SimClient, create_topic
from tests.sim.faults import DIRECTORIES
from tests.sim.history import driver_of
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.schedule import Plan, Run

from ballast_broker.raft.driver import RaftDriver
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

NAME = "gone"
DELETE_DELAY_S = 60.0


def folders(machine: Machine) -> list[str]:
    return sorted(name for path in DIRECTORIES for name in entries(machine, path) if name.startswith(NAME))


def drivers(machines: list[Machine]) -> list[RaftDriver]:
    return [found for machine in machines if (found := driver_of(machine)) is not None]


async def delete(client: SimClient) -> None:
    kind = message("DeleteTopicsRequest")
    request = kind(topics=[kind.DeleteTopicState(version=6, name=NAME)], timeout_ms=2000)
    assert (await client.ask_any(request, 6)).responses[0].error_code == ErrorCode.NONE


@pytest.mark.spec("TOP-24")
@pytest.mark.parametrize("for_long", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_logs_of_a_topic_that_was_deleted_meanwhile_go(again: bool, for_long: bool) -> None:
    """`for_long`: the broker learns what it missed from the difference between its own snapshot and the leader's, which
    does not prove that somebody deleted the topic."""

    async def scenario() -> None:
        cluster = Run(5, Plan())
        away = cluster.machines[2]
        try:
            for machine in cluster.machines:
                machine.start()
            client = SimClient(cluster.fabric, "person", [each.host for each in cluster.machines])
            await create_topic(client, NAME, 2, 3)
            await asyncio.sleep(5.0)
            assert folders(away) == [f"{NAME}-0", f"{NAME}-1"]
            [known] = [driver.applied_offset for driver in drivers([away])]
            if for_long and away.process is not None:
                await away.process.node.metadata.snapshot()
            away.kill()
            await asyncio.sleep(5.0)
            await delete(client)
            number = 0
            while for_long and min(driver.store.start_offset for driver in drivers(cluster.machines[:2])) <= known:
                number += 1
                await create_topic(client, f"other-{number}", 20, 2)
                await asyncio.sleep(1.0)
            if again:
                await create_topic(client, NAME, 1, 2)
            away.start()
            await asyncio.sleep(20.0 + DELETE_DELAY_S)
            topic = cluster.machines[0].process.node.image.topics.by_name(NAME)  # type: ignore[union-attr]
            due = [f"{NAME}-0"] if topic is not None and 3 in topic.partitions[0].replicas else []
            strays = [name for name in folders(away) if name.endswith("-stray")]
            assert [name for name in folders(away) if name not in strays] == due
            assert {name.split(".")[0] for name in strays} == ({f"{NAME}-0", f"{NAME}-1"} if for_long else set())
            for machine in cluster.machines:
                assert not machine.failures
        finally:
            for machine in cluster.machines:
                machine.kill()

    run(scenario())
