"""Brokers in one event loop: real Replicas and logs on real files, the controller's real commands on one image, and
channels that carry encoded messages. Only disk work runs in threads."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.broker.seams import SeededRandom

from ballast_broker.config.logs import LogConfig
from ballast_broker.controller.commands.brokers import fence_broker, register_broker, unfence_broker
from ballast_broker.controller.commands.configs import incremental_alter_configs
from ballast_broker.controller.commands.context import CommandContext, ConfigEntry, ControllerConfig, Outcome
from ballast_broker.controller.commands.directories import assign_replicas_to_directories
from ballast_broker.controller.commands.elections import offline_elections
from ballast_broker.controller.commands.isr import alter_partition
from ballast_broker.controller.commands.reassignments import alter_partition_reassignments
from ballast_broker.controller.commands.topics import create_topics, delete_topics
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.gate import whole
from ballast_broker.metadata.image import MetadataImage, PartitionRegistration
from ballast_broker.metadata.loader import Publisher
from ballast_broker.metadata.persistent import at_once
from ballast_broker.replication.partition import Partition
from ballast_broker.replication.reading import FetchEntry, FetchParams, FetchResult
from ballast_broker.replication.replicas import Replicas
from ballast_broker.replication.replication import Replication
from ballast_broker.replication.settings import ReplicationSettings
from ballast_broker.storage.context import StorageConfig
from ballast_broker.storage.disk import RealDisk, RealThreads
from ballast_broker.storage.log import Log
from ballast_broker.storage.manager import LogManager
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, decode_records, encode_batch, iterate_batches

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
HOST = "in-process"
_lives = itertools.count(1)


class RealClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class AnyConfig:
    """Allows every config: the real table of configs belongs to a higher layer."""

    def validate(self, resource_type: int, resource_name: str, configs: Mapping[str, str]) -> None:
        return

    def is_list(self, resource_type: int, name: str) -> bool:
        return False

    def default(self, resource_type: int, name: str) -> str | None:
        return None

    def effective_topic_configs(
        self, overrides: Mapping[str, str], own: Mapping[str, str], cluster: Mapping[str, str]
    ) -> Iterable[ConfigEntry]:
        return ()


def log_config(image: MetadataImage, topic: str) -> LogConfig:
    configs = image.configs.of(2, topic)
    lists = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
    fields: dict[str, Any] = {name.replace(".", "_"): tuple(configs.get(name, "").split(",")) for name in lists}
    for name in ("flush.messages", "max.message.bytes", "min.insync.replicas", "segment.bytes"):
        if name in configs:
            fields[name.replace(".", "_")] = int(configs[name])
    return LogConfig(**fields)


def told(publish: Publisher, delta: MetadataDelta, image: MetadataImage) -> None:
    """Publish to the end, without pauses."""
    for _ in publish(delta, image) or ():
        pass


class Controller:
    """The active controller: commits commands at once and publishes them to all brokers that are up."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.away = False
        self.calls: list[Any] = []
        self.last: tuple[MetadataDelta, MetadataImage]
        self._publish: dict[int, Publisher] = {}
        self._random = SeededRandom(1)

    def registration(self, topic_partition: TopicPartition) -> PartitionRegistration:
        topic = self.image.topics.by_name(topic_partition.topic)
        assert topic is not None, topic_partition
        return topic.partitions[topic_partition.partition]

    def context(self) -> CommandContext:
        config = ControllerConfig(cluster_id=CLUSTER_ID, node_id=1)
        return CommandContext(self.image, config, AnyConfig(), self._random, next_offset=self.image.offset + 1)

    def commit(self, outcome: Outcome) -> Any:
        if outcome.records:
            delta = MetadataDelta(self.image)
            for record in outcome.records:
                delta.replay(record)
            self.image = delta.apply(self.image.offset + len(outcome.records), 1)
            self.last = (delta, self.image)
            for publish in list(self._publish.values()):
                told(publish, delta, self.image)
        return outcome.response

    async def call(self, request: Any, version: int) -> Any:
        await asyncio.sleep(0)
        if self.away:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "No controller answered in time.")
        self.calls.append(request)
        request = round_trip(request, version)
        command = {
            "AlterPartitionRequest": alter_partition,
            "AssignReplicasToDirsRequest": assign_replicas_to_directories,
        }[type(request).__name__]
        try:
            response = self.commit(command(self.context(), request))
        except ApiError as error:
            kind = message(type(request).__name__.replace("Request", "Response"))
            response = kind(error_code=int(error.code))
        return round_trip(response, version)

    # -- what administrators and the metadata log do
    def register(self, broker_id: int, directories: list[UUID], rack: str | None = None) -> int:
        kind = message("BrokerRegistrationRequest")
        request = kind(
            broker_id=broker_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=UUID(bytes=self._random.bytes_of(16)),
            listeners=[kind.Listener(name="PLAINTEXT", host=HOST, port=broker_id, security_protocol=0)],
            features=[kind.Feature(name="metadata.version", min_supported_version=1, max_supported_version=30)],
            rack=rack,
            log_dirs=directories,
            is_migrating_zk_broker=False,
            previous_broker_epoch=-1,
        )
        response = self.commit(register_broker(self.context(), request, session_is_valid=False))
        return int(response.broker_epoch)

    def join(self, broker_id: int, publish: Publisher) -> None:
        """The broker has read the metadata up to its registration; from now on it is unfenced and gets updates."""
        told(publish, at_once(whole(self.image)), self.image)
        self._publish[broker_id] = publish
        self.commit(unfence_broker(self.context(), self.image.cluster.brokers[broker_id]))

    def replace(self, broker_id: int, publish: Publisher) -> None:
        self._publish[broker_id] = publish

    def lose(self, broker_id: int) -> None:
        """Fence the broker, as when its session times out."""
        self._publish.pop(broker_id, None)
        self.commit(fence_broker(self.context(), broker_id))

    async def elect_uncleanly(self) -> None:
        """What the controller does periodically for partitions without a leader."""
        self.commit(offline_elections(self.context()))

    def create_topic(self, name: str, replicas: list[list[int]], configs: dict[str, str] | None = None) -> UUID:
        kind = message("CreateTopicsRequest")
        topic = kind.CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                kind.CreatableTopic.CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
                for index, ids in enumerate(replicas)
            ],
            configs=[
                kind.CreatableTopic.CreatableTopicConfig(name=key, value=value)
                for key, value in (configs or {}).items()
            ],
        )
        response = self.commit(create_topics(self.context(), kind(topics=[topic], timeout_ms=0, validate_only=False)))
        assert response.topics[0].error_code == 0, response
        return response.topics[0].topic_id

    def delete_topic(self, name: str) -> None:
        kind = message("DeleteTopicsRequest")
        topic = kind.DeleteTopicState(name=name, topic_id=None)
        self.commit(delete_topics(self.context(), kind(topics=[topic], topic_names=[], timeout_ms=0)))

    def reassign(self, name: str, replicas: list[int]) -> None:
        """Reassign the topic's first partition."""
        kind = message("AlterPartitionReassignmentsRequest")
        partition = kind.ReassignableTopic.ReassignablePartition(partition_index=0, replicas=replicas)
        topic = kind.ReassignableTopic(name=name, partitions=[partition])
        request = kind(topics=[topic], timeout_ms=0, allow_replication_factor_change=True)
        response = self.commit(alter_partition_reassignments(self.context(), request))
        assert response.responses[0].partitions[0].error_code == 0, response

    def configure(self, resource_type: int, name: str, configs: dict[str, str]) -> None:
        kind = message("IncrementalAlterConfigsRequest")
        resource = kind.AlterConfigsResource(
            resource_type=resource_type,
            resource_name=name,
            configs=[
                kind.AlterConfigsResource.AlterableConfig(name=key, config_operation=0, value=value)
                for key, value in configs.items()
            ],
        )
        self.commit(incremental_alter_configs(self.context(), kind(resources=[resource], validate_only=False)))


