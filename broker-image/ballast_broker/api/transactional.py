"""Verifies a transactional Produce with the transaction coordinator before its first batch in a partition (KIP-890).

Up to version 11 the producer has added the partition itself, which is verified; from version 12 on (transactions
version 2) asking adds it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ballast_broker.api.authorizer import Operation, transactional_id
from ballast_broker.storage.producers import NOT_ASKED, Verification
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.fast.produce import ProduceRequest
from ballast_wire.records import CONTROL_MASK, HEADER, HEADER_BYTES, TRANSACTIONAL_MASK, Header

if TYPE_CHECKING:
    from ballast_broker.api.services import BrokerServices
    from ballast_broker.net_reply import Peer
    from ballast_wire.names import TopicPartition

UNAUTHORIZED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
FIRST_ABORTABLE = 11  # clients know TRANSACTION_ABORTABLE from here on
FIRST_ADDING = 12
# Not the producer's fault: it gets an error that makes it retry without refreshing metadata first.
PASSING = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def transactional_header(batches: memoryview | None) -> Header | None:
    """The header of the first batch if that is transactional."""
    if batches is None or len(batches) < HEADER_BYTES:
        return None
    header = Header._make(HEADER.unpack_from(batches))
    wanted = header.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK) == TRANSACTIONAL_MASK
    return header if wanted and header.producer_id >= 0 else None


class NotVerified(ApiError):
    """Rejected without consulting the log."""


class Transactional:
    """A Produce request with a transactional id."""

    def __init__(self, broker: BrokerServices, request: ProduceRequest, version: int, peer: Peer) -> None:
        self._broker = broker
        self._version = version
        self._id = request.transactional_id or ""
        self._adds = version >= FIRST_ADDING
        self._asks = self._adds or broker.config.transaction_partition_verification_enable
        self._asked: list[TopicPartition] = []
        self._asking: asyncio.Task[dict[TopicPartition, ErrorCode]] | None = None
        self.refusal = self._refusal(request, peer)

    def _refusal(self, request: ProduceRequest, peer: Peer) -> ErrorCode | None:
        """The error for the request as a whole, if any."""
        headers = [transactional_header(batches) for _, partitions in request.topics for _, batches in partitions]
        producers = {(header.producer_id, header.producer_epoch) for header in headers if header is not None}
        if not producers:
            return None
        if not self._broker.authorizer.allows(peer, Operation.WRITE, transactional_id(self._id)):
            return UNAUTHORIZED
        if len(producers) > 1:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        self._producer_id, self._epoch = producers.pop()
        return None

    def hold(self, partition: TopicPartition, batches: memoryview | None) -> Verification | None:
        """The verification to pass to the append; None or NOT_ASKED if the coordinator need not be asked first."""
        header = transactional_header(batches)
        if header is None or not self._asks:
            return NOT_ASKED
        state, log = self._broker.replicas.partition(partition), self._broker.replicas.local_log(partition)
        if state is None or not state.is_leader or log is None:
            return None  # the append raises the error
        held = log.producers.verify(
            header.producer_id, header.producer_epoch, header.base_sequence,
            adds=self._adds, now_ms=self._broker.clock.wall_ms(),
        )  # fmt: skip
        if held is not None:
            self._asked.append(partition)
        return held

    @property
    def asks(self) -> bool:
        """Whether there is anything to ask; all partitions share one question."""
        return bool(self._asked)

    def agreed_here(self, partition: TopicPartition) -> bool:
        """Whether this broker is the coordinator and agrees; raises if it disagrees. False: await `answer_for`."""
        if self._adds:
            return False
        errors = self._broker.verifier.verify_here(self._id, self._producer_id, self._epoch, [partition])
        if errors:
            raise self._told(errors[partition])
        return errors is not None

    async def answer_for(self, partition: TopicPartition) -> None:
        """Raise if the coordinator disagrees. It is asked once for all partitions of the request."""
        if self._asking is None:
            verifying = self._broker.verifier.verify(
                self._id, self._producer_id, self._epoch, self._asked, add=self._adds
            )
            self._asking = asyncio.get_running_loop().create_task(verifying)
        error = (await asyncio.shield(self._asking)).get(partition)
        if error is not None:
            raise self._told(error)

    def _told(self, error: ErrorCode) -> NotVerified:
        if error is ErrorCode.PRODUCER_FENCED:  # producers expect the log's error instead
            return NotVerified(ErrorCode.INVALID_PRODUCER_EPOCH)
        if error is ErrorCode.TRANSACTION_ABORTABLE and self._version < FIRST_ABORTABLE:
            error = ErrorCode.INVALID_TXN_STATE
        if error is ErrorCode.INVALID_TXN_STATE:
            return NotVerified(error, "Partition was not added to the transaction")
        if error in PASSING or (error is ErrorCode.CONCURRENT_TRANSACTIONS and not self._adds):
            text = f"Unable to verify the partition has been added to the transaction. Underlying error: {error.name}"
            return NotVerified(ErrorCode.NOT_ENOUGH_REPLICAS, text)
        return NotVerified(error)
