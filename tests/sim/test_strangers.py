"""Nodes that are configured with another cluster's quorum: they wait for ever, and say why."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.sim.history import driver_of
from tests.sim.loop import run
from tests.sim.schedule import CLUSTER_ID, Plan, Run

OTHER_ID = "AkU3OEVBNTcwNTJENDM2Qg"


class BrokerOfAnotherCluster(Run):
    def _properties(self, node_id: int) -> dict[str, str]:
        properties = super()._properties(node_id)
        properties["controller.quorum.voters"] = "1@n1:9093,2@n2:9093"
        if node_id == 3:
            properties |= {"process.roles": "broker", "listeners": "PLAINTEXT://n3:9092", "cluster.id": OTHER_ID}
        return properties


class VoterByItsOwnAccountOnly(Run):
    def _properties(self, node_id: int) -> dict[str, str]:
        properties = super()._properties(node_id)
        if node_id != 3:
            properties["controller.quorum.voters"] = "1@n1:9093,2@n2:9093"
        return properties


def told_by_the_third(kind: type[Run], caplog: pytest.LogCaptureFixture) -> list[str]:
    async def scenario() -> None:
        cluster = kind(3, Plan())
        try:
            for machine in cluster.machines[:2]:
                machine.start()
            await asyncio.sleep(5.0)
            caplog.clear()
            cluster.machines[2].start()
            await asyncio.sleep(20.0)
            epochs = {driver.epoch for each in cluster.machines[:2] if (driver := driver_of(each)) is not None}
            assert len(epochs) == 1, "nobody is disturbed"
        finally:
            for machine in cluster.machines:
                machine.kill()

    with caplog.at_level(logging.WARNING):
        run(scenario())
    return [text for text in caplog.messages if "refuses this node" in text]


@pytest.mark.spec("CLU-01")
def test_a_broker_of_another_cluster_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    told = told_by_the_third(BrokerOfAnotherCluster, caplog)
    assert sorted(told) == [
        f"n{each}:9093 refuses this node: it is not of cluster {OTHER_ID}, which is this node's by cluster.id or "
        "meta.properties"
        for each in (1, 2)
    ]


@pytest.mark.spec("CLU-02")
def test_a_voter_that_the_others_do_not_know_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    told = told_by_the_third(VoterByItsOwnAccountOnly, caplog)
    assert sorted(told) == [
        f"n{each}:9093 refuses this node: by its controller.quorum.voters one of the two is no voter of cluster "
        f"{CLUSTER_ID}"
        for each in (1, 2)
    ]