def round_trip(sent: Any, version: int) -> Any:
    kind = message(type(sent).__name__)
    return kind.decode(sent.encode(version), version=version)


class Node:
    """One broker."""

    def __init__(
        self, cluster: Cluster, broker_id: int, directories: list[Path], rack: str | None = None, **settings: Any
    ) -> None:
        self.broker_id = broker_id
        self.rack = rack
        self.directories = directories
        self.up = False
        self.epoch = -1
        self._cluster = cluster
        self._settings = settings
        self.logs: LogManager
        self.replication: Replication
        self.replicas: Replicas

    async def start(self) -> None:
        await self.open()
        ids = [directory.id for directory in self.logs.directories if directory.online]
        self.epoch = self._cluster.controller.register(self.broker_id, ids, self.rack)
        self._cluster.controller.join(self.broker_id, self.replication.roles.publish)

    def log(self, topic_partition: TopicPartition) -> Log:
        """A log that it must have."""
        found = self.logs.get(topic_partition)
        assert found is not None, f"broker {self.broker_id} has no {topic_partition}"
        return found

    def state(self, topic_partition: TopicPartition) -> Partition:
        """The state of a replica that it must have."""
        found = self.replicas.partition(topic_partition)
        assert found is not None, f"broker {self.broker_id} has no {topic_partition}"
        return found

    def lose(self, directory: Path, error: OSError | None = None) -> None:
        found = self.logs.directory(str(directory))
        assert found is not None, f"broker {self.broker_id} has no {directory}"
        found.fail(error or OSError("unplugged"))

    async def start_unnoticed(self) -> None:
        """A restart so quick that the broker was never fenced: it stays in every ISR."""
        await self.open()
        controller = self._cluster.controller
        told(self.replication.roles.publish, at_once(whole(controller.image)), controller.image)
        controller.replace(self.broker_id, self.replication.roles.publish)

    async def open(self) -> None:
        for directory in self.directories:
            directory.parent.mkdir(parents=True, exist_ok=True)
        config = StorageConfig(
            node_id=self.broker_id, log_dirs=tuple(map(str, self.directories)), cluster_id=CLUSTER_ID
        )
        cluster = self._cluster
        clock = RealClock()
        self.logs = LogManager(cluster.disk, clock, cluster.threads, config, SeededRandom(next(_lives)))
        await self.logs.start()
        for each in self.logs.directories:
            each.note_slow_write = lambda *_, **__: None  # type: ignore[method-assign]  # a busy machine is not the point
        self.replication = Replication(
            ReplicationSettings(broker_id=self.broker_id, **{**cluster.settings, **self._settings}),
            logs=self.logs,
            clock=clock,
            controller=cluster.controller,
            broker_epoch=lambda: self.epoch,
            log_config=log_config,
            network=Network(cluster, self.broker_id),
            threads=cluster.threads,
        )
        self.replicas = self.replication.replicas
        await self.replication.start()
        self.up = True

    async def crash(self, *, noticed: bool = True) -> None:
        """Die without flushing or telling anybody. The files keep what is in the page cache."""
        self.up = False
        if noticed:
            self._cluster.controller.lose(self.broker_id)
        await self.replication.stop()
        for directory in self.logs.directories:
            directory.unlock()

    async def stop(self) -> None:
        if self.up:
            self.up = False
            await self.replication.stop()
            await self.logs.shutdown()

    # -- as clients see it
    def produce(self, topic_partition: TopicPartition, *values: str, acks: int = 1) -> int:
        info = self.replicas.append(topic_partition, None, batch_of(*values), acks)
        return int(info.first_offset)

    async def produce_to_all(self, topic_partition: TopicPartition, *values: str, timeout_ms: int = 5000) -> ErrorCode:
        try:
            info = await self.replicas.append_own(topic_partition, batch_of(*values), -1)
        except ApiError as error:
            return error.code
        answer = self.replicas.await_committed(topic_partition, info.last_offset + 1, timeout_ms)
        return answer if isinstance(answer, ErrorCode) else await answer

    async def consume(self, topic_partition: TopicPartition) -> list[str]:
        """All values that a consumer sees."""
        values: list[str] = []
        found = self.replicas.list_offset(topic_partition, -2)
        offset = (await found if isinstance(found, asyncio.Task) else found).offset
        while True:
            entry = FetchEntry(topic_partition, self._cluster.topic_id(topic_partition.topic), offset)
            results = self.replicas.fetch(FetchParams(), [entry])
            assert isinstance(results, list)
            assert results[0].error is ErrorCode.NONE, results
            if results[0].slice is None:
                return values
            data = results[0].slice.read()
            results[0].release()
            for batch in iterate_batches(memoryview(data)):
                values += [bytes(r.value or b"").decode() for r in decode_records(batch) if r.offset >= offset]
                offset = batch.last_offset + 1

    def stored(self, topic_partition: TopicPartition) -> list[str]:
        """All values in the local log, committed or not."""
        return records_of(self.log(topic_partition))


