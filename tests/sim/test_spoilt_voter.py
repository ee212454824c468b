"""A voter's disk has corrupted the end of its metadata log, which it had acknowledged, while the only other voter that
has it is down."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.sim.clients import SimClient, create_topic
from tests.sim.disk import Inode
from tests.sim.faults import DIRECTORIES
from tests.sim.history import driver
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.schedule import Plan, Run

from ballast_broker.raft.flushed_end import FLUSHED_END
from ballast_wire.records import iterate_batches

pytestmark = pytest.mark.spec("CLU-06")
FOLDER = f"{DIRECTORIES[0]}/__cluster_metadata-0"


def knows(machine: Machine, topic: str) -> bool:
    assert machine.process is not None
    return machine.process.node.image.topics.by_name(topic) is not None


def spoil(machine: Machine, offset: int) -> None:
    """Overwrite the metadata log with zeros from this offset on."""
    file = machine.store.find(f"{FOLDER}/{0:020d}.log")
    assert isinstance(file, Inode)
    batches = iterate_batches(memoryview(bytes(file.data[: file.size])))
    start = next(each.position for each in batches if each.base_offset >= offset)
    file.write(bytes(file.size - start), start)
    file.sync()


def has_unflushed(machine: Machine) -> bool:
    return driver(machine).end_offset > driver(machine).core._flushed


class Scene:
    """Three voters: two have committed a topic that the third lacks, and one of the two has lost it since."""

    def __init__(self, cluster: Run) -> None:
        self.cluster = cluster
        self.client = SimClient(cluster.fabric, "person", [each.host for each in cluster.machines])
        self.leader = self.forgets = self.behind = cluster.machines[0]

    async def come_about(self, *, in_order: bool) -> None:
        for machine in self.cluster.machines:
            machine.start()
        await create_topic(self.client, "kept", 1, 1)
        await asyncio.sleep(5.0)
        self.leader = next(each for each in self.cluster.machines if driver(each).is_leader)
        self.forgets, self.behind = (each for each in self.cluster.machines if each is not self.leader)
        end = driver(self.forgets).end_offset
        self.behind.kill()
        await create_topic(self.client, "promised", 1, 1)
        await asyncio.sleep(1.0)
        assert knows(self.forgets, "promised")
        if in_order:
            await asyncio.wait({self.cluster.loop.create_task(self.forgets.stop())}, timeout=40.0)
        self.forgets.kill()
        self.leader.kill()
        spoil(self.forgets, end)

    async def start_without_the_leader(self) -> None:
        self.forgets.start()
        self.behind.start()
        await asyncio.sleep(20.0)


def play(in_order: bool, scenario) -> None:  # type: ignore[no-untyped-def]
    async def main() -> None:
        cluster = Run(3, Plan())
        scene = Scene(cluster)
        try:
            await scene.come_about(in_order=in_order)
            await scenario(scene)
        finally:
            for machine in cluster.machines:
                machine.kill()

    run(main())


@pytest.mark.parametrize("in_order", [True, False])
def test_what_was_committed_with_its_acknowledgement_is_waited_for(
    in_order: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the check the two elected a leader that lacked it, and the voter that still had it truncated it."""

    async def scenario(scene: Scene) -> None:
        with caplog.at_level(logging.ERROR):
            await scene.start_without_the_leader()
        assert [driver(each).leader_id for each in (scene.forgets, scene.behind)] == [-1, -1]
        assert "it does not stand for election, and votes only for nodes that have as much" in caplog.text
        assert driver(scene.forgets).store.lacks is not None
        scene.leader.start()
        await asyncio.sleep(20.0)
        for machine in scene.cluster.machines:
            assert driver(machine).leader_id > 0
            assert driver(machine).store.lacks is None
            assert knows(machine, "promised")
        scene.leader.kill()
        await asyncio.sleep(20.0)
        assert knows(scene.behind, "promised")
        assert driver(scene.behind).leader_id in (scene.forgets.node_id, scene.behind.node_id), "it votes again"

    play(in_order, scenario)


def test_it_votes_for_who_has_all_that_it_had() -> None:
    async def scenario(scene: Scene) -> None:
        scene.leader.start()
        scene.forgets.start()
        await asyncio.sleep(20.0)
        assert driver(scene.leader).is_leader
        assert knows(scene.forgets, "promised")
        assert driver(scene.forgets).store.lacks is None

    play(False, scenario)


def test_a_person_may_say_that_what_there_is_counts() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.start_without_the_leader()
        scene.forgets.kill()
        store = scene.forgets.store
        folder = store.find(FOLDER)
        del folder.entries[FLUSHED_END]  # type: ignore[union-attr]
        scene.forgets.start()
        await asyncio.sleep(20.0)
        assert driver(scene.behind).leader_id > 0
        assert knows(scene.behind, "kept")

    play(False, scenario)


def test_the_only_voter_goes_on_and_says_what_it_has_lost(caplog: pytest.LogCaptureFixture) -> None:
    class Alone(Run):
        def _properties(self, node_id: int) -> dict[str, str]:
            return super()._properties(node_id) | {"controller.quorum.voters": "1@n1:9093"}

    async def main() -> None:
        cluster = Alone(3, Plan())
        machine = cluster.machines[0]
        client = SimClient(cluster.fabric, "person", [machine.host])
        machine.start()
        await create_topic(client, "kept", 1, 1)
        await asyncio.sleep(2.0)
        end = driver(machine).end_offset
        await create_topic(client, "lost", 1, 1)
        await asyncio.sleep(2.0)
        machine.kill()
        spoil(machine, end)
        with caplog.at_level(logging.ERROR):
            machine.start()
            await asyncio.sleep(10.0)
        assert "the disk has lost the rest, which no other voter has" in caplog.text
        assert driver(machine).is_leader
        assert knows(machine, "kept")
        assert not knows(machine, "lost")
        machine.kill()

    run(main())


def test_a_loss_of_power_is_no_spoilt_disk(caplog: pytest.LogCaptureFixture) -> None:
    """What a power loss tears was never acknowledged: all voters vote and stand for election again."""

    async def main() -> None:
        cluster = Run(3, Plan())
        client = SimClient(cluster.fabric, "person", [each.host for each in cluster.machines])
        for number in range(12):
            for machine in cluster.machines:
                machine.start()
            await asyncio.sleep(3.0)
            creating = cluster.loop.create_task(create_topic(client, f"t{number}", 20, 1))
            async with asyncio.timeout(30.0):
                while not any(map(has_unflushed, cluster.machines)):  # noqa: ASYNC110  (virtual time)
                    await asyncio.sleep(0.0001)
            for machine in cluster.machines:
                machine.lose_power()
            creating.cancel()
        assert any(machine.store.find(f"{FOLDER}/{FLUSHED_END}") for machine in cluster.machines)

    with caplog.at_level(logging.ERROR):
        run(main())
    assert "has lost" not in caplog.text
