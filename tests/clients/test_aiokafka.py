"""aiokafka's clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from tests.clients.running import AN_HOUR_AGO_MS, RunningBroker

PATIENCE_S = 30.0


@asynccontextmanager
async def running(client: Any) -> AsyncIterator[Any]:
    await client.start()
    try:
        yield client
    finally:
        await (client.close() if hasattr(client, "close") else client.stop())


def producer(broker: RunningBroker, **config: Any) -> Any:
    return running(AIOKafkaProducer(bootstrap_servers=broker.bootstrap, **config))


def consumer(broker: RunningBroker, *topics: str, **config: Any) -> Any:
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    return running(AIOKafkaConsumer(*topics, bootstrap_servers=broker.bootstrap, **(settings | config)))


async def create(broker: RunningBroker, topic: str, partitions: int = 1) -> None:
    async with running(AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        await admin.create_topics([NewTopic(topic, partitions, 1)])


async def read(reader: Any, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            for records in (await reader.getmany(timeout_ms=200)).values():
                found += records
    assert len(found) == count
    return found


@pytest.mark.spec("CLI-01", "CLI-07")
@pytest.mark.parametrize("codec", [None, "gzip", "lz4", "zstd"])
async def test_what_is_produced_is_consumed(broker: RunningBroker, topic: str, codec: str | None) -> None:
    await create(broker, topic)
    values = [b"%d " % number * 50 for number in range(300)]
    async with producer(broker, compression_type=codec, enable_idempotence=True) as sender:
        sent = [await sender.send(topic, value, key=b"k") for value in values]
        assert [(await future).offset for future in sent] == list(range(300))
    async with consumer(broker) as reader:
        reader.assign([TopicPartition(topic, 0)])
        assert [record.value for record in await read(reader, 300)] == values


@pytest.mark.spec("CLI-04")
async def test_a_group_is_rebalanced_when_one_leaves(broker: RunningBroker, topic: str) -> None:
    await create(broker, topic, 2)
    async with consumer(broker, topic, group_id=topic) as first:
        async with consumer(broker, topic, group_id=topic) as second, asyncio.timeout(PATIENCE_S):
            while [len(first.assignment()), len(second.assignment())] != [1, 1]:
                await asyncio.gather(first.getmany(timeout_ms=100), second.getmany(timeout_ms=100))
        async with asyncio.timeout(PATIENCE_S):
            while len(first.assignment()) != 2:
                await first.getmany(timeout_ms=100)


@pytest.mark.spec("CLI-01")
async def test_seeking(broker: RunningBroker, topic: str) -> None:
    await create(broker, topic)
    partition = TopicPartition(topic, 0)
    async with producer(broker) as sender:
        for number in range(10):
            await sender.send_and_wait(topic, b"%d" % number, timestamp_ms=AN_HOUR_AGO_MS + number)
    async with consumer(broker) as reader:
        reader.assign([partition])
        found = await reader.offsets_for_times({partition: AN_HOUR_AGO_MS + 7})
        assert found[partition].offset == 7
        reader.seek(partition, 7)
        assert [record.value for record in await read(reader, 3)] == [b"7", b"8", b"9"]