def records_of(log: Log) -> list[str]:
    values: list[str] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 20, upper_offset=log.log_end_offset)
        data = piece.read()
        piece.release()
        for batch in iterate_batches(memoryview(data)):
            values += [bytes(record.value or b"").decode() for record in decode_records(batch)]
            offset = batch.last_offset + 1
    return values


def batch_of(*values: str) -> bytearray:
    now_ms = time.time_ns() // 1_000_000
    return encode_batch([Record(key=None, value=value.encode(), timestamp=now_ms) for value in values])


class Channel:
    def __init__(self, network: Network, target: Node) -> None:
        self._network = network
        self._target = target
        self.closed = False

    async def call(self, request: Any, version: int) -> Any:
        self._check()
        sent = round_trip(request, version)
        await asyncio.sleep(0)
        response = await serve(self._target.replicas, sent, self._network.cluster)
        self._check()
        decode = getattr(request, "decode_response", type(response).decode)
        return decode(memoryview(response.encode(version)), version=version)

    def _check(self) -> None:
        if self.closed or not self._target.up or self._network.cut_off(self._target.broker_id):
            self.closed = True
            raise ConnectionError("connection lost")

    def close(self) -> None:
        self.closed = True


class Network:
    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self.cluster = cluster
        self._broker_id = broker_id

    def cut_off(self, other: int) -> bool:
        return frozenset({self._broker_id, other}) in self.cluster.cuts

    async def connect(self, host: str, port: int, *, timeout_s: float) -> Channel:
        node = self.cluster.nodes.get(port)
        if host != HOST or node is None or not node.up or self.cut_off(port):
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        return Channel(self, node)


