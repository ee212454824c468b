"""Readers of a log with transactions: of committed records only, as Java's consumer finds them, or of everything."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from tests.sim.clients import RETRY_S, SimClient
from tests.sim.diary import Diary, Identity

from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition
from ballast_wire.records import BatchView, Record, decode_records, iterate_batches

FETCH = 17
WAIT_MS = 2000
ABORT, COMMIT = 0, 1
NEW_SESSION = (0, 0)
_KEY, _VALUE = struct.Struct(">hh"), struct.Struct(">hi")


def marker(batch: BatchView) -> tuple[int, int]:
    """Whether a control batch commits or aborts, and the epoch of the coordinator that wrote it."""
    record = next(decode_records(batch))
    return _KEY.unpack_from(record.key or b"")[1], _VALUE.unpack_from(record.value or b"")[1]


def identity(batch: BatchView) -> Identity:
    return Identity(batch.header.producer_id, batch.header.producer_epoch)


def transaction_of(value: bytes) -> bytes:
    """The transaction of a value: the simulation's producers write ID:TRANSACTION:PARTITION:RECORD."""
    return value.rsplit(b":", 2)[0]


class Everything:
    """Takes all batches of a partition in order, and notes what is wrong with the order."""

    def __init__(self) -> None:
        self.open: dict[
            int, tuple[int, dict[int, bytes]]
        ] = {}  # by producer: the first offset of its transaction, and its records
        self.records: dict[int, bytes] = {}
        self.visible: dict[int, bytes] = {}
        self.aborted: list[tuple[int, int, int, int]] = []  # producer, first and last offset, the LSO at the end
        self.wrong: list[str] = []
        self._ended: dict[int, tuple[int, int]] = {}  # by producer: its epoch and its coordinator's, in the last marker

    def take(self, batch: BatchView) -> None:
        producer, epoch = identity(batch)
        if batch.is_control:
            self._end(batch, producer, epoch)
            return
        records = {record.offset: record.value or b"" for record in decode_records(batch)}
        self.records |= records
        if not batch.is_transactional:
            self.visible |= records
            return
        if epoch < self._ended.get(producer, (-1, -1))[0]:
            self.wrong.append(f"at {batch.base_offset} producer {producer} writes with epoch {epoch}, which is over")
        under_way = self.open.setdefault(producer, (batch.base_offset, {}))[1]
        under_way.update(records)
        if len({transaction_of(value) for value in under_way.values()}) > 1:
            self.wrong.append(f"two transactions end as one: {sorted(under_way.values())}")

    def _end(self, batch: BatchView, producer: int, epoch: int) -> None:
        kind, coordinator = marker(batch)
        before = self._ended.get(producer, (-1, -1))
        if epoch < before[0] or coordinator < before[1]:
            self.wrong.append(
                f"at {batch.base_offset} producer {producer} epoch {epoch} is ended by coordinator {coordinator}, "
                f"{before} was before"
            )
        self._ended[producer] = (epoch, coordinator)
        first, records = self.open.pop(producer, (-1, {}))
        if kind == COMMIT:
            self.visible |= records
        elif first >= 0:
            still_open = [begins for begins, _ in self.open.values()]
            stable = min(still_open, default=batch.last_offset + 1)
            self.aborted.append((producer, first, batch.last_offset, stable))


def committed(batches: Iterable[BatchView], aborted: Iterable[tuple[int, int]]) -> Iterator[Record]:
    """The committed records of one fetch response, given its aborted transactions (producer, first offset)."""
    to_come = sorted(aborted, key=lambda each: each[1], reverse=True)
    undone: set[int] = set()
    for batch in batches:
        while to_come and to_come[-1][1] <= batch.last_offset:
            undone.add(to_come.pop()[0])
        producer = batch.header.producer_id
        if batch.is_control:
            if marker(batch)[0] == ABORT:
                undone.discard(producer)
        elif not (batch.is_transactional and producer in undone):
            yield from decode_records(batch)


