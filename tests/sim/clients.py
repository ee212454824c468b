"""Clients of the simulation, which record what they did and what they were told, for the checkers to judge.

Every record has a unique value. A producer that does not know whether its write happened notes that and goes on with
the next record; it never sends the same one twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.sim.network import Fabric, SimChannel, SimNetwork

from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, decode_records, encode_batch, iterate_batches

REQUEST_TIMEOUT_S = 3.0
RETRY_S = 0.1
ANSWER_TRAVELS_MS = 1000
BY_NAME, BY_ID = 9, 13  # versions of Produce
SET, DELETE = 0, 1  # of configs


@dataclass
class Ledger:
    """What the outside world knows of one topic."""

    sent: set[bytes] = field(default_factory=set)
    acked: dict[tuple[TopicPartition, int], bytes] = field(default_factory=dict)
    unknown: set[bytes] = field(default_factory=set)
    seen: dict[tuple[TopicPartition, int], bytes] = field(default_factory=dict)
    deleted: dict[TopicPartition, int] = field(default_factory=dict)  # what is before this offset may be gone
    in_order: set[str] = field(default_factory=set)  # idempotent producers, whose values end with ":NUMBER"
    out_of_order: list[str] = field(default_factory=list)  # errors that they should never have been told
    unplaced: set[bytes] = field(default_factory=set)  # acknowledged, at an unknown offset


class SimClient:
    """Finds leaders, keeps connections, asks."""

    def __init__(self, fabric: Fabric, name: str, hosts: list[str], *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self._network = SimNetwork(fabric, name)
        self._hosts = hosts
        self._channels: dict[str, SimChannel] = {}
        self._leaders: dict[TopicPartition, str] = {}
        self._next_host = 0

    async def ask(self, host: str, request: Any, version: int) -> Any:
        """The answer; ConnectionError or TimeoutError where there is none."""
        channel = self._channels.get(host)
        try:
            async with asyncio.timeout(self.timeout_s):
                channel = await self.channel_to(host)
                return await channel.call(request, version)
        except TimeoutError:
            if channel is not None:
                channel.close()
            raise

    async def channel_to(self, host: str) -> SimChannel:
        """One connection for all concurrent callers: requests on two connections would have no order."""
        channel = self._channels.get(host)
        if channel is None or channel.closed:
            connected = await self._network.connect(host, 9092, timeout_s=1.0)
            channel = self._channels.get(host)
            if channel is None or channel.closed:
                channel = self._channels[host] = connected
            else:
                connected.close()
        return channel

    async def ask_any(self, request: Any, version: int) -> Any:
        while True:
            host = self._hosts[self._next_host % len(self._hosts)]
            try:
                return await self.ask(host, request, version)
            except (OSError, TimeoutError):
                self._next_host += 1
                await asyncio.sleep(RETRY_S)

    async def leader_of(self, partition: TopicPartition) -> str | None:
        known = self._leaders.get(partition)
        if known is not None:
            return known
        kind = message("MetadataRequest")
        request = kind(
            topics=[kind.MetadataRequestTopic(version=9, name=partition.topic)], allow_auto_topic_creation=False
        )
        answer = await self.ask_any(request, 9)
        hosts = {broker.node_id: broker.host for broker in answer.brokers}
        for topic in answer.topics:
            for each in topic.partitions:
                if each.leader_id in hosts:
                    self._leaders[TopicPartition(topic.name, each.partition_index)] = hosts[each.leader_id]
        if partition not in self._leaders:
            self._next_host += 1
        return self._leaders.get(partition)

    async def produce(
        self,
        leader: str,
        partition: TopicPartition,
        records: list[Record],
        *,
        timeout_ms: int,
        topic_id: UUID | None = None,
    ) -> int | None:
        """Write one batch with acks=all, by the topic's name or its id. Return the offset of the first record, or None
        if it was not acknowledged; then the cached leader is forgotten."""
        kind = message("ProduceRequest")
        version = BY_NAME if topic_id is None else BY_ID
        part = kind.TopicProduceData.PartitionProduceData(
            version=version, index=partition.partition, records=bytes(encode_batch(records))
        )
        named = {"name": partition.topic} if topic_id is None else {"topic_id": topic_id}
        data = kind.TopicProduceData(version=version, partition_data=[part], **named)
        request = kind(transactional_id=None, acks=-1, timeout_ms=timeout_ms, topic_data=[data])
        try:
            answer = await self.ask(leader, request, version)
        except (OSError, TimeoutError):
            self.forget_leader(partition)
            return None
        result = answer.responses[0].partition_responses[0]
        if result.error_code != ErrorCode.NONE:
            self.forget_leader(partition)
            return None
        return int(result.base_offset)

    def forget_leader(self, partition: TopicPartition) -> None:
        self._leaders.pop(partition, None)
        self._next_host += 1


async def create_topic(client: SimClient, name: str, partitions: int, replicas: int, **configs: str) -> None:
    kind = message("CreateTopicsRequest")
    topic = kind.CreatableTopic(
        version=5,
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[],
        configs=[
            kind.CreatableTopic.CreatableTopicConfig(version=5, name=k.replace("_", "."), value=v)
            for k, v in configs.items()
        ],
    )
    while True:
        answer = await client.ask_any(kind(topics=[topic], timeout_ms=5000, validate_only=False), 5)
        error = ErrorCode(answer.topics[0].error_code)
        if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return
        await asyncio.sleep(RETRY_S)


async def find_topic_id(client: SimClient, name: str) -> UUID:
    """Ask until it is known."""
    kind = message("MetadataRequest")
    topic = kind.MetadataRequestTopic(version=12, name=name, topic_id=UUID(int=0))
    while True:
        answer = await client.ask_any(kind(topics=[topic], allow_auto_topic_creation=False), 12)
        if answer.topics[0].error_code == ErrorCode.NONE:
            found: UUID = answer.topics[0].topic_id
            return found
        await asyncio.sleep(RETRY_S)


async def move_replica(client: SimClient, host: str, partition: TopicPartition, path: str) -> None:
    """Ask once; the broker may be down or may refuse."""
    kind = message("AlterReplicaLogDirsRequest")
    topic = kind.AlterReplicaLogDir.AlterReplicaLogDirTopic(
        version=2, name=partition.topic, partitions=[partition.partition]
    )
    request = kind(dirs=[kind.AlterReplicaLogDir(version=2, path=path, topics=[topic])])
    with contextlib.suppress(OSError, TimeoutError):
        await client.ask(host, request, 2)


async def reassign(client: SimClient, wanted: Mapping[TopicPartition, list[int] | None]) -> bool:
    """Ask for these replicas, or to cancel the reassignment under way (None). Whether all of it was accepted."""
    kind = message("AlterPartitionReassignmentsRequest")
    part = kind.ReassignableTopic.ReassignablePartition
    topics: dict[str, list[Any]] = {}
    for partition, replicas in wanted.items():
        topics.setdefault(partition.topic, []).append(
            part(version=0, partition_index=partition.partition, replicas=replicas)
        )
    request = kind(
        timeout_ms=2000,
        topics=[kind.ReassignableTopic(version=0, name=name, partitions=each) for name, each in topics.items()],
    )
    answer = await client.ask_any(request, 0)
    errors = [part.error_code for topic in answer.responses for part in topic.partitions]
    return not answer.error_code and not any(errors)


async def alter_configs(client: SimClient, wanted: Mapping[tuple[int, str], Mapping[str, str | None]]) -> bool:
    """Set configs of resources, given by type and name; None deletes one. Whether all of it was accepted."""
    kind = message("IncrementalAlterConfigsRequest")
    resource = kind.AlterConfigsResource
    config = resource.AlterableConfig
    resources = [
        resource(
            version=0, resource_type=resource_type, resource_name=name,
            configs=[
                config(version=0, name=key, config_operation=SET if value is not None else DELETE, value=value)
                for key, value in values.items()
            ],
        )
        for (resource_type, name), values in wanted.items()
    ]  # fmt: skip
    answer = await client.ask_any(kind(resources=resources, validate_only=False), 0)
    return not any(each.error_code for each in answer.responses)


async def delete_records(client: SimClient, partition: TopicPartition, offset: int) -> None:
    """Ask once; there may be no leader, or its high watermark may be lower."""
    kind = message("DeleteRecordsRequest")
    part = kind.DeleteRecordsTopic.DeleteRecordsPartition(version=2, partition_index=partition.partition, offset=offset)
    topic = kind.DeleteRecordsTopic(version=2, name=partition.topic, partitions=[part])
    leader = await client.leader_of(partition)
    if leader is not None:
        with contextlib.suppress(OSError, TimeoutError):
            await client.ask(leader, kind(topics=[topic], timeout_ms=2000), 2)
    client.forget_leader(partition)


async def produce_for_ever(
    client: SimClient, ledger: Ledger, partitions: list[TopicPartition], rng: random.Random
) -> None:
    number = 0
    while True:
        partition = rng.choice(partitions)
        values = [f"{client.name}:{number + i}".encode() for i in range(rng.randint(1, 3))]
        number += len(values)
        ledger.sent.update(values)
        await _produce(client, ledger, partition, values)
        await asyncio.sleep(rng.expovariate(4))


async def _produce(client: SimClient, ledger: Ledger, partition: TopicPartition, values: list[bytes]) -> None:
    leader = await client.leader_of(partition)
    if leader is None:
        return
    timeout_ms = int(client.timeout_s * 1000) - ANSWER_TRAVELS_MS
    records = [Record(value=value, timestamp=1) for value in values]
    offset = await client.produce(leader, partition, records, timeout_ms=timeout_ms)
    if offset is None:
        ledger.unknown.update(values)
        return
    for index, value in enumerate(values):
        ledger.acked[(partition, offset + index)] = value


async def consume_for_ever(client: SimClient, ledger: Ledger, partition: TopicPartition) -> None:
    """Read from the beginning and never stop; a record seen at an offset must never change."""
    kind = message("FetchRequest")
    asked = kind.FetchTopic.FetchPartition(
        version=11,
        partition=partition.partition,
        current_leader_epoch=-1,
        fetch_offset=0,
        log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )
    topic = kind.FetchTopic(version=11, topic=partition.topic, partitions=[asked])
    request = kind(
        replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[topic], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    offset = 0
    while True:
        leader = await client.leader_of(partition)
        if leader is None:
            await asyncio.sleep(RETRY_S)
            continue
        asked.fetch_offset = offset
        try:
            answer = await client.ask(leader, request, 11)
        except (OSError, TimeoutError):
            client.forget_leader(partition)
            await asyncio.sleep(RETRY_S)
            continue
        offset = _take(ledger, partition, answer, offset)
        if offset < 0:
            offset = -1 - offset
            client.forget_leader(partition)
            await asyncio.sleep(RETRY_S)


def _take(ledger: Ledger, partition: TopicPartition, answer: Any, offset: int) -> int:
    """The next offset, or -1 - offset if the leader refused."""
    if not answer.responses:
        return offset  # over its quota
    result = answer.responses[0].partitions[0]
    if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and offset < ledger.deleted.get(partition, 0):
        offset += 1  # records here were deleted
    if result.error_code != ErrorCode.NONE:
        return -1 - offset
    for batch in iterate_batches(memoryview(bytes(result.records or b"")), whole=False):
        for record in decode_records(batch):
            if record.offset < offset:
                continue
            assert record.value is not None
            place = (partition, record.offset)
            before = ledger.seen.setdefault(place, record.value)
            assert before == record.value, f"{partition} offset {record.offset}: {before!r}, later {record.value!r}"
            offset = record.offset + 1
    return offset
