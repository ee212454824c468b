"""A client that loses no time: it writes one record after the other to one partition, and finds a new leader at once.

Ordinary clients look for a new leader on timers of up to some seconds, which would hide how fast a cluster elects one.
Produces with acks=all. One thread.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from bench.servers import Cluster, ServerFailed

from ballast_wire.headers import frame_request
from ballast_wire.messages import message
from ballast_wire.records import Record, encode_batch

PRODUCE_VERSION = 7
METADATA_VERSION = 4
ANSWER_LIMIT_S = 30.0
LOOK_LIMIT_S = 1.0
AGAIN_S = 0.01
LATE_S = 0.5
CLIENT_ID = "bench"


class Writer:
    """Records when each record was acknowledged."""

    def __init__(self, cluster: Cluster, topic: str, *, limit_s: float) -> None:
        self._ports = {server.node_id: server.port for server in cluster.servers}
        self._topic = topic
        self._limit_s = limit_s
        self._batch = encode_batch([Record(None, b"x" * 100, 1_700_000_000_000)])
        self._acks: list[float] = [time.perf_counter()]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    @property
    def last_ack(self) -> float:
        return self._acks[-1]

    @property
    def late(self) -> bool:
        return time.perf_counter() - self.last_ack > LATE_S

    def run_for(self, seconds: float) -> None:
        time.sleep(seconds)
        self.run_until(lambda: not self.late)

    def run_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._limit_s
        while not holds():
            if time.monotonic() > deadline:
                raise ServerFailed(f"nothing was acknowledged for {self._limit_s:g} s")
            time.sleep(0.02)

    def longest_gap_after(self, moment: float) -> float:
        acks = [ack for ack in self._acks if ack >= moment]
        before = max((ack for ack in self._acks if ack < moment), default=moment)
        return max(b - a for a, b in zip([before, *acks], acks, strict=False))

    def close(self) -> None:
        self._stop.set()
        self._thread.join(self._limit_s)

    # -- the thread -----------------------------------------------------------------------------------------------
    def _write(self) -> None:
        while not self._stop.is_set():
            try:
                with self._connect(self._leader(), ANSWER_LIMIT_S) as connection:
                    while not self._stop.is_set() and self._write_one(connection):
                        self._acks.append(time.perf_counter())
            except (OSError, LookupError):
                pass
            self._stop.wait(AGAIN_S)

    def _connect(self, node_id: int, limit_s: float) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._ports[node_id]), timeout=limit_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _leader(self) -> int:
        """The leader, according to the first broker that knows one."""
        topics = message("MetadataRequest").MetadataRequestTopic
        request = message("MetadataRequest")(topics=[topics(name=self._topic)], allow_auto_topic_creation=False)
        for node_id in self._ports:
            try:
                with self._connect(node_id, LOOK_LIMIT_S) as connection:
                    answer = _ask(connection, request, METADATA_VERSION)
            except OSError:
                continue
            for partition in answer.topics[0].partitions:
                if partition.partition_index == 0 and partition.leader_id >= 0:
                    return int(partition.leader_id)
        raise LookupError("no broker knows a leader")

    def _write_one(self, connection: socket.socket) -> bool:
        kind = message("ProduceRequest")
        partition = kind.TopicProduceData.PartitionProduceData(index=0, records=self._batch)
        topic = kind.TopicProduceData(name=self._topic, partition_data=[partition])
        answer = _ask(connection, kind(acks=-1, timeout_ms=30_000, topic_data=[topic]), PRODUCE_VERSION)
        return bool(answer.responses[0].partition_responses[0].error_code == 0)


def _ask(connection: socket.socket, request: Any, version: int) -> Any:
    name = type(request).__name__
    body = request.encode(version=version)
    connection.sendall(frame_request(request.API_KEY, version, 1, CLIENT_ID, body, flexible=False))
    (size,) = struct.unpack(">i", _receive(connection, 4))
    return message(name.removesuffix("Request") + "Response").decode(_receive(connection, size)[4:], version=version)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("the broker closed the connection")
        data += piece
    return data
