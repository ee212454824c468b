"""Three combined broker and controller nodes that require authentication from everybody, including each other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient
from e2e.processes import free_ports
from tests.clients.running import RunningBroker

NODES = (1, 2, 3)
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"


class ThreeNodes:
    """`listener` is for clients and brokers; it and the listener of the controllers use `protocol`."""

    def __init__(self, folder: Path, listener: str, protocol: str, host: str = "127.0.0.1") -> None:
        ports = free_ports(2 * len(NODES))
        self.brokers = [f"{host}:{port}" for port in ports[: len(NODES)]]
        self.controllers = [f"{host}:{port}" for port in ports[len(NODES) :]]
        voters = [f"{number}@{address}" for number, address in zip(NODES, self.controllers, strict=True)]
        self.nodes = [
            RunningBroker(
                folder / f"node-{number}",
                node_id=number,
                cluster_id=CLUSTER_ID,
                process_roles="broker,controller",
                listeners=f"{listener}://{broker},CONTROLLER://{controller}",
                listener_security_protocol_map=f"{listener}:{protocol},CONTROLLER:{protocol}",
                inter_broker_listener_name=listener,
                controller_quorum_voters=",".join(voters),
                offsets_topic_replication_factor=3,
                replica_lag_time_max_ms=5000,
                broker_session_timeout_ms=3000,
            )
            for number, broker, controller in zip(NODES, self.brokers, self.controllers, strict=True)
        ]

    def has(self, number: int, properties: dict[str, str | int]) -> None:
        """Give a node further properties."""
        self.nodes[number - 1]._properties |= properties

    @property
    def bootstrap(self) -> str:
        return ",".join(self.brokers)

    @contextmanager
    def running(self, *secrets: str) -> Iterator[None]:
        """Run them; afterwards no log may have a traceback or one of the secrets."""
        try:
            with ThreadPoolExecutor(len(NODES)) as pool:
                list(pool.map(RunningBroker.start, self.nodes))
            yield
        finally:
            for node in self.nodes:
                node.kill()
        for node in self.nodes:
            said = node.log_text()
            assert "Traceback" not in said, said
            assert not any(secret in said for secret in secrets), "a secret is in the log"


def in_sync(admin: AdminClient, topic: str) -> set[int]:
    partition = admin.list_topics(topic, timeout=30).topics[topic].partitions.get(0)
    return set(partition.isrs) if partition is not None else set()


def until_all_are_in_sync(admin: AdminClient, topic: str) -> None:
    deadline = time.monotonic() + 60
    while in_sync(admin, topic) != set(NODES):
        assert time.monotonic() < deadline, in_sync(admin, topic)
