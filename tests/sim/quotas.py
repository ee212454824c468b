"""Runs with client quotas that are set, changed and removed again and again, so low that most clients exceed them.

A throttled client's connection is not read from. No acknowledged record is lost, nodes are never held back by a
client's quota, and a throttled client gets its answer after the throttle time that it was told, not never.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping
from typing import Any

from tests.sim.aimed import AimedFaults
from tests.sim.checkers import Broken
from tests.sim.clients import RETRY_S, SimClient
from tests.sim.schedule import QUIET_LIMIT_S, Plan, Run

from ballast_wire.messages import message
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

PLAN = Plan(seconds=40.0)
VERSION = 1
PRODUCE, FETCH, MUTATIONS = "producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate"
RATES: Mapping[str, tuple[float | None, ...]] = {
    PRODUCE: (None, 50.0, 500.0, 5000.0),
    FETCH: (None, 50.0, 500.0, 5000.0),
    MUTATIONS: (None, 0.2, 5.0),
}
PATIENT = "patient"
PATIENCE_S = 300.0
SOME_BYTES = (10, 300, 2000)
BY_NAME = 9


class QuotasRun(Run):
    told_to_wait = 0  # how often the patient client was throttled, and below for how long at most
    longest_wait_s = 0.0
    answered = 0

    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed, plan)
        self.fabric.unlimited = frozenset(machine.host for machine in self.machines)
        self._asked_s: float | None = None  # since when the patient client has been waiting

    def _faults(self, hosts: list[str]) -> AimedFaults:
        return QuotaFaults(self, hosts)

    def _clients(self, hosts: list[str]) -> list[asyncio.Task[None]]:
        tasks = super()._clients(hosts)
        client = SimClient(self.fabric, PATIENT, hosts, timeout_s=PATIENCE_S)
        return [*tasks, self.loop.create_task(self._be_patient(client))]

    async def _be_patient(self, client: SimClient) -> None:
        """Produce and wait for each answer, however long it takes, unless the connection breaks."""
        rng, number = random.Random(f"patient {self.seed}"), 0
        while True:
            partition = rng.choice(self.partitions)
            leader = await client.leader_of(partition)
            if leader is None:
                await asyncio.sleep(RETRY_S)
                continue
            number += 1
            value = f"{PATIENT}:{number}:".encode().ljust(rng.choice(SOME_BYTES), b".")
            self.ledger.sent.add(value)
            self._asked_s = self.loop.time()
            try:
                result = await self._produce(client, leader, partition, value)
            except OSError:
                result = None
            self._asked_s = None
            if result is None or result.error_code:
                self.ledger.unknown.add(value)
                client.forget_leader(partition)
            else:
                self.ledger.acked[(partition, result.base_offset)] = value
                self.answered += 1
            await asyncio.sleep(rng.expovariate(2))

    async def _produce(self, client: SimClient, leader: str, partition: TopicPartition, value: bytes) -> Any:
        kind = message("ProduceRequest")
        records = bytes(encode_batch([Record(value=value, timestamp=1)]))
        part = kind.TopicProduceData.PartitionProduceData(version=BY_NAME, index=partition.partition, records=records)
        data = kind.TopicProduceData(version=BY_NAME, name=partition.topic, partition_data=[part])
        answer = await client.ask(
            leader, kind(transactional_id=None, acks=-1, timeout_ms=2000, topic_data=[data]), BY_NAME
        )
        if answer.throttle_time_ms:
            self.told_to_wait += 1
            self.longest_wait_s = max(self.longest_wait_s, answer.throttle_time_ms / 1000)
        return answer.responses[0].partition_responses[0]

    async def _stop_clients(self, tasks: list[asyncio.Task[None]]) -> None:
        """Nothing fails any more and there are no quotas: the patient client must get its answer in the time told."""
        asked_s = self._asked_s
        deadline_s = self.loop.time() + self.longest_wait_s + QUIET_LIMIT_S
        while asked_s is not None and self._asked_s == asked_s:
            if self.loop.time() > deadline_s:
                raise Broken(f"who waits is answered: asked at {asked_s}, told to wait for {self.longest_wait_s} s")
            await asyncio.sleep(RETRY_S)
        await super()._stop_clients(tasks)


class QuotaFaults(AimedFaults):
    def __init__(self, run: QuotasRun, hosts: list[str]) -> None:
        super().__init__(run, hosts)
        self._person = SimClient(run.fabric, "limiter", hosts)

    def _until_restored(self) -> list[Coroutine[Any, Any, None]]:
        return [self._limit()]

    async def _restore(self) -> None:
        self.run.fabric.heal()
        for machine in self.run.everybody:
            if not machine.is_up:
                machine.start()
        await self._set(dict.fromkeys(RATES))
        await super()._restore()

    async def _limit(self) -> None:
        """Change quotas, whatever else goes wrong."""
        rng = random.Random(f"quotas {self.run.seed}")
        while True:
            rates = {kind: rng.choice(some) for kind, some in RATES.items()}
            self.run.note(f"quotas become {list(rates.values())}")
            await self._set(rates)
            await asyncio.sleep(rng.uniform(0.5, 8.0))

    async def _set(self, rates: Mapping[str, float | None]) -> None:
        """Set the default quotas of client ids; ask until they are accepted."""
        kind = message("AlterClientQuotasRequest")
        entry = kind.EntryData(
            version=VERSION,
            entity=[kind.EntryData.EntityData(version=VERSION, entity_type="client-id", entity_name=None)],
            ops=[
                kind.EntryData.OpData(version=VERSION, key=key, value=rate or 0.0, remove=rate is None)
                for key, rate in rates.items()
            ],
        )
        request = kind(entries=[entry], validate_only=False)
        while (await self._person.ask_any(request, VERSION)).entries[0].error_code:  # noqa: ASYNC110  (virtual time)
            await asyncio.sleep(RETRY_S)
