"""Holds this broker's replicas by partition, and serves what clients and coordinators ask of them.

The hot path (`append`, `fetch` with data available, a commit that needs no waiting) is synchronous: no task, no future.
What cannot be answered yet comes back as a future. Refusals of single partitions are `ApiError` or an error code in
their result. `roles` decides which replicas there are. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ballast_broker.replication import offsets
from ballast_broker.replication.partition import Partition
from ballast_broker.replication.reading import CONSUMER, FetchEntry, FetchParams, FetchResult, Reader
from ballast_broker.replication.replica import Replica
from ballast_broker.replication.waiting import Deadlines, PendingCommit
from ballast_broker.storage.errors import DirectoryStalls
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition

if TYPE_CHECKING:
    from ballast_broker.replication.nearest import Nearest
    from ballast_broker.replication.quotas import LeaderThrottle
    from ballast_broker.replication.watching import Watch
    from ballast_broker.seams import Clock
    from ballast_broker.storage.log import Log
    from ballast_broker.storage.producers import Verification
    from ballast_broker.storage.slices import AppendInfo, LogSlice


class Replicas:
    """`propose_expand` is called for a fetching follower that is not in the ISR."""

    def __init__(
        self,
        clock: Clock,
        throttle: LeaderThrottle,
        nearest: Nearest,
        propose_expand: Callable[[Replica, int], None],
    ) -> None:
        self._clock: Final = clock
        self._replicas: Final[dict[TopicPartition, Replica]] = {}
        self._deadlines: Final = Deadlines()
        self._reader: Final = Reader(
            self._replicas,
            self._deadlines,
            throttle,
            nearest,
            propose_expand,
            lambda: int(clock.monotonic() * 1000),
        )

    # -- which there are --------------------------------------------------------------------------------------------
    def add(self, topic_id: UUID, state: Partition) -> Replica:
        replica = Replica(topic_id, state, self._clock, self._reader.wakeups)
        self._replicas[state.topic_partition] = replica
        return replica

    def remove(self, topic_partition: TopicPartition) -> None:
        del self._replicas[topic_partition]

    def find(self, topic_partition: TopicPartition) -> Replica | None:
        return self._replicas.get(topic_partition)

    def all(self) -> list[Replica]:
        return list(self._replicas.values())

    def close(self) -> None:
        """Tell all waiting requests to ask another broker."""
        for replica in self._replicas.values():
            replica.refuse_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            replica.wake_all()
        self._deadlines.close()

    def partition(self, topic_partition: TopicPartition) -> Partition | None:
        replica = self._replicas.get(topic_partition)
        return None if replica is None else replica.state

    def partitions(self) -> list[Partition]:
        return [replica.state for replica in self._replicas.values()]

    def local_log(self, topic_partition: TopicPartition) -> Log | None:
        replica = self._replicas.get(topic_partition)
        return None if replica is None or replica.offline else replica.log

    def _replica(self, topic_partition: TopicPartition) -> Replica:
        replica = self._replicas.get(topic_partition)
        if replica is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return replica

    # -- producing --------------------------------------------------------------------------------------------------
    def append(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        batches: bytearray | memoryview,
        acks: int,
        *,
        origin: str = "client",
        verified: Verification | None = None,
    ) -> AppendInfo:
        """Append to the leader's log synchronously. With acks=-1 call `await_committed` with `last_offset + 1` next.

        `verified`: the token with which the coordinator was asked, if a transaction begins in the partition.
        `DirectoryStalls` if the disk is too slow for that: then use `append_by_thread`.
        """
        replica = self._replicas.get(topic_partition)
        if replica is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic_id is not None and topic_id is not replica.topic_id and topic_id != replica.topic_id:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        return replica.append(batches, acks, origin, verified)

    def append_by_thread(
        self,
        topic_partition: TopicPartition,
        batches: bytearray,
        acks: int,
        *,
        origin: str = "client",
        verified: Verification | None = None,
    ) -> Coroutine[Any, Any, AppendInfo]:
        """Append after `DirectoryStalls`: in the order of these calls, and before any later `append`."""
        return self._replica(topic_partition).append_by_thread(batches, acks, origin, verified)

    def await_committed(
        self, topic_partition: TopicPartition, offset: int, timeout_ms: int
    ) -> ErrorCode | asyncio.Future[ErrorCode]:
        """Whether the whole ISR has everything before `offset`: the error code, or a future of it."""
        replica = self._replicas.get(topic_partition)
        if replica is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        error = replica.state.committed(offset)
        if error is not None:
            return error
        return PendingCommit(self._deadlines, timeout_ms, replica.state.waiting, offset).future

    def append_own(
        self, topic_partition: TopicPartition, batches: bytearray, acks: int, *, verified: Verification | None = None
    ) -> asyncio.Future[AppendInfo]:
        """For coordinators: append several batches at once, in a thread if the disk stalls. Appends are in the order of
        these calls, whenever each is awaited."""
        origin, loop = "coordinator", asyncio.get_running_loop()
        written: asyncio.Future[AppendInfo] = loop.create_future()
        try:
            written.set_result(self.append(topic_partition, None, batches, acks, origin=origin, verified=verified))
        except DirectoryStalls:
            written = loop.create_task(
                self.append_by_thread(topic_partition, batches, acks, origin=origin, verified=verified)
            )
        return written

    # -- fetching and offsets -----------------------------------------------------------------------------------------
    def fetch(
        self, params: FetchParams, entries: list[FetchEntry]
    ) -> list[FetchResult] | asyncio.Future[list[FetchResult]]:
        """One result per entry, in order: a list if it can be answered now, else a future."""
        return self._reader.fetch(params, entries)

    def fetch_watched(self, params: FetchParams, watch: Watch) -> list[FetchResult] | asyncio.Future[list[FetchResult]]:
        """Fetch for a session: a result for each of its partitions that is due."""
        return self._reader.fetch_watched(params, watch)

    def read_own(
        self, topic_partition: TopicPartition, offset: int, max_bytes: int, upper_offset: int
    ) -> LogSlice | asyncio.Task[LogSlice]:
        """For coordinators: as `Log.read`, of this broker's own log, but without waiting for the disk on the loop."""
        return self._reader.cold.look(
            lambda replica: replica.online_log().read(offset, max_bytes, upper_offset=upper_offset),
            self._replica(topic_partition),
        )

    def list_offset(
        self,
        topic_partition: TopicPartition,
        timestamp: int,
        isolation: int = 0,
        current_leader_epoch: int = -1,
        replica_id: int = CONSUMER,
    ) -> offsets.FoundOffset | asyncio.Task[offsets.FoundOffset]:
        return self._reader.cold.look(
            offsets.list_offset, self._replica(topic_partition), timestamp, isolation, current_leader_epoch, replica_id
        )

    def offset_for_leader_epoch(
        self, topic_partition: TopicPartition, leader_epoch: int, current_leader_epoch: int = -1
    ) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch not above the requested one; (-1, -1) if there is none."""
        return offsets.offset_for_leader_epoch(self._replica(topic_partition), leader_epoch, current_leader_epoch)

    async def delete_records(
        self, entries: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, tuple[ErrorCode, int]]:
        """Per partition the error and the new low watermark, once all replicas have it."""
        results: dict[TopicPartition, tuple[ErrorCode, int]] = {}
        waits: list[tuple[TopicPartition, asyncio.Future[ErrorCode]]] = []
        async for topic_partition, offset in InTurns(entries.items()):
            try:
                answer = offsets.delete_records(self._replica(topic_partition), offset, timeout_ms, self._deadlines)
            except ApiError as error:
                results[topic_partition] = (error.code, -1)
                continue
            if isinstance(answer, int):
                results[topic_partition] = (ErrorCode.NONE, answer)
            else:
                waits.append((topic_partition, answer))
        for topic_partition, future in waits:
            outcome = await future
            found = self.local_log(topic_partition)
            low = -1 if found is None or outcome is not ErrorCode.NONE else found.log_start_offset
            results[topic_partition] = (outcome, low)
        return results

    def answer_follower(self, broker_id: int) -> None:
        """Answer its waiting fetches now, with what there is."""
        self._reader.answer_follower(broker_id)
