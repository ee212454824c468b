"""Implements Kafka's variant of Raft (KRaft): followers pull, elections start with a pre-vote, the leader alone decides
what is committed.

PURE: requests, replies, finished work and time come in; effects come out of `take_effects`, to be carried out in
order. The same core runs in production (`raft/driver.py`) and in the simulation. `elections.py` elects the leader.
What it relies on:
  * `Persist` is on stable storage before any later effect is carried out;
  * `flushed` is called only with what is on stable storage;
  * the log view reflects all earlier effects.
What it guarantees: at most one leader per epoch; nothing below a high watermark is ever truncated.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from ballast_broker.raft.elections import MOST_DOUBLINGS, Elections
from ballast_broker.raft.leader import Leadership, ParkedFetch, misfit
from ballast_broker.raft.messages import (
    NOBODY,
    AnswerFetch,
    AppendFetched,
    AppendVoters,
    BeginEpoch,
    Effect,
    EndEpoch,
    Fetch,
    FetchReply,
    HighWatermark,
    LoadSnapshot,
    Reply,
    Request,
    Send,
    Truncate,
    Vote,
)
from ballast_broker.raft.terms import FOREVER, LogView, Role
from ballast_broker.raft.voters import VoterSet
from ballast_wire.errors import ApiError, ErrorCode

OBSERVER_SESSION_S = 300.0


class QuorumLostData(Exception):
    """The leader's log diverges below what this node knows to be committed."""

    def __init__(self, common: int, committed: int) -> None:
        super().__init__(
            f"this node has metadata that was committed up to offset {committed}, but the quorum that leads now has "
            f"something else from {common} on: it has lost data, or is another one"
        )


