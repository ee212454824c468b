"""Whole nodes with a dynamic quorum: who bootstraps it, who finds it, and who must not bootstrap it twice."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.sim.clients import SimClient
from tests.sim.disk import Store
from tests.sim.history import driver, driver_of
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.schedule import Plan
from tests.sim.voters import VotersRun

from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

GONE = (ErrorCode.NONE, ErrorCode.VOTER_NOT_FOUND)
pytestmark = pytest.mark.spec("CLU-05")


def addition(machine: Machine) -> Any:
    kind = message("AddRaftVoterRequest")
    return kind(
        cluster_id=None,
        timeout_ms=3000,
        voter_id=machine.node_id,
        voter_directory_id=driver(machine).directory,
        listeners=[kind.Listener(name="CONTROLLER", host=machine.host, port=9093)],
    )


async def add(client: SimClient, machine: Machine) -> None:
    async with asyncio.timeout(30):
        while (await client.ask_any(addition(machine), 0)).error_code != ErrorCode.NONE:  # noqa: ASYNC110  (virtual time)
            await asyncio.sleep(0.2)


async def until_led(cluster: VotersRun) -> None:
    async with asyncio.timeout(30):
        while not all(driver_of(each) is not None and driver(each).leader_id > 0 for each in cluster.machines):  # noqa: ASYNC110  (virtual time)
            await asyncio.sleep(0.1)


def play(scenario: Any, kind: type[VotersRun] = VotersRun) -> None:
    async def main() -> None:
        cluster = kind(3, Plan())
        try:
            for machine in cluster.machines:
                machine.start()
            await until_led(cluster)
            await scenario(cluster, SimClient(cluster.fabric, "person", [each.host for each in cluster.machines]))
        finally:
            for machine in cluster.machines:
                machine.kill()

    run(main())


def test_a_founder_that_lost_its_disk_joins_the_quorum_that_there_is() -> None:
    """Its properties still say that it bootstraps a quorum."""

    async def scenario(cluster: VotersRun, person: SimClient) -> None:
        founder, *others = cluster.machines
        for each in others:
            await add(person, each)
        before = driver(founder).directory
        founder.kill()
        await asyncio.sleep(10.0)
        founder.store = Store(random.Random(1), founder.clock.wall_ms)
        founder.start()
        await until_led(cluster)
        await asyncio.sleep(10.0)
        assert driver(founder).leader_id in (2, 3)
        assert driver(founder).epoch == driver(others[0]).epoch
        assert not driver(founder).core.is_voter
        assert driver(founder).core.voters == (1, 2, 3), "the one of before still is one"
        removal = message("RemoveRaftVoterRequest")(cluster_id=None, voter_id=1, voter_directory_id=before)
        assert (await person.ask_any(removal, 0)).error_code == ErrorCode.NONE
        await add(person, founder)
        await asyncio.sleep(3.0)
        assert driver(founder).core.is_voter

    play(scenario)


def test_a_founder_that_lost_its_disk_founds_nothing_while_the_others_are_without_a_leader() -> None:
    async def scenario(cluster: VotersRun, person: SimClient) -> None:
        founder, two, three = cluster.machines
        for each in (two, three):
            await add(person, each)
        await asyncio.sleep(3.0)
        for each in cluster.machines:
            each.kill()
        three.start()
        await asyncio.sleep(10.0)
        assert driver(three).leader_id == -1
        founder.store = Store(random.Random(1), founder.clock.wall_ms)
        founder.start()
        await asyncio.sleep(10.0)
        assert not driver(founder).is_leader
        two.start()
        await until_led(cluster)
        await asyncio.sleep(5.0)
        assert {driver(each).leader_id for each in cluster.machines} <= {2, 3}
        assert driver(founder).core.voters == (1, 2, 3)

    play(scenario)


@pytest.mark.parametrize("silent", [False, True])
def test_a_founder_that_lost_its_disk_founds_nothing_where_nobody_answers(silent: bool) -> None:
    """All nodes were down, and it is the first to return: the others have what was committed."""

    async def scenario(cluster: VotersRun, person: SimClient) -> None:
        founder, *others = cluster.machines
        for each in others:
            await add(person, each)
        await asyncio.sleep(3.0)
        for each in cluster.machines:
            each.kill()
        if silent:
            cluster.fabric.partition({founder.host}, {each.host for each in others})
        founder.store = Store(random.Random(1), founder.clock.wall_ms)
        founder.start()
        await asyncio.sleep(30.0)
        assert not founder.failures
        assert driver(founder).leader_id == -1
        assert driver(founder).epoch == 0
        cluster.fabric.heal()
        for each in others:
            each.start()
        await until_led(cluster)
        assert {driver(each).leader_id for each in cluster.machines} <= {2, 3}
        await asyncio.sleep(20.0)
        assert driver(founder).core.voters == (1, 2, 3)
        assert not driver(founder).core.is_voter

    play(scenario)


def test_a_new_quorum_is_founded_when_all_that_are_named_know_of_none() -> None:
    async def scenario(cluster: VotersRun) -> None:
        founder, two, three = cluster.machines
        founder.start()
        await asyncio.sleep(10.0)
        two.start()
        await asyncio.sleep(10.0)
        assert driver(founder).leader_id == -1
        three.start()
        await until_led(cluster)
        assert {driver(each).leader_id for each in cluster.machines} == {1}
        assert driver(founder).core.voters == (1,)
        for each in cluster.machines:
            each.kill()

    play_alone(scenario)


def test_a_founder_whose_own_address_is_named_otherwise_founds_all_the_same() -> None:
    async def scenario(cluster: VotersRun) -> None:
        machine = alone(
            cluster,
            controller_quorum_bootstrap_servers="n1:9093",
            advertised_listeners="PLAINTEXT://n1:9092,CONTROLLER://one.of.many:9093",
        )
        machine.start()
        await asyncio.sleep(5.0)
        assert driver(machine).is_leader
        machine.kill()

    play_alone(scenario)


def test_a_founder_that_is_the_only_voter_founds_nothing_anew_after_a_restart() -> None:
    async def scenario(cluster: VotersRun, person: SimClient) -> None:
        founder = cluster.machines[0]
        await asyncio.sleep(5.0)
        directory, mark = driver(founder).directory, driver(founder).high_watermark
        founder.kill()
        await asyncio.sleep(1.0)
        founder.start()
        await until_led(cluster)
        await asyncio.sleep(5.0)
        assert driver(founder).is_leader
        assert driver(founder).directory == directory
        assert driver(founder).high_watermark > mark
        await add(person, cluster.machines[1])

    play(scenario)


def test_who_was_away_while_all_voters_that_it_knew_left_finds_the_others_by_the_bootstrap_servers() -> None:
    async def scenario(cluster: VotersRun, person: SimClient) -> None:
        one, two, three = cluster.machines
        await add(person, two)
        two.kill()
        await asyncio.sleep(0.5)
        two.start()
        await asyncio.sleep(5.0)
        await add(person, three)
        two_directory = driver(two).directory
        two.kill()
        for machine, directory in ((two, two_directory), (one, driver(one).directory)):
            removal = message("RemoveRaftVoterRequest")(
                cluster_id=None, voter_id=machine.node_id, voter_directory_id=directory
            )
            async with asyncio.timeout(30):
                while (await person.ask_any(removal, 0)).error_code not in GONE:  # noqa: ASYNC110  (virtual time)
                    await asyncio.sleep(0.2)
        one.kill()
        two.start()  # as far as it knows, one and two vote
        await asyncio.sleep(20.0)
        assert driver(two).leader_id == 3
        assert driver(two).core.voters == (3,)
        assert driver(three).is_leader

    play(scenario)


class WithABrokerOnly(VotersRun):
    def _properties(self, node_id: int) -> dict[str, str]:
        properties = super()._properties(node_id)
        properties["controller.quorum.bootstrap.servers"] = "n1:9093,n2:9093"
        if node_id == 3:
            properties |= {"process.roles": "broker", "listeners": "PLAINTEXT://n3:9092"}
        return properties


def test_a_broker_that_is_no_controller_follows_the_voters_wherever_they_go() -> None:
    async def scenario(cluster: VotersRun, person: SimClient) -> None:
        one, two, broker = cluster.machines
        await add(person, two)
        removal = message("RemoveRaftVoterRequest")(
            cluster_id=None, voter_id=1, voter_directory_id=driver(one).directory
        )
        assert (await person.ask_any(removal, 0)).error_code == ErrorCode.NONE
        one.kill()
        broker.kill()
        broker.start()
        await asyncio.sleep(10.0)
        assert driver(broker).leader_id == 2
        assert broker.process is not None
        assert broker.process.node.ready

    play(scenario, WithABrokerOnly)


def alone(cluster: VotersRun, **changed: str | None) -> Machine:
    """A separate machine with the properties of the first one, but for these changes."""
    properties = dict(cluster.machines[0]._properties)
    for name, value in changed.items():
        if value is None:
            properties.pop(name.replace("_", "."), None)
        else:
            properties[name.replace("_", ".")] = value
    return Machine(cluster.loop, cluster.fabric, cluster.rng, 1, properties)


def play_alone(scenario: Any) -> None:
    async def main() -> None:
        await scenario(VotersRun(3, Plan()))

    run(main())


@pytest.mark.parametrize("servers", ["n1:9093", "localhost:9093", "elsewhere:9093"])
def test_a_node_that_was_its_own_quorum_before_voters_could_change_still_is(servers: str) -> None:
    """Its properties may have named bootstrap servers all the time: they were unknown then and had no effect."""

    async def scenario(cluster: VotersRun) -> None:
        machine = alone(cluster, controller_quorum_standalone=None, controller_quorum_bootstrap_servers=None)
        machine.start()
        await asyncio.sleep(10.0)
        mark = driver(machine).high_watermark
        assert driver(machine).is_leader
        machine.kill()
        machine._properties["controller.quorum.bootstrap.servers"] = servers
        machine.start()
        await asyncio.sleep(10.0)
        assert driver(machine).is_leader
        assert driver(machine).high_watermark > mark
        assert driver(machine).kraft_version == 0
        machine.kill()

    play_alone(scenario)


def test_a_controller_with_an_empty_disk_that_is_told_to_ask_others_founds_nothing() -> None:
    async def scenario(cluster: VotersRun) -> None:
        machine = alone(cluster, controller_quorum_standalone=None)
        machine.start()
        await asyncio.sleep(30.0)
        assert not machine.failures
        assert driver(machine).leader_id == -1
        assert driver(machine).epoch == 0
        machine.kill()
        invents = alone(cluster, controller_quorum_standalone=None, cluster_id=None)
        invents.start()
        await asyncio.sleep(1.0)
        [failure] = invents.failures
        assert "cluster.id is not set" in str(failure)

    play_alone(scenario)


def test_a_founder_that_loses_power_while_it_formats_itself_founds_the_quorum_all_the_same() -> None:
    async def scenario(cluster: VotersRun) -> None:
        machine = alone(cluster, controller_quorum_bootstrap_servers="n1:9093")
        for after in (0.0, 0.001, 0.002, 0.005, 0.02, 0.1, 0.3):
            machine.start()
            await asyncio.sleep(after)
            machine.lose_power()
        machine.start()
        await asyncio.sleep(10.0)
        assert driver(machine).is_leader
        assert [voter.directory for voter in driver(machine).core.voter_set.voters] == [driver(machine).directory]
        machine.kill()

    play_alone(scenario)
