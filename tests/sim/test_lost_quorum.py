"""A quorum that returns with less than it had committed: a broker that has more must not go on as if they agreed."""

from __future__ import annotations

import asyncio
import copy

import pytest
from tests.sim.clients import SimClient, create_topic
from tests.sim.history import driver
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.schedule import Plan, Run


class TwoVotersAndABroker(Run):
    def _properties(self, node_id: int) -> dict[str, str]:
        properties = super()._properties(node_id)
        properties["controller.quorum.voters"] = "1@n1:9093,2@n2:9093"
        if node_id == 3:
            properties |= {"process.roles": "broker", "listeners": "PLAINTEXT://n3:9092"}
        return properties


@pytest.mark.spec("CLU-03")
@pytest.mark.parametrize("with_snapshot", [True, False])
def test_voters_that_are_restored_from_an_old_backup(with_snapshot: bool) -> None:
    """A broker whose snapshot has more logs that and exits; if only its log has more, it counts as uncommitted."""

    async def scenario() -> None:
        cluster = TwoVotersAndABroker(3, Plan())
        broker, voters = cluster.machines[2], cluster.machines[:2]

        def all_do(what: str, machines: list[Machine]) -> None:
            for machine in machines:
                getattr(machine, what)()

        try:
            all_do("start", cluster.machines)
            client = SimClient(cluster.fabric, "person", [each.host for each in cluster.machines])
            await create_topic(client, "kept", 1, 1)
            all_do("kill", cluster.machines)
            backups = [copy.deepcopy(each.store.root) for each in voters]
            all_do("start", cluster.machines)
            await create_topic(client, "lost", 50, 2)
            await asyncio.sleep(5.0)
            committed, epoch = driver(broker).applied_offset, driver(broker).epoch
            assert broker.process is not None
            if with_snapshot:
                await broker.process.node.metadata.snapshot()
            all_do("kill", cluster.machines)
            for machine, backup in zip(voters, backups, strict=True):
                machine.store.root = backup
            while True:
                all_do("start", voters)
                await asyncio.sleep(5.0)
                if driver(voters[0]).epoch > epoch:
                    break
                all_do("kill", voters)
            assert driver(voters[0]).end_offset < committed
            broker.start()
            await asyncio.sleep(20.0)
            if with_snapshot:
                [failure] = broker.failures
                assert f"committed up to offset {committed}" in str(failure)
                assert "it has lost data, or is another one" in str(failure)
            else:
                assert broker.process is not None
                assert broker.process.node.ready
                assert driver(broker).applied_offset == driver(voters[0]).applied_offset
                assert broker.process.node.image.topics.by_name("lost") is None
        finally:
            all_do("kill", cluster.machines)

    run(scenario())