class ReadCommitted:
    """Reads one partition and never stops, in a fetch session as real clients use it."""

    def __init__(self, client: SimClient, diary: Diary, partition: TopicPartition, topic_id: UUID) -> None:
        self._client = client
        self._diary = diary
        self.partition = partition
        self._topic_id = topic_id
        self._session = NEW_SESSION
        self._host: str | None = None
        self._told = -1  # the fetch offset that the session knows
        self.offset = 0

    async def run(self) -> None:
        while True:
            host = await self._client.leader_of(self.partition)
            if host is None:
                await asyncio.sleep(RETRY_S)
                continue
            if host != self._host:
                self._host, self._session = host, NEW_SESSION
            try:
                answer = await self._client.ask(host, self._request(), FETCH)
            except (OSError, TimeoutError):
                await self._again()
                continue
            if answer.error_code or not self._take(answer):
                await self._again()

    async def _again(self) -> None:
        self._session = NEW_SESSION
        self._client.forget_leader(self.partition)
        await asyncio.sleep(RETRY_S)

    def _request(self) -> Any:
        kind = message("FetchRequest")
        topics = []
        if self._session == NEW_SESSION or self._told != self.offset:
            part = kind.FetchTopic.FetchPartition(
                version=FETCH, partition=self.partition.partition, current_leader_epoch=-1, fetch_offset=self.offset,
                last_fetched_epoch=-1, log_start_offset=-1, partition_max_bytes=1 << 20,
            )  # fmt: skip
            topics = [kind.FetchTopic(version=FETCH, topic_id=self._topic_id, partitions=[part])]
            self._told = self.offset
        session_id, epoch = self._session
        return kind(
            max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=1 << 20, isolation_level=1, session_id=session_id,
            session_epoch=epoch, topics=topics, forgotten_topics_data=[], rack_id="",
        )  # fmt: skip

    def _take(self, answer: Any) -> bool:
        """False if the request was refused."""
        self._session = (answer.session_id, self._session[1] + 1) if answer.session_id else NEW_SESSION
        for result in (part for topic in answer.responses for part in topic.partitions):
            if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and self.offset < self._diary.deleted.get(
                self.partition, 0
            ):
                self.offset += 1  # records here were deleted
            if result.error_code != ErrorCode.NONE:
                return False
            self._read(result)
        return True

    def _read(self, result: Any) -> None:
        batches = list(iterate_batches(memoryview(bytes(result.records or b"")), whole=False))
        aborted = [(each.producer_id, each.first_offset) for each in result.aborted_transactions or ()]
        for record in committed(batches, aborted):
            if record.offset < self.offset:
                continue
            place, value = (self.partition, record.offset), record.value or b""
            if record.offset >= result.last_stable_offset:
                self._diary.broken.append(f"what is not stable is not read: {place}, {result.last_stable_offset}")
            if self._diary.seen.setdefault(place, value) != value:
                self._diary.broken.append(
                    f"read is never undone: {place} was {self._diary.seen[place]!r}, is {value!r}"
                )
        if batches:
            self.offset = max(self.offset, batches[-1].last_offset + 1)


async def read_everything(client: SimClient, diary: Diary, partition: TopicPartition, rng: random.Random) -> None:
    """Read new records now and then, committed or not: markers must fit what precedes them."""
    kind = message("FetchRequest")
    everything = Everything()
    offset = 0
    while True:
        await asyncio.sleep(rng.uniform(2.0, 10.0))
        leader = await client.leader_of(partition)
        if leader is None:
            continue
        part = kind.FetchTopic.FetchPartition(
            version=11, partition=partition.partition, current_leader_epoch=-1, fetch_offset=offset,
            log_start_offset=-1, partition_max_bytes=1 << 20,
        )  # fmt: skip
        request = kind(
            replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0,
            session_epoch=-1, topics=[kind.FetchTopic(version=11, topic=partition.topic, partitions=[part])],
            forgotten_topics_data=[], rack_id="",
        )  # fmt: skip
        try:
            answer = await client.ask(leader, request, 11)
        except (OSError, TimeoutError):
            client.forget_leader(partition)
            continue
        if not answer.responses:
            continue  # over its quota
        result = answer.responses[0].partitions[0]
        if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and offset < diary.deleted.get(partition, 0):
            offset, everything = diary.deleted[partition], Everything()
        if result.error_code != ErrorCode.NONE:
            client.forget_leader(partition)
            continue
        for batch in iterate_batches(memoryview(bytes(result.records or b"")), whole=False):
            if batch.base_offset >= offset:
                everything.take(batch)
                offset = batch.last_offset + 1
        if everything.wrong:
            diary.broken.append(f"{partition}: {everything.wrong[0]}")
            return
