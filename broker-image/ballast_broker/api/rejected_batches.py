"""Remembers idempotent batches rejected for a transient reason, so that later batches are rejected as well.

A client has several batches of a partition in flight. Suppose the first is rejected (this broker did not know yet that
it leads, the ISR was too small) and the reason passes before the second is handled. The second would be out of
sequence, upon which librdkafka starts over and may duplicate others; or, for a producer unknown to the log, it would be
accepted and the first one lost. So the second is rejected for the first one's reason, and both are retried in order.
PURE; loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, NamedTuple, Protocol

from ballast_broker.storage.producers import ProducerStates, sequence_is_ahead
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.records import HEADER, HEADER_BYTES, Header

PASSING: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
# Longer than batches in flight take to arrive; a client that gives a batch up starts over long after.
REMEMBERED_S: Final = 10.0
MOST: Final = 10_000


class _Refused(NamedTuple):
    epoch: int
    sequence: int
    code: ErrorCode
    until_s: float


class KnowsProducers(Protocol):
    """The part of a log needed here; reading `producers` may load them."""

    @property
    def producers(self) -> ProducerStates: ...


class RejectedBatches:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.refused: dict[Hashable, _Refused] = {}  # usually empty, so there is nothing to check

    def note(self, partition: Hashable, batch: memoryview, code: ErrorCode, log: KnowsProducers | None) -> None:
        """`partition` is the client's key for it."""
        if code not in PASSING or (header := _idempotent(batch)) is None:
            return
        self._forget_old()
        key = (partition, header.producer_id)
        before = self.refused.get(key)
        if (
            before is not None
            and before.epoch == header.producer_epoch
            and not sequence_is_ahead(before.sequence, header.base_sequence)
            and not _has(log, header, before.sequence)
        ):
            return  # behind an earlier rejected one: do not prolong that
        self.refused.pop(key, None)
        if len(self.refused) >= MOST:
            del self.refused[next(iter(self.refused))]
        until_s = self._monotonic() + REMEMBERED_S
        self.refused[key] = _Refused(header.producer_epoch, header.base_sequence, code, until_s)

    def check(self, partition: Hashable, batch: memoryview, log: KnowsProducers | None) -> None:
        """Reject a batch ahead of a rejected one, unless that is in the log by now, by way of another leader."""
        self._forget_old()
        if (header := _idempotent(batch)) is None:
            return
        key = (partition, header.producer_id)
        refused = self.refused.get(key)
        if refused is None:
            return
        if refused.epoch == header.producer_epoch:
            if sequence_is_ahead(header.base_sequence, refused.sequence):
                if not _has(log, header, refused.sequence):
                    raise ApiError(refused.code)
            elif header.base_sequence != refused.sequence:
                return  # an earlier batch: the rejected one is still to come
        del self.refused[key]

    def _forget_old(self) -> None:
        """Drop expired entries; the oldest come first."""
        now_s = self._monotonic()
        while self.refused:
            key, refused = next(iter(self.refused.items()))
            if refused.until_s > now_s:
                return
            del self.refused[key]


def _idempotent(batch: memoryview) -> Header | None:
    if len(batch) < HEADER_BYTES:
        return None
    header = Header._make(HEADER.unpack_from(batch))
    return header if header.producer_id >= 0 and header.base_sequence >= 0 else None


def _has(log: KnowsProducers | None, sent: Header, sequence: int) -> bool:
    return log is not None and log.producers.reaches(sent.producer_id, sent.producer_epoch, sequence)
