"""Runs with five dedicated controllers, which fail while brokers have faults of their own.

In addition: a topic with unclean leader election, `min.insync.replicas` that changes, members of a group, and an
observer of the metadata log (`history.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from tests.sim.aimed import LAGGING_S, AimedFaults
from tests.sim.clients import SimClient, alter_configs
from tests.sim.compacted import DeletedCompactedTopic
from tests.sim.history import MetadataHistory, driver_of
from tests.sim.machine import Machine
from tests.sim.members import PROPERTIES as OF_MEMBERS
from tests.sim.schedule import CHECK_INTERVAL_S, QUIET_LIMIT_S, TOPIC, TOPICS, Plan, Run
from tests.sim.unclean import LATER_THAN_ALL, NOT_KNOWN, Epochs, UncleanTopic
from tests.sim.unclean import NAME as UNCLEAN
from tests.sim.unclean import PARTITION as UNCLEAN_PARTITION

FIRST, COUNT = 11, 5
TOPIC_CONFIG = 2
APART_S = 3.0
STOP_S = 40.0
PLAN = Plan(seconds=40.0, members=3, properties=OF_MEMBERS)


class ControllersApartRun(Run):
    topics = (*TOPICS, UNCLEAN, DeletedCompactedTopic.name)

    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed, plan)
        self.history = MetadataHistory()
        self.movable.append(UNCLEAN_PARTITION)

    def _controllers(self) -> list[Machine]:
        return [
            Machine(self.loop, self.fabric, self.rng, node_id, self._of_controller(node_id))
            for node_id in range(FIRST, FIRST + COUNT)
        ]

    def _properties(self, node_id: int) -> dict[str, str]:
        voters = ",".join(f"{number}@n{number}:9093" for number in range(FIRST, FIRST + COUNT))
        return {
            **super()._properties(node_id),
            "process.roles": "broker",
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://n{node_id}:9092",
        }

    def _of_controller(self, node_id: int) -> dict[str, str]:
        return {
            **self._properties(node_id),
            "process.roles": "controller",
            "listeners": f"CONTROLLER://n{node_id}:9093",
            "log.dirs": "/data/metadata",
        }

    def _faults(self, hosts: list[str]) -> AimedFaults:
        return ControllersApartFaults(self, hosts)

    def _clients(self, hosts: list[str]) -> list[asyncio.Task[None]]:
        tasks = super()._clients(hosts)
        rng = random.Random(f"apart {self.seed}")
        writer, reader, keeper = (SimClient(self.fabric, name, hosts) for name in ("u", "v", "w"))
        self.unclean = UncleanTopic(writer, reader, rng, self._epochs_at)
        self._deleted = DeletedCompactedTopic(keeper, rng)
        self._reading = self.loop.create_task(self.unclean.run())
        return [*tasks, self._reading, self.loop.create_task(self._deleted.run()), self.loop.create_task(self._along())]

    def _epochs_at(self, host: str) -> Epochs:
        process = next(each.process for each in self.machines if each.host == host)
        broker = None if process is None else process.node.broker
        state = None if broker is None else broker.replicas.partition(UNCLEAN_PARTITION)
        log = None if broker is None else broker.replicas.local_log(UNCLEAN_PARTITION)
        if state is None or log is None:
            return NOT_KNOWN
        return Epochs(min((epoch for epoch, _ in log.epochs.entries), default=LATER_THAN_ALL), state.leader_epoch)

    async def _along(self) -> None:
        while True:
            self.history.look(self.everybody)
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _stop_clients(self, tasks: list[asyncio.Task[None]]) -> None:
        kept = [task for task in tasks if task is self._reading]
        self.unclean.write_no_more()
        await super()._stop_clients([task for task in tasks if task not in kept])
        async with asyncio.timeout(QUIET_LIMIT_S):
            while not self.unclean.has_read(self.machines):  # noqa: ASYNC110  (virtual time)
                await asyncio.sleep(CHECK_INTERVAL_S)
        await super()._stop_clients(kept)

    def _verdict(self) -> None:
        super()._verdict()
        self.history.look(self.everybody)
        self.history.check_everywhere(self.everybody)
        self.unclean.check(self.machines, self.history)
        self._deleted.check(self.machines)


class ControllersApartFaults(AimedFaults):
    run: ControllersApartRun

    def __init__(self, run: ControllersApartRun, hosts: list[str]) -> None:
        super().__init__(run, hosts)
        self._of_controllers = random.Random(f"controllers of {run.seed}")
        self._person, self._other_person = (SimClient(run.fabric, name, hosts) for name in ("person", "other person"))

    def _kinds(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            *super()._kinds(),
            *[self._who_is_only_eligible_is_back_first] * 5,
            *[self._min_insync_replicas_change] * 3,
            *[self._the_last_in_sync_stays_away] * 3,
        ]

    def _all_the_while(self) -> list[Coroutine[Any, Any, None]]:
        return [self._among_controllers()]

    async def _restore(self) -> None:
        await super()._restore()
        await self._set_minimum(2)

    # -- controllers ----------------------------------------------------------------------------------------------
    async def _among_controllers(self) -> None:
        rng = self._of_controllers
        kinds = [self._some_die, self._some_die, self._they_part, self._some_hear_one_way, self._one_is_slow]
        kinds += [self._all_lose_power, self._they_lose_power_as_they_write, self._the_active_one_stands_still]
        while True:
            await asyncio.sleep(rng.uniform(0.5, 6.0))
            await rng.choice(kinds)()

    async def _some_die(self) -> None:
        """Usually the active controller is among them; perhaps so many die that none can be elected."""
        rng, controllers = self._of_controllers, self.run.controllers
        victims = rng.sample(controllers, rng.choice([1, 1, 2, 2, 3]))
        active = [each for each in controllers if self._is_active(each)]
        if rng.random() < 0.7 and active:
            victims = [*active[:1], *[each for each in victims if each not in active]][: len(victims)]
        self.run.note(f"{_named(victims)} are killed")
        for machine in victims:
            machine.kill()
            await asyncio.sleep(rng.choice([0.0, 0.0, 0.02, 0.5]))
        await self._return(victims)

    async def _all_lose_power(self) -> None:
        """What they acknowledged is on their disks."""
        rng = self._of_controllers
        victims = rng.sample(self.run.controllers, rng.choice([2, 3, 5]))
        self.run.note(f"{_named(victims)} lose power")
        for machine in victims:
            machine.lose_power()
        await self._return(victims)

    async def _they_lose_power_as_they_write(self) -> None:
        """Two followers hear the active controller, but their disks hang: nothing is committed, and nothing of it is
        left when they lose power and the active one dies. The other two never hear of it."""
        rng, controllers = self._of_controllers, self.run.controllers
        active = next((each for each in controllers if self._is_active(each)), None)
        others = [each for each in controllers if each is not active]
        if active is None or not all(each.is_up for each in others):
            return
        rng.shuffle(others)
        writing, away = others[:2], others[2:]
        self.run.note(f"{_named(writing)} lose power as they write what {active.host} has, which {_named(away)} lack")
        cut = {(one.host, each.host) for one in (active, *writing) for each in away}
        cut |= {(to, since) for since, to in cut}
        self.run.fabric.cut |= cut
        for machine in writing:
            machine.hang_quorum()
        changing = self.run.loop.create_task(
            self._set(self._other_person, "delete.retention.ms", str(rng.randrange(1 << 30)))
        )
        try:
            await asyncio.wait({changing}, timeout=rng.choice([0.2, 0.5]))
        finally:  # also if the faults end meanwhile: only a restart makes hung disks respond again
            active.kill()
            for machine in writing:
                machine.lose_power()
            self.run.fabric.cut -= cut
            changing.cancel()
        await self._return(writing)
        await asyncio.sleep(rng.choice([0.0, 3.0]))
        await self._return([active])

    async def _return(self, machines: Iterable[Machine]) -> None:
        rng = self._of_controllers
        for machine in machines:
            await asyncio.sleep(rng.choice([0.0, 0.5, 3.0]))
            if not machine.is_up:
                self.run.note(f"{machine.host} starts")
                machine.start()

    async def _they_part(self) -> None:
        """Split them into a minority and a majority, with the active one in either; each broker reaches one side, or
        both."""
        rng = self._of_controllers
        shuffled = rng.sample(self.run.controllers, COUNT)
        if rng.random() < 0.5:
            shuffled.sort(key=self._is_active, reverse=True)
        few = {each.host for each in shuffled[: rng.choice([1, 2])]}
        many = {each.host for each in self.run.controllers} - few
        for broker in self.run.machines:
            rng.choice([few, many, set()]).add(broker.host)
        self.run.note(f"{sorted(few)} and {sorted(many)} do not hear each other")
        await self._cut({(a, b) for a in few for b in many} | {(b, a) for a in few for b in many})

    async def _some_hear_one_way(self) -> None:
        """Cut some links between them in one direction only."""
        rng = self._of_controllers
        cut: set[tuple[str, str]] = set()
        for _ in range(rng.choice([1, 2, 4])):
            one, other = rng.sample(self.run.controllers, 2)
            cut.add((one.host, other.host))
        self.run.note(f"nothing comes by these ways: {sorted(cut)}")
        await self._cut(cut)

    async def _cut(self, ways: set[tuple[str, str]]) -> None:
        self.run.fabric.cut |= ways
        await asyncio.sleep(self._of_controllers.choice([0.5, 3.0, 9.0]))
        self.run.fabric.cut -= ways

    async def _one_is_slow(self) -> None:
        rng = self._of_controllers
        machine = rng.choice(self.run.controllers)
        self.run.note(f"{machine.host} is slow")
        self.run.fabric.slow[machine.host] = rng.choice([0.1, 0.5, 1.2])
        await asyncio.sleep(rng.choice([3.0, 9.0]))
        self.run.fabric.slow.pop(machine.host, None)

    async def _the_active_one_stands_still(self) -> None:
        for machine in self.run.controllers:
            if self._is_active(machine):
                seconds = self._of_controllers.choice([0.5, 2.0, 5.0])
                self.run.note(f"{machine.host} stands still for {seconds} s")
                machine.stall(seconds)

    # -- brokers --------------------------------------------------------------------------------------------------
    async def _who_is_only_eligible_is_back_first(self) -> None:
        """One broker lags, the second is in sync and leaves, the third has everything and dies. If the second lost
        unsynced data, or the third was allowed to commit alone, the second may lack acknowledged records; else it may
        lead.

        The power loss is noticed before the third broker, by then the leader, dies, and a broker alone in the ISR never
        loses power: if both happened at once, or the third were down too, the controllers might take the broker that
        lost data for the last known leader, as those of Apache Kafka do."""
        await self._set_minimum(2)
        await self._until(self.run.settled)
        if not self.run.settled():
            return
        behind, eligible, last = self.rng.sample(self.run.machines, 3)
        in_order, alone = self.rng.random() < 0.5, self.rng.random() < 0.5
        self.run.note(f"{behind.host} is killed")
        behind.kill()
        await asyncio.sleep(self.rng.choice([1.0, LAGGING_S]))
        in_order = in_order or not all(last.node_id in isr for isr in self._in_sync())
        how = "is stopped in order" if in_order else "loses power"
        self.run.note(f"{eligible.host} {how}, then {last.host} is killed")
        if in_order:
            await asyncio.wait({self.run.loop.create_task(eligible.stop())}, timeout=STOP_S)
        eligible.kill()
        if not in_order:
            eligible.lose_power()
            await self._until(lambda: self._all_is_left_to(last, eligible))
        if alone:
            self.run.note(f"min.insync.replicas of {TOPIC} becomes 1")
            await self._set_minimum(1)
        await asyncio.sleep(self.rng.choice([1.0, APART_S] if alone else [0.0, 0.05, 1.0, APART_S]))
        if in_order or self._all_is_left_to(last, eligible):
            last.kill()
        await asyncio.sleep(self.rng.choice([0.0, 1.0]))
        for machine in (eligible, behind, last):
            if not machine.is_up:
                self.run.note(f"{machine.host} starts")
                machine.start()
            await asyncio.sleep(self.rng.choice([APART_S, LAGGING_S]))
        await self._until(self.run.settled)

    async def _the_last_in_sync_stays_away(self) -> None:
        """With unclean leader election, a broker that lacks acknowledged records leads until the others are back."""
        behind, one, other = self.rng.sample(self.run.machines, 3)
        self.run.note(f"{behind.host} falls behind, the others are killed, it returns long before them")
        behind.kill()
        await asyncio.sleep(LAGGING_S)
        for machine in (one, other):
            machine.kill()
        if not behind.is_up:
            behind.start()
        await asyncio.sleep(self.rng.choice([LAGGING_S, 2 * LAGGING_S]))
        for machine in self.rng.sample((one, other), 2):
            if not machine.is_up:
                machine.start()
            await asyncio.sleep(self.rng.choice([0.0, 1.0, LAGGING_S]))

    async def _min_insync_replicas_change(self) -> None:
        """Just then a broker leaves the ISR, perhaps, or dies."""
        for _ in range(self.rng.randint(1, 3)):
            minimum = self.rng.choice([1, 2, 3])
            self.run.note(f"min.insync.replicas of {TOPIC} becomes {minimum}")
            asking = self.run.loop.create_task(self._set_minimum(minimum))
            await asyncio.sleep(self.rng.choice([0.0, 0.005, 0.02]))
            what = self.rng.choice([self._kill, self._stop, self._one_way, self._partition, self._kill_two])
            await what()
            await asking

    async def _set_minimum(self, minimum: int) -> None:
        await self._set(self._person, "min.insync.replicas", str(minimum))

    async def _set(self, person: SimClient, name: str, value: str) -> None:
        while not await alter_configs(person, {(TOPIC_CONFIG, TOPIC): {name: value}}):  # noqa: ASYNC110  (virtual time)
            await asyncio.sleep(0.2)

    def _all_is_left_to(self, heir: Machine, gone: Machine) -> bool:
        return all(heir.node_id in isr and gone.node_id not in isr for isr in self._in_sync())

    def _in_sync(self) -> list[tuple[int, ...]]:
        """The ISRs of all partitions, as committed by the controllers."""
        self.run.history.look(self.run.everybody)
        return [each.isr for topic in self.run.history.image.topics for each in topic.partitions.values()]

    def _is_active(self, machine: Machine) -> bool:
        driver = driver_of(machine)
        return driver is not None and driver.is_leader


def _named(machines: Iterable[Machine]) -> str:
    return ", ".join(machine.host for machine in machines)
