"""Sends transaction markers to the leaders of a transaction's partitions until all are written.

At most one request per broker is in flight, carrying everything queued for that broker by then; this broker's own
markers are written without a request. Transient errors are retried at the partition's leader of that time; a partition
whose topic is deleted needs no marker. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ballast_broker.metadata.image import NO_LEADER, Listener, MetadataImage
from ballast_broker.raft.links import PeerLink
from ballast_broker.raft.voters import Endpoint
from ballast_broker.seams import Network
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition, by_topic

log = logging.getLogger(__name__)

API_KEY = 27
OLDEST_VERSION, VERSION = 1, 2
RETRY_S = 0.1
LOOK_S = 0.25
"""How often a waiting request checks whether the partitions have other leaders by now."""
# This broker may no longer send markers of this transaction, or none are needed.
STOPPED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})


@dataclass(eq=False, slots=True)
class DecidedTransaction:
    """A transaction whose outcome is decided."""

    producer_id: int
    epoch: int
    committed: bool
    version: int
    left: set[TopicPartition]
    coordinator_epoch: Callable[[], int]
    """-1 if this broker no longer coordinates it."""
    marked: Callable[[Collection[TopicPartition]], None]
    done: Callable[[], None]


class Marking(NamedTuple):
    """A marker to write to a partition."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    committed: bool
    version: int
    """transaction.version: if it bumps the epoch, a partition can tell a late marker from the next transaction's."""
    partition: TopicPartition


Waiting = dict[DecidedTransaction, set[TopicPartition]]
Outcomes = dict[tuple[int, TopicPartition], ErrorCode]
"""Keyed by producer id and partition."""


