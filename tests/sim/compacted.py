"""A compacted topic: whatever happens to brokers that clean it, each key has its newest acknowledged record or a later
one, the same on every replica, and replaced records do not return.

Tombstones are kept for ever: a follower that is down for longer than `delete.retention.ms` would miss them, as in
Apache Kafka.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping

from tests.sim.checkers import Broken, check_one_log_each, records
from tests.sim.clients import SimClient, create_topic, delete_records
from tests.sim.machine import Machine

from ballast_wire.names import TopicPartition
from ballast_wire.records import Record

NAME = "kept"
PARTITION = TopicPartition(NAME, 0)
KEYS = 6
RECORDS_PER_SECOND = 3.0
DELETIONS = 0.05
DELETED = 0.2  # the share of tombstones among the records
CONFIGS = {
    "cleanup_policy": "compact",
    "min_insync_replicas": "2",
    "segment_ms": "2000",
    "min_cleanable_dirty_ratio": "0.01",
    "delete_retention_ms": str(10**12),  # whatever the clocks say
    "message_timestamp_type": "LogAppendTime",
}
Written = tuple[bytes, bytes | None]


class CompactedTopic:
    name = NAME
    configs: Mapping[str, str] = CONFIGS

    def __init__(self, client: SimClient, rng: random.Random) -> None:
        self.partition = TopicPartition(self.name, 0)
        self._client = client
        self._rng = rng
        self._sent: set[Written] = set()
        self._acked: dict[int, Written] = {}
        self.begins_at = 0  # what is before this offset may be gone

    async def run(self) -> None:
        await create_topic(self._client, self.name, 1, 3, **self.configs)
        number = 0
        while True:
            number += 1
            key = f"key {self._rng.randrange(KEYS)}".encode()
            await self._produce((key, None if self._rng.random() < DELETED else str(number).encode()))
            await self._between()
            await asyncio.sleep(self._rng.expovariate(RECORDS_PER_SECOND))

    async def _between(self) -> None:
        """What happens between two records: here nothing."""

    async def _produce(self, written: Written) -> None:
        leader = await self._client.leader_of(self.partition)
        if leader is None:
            return
        self._sent.add(written)
        record = Record(key=written[0], value=written[1], timestamp=1)
        offset = await self._client.produce(leader, self.partition, [record], timeout_ms=1000)
        if offset is not None:
            self._acked[offset] = written

    def check(self, machines: list[Machine]) -> None:
        newest = {key: offset for offset, (key, _) in sorted(self._acked.items()) if offset >= self.begins_at}
        first: dict[bytes | None, Record] | None = None
        for machine in machines:
            check_one_log_each(machine, [self.partition])
            found = list(records(machine, self.partition))
            self._nothing_is_strange(machine, found)
            latest = {record.key: record for record in found if record.offset >= self.begins_at}
            for key, offset in newest.items():
                if key not in latest or latest[key].offset < offset:
                    raise Broken(f"the newest is kept: {machine.host} has {latest.get(key)}, {offset} was acknowledged")
            first = first or latest
            if latest != first:
                raise Broken(f"replicas keep the same: {machine.host} has {latest}, another one {first}")

    def _nothing_is_strange(self, machine: Machine, found: list[Record]) -> None:
        times: dict[Written, int] = defaultdict(int)
        for record in found:
            assert record.key is not None
            written = record.key, record.value
            times[written] += record.value is not None
            if written not in self._sent or times[written] > 1:
                raise Broken(f"no phantom records, and none twice: {machine.host} has {record} of {self.partition}")
            if self._acked.get(record.offset, written) != written:
                raise Broken(f"acked is never replaced: {machine.host} has {record}, {self._acked[record.offset]} was")


class DeletedCompactedTopic(CompactedTopic):
    """A compacted topic whose records are deleted with DeleteRecords as well."""

    name = "kept-until-deleted"
    configs: Mapping[str, str] = {**CONFIGS, "cleanup_policy": "compact,delete", "retention_ms": "-1"}

    async def _between(self) -> None:
        if self._acked and self._rng.random() < DELETIONS:
            self.begins_at = max(self.begins_at, self._rng.randint(0, max(self._acked)))
            await delete_records(self._client, self.partition, self.begins_at)
