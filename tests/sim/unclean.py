"""A topic with unclean leader election: only what the leader epochs explain may be lost.

A record may be lost only because a leader elected uncleanly in a later epoch lacked it: that leader began at or before
its offset, or had a record of an earlier epoch there. The reader sends the epoch that it fetched last; the leader tells
it how far to truncate before it returns anything else, so in the end the reader has what every replica has. Only a
leader that has no record of that epoch or an earlier one cannot say how far.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.sim.checkers import Broken, records
from tests.sim.clients import RETRY_S, SimClient, create_topic, delete_records
from tests.sim.history import MetadataHistory
from tests.sim.machine import Machine

from ballast_broker.storage.log import Log
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, decode_records, iterate_batches

NAME = "unclean"
PARTITION = TopicPartition(NAME, 0)
RECORDS_PER_SECOND = 4.0
FETCH, LIST_OFFSETS = 12, 4
EARLIEST = -2
CONFIGS = {"unclean_leader_election_enable": "true"}


LATER_THAN_ALL = 2**31


class Epochs(NamedTuple):
    """Of a host's log: the oldest epoch with a record in it, and the newest one that the host may have led in."""

    oldest: int
    newest: int


NOT_KNOWN = Epochs(LATER_THAN_ALL, LATER_THAN_ALL)


@dataclass(frozen=True)
class Acked:
    value: bytes
    since_epoch: int
    """The leader's epoch at the least: the one that the producer knew when it wrote."""
    until_epoch: int
    """The leader's epoch at the most: the one it had when the answer had arrived."""