class MarkerSender:
    def __init__(
        self,
        image: Callable[[], MetadataImage],
        listener: str,
        network: Network,
        node_id: int,
        write_own: Callable[[list[Marking]], Awaitable[Outcomes]],
        *,
        timeout_s: float,
    ) -> None:
        self._image = image
        self._listener = listener
        self._node_id = node_id
        self._write_own = write_own
        self._network = network
        self._timeout_s = timeout_s
        self._waiting: dict[int, Waiting] = {}
        self._links: dict[int, tuple[Listener, PeerLink]] = {}
        self._sending: dict[int, asyncio.Task[None]] = {}
        self._timers: set[asyncio.TimerHandle] = set()

    def send(self, ending: DecidedTransaction) -> None:
        if ending.left:
            self._route(ending, ending.left)
        else:
            ending.done()

    def _route(self, ending: DecidedTransaction, partitions: Iterable[TopicPartition]) -> None:
        if ending.coordinator_epoch() < 0:
            return
        leaderless, gone = [], []
        for partition in sorted(partitions):  # in one order in every process
            leader = self._leader(partition)
            if leader is None:
                gone.append(partition)
            elif leader == NO_LEADER:
                leaderless.append(partition)
            else:
                self._waiting.setdefault(leader, {}).setdefault(ending, set()).add(partition)
                if leader not in self._sending:
                    self._sending[leader] = asyncio.get_running_loop().create_task(self._send_to(leader))
        if leaderless:
            self._route_later(ending, leaderless)
        self._end_of(ending, gone)

    def _route_later(self, ending: DecidedTransaction, partitions: Iterable[TopicPartition]) -> None:
        def again() -> None:
            self._timers.discard(timer)
            self._route(ending, partitions)

        timer = asyncio.get_running_loop().call_later(RETRY_S, again)
        self._timers.add(timer)

    @staticmethod
    def _end_of(ending: DecidedTransaction, partitions: Collection[TopicPartition]) -> None:
        found = ending.left.intersection(partitions)
        if found:
            ending.left -= found
            ending.marked(found)
            if not ending.left:
                ending.done()

    async def _send_to(self, broker: int) -> None:
        try:
            while waiting := self._waiting.pop(broker, None):
                await self._send(broker, waiting)
        except Exception:
            log.exception("ends of transactions could not be marked at broker %d", broker)
        finally:
            del self._sending[broker]

    async def _send(self, broker: int, waiting: Waiting) -> None:
        outcomes: Outcomes = {}
        current = {ending: partitions for ending, partitions in waiting.items() if ending.coordinator_epoch() >= 0}
        try:
            if broker == self._node_id:
                outcomes = await self._write_own(_markings(current))
            elif current and (link := self._link(broker)) is not None:
                response = await self._ask(link, broker, current)
                outcomes = {} if response is None else _outcomes(response)
        except (OSError, TimeoutError) as error:
            log.info("ends of transactions could not be marked at broker %d yet: %s", broker, error)
        except Exception:
            log.exception("ends of transactions could not be marked at broker %d", broker)
        for ending, partitions in current.items():
            self._settle(ending, partitions, outcomes)

    async def _ask(self, link: PeerLink, broker: int, waiting: Waiting) -> Any | None:
        """None if the broker leads none of the partitions any more, being hung or cut off."""
        asking = asyncio.get_running_loop().create_task(_ask_to_write(link, _request(waiting)))
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved even if never awaited
        try:
            while not asking.done():
                await asyncio.wait({asking}, timeout=LOOK_S)
                if not asking.done() and not self._leads_any(broker, waiting):
                    return None
            return asking.result()
        finally:
            asking.cancel()

    def _leads_any(self, broker: int, waiting: Waiting) -> bool:
        partitions = {partition for of_ending in waiting.values() for partition in of_ending}
        return any(self._leader(partition) == broker for partition in partitions)

    def _leader(self, partition: TopicPartition) -> int | None:
        """None if there is no such partition."""
        topic = self._image().topics.by_name(partition.topic)
        registration = None if topic is None else topic.partitions.get(partition.partition)
        return None if registration is None else registration.leader

    def _settle(self, ending: DecidedTransaction, partitions: set[TopicPartition], outcomes: Outcomes) -> None:
        again, written = [], []
        for partition in sorted(partitions):
            error = outcomes.get((ending.producer_id, partition), ErrorCode.REQUEST_TIMED_OUT)
            if error is ErrorCode.NONE:
                written.append(partition)
            elif error in STOPPED:
                log.warning(
                    "the end of a transaction of producer %d is not marked in %s, being outdated: %s",
                    ending.producer_id, partition, error.name,
                )  # fmt: skip
            else:
                again.append(partition)
        self._end_of(ending, written)
        if again:
            self._route_later(ending, again)

    def _link(self, broker: int) -> PeerLink | None:
        registered = self._image().cluster.brokers.get(broker)
        listener = None if registered is None else registered.listeners.get(self._listener)
        if listener is None:
            return None
        known = self._links.get(broker)
        if known is not None and known[0] == listener:
            return known[1]
        if known is not None:
            known[1].close()
        link = PeerLink(self._network, Endpoint(listener.host, listener.port), self._timeout_s)
        self._links[broker] = listener, link
        return link

    def close(self) -> None:
        for task in self._sending.values():
            task.cancel()
        for timer in self._timers:
            timer.cancel()
        for _, link in self._links.values():
            link.close()


async def _ask_to_write(link: PeerLink, request: Any) -> Any:
    """Call with a version the broker knows: older releases lack the transaction version."""
    highest = await link.highest(API_KEY)
    return await link.call(request, VERSION if highest >= VERSION else OLDEST_VERSION)


def _markings(waiting: Waiting) -> list[Marking]:
    return [
        Marking(
            ending.producer_id, ending.epoch, ending.coordinator_epoch(), ending.committed, ending.version, partition
        )
        for ending, partitions in waiting.items()
        for partition in sorted(partitions)
    ]


def _request(waiting: Waiting) -> Any:
    kind = message("WriteTxnMarkersRequest")
    markers = []
    for ending, partitions in waiting.items():
        topics = by_topic(sorted(partitions))
        marker = kind.WritableTxnMarker
        markers.append(
            marker(
                producer_id=ending.producer_id,
                producer_epoch=ending.epoch,
                transaction_result=ending.committed,
                topics=[marker.WritableTxnMarkerTopic(name=n, partition_indexes=i) for n, i in topics.items()],
                coordinator_epoch=ending.coordinator_epoch(),
                transaction_version=ending.version,
            )
        )
    return kind(markers=markers)


def _outcomes(response: Any) -> Outcomes:
    return {
        (marker.producer_id, TopicPartition(topic.name, partition.partition_index)): ErrorCode(partition.error_code)
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }
