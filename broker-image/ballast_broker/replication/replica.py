"""Represents this broker's replica of one partition: its log, its pure state, and the fetches that wait on it.

Everything that changes the log or the high watermark goes through here, so that waiting requests are woken.
Loop thread only. Refusals are `ApiError`; a failing disk is `KAFKA_STORAGE_ERROR` and takes its directory offline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ballast_broker.replication.partition import NO_LEADER, Partition, Registration, Transition
from ballast_broker.replication.waiters import Waiters
from ballast_broker.storage import slow_append
from ballast_broker.storage.errors import DirectoryStalls
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition

if TYPE_CHECKING:
    from ballast_broker.config.logs import LogConfig
    from ballast_broker.replication.waiting import ParkedFetch, Wakeups
    from ballast_broker.replication.watching import Watched
    from ballast_broker.seams import Clock
    from ballast_broker.storage.log import Log
    from ballast_broker.storage.producers import Verification
    from ballast_broker.storage.slices import AppendInfo

logger = logging.getLogger(__name__)

_STORAGE_ERROR: Final = "The log's directory is offline."


class Replica:
    __slots__ = (
        "_clock", "_wakeups", "delete_waiters", "follower_throttled", "leader_throttled", "log", "offline", "parked",
        "state", "tell_log_start", "topic_id", "topic_partition", "truncated", "watched",
    )  # fmt: skip

    def __init__(self, topic_id: UUID, state: Partition, clock: Clock, wakeups: Wakeups) -> None:
        self.topic_partition: TopicPartition = state.topic_partition
        self.topic_id = topic_id
        self.state = state
        self.log: Log | None = None
        self.offline = False
        self.parked: dict[ParkedFetch, None] = {}
        self.watched: dict[Watched, None] = {}  # by fetch sessions
        self.delete_waiters = Waiters()  # DeleteRecords waiting for all replicas to have the new log start
        self.leader_throttled = False
        self.follower_throttled = False
        # Called with every truncation: a move truncates its copy at the same offset.
        self.truncated: list[Callable[[int], None]] = []
        self.tell_log_start: Callable[[], None] | None = None  # while it follows: the leader has to know
        self._clock = clock
        self._wakeups = wakeups

    def now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def configure(self, config: LogConfig) -> None:
        self.state.min_insync_replicas = config.min_insync_replicas
        if self.log is not None and self.log.config is not config:
            self.log.update_config(config)
        self.reconsider()
        self.changed()

    def use(self, log: Log) -> None:
        if self.log is not None:
            self.log.on_start_moved = None
        self.log = log
        log.on_start_moved = self._start_moved
        self.changed()

    def _start_moved(self) -> None:
        self.changed()
        if self.tell_log_start is not None:
            self.tell_log_start()

    # -- role -----------------------------------------------------------------------------------------------------
    def become(self, metadata: Registration) -> Transition:
        state, log = self.state, self.online_log()
        led = state.is_leader
        epoch, high_watermark = state.leader_epoch, state.high_watermark
        if metadata.leader_epoch < (log.latest_epoch or 0):
            # Leading or following by it would undo what this log has from later leaders.
            logger.error(
                "%s has records of leader epoch %s, but the metadata is at %d: this change is ignored",
                self.topic_partition, log.latest_epoch, metadata.leader_epoch,
            )  # fmt: skip
            return Transition.STALE
        transition = state.become(
            metadata, log_end_offset=log.log_end_offset, high_watermark=log.high_watermark, now_ms=self.now_ms()
        )
        if transition is Transition.STALE:
            return transition
        if transition is Transition.NEW_LEADER:
            log.assign_epoch(state.leader_epoch, log.log_end_offset)
        if state.is_leader:
            log.update_high_watermark(state.high_watermark)
        if led and not state.is_leader:
            self.refuse_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif led:
            self.committed()
            self.reconsider()
            if state.high_watermark != high_watermark:
                self.wake(0, followers_only=False)
        if state.leader_epoch != epoch or led is not state.is_leader:
            log.interrupt_appends()
        if state.leader_epoch != epoch:
            self.wake_all()
        else:
            self.changed()
        return transition

    def online_log(self) -> Log:
        if self.log is None or self.offline:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, _STORAGE_ERROR)
        return self.log

    def led_log(self, current_leader_epoch: int = -1) -> Log:
        """The log, if this broker leads and the requester's leader epoch is ours."""
        self.check_epoch(current_leader_epoch)
        if not self.state.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.online_log()

    def readable_log(self, current_leader_epoch: int) -> Log:
        """Like `led_log`, but also as follower, whose log may be read up to its high watermark."""
        self.check_epoch(current_leader_epoch)
        if self.state.leader_id == NO_LEADER:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.online_log()

    def check_epoch(self, current_leader_epoch: int) -> None:
        if current_leader_epoch not in (-1, self.state.leader_epoch):
            fenced = current_leader_epoch < self.state.leader_epoch
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH if fenced else ErrorCode.UNKNOWN_LEADER_EPOCH)

    def go_offline(self) -> None:
        self.offline = True
        self.refuse_waiting(ErrorCode.KAFKA_STORAGE_ERROR)
        self.wake_all()

    def leave(self) -> None:
        """The replica is gone. Leave all sessions: an idle one would keep it, its log and its segments alive."""
        self.refuse_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.wake_all()
        for entry in list(self.watched):
            entry.watch_replica(None)

    # -- writing --------------------------------------------------------------------------------------------------
    def append(
        self, batches: bytearray | memoryview, acks: int, origin: str, verified: Verification | None = None
    ) -> AppendInfo:
        """Append as leader. `DirectoryStalls` if the disk is too slow to wait for: then use `append_by_thread`."""
        state, log = self.state, self.log
        if log is None or self.offline or acks == -1 or state.leader_id != state.broker_id:
            log = self._log_to_lead(acks)  # checks everything
        if (log.slow_appends or log.flushed_often or log.directory.slow_until) and log.append_is_slow():
            raise DirectoryStalls
        info = log.append_as_leader(
            batches, state.leader_epoch, now_ms=self._clock.wall_ms(), origin=origin, verified=verified
        )
        self._appended(log, info)
        return info

    def append_by_thread(
        self, batches: bytearray, acks: int, origin: str, verified: Verification | None = None
    ) -> Coroutine[Any, Any, AppendInfo]:
        """Queues the append at once; `batches` belong to the log until it is done."""
        log = self._log_to_lead(acks)
        now_ms, epoch = self._clock.wall_ms(), self.state.leader_epoch
        appending = slow_append.append_as_leader(log, batches, epoch, now_ms=now_ms, origin=origin, verified=verified)

        async def append() -> AppendInfo:
            info = await appending
            assert self.log is not None  # perhaps another one: the replica may have moved meanwhile
            self._appended(self.log, info)  # the role is unchanged: a change would have interrupted the append
            return info

        return append()

    def _log_to_lead(self, acks: int) -> Log:
        state, log = self.state, self.log
        if log is None or self.offline:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, _STORAGE_ERROR)
        if state.leader_id != state.broker_id:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == -1 and len(state.isr) < state.effective_min_isr:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {sorted(state.isr)} is insufficient to satisfy the min.isr requirement "
                f"of {state.effective_min_isr} for partition {self.topic_partition}",
            )
        return log

    def _appended(self, log: Log, info: AppendInfo) -> None:
        state = self.state
        moved = state.appended(log.end_offset, self.now_ms() if state.followers else 0)
        if moved:
            log.update_high_watermark(state.high_watermark)
            if state.waiting:
                self.committed()
        if self.parked or self.watched:
            self.wake(info.size_bytes, followers_only=not moved)

    def append_is_slow(self) -> bool:
        return self.online_log().append_is_slow()

    def append_as_follower(self, batches: memoryview) -> AppendInfo:
        return self.online_log().append_as_follower(batches)

    async def append_as_follower_by_thread(self, batches: memoryview) -> AppendInfo:
        return await slow_append.append_as_follower(self.online_log(), batches)

    def followed(self, leader_high_watermark: int, leader_log_start_offset: int) -> None:
        """After a fetch as follower: take over the leader's high watermark and log start offset."""
        log = self.online_log()
        before = self.state.high_watermark
        after = self.state.follow_high_watermark(leader_high_watermark, log.log_end_offset)
        if after != before:
            log.update_high_watermark(after)
            if self.parked or self.watched:
                self.wake(0, followers_only=False)
        if leader_log_start_offset > log.log_start_offset:
            log.advance_log_start_offset(min(leader_log_start_offset, log.high_watermark))

    def truncate_to(self, offset: int) -> None:
        log = self.online_log()
        log.truncate_to(offset)
        for tell in self.truncated:
            tell(offset)
        self.state.truncated(log.log_end_offset)
        log.update_high_watermark(self.state.high_watermark)
        self.changed()

    def start_over_at(self, offset: int) -> None:
        """Discard the whole log, and start an empty one at `offset`."""
        log = self.online_log()
        log.truncate_fully_and_start_at(offset)
        for tell in self.truncated:
            tell(0)
        self.state.log_end_offset = offset
        self.state.high_watermark = offset
        log.update_high_watermark(offset)
        self.changed()

    # -- what was committed ---------------------------------------------------------------------------------------
    def high_watermark_moved(self) -> None:
        self.online_log().update_high_watermark(self.state.high_watermark)
        if self.state.waiting:
            self.committed()
        if self.parked or self.watched:
            self.wake(0, followers_only=False)

    def reconsider(self) -> None:
        """Re-examine waiting requests after something else than an append or fetch has changed: the ISR, live brokers,
        `min.insync.replicas`, the time."""
        state = self.state
        if not state.is_leader or self.offline:
            return
        if state.high_watermark < state.log_end_offset and state.advance_high_watermark(self.now_ms()):
            self.high_watermark_moved()
        if self.delete_waiters:
            self.log_start_moved()

    def committed(self) -> None:
        for waiter in self.state.take_committed():
            waiter.answer(self.state.committed(0) or ErrorCode.NONE)

    def refuse_waiting(self, error: ErrorCode) -> None:
        for waiter in self.state.waiting.take_all() + self.delete_waiters.take_all():
            waiter.answer(error)

    def log_start_moved(self) -> None:
        """Answer those DeleteRecords whose offset all replicas have reached."""
        lowest = min(self.state.lowest_log_start_offset(), self.online_log().log_start_offset)
        for waiter in self.delete_waiters.take(lowest):
            waiter.answer(ErrorCode.NONE)

    # -- waking ---------------------------------------------------------------------------------------------------
    def wake(self, new_bytes: int, *, followers_only: bool) -> None:
        """New data has come (for followers), or the high watermark has moved (for consumers as well)."""
        for fetch in self.parked:
            self._wake(fetch, new_bytes, followers_only)
        told = []
        for entry in self.watched:
            watch = entry.watch
            if watch is None:
                continue
            if watch.parked is None and entry in watch.due:
                told.append(entry)
                continue
            if followers_only and not watch.of_follower:
                continue
            watch.mark(entry)
            if watch.parked is not None:
                self._wake(watch.parked, new_bytes, followers_only)
        for entry in told:  # marked as due already: no more events needed until its session asks, if ever
            entry.watch_replica(None)

    def _wake(self, fetch: ParkedFetch, new_bytes: int, followers_only: bool) -> None:
        if followers_only and not fetch.from_follower:
            return
        if fetch.from_follower and not new_bytes:
            return  # a high watermark alone travels with the next answer
        if fetch.missing_bytes > 0:
            # An append may count twice for a consumer, by its bytes and by its commit: that only makes it look earlier
            # than necessary.
            fetch.missing_bytes -= new_bytes or fetch.missing_bytes
        if fetch.missing_bytes <= 0:
            self._wakeups.wake(fetch)

    def wake_all(self) -> None:
        for fetch in self.parked:
            self._wakeups.wake(fetch)
        self.changed()
        for entry in self.watched:
            if entry.watch is not None and entry.watch.parked is not None:
                self._wakeups.wake(entry.watch.parked)

    def changed(self) -> None:
        """Make sessions look at this replica with their next response, without waking them."""
        for entry in self.watched:
            if entry.watch is not None:
                entry.watch.mark(entry)
