"""Fetches from leaders as a follower: one connection with one request in flight per (leader, fetcher id), shared by its
partitions.

Each group is one task. A response is used only for partitions that are still followed with the offset and epoch that
were requested. A partition that fails is set aside for a while and never stops the others. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ballast_broker.replication.following import Asked, Backoff, FetchSession, grouped, truncation_offset
from ballast_broker.replication.offsets import EARLIEST, LATEST
from ballast_broker.replication.quotas import FETCH_PIECE_S, ByteRate
from ballast_broker.replication.replica import Replica
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.fast.following import VERSION, AskedPartition, FetchRequest
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

if TYPE_CHECKING:
    from ballast_broker.replication.settings import ReplicationSettings
    from ballast_broker.seams import Channel

log = logging.getLogger(__name__)

LIST_OFFSETS_VERSION = 6
PATIENCE_S = 0.5  # how long to wait for a stalling disk before fetching the others again
SESSION_LOST = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)  # fmt: skip
# Transient: the leader or this broker has not seen the newest metadata yet. Not logged as failures.
PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
Key = tuple[UUID, int]


@dataclass(slots=True)
class Followed:
    """One partition in a group. Each leader epoch gets a new object, so that late responses are recognised."""

    replica: Replica
    leader_epoch: int
    lag: int = -1
    resume_at_s: float = 0.0

    @property
    def throttled(self) -> bool:
        """Never for a follower without lag: it would drop out of the ISR if it had to wait."""
        return self.replica.follower_throttled and self.lag != 0

    def asked(self) -> Asked:
        found = self.replica.online_log()
        epoch = found.latest_epoch
        return Asked(found.log_end_offset, -1 if epoch is None else epoch, self.leader_epoch, found.log_start_offset)


@dataclass(slots=True)
class FetchTotals:
    """Error counters over all groups of this broker."""

    failed: int = 0
    truncated_records: int = 0


class FetcherGroup:
    def __init__(
        self,
        name: str,
        connect: Callable[[], Any],
        settings: ReplicationSettings,
        broker_epoch: Callable[[], int],
        rate: ByteRate,
        totals: FetchTotals,
    ) -> None:
        self.name = name
        self.partitions: dict[Key, Followed] = {}
        self._connect = connect
        self._settings = settings
        self._broker_epoch = broker_epoch
        self._rate = rate
        self._totals = totals
        self._session: FetchSession[Key] = FetchSession()
        self._channel: Channel | None = None
        self._changed = asyncio.Event()
        self._aside: set[Key] = set()
        self._throttled_out: set[Key] = set()
        self._writing: dict[Key, asyncio.Task[None]] = {}  # not fetched until their last records are written
        self._backoff = Backoff(settings.replica_fetch_backoff_ms)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"fetcher-{name}")

    # -- what to follow ---------------------------------------------------------------------------------------------
    def follow(self, key: Key, followed: Followed) -> None:
        self.partitions[key] = followed
        self._give_up_writing(key)
        self._aside.discard(key)
        self._throttled_out.discard(key)
        self._backoff.worked(key)
        followed.replica.tell_log_start = partial(self._tell_log_start, key, followed)
        self._want(key, followed)
        self._changed.set()

    def unfollow(self, key: Key) -> None:
        followed = self.partitions.pop(key, None)
        if followed is not None:
            followed.replica.tell_log_start = None
            self._give_up_writing(key)
            self._aside.discard(key)
            self._throttled_out.discard(key)
            self._backoff.worked(key)
            self._session.want(key, None)

    def _give_up_writing(self, key: Key) -> None:
        task = self._writing.pop(key, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        tasks = [self._task, *self._writing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def disconnect(self) -> None:
        """The leader's address changed: the next turn reconnects."""
        if self._channel is not None:
            self._channel.close()

    def _want(self, key: Key, followed: Followed) -> None:
        try:
            self._session.want(key, followed.asked())
        except ApiError as error:
            log.error("%s is not followed any more: %s", followed.replica.topic_partition, error)
            self._totals.failed += 1
            self.partitions.pop(key, None)
            self._session.want(key, None)

    def _tell_log_start(self, key: Key, followed: Followed) -> None:
        """With the next request, though there may be no answer for this partition for a long time."""
        left_out = key in self._aside or key in self._throttled_out or key in self._writing
        if self.partitions.get(key) is followed and not left_out:
            self._want(key, followed)

    # -- the turns ----------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        failures = Backoff(self._settings.replica_fetch_backoff_ms)
        try:
            while True:
                try:
                    await self._turn()
                    failures.worked(None)
                except (OSError, EOFError) as error:  # TimeoutError and ConnectionError among them
                    log.info("fetcher %s: %s", self.name, error or type(error).__name__)
                    self._drop_channel()
                    await asyncio.sleep(failures.failed(None) / 1000)
                except Exception:
                    # A bug must not end replication silently: log it, and start over with a new session.
                    log.exception("fetcher %s failed", self.name)
                    self._drop_channel()
                    await asyncio.sleep(failures.failed(None) / 1000)
        finally:
            self._drop_channel()

    def _drop_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._session.reset()

    async def _turn(self) -> None:
        self._changed.clear()
        self._take_back()
        self._leave_out_throttled()
        if len(self.partitions) == len(self._aside) + len(self._throttled_out) + len(self._writing):
            await self._pause()
            return
        if self._channel is None or self._channel.closed:
            self._drop_channel()
            self._channel = await self._connect()
        channel = self._channel
        request = self._request()
        asked = self._session.sent
        async with asyncio.timeout(self._settings.replica_socket_timeout_ms / 1000):
            response = await channel.call(request, VERSION)
        if response.error_code:
            error = ErrorCode(response.error_code)
            if error not in SESSION_LOST:
                raise ConnectionError(f"fetch refused: {error.name}")
            self._session.reset()
            return
        self._session.answered(response.session_id)
        await self._take_in(response, asked)

    def _take_back(self) -> None:
        """Fetch again those partitions whose backoff is over."""
        if not self._aside:
            return
        now_s = asyncio.get_running_loop().time()
        for key in [key for key in self._aside if self.partitions[key].resume_at_s <= now_s]:
            self._aside.discard(key)
            self._want(key, self.partitions[key])

    def _leave_out_throttled(self) -> None:
        if not self._rate.limited and not self._throttled_out:
            return
        over = self._rate.exceeded()
        for key, followed in list(self.partitions.items()):
            if key in self._aside or key in self._writing:
                continue
            if over and followed.throttled:
                self._throttled_out.add(key)
                self._session.want(key, None)
            elif key in self._throttled_out:
                self._throttled_out.discard(key)
                self._want(key, followed)

    async def _pause(self) -> None:
        """No partition may be fetched now: wait until something changes, or a backoff ends."""
        now_s = asyncio.get_running_loop().time()
        waits = [self.partitions[key].resume_at_s - now_s for key in self._aside]
        if self._throttled_out:
            waits.append(self._rate.wait_s())
        timeout = max(0.001, min(min(waits), 1.0)) if waits else None
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return

    def _request(self) -> FetchRequest:
        changed, forgotten = self._session.next()
        response_max_bytes = self._settings.replica_fetch_response_max_bytes
        if self._rate.limited and any(followed.throttled for followed in self.partitions.values()):
            response_max_bytes = self._rate.largest_read(response_max_bytes)
        topics = [
            (
                topic_id,
                [
                    AskedPartition(
                        partition,
                        asked.current_leader_epoch,
                        asked.fetch_offset,
                        asked.last_fetched_epoch,
                        asked.log_start_offset,
                        self._max_bytes((topic_id, partition)),
                    )
                    for partition, asked in partitions
                ],
            )
            for topic_id, partitions in grouped(changed).items()
        ]
        gone: dict[UUID, list[int]] = {}
        for topic_id, partition in forgotten:
            gone.setdefault(topic_id, []).append(partition)
        return FetchRequest(
            replica_id=self._settings.broker_id,
            replica_epoch=self._broker_epoch(),
            max_wait_ms=self._max_wait_ms(),
            min_bytes=self._settings.replica_fetch_min_bytes,
            max_bytes=response_max_bytes,
            session_id=self._session.session_id,
            session_epoch=self._session.epoch,
            topics=topics,
            forgotten=list(gone.items()),
        )

    def _max_bytes(self, key: Key) -> int:
        size = self._settings.replica_fetch_max_bytes
        followed = self.partitions.get(key)
        throttled = followed is not None and followed.throttled
        return self._rate.piece(size, FETCH_PIECE_S) if throttled else size

    def _max_wait_ms(self) -> int:
        longest = self._settings.replica_fetch_wait_max_ms
        # Partitions left out by the throttle must not have to wait for this long poll.
        return int(min(longest, self._rate.wait_s() * 1000 + 1)) if self._throttled_out else longest

    # -- answers ------------------------------------------------------------------------------------------------------
    async def _take_in(self, response: Any, asked: dict[Key, Asked]) -> None:
        """Partitions on stalling disks are written concurrently; a slow one does not hold up the others."""
        slow: list[asyncio.Task[None]] = []
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                followed = self.partitions.get(key)
                sent = asked.get(key)
                if followed is None or sent is None or key in self._aside or key in self._writing:
                    continue
                try:
                    if not followed.asked().has_answer_of(sent):  # truncated or with another leader since
                        self._want(key, followed)
                    elif data.records and followed.replica.append_is_slow():
                        slow.append(self._begin_to_write(key, followed, data))
                    else:
                        await self._take_in_partition(key, followed, data)
                except ApiError as error:
                    self._set_aside(key, followed, error.code, error.message)
        if slow:
            await asyncio.wait(slow, timeout=PATIENCE_S)

    def _begin_to_write(self, key: Key, followed: Followed, data: Any) -> asyncio.Task[None]:
        async def write() -> None:
            try:
                await self._take_in_partition(key, followed, data)
            except ApiError as error:
                self._set_aside(key, followed, error.code, error.message)
            except Exception:
                log.exception("fetcher %s failed to write to %s", self.name, followed.replica.topic_partition)
                self._set_aside(key, followed, ErrorCode.UNKNOWN_SERVER_ERROR, None)
            finally:
                if self._writing.get(key) is asyncio.current_task():
                    del self._writing[key]
                self._changed.set()

        self._session.want(key, None)
        task = self._writing[key] = asyncio.get_running_loop().create_task(write())
        return task

    async def _take_in_partition(self, key: Key, followed: Followed, data: Any) -> None:
        error = ErrorCode(data.error_code)
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._begin_again(followed)
        elif error is not ErrorCode.NONE:
            self._set_aside(key, followed, error, None)
            return
        elif data.diverging_epoch is not None and data.diverging_epoch.epoch >= 0:
            self._cut(followed, data.diverging_epoch.epoch, data.diverging_epoch.end_offset, data.log_start_offset)
        else:
            await self._append(followed, data)
        self._backoff.worked(key)
        if self.partitions.get(key) is followed:
            self._want(key, followed)

    async def _append(self, followed: Followed, data: Any) -> None:
        replica = followed.replica
        records, end = data.records, replica.state.log_end_offset
        if records and data.log_start_offset >= end > int.from_bytes(records[:8]):
            # The leader deleted everything that is here, perhaps up to an offset inside a batch that straddles our end.
            log.info(
                "%s: the log of the leader begins at %d: this log begins again there", replica.topic_partition, end
            )
            replica.start_over_at(end)
        if records:
            if replica.append_is_slow():
                await replica.append_as_follower_by_thread(memoryview(records))
            else:
                replica.append_as_follower(memoryview(records))
            if followed.throttled:
                self._rate.record(len(records))
            elif replica.follower_throttled:
                self._rate.record_exempt(len(records))
        replica.followed(data.high_watermark, data.log_start_offset)
        followed.lag = max(0, data.high_watermark - replica.state.log_end_offset)

    def _cut(self, followed: Followed, epoch: int, end_offset: int, leader_start: int) -> None:
        replica = followed.replica
        found = replica.online_log()
        offset = truncation_offset(found, epoch, end_offset)
        lost = found.log_end_offset - offset
        committed = replica.state.high_watermark > offset
        level = logging.ERROR if committed else logging.WARNING if lost else logging.INFO
        log.log(
            level,
            "%s: %d records from offset %d on are not in the log of the leader (epoch %d ends there at %d): removed%s",
            replica.topic_partition, lost, offset, epoch, end_offset,
            f"; some were below the high watermark {replica.state.high_watermark}" if committed else "",
        )  # fmt: skip
        self._totals.truncated_records += lost
        if leader_start >= offset:
            # The leader deleted all that would be left, and forgot of which epochs it was: perhaps of other ones than
            # here. Nobody may see that here where a crash loses the log start offset.
            log.info("%s: the log of the leader begins at %d: this log begins again there",
                     replica.topic_partition, leader_start)  # fmt: skip
            replica.start_over_at(leader_start)
        else:
            replica.truncate_to(offset)

    async def _begin_again(self, followed: Followed) -> None:
        """Our log end is outside the leader's log: truncate to its end, or start over at its start (REP-07)."""
        replica = followed.replica
        sent = followed.asked()
        leader_end = await self._leader_offset(followed, LATEST)
        leader_start = leader_end if leader_end < sent.fetch_offset else await self._leader_offset(followed, EARLIEST)
        if followed.asked() != sent or self.partitions.get(self._key(replica)) is not followed:
            return
        if leader_end < sent.fetch_offset:
            log.warning("%s: the log of the leader ends at %d, this one at %d: the rest is removed",
                        replica.topic_partition, leader_end, sent.fetch_offset)  # fmt: skip
            self._totals.truncated_records += sent.fetch_offset - leader_end
            replica.truncate_to(leader_end)
        elif leader_start > sent.fetch_offset:
            log.warning("%s: the log of the leader begins at %d, this one ends at %d: this log begins again there",
                        replica.topic_partition, leader_start, sent.fetch_offset)  # fmt: skip
            replica.start_over_at(leader_start)

    @staticmethod
    def _key(replica: Replica) -> Key:
        return (replica.topic_id, replica.topic_partition.partition)

    async def _leader_offset(self, followed: Followed, timestamp: int) -> int:
        request = message("ListOffsetsRequest")
        topic_partition: TopicPartition = followed.replica.topic_partition
        partition = request.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=topic_partition.partition,
            current_leader_epoch=followed.leader_epoch,
            timestamp=timestamp,
        )
        topic = request.ListOffsetsTopic(name=topic_partition.topic, partitions=[partition])
        assert self._channel is not None
        async with asyncio.timeout(self._settings.replica_socket_timeout_ms / 1000):
            response = await self._channel.call(
                request(replica_id=self._settings.broker_id, isolation_level=0, topics=[topic]), LIST_OFFSETS_VERSION
            )
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code))
        return int(answer.offset)

    def _set_aside(self, key: Key, followed: Followed, error: ErrorCode, reason: str | None) -> None:
        if self.partitions.get(key) is not followed:
            return
        if followed.replica.offline:
            self.unfollow(key)
            return
        wait_ms = self._backoff.failed(key)
        if error not in PASSING:
            self._totals.failed += 1
            log.warning("%s: fetch failed, again in %d ms: %s %s", followed.replica.topic_partition, wait_ms,
                        error.name, reason or "")  # fmt: skip
        followed.resume_at_s = asyncio.get_running_loop().time() + wait_ms / 1000
        self._aside.add(key)
        self._session.want(key, None)
