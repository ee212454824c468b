"""Nodes with the real Raft driver, controller and broker lifecycle in one process, in memory instead of on disk."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from tests.broker.raft.memory import InlineThreads, LocalNetwork, LoopClock, MemoryDisk, MemoryLog
from tests.broker.seams import SeededRandom

from ballast_broker.controller.client import ControllerClient
from ballast_broker.controller.commands.context import ConfigEntry, ControllerConfig, TokenConfig
from ballast_broker.controller.lifecycle import BrokerIdentity, BrokerLifecycle
from ballast_broker.controller.replica import MetadataReplica
from ballast_broker.controller.service import API_KEYS, ControllerService, ServiceTiming
from ballast_broker.metadata.features import SUPPORTED
from ballast_broker.metadata.image import Listener, MetadataImage
from ballast_broker.raft import wire
from ballast_broker.raft.driver import RaftDriver
from ballast_broker.raft.store import MetadataStore
from ballast_broker.raft.terms import Timeouts
from ballast_broker.raft.voters import Endpoint
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
API_VERSIONS = 18
RAFT_KEYS = frozenset({1, 52, 53, 54, 55, 59})
LISTS = frozenset({"cleanup.policy", "follower.replication.throttled.replicas"})
KNOWN = {"retention.ms": "604800000", "min.insync.replicas": "1", "cleanup.policy": "delete"}


class FewConfigs:
    """Config rules for tests: a handful of names, of which `retention.ms` and `min.insync.replicas` are numbers."""

    def validate(self, resource_type: int, resource_name: str, configs: Mapping[str, str]) -> None:
        for name, value in configs.items():
            if name in ("retention.ms", "min.insync.replicas") and not value.lstrip("-").isdecimal():
                text = f"Invalid value {value} for configuration {name}: Not a number of type LONG"
                raise ApiError(ErrorCode.INVALID_CONFIG, text)
            if resource_type == 2 and name not in KNOWN | dict.fromkeys((*LISTS, "unclean.leader.election.enable")):
                raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")

    def is_list(self, resource_type: int, name: str) -> bool:
        return name in LISTS

    def default(self, resource_type: int, name: str) -> str | None:
        return KNOWN.get(name)

    def effective_topic_configs(
        self, overrides: Mapping[str, str], own: Mapping[str, str], cluster: Mapping[str, str]
    ) -> Iterable[ConfigEntry]:
        for name, default in KNOWN.items():
            source = 1 if name in overrides else 5
            yield ConfigEntry(name, overrides.get(name, default), False, source, False)


class Node:
    def __init__(
        self,
        node_id: int,
        network: LocalNetwork,
        endpoints: Mapping[int, Endpoint],
        *,
        timing: ServiceTiming | None = None,
        timeouts: Timeouts | None = None,
        directories: int = 1,
        rack: str | None = None,
        seed: int = 0,
        tokens: TokenConfig | None = None,
    ) -> None:
        self.id = node_id
        self.network = network
        self.endpoints = dict(endpoints)
        self.timing = timing or ServiceTiming()
        self.timeouts = timeouts or Timeouts()
        self.rack = rack
        self.disk = MemoryDisk()
        self.log = MemoryLog()
        self.directories = [uuid.UUID(int=node_id * 1000 + 500 + each) for each in range(directories)]
        self.failures: list[Exception] = []
        self.previous_epoch = -1
        self.seed = seed
        self.tokens = tokens
        self.alive = False
        self.features = SUPPORTED
        self.other_listeners: dict[str, Listener] = {}
        """Listed before its own listener; nobody listens on these."""

    async def start(self, *, broker: bool = True) -> None:
        self.clock = LoopClock()
        self.threads = InlineThreads()
        random = SeededRandom(self.seed * 1000 + self.id)
        self.store = MetadataStore(self.disk, "/meta", self.log)
        self.replica = MetadataReplica(self.store, self.clock, self.threads, on_failure=self.failures.append)
        quorum = wire.Quorum(CLUSTER_ID, self.endpoints)
        self.driver = RaftDriver(
            node_id=self.id,
            quorum=quorum,
            store=self.store,
            listener=self.replica,
            network=self.network,
            clock=self.clock,
            threads=self.threads,
            random=random,
            timeouts=self.timeouts,
        )
        self.service: ControllerService | None = None
        if self.id in self.endpoints:
            self.service = ControllerService(
                driver=self.driver,
                replica=self.replica,
                config=ControllerConfig(
                    CLUSTER_ID, self.id, inter_broker_listener_name="PLAINTEXT", delegation_tokens=self.tokens
                ),
                rules=FewConfigs(),
                clock=self.clock,
                random=random,
                network=self.network,
                timing=self.timing,
            )
        self.address = ("localhost", 9092 + self.id)
        self.network.listen(*self.address, self._handle)
        if self.id in self.endpoints:
            endpoint = self.endpoints[self.id]
            self.network.listen(endpoint.host, endpoint.port, self._handle)
        self.client = self._client()
        self.alive = True
        await self.driver.start()
        if broker:
            self.start_broker()

    def _client(self) -> ControllerClient:
        return ControllerClient(
            node_id=self.id,
            leader=self.driver,
            local=self.service,
            endpoints=self.driver.peers.endpoint,
            network=self.network,
            clock=self.clock,
            call_timeout_s=5.0,
        )

    def start_broker(self) -> None:
        identity = BrokerIdentity(
            self.id,
            CLUSTER_ID,
            uuid.uuid4(),
            {**self.other_listeners, "PLAINTEXT": Listener(*self.address)},
            rack=self.rack,
            previous_epoch=self.previous_epoch,
        )
        self.heartbeat_client = self._client()
        self.lifecycle = BrokerLifecycle(
            identity=identity,
            client=self.heartbeat_client,
            directories=lambda: list(self.directories),
            metadata_offset=lambda: self.replica.image.offset,
            heartbeat_interval_s=0.5,
        )
        self.replica.add_publisher(self.lifecycle.publish)
        self.lifecycle.set_ready()
        self.lifecycle_task = asyncio.get_running_loop().create_task(self.lifecycle.run())

    async def _handle(self, api_key: int, version: int, request: Any, origin: Any) -> Any:
        if api_key in RAFT_KEYS:
            return await self.driver.handle(api_key, request)
        if api_key == API_VERSIONS:
            kind = message("ApiVersionsResponse")
            ranges = [
                kind.SupportedFeatureKey(version=version, name=name, min_version=low, max_version=high)
                for name, (low, high) in self.features.items()
            ]
            return kind(version=version, error_code=0, api_keys=[], supported_features=ranges)
        assert api_key in API_KEYS
        if self.service is None:
            raise ConnectionResetError
        return await self.service.handle(api_key, version, request, origin)

    @property
    def image(self) -> MetadataImage:
        return self.replica.image

    async def kill(self) -> None:
        """Kill the process: it says nothing, its ports refuse connections, existing ones end."""
        if not self.alive:
            return
        self.alive = False
        self.network.stop_listening(*self.address)
        if self.id in self.endpoints:
            self.network.stop_listening(self.endpoints[self.id].host, self.endpoints[self.id].port)
        if hasattr(self, "lifecycle_task"):
            self.lifecycle_task.cancel()
            await asyncio.gather(self.lifecycle_task, return_exceptions=True)
            self.heartbeat_client.close()
        self.client.close()
        self.driver.core.leadership = None  # so that stopping does not resign or tell anybody
        self.driver.core.role = type(self.driver.core.role).UNATTACHED
        await self._stop_all()

    async def _stop_all(self) -> None:
        if self.service is not None:
            await self.service.stop()
        await self.driver.stop()
        await self.replica.stop()

    async def leave(self) -> None:
        """A controlled shutdown: hand over partition leaderships, then leave the quorum."""
        await self.lifecycle.leave()
        await self.lifecycle_task
        self.previous_epoch = self.lifecycle.broker_epoch
        await self._stop_all()
        self.alive = False
        self.network.stop_listening(*self.address)
        if self.id in self.endpoints:
            self.network.stop_listening(self.endpoints[self.id].host, self.endpoints[self.id].port)
        self.heartbeat_client.close()
        self.client.close()


class Cluster:
    """`voters` combined nodes (ids from 1), then `observers` broker-only nodes."""

    def __init__(self, voters: int = 1, observers: int = 0, **options: Any) -> None:
        self.network = LocalNetwork()
        endpoints = {each: Endpoint("localhost", 19092 + each) for each in range(1, voters + 1)}
        racks = options.pop("racks", {})
        self.nodes = {
            each: Node(each, self.network, endpoints, rack=racks.get(each), **options)
            for each in range(1, voters + observers + 1)
        }

    async def __aenter__(self) -> Cluster:
        await asyncio.gather(*(node.start() for node in self.nodes.values()))
        await self.until(lambda: all(node.lifecycle.running.is_set() for node in self.nodes.values()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes.values():
            await node.kill()
        for node in self.nodes.values():
            assert not node.failures, node.failures

    async def until(self, condition: Any, timeout_s: float = 8.0) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError("the cluster never came to this state")
            await asyncio.sleep(0.005)

    @property
    def live(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.alive]

    @property
    def active(self) -> Node:
        for node in self.live:
            if node.service is not None and node.service.is_active:
                return node
        raise LookupError("no active controller")

    async def call(self, request: Any, version: int) -> Any:
        return await self.live[0].client.call(request, version)

    async def create_topic(self, name: str, *replica_lists: list[int], **configs: str) -> None:
        kind = message("CreateTopicsRequest")
        assignments = [
            kind.CreatableTopic.CreatableReplicaAssignment(partition_index=index, broker_ids=row)
            for index, row in enumerate(replica_lists)
        ]
        topic = kind.CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=assignments,
            configs=[
                kind.CreatableTopic.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        response = await self.call(kind(topics=[topic], timeout_ms=1000, validate_only=False), 7)
        assert response.topics[0].error_code == 0, response.topics[0]

    def partition(self, name: str, index: int) -> Any:
        topic = self.active.image.topics.by_name(name)
        assert topic is not None
        return topic.partitions[index]
