"""Metrics of a made-up, skewed cluster as brokers would export them, in a registry or served on a port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from ballast_planner import Broker, Directory

GIB = 1 << 30


@dataclass(frozen=True)
class SkewedReplica:
    topic: str
    partition: int
    broker: int
    log_dir: str
    size: int
    position: int


def skewed_cluster(partitions: int = 60) -> list[SkewedReplica]:
    """Two replicas of each partition on three brokers; the first of each broker's two disks has the large replicas."""
    replicas = []
    for partition in range(partitions):
        size = (1 + partition % 5) * GIB // 4
        for position in range(2):
            disk = 0 if partition % 5 >= 2 else partition % 2
            replicas.append(
                SkewedReplica("orders", partition, 1 + (partition + position) % 3, f"/disk{disk}", size, position)
            )
    return replicas


def directories_of(replicas: list[SkewedReplica], capacity: int = 40 * GIB) -> list[Directory]:
    used: dict[tuple[int, str], int] = {}
    for replica in replicas:
        for disk in ("/disk0", "/disk1"):
            used.setdefault((replica.broker, disk), 0)
        used[replica.broker, replica.log_dir] += replica.size
    return [Directory(broker, path, capacity, size) for (broker, path), size in sorted(used.items())]


def brokers_of(replicas: list[SkewedReplica]) -> list[Broker]:
    return [Broker(broker) for broker in sorted({replica.broker for replica in replicas})]


class Exporter:
    """The metrics of docs/metrics.md for a made-up cluster."""

    def __init__(self, replicas: list[SkewedReplica], order: bool = True) -> None:
        self.registry = CollectorRegistry()
        self._replicas = replicas
        place = ["topic", "partition", "broker"]
        self.size = Gauge("ballast_replica_size_bytes", "Size", [*place, "log_dir"], registry=self.registry)
        self.leader = Gauge("ballast_partition_leader", "Leader", place, registry=self.registry)
        self.total = Gauge("ballast_log_dir_total_bytes", "Total", ["broker", "log_dir"], registry=self.registry)
        self.used = Gauge("ballast_log_dir_used_bytes", "Used", ["broker", "log_dir"], registry=self.registry)
        if order:
            self.position = Gauge("ballast_replica_position", "Position", place, registry=self.registry)
        for replica in replicas:
            key = (replica.topic, str(replica.partition), str(replica.broker))
            self.size.labels(*key, replica.log_dir).set(replica.size)
            if replica.position == 0:
                self.leader.labels(*key).set(1)
            if order:
                self.position.labels(*key).set(replica.position)
        for directory in directories_of(replicas):
            key2 = (str(directory.broker), directory.path)
            self.total.labels(*key2).set(directory.total_bytes)
            self.used.labels(*key2).set(directory.used_bytes)

    @contextmanager
    def served(self) -> Iterator[int]:
        """Serve the metrics; yields the port."""
        server: WSGIServer
        thread: threading.Thread
        server, thread = start_http_server(0, addr="127.0.0.1", registry=self.registry)
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
