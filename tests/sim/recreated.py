"""A topic that is deleted and re-created under the same name, and whose records expire by age: whatever a broker has
missed meanwhile, no record of one incarnation of the topic is ever found in another.

Clients address it by topic id, so that each record says to which incarnation it was sent.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from uuid import UUID

from tests.sim.checkers import Broken, check_one_log_each, contents
from tests.sim.clients import RETRY_S, SimClient, create_topic
from tests.sim.machine import Machine

from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record

NAME = "passing"
PARTITION = TopicPartition(NAME, 0)
CONFIGS = {
    "min_insync_replicas": "2",
    "segment_ms": "1000",
    "retention_ms": "3000",
    "message_timestamp_type": "LogAppendTime",
}


class RecreatedTopic:
    replicas = 3

    def __init__(self, client: SimClient, rng: random.Random) -> None:
        self._client = client
        self._rng = rng
        self._finishing = False
        self._number = 0
        self._acked: dict[tuple[UUID, int], bytes] = {}

    async def run(self) -> None:
        """Run until `finish` is called; the last topic stays."""
        while True:
            await create_topic(self._client, NAME, 1, self.replicas, **CONFIGS)
            topic_id = await self._id()
            until = asyncio.get_running_loop().time() + self._rng.uniform(2.0, 20.0)
            while not self._finishing and asyncio.get_running_loop().time() < until:
                await self._produce(topic_id)
                await asyncio.sleep(self._rng.expovariate(2))
            if self._finishing:
                return
            await self._delete(topic_id)

    def finish(self) -> None:
        self._finishing = True

    async def _id(self) -> UUID:
        """The topic id as one of the brokers knows it: it may still be that of the previous topic."""
        kind = message("MetadataRequest")
        topic = kind.MetadataRequestTopic(version=12, name=NAME, topic_id=uuid.UUID(int=0))
        while True:
            answer = await self._client.ask_any(kind(topics=[topic], allow_auto_topic_creation=False), 12)
            if answer.topics[0].error_code == ErrorCode.NONE:
                found: UUID = answer.topics[0].topic_id
                return found
            await asyncio.sleep(RETRY_S)

    async def _produce(self, topic_id: UUID) -> None:
        leader = await self._client.leader_of(PARTITION)
        if leader is None:
            return
        self._number += 1
        value = f"{topic_id}:{self._number}".encode()
        offset = await self._client.produce(
            leader, PARTITION, [Record(value=value, timestamp=1)], timeout_ms=1000, topic_id=topic_id
        )
        if offset is not None:
            self._acked[topic_id, offset] = value

    async def _delete(self, topic_id: UUID) -> None:
        kind = message("DeleteTopicsRequest")
        request = kind(topics=[kind.DeleteTopicState(version=6, name=None, topic_id=topic_id)], timeout_ms=2000)
        await self._client.ask_any(request, 6)

    def check(self, machines: list[Machine]) -> None:
        """The last incarnation is the same on all replicas, but for expired records, and has no other's records."""
        logs = [machine.process.node.logs.get(PARTITION) for machine in machines if machine.process is not None]
        start = max(log.log_start_offset for log in logs if log is not None)
        copies = [contents(machine, PARTITION) for machine in machines]
        first = {offset: value for offset, value in copies[0].items() if offset >= start}
        topic_id = logs[0].topic_id if logs[0] is not None else None
        for machine, copy in zip(machines, copies, strict=True):
            check_one_log_each(machine, [PARTITION])
            strangers = [value for value in copy.values() if not value.startswith(str(topic_id).encode())]
            if strangers:
                raise Broken(f"no record of an earlier topic: {machine.host} has {strangers[:3]} in {topic_id}")
            if first != {offset: value for offset, value in copy.items() if offset >= start}:
                raise Broken(f"replicas are equal: {NAME} on {machine.host} has {copy}, from {start} on due: {first}")
        for (acked_by, offset), value in self._acked.items():
            if acked_by == topic_id and offset >= start and first.get(offset) != value:
                raise Broken(f"acked is never lost: {NAME} offset {offset} was {value!r}, is {first.get(offset)!r}")