class UncleanTopic:
    def __init__(
        self, writer: SimClient, reader: SimClient, rng: random.Random, epochs_at: Callable[[str], Epochs]
    ) -> None:
        self._epochs_at = epochs_at
        self._writer = writer
        self._reader = reader
        self._rng = rng
        self._sent: set[bytes] = set()
        self._acked: list[tuple[int, Acked]] = []
        self._read: list[tuple[int, int, bytes]] = []  # offset, epoch, value
        self.times_told_to_go_back = 0
        self.deleted = 0  # records before this offset were deleted; they may still be there
        self._writes, self._has_written = True, False
        self._begins = 0  # where a reader that has read nothing begins

    async def run(self) -> None:
        minimum = self._rng.choice(["1", "2"])
        await create_topic(self._writer, NAME, 1, 3, min_insync_replicas=minimum, **CONFIGS)
        await asyncio.gather(self._write(), self._read_on())

    def write_no_more(self) -> None:
        self._writes = False

    # -- writing --------------------------------------------------------------------------------------------------
    async def _write(self) -> None:
        number = 0
        while self._writes:
            await asyncio.sleep(self._rng.expovariate(RECORDS_PER_SECOND))
            host, epoch = await self._leader(self._writer)
            if host is None:
                continue
            number += 1
            value = f"unclean:{number}".encode()
            self._sent.add(value)
            offset = await self._writer.produce(host, PARTITION, [Record(value=value, timestamp=1)], timeout_ms=1000)
            if offset is not None:
                self._acked.append((offset, Acked(value, epoch, self._epochs_at(host).newest)))
        self._has_written = True

    async def _leader(self, client: SimClient) -> tuple[str | None, int]:
        """The leader's host and epoch, as one of the brokers knows it; never cached."""
        kind = message("MetadataRequest")
        request = kind(topics=[kind.MetadataRequestTopic(version=9, name=NAME)], allow_auto_topic_creation=False)
        answer = await client.ask_any(request, 9)
        hosts = {broker.node_id: broker.host for broker in answer.brokers}
        for topic in answer.topics:
            for each in topic.partitions:
                if each.leader_id in hosts:
                    return hosts[each.leader_id], each.leader_epoch
        client.forget_leader(PARTITION)
        return None, -1

    async def delete_now_and_then(self, person: SimClient, rng: random.Random) -> None:
        """Delete up to any acknowledged offset, even a lost one, which is then beyond the end of the leader's log."""
        while True:
            await asyncio.sleep(rng.uniform(1.0, 8.0))
            newest = max((offset for offset, _ in self._acked), default=0)
            offset = rng.choice([newest, rng.randint(0, newest)])
            self.deleted = max(self.deleted, offset)
            await delete_records(person, PARTITION, offset)

    # -- reading --------------------------------------------------------------------------------------------------
    async def _read_on(self) -> None:
        while True:
            host, leader_epoch = await self._leader(self._reader)
            try:
                while host is not None and await self._fetch(host, leader_epoch):
                    pass
            except (OSError, TimeoutError):
                self._reader.forget_leader(PARTITION)
            await asyncio.sleep(RETRY_S)

    async def _fetch(self, host: str, leader_epoch: int) -> bool:
        """Fetch once; whether to go on with this host."""
        kind = message("FetchRequest")
        offset = self._read[-1][0] + 1 if self._read else self._begins
        part = kind.FetchTopic.FetchPartition(
            version=FETCH, partition=0, current_leader_epoch=leader_epoch, fetch_offset=offset,
            last_fetched_epoch=self._read[-1][1] if self._read else -1, log_start_offset=-1,
            partition_max_bytes=1 << 20,
        )  # fmt: skip
        request = kind(
            replica_id=-1, max_wait_ms=300, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0,
            session_epoch=-1, topics=[kind.FetchTopic(version=FETCH, topic=NAME, partitions=[part])],
            forgotten_topics_data=[], rack_id="",
        )  # fmt: skip
        answer = await self._reader.ask(host, request, FETCH)
        result = answer.responses[0].partitions[0]
        if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            was_deleted = offset < self.deleted or self._begins > 0
            if not was_deleted and (not self._read or self._epochs_at(host).oldest <= self._read[-1][1]):
                raise Broken(f"who reads is told how far to go back: {offset} is out of range, is all that is said")
            self._read.clear()
            self._begins = await self._earliest(host) if self.deleted else 0
            return True
        if result.error_code != ErrorCode.NONE:
            return False
        if result.diverging_epoch is not None and result.diverging_epoch.epoch >= 0:
            self._go_back(result.diverging_epoch.epoch, result.diverging_epoch.end_offset)
            return True
        for batch in iterate_batches(memoryview(bytes(result.records or b"")), whole=False):
            for record in decode_records(batch):
                if record.offset >= offset:
                    self._read.append((record.offset, batch.header.leader_epoch, record.value or b""))
        return True

    async def _earliest(self, host: str) -> int:
        kind = message("ListOffsetsRequest")
        topic = kind.ListOffsetsTopic
        part = topic.ListOffsetsPartition(
            version=LIST_OFFSETS, partition_index=0, current_leader_epoch=-1, timestamp=EARLIEST
        )
        request = kind(
            replica_id=-1, isolation_level=0,
            topics=[topic(version=LIST_OFFSETS, name=NAME, partitions=[part])],
        )  # fmt: skip
        answer = await self._reader.ask(host, request, LIST_OFFSETS)
        return max(0, answer.topics[0].partitions[0].offset)

    def _go_back(self, epoch: int, end_offset: int) -> None:
        before = len(self._read)
        self._read = [each for each in self._read if each[0] < end_offset and each[1] <= epoch]
        if len(self._read) == before:
            raise Broken(
                f"who is told to go back has to: epoch {epoch} ends at {end_offset}, read is {self._read[-1:]}"
            )
        self.times_told_to_go_back += 1

    # -- the end --------------------------------------------------------------------------------------------------
    def has_read(self, machines: Sequence[Machine]) -> bool:
        """Whether it has read everything that there is."""
        ends = [
            log.log_end_offset for each in machines if each.process and (log := each.process.node.logs.get(PARTITION))
        ]
        return self._has_written and (self._read[-1][0] + 1 if self._read else self._begins) == max(ends, default=0)

    def check(self, machines: Sequence[Machine], history: MetadataHistory) -> None:
        # A leader elected uncleanly may not know of a deletion that the others know of: ignore what only it still has.
        start = max(_log_of(machine).log_start_offset for machine in machines)
        copies = [whole(machine, start) for machine in machines]
        for machine, copy in zip(machines, copies, strict=True):
            if copy != copies[0]:
                raise Broken(f"replicas are equal to the byte: {machine.host} has {len(copy)} bytes of {PARTITION}")
        log = _log_of(machines[0])
        there = {each.offset: each.value or b"" for each in records(machines[0], PARTITION) if each.offset >= start}
        if start > self.deleted or {offset: value for offset, _, value in self._read if offset >= start} != there:
            raise Broken(f"read is what is there: {self._read[-3:]}, {sorted(there.items())[-3:]}")
        if strange := {*there.values()} - self._sent:
            raise Broken(f"no phantom records: {sorted(strange)[:5]}")
        elections = history.unclean.get((log.topic_id, 0), []) if log.topic_id is not None else []
        entries = log.epochs.entries
        began = [(each.epoch, _beginning(entries, each.epoch, log.log_end_offset)) for each in elections]
        for offset, acked in self._acked:
            if there.get(offset) == acked.value or offset < self.deleted:
                continue
            is_older = _epoch_of(entries, offset) < acked.until_epoch
            if not any(epoch > acked.since_epoch and (is_older or start <= offset) for epoch, start in began):
                raise Broken(
                    f"only what a later, uncleanly elected leader lacks is lost: offset {offset} was {acked}, is "
                    f"{there.get(offset)!r}; elections: {began}, epochs: {entries}"
                )

    def lost(self, machines: Sequence[Machine]) -> int:
        there = {record.offset: record.value for record in records(machines[0], PARTITION)}
        return sum(there.get(offset) != acked.value for offset, acked in self._acked)


def _beginning(entries: Sequence[tuple[int, int]], epoch: int, end: int) -> int:
    """The start offset of this epoch, or of the first later one in which anything was written."""
    return min((start for each, start in entries if each >= epoch), default=end)


def _epoch_of(entries: Sequence[tuple[int, int]], offset: int) -> int:
    return max((epoch for epoch, start in entries if start <= offset), default=-1)


def _log_of(machine: Machine) -> Log:
    assert machine.process is not None
    return machine.process.node.logs.logs[PARTITION]


def whole(machine: Machine, start: int) -> bytes:
    log = _log_of(machine)
    data, offset = b"", start
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 24, upper_offset=log.log_end_offset)
        found = piece.read()
        piece.release()
        data += found
        offset = [batch.last_offset for batch in iterate_batches(memoryview(found))][-1] + 1
    return data
