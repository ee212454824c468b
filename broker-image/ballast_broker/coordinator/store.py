"""The coordinator's hands on `__consumer_offsets`: appends with acks=all, and the whole log read at load.

Loading reads in pieces and gives the loop its turn between them; it reads up to the log end at the time this broker
became leader, which its own log cannot lose while it leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from ballast_broker.replication.replicas import Replicas
from ballast_broker.seams import Clock, Threads
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition
from ballast_wire.records import CorruptBatch, Record, decode_records, encode_batch, iterate_batches

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"

CLIENT_ERROR = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}

KeyValue = tuple[bytes, bytes | None]


class OffsetsStore:
    def __init__(self, replicas: Replicas, clock: Clock, threads: Threads, *, timeout_ms: int, load_bytes: int) -> None:
        self._replicas = replicas
        self._clock = clock
        self._threads = threads
        self._timeout_ms = timeout_ms
        self._load_bytes = load_bytes

    async def append(self, partition: int, entries: Sequence[KeyValue]) -> ErrorCode:
        """Write and wait until committed; the error is one that a group's client understands."""
        target = TopicPartition(OFFSETS_TOPIC, partition)
        now_ms = self._clock.wall_ms()
        batch = encode_batch([Record(key=key, value=value, timestamp=now_ms) for key, value in entries])
        outcome = await self._replicas.append_records({target: batch}, acks=-1, timeout_ms=self._timeout_ms)
        error = outcome[target].error
        return CLIENT_ERROR.get(error, error)

    async def read_all(self, partition: int) -> AsyncIterator[KeyValue]:
        """Every record from the log start to the log end of now. ApiError where the log is not to be had.

        A batch whose inside cannot be read is passed over: it is not ours, and the others' groups are in the same log.
        """
        log = self._replicas.local_log(TopicPartition(OFFSETS_TOPIC, partition))
        if log is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        offset, end = log.log_start_offset, log.log_end_offset
        while offset < end:
            piece = log.read(offset, self._load_bytes, upper_offset=end)
            try:
                data = await self._threads.run(piece.read)
            finally:
                piece.release()
            if not data:
                return
            for batch in iterate_batches(memoryview(data)):
                offset = batch.last_offset + 1
                if batch.is_control:
                    continue
                try:
                    found = list(decode_records(batch))
                except CorruptBatch as error:
                    logger.error("batch at %d of %s-%d: %s", batch.base_offset, OFFSETS_TOPIC, partition, error)
                    continue
                for record in found:
                    if record.key is not None:
                        yield bytes(record.key), None if record.value is None else bytes(record.value)
            await asyncio.sleep(0)
