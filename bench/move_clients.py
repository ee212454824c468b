"""Clients for the benchmark of moves: create topics with a given assignment, fill them, and take latencies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bench.servers import ServerFailed

LIMIT_S = 120
VALUE = bytes(range(256)) * 40  # 10 KiB
PACE_S = 0.002
QUIET = {"log_level": 0}


def create(bootstrap: str, topic: str, assignment: list[list[int]], configs: Mapping[str, str]) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    wanted = NewTopic(topic, len(assignment), replica_assignment=assignment, config=dict(configs))
    admin.create_topics([wanted])[topic].result(LIMIT_S)


def fill(bootstrap: str, topic: str, partitions: int, size: int) -> None:
    """Produce `size` bytes, spread evenly, in batches of 64 KiB."""
    from confluent_kafka import Producer

    settings: dict[str, Any] = {**QUIET, "bootstrap.servers": bootstrap, "batch.size": 65_536, "linger.ms": 50}
    producer = Producer(settings)
    for number in range(size // len(VALUE)):
        while True:
            try:
                producer.produce(topic, VALUE, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(LIMIT_S):
        raise ServerFailed(f"{bootstrap} did not take {size} bytes within {LIMIT_S} s")


def configure(bootstrap: str, kind: str, name: str, values: Mapping[str, str | None]) -> None:
    """Set configs; None deletes one."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [
        ConfigEntry(
            key,
            value or "",
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for key, value in values.items()
    ]
    resource = ConfigResource(ResourceType[kind.upper()], name, incremental_configs=entries)
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(LIMIT_S)


class Latencies:
    """Latencies of single records: each is waited for, then two milliseconds pass."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({**QUIET, "bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
        self._topic = topic

    def p99_ms(self, seconds: float) -> float:
        taken = self._take(time.perf_counter() + seconds, threading.Event())
        return sorted(taken)[int(len(taken) * 0.99)] * 1000

    def _take(self, end: float, stop: threading.Event) -> list[float]:
        taken: list[float] = []
        while (began := time.perf_counter()) < end and not stop.is_set():
            self._producer.produce(self._topic, VALUE[:1000], partition=0)
            if self._producer.flush(LIMIT_S):
                raise ServerFailed("a record was not acknowledged")
            taken.append(time.perf_counter() - began)
            time.sleep(PACE_S)
        return taken

    @contextmanager
    def in_background(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._take, args=(float("inf"), stop))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(LIMIT_S)
