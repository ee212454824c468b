"""Passes Produce requests to a broker's handler as frames, without a socket."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

from tests.broker.api.asking import Peer
from tests.broker.replication.cluster import Cluster
from tests.broker.replication.cluster import Node as Broker

from ballast_broker.api.authorizer import ALLOWS_EVERYTHING, Authorizer
from ballast_broker.api.produce import Produce
from ballast_broker.metrics.requests import RequestMetrics
from ballast_broker.metrics.traffic import Traffic
from ballast_broker.net_reply import Pending
from ballast_broker.real_world import RealClock
from ballast_broker.seams import Clock
from ballast_broker.turns import LONGEST_TURN_S
from ballast_wire.fast.produce import FIRST_FLEXIBLE
from ballast_wire.headers import frame_request
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

VERSION = 11


class Slow(RealClock):
    """A clock on which each reading takes longer than a turn of the event loop may."""

    def __init__(self) -> None:
        super().__init__()
        looks = itertools.count()
        self.monotonic = lambda: next(looks) * LONGEST_TURN_S * 1.1


class Producing:
    def __init__(
        self,
        cluster: Cluster,
        node: Broker,
        authorizer: Authorizer = ALLOWS_EVERYTHING,
        clock: Clock | None = None,
        **others: Any,
    ) -> None:
        services: Any = SimpleNamespace(
            node_id=1,
            image=lambda: cluster.controller.image,
            replicas=node.replicas,
            traffic=Traffic(),
            clock=clock or RealClock(),
            authorizer=authorizer,
            **others,
        )
        self.produce = Produce(services, RequestMetrics())

    def send_batches(
        self,
        acks: int,
        *batches: tuple[TopicPartition, bytes],
        version: int = VERSION,
        transactional_id: str | None = None,
        apart: bool = False,
    ) -> Any:
        """`apart`: name the topic again for each batch."""
        kind = message("ProduceRequest")
        topics: dict[tuple[str, int], list[Any]] = {}
        for index, ((topic, number), records) in enumerate(batches):
            part = kind.TopicProduceData.PartitionProduceData(index=number, records=records)
            topics.setdefault((topic, index if apart else 0), []).append(part)
        data = [kind.TopicProduceData(name=topic, partition_data=parts) for (topic, _), parts in topics.items()]
        request = kind(version=version, transactional_id=transactional_id, acks=acks, timeout_ms=5000, topic_data=data)
        flexible = version >= FIRST_FLEXIBLE
        body = bytes(request.encode(version=version))
        frame = bytearray(frame_request(0, version, 1, "tests", body, flexible=flexible))
        reply = self.produce.handle(memoryview(frame)[4:], 10 + len("tests"), version, 1, Peer())
        frame[:] = bytes(len(frame))  # the connection's buffer is used again
        return reply


async def answer(reply: Any, version: int = VERSION) -> list[tuple[str, int, int]]:
    """(topic, error, base offset) of each partition."""
    parts = await reply.future if isinstance(reply, Pending) else (reply,)
    kind = message("ProduceResponse")
    said = kind.decode(b"".join(parts)[9 if version >= FIRST_FLEXIBLE else 8 :], version=version)
    return [(t.name, p.error_code, p.base_offset) for t in said.responses for p in t.partition_responses]
