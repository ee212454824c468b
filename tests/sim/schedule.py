"""One run: a cluster, clients, faults from a seed, then quiet, then the verdict."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from tests.sim.checkers import Invariants, check_ledger, check_replicas_equal
from tests.sim.clients import Ledger, SimClient, consume_for_ever, create_topic, produce_for_ever
from tests.sim.disk import Crashed
from tests.sim.loop import SimLoop
from tests.sim.machine import Machine
from tests.sim.network import Fabric

from ballast_broker.storage.errors import LogDirectoryFailure
from ballast_wire.names import TopicPartition

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
CHECK_INTERVAL_S = 0.1
QUIET_LIMIT_S = 60.0
TOPIC = "t"
NETWORKS: list[dict[str, float]] = [
    {"max_delay_s": 0.003},
    {"max_delay_s": 0.02, "slow_chance": 0.05},
    {"max_delay_s": 0.1, "slow_chance": 0.1, "slow_delay_s": 0.6},
]


@dataclass
class Plan:
    """How long and how rough. Faults are drawn from the seed between `settle_s` and the end."""

    brokers: int = 3
    partitions: int = 3
    seconds: float = 60.0
    faults: int = 8
    least_faults: int = 5
    settle_s: float = 5.0
    power_loss: bool = True
    properties: dict[str, str] = field(default_factory=dict)


class Run:
    def __init__(self, seed: int, plan: Plan) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.seed = seed
        self.plan = plan
        self.rng = random.Random(seed)
        self.loop = loop
        self.fabric = Fabric(random.Random(self.rng.random()), **self.rng.choice(NETWORKS))
        self.trace: list[str] = []
        self.machines = [
            Machine(loop, self.fabric, self.rng, node_id, self._properties(node_id))
            for node_id in range(1, plan.brokers + 1)
        ]
        self.invariants = Invariants()
        self.ledger = Ledger()
        self.partitions = [TopicPartition(TOPIC, number) for number in range(plan.partitions)]
        self.fault_count = 0

    def _properties(self, node_id: int) -> dict[str, str]:
        voters = ",".join(f"{n}@n{n}:9093" for n in range(1, self.plan.brokers + 1))
        return {
            "node.id": str(node_id),
            "process.roles": "broker,controller",
            "cluster.id": CLUSTER_ID,
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://n{node_id}:9092,CONTROLLER://n{node_id}:9093",
            "log.dirs": "/data/a,/data/b",
            "log.cleaner.enable": "false",
            "log.index.size.max.bytes": "8192",
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "replica.lag.time.max.ms": "3000",
            "metadata.log.max.record.bytes.between.snapshots": "20000",
            **self.plan.properties,
        }

    def note(self, text: str) -> None:
        self.trace.append(f"{self.loop.time() - 1000:9.3f}  {text}")

    async def play(self) -> None:
        try:
            await self._play()
        finally:
            for machine in self.machines:
                machine.kill()

    async def _play(self) -> None:
        hosts = [m.host for m in self.machines]
        for machine in self.machines:
            machine.start()
        admin = SimClient(self.fabric, "admin", hosts)
        await asyncio.wait_for(create_topic(admin, TOPIC, self.plan.partitions, 3, min_insync_replicas="2"), 60)
        background = self._clients(hosts)
        background.append(self.loop.create_task(self._watch()))
        await asyncio.sleep(self.plan.settle_s)
        await self._faults(self.loop.time() + self.plan.seconds - self.plan.settle_s)
        await self._quiet(background)
        self._verdict()

    def _clients(self, hosts: list[str]) -> list[asyncio.Task[None]]:
        tasks = []
        for number in range(2):
            client = SimClient(self.fabric, f"p{number}", hosts)
            work = produce_for_ever(client, self.ledger, self.partitions, random.Random(self.rng.random()))
            tasks.append(self.loop.create_task(work))
        for partition in self.partitions:
            client = SimClient(self.fabric, f"c{partition.partition}", hosts)
            tasks.append(self.loop.create_task(consume_for_ever(client, self.ledger, partition)))
        return tasks

    async def _watch(self) -> None:
        while True:
            self.invariants.check(self.machines)
            await asyncio.sleep(CHECK_INTERVAL_S)

    # -- faults ---------------------------------------------------------------------------------------------------
    async def _faults(self, end: float) -> None:
        kinds = [
            self._kill,
            self._stop,
            self._partition,
            self._one_way,
            self._step_clock,
            self._kill_two,
            self._cut_and_kill,
            self._kill_as_another_returns,
        ]
        if self.plan.power_loss:
            kinds.append(self._power)
        gap = (end - self.loop.time()) / max(1, self.plan.faults)
        while self.loop.time() < end or self.fault_count < self.plan.least_faults:
            await self.rng.choice(kinds)()
            self.fault_count += 1
            await asyncio.sleep(self.rng.uniform(0.2, gap))

    def _victim(self) -> Machine | None:
        """A machine that is up; often one that leads something, for that is where mistakes hurt."""
        up = [m for m in self.machines if m.is_up]
        leading = [m for m in up if self._leads(m)]
        if leading and self.rng.random() < 0.7:
            return self.rng.choice(leading)
        return self.rng.choice(up) if up else None

    def _leads(self, machine: Machine) -> bool:
        broker = machine.process.node.broker if machine.process is not None else None
        return broker is not None and any(state.is_leader for state in broker.replicas.partitions())

    async def _back_later(self, machine: Machine) -> None:
        await asyncio.sleep(self.rng.choice([0.01, 0.5, 2.0, 6.0]))
        if not machine.is_up:
            self.note(f"{machine.host} starts")
            machine.start()

    async def _kill(self) -> None:
        machine = self._victim()
        if machine is not None:
            self.note(f"{machine.host} is killed")
            machine.kill()
            await self._back_later(machine)

    async def _kill_two(self) -> None:
        victims = self.rng.sample(self.machines, 2)
        for machine in victims:
            self.note(f"{machine.host} is killed")
            machine.kill()
            await asyncio.sleep(self.rng.choice([0.0, 0.01, 1.0]))
        for machine in victims:
            await self._back_later(machine)

    async def _cut_and_kill(self) -> None:
        """Clients still reach it, the other brokers do not: then it dies with what only it has."""
        machine = self._victim()
        if machine is not None:
            self.note(f"{machine.host} is cut off from the other brokers, then killed")
            self.fabric.partition({machine.host}, {m.host for m in self.machines} - {machine.host})
            await asyncio.sleep(self.rng.choice([0.1, 0.5, 2.0]))
            machine.kill()
            self.fabric.heal()
            await self._back_later(machine)

    async def _kill_as_another_returns(self) -> None:
        """One comes back and has yet to catch up when another one dies."""
        one, other = self.rng.sample(self.machines, 2)
        self.note(f"{one.host} is killed; {other.host} will be when it is back")
        one.kill()
        await asyncio.sleep(self.rng.choice([1.0, 4.0]))
        if not one.is_up:
            one.start()
        deadline = self.loop.time() + 5.0
        while not self._serves(one) and self.loop.time() < deadline:  # noqa: ASYNC110  (virtual time)
            await asyncio.sleep(0.001)
        await asyncio.sleep(self.rng.choice([0.0, 0.005, 0.02, 0.1]))
        self.note(f"{other.host} is killed")
        other.kill()
        await self._back_later(other)

    def _serves(self, machine: Machine) -> bool:
        broker = machine.process.node.broker if machine.process is not None else None
        return broker is not None and broker.is_running

    async def _power(self) -> None:
        """Only while the others are in sync: two memories lost at once are more than replication promises to bear."""
        machine = self._victim()
        if machine is not None and self._settled():
            self.note(f"{machine.host} loses power")
            machine.lose_power()
            await self._back_later(machine)
            await asyncio.sleep(8.0)  # one at a time: it has to catch up before the next machine may forget

    async def _stop(self) -> None:
        machine = self._victim()
        if machine is not None:
            self.note(f"{machine.host} is stopped in order")
            stopping = self.loop.create_task(machine.stop())
            await asyncio.wait({stopping}, timeout=40)
            machine.kill()
            await self._back_later(machine)

    async def _partition(self) -> None:
        machine = self.rng.choice(self.machines)
        others = {m.host for m in self.machines} - {machine.host}
        self.note(f"{machine.host} is cut off")
        self.fabric.partition({machine.host}, others)
        await asyncio.sleep(self.rng.choice([0.5, 3.0, 9.0]))
        self.note("the network is whole")
        self.fabric.heal()

    async def _one_way(self) -> None:
        one, other = self.rng.sample(self.machines, 2)
        self.note(f"{one.host} is not heard by {other.host}")
        self.fabric.partition({one.host}, {other.host}, both_ways=False)
        await asyncio.sleep(self.rng.choice([0.5, 3.0, 9.0]))
        self.note("the network is whole")
        self.fabric.heal()

    async def _step_clock(self) -> None:
        machine = self.rng.choice(self.machines)
        machine.clock.offset_ms += self.rng.choice([-3_600_000, -5000, 5000, 3_600_000])
        self.note(f"{machine.host}'s clock steps to {machine.clock.offset_ms} ms")

    # -- the end --------------------------------------------------------------------------------------------------
    async def _quiet(self, background: list[asyncio.Task[None]]) -> None:
        self.note("quiet")
        self.fabric.heal()
        for machine in self.machines:
            if not machine.is_up:
                machine.start()
        deadline = self.loop.time() + QUIET_LIMIT_S
        while not self._settled():
            if self.loop.time() > deadline:
                raise AssertionError(f"not whole again after {QUIET_LIMIT_S} s: {self._state()}")
            await asyncio.sleep(0.2)
        for task in background:
            task.cancel()
        for result in await asyncio.gather(*background, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result
        await asyncio.sleep(5.0)

    def _settled(self) -> bool:
        """Every partition led, every replica in sync, as the metadata of every node says."""
        for machine in self.machines:
            if machine.process is None or machine.process.node.broker is None:
                return False
            topic = machine.process.node.image.topics.by_name(TOPIC)
            if topic is None:
                return False
            if any(p.leader < 0 or len(p.isr) < 3 for p in topic.partitions.values()):
                return False
        return True

    def _state(self) -> str:
        told = []
        for machine in self.machines:
            if machine.process is None:
                told.append(f"{machine.host} down {machine.failures[-1:]}")
                continue
            topic = machine.process.node.image.topics.by_name(TOPIC)
            partitions = topic.partitions if topic is not None else {}
            told.append(f"{machine.host} {[(n, p.leader, p.isr, p.elr) for n, p in partitions.items()]}")
        return "; ".join(told)

    def _verdict(self) -> None:
        final = {partition: check_replicas_equal(self.machines, partition) for partition in self.partitions}
        check_ledger(self.ledger, final)
        assert len(self.ledger.acked) > 20, f"only {len(self.ledger.acked)} records were acknowledged"
        for machine in self.machines:
            unexpected = [e for e in machine.failures if not isinstance(e, LogDirectoryFailure)]
            assert not unexpected, f"{machine.host} failed: {unexpected}"
        errors = [e for e in self.loop.errors if not isinstance(e.get("exception"), Crashed)]
        assert not errors, f"errors nobody caught: {errors[:3]}"