class RaftCore(Elections):
    # ------------------------------------------------------------------ what the driver uses

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def start(self, now: float) -> None:
        if self.role is not Role.UNATTACHED:
            return  # an earlier request may have told who leads
        if self.is_voter and self.may_stand and len(self.voters) == 1:
            self._become_candidate(now)
            return
        if self.may_stand:
            # A pre-vote disturbs nobody: no need to wait a whole timeout at startup.
            self._election_at = now + self._timeouts.first_election_s * (0.5 + self._random.random())
        if self.only_follows:
            self._fetch_at = now

    @property
    def deadline(self) -> float:
        """The latest time for the next call of `tick`."""
        nearest = min(self._election_at, self._fetch_at)
        if self.leadership is not None:
            nearest = min(nearest, self.leadership.deadline(self._timeouts))
        return nearest

    def postpone(self, seconds: float) -> None:
        """This process was stalled for so long, which is no peer's fault: extend all deadlines."""
        self._election_at += seconds
        self._fetch_at += seconds
        if self.leadership is not None:
            self.leadership.postpone(seconds)

    def tick(self, now: float) -> None:
        if self.leadership is not None:
            self._tick_leader(self.leadership, now)
        if now >= self._fetch_at:
            self._fetch_at = FOREVER
            self._send_fetch()
        if now >= self._election_at:
            self._election_timed_out(now)

    # ------------------------------------------------------------------ replies

    def replied(self, now: float, sender: int, request: Request, reply: Reply | FetchReply) -> None:
        """A peer has answered our request."""
        if isinstance(request, Fetch):
            assert isinstance(reply, FetchReply)
            self._fetch_replied(now, request, reply)
        elif isinstance(request, Vote):
            assert isinstance(reply, Reply)
            self._vote_replied(now, sender, request, reply)
        elif not self._learn(now, reply.epoch, reply.leader) and isinstance(request, BeginEpoch):
            leadership = self.leadership
            heard = leadership is not None and sender in leadership.voters
            if heard and request.epoch == self.epoch and reply.error is ErrorCode.NONE:
                assert leadership is not None
                leadership.voters[sender].begun = True

    def failed(self, now: float, receiver: int, request: Request, *, refused: bool) -> None:
        """Our request got no reply; `refused`: the connection was refused, so the process is gone."""
        if isinstance(request, Vote):
            self._vote_replied(now, receiver, request, Reply(-1, NOBODY))
            return
        if not isinstance(request, Fetch) or request is not self._fetch_outstanding:
            return
        self._fetch_outstanding = None
        if self.role is Role.FOLLOWER and refused and self.is_voter and receiver == self.leader:
            self._doubt_leader(now)  # dead, not slow
        elif self.role is Role.FOLLOWER and refused:
            self._become_unattached(now, self.epoch)
        elif self.role in (Role.FOLLOWER, Role.UNATTACHED):
            self._fetch_at = now + self._timeouts.retry_s * (1 + self._random.random())

    # ------------------------------------------------------------------ following

    def _send_fetch(self) -> None:
        if self._fetch_outstanding is not None or self.loading is not None or self._log.end_offset > self._flushed:
            return  # a fetch offset promises that everything below it is on stable storage
        target = self._whom_to_fetch_from()
        if target is None:
            return
        log, wait_ms = self._log, self._timeouts.fetch_wait_ms
        fetch = Fetch(self.epoch, self.me, log.end_offset, log.last_epoch, wait_ms, self.directory)
        self._fetch_outstanding = fetch
        self._effects.append(Send(target, fetch))

    def _whom_to_fetch_from(self) -> int | None:
        """The leader; if none is known, any node that may know it."""
        if self.role is Role.FOLLOWER:
            return self.leader
        asks = self.role is Role.UNATTACHED and self.only_follows
        doubts = self.role is Role.PROSPECTIVE and self.leader == NOBODY and not self._votes
        if asks or doubts:
            others = [*(voter for voter in self.voters if asks and voter != self.me), *self.bootstrap]
            if others:
                return others[self._random.randrange(len(others))]
        return None

    def _fetch_replied(self, now: float, request: Fetch, reply: FetchReply) -> None:
        if request is not self._fetch_outstanding:
            return
        self._fetch_outstanding = None
        if self._learn(now, reply.epoch, reply.leader):
            return
        if reply.error is not ErrorCode.NONE or self.role is not Role.FOLLOWER:
            if self.role in (Role.FOLLOWER, Role.UNATTACHED):
                self._fetch_at = now + self._timeouts.retry_s * (1 + self._random.random())
            if self.role is Role.FOLLOWER and self.is_voter and reply.error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self._doubt_leader(now)  # it says itself that it is not the leader
            return
        self._election_at = now + self._timeouts.fetch_s
        self._retries = 0
        self._fetched_at = now
        self._leader_ended = False
        self._all_is_well(now)
        if reply.diverging is not None:
            self._truncate(reply.diverging)
            self._fetch_at = now
        elif reply.snapshot is not None:
            self.loading = LoadSnapshot(self.leader, reply.snapshot)
            self._effects.append(self.loading)
        else:
            self._take_records(now, reply)

    def _truncate(self, diverging: tuple[int, int]) -> None:
        epoch, end_offset = diverging
        known_end = self._log.epoch_end_offset(epoch)[1]
        # If the log has nothing that old, all of it is from leaders later than the last common one, and so is the
        # snapshot after which it begins, if there is one.
        cut = min(end_offset, known_end) if known_end >= 0 else 0
        if cut < self.high_watermark:
            raise QuorumLostData(cut, self.high_watermark)
        cut = max(cut, self._log.start_offset)
        self._flushed = min(self._flushed, cut)
        self._effects.append(Truncate(cut))

    def _take_records(self, now: float, reply: FetchReply) -> None:
        if len(reply.records):
            self._effects.append(AppendFetched(reply.records))
            self._pending_high_watermark = reply.high_watermark
            return
        self._follow_high_watermark(reply.high_watermark)
        self._send_fetch()

    def records_refused(self, now: float) -> None:
        """The fetched records are corrupt, or could not all be appended: fetch the rest again."""
        self._ask_later(now)

    def _ask_later(self, now: float) -> None:
        """What came was useless, and may be again: retry with backoff, but so often that the leader hears of us."""
        self._in_vain += 1
        times = self._timeouts
        longest = max(times.retry_s, times.fetch_s / 4)
        wait = min(longest, times.retry_s * 2 ** min(self._in_vain, MOST_DOUBLINGS))
        self._fetch_at = now + wait * (0.5 + 0.5 * self._random.random())

    def _follow_high_watermark(self, offset: int) -> None:
        limited = min(offset, self._log.end_offset)
        if limited > self.high_watermark:
            self.high_watermark = limited
            self._effects.append(HighWatermark(limited))

    def snapshot_progress(self, now: float) -> None:
        """A piece of the snapshot came: the leader is alive."""
        if self.loading is not None:
            self._election_at = now + self._timeouts.fetch_s

    def log_begins_at(self, offset: int) -> None:
        """The log was emptied, to begin after a snapshot on stable storage: what was flushed before is gone."""
        self._flushed = offset

    def snapshot_loaded(self, now: float, loading: LoadSnapshot, *, complete: bool) -> None:
        """The log now begins after this snapshot or, if not `complete`, it could not be fetched. Ignored if the role
        has changed since."""
        if self.loading is not loading:
            return
        self.loading = None
        if not complete:
            self._ask_later(now)
            return
        self._fetch_at = now
        if loading.snapshot.offset > self.high_watermark:
            self.high_watermark = loading.snapshot.offset
            self._effects.append(HighWatermark(loading.snapshot.offset))

    # ------------------------------------------------------------------ the log grew or was flushed

    def appended(self, now: float) -> None:
        """As leader: records were appended (not yet flushed)."""
        leadership = self.leadership
        if leadership is None:
            return
        if self.voter_set is not leadership.voter_set:
            leadership.follow_voters(self.voter_set)
            self._send_begin_epoch(leadership, now)
        self._answer_parked(leadership)

    def change_voters(self, now: float, change: Callable[[Leadership, LogView], VoterSet]) -> int:
        """As leader: append the voter set that `change` returns (it may raise); returns the offset to be committed."""
        if self.leadership is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._effects.append(AppendVoters(self.epoch, change(self.leadership, self._log)))
        return self._log.end_offset

    def flushed(self, now: float, end_offset: int) -> None:
        """Everything below `end_offset` is on stable storage (not called for records truncated since)."""
        self._flushed = max(self._flushed, end_offset)
        if self.leadership is not None:
            self.leadership.local_flushed(end_offset, now)
            self._advance(self.leadership, now)
        elif self.role is Role.FOLLOWER:
            self._in_vain = 0
            self._follow_high_watermark(self._pending_high_watermark)
            self._send_fetch()
        elif self.role is Role.UNATTACHED:
            if self._election_at == FOREVER and self.may_stand:
                self._await_leader(now)  # lacked something until now, so could not stand
            self._send_fetch()  # after a leader that is no voter any more resigned: find the new one

    # ------------------------------------------------------------------ leading

    def _advance(self, leadership: Leadership, now: float) -> None:
        if leadership.advance_high_watermark():
            self.high_watermark = leadership.high_watermark
            self._effects.append(HighWatermark(self.high_watermark))
            self._answer_parked(leadership)
            if not self.is_voter and self._log.voters_offset < self.high_watermark:
                self.resign(now)  # removed from the voters, and that is committed now

    def _send_begin_epoch(self, leadership: Leadership, now: float) -> None:
        for progress in leadership.voters.values():
            if not progress.begun and now >= progress.begin_sent_at + self._timeouts.begin_epoch_s:
                progress.begin_sent_at = now
                voter = self.voter_set.find(progress.id)
                directory = None if voter is None else voter.directory
                self._effects.append(Send(progress.id, BeginEpoch(self.epoch, self.me, directory)))

    def _tick_leader(self, leadership: Leadership, now: float) -> None:
        if now >= leadership.majority_contact() + self._timeouts.check_quorum_s:
            # No majority is in contact: another leader may exist by now, and we could not commit anything.
            self._lost_by_silence(now)
            self._become_unattached(now, self.epoch)
            return
        leadership.doubt_the_silent(now, self._timeouts)
        self._send_begin_epoch(leadership, now)
        for parked in [each for each in leadership.parked.values() if now >= each.deadline]:
            self._answer(leadership, parked.token, parked.request)

    def resign(self, now: float) -> None:
        """Resign in an orderly way: tell the others, with the best successor first."""
        leadership = self.leadership
        if leadership is None:
            return
        request = EndEpoch(self.epoch, self.me, leadership.successors())
        self._effects.extend(Send(voter, request) for voter in leadership.successors())
        self._become_unattached(now, self.epoch)
        if self.is_voter:
            self._election_at = now + self._timeouts.fetch_s * 2

    def handle_fetch(self, now: float, token: int, request: Fetch) -> None:
        """Answered by an `AnswerFetch` effect with this token: at once, or when there is news."""
        if min(request.epoch, request.offset, request.last_epoch, request.max_wait_ms) < 0:
            self._effects.append(AnswerFetch(token, self._fetch_error(ErrorCode.INVALID_REQUEST)))
            return
        leadership = self.leadership
        if leadership is None or request.epoch != self.epoch:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if request.epoch != self.epoch:
                stale = request.epoch < self.epoch
                error = ErrorCode.FENCED_LEADER_EPOCH if stale else ErrorCode.UNKNOWN_LEADER_EPOCH
            self._effects.append(AnswerFetch(token, self._fetch_error(error)))
            return
        unfit = self._misfit(request)
        if unfit is not None:
            leadership.progress(request.replica, request.directory).fetched_at = now
            self._effects.append(AnswerFetch(token, unfit))
            return
        leadership.fetched(request, self._log.end_offset, now)
        self.forget_old_observers(now)
        self._all_is_well(now)
        self._advance(leadership, now)
        if self.leadership is not leadership:  # it has resigned, since it is no voter any more
            self._effects.append(AnswerFetch(token, self._fetch_error(ErrorCode.NOT_LEADER_OR_FOLLOWER)))
            return
        told = leadership.progress(request.replica, request.directory).told_high_watermark
        news = request.offset < self._log.end_offset or told < leadership.high_watermark
        if news or request.max_wait_ms <= 0:
            self._answer(leadership, token, request)
        else:
            leadership.parked[token] = ParkedFetch(token, request, now + request.max_wait_ms / 1000)

    def _misfit(self, request: Fetch) -> FetchReply | None:
        return misfit(self._log, self.epoch, self.me, request)

    def _answer_parked(self, leadership: Leadership) -> None:
        for parked in list(leadership.parked.values()):
            told = leadership.progress(parked.request.replica, parked.request.directory).told_high_watermark
            if parked.request.offset < self._log.end_offset or told < leadership.high_watermark:
                self._answer(leadership, parked.token, parked.request)

    def _answer(self, leadership: Leadership, token: int, request: Fetch) -> None:
        leadership.parked.pop(token, None)
        leadership.progress(request.replica, request.directory).told_high_watermark = leadership.high_watermark
        reply = FetchReply(self.epoch, self.me, high_watermark=leadership.high_watermark)
        from_offset = request.offset if request.offset < self._log.end_offset else -1
        self._effects.append(AnswerFetch(token, reply, from_offset))

    def forget_old_observers(self, now: float) -> None:
        """Drop silent observers; otherwise brokers gone for good would stay listed as long as this node leads."""
        if self.leadership is not None:
            self.leadership.forget_old_observers(now - OBSERVER_SESSION_S)

    def progress_of_snapshot(self, replica: int, directory: UUID | None, now: float) -> None:
        """A replica is loading our snapshot: it is alive, though it fetches no records meanwhile."""
        if self.leadership is not None:
            self.leadership.progress(replica, directory).fetched_at = now

    def drop_fetch(self, token: int) -> None:
        """The connection of a parked fetch is gone."""
        if self.leadership is not None:
            self.leadership.parked.pop(token, None)
