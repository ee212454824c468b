"""Answers fetches, as leader or (to consumers) as follower: reads within limits, records followers' offsets, parks
fetches that have to wait.

A fetch that finds enough is answered synchronously. A future is needed only if it has to wait, or names more than
`MANY` partitions: those are read in pieces, yielding to the loop. The steps for one partition: is it here, does the
epoch match, do the logs agree, read, record the follower's offset, move the high watermark, answer.
Whoever gets a `FetchResult` with a slice must `release` the slice. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ballast_broker.replication.cold import ColdLookups
from ballast_broker.replication.nearest import NOBODY
from ballast_broker.replication.waiting import Deadlines, ParkedFetch, Wakeups
from ballast_broker.seams import NotInMemory
from ballast_broker.storage.lookup import looking
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import ZERO_UUID, TopicPartition

if TYPE_CHECKING:
    from ballast_broker.replication.nearest import Nearest
    from ballast_broker.replication.quotas import LeaderThrottle
    from ballast_broker.replication.replica import Replica
    from ballast_broker.replication.watching import Watch
    from ballast_broker.storage.log import Log
    from ballast_broker.storage.slices import LogSlice
    from ballast_broker.storage.transactions import EndedTransaction

logger = logging.getLogger(__name__)

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
CONSUMER: Final = -1
UNKNOWN_OFFSET: Final = -1
MANY: Final = 256  # up to so many partitions are read without yielding: two milliseconds
PIECE: Final = 64
MOST_SLICES: Final = 512  # in one response: each keeps a file open and needs its own system calls to send
EPOCH_ERRORS: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


@dataclass(slots=True, eq=False)
class FetchEntry:
    topic_partition: TopicPartition
    topic_id: UUID
    fetch_offset: int
    last_fetched_epoch: int = -1
    current_leader_epoch: int = -1
    log_start_offset: int = -1
    max_bytes: int = 1_048_576


@dataclass(slots=True)
class FetchParams:
    """`replica_id` is -1 for consumers. Followers see up to the log end offset, consumers up to the high watermark.

    `any_replica`: the consumer may fetch from followers, and be redirected to one in its `rack`.
    """

    replica_id: int = CONSUMER
    replica_epoch: int = -1
    isolation: int = READ_UNCOMMITTED
    min_bytes: int = 1
    max_wait_ms: int = 0
    max_bytes: int = 57_671_680
    any_replica: bool = False
    rack: str = ""


@dataclass(slots=True)
class FetchResult:
    topic_partition: TopicPartition
    error: ErrorCode
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    slice: LogSlice | None = None
    diverging_epoch: tuple[int, int] | None = None  # (epoch, end offset)
    preferred_replica: int = -1
    aborted: Sequence[tuple[int, int]] = ()  # (producer id, first offset) of aborted transactions
    current_leader: tuple[int, int] | None = None  # (leader id, leader epoch), if the client has stale metadata
    entry: FetchEntry | None = None  # the request's entry that this answers
    cold: bool = False  # there is data, which is being read from the disk

    @property
    def is_plain(self) -> bool:
        """Whether there are only offsets and data to tell."""
        return (
            self.error is ErrorCode.NONE
            and self.diverging_epoch is None
            and self.current_leader is None
            and self.preferred_replica < 0
            and not self.aborted
        )

    def release(self) -> None:
        if self.slice is not None:
            self.slice.release()
            self.slice = None


class Reader:
    def __init__(
        self,
        replicas: Mapping[TopicPartition, Replica],
        deadlines: Deadlines,
        throttle: LeaderThrottle,
        nearest: Nearest,
        propose_expand: Callable[[Replica, int], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._replicas = replicas
        self._deadlines = deadlines
        self._throttle = throttle
        self._nearest = nearest
        self._propose_expand = propose_expand
        self._now_ms = now_ms
        self.cold = ColdLookups()
        self.wakeups = Wakeups(self._look_again)
        self._parked_followers: dict[int, dict[ParkedFetch, None]] = {}

    def fetch(
        self, params: FetchParams, entries: list[FetchEntry]
    ) -> list[FetchResult] | asyncio.Future[list[FetchResult]]:
        if len(entries) > MANY:
            return self._read_many(params, entries, None)
        results, size, urgent = self._read_all(params, entries, first=True)
        if urgent or size >= params.min_bytes or params.max_wait_ms <= 0 or not entries:
            return results
        give_back(results)
        parked = ParkedFetch(params, entries, self._deadlines, self._finish, params.min_bytes - size)
        return self._park(parked, self._replicas_of(entries))

    def _replicas_of(self, entries: list[FetchEntry]) -> list[Replica]:
        return [replica for entry in entries if (replica := self._replicas.get(entry.topic_partition))]

    def fetch_watched(self, params: FetchParams, watch: Watch) -> list[FetchResult] | asyncio.Future[list[FetchResult]]:
        """Fetch for a session: of all its partitions read those that are due."""
        watch.asked(params, self._now_ms())
        if len(watch.due) > MANY:
            return self._read_many(params, [], watch)
        results, size, urgent = self._look(params, watch, first=True)
        if urgent or size >= params.min_bytes or params.max_wait_ms <= 0:
            return results
        give_back(results, watch)
        parked = ParkedFetch(params, [], self._deadlines, self._finish, params.min_bytes - size, watch)
        return self._park(parked, [])

    def _read_many(
        self, params: FetchParams, entries: list[FetchEntry], watch: Watch | None
    ) -> asyncio.Future[list[FetchResult]]:
        """The fetch is parked at its partitions before it is read, so that no event between two pieces is missed."""
        parked = ParkedFetch(params, entries, self._deadlines, self._finish, params.min_bytes, watch)
        parked.timed_out = params.max_wait_ms <= 0
        self._park(parked, self._replicas_of(entries))
        self._begin_to_read(parked, first=True)
        return parked.future

    def _begin_to_read(self, parked: ParkedFetch, *, first: bool) -> None:
        if parked.being_read:
            parked.woken = True
            return
        parked.being_read = True
        asyncio.get_running_loop().create_task(self._read_in_turns(parked, first))

    async def _read_in_turns(self, parked: ParkedFetch, first: bool) -> None:
        """Read until there is enough, the time is up, or nothing has happened since the last read."""
        params, future = parked.params, parked.future
        try:
            while not future.done():
                parked.woken, parked.missing_bytes = False, 0
                results, size, urgent = await self._read_pieces(parked, first)
                if future.done():  # the client is gone
                    give_back(results, parked.watch)
                elif urgent or size >= params.min_bytes or parked.timed_out:
                    future.set_result(results)
                else:
                    parked.missing_bytes = params.min_bytes - size
                    give_back(results, parked.watch)
                    if not parked.woken:
                        if first and parked.from_follower:
                            parked.wait(self._delay_ms(params))
                        break
                first = False
        except Exception as error:
            logger.exception("a fetch of many partitions could not be answered")
            if not future.done():
                future.set_exception(error)
        parked.being_read = False

    async def _read_pieces(self, parked: ParkedFetch, first: bool) -> tuple[list[FetchResult], int, bool]:
        params, watch = parked.params, parked.watch
        entries: list[FetchEntry] = parked.entries if watch is None else list(watch.due)
        results: list[FetchResult] = []
        size, held, left, urgent = 0, 0, params.max_bytes, False
        try:
            async for start in InTurns(range(0, len(entries), PIECE)):
                if parked.future.done():
                    break
                piece = entries[start : start + PIECE]
                if watch is not None:
                    piece = watch.to_read(piece, full=left <= 0 < size)
                read, size, held, left, now = self._read_some(params, piece, size, held, left, first=first)
                results += read
                urgent = urgent or now
                if watch is not None:
                    self._note(params, watch, read)
        except BaseException:
            give_back(results, watch)
            raise
        return results, size if urgent else _counted(params, results, size), urgent

    def _look(self, params: FetchParams, watch: Watch, *, first: bool) -> tuple[list[FetchResult], int, bool]:
        found = self._read_all(params, list(watch.due), first=first)
        self._note(params, watch, found[0])
        return found

    def _note(self, params: FetchParams, watch: Watch, results: list[FetchResult]) -> None:
        for result in results:
            watch.looked(result, params, self._replicas.get(result.topic_partition))

    def _park(self, parked: ParkedFetch, replicas: list[Replica]) -> asyncio.Future[list[FetchResult]]:
        params = parked.params
        parked.park(self._delay_ms(params), replicas)
        if params.replica_id >= 0:
            mine = self._parked_followers.setdefault(params.replica_id, {})
            mine[parked] = None
            parked.future.add_done_callback(lambda _: mine.pop(parked, None))
        return parked.future

    def _delay_ms(self, params: FetchParams) -> float:
        """A fetch that the throttle left without data waits only until the throttle allows more."""
        if params.replica_id < 0:
            return float(params.max_wait_ms)
        return min(float(params.max_wait_ms), self._throttle.take_wait_ms())

    def answer_follower(self, broker_id: int) -> None:
        """Answer its waiting fetches now, with what there is."""
        for parked in list(self._parked_followers.get(broker_id, ())):
            parked.expire()

    def _finish(self, parked: ParkedFetch) -> None:
        """The wait time is over: answer with what there is."""
        if parked.future.done():
            return
        if self._is_of_many(parked):
            parked.timed_out = True
            self._begin_to_read(parked, first=False)
        else:
            parked.future.set_result(self._read_again(parked)[0])

    @staticmethod
    def _is_of_many(parked: ParkedFetch) -> bool:
        return parked.being_read or len(parked.entries if parked.watch is None else parked.watch.due) > MANY

    def _read_again(self, parked: ParkedFetch) -> tuple[list[FetchResult], int, bool]:
        if parked.watch is not None:
            return self._look(parked.params, parked.watch, first=False)
        return self._read_all(parked.params, parked.entries, first=False)

    def _look_again(self, parked: ParkedFetch) -> None:
        if self._is_of_many(parked):
            self._begin_to_read(parked, first=False)
            return
        results, size, urgent = self._read_again(parked)
        if urgent or size >= parked.params.min_bytes:
            parked.future.set_result(results)
            return
        parked.missing_bytes = parked.params.min_bytes - size
        give_back(results, parked.watch)

    def _read_all(
        self, params: FetchParams, entries: list[FetchEntry], *, first: bool
    ) -> tuple[list[FetchResult], int, bool]:
        """The results, the bytes that count towards `min_bytes`, and whether to answer at once."""
        results, size, _, _, urgent = self._read_some(params, entries, 0, 0, params.max_bytes, first=first)
        return results, size if urgent else _counted(params, results, size), urgent

    def _read_some(
        self, params: FetchParams, entries: list[FetchEntry], size: int, held: int, left: int, *, first: bool
    ) -> tuple[list[FetchResult], int, int, int, bool]:
        """Read these for a response that already has `size` bytes in `held` files, and room for `left` more bytes.
        Returns the results, the three updated numbers, and whether to answer at once."""
        results = []
        urgent = False
        for entry in entries:
            replica = self._replicas.get(entry.topic_partition)
            try:
                if replica is None:
                    raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                result = self._read(replica, params, entry, left, size == 0, first)
            except ApiError as error:
                result = _refused(entry, error, replica)
            result.entry = entry
            if result.slice is not None:
                size += result.slice.size
                held += 1
            left = max(0, params.max_bytes - size) if held < MOST_SLICES else 0
            if (
                result.error is not ErrorCode.NONE
                or result.diverging_epoch is not None
                or result.preferred_replica >= 0
            ):
                urgent = True
            results.append(result)
        return results, size, held, left, urgent

    def _read(
        self, replica: Replica, params: FetchParams, entry: FetchEntry, limit: int, min_one: bool, first: bool
    ) -> FetchResult:
        asked = entry.topic_id
        if asked is not ZERO_UUID and asked is not replica.topic_id and asked not in (replica.topic_id, ZERO_UUID):
            raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID)
        epoch = max(entry.current_leader_epoch, -1)  # any negative one means unknown
        log = replica.readable_log(epoch) if params.any_replica else replica.led_log(epoch)
        state = replica.state
        follower = params.replica_id
        if follower >= 0:
            known = state.followers.get(follower)
            if known is None:
                text = f"Broker {follower} holds no replica of this partition."
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
            if known.has_outlived(params.replica_epoch):
                text = f"Broker {follower} has registered again since epoch {params.replica_epoch}."
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        if entry.last_fetched_epoch >= 0:
            diverging = diverging_epoch(log, entry.last_fetched_epoch, entry.fetch_offset)
            if diverging is not None:
                return FetchResult(
                    entry.topic_partition, ErrorCode.NONE, state.high_watermark, log.last_stable_offset,
                    log.start_offset, diverging_epoch=diverging,
                )  # fmt: skip
        if params.rack and state.is_leader:
            nearest = self._nearest.choose(state, params.rack, entry.fetch_offset)
            if nearest != NOBODY:
                return FetchResult(
                    entry.topic_partition, ErrorCode.NONE, state.high_watermark, log.last_stable_offset,
                    log.start_offset, preferred_replica=nearest,
                )  # fmt: skip
        cold = False
        try:
            found, aborted = self._find(replica, log, params, entry, limit, min_one)
        except NotInMemory as lacking:
            cold = self.cold.lacks(replica, log, lacking)
            if cold:
                found, aborted = None, []
            else:
                found, aborted = self._find(replica, log, params, entry, limit, min_one, waiting=True)
        if follower >= 0 and first:
            self._note_follower(replica, params, entry)
        result = FetchResult(
            entry.topic_partition, ErrorCode.NONE, state.high_watermark,
            log.last_stable_offset if log.producers_are_loaded else UNKNOWN_OFFSET, log.start_offset, found,
        )  # fmt: skip
        result.cold = cold
        if aborted:
            result.aborted = [(each.producer_id, each.first_offset) for each in aborted]
        return result

    def _find(
        self, replica: Replica, log: Log, params: FetchParams, entry: FetchEntry, limit: int, min_one: bool,
        *, waiting: bool = False,
    ) -> tuple[LogSlice | None, list[EndedTransaction]]:  # fmt: skip
        """The data to send, and the aborted transactions in it."""
        if not log.producers_are_loaded:  # needed for the last stable offset
            with looking(log, waiting):
                log.load_producers()
        found = self._slice(replica, log, params, entry, limit, min_one, waiting)
        if found is None or params.isolation != READ_COMMITTED or params.replica_id >= 0:
            return found, []
        try:
            with looking(log, waiting):
                return found, log.aborted_transactions(entry.fetch_offset, found.next_offset)
        except BaseException:
            found.release()
            raise

    def _slice(
        self, replica: Replica, log: Log, params: FetchParams, entry: FetchEntry, limit: int, min_one: bool,
        waiting: bool,
    ) -> LogSlice | None:  # fmt: skip
        state = replica.state
        offset = entry.fetch_offset
        if params.replica_id >= 0:
            upper = log.end_offset
        else:
            upper = log.last_stable_offset if params.isolation == READ_COMMITTED else state.high_watermark
        if not log.start_offset <= offset <= log.end_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        max_bytes = entry.max_bytes if entry.max_bytes < limit else limit
        if offset >= upper:
            return None
        if max_bytes < 0:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)  # as Kafka answers it
        if max_bytes == 0 and not min_one:
            return None
        if params.replica_id >= 0 and replica.leader_throttled:
            if self._throttle.leaves_out(replica, params.replica_id):
                return None
            max_bytes = self._throttle.piece(replica, params.replica_id, max_bytes)
        found = log.read(offset, max_bytes, upper_offset=upper, min_one=min_one, waiting=waiting)
        if not found.size:
            found.release()
            return None
        if params.replica_id >= 0 and replica.leader_throttled:
            self._throttle.record(replica, params.replica_id, found.size)
        return found

    def _note_follower(self, replica: Replica, params: FetchParams, entry: FetchEntry) -> None:
        state, broker_id = replica.state, params.replica_id
        follower = state.followers[broker_id]
        moved_start = entry.log_start_offset != follower.log_start_offset
        if state.follower_fetched(
            broker_id, params.replica_epoch, entry.fetch_offset, entry.log_start_offset, replica.now_ms()
        ):
            replica.high_watermark_moved()
        if broker_id not in state.isr:
            self._propose_expand(replica, broker_id)
        if moved_start and replica.delete_waiters:
            replica.log_start_moved()


def _counted(params: FetchParams, results: list[FetchResult], size: int) -> int:
    if size >= params.min_bytes or params.replica_id >= 0:
        return size
    return _bytes_with_what_was_cut_off(params, results)


def _bytes_with_what_was_cut_off(params: FetchParams, results: list[FetchResult]) -> int:
    """Counts as Kafka does, which fills limits to the byte. Here only whole batches are sent: count what a limit, or
    the end of a file, leaves for the next fetch, so that nobody waits for it."""
    counted, left = 0, params.max_bytes
    for result in results:
        entry, found = result.entry, result.slice
        assert entry is not None
        size, end = (0, entry.fetch_offset) if found is None else (found.size, found.next_offset)
        upper = result.last_stable_offset if params.isolation == READ_COMMITTED else result.high_watermark
        counted += max(size, min(entry.max_bytes, left)) if end < upper and not result.cold else size
        left = max(0, left - size)
    return counted


def give_back(results: list[FetchResult], watch: Watch | None = None) -> None:
    """Release results that were read but will not be sent."""
    for result in results:
        if watch is not None:
            watch.not_told(result)
        result.release()


def diverging_epoch(log: Log, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
    """Where the follower's log diverges from ours, if it does: the largest epoch up to its last, and that one's end."""
    if last_fetched_epoch == log.latest_epoch and fetch_offset <= log.log_end_offset:
        return None
    epoch, end_offset = log.epoch_end_offset(last_fetched_epoch)
    if end_offset < 0:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return (epoch, end_offset) if epoch < last_fetched_epoch or end_offset < fetch_offset else None


def _refused(entry: FetchEntry, error: ApiError, replica: Replica | None) -> FetchResult:
    result = FetchResult(entry.topic_partition, error.code)
    if replica is not None and error.code in EPOCH_ERRORS:
        result.current_leader = (replica.state.leader_id, replica.state.leader_epoch)
    return result
