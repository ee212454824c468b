"""`./ballast bench metadata`: 100,000 partitions in the metadata of one controller.

The controller is a process of its own; the brokers are played: they register, send heartbeats and accept connections,
and hold nothing. Printed: creating the partitions, what they take on disk and in memory, the time from a start until
the controller serves (its snapshot read), and the loss of one broker: until every partition that it led has another
leader and it is in no ISR, and how long another request had to wait meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.servers import CLUSTER_ID, Ballast, ServerFailed

COUNT = 100_000
QUICK_COUNT = 10_000
PER_TOPIC = 1_000
BROKERS = 6
REPLICAS = 3
LIMIT_S = 300.0
SNAPSHOT_INTERVAL_MS = 3_000
POLL_S = 0.005
MB = 1_000_000


@dataclass(slots=True)
class Figures:
    create_s: float = 0.0
    log_mb: float = 0.0
    snapshot_mb: float = 0.0
    memory_mb: float = 0.0
    load_s: float = 0.0
    load_cpu_s: float = 0.0
    memory_after_start_mb: float = 0.0
    changed_partitions: int = 0
    elected_s: float = 0.0
    elected_cpu_s: float = 0.0
    longest_wait_ms: float = 0.0


class Controller(Ballast):
    """Only a controller: its only listener is the quorum's."""

    def __init__(self) -> None:
        super().__init__(
            overrides={
                "metadata.log.max.snapshot.interval.ms": str(SNAPSHOT_INTERVAL_MS),
                "broker.session.timeout.ms": "600000",  # the simulated brokers are silent, not dead
            }
        )
        self.port = self.controller_port

    def properties(self) -> dict[str, str]:
        plain = super().properties()
        del plain["advertised.listeners"]
        return plain | {
            "process.roles": "controller",
            "listeners": f"CONTROLLER://127.0.0.1:{self.controller_port}",
        }

    def metadata_folder(self) -> Path:
        return self.volumes[0] / "__cluster_metadata-0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=0, help=f"partitions (default: {COUNT}; --quick: {QUICK_COUNT})")


def run(args: argparse.Namespace) -> int:
    count = args.count or (QUICK_COUNT if args.quick else COUNT)
    figures = Figures()
    controller = Controller()
    with controller:
        asyncio.run(_measure(controller, count, figures))
    print(f"{count} partitions, {REPLICAS} replicas each, on {BROKERS} brokers")
    for name, value in asdict(figures).items():
        print(f"{name:24} {value:>12,.2f}")
    if args.json:
        print(json.dumps({"bench": "metadata", "count": count, "ballast": asdict(figures)}))
    return 0


async def _measure(controller: Controller, count: int, figures: Figures) -> None:
    brokers = [PlayedBroker(number, controller) for number in range(1, BROKERS + 1)]
    for broker in brokers:
        await broker.start()
    asker = brokers[0]
    began = time.perf_counter()
    for first in range(0, count, PER_TOPIC):
        await asker.create_topic(f"topic-{first}", min(PER_TOPIC, count - first))
    figures.create_s = time.perf_counter() - began
    await asyncio.sleep(SNAPSHOT_INTERVAL_MS / 1000)
    await asker.create_topic("the-last", 1)  # a commit after the interval: a snapshot is due
    figures.snapshot_mb = await _snapshot_bytes(controller, count) / MB
    figures.log_mb = _log_bytes(controller) / MB
    figures.memory_mb = controller.memory_bytes() / MB

    controller.stop()
    began = time.perf_counter()
    controller.spawn()
    await asker.beat()
    figures.load_s = time.perf_counter() - began
    figures.load_cpu_s = controller.cpu_seconds()
    figures.memory_after_start_mb = controller.memory_bytes() / MB
    for broker in brokers:
        await broker.beat()
    used = controller.cpu_seconds()
    await _lose(brokers[-1], asker, count, figures)
    figures.elected_cpu_s = controller.cpu_seconds() - used


async def _lose(victim: PlayedBroker, asker: PlayedBroker, count: int, figures: Figures) -> None:
    before = await asker.high_watermark()
    concerned = victim.replicas(count)
    began = time.perf_counter()
    victim.die()
    while time.perf_counter() - began < LIMIT_S:
        asked = time.perf_counter()
        reached = await asker.high_watermark()
        now = time.perf_counter()
        figures.longest_wait_ms = max(figures.longest_wait_ms, (now - asked) * 1000)
        if reached >= before + concerned + 1:  # one record per partition, and one that fences the broker
            figures.elected_s, figures.changed_partitions = now - began, concerned
            return
        await asyncio.sleep(POLL_S)
    raise ServerFailed(f"no new leaders within {LIMIT_S:g} s")