class Cluster:
    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.controller = Controller()
        self.disk: Any = RealDisk()
        self.threads: Any = RealThreads(2)
        self.nodes: dict[int, Node] = {}
        self.cuts: set[frozenset[int]] = set()
        self.fetches: list[Any] = []
        self.settings = {"replica_fetch_backoff_ms": 100, "replica_fetch_wait_max_ms": 100, **settings}

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes.values():
            await node.stop()
        self.threads.close()

    async def add(self, *broker_ids: int, directories: int = 1, **settings: Any) -> list[Node]:
        added = []
        for broker_id in broker_ids:
            paths = [self.folder / f"broker-{broker_id}" / f"d{number}" for number in range(1, directories + 1)]
            node = self.nodes[broker_id] = Node(self, broker_id, paths, **settings)
            await node.start()
            added.append(node)
        return added

    def topic_id(self, name: str) -> UUID:
        topic = self.controller.image.topics.by_name(name)
        assert topic is not None
        return topic.id

    def isr(self, topic_partition: TopicPartition) -> set[int]:
        topic = self.controller.image.topics.by_name(topic_partition.topic)
        assert topic is not None
        return set(topic.partitions[topic_partition.partition].isr)

    def leader(self, topic_partition: TopicPartition) -> int:
        topic = self.controller.image.topics.by_name(topic_partition.topic)
        assert topic is not None
        return topic.partitions[topic_partition.partition].leader


