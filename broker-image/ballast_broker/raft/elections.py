"""Elects the quorum's leader: roles, epochs, votes. PURE; the part of the Raft core that does not deal with records.

A voter that does not hear from a leader first asks by a pre-vote whether it could win (`PROSPECTIVE`), then stands in a
new epoch (`CANDIDATE`). Entering a role resets the state of the previous one. `core.py` builds following and leading on
top of this.

With overloaded CPUs or disks, responses may take longer than any timeout, and elections would go on for ever: a node
that waited in vain doubles its timeouts, up to a bound, and halves them again after a calm period.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from uuid import UUID

from ballast_broker.raft.leader import Leadership
from ballast_broker.raft.messages import (
    NOBODY,
    AnswerFetch,
    AppendLeaderChange,
    BeginEpoch,
    Effect,
    EndEpoch,
    Fetch,
    FetchReply,
    LeaderChanged,
    LoadSnapshot,
    Persist,
    Reply,
    Request,
    Send,
    Vote,
)
from ballast_broker.raft.terms import (
    DEFAULT_TIMEOUTS,
    FOREVER,
    NEVER,
    NOWHERE,
    LogView,
    Persisted,
    Position,
    Role,
    Timeouts,
)
from ballast_broker.raft.voters import BEFORE_THE_LOG, DYNAMIC, VoterSet
from ballast_broker.seams import Random
from ballast_wire.errors import ErrorCode

MOST_PATIENCE = 8.0
MOST_PATIENCE_FOR_A_FETCH = 2.0
"""Lower, since the response may be lost, and all records wait for the next fetch."""
MOST_DOUBLINGS = 32
"""Bounds the exponent of the backoff, far beyond any limit of the backoff itself."""
CALM_S = 60.0
YOUNG_TERM_TIMEOUTS = 10
"""A term that lasted longer than this many fetch timeouts was no election in vain."""


class Elections(ABC):
    def __init__(
        self,
        me: int,
        persisted: Persisted,
        log: LogView,
        random: Random,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        *,
        directory: UUID | None = None,
        bootstrap: Sequence[int] = (),
    ) -> None:
        self.me = me
        self.directory = directory
        """This node's metadata directory id: a voter with our id but another directory id is a different node."""
        self.bootstrap = tuple(bootstrap)
        """Nodes to ask for the leader, besides the voters."""
        if log.last_epoch > persisted.epoch:
            persisted = Persisted(log.last_epoch)  # the persisted state was lost, but that epoch had a leader
        self.epoch = persisted.epoch
        self.voted_for = persisted.voted_for
        self.voted_directory = persisted.voted_directory
        self.leader = NOBODY
        self.role = Role.UNATTACHED
        snapshot = log.latest_snapshot
        self.high_watermark = -1 if snapshot is None else snapshot.offset
        """The content of a snapshot is known to be committed."""
        self.leadership: Leadership | None = None
        self._log = log
        self._random = random
        self.patience = 1.0
        self._impatient = timeouts
        self._timeouts = timeouts
        self._waited_in_vain_at = NEVER
        self._term_began = NEVER
        self._effects: list[Effect] = []
        self._votes: dict[int, bool] = {}
        self._retries = 0
        self._election_at = FOREVER
        self._fetch_at = FOREVER
        self._fetch_outstanding: Fetch | None = None
        self.loading: LoadSnapshot | None = None
        """The snapshot being fetched; the driver checks that it is still wanted before it resets the log."""
        self._in_vain = 0
        """How many times in a row the leader's data was useless."""
        self._fetched_at = NEVER
        self._leader_ended = False
        self._flushed = log.end_offset
        self._pending_high_watermark = -1

    @abstractmethod
    def _send_fetch(self) -> None:
        """As a follower: fetch the next records from the leader."""

    @abstractmethod
    def _send_begin_epoch(self, leadership: Leadership, now: float) -> None:
        """As a leader: tell those voters that do not know it yet."""

    @property
    def voter_set(self) -> VoterSet:
        return self._log.voters

    @property
    def voters(self) -> tuple[int, ...]:
        return self._log.voters.ids

    @property
    def is_voter(self) -> bool:
        return self._log.voters.has(self.me, self.directory)

    @property
    def may_stand(self) -> bool:
        """Whether it may stand for election: a voter, or one whose removal may not be committed. The others may need
        what only its log has, so only it can complete the removal; its own vote does not count then. Never while the
        log lacks something that it once had."""
        log = self._log
        if log.lacks is not None:
            return False
        if self.is_voter:
            return True
        return log.voters_offset >= self.high_watermark and log.voters_before.has(self.me, self.directory)

    @property
    def only_follows(self) -> bool:
        """Whether it must search for the leader itself, since no leader may know of it."""
        return not self.is_voter or self._log.lacks is not None

    @property
    def log_end_offset(self) -> int:
        return self._log.end_offset

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    def hears_leader(self, now: float) -> bool:
        """Whether this node leads, or has lately had a response from the leader. `leader` alone does not tell: it may
        still name a leader that is gone."""
        return self.is_leader or (self.role is Role.FOLLOWER and self._heard_lately(now))

    def _heard_lately(self, now: float) -> bool:
        return now - self._fetched_at < self._timeouts.fetch_s

    # ------------------------------------------------------------------ how long to wait

    def patience_for(self, request: Request) -> float:
        """By which factor to extend the usual timeout of a request."""
        return min(self.patience, MOST_PATIENCE_FOR_A_FETCH) if isinstance(request, Fetch) else self.patience

    def _waited_in_vain(self, now: float) -> None:
        self._waited_in_vain_at = now
        self._set_patience(min(self.patience * 2, MOST_PATIENCE))

    def _lost_by_silence(self, now: float) -> None:
        """Lost contact with the leader, or as leader with the others: counts only if soon after the election."""
        if now - self._term_began < YOUNG_TERM_TIMEOUTS * self._timeouts.fetch_s:
            self._waited_in_vain(now)

    def _all_is_well(self, now: float) -> None:
        if self.patience > 1 and now - self._waited_in_vain_at >= CALM_S:
            self._waited_in_vain_at = now
            self._set_patience(self.patience / 2)

    def _set_patience(self, patience: float) -> None:
        self.patience = patience
        self._timeouts = self._impatient.stretched(patience)

    # ------------------------------------------------------------------ roles

    def _persist(self) -> None:
        self._effects.append(Persist(self.epoch, self.voted_for, self.leader, self.voted_directory))

    def _leave_leadership(self) -> None:
        leadership, self.leadership = self.leadership, None
        if leadership is not None:
            for parked in leadership.parked.values():
                self._effects.append(AnswerFetch(parked.token, self._fetch_error(ErrorCode.NOT_LEADER_OR_FOLLOWER)))

    def _enter(self, role: Role, epoch: int, leader: int, voted_for: int, voted_directory: UUID | None = None) -> None:
        if voted_for == self.voted_for and voted_directory is None:
            voted_directory = self.voted_directory
        changed = (epoch, leader) != (self.epoch, self.leader)
        vote = (self.voted_for, self.voted_directory)
        stored = (epoch, leader, voted_for, voted_directory) != (self.epoch, self.leader, *vote)
        self.role, self.epoch, self.leader, self.voted_for = role, epoch, leader, voted_for
        self.voted_directory = voted_directory
        self._leave_leadership()
        self._election_at = self._fetch_at = FOREVER
        self._fetch_outstanding = None
        self.loading = None
        self._votes = {}
        if stored:
            self._persist()
        if changed:
            self._effects.append(LeaderChanged(leader, epoch))

    def _election_timeout(self, now: float) -> float:
        return now + self._timeouts.election_s * (1 + self._random.random())

    def _become_unattached(self, now: float, epoch: int) -> None:
        voted_for = self.voted_for if epoch == self.epoch else NOBODY
        self._enter(Role.UNATTACHED, epoch, NOBODY, voted_for)
        self._await_leader(now)

    def _await_leader(self, now: float) -> None:
        """Wait for a leader: a voter stands for election after a while, any other node searches for the leader."""
        if self.may_stand:
            self._election_at = self._election_timeout(now)
        if self.only_follows:
            self._fetch_at = now + self._timeouts.retry_s * (1 + self._random.random())

    def _become_follower(self, now: float, epoch: int, leader: int) -> None:
        voted_for = self.voted_for if epoch == self.epoch else NOBODY
        self._enter(Role.FOLLOWER, epoch, leader, voted_for)
        self._retries = self._in_vain = 0
        self._fetched_at = NEVER
        self._leader_ended = False
        self._term_began = now
        self._election_at = now + self._timeouts.fetch_s
        self._send_fetch()

    def _become_prospective(self, now: float) -> None:
        """Pre-vote: ask whether an election could be won, before disturbing anybody with a new epoch."""
        leader, epoch, voted_for = self.leader, self.epoch, self.voted_for
        self._enter(Role.PROSPECTIVE, epoch, leader, voted_for)
        self._votes = {self.me: True}
        self._election_at = self._election_timeout(now)
        self._ask_for_votes(pre_vote=True)
        self._count_votes(now)

    def _become_candidate(self, now: float) -> None:
        self._enter(Role.CANDIDATE, self.epoch + 1, NOBODY, self.me, self.directory)
        self._votes = {self.me: True}
        self._election_at = self._election_timeout(now)
        self._ask_for_votes(pre_vote=False)
        self._count_votes(now)

    def _become_leader(self, now: float) -> None:
        granting = tuple(sorted(voter for voter, granted in self._votes.items() if granted))
        self._enter(Role.LEADER, self.epoch, self.me, self.voted_for)
        self._retries = 0
        self._term_began = now
        voters = self.voter_set
        leadership = Leadership(self.me, self.directory, voters, self.epoch, self._log.end_offset, now)
        leadership.high_watermark = self.high_watermark
        self.leadership = leadership
        founds = voters.version >= DYNAMIC and self._log.voters_offset == BEFORE_THE_LOG
        self._effects.append(AppendLeaderChange(self.epoch, voters, granting, founds))
        self._send_begin_epoch(leadership, now)

    def _ask_for_votes(self, *, pre_vote: bool) -> None:
        log = self._log
        for voter in self.voter_set.voters:
            if voter.id != self.me:
                request = Vote(
                    self.epoch, self.me, log.last_epoch, log.end_offset, pre_vote, self.directory, voter.directory
                )
                self._effects.append(Send(voter.id, request))

    def _count_votes(self, now: float) -> None:
        voters = self.voters
        majority = len(voters) // 2 + 1
        votes = [granted for voter, granted in self._votes.items() if voter != self.me or self.is_voter]
        granted = sum(votes)
        if granted >= majority:
            if self.role is Role.PROSPECTIVE:
                self._become_candidate(now)
            elif self.role is Role.CANDIDATE:
                self._become_leader(now)
        elif len(voters) - (len(votes) - granted) < majority:
            self._lost_election(now)

    def _lost_election(self, now: float) -> None:
        """Too many refused: try again after a random, growing delay (meanwhile as follower, if there is a leader)."""
        self._retries += 1
        limit = min(self._timeouts.backoff_max_s, self._timeouts.backoff_s * 2 ** min(self._retries, MOST_DOUBLINGS))
        wait = limit * (0.2 + 0.8 * self._random.random())
        if self.role is Role.PROSPECTIVE and self.leader != NOBODY:
            retries, leader = self._retries, self.leader
            self._enter(Role.FOLLOWER, self.epoch, leader, self.voted_for)
            self._retries = retries
            self._fetched_at = NEVER  # doubting its leader, it grants pre-votes to others
            self._election_at = now + self._timeouts.fetch_s
            self._fetch_at = now + wait
        else:
            self._election_at = now + wait
            self._votes = {}
            if self.bootstrap and self.role is Role.PROSPECTIVE:
                # The voter set may have changed, and none of the voters that we know may be alive.
                self._fetch_at = now + wait / 2

    def _election_timed_out(self, now: float) -> None:
        self._election_at = FOREVER
        if not self.may_stand:
            self._become_unattached(now, self.epoch)
            return
        if self.role is Role.FOLLOWER and not self._leader_ended:
            self._lost_by_silence(now)
        elif self._votes:  # neither won nor lost
            self._waited_in_vain(now)
        self._become_prospective(now)

    # ------------------------------------------------------------------ elections: requests and replies

    def handle_vote(self, now: float, request: Vote) -> Reply:
        """In a dynamic quorum grant votes even if not a voter: our voter set may be outdated, or ahead of theirs."""
        if self.voter_set.is_static and (request.candidate not in self.voters or not self.is_voter):
            return self._reply(ErrorCode.INCONSISTENT_VOTER_SET)
        if not self._is_meant(request):
            return self._reply(ErrorCode.INVALID_VOTER_KEY)
        if request.epoch < self.epoch:
            return self._reply(ErrorCode.FENCED_LEADER_EPOCH)
        if request.epoch > self.epoch:
            self._become_unattached(now, request.epoch)
        granted = self._may_grant(now, request)
        if granted and not request.pre_vote and self.voted_for != request.candidate:
            self._enter(Role.UNATTACHED, self.epoch, NOBODY, request.candidate, request.directory)
            self._await_leader(now)
        return Reply(self.epoch, self.leader, granted=granted)

    def _is_meant(self, request: Vote | BeginEpoch) -> bool:
        """Whether the request is meant for this node, not for an earlier one at this address or with another disk:
        otherwise one process would vote for two voters."""
        return request.voter in (None, self.me) and request.voter_directory in (None, self.directory)

    def _may_grant(self, now: float, request: Vote) -> bool:
        log = self._log
        # It may have acknowledged what its disk has lost since: vote as if the log still had that.
        most = max(Position(log.last_epoch, log.end_offset), log.lacks or NOWHERE)
        if Position(request.last_epoch, request.end_offset) < most or self.role is Role.LEADER:
            return False
        if request.pre_vote:
            # A node that hears its leader does not help to depose it.
            heard_lately = self._heard_lately(now)
            return self.role is not Role.FOLLOWER or not heard_lately or self._leader_ended
        if self.voted_for != NOBODY:
            return self.voted_for == request.candidate and self.voted_directory in (None, request.directory)
        return self.leader == NOBODY

    def handle_begin_epoch(self, now: float, request: BeginEpoch) -> Reply:
        if request.epoch < self.epoch:
            return self._reply(ErrorCode.FENCED_LEADER_EPOCH)
        if self.voter_set.is_static and request.leader not in self.voters:
            return self._reply(ErrorCode.INCONSISTENT_VOTER_SET)
        if not self._is_meant(request):
            return self._reply(ErrorCode.INVALID_VOTER_KEY)
        self._learn(now, request.epoch, request.leader)
        return self._reply()

    def handle_end_epoch(self, now: float, request: EndEpoch) -> Reply:
        if request.epoch < self.epoch:
            return self._reply(ErrorCode.FENCED_LEADER_EPOCH)
        self._learn(now, request.epoch, request.leader)
        if self.role is Role.FOLLOWER and self.leader == request.leader and self.is_voter:
            self._leader_ended = True
            position = request.successors.index(self.me) if self.me in request.successors else len(self.voters)
            self._election_at = now + position * self._timeouts.backoff_s * 2
        return self._reply()

    def _reply(self, error: ErrorCode = ErrorCode.NONE) -> Reply:
        return Reply(self.epoch, self.leader, error)

    def _learn(self, now: float, epoch: int, leader: int) -> bool:
        """Take over a newer epoch, or the leader of the current one. True if anything changed."""
        if epoch > self.epoch:
            if leader != NOBODY and leader != self.me:
                self._become_follower(now, epoch, leader)
            else:
                self._become_unattached(now, epoch)
            return True
        follows = self.role in (Role.FOLLOWER, Role.LEADER) and self.leader == leader
        if epoch == self.epoch and leader not in (NOBODY, self.me) and not follows and self.role is not Role.LEADER:
            self._become_follower(now, epoch, leader)
            return True
        return False

    def _vote_replied(self, now: float, sender: int, request: Vote, reply: Reply) -> None:
        expected = Role.PROSPECTIVE if request.pre_vote else Role.CANDIDATE
        # A single pre-vote refused because of the leader that we know does not end the election: if a majority refuses,
        # `_lost_election` returns to that leader.
        known = reply.leader == self.leader and reply.epoch == self.epoch and self.role is Role.PROSPECTIVE
        if not known and self._learn(now, reply.epoch, reply.leader):
            return
        if self.role is not expected or request.epoch != self.epoch or self._votes.get(sender):
            return
        if not self._votes:
            return  # this round is already lost
        self._votes[sender] = reply.granted and reply.error is ErrorCode.NONE
        self._count_votes(now)

    def _doubt_leader(self, now: float) -> None:
        """Ask for votes soon; the random delay keeps two voters from standing against each other."""
        self._leader_ended = True
        limit = self._timeouts.backoff_s * 2 ** min(self._retries, 4)
        self._election_at = min(self._election_at, now + limit * self._random.random())

    def _fetch_error(self, error: ErrorCode) -> FetchReply:
        return FetchReply(self.epoch, self.leader, error)