async def _snapshot_bytes(controller: Controller, least_offset: int) -> int:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        found = sorted(controller.metadata_folder().glob("*.checkpoint"))
        if found and int(found[-1].name[:20]) >= least_offset:
            return found[-1].stat().st_size
        await asyncio.sleep(0.1)
    raise ServerFailed("no snapshot was written")


def _log_bytes(controller: Controller) -> int:
    return sum(each.stat().st_size for each in controller.metadata_folder().glob("*.log"))


class PlayedBroker:
    """Registers, sends heartbeats, accepts connections; partition p of a topic is on brokers p, p + 1, p + 2."""

    def __init__(self, node_id: int, controller: Controller) -> None:
        self.node_id = node_id
        self._controller = controller
        self._incarnation = uuid.uuid4()
        self._directory = uuid.uuid4()
        self._epoch = -1
        self._channel: Any = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        while self._epoch < 0:
            self._epoch = (await self._ask(self._registration(), 4)).broker_epoch
        await self.beat()

    def _registration(self) -> Any:
        from ballast_broker.metadata.features import SUPPORTED
        from ballast_wire.messages import message

        assert self._server is not None
        kind = message("BrokerRegistrationRequest")
        port = self._server.sockets[0].getsockname()[1]
        return kind(
            broker_id=self.node_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=self._incarnation,
            listeners=[kind.Listener(name="PLAINTEXT", host="127.0.0.1", port=port, security_protocol=0)],
            features=[
                kind.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in SUPPORTED.items()
            ],
            rack=None,
            is_migrating_zk_broker=False,
            log_dirs=[self._directory],
            previous_broker_epoch=-1,
        )

    async def _ask(self, request: Any, version: int) -> Any:
        """The answer of the active controller; retries until there is one."""
        from ballast_broker.net.channel import SocketNetwork

        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                if self._channel is None or self._channel.closed:
                    network = SocketNetwork(f"broker-{self.node_id}")
                    port = self._controller.controller_port
                    self._channel = await network.connect("127.0.0.1", port, timeout_s=5)
                answer = await asyncio.wait_for(self._channel.call(request, version), LIMIT_S)
            except OSError:
                answer = None
            if answer is not None and getattr(answer, "error_code", 0) == 0:
                return answer
            if time.monotonic() > deadline:
                raise ServerFailed(f"the controller does not serve: {answer}")
            await asyncio.sleep(0.01)

    async def beat(self) -> None:
        """Send heartbeats until it is unfenced."""
        from ballast_wire.messages import message

        fenced = True
        while fenced:
            request = message("BrokerHeartbeatRequest")(
                broker_id=self.node_id,
                broker_epoch=self._epoch,
                current_metadata_offset=2**60,
                want_fence=False,
                want_shut_down=False,
                offline_log_dirs=[],
            )
            fenced = (await self._ask(request, 1)).is_fenced

    async def create_topic(self, name: str, partitions: int) -> None:
        from ballast_wire.messages import message

        kind = message("CreateTopicsRequest")
        rows = [
            kind.CreatableTopic.CreatableReplicaAssignment(
                version=7, partition_index=number, broker_ids=[1 + (number + k) % BROKERS for k in range(REPLICAS)]
            )
            for number in range(partitions)
        ]
        topic = kind.CreatableTopic(
            version=7, name=name, num_partitions=-1, replication_factor=-1, assignments=rows, configs=[]
        )
        answer = await self._ask(kind(topics=[topic], timeout_ms=60_000, validate_only=False), 7)
        if answer.topics[0].error_code:
            raise ServerFailed(f"{name}: {answer.topics[0]}")

    def replicas(self, count: int) -> int:
        """How many partitions have a replica here."""
        per_topic = [min(PER_TOPIC, count - first) for first in range(0, count, PER_TOPIC)] + [1]
        return sum(
            any(1 + (number + k) % BROKERS == self.node_id for k in range(REPLICAS))
            for partitions in per_topic
            for number in range(partitions)
        )

    async def high_watermark(self) -> int:
        from ballast_broker.raft.describe import describe_request

        answer = await self._ask(describe_request(), 1)
        return int(answer.topics[0].partitions[0].high_watermark)

    def die(self) -> None:
        assert self._server is not None
        self._server.close()
        self._channel.close()