async def eventually(condition: Callable[[], Any], what: str = "", timeout_s: float = 30.0) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    for pause in itertools.chain((0, 0, 0.001, 0.002, 0.005), itertools.repeat(0.01)):
        if condition():
            return
        assert asyncio.get_running_loop().time() < deadline, f"did not happen in {timeout_s} s: {what}"
        await asyncio.sleep(pause)


# -- the leader's end of a connection, without fetch sessions


async def serve(replicas: Replicas, request: Any, cluster: Cluster) -> Any:
    name = type(request).__name__
    if name == "FetchRequest":
        cluster.fetches.append(request)
        return await serve_fetch(replicas, request, cluster)
    assert name == "ListOffsetsRequest"
    topic, partition = request.topics[0], request.topics[0].partitions[0]
    response = message("ListOffsetsResponse")
    answer = response.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(partition_index=partition.partition_index)
    try:
        found = replicas.list_offset(
            TopicPartition(topic.name, partition.partition_index),
            partition.timestamp,
            current_leader_epoch=partition.current_leader_epoch,
            replica_id=request.replica_id,
        )
        answer.error_code, answer.offset = 0, (await found if isinstance(found, asyncio.Task) else found).offset
    except ApiError as error:
        answer.error_code = int(error.code)
    return response(topics=[response.ListOffsetsTopicResponse(name=topic.name, partitions=[answer])])


async def serve_fetch(replicas: Replicas, request: Any, cluster: Cluster) -> Any:
    entries = []
    for topic in request.topics:
        image = cluster.controller.image.topics.by_id(topic.topic_id)
        name = image.name if image else "?"
        entries += [
            FetchEntry(
                TopicPartition(name, each.partition),
                topic.topic_id,
                each.fetch_offset,
                each.last_fetched_epoch,
                each.current_leader_epoch,
                each.log_start_offset,
                each.partition_max_bytes,
            )
            for each in topic.partitions
        ]
    params = FetchParams(
        replica_id=request.replica_state.replica_id,
        replica_epoch=request.replica_state.replica_epoch,
        min_bytes=request.min_bytes,
        max_wait_ms=request.max_wait_ms,
        max_bytes=request.max_bytes,
    )
    answer = replicas.fetch(params, entries)
    results: list[FetchResult] = answer if isinstance(answer, list) else await answer
    kind = message("FetchResponse")
    topic_kind = kind.FetchableTopicResponse
    partition_kind = topic_kind.PartitionData
    topics: dict[UUID, Any] = {}
    for entry, result in zip(entries, results, strict=True):
        data = partition_kind(
            partition_index=entry.topic_partition.partition,
            error_code=int(result.error),
            high_watermark=result.high_watermark,
            last_stable_offset=result.last_stable_offset,
            log_start_offset=result.log_start_offset,
            records=result.slice.read() if result.slice else b"",
        )
        if result.diverging_epoch is not None:
            epoch, end = result.diverging_epoch
            data.diverging_epoch = partition_kind.EpochEndOffset(epoch=epoch, end_offset=end)
        result.release()
        topics.setdefault(entry.topic_id, topic_kind(topic_id=entry.topic_id, partitions=[])).partitions.append(data)
    return kind(error_code=0, session_id=0, responses=list(topics.values()), node_endpoints=[], throttle_time_ms=0)
