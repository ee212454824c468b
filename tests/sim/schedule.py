"""Plays one simulated run: a cluster, clients, faults drawn from a seed, then quiet, then the verdict."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from tests.sim import transactors
from tests.sim.aimed import AimedFaults
from tests.sim.atomicity import Judge, check_index, check_offsets, everything_of, wait_until_stable
from tests.sim.checkers import (
    Broken,
    Invariants,
    check_ledger,
    check_one_log_each,
    check_replicas_equal,
    check_times,
    check_where_replicas_are,
)
from tests.sim.clients import REQUEST_TIMEOUT_S, Ledger, SimClient, consume_for_ever, create_topic, produce_for_ever
from tests.sim.compacted import NAME as KEPT
from tests.sim.compacted import PARTITION as KEPT_PARTITION
from tests.sim.compacted import CompactedTopic
from tests.sim.disk import Crashed
from tests.sim.enough_replicas import EnoughReplicas
from tests.sim.faults import DIRECTORIES, Faults
from tests.sim.idempotent import IdempotentProducer
from tests.sim.loop import SimLoop
from tests.sim.machine import Machine
from tests.sim.members import GROUP, Members
from tests.sim.network import Fabric
from tests.sim.offsets import PARTITIONS as OFFSETS_PARTITIONS
from tests.sim.offsets import PROPERTIES as OF_OFFSETS
from tests.sim.offsets import TOPIC as OFFSETS
from tests.sim.offsets import CommittedOffsets
from tests.sim.rebuilt import at_rest, check_rebuilt
from tests.sim.recreated import NAME as PASSING
from tests.sim.recreated import RecreatedTopic

from ballast_broker.coordinator.service import partition_for
from ballast_wire.names import TopicPartition

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
CHECK_INTERVAL_S = 0.1
REBUILD_INTERVAL_S = 8.0
QUIET_LIMIT_S = 60.0
FAULT_LIMIT_S = 120.0
TOPIC = "t"
TOPICS = (TOPIC, PASSING, KEPT, OFFSETS, transactors.NAME, transactors.STATE)
NETWORKS: list[dict[str, Any]] = [
    {"max_delay_s": 0.003},
    {"max_delay_s": 0.02, "slow_chance": 0.05},
    {"max_delay_s": 0.1, "slow_chance": 0.1, "slow_delay_s": 0.6},
]


FETCH_BYTES = ["1048576", "100"]  # everything at once, or batch by batch, which makes catching up slow


@dataclass
class Plan:
    """How long a run is and how rough. Faults occur between `settle_s` and the end."""

    brokers: int = 3
    partitions: int = 3
    seconds: float = 60.0
    faults: int = 8
    least_faults: int = 5
    settle_s: float = 5.0
    power_loss: bool = True
    client_timeout_s: float = REQUEST_TIMEOUT_S
    properties: dict[str, str] = field(default_factory=dict)
    members: int = 0  # in a group of the consumer protocol


class Run:
    directories: tuple[str, ...] = DIRECTORIES
    topics: tuple[str, ...] = TOPICS
    kind_of_loop: type[SimLoop] = SimLoop
    kind_of_machine: type[Machine] = Machine

    def __init__(self, seed: int, plan: Plan) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.seed = seed
        self.plan = plan
        self.rng = random.Random(seed)
        self.loop = loop
        self.fabric = Fabric(random.Random(self.rng.random()), **self.rng.choice(NETWORKS))
        self._fetch_bytes = self.rng.choice(FETCH_BYTES)
        self.trace: list[str] = []
        self.machines = [
            self.kind_of_machine(loop, self.fabric, self.rng, node_id, self._properties(node_id))
            for node_id in range(1, plan.brokers + 1)
        ]
        self.controllers = self._controllers()
        self.everybody = [*self.controllers, *self.machines]
        self.invariants = Invariants()
        self.ledger = Ledger()
        self.partitions = [TopicPartition(TOPIC, number) for number in range(plan.partitions)]
        offsets = [TopicPartition(OFFSETS, number) for number in range(OFFSETS_PARTITIONS)]
        states = [TopicPartition(transactors.STATE, number) for number in range(transactors.STATE_PARTITIONS)]
        self.movable = [*self.partitions, KEPT_PARTITION, *offsets, *transactors.PARTITIONS, *states]
        self.members: Members | None = None
        self.fault_count = 0
        self._newest_epochs = dict.fromkeys(self.partitions, -1)
        self._enough = EnoughReplicas(self.partitions)

    def _controllers(self) -> list[Machine]:
        """The dedicated controllers, if any."""
        return []

    def _properties(self, node_id: int) -> dict[str, str]:
        voters = ",".join(f"{n}@n{n}:9093" for n in range(1, self.plan.brokers + 1))
        return {
            "node.id": str(node_id),
            "process.roles": "broker,controller",
            "cluster.id": CLUSTER_ID,
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://n{node_id}:9092,CONTROLLER://n{node_id}:9093",
            "log.dirs": ",".join(self.directories),
            "log.cleaner.backoff.ms": "500",
            "log.index.size.max.bytes": "8192",
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "replica.lag.time.max.ms": "3000",
            "replica.fetch.max.bytes": self._fetch_bytes,
            "log.retention.ms": "-1",
            "log.retention.check.interval.ms": "2000",
            "metadata.log.max.record.bytes.between.snapshots": "20000",
            **OF_OFFSETS,
            **transactors.PROPERTIES,
            **self.plan.properties,
        }

    def note(self, text: str) -> None:
        self.trace.append(f"{self.loop.time() - 1000:9.3f}  {text}")

    async def play(self) -> None:
        try:
            await self._play()
        finally:
            for machine in self.everybody:
                machine.kill()

    async def _play(self) -> None:
        hosts = [m.host for m in self.machines]
        for machine in self.everybody:
            machine.start()
        admin = SimClient(self.fabric, "admin", hosts)
        try:
            await asyncio.wait_for(create_topic(admin, TOPIC, self.plan.partitions, 3, min_insync_replicas="2"), 60)
        except TimeoutError:
            raise RuntimeError("no topic can be made before anything has gone wrong") from None
        background = [*self._clients(hosts), self.loop.create_task(self._watch())]
        story = self.loop.create_task(self._go_on(hosts, background))
        done, _ = await asyncio.wait([story, *background, *self._transacting], return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            if not task.cancelled() and task.exception() is not None:
                story.cancel()  # the run has failed; what was still to happen cannot mend it
        for task in done:
            if not task.cancelled():
                task.result()

    async def _go_on(self, hosts: list[str], background: list[asyncio.Task[None]]) -> None:
        await asyncio.sleep(self.plan.settle_s)
        async with asyncio.timeout(self.plan.seconds + FAULT_LIMIT_S):  # some requests are repeated until they succeed
            await self._faults(hosts).go_on_until(self.loop.time() + self.plan.seconds - self.plan.settle_s)
        await self._quiet(background)
        self._verdict()

    def _faults(self, hosts: list[str]) -> Faults:
        return AimedFaults(self, hosts)

    def _clients(self, hosts: list[str]) -> list[asyncio.Task[None]]:
        tasks = []
        for number in range(2):
            client = SimClient(self.fabric, f"p{number}", hosts, timeout_s=self.plan.client_timeout_s)
            work = produce_for_ever(client, self.ledger, self.partitions, random.Random(self.rng.random()))
            tasks.append(self.loop.create_task(work))
        client = SimClient(self.fabric, "i", hosts, timeout_s=self.plan.client_timeout_s)
        rng = random.Random(self.rng.random())
        self._idempotent = IdempotentProducer(client, self.ledger, self.partitions, rng, self._recognises)
        self._idempotent_task = self.loop.create_task(self._idempotent.run())
        tasks.append(self._idempotent_task)
        client = SimClient(self.fabric, "o", hosts, timeout_s=self.plan.client_timeout_s)
        self._passing = RecreatedTopic(client, random.Random(self.rng.random()))
        self._passing_task = self.loop.create_task(self._passing.run())
        tasks.append(self._passing_task)
        client = SimClient(self.fabric, "k", hosts, timeout_s=self.plan.client_timeout_s)
        self._kept = CompactedTopic(client, random.Random(self.rng.random()))
        tasks.append(self.loop.create_task(self._kept.run()))
        client = SimClient(self.fabric, "g", hosts, timeout_s=self.plan.client_timeout_s)
        self._offsets = CommittedOffsets(client, random.Random(self.rng.random()), TOPIC)
        tasks.append(self.loop.create_task(self._offsets.run()))
        self._transacting = self._transact(hosts)
        for partition in self.partitions:
            name = f"c{partition.partition}"
            client = SimClient(self.fabric, name, hosts, timeout_s=self.plan.client_timeout_s)
            tasks.append(self.loop.create_task(consume_for_ever(client, self.ledger, partition)))
        if self.plan.members:
            clients = [SimClient(self.fabric, f"m{number}", hosts) for number in range(self.plan.members)]
            of_group = TopicPartition(OFFSETS, partition_for(GROUP, OFFSETS_PARTITIONS))
            self.members = Members(
                clients, self.seed, TOPIC, self.plan.partitions, lambda host: self.leads(host, of_group)
            )
        return tasks

    def _transact(self, hosts: list[str]) -> list[asyncio.Task[None]]:
        rng = random.Random(self.rng.random())
        self._transactors = self._make_transactors(hosts, rng)
        self.transactions = self._transactors.diary
        self._transactors_task = self.loop.create_task(self._transactors.run())
        return [self._transactors_task, self.loop.create_task(self._transactors.read(rng))]

    def _make_transactors(self, hosts: list[str], rng: random.Random) -> transactors.Transactors:
        return transactors.Transactors(self.fabric, hosts, rng, timeout_s=self.plan.client_timeout_s)

    def leads(self, host: str, partition: TopicPartition) -> bool:
        """Whether this host leads in the newest leader epoch seen so far, also at nodes that are down by now."""
        leaders = self._leaders_by_epoch(partition)
        return leaders.get(max([self._newest_epochs.get(partition, -1), *leaders])) == host

    def _recognises(self, host: str, partition: TopicPartition) -> bool:
        """Whether this host must recognise any batch that an idempotent producer sends again."""
        return self.leads(host, partition)

    def _leaders_by_epoch(self, partition: TopicPartition) -> dict[int, str]:
        """The leaders of the epochs that running nodes know of; "" for an epoch in which none of them leads."""
        leaders: dict[int, str] = {}
        for machine in self.machines:
            broker = None if machine.process is None else machine.process.node.broker
            state = None if broker is None else broker.replicas.partition(partition)
            if state is not None:
                leaders.setdefault(state.leader_epoch, "")
                if state.is_leader:
                    leaders[state.leader_epoch] = machine.host
        return leaders

    async def _watch(self) -> None:
        rng = random.Random(self.rng.random())
        while True:
            self.invariants.check(self.everybody)
            self._enough.check(self.machines)
            if self.transactions.broken:
                raise Broken(self.transactions.broken[0])
            if rng.random() < CHECK_INTERVAL_S / REBUILD_INTERVAL_S:
                self._check_rebuilt(rng.choice(self.machines), rng.choice([*self.partitions, *transactors.PARTITIONS]))
            for partition in self.partitions:
                newest = max(self._leaders_by_epoch(partition), default=-1)
                self._newest_epochs[partition] = max(self._newest_epochs[partition], newest)
            await asyncio.sleep(CHECK_INTERVAL_S)

    def _check_rebuilt(self, machine: Machine, partition: TopicPartition) -> None:
        log = at_rest(machine, partition)
        if log is not None and not machine.store.failing and not machine.store.capacity:
            check_rebuilt(machine, log)
            if partition in transactors.PARTITIONS:
                check_index(machine, partition, everything_of(machine, partition))

    # -- the end --------------------------------------------------------------------------------------------------
    async def _quiet(self, background: list[asyncio.Task[None]]) -> None:
        self.note("quiet")
        self.fabric.heal()
        for machine in self.everybody:
            if not machine.is_up:
                machine.start()
        self._passing.finish()
        self._transactors.finish()
        self._idempotent.finish()  # else replicas that fetch batch by batch over a slow network would never catch up
        await asyncio.wait([self._passing_task], timeout=QUIET_LIMIT_S)
        deadline = self.loop.time() + QUIET_LIMIT_S
        while not self.settled():
            if self.loop.time() > deadline:
                raise AssertionError(f"not whole again after {QUIET_LIMIT_S} s: {self._state()}")
            await asyncio.sleep(0.2)
        await asyncio.wait([self._idempotent_task], timeout=QUIET_LIMIT_S)
        if not self._idempotent_task.done():
            raise AssertionError(f"not acknowledged after {QUIET_LIMIT_S} s of quiet: {self._idempotent.waiting()}")
        await self._stop_clients(background)
        stopped_s = self.loop.time()
        await self._end_transactions()
        await asyncio.sleep(max(0.0, stopped_s + 5.0 - self.loop.time()))
        await asyncio.wait_for(self._offsets.check(), QUIET_LIMIT_S)
        if self.members is not None:
            await asyncio.wait_for(self.members.settle(), QUIET_LIMIT_S)

    async def _stop_clients(self, tasks: list[asyncio.Task[None]]) -> None:
        await _stop(tasks)

    async def _end_transactions(self) -> None:
        await asyncio.wait([self._transactors_task], timeout=QUIET_LIMIT_S)
        if not self._transactors_task.done():
            raise AssertionError(f"not ended after {QUIET_LIMIT_S} s of quiet: {self.transactions.transactions[-2:]}")
        hosts = [machine.host for machine in self.machines]
        await wait_until_stable(self._transactors.admin, hosts, self._transactors.readers, QUIET_LIMIT_S)
        await _stop(self._transacting)
        there = Judge(self.transactions).check(self.machines)
        await asyncio.wait_for(check_offsets(self._transactors.admin, there), QUIET_LIMIT_S)

    def settled(self) -> bool:
        """Whether, in the metadata of every node, all partitions have leaders and full ISRs, and nothing moves."""
        for machine in self.machines:
            if machine.process is None or machine.process.node.broker is None:
                return False
            topic = machine.process.node.image.topics.by_name(TOPIC)
            if topic is None:
                return False
            topics = [machine.process.node.image.topics.by_name(name) for name in self.topics]
            partitions = [each for found in topics if found is not None for each in found.partitions.values()]
            if any(p.leader < 0 or len(p.isr) < 3 for p in partitions):
                return False
            if machine.process.node.logs.future_logs:
                return False  # a move is still under way
        return True

    def _state(self) -> str:
        told = []
        for machine in self.machines:
            if machine.process is None or machine.process.node.broker is None:
                told.append(f"{machine.host} down, or not so far {machine.failures[-1:]}")
                continue
            topic = machine.process.node.image.topics.by_name(TOPIC)
            partitions = topic.partitions if topic is not None else {}
            told.append(f"{machine.host} {[(n, p.leader, p.isr, p.elr) for n, p in partitions.items()]}")
        return "; ".join(told)

    def _verdict(self) -> None:
        final = {partition: check_replicas_equal(self.machines, partition) for partition in self.partitions}
        check_ledger(self.ledger, final)
        self._passing.check(self.machines)
        self._kept.check(self.machines)
        for machine in self.machines:
            check_one_log_each(machine, self.partitions)
            check_where_replicas_are(machine)
            for partition in (KEPT_PARTITION, *transactors.PARTITIONS):
                check_times(machine, partition)
        assert len(self.ledger.acked) > 20, f"only {len(self.ledger.acked)} records were acknowledged"
        for machine in self.everybody:
            assert not machine.failures, f"{machine.host} failed: {machine.failures}"
        errors = [e for e in self.loop.errors if not isinstance(e.get("exception"), Crashed)]
        assert not errors, f"errors nobody caught: {errors[:3]}"


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result
