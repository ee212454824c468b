"""An idempotent producer of the simulation, as strict as real clients: up to five batches per partition in flight, and
after a failure nothing new until all of them are answered; then retries in order, with the same sequence numbers.

If a later batch is acknowledged, those before it count as acknowledged as well, as in librdkafka.

So each record must be there once and in order, whatever happens, and no batch may be refused as out of order, except by
a broker that no longer leads and does not know it yet.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.sim.clients import ANSWER_TRAVELS_MS, RETRY_S, Ledger, SimClient
from tests.sim.network import SimChannel

from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

MOST_UNDER_WAY = 5
MOST_WAITING = 20
BURSTS_PER_SECOND = 0.6
Recognises = Callable[[str, TopicPartition], bool]  # whether a host leads, as far as anybody knows, with an intact log


class Batch(NamedTuple):
    sequence: int
    values: tuple[bytes, ...]


class _Partition:
    """The writes of one producer to one partition."""

    def __init__(
        self,
        client: SimClient,
        ledger: Ledger,
        partition: TopicPartition,
        producer_id: int,
        rng: random.Random,
        recognises: Recognises,
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._partition = partition
        self._producer_id = producer_id
        self._rng = rng
        self._recognises = recognises
        self._waiting: deque[Batch] = deque()  # not acknowledged, in order
        self._under_way: dict[Batch, asyncio.Task[None]] = {}
        self._channel: SimChannel | None = None  # of the batches in flight
        self._failed = self._finishing = False
        self._changed = asyncio.Event()

    async def write(self) -> None:
        sequence = 0
        while True:
            await asyncio.sleep(self._rng.expovariate(BURSTS_PER_SECOND))
            for _ in range(min(self._rng.randint(1, MOST_UNDER_WAY), MOST_WAITING - len(self._waiting))):
                count = self._rng.randint(1, 2)
                name = f"{self._client.name}:{self._partition.partition}"
                values = tuple(f"{name}:{sequence + index}".encode() for index in range(count))
                self._ledger.sent.update(values)
                self._waiting.append(Batch(sequence, values))
                sequence += count
            self._changed.set()

    def finish(self) -> None:
        self._finishing = True
        self._changed.set()

    def describe_waiting(self) -> list[str]:
        return [f"{self._partition} from {self._waiting[0].sequence} on"] if self._waiting else []

    async def send(self) -> None:
        try:
            while not self._finishing or self._waiting:
                self._changed.clear()
                if self._failed and not self._under_way:
                    self._failed = False
                    await asyncio.sleep(RETRY_S)
                if not self._failed and not await self._send_some():
                    await asyncio.sleep(RETRY_S)
                    continue
                if self._waiting or not self._finishing:
                    await self._changed.wait()
        finally:
            for task in self._under_way.values():
                task.cancel()

    async def _send_some(self) -> bool:
        """False: there is no leader, or it cannot be reached."""
        leader = await self._client.leader_of(self._partition)
        if leader is None:
            return False
        try:
            channel = await self._client.channel_to(leader)
        except (OSError, TimeoutError):
            self._client.forget_leader(self._partition)
            return False
        if not self._under_way:
            self._channel = channel
        elif channel is not self._channel:
            return True  # wait for the batches in flight on the previous connection
        for batch in list(self._waiting):
            if self._failed or len(self._under_way) == MOST_UNDER_WAY:
                break
            if batch not in self._under_way:
                self._under_way[batch] = asyncio.get_running_loop().create_task(self._send(channel, batch))
        return True

    async def _send(self, channel: SimChannel, batch: Batch) -> None:
        try:
            async with asyncio.timeout(self._client.timeout_s):
                answer = await channel.call(self._request(batch), 9)
        except (OSError, TimeoutError):
            channel.close()
            self._fail()
        else:
            self._take(batch, answer.responses[0].partition_responses[0], channel.target)
        finally:
            self._under_way.pop(batch, None)
            self._changed.set()

    def _take(self, batch: Batch, result: Any, host: str) -> None:
        error = ErrorCode(result.error_code)
        if error is ErrorCode.NONE:
            while batch in self._waiting:
                self._ledger.unplaced.update(self._waiting.popleft().values)
            for index, value in enumerate(batch.values):
                self._ledger.acked[(self._partition, result.base_offset + index)] = value
            return
        if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._recognises(host, self._partition):
            now = asyncio.get_running_loop().time() - 1000
            self._ledger.out_of_order.append(f"{now:.3f} {self._partition} {batch.sequence}: {result.error_message}")
        self._fail()

    def _fail(self) -> None:
        self._failed = True
        self._client.forget_leader(self._partition)

    def _request(self, batch: Batch) -> Any:
        kind = message("ProduceRequest")
        records = encode_batch(
            [Record(value=value, timestamp=1) for value in batch.values],
            producer_id=self._producer_id, producer_epoch=0, base_sequence=batch.sequence,
        )  # fmt: skip
        part = kind.TopicProduceData.PartitionProduceData(
            version=9, index=self._partition.partition, records=bytes(records)
        )
        data = kind.TopicProduceData(version=9, name=self._partition.topic, partition_data=[part])
        timeout_ms = int(self._client.timeout_s * 1000) - ANSWER_TRAVELS_MS
        return kind(transactional_id=None, acks=-1, timeout_ms=timeout_ms, topic_data=[data])


class IdempotentProducer:
    def __init__(
        self,
        client: SimClient,
        ledger: Ledger,
        partitions: list[TopicPartition],
        rng: random.Random,
        recognises: Recognises,
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._partitions = partitions
        self._rng = rng
        self._recognises = recognises
        self._parts: list[_Partition] = []
        self._finishing = asyncio.Event()

    async def run(self) -> None:
        """Run until `finish` is called and everything is acknowledged."""
        producer_id = await _producer_id(self._client)
        self._ledger.in_order.add(self._client.name)
        self._parts = [
            _Partition(
                self._client, self._ledger, each, producer_id, random.Random(self._rng.random()), self._recognises
            )
            for each in self._partitions
        ]  # fmt: skip
        async with asyncio.TaskGroup() as group:
            writers = [group.create_task(part.write()) for part in self._parts]
            for part in self._parts:
                group.create_task(part.send())
            await self._finishing.wait()
            for writer in writers:
                writer.cancel()
            for part in self._parts:
                part.finish()

    def finish(self) -> None:
        self._finishing.set()

    def waiting(self) -> list[str]:
        return [text for part in self._parts for text in part.describe_waiting()]


async def _producer_id(client: SimClient) -> int:
    kind = message("InitProducerIdRequest")
    request = kind(transactional_id=None, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1)
    while True:
        answer = await client.ask_any(request, 4)
        if answer.error_code == ErrorCode.NONE:
            return int(answer.producer_id)
        await asyncio.sleep(RETRY_S)
