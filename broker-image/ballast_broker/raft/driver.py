"""Gives the Raft core time, network and disk. All of it runs on the loop; only the flush runs in a thread.

The driver carries out the core's effects in order, and calls the core back when something was flushed, answered or
is due. A stall of the loop is not taken for a dead peer: a timer that fires late first gives everybody that much
more time, a bounded number of times in a row.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

from ballast_broker.raft import wire
from ballast_broker.raft.control_records import leader_change_batch
from ballast_broker.raft.core import RaftCore
from ballast_broker.raft.describe import describe_quorum
from ballast_broker.raft.links import PeerLink
from ballast_broker.raft.messages import (
    NOBODY,
    AnswerFetch,
    AppendFetched,
    AppendLeaderChange,
    Effect,
    Fetch,
    FetchReply,
    HighWatermark,
    LeaderChanged,
    LoadSnapshot,
    Persist,
    Request,
    Send,
    SnapshotId,
    Truncate,
)
from ballast_broker.raft.store import MetadataStore
from ballast_broker.raft.terms import DEFAULT_TIMEOUTS, Persisted, Timeouts
from ballast_broker.seams import Clock, Network, Random, Threads
from ballast_wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

STALL_S = 0.1
MAX_FORGIVEN_STALLS = 3
REQUEST_TIMEOUT_S = 2.0
APPLY_BYTES = 32 * 1024
RESIGN_WAIT_S = 0.3


class CommitListener(Protocol):
    """Who lives on the log: called on the loop, in order."""

    def committed(self, batches: bytes) -> None:
        """Whole batches that are committed now; each is handed over once."""

    def leader_changed(self, leader: int, epoch: int) -> None: ...

    async def load_snapshot(self, snapshot: SnapshotId) -> None:
        """Everything begins anew from this snapshot; commits go on at its offset."""

    def failed(self, error: Exception) -> None:
        """The log cannot go on (its disk failed, or it disagrees with itself): the process has to stop."""


class RaftDriver:
    def __init__(
        self,
        *,
        node_id: int,
        quorum: wire.Quorum,
        store: MetadataStore,
        listener: CommitListener,
        network: Network,
        clock: Clock,
        threads: Threads,
        random: Random,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self.node_id = node_id
        self.quorum = quorum
        self.store = store
        self._listener = listener
        self._clock = clock
        self._threads = threads
        self.core = RaftCore(node_id, quorum.endpoints, store.load_persisted(), store, random, timeouts)
        self._fetch_links = {
            peer: PeerLink(network, endpoint, REQUEST_TIMEOUT_S)
            for peer, endpoint in quorum.endpoints.items()
            if peer != node_id
        }
        self._control_links = {
            peer: PeerLink(network, endpoint, REQUEST_TIMEOUT_S)
            for peer, endpoint in quorum.endpoints.items()
            if peer != node_id
        }
        self._sends: dict[tuple[int, type], asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetches: dict[int, asyncio.Future[tuple[FetchReply, bytes]]] = {}
        self._next_token = 0
        self._appends: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._applied = 0
        self._applying = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = float("inf")
        self._stalls = 0
        self._in_run = False
        self._flush_wanted = asyncio.Event()
        self._generation = 0
        self._stopped = False

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Reads the latest snapshot, then takes part. A quorum of one leads when the first flush is through."""
        snapshot = self.store.latest_snapshot
        if snapshot is not None:
            await self._listener.load_snapshot(snapshot)
            self._applied = snapshot.offset
        await self._threads.run(self.store.log.flush)
        self._spawn(self._flush_loop())
        self.core.start(self._now())
        self._run()

    async def stop(self) -> None:
        """Hands over if it leads, then ends everything."""
        if self.core.is_leader and len(self.core.voters) > 1:
            self.core.resign(self._now())
            self._run()
            sends = [task for task in self._sends.values() if not task.done()]
            if sends:
                await asyncio.wait(sends, timeout=RESIGN_WAIT_S)
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        ending = [*self._sends.values(), *self._tasks]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for link in (*self._fetch_links.values(), *self._control_links.values()):
            link.close()
        self._fail_appends()
        for waiting in self._fetches.values():
            waiting.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            error = task.exception()
            if isinstance(error, Exception):
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        logger.error("the metadata log cannot go on: %s", error, exc_info=error)
        self._stopped = True
        self._fail_appends()
        self._listener.failed(error)

    def _now(self) -> float:
        return self._clock.monotonic()

    # ------------------------------------------------------------------ state

    @property
    def is_leader(self) -> bool:
        return self.core.is_leader

    @property
    def leader_id(self) -> int:
        return self.core.leader

    @property
    def epoch(self) -> int:
        return self.core.epoch

    @property
    def high_watermark(self) -> int:
        return self.core.high_watermark

    @property
    def end_offset(self) -> int:
        return self.store.end_offset

    @property
    def applied_offset(self) -> int:
        """The first offset not yet handed to the listener."""
        return self._applied

    # ------------------------------------------------------------------ appending, as leader

    def append(self, batch: bytearray) -> tuple[int, asyncio.Future[int]]:
        """The batch's first offset at once, and a future that gets its last offset once committed and applied.

        NOT_CONTROLLER where this node does not lead; the future fails with the same if it ceases to.
        """
        if not self.core.is_leader or self._stopped:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        try:
            first, last = self.store.append(batch, self.core.epoch, self._clock.wall_ms())
        except OSError as error:
            self._fail(error)
            raise ApiError(ErrorCode.NOT_CONTROLLER) from error
        committed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._appends.append((last, committed))
        self._flush_wanted.set()
        self.core.appended(self._now())
        self._run()
        return first, committed

    def _fail_appends(self) -> None:
        while self._appends:
            _, committed = self._appends.popleft()
            if not committed.done():
                committed.set_exception(ApiError(ErrorCode.NOT_CONTROLLER))

    # ------------------------------------------------------------------ requests from others

    async def handle(self, api_key: int, version: int, request: Any) -> Any:
        """The response to a Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot or DescribeQuorum."""
        if api_key == wire.FETCH:
            return await self._handle_fetch(request)
        if api_key == wire.FETCH_SNAPSHOT:
            return self._handle_fetch_snapshot(request)
        if api_key == wire.DESCRIBE_QUORUM:
            self.core.forget_old_observers(self._now())
            return describe_quorum(request, self.core, self.quorum, self._now(), self._clock.wall_ms())
        wire.check_cluster(request, self.quorum.cluster_id)
        now = self._now()
        if api_key == wire.VOTE:
            reply = self.core.handle_vote(now, wire.decode_vote(request))
            name = "VoteResponse"
        elif api_key == wire.BEGIN_QUORUM_EPOCH:
            reply = self.core.handle_begin_epoch(now, wire.decode_begin(request))
            name = "BeginQuorumEpochResponse"
        elif api_key == wire.END_QUORUM_EPOCH:
            reply = self.core.handle_end_epoch(now, wire.decode_end(request))
            name = "EndQuorumEpochResponse"
        else:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        self._run()  # the vote is on disk before the answer leaves
        if self._stopped:  # or it is not, and must not be counted: a next life could give it to somebody else
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        return wire.encode_reply(name, reply)

    async def _handle_fetch(self, request: Any) -> Any:
        wire.check_cluster(request, self.quorum.cluster_id)
        fetch = wire.decode_fetch(request)
        self._next_token += 1
        token = self._next_token
        answered: asyncio.Future[tuple[FetchReply, bytes]] = asyncio.get_running_loop().create_future()
        self._fetches[token] = answered
        try:
            self.core.handle_fetch(self._now(), token, fetch)
            self._run()
            reply, records = await answered
        finally:
            self._fetches.pop(token, None)
            self.core.drop_fetch(token)
        return wire.encode_fetch_reply(replace(reply, records=records), self.store.start_offset)

    def _handle_fetch_snapshot(self, request: Any) -> Any:
        wire.check_cluster(request, self.quorum.cluster_id)
        data = wire.only_partition(request)
        wanted = SnapshotId(data.snapshot_id.end_offset, data.snapshot_id.epoch)
        leader, epoch = self.core.leader, self.core.epoch
        if not self.core.is_leader:
            return wire.snapshot_response(wanted, leader, epoch, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        size = max(1, min(request.max_bytes, wire.MAX_SNAPSHOT_PIECE_BYTES))
        found = self.store.read_snapshot(wanted, data.position, size)
        if found is None:
            return wire.snapshot_response(wanted, leader, epoch, ErrorCode.SNAPSHOT_NOT_FOUND)
        piece, whole = found
        if not 0 <= data.position < whole:
            return wire.snapshot_response(wanted, leader, epoch, ErrorCode.POSITION_OUT_OF_RANGE)
        self.core.progress_of_snapshot(request.replica_id, self._now())
        return wire.snapshot_response(wanted, leader, epoch, ErrorCode.NONE, whole, data.position, piece)

    # ------------------------------------------------------------------ effects

    def _run(self) -> None:
        """Carry out what the core wants, until it wants nothing more; then set the timer."""
        if self._in_run or self._stopped:
            return
        self._in_run = True
        try:
            while effects := self.core.take_effects():
                for effect in effects:
                    self._carry_out(effect)
        except Exception as error:  # a disk that fails or a log that disagrees: nothing may go on from here
            self._fail(error)
        finally:
            self._in_run = False
        if not self._stopped:
            self._arm()

    def _carry_out(self, effect: Effect) -> None:
        _CARRY_OUT[type(effect)](self, effect)

    def _persist(self, effect: Persist) -> None:
        self.store.persist(Persisted(effect.epoch, effect.voted_for, effect.leader), self.core.voters)

    def _send(self, effect: Send) -> None:
        key = (effect.to, type(effect.request))
        previous = self._sends.get(key)
        if previous is not None and not previous.done() and previous is not asyncio.current_task():
            previous.cancel()
        task = self._spawn(self._call(effect.to, effect.request))
        self._sends[key] = task

    def _answer_fetch(self, effect: AnswerFetch) -> None:
        waiting = self._fetches.get(effect.token)
        if waiting is None or waiting.done():
            return
        records = b""
        if effect.from_offset >= 0:
            records = self.store.read(effect.from_offset, wire.MAX_FETCH_BYTES, self.store.end_offset)
        waiting.set_result((effect.reply, records))

    def _append_leader_change(self, effect: AppendLeaderChange) -> None:
        now_ms = self._clock.wall_ms()
        batch = leader_change_batch(self.node_id, effect.voters, effect.granting, now_ms)
        self.store.append(batch, effect.epoch, now_ms)
        self._flush_wanted.set()
        self.core.appended(self._now())

    def _append_fetched(self, effect: AppendFetched) -> None:
        self.store.append_fetched(effect.records)
        self._flush_wanted.set()

    def _truncate(self, effect: Truncate) -> None:
        self._generation += 1
        self.store.truncate(effect.offset)

    def _load_snapshot(self, effect: LoadSnapshot) -> None:
        self._spawn(self._fetch_snapshot(effect))

    def _high_watermark(self, effect: HighWatermark) -> None:
        self.store.committed_up_to(effect.offset)
        self._apply_committed()

    def _leader_changed(self, effect: LeaderChanged) -> None:
        if effect.leader != self.node_id:
            self._fail_appends()
        logger.info("epoch %d: %s", effect.epoch, _who(effect.leader))
        self._listener.leader_changed(effect.leader, effect.epoch)

    # ------------------------------------------------------------------ handing over what is committed

    def _apply_committed(self) -> None:
        """A piece at a time, so that a long log does not hold the loop."""
        if self._applying or self._stopped:
            return
        limit = min(self.core.high_watermark, self.store.end_offset)
        if self._applied < limit:
            self._applying = True
            try:
                data = self.store.read(self._applied, APPLY_BYTES, limit)
                self._listener.committed(data)
                self._applied = _next_offset(data)
            except Exception as error:
                self._fail(error)
                return
            finally:
                self._applying = False
        while self._appends and self._appends[0][0] < self._applied:
            last, committed = self._appends.popleft()
            if not committed.done():
                committed.set_result(last)
        if self._applied < limit:
            asyncio.get_running_loop().call_soon(self._apply_committed)

    # ------------------------------------------------------------------ time

    def _arm(self) -> None:
        due = self.core.deadline
        if due == self._timer_due:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_due = due
        if due != float("inf"):
            self._timer = asyncio.get_running_loop().call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        now, due = self._now(), self._timer_due
        self._timer, self._timer_due = None, float("inf")
        if now - due > STALL_S and self._stalls < MAX_FORGIVEN_STALLS:
            self._stalls += 1
            self.core.postpone(now - due + STALL_S)
        else:
            self._stalls = 0
        self.core.tick(now)
        self._run()

    async def _flush_loop(self) -> None:
        while True:
            await self._flush_wanted.wait()
            self._flush_wanted.clear()
            generation, end_offset = self._generation, self.store.end_offset
            await self._threads.run(self.store.log.flush)
            if generation != self._generation:
                self._flush_wanted.set()  # cut meanwhile: what is there now may be something else
                continue
            self.core.flushed(self._now(), end_offset)
            self._run()

    # ------------------------------------------------------------------ requests to others

    async def _call(self, to: int, request: Request) -> None:
        links = self._fetch_links if isinstance(request, Fetch) else self._control_links
        wire_request = wire.encode_request(request, to, self.quorum)
        try:
            version = wire.VERSIONS[wire_request.API_KEY]
            response = await links[to].call(wire_request, version, patience=self.core.patience_for(request))
            decode: Callable[[Any], Any] = wire.decode_fetch_reply if isinstance(request, Fetch) else wire.decode_reply
            reply = decode(response)
        except (OSError, TimeoutError, ValueError, ApiError) as error:
            self.core.failed(self._now(), to, request, refused=isinstance(error, ConnectionRefusedError))
        else:
            self.core.replied(self._now(), to, request, reply)
        self._run()

    async def _fetch_snapshot(self, loading: LoadSnapshot) -> None:
        snapshot = loading.snapshot
        writer = self.store.new_snapshot(snapshot)
        try:
            complete = await self._copy_snapshot(writer, loading.leader, self.core.epoch, snapshot)
        except (OSError, TimeoutError, ValueError, ApiError) as error:
            logger.info("snapshot %s from %d: %s", snapshot, loading.leader, error)
            complete = False
        if not complete or self.core.loading is not loading:
            writer.abandon()
            self.core.snapshot_loaded(self._now(), loading, complete=False)
            self._run()
            return
        await self._threads.run(writer.finish)
        if self.core.loading is not loading:
            return  # the role changed meanwhile: the log is left alone, as if the process had died here
        self._generation += 1
        self.store.begin_after(snapshot)
        self._applied = snapshot.offset
        self._applying = True  # what is committed meanwhile comes after it
        try:
            await self._listener.load_snapshot(snapshot)
        finally:
            self._applying = False
        self.core.snapshot_loaded(self._now(), loading, complete=True)
        self.core.flushed(self._now(), snapshot.offset)  # whatever the role is by now, the log begins there
        self._run()
        self._apply_committed()

    async def _copy_snapshot(self, writer: Any, leader: int, epoch: int, snapshot: SnapshotId) -> bool:
        while True:
            request = wire.snapshot_request(self.node_id, epoch, snapshot, writer.size_bytes, self.quorum.cluster_id)
            response = await self._fetch_links[leader].call(request, wire.VERSIONS[wire.FETCH_SNAPSHOT])
            if response.error_code:
                return False  # it has nothing to say of the snapshot then
            data = wire.only_partition(response)
            if data.error_code:
                return False
            writer.write(data.unaligned_records or b"")
            self.core.snapshot_progress(self._now())
            if writer.size_bytes >= data.size:
                return True
            if not data.unaligned_records:
                return False


def _who(leader: int) -> str:
    return "no leader is known" if leader == NOBODY else f"node {leader} leads the metadata quorum"


def _next_offset(batches: bytes) -> int:
    """The offset after the last batch."""
    position = 0
    next_offset = -1
    while position < len(batches):
        base = int.from_bytes(batches[position : position + 8], "big")
        next_offset = base + int.from_bytes(batches[position + 23 : position + 27], "big") + 1
        position += int.from_bytes(batches[position + 8 : position + 12], "big") + 12
    return next_offset


_CARRY_OUT: dict[type, Callable[[RaftDriver, Any], None]] = {
    Persist: RaftDriver._persist,
    Send: RaftDriver._send,
    AnswerFetch: RaftDriver._answer_fetch,
    AppendLeaderChange: RaftDriver._append_leader_change,
    AppendFetched: RaftDriver._append_fetched,
    Truncate: RaftDriver._truncate,
    LoadSnapshot: RaftDriver._load_snapshot,
    HighWatermark: RaftDriver._high_watermark,
    LeaderChanged: RaftDriver._leader_changed,
}
