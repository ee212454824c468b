"""Runs with consumers that fetch from the replica in their rack while records are deleted under them.

Followers serve consumers here: what they return must be committed, aborted records must be recognisable, and nothing
may be missing. Consumers start over now and then and take little at a time, so they are often in the middle of a
transaction. In the transactional topic, records are deleted, healthy leaders are replaced, and unused ids expire.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from tests.sim import transactors
from tests.sim.aimed import AimedFaults
from tests.sim.atomicity import everything_of
from tests.sim.checkers import Broken
from tests.sim.clients import RETRY_S, SimClient, delete_records
from tests.sim.diary import Diary
from tests.sim.isolation import FETCH, ReadCommitted
from tests.sim.machine import Machine
from tests.sim.schedule import Plan, Run

from ballast_broker.config.broker_properties import RACK_AWARE_SELECTOR
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

PLAN = Plan(seconds=40.0)
PIECES = (100, 1000, 1 << 20)
BEGINS_ANEW = 0.02
PREFERRED = 0
ELECT_LEADERS = 2
EXPIRING = {
    "transactional.id.expiration.ms": "5000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
}


def rack_of(node_id: int) -> str:
    return f"rack {node_id}"


class FollowerReader(ReadCommitted):
    """Asks the leader, which redirects it to the replica in its rack; if that one refuses, it asks the leader again."""

    def __init__(
        self, client: SimClient, everybody: Diary, partition: TopicPartition, topic_id: UUID, rack: str,
        rng: random.Random,
    ) -> None:  # fmt: skip
        self.diary = Diary(deleted=everybody.deleted, broken=everybody.broken)
        super().__init__(client, self.diary, partition, topic_id)
        self._rack = rack
        self._rng = rng
        self.answers_of_followers = 0
        self._sent_to: str | None = None

    async def run(self) -> None:
        while True:
            host = self._sent_to or await self._client.leader_of(self.partition)
            if host is None:
                await asyncio.sleep(RETRY_S)
                continue
            if host != self._host:
                self._host, self._session = host, (0, 0)
            try:
                answer = await self._client.ask(host, self._request(), FETCH)
            except (OSError, TimeoutError):
                await self._again()
                continue
            before = self.offset
            if answer.error_code or not self._take(answer):
                await self._back(gone=self.offset > before)
                continue
            self._follow(answer)
            if self._rng.random() < BEGINS_ANEW:
                self.offset = 0

    async def _back(self, *, gone: bool) -> None:
        """Return to the leader. `gone`: the requested records were deleted, so there is no reason to wait."""
        if gone:
            self._session = 0, 0
        else:
            await self._again()

    async def _again(self) -> None:
        self._sent_to = None
        await super()._again()

    def _request(self) -> Any:
        request = super()._request()
        request.rack_id = self._rack
        for part in (part for topic in request.topics for part in topic.partitions):
            part.partition_max_bytes = self._rng.choice(PIECES)
        return request

    def _follow(self, answer: Any) -> None:
        results = [part for topic in answer.responses for part in topic.partitions]
        self.answers_of_followers += self._sent_to is not None and any(part.records for part in results)
        for result in results:
            if result.preferred_read_replica >= 0:
                self._sent_to = f"n{result.preferred_read_replica}"

    def check(self, visible: dict[int, bytes]) -> None:
        """This reader alone has read everything that is committed, and nothing else."""
        seen = {offset: value for (_, offset), value in self.diary.seen.items()}
        start = self.diary.deleted.get(self.partition, 0)
        for offset in sorted(seen.keys() | visible.keys()):
            if seen.get(offset) != visible.get(offset) and offset >= start:
                raise Broken(
                    f"read is what is committed, by whoever is read from: {self.partition} offset {offset} is "
                    f"{visible.get(offset)!r}, {seen.get(offset)!r} was read in {self._rack}"
                )


class FollowerFetchingTransactors(transactors.Transactors):
    per_second = 2.0
    near: list[FollowerReader]

    async def read(self, rng: random.Random) -> None:
        await self._exists.wait()
        self.near = [
            FollowerReader(
                self.client(f"near{node_id}-{partition.partition}"), self.diary, partition, self.topic_id,
                rack_of(node_id), random.Random(f"near {node_id} {partition.partition} {rng.random()}"),
            )
            for partition in transactors.PARTITIONS
            for node_id in (1, 2)
        ]  # fmt: skip
        self.readers += self.near
        async with asyncio.TaskGroup() as group:
            group.create_task(super().read(rng))
            for reader in self.near:
                group.create_task(reader.run())


class FollowerFetchingRun(Run):
    _transactors: FollowerFetchingTransactors

    def _properties(self, node_id: int) -> dict[str, str]:
        return {
            **super()._properties(node_id),
            "broker.rack": rack_of(node_id),
            "replica.selector.class": RACK_AWARE_SELECTOR,
            **EXPIRING,
        }

    def _make_transactors(self, hosts: list[str], rng: random.Random) -> FollowerFetchingTransactors:
        return FollowerFetchingTransactors(self.fabric, hosts, rng, timeout_s=self.plan.client_timeout_s)

    def _faults(self, hosts: list[str]) -> AimedFaults:
        return FollowerFetchingFaults(self, hosts)

    @property
    def answers_of_followers(self) -> int:
        return sum(reader.answers_of_followers for reader in self._transactors.near)

    def _verdict(self) -> None:
        super()._verdict()
        for partition in transactors.PARTITIONS:
            visible = everything_of(self._begins_first(partition), partition).visible
            for reader in self._transactors.near:
                if reader.partition == partition:
                    reader.check(visible)

    def _begins_first(self, partition: TopicPartition) -> Machine:
        def start(machine: Machine) -> int:
            log = machine.process and machine.process.node.logs.get(partition)
            return log.log_start_offset if log else 0

        return min(self.machines, key=start)


class FollowerFetchingFaults(AimedFaults):
    def _kinds(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            *super()._kinds(),
            *[self._delete_transacted] * 4,
            *[self._elect_the_preferred] * 2,
        ]

    async def _delete_transacted(self) -> None:
        """Delete up to any committed offset, even in the middle of an open transaction."""
        diary = self.run.transactions
        partition = self.rng.choice(transactors.PARTITIONS)
        offset = self.rng.randint(0, max((at for place, at in diary.acked if place == partition), default=0))
        self.run.note(f"{partition} is to begin at {offset}")
        diary.deleted[partition] = max(offset, diary.deleted.get(partition, 0))
        await delete_records(self._admin, partition, offset)
        what = self.rng.choice([self._kill, self._move, self._elect_the_preferred, None])
        if what is not None:
            await what()

    async def _elect_the_preferred(self) -> None:
        """For all partitions at once."""
        self.run.note("the preferred replicas are to lead")
        request = message("ElectLeadersRequest")(election_type=PREFERRED, topic_partitions=None, timeout_ms=2000)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                await self._admin.ask_any(request, ELECT_LEADERS)
