"""Drives the Raft core with time, network and disk. Everything runs on the loop; only the flush runs in a thread.

The driver carries out the core's effects in order, and calls the core when something was flushed, answered or is due.
A stall of the loop is not taken for a dead peer (`alarm.py`). `commit_feed.py` passes committed batches to the
listener.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol
from uuid import UUID

from ballast_broker.raft import snapshot_loading, wire
from ballast_broker.raft.alarm import Alarm
from ballast_broker.raft.answering import Answering
from ballast_broker.raft.commit_feed import TRY_AGAIN_S, CommitFeed
from ballast_broker.raft.complaints import Complaints
from ballast_broker.raft.control_records import leader_change_batch, voters_batch
from ballast_broker.raft.core import RaftCore
from ballast_broker.raft.leader import Leadership
from ballast_broker.raft.messages import (
    NOBODY,
    AnswerFetch,
    AppendFetched,
    AppendLeaderChange,
    AppendVoters,
    Effect,
    Fetch,
    HighWatermark,
    LeaderChanged,
    LoadSnapshot,
    Persist,
    Request,
    Send,
    SnapshotId,
    Truncate,
)
from ballast_broker.raft.peers import Peers
from ballast_broker.raft.store import MetadataStore, lacks_handles
from ballast_broker.raft.terms import DEFAULT_TIMEOUTS, LogView, Persisted, Position, Timeouts
from ballast_broker.raft.voter_requests import VOTER_KEYS, VoterRequests
from ballast_broker.raft.voters import DYNAMIC, Endpoint, Voter, VoterSet, voter_set
from ballast_broker.seams import Clock, Network, Random, Threads
from ballast_wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 2.0
RESIGN_WAIT_S = 0.3


class CommitListener(Protocol):
    """The consumer of the committed log: called on the loop, in order."""

    def committed(self, batches: bytes) -> Iterator[None]:
        """Newly committed, whole batches; each is passed once. Applied in steps: the next batches, or a snapshot, come
        only after the iterator is exhausted."""

    def leader_changed(self, leader: int, epoch: int) -> None: ...

    async def load_snapshot(self, snapshot: SnapshotId) -> None:
        """Reset the state to this snapshot; commits continue at its offset."""

    def failed(self, error: Exception) -> None:
        """The log is unusable (its disk failed, or it is inconsistent): the process has to stop."""


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
        directory: UUID | None = None,
    ) -> None:
        self.node_id = node_id
        self.quorum = quorum
        self.store = store
        self._listener = listener
        self.clock = clock
        self.threads = threads
        self.network = network
        self.directory = directory
        store.configured(quorum.voters)
        store.tell_what_it_lacks(node_id)
        self.peers = Peers(node_id, quorum, lambda: store.voters, network, REQUEST_TIMEOUT_S)
        self.core = RaftCore(
            node_id, store.load_persisted(), store, random, timeouts,
            directory=directory, bootstrap=self.peers.bootstrap_ids,
        )  # fmt: skip
        self.complaints = Complaints(quorum.cluster_id, self.peers, self.now)
        self.answering = Answering(self)
        self.voter_requests = VoterRequests(self)
        self._alarm = Alarm(self.core, self.now, self.run)
        self._sends: dict[tuple[int, type], asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._feed = CommitFeed(self, listener)
        self._reading = asyncio.Lock()
        """One snapshot at a time: a later one removes the file of an earlier one, and must be applied last."""
        self._in_run = False
        self._found_is_flushed = asyncio.Event()
        """Until then a leader that makes itself known would be sent a fetch, which promises that the log is flushed."""
        self._flush_wanted = asyncio.Event()
        self._generation = 0
        self.stopped = False

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Flush what a killed process left, read the latest snapshot, then take part in the quorum; requests are
        answered from the flush on."""
        end = self.store.position
        await self.threads.run(self.store.log.flush)
        self.store.flushed(end, is_voter=self.core.is_voter)
        self._found_is_flushed.set()
        snapshot = self.store.latest_snapshot
        if snapshot is not None:
            async with self._reading:
                await self._feed.begin_with(snapshot)
        self.spawn(self._flush_loop())
        self.core.start(self.now())
        self.run()
        self._feed.go_on()

    def found(self, first: Voter) -> None:
        """Found a new quorum with this node as its only voter."""
        self.store.format(voter_set(DYNAMIC, [first]), self.clock.wall_ms())
        self.core.start(self.now())
        self.run()

    async def stop(self) -> None:
        """Resign if leading, then stop everything."""
        if self.core.is_leader and len(self.core.voters) > 1:
            self.core.resign(self.now())
            self.run()
            sends = [task for task in self._sends.values() if not task.done()]
            if sends:
                await asyncio.wait(sends, timeout=RESIGN_WAIT_S)
        self.stopped = True
        self._alarm.stop()
        ending = [*self._sends.values(), *self._tasks]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self.peers.close()
        self._feed.fail_waiting()
        self.answering.close()
        self.store.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            error = task.exception()
            if isinstance(error, Exception):
                self.fail(error)

    def fail(self, error: Exception) -> None:
        logger.error("the metadata log cannot go on: %s", error, exc_info=error)
        self.stopped = True
        self._feed.fail_waiting()
        self._listener.failed(error)

    def now(self) -> float:
        return self.clock.monotonic()

    # ------------------------------------------------------------------ state

    @property
    def is_leader(self) -> bool:
        return self.core.is_leader

    @property
    def leader_id(self) -> int:
        return self.core.leader

    @property
    def hears_leader(self) -> bool:
        return self.core.hears_leader(self.now())

    @property
    def epoch(self) -> int:
        return self.core.epoch

    @property
    def kraft_version(self) -> int:
        return self.store.voters.version

    def voter_endpoints(self) -> list[tuple[int, Endpoint]]:
        """The voters' endpoints; a voter with unknown address is left out."""
        found = ((voter, self.peers.endpoint(voter)) for voter in self.core.voters)
        return [(voter, endpoint) for voter, endpoint in found if endpoint is not None]

    @property
    def high_watermark(self) -> int:
        return self.core.high_watermark

    @property
    def end_offset(self) -> int:
        return self.store.end_offset

    @property
    def applied_offset(self) -> int:
        """The first offset not yet handed to the listener."""
        return self._feed.offset

    # ------------------------------------------------------------------ appending, as leader

    def append(self, batch: bytearray) -> tuple[int, asyncio.Future[int]]:
        """Append; returns the batch's first offset, and a future of its last offset, done once committed and applied.

        NOT_CONTROLLER if this node does not lead; the future fails with the same if it loses leadership.
        """
        if not self.core.is_leader or self.stopped:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        try:
            first, last = self.store.append(batch, self.core.epoch, self.clock.wall_ms())
        except OSError as error:
            self.fail(error)
            raise ApiError(ErrorCode.NOT_CONTROLLER) from error
        except ApiError as error:
            if not lacks_handles(error):
                raise
            self._lead_no_more(error)
            self.run()
            raise ApiError(ErrorCode.NOT_CONTROLLER) from error
        committed = self._feed.when_at(last)
        self._flush_wanted.set()
        self.core.appended(self.now())
        self.run()
        return first, committed

    # ------------------------------------------------------------------ requests from others

    async def handle(self, api_key: int, request: Any) -> Any:
        """The response to a request among quorum nodes, from `answering` or `voter_requests`."""
        await self._found_is_flushed.wait()
        if api_key in VOTER_KEYS:
            return await self.voter_requests.handle(api_key, request)
        return await self.answering.handle(api_key, request)

    # ------------------------------------------------------------------ effects

    def change_voters(self, change: Callable[[Leadership, LogView], VoterSet]) -> int:
        """As leader: change the voters; returns the offset that has to be committed. ApiError if not allowed."""
        offset = self.core.change_voters(self.now(), change)
        self.run()
        return offset

    def run(self) -> None:
        """Carry out the core's effects until there are no more; then set the timer."""
        if self._in_run or self.stopped:
            return
        self._in_run = True
        try:
            while effects := self.core.take_effects():
                for effect in effects:
                    self._carry_out(effect)
        except Exception as error:  # a failed disk or inconsistent log: nothing may go on from here
            self.fail(error)
        finally:
            self._in_run = False
        if not self.stopped:
            self._alarm.set()
            self.voter_requests.look()

    def _carry_out(self, effect: Effect) -> None:
        _CARRY_OUT[type(effect)](self, effect)

    def _persist(self, effect: Persist) -> None:
        self.store.persist(Persisted(effect.epoch, effect.voted_for, effect.leader, effect.voted_directory))

    def _send(self, effect: Send) -> None:
        key = (effect.to, type(effect.request))
        previous = self._sends.get(key)
        if previous is not None and not previous.done() and previous is not asyncio.current_task():
            previous.cancel()
        task = self.spawn(self._call(effect.to, effect.request))
        self._sends[key] = task

    def _append_leader_change(self, effect: AppendLeaderChange) -> None:
        now_ms = self.clock.wall_ms()
        batch = leader_change_batch(self.node_id, effect.voters, effect.granting, now_ms, founds=effect.founds)
        self._append_control(batch, effect.epoch, now_ms)

    def _append_voters(self, effect: AppendVoters) -> None:
        now_ms = self.clock.wall_ms()
        upgrades = effect.voters.version != self.store.voters.version
        logger.info("the voters of the metadata quorum are to be %s", effect.voters)
        self._append_control(voters_batch(effect.voters, now_ms, with_version=upgrades), effect.epoch, now_ms)

    def _append_control(self, batch: bytearray, epoch: int, now_ms: int) -> None:
        try:
            self.store.append(batch, epoch, now_ms)
        except ApiError as error:
            if not lacks_handles(error):
                raise
            self._lead_no_more(error)
            return
        self._flush_wanted.set()
        self.core.appended(self.now())

    def _lead_no_more(self, error: Exception) -> None:
        """Let a node lead that can write; if there is no other, this one stands for election again after a while."""
        logger.error("this node stops leading the metadata quorum, as it cannot write: %s", error)
        self.core.resign(self.now())

    def _append_fetched(self, effect: AppendFetched) -> None:
        end_offset = self.store.end_offset
        try:
            self.store.append_fetched(effect.records)
        except ApiError as error:
            if error.code is ErrorCode.CORRUPT_MESSAGE:
                self.complaints.came_spoilt(self.core.leader, "a part of the metadata log", error)
            elif not lacks_handles(error):
                raise
            self.core.records_refused(self.now())
        if self.store.end_offset > end_offset:  # perhaps by some of the batches only: fetching resumes after a flush
            self._flush_wanted.set()

    def _truncate(self, effect: Truncate) -> None:
        self._generation += 1
        try:
            self.store.truncate(effect.offset)
        except (OSError, ApiError) as error:
            if not lacks_handles(error):
                raise
            # Fetching resumes only after a flush; then the leader tells again where the logs diverge.
            asyncio.get_running_loop().call_later(TRY_AGAIN_S, self._flush_wanted.set)

    def _load_snapshot(self, effect: LoadSnapshot) -> None:
        self.spawn(self._fetch_snapshot(effect))

    def _high_watermark(self, effect: HighWatermark) -> None:
        self.store.committed_up_to(effect.offset)
        self.voter_requests.committed_up_to(effect.offset)
        self._feed.go_on()

    def _leader_changed(self, effect: LeaderChanged) -> None:
        if effect.leader != self.node_id:
            self._feed.fail_waiting()
            self.voter_requests.leads_no_more()
        nobody = effect.leader == NOBODY
        who = "no leader is known" if nobody else f"node {effect.leader} leads the metadata quorum"
        logger.info("epoch %d: %s", effect.epoch, who)
        self._listener.leader_changed(effect.leader, effect.epoch)

    # ------------------------------------------------------------------ flushing

    async def _flush_loop(self) -> None:
        while True:
            await self._flush_wanted.wait()
            self._flush_wanted.clear()
            generation, end = self._generation, self.store.position
            try:
                await self.threads.run(self.store.log.flush)
            except ApiError as error:
                if not lacks_handles(error):
                    raise
                await asyncio.sleep(TRY_AGAIN_S)
                generation = -1
            if generation != self._generation:
                self._flush_wanted.set()  # not flushed, or truncated meanwhile: flush what is there now
                continue
            self.store.flushed(end, is_voter=self.core.is_voter)
            self.core.flushed(self.now(), end.end_offset)
            self.run()

    # ------------------------------------------------------------------ requests to others

    async def _call(self, to: int, request: Request) -> None:
        purpose = "fetch" if isinstance(request, Fetch) else "control"
        wire_request = wire.encode_request(request, to, self.quorum)
        try:
            version = wire.VERSIONS[wire_request.API_KEY]
            link = self.peers.link(to, purpose)
            response = await link.call(wire_request, version, patience=self.core.patience_for(request))
            for node_id, endpoint in wire.node_endpoints(response):
                self.peers.learn(node_id, endpoint)
            decode: Callable[[Any], Any] = wire.decode_fetch_reply if isinstance(request, Fetch) else wire.decode_reply
            reply = decode(response)
        except (OSError, TimeoutError, ValueError, ApiError) as error:
            refused = isinstance(error, ConnectionRefusedError)
            if refused:
                self.peers.forget(to)
            self.core.failed(self.now(), to, request, refused=refused)
        else:
            self.complaints.answered(to, reply.error)
            self.core.replied(self.now(), to, request, reply)
        self.run()

    async def _fetch_snapshot(self, loading: LoadSnapshot) -> None:
        snapshot = loading.snapshot
        complete = await snapshot_loading.fetched(self, loading)
        if complete:
            async with self._reading:
                await self._feed.pause()  # what was committed before is passed on first
                if self.stopped or self.core.loading is not loading:
                    return  # the role changed meanwhile: leave the log alone, as if we had crashed here
                self._generation += 1
                complete = snapshot_loading.begins_the_log(self, snapshot)
                if complete:
                    await self._feed.begin_with(snapshot)
        self.core.snapshot_loaded(self.now(), loading, complete=complete)
        if complete:
            self.store.flushed(Position(snapshot.epoch, snapshot.offset), is_voter=self.core.is_voter)
            self.core.flushed(self.now(), snapshot.offset)  # in any role, since the log begins there now
        self.run()
        self._feed.go_on()


_CARRY_OUT: dict[type, Callable[[RaftDriver, Any], None]] = {
    Persist: RaftDriver._persist,
    Send: RaftDriver._send,
    AnswerFetch: lambda driver, effect: driver.answering.fetch_answered(effect),
    AppendLeaderChange: RaftDriver._append_leader_change,
    AppendVoters: RaftDriver._append_voters,
    AppendFetched: RaftDriver._append_fetched,
    Truncate: RaftDriver._truncate,
    LoadSnapshot: RaftDriver._load_snapshot,
    HighWatermark: RaftDriver._high_watermark,
    LeaderChanged: RaftDriver._leader_changed,
}
