"""Keeps a leader's state: each replica's progress, parked fetches, and the high watermark that follows. PURE."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from ballast_broker.raft.messages import Fetch, FetchReply
from ballast_broker.raft.terms import LogView, Timeouts
from ballast_broker.raft.voters import VoterSet

UNKNOWN = -1


@dataclass(slots=True)
class ReplicaProgress:
    id: int
    directory: UUID | None = None
    """The replica's directory id; None if unknown."""
    end_offset: int = UNKNOWN
    fetched_at: float = float("-inf")
    caught_up_at: float = float("-inf")
    told_high_watermark: int = UNKNOWN
    begun: bool = False
    """Whether it knows that we lead: it has answered BeginQuorumEpoch, or fetches."""
    begin_sent_at: float = float("-inf")


@dataclass(frozen=True, slots=True)
class ParkedFetch:
    token: int
    request: Fetch
    deadline: float


class Leadership:
    """One term as leader. The own end offset is what is flushed; replicas tell theirs by their fetch offsets."""

    def __init__(
        self, me: int, directory: UUID | None, voters: VoterSet, epoch: int, epoch_start_offset: int, now: float
    ) -> None:
        self.me = me
        self.epoch = epoch
        self.epoch_start_offset = epoch_start_offset
        self.high_watermark = UNKNOWN
        self.own = ReplicaProgress(me, directory, begun=True)
        self.voters: dict[int, ReplicaProgress] = {}
        self.observers: dict[tuple[int, UUID | None], ReplicaProgress] = {}
        self.parked: dict[int, ParkedFetch] = {}
        self.began_at = now
        self.voter_set = voters
        self.follow_voters(voters)

    def follow_voters(self, voters: VoterSet) -> None:
        """As soon as a voter set is in the log it is in force, even before it is committed."""
        before = self.voters
        self.voter_set = voters
        self.voters = {}
        for voter in voters.voters:
            mine = voter.id == self.me and voter.directory in (None, self.own.directory)
            known = self.own if mine else before.get(voter.id)
            if known is None or voter.directory not in (None, known.directory):
                known = self.observers.pop((voter.id, voter.directory), None)
            self.voters[voter.id] = known or ReplicaProgress(voter.id, voter.directory)
        voting = [id(progress) for progress in self.voters.values()]
        for progress in before.values():
            if id(progress) not in voting and progress is not self.own:
                self.observers[progress.id, progress.directory] = progress

    def known(self, replica: int, directory: UUID | None) -> ReplicaProgress | None:
        if self.voter_set.has(replica, directory):
            return self.voters[replica]
        return self.observers.get((replica, directory))

    def progress(self, replica: int, directory: UUID | None) -> ReplicaProgress:
        known = self.known(replica, directory)
        if known is None:
            known = self.observers[replica, directory] = ReplicaProgress(replica, directory)
        return known

    def directory_of(self, voter: int) -> UUID | None:
        return self.voters[voter].directory

    def local_flushed(self, end_offset: int, now: float) -> None:
        self.own.end_offset = max(self.own.end_offset, end_offset)
        self.own.fetched_at = self.own.caught_up_at = now

    def fetched(self, request: Fetch, log_end_offset: int, now: float) -> None:
        progress = self.progress(request.replica, request.directory)
        progress.directory = request.directory
        progress.begun = True
        progress.fetched_at = now
        progress.end_offset = request.offset
        if request.offset >= log_end_offset:
            progress.caught_up_at = now

    def advance_high_watermark(self) -> bool:
        """Advance to what a majority has, once that includes a record of this epoch; never goes back."""
        ends = sorted((progress.end_offset for progress in self.voters.values()), reverse=True)
        majority_end = ends[len(ends) // 2]
        if majority_end <= self.epoch_start_offset or majority_end <= self.high_watermark:
            return False
        self.high_watermark = majority_end
        return True

    def majority_contact(self) -> float:
        """The latest time since which a majority (with us, if we are a voter) has been heard from; the start of the
        term counts as contact."""
        others = [progress for progress in self.voters.values() if progress is not self.own]
        needed = len(self.voters) // 2 + 1 - (len(self.voters) - len(others))
        times = sorted(map(self._last_heard, others), reverse=True)
        return times[needed - 1] if needed else float("inf")

    def deadline(self, timeouts: Timeouts) -> float:
        """When the next action is due: stepping down, answering a parked fetch, telling a voter again."""
        nearest = self.majority_contact() + timeouts.check_quorum_s
        for parked in self.parked.values():
            nearest = min(nearest, parked.deadline)
        for progress in self.voters.values():
            if not progress.begun:
                nearest = min(nearest, progress.begin_sent_at + timeouts.begin_epoch_s)
            elif progress is not self.own:
                nearest = min(nearest, self._last_heard(progress) + timeouts.fetch_s)
        return nearest

    def _last_heard(self, progress: ReplicaProgress) -> float:
        return max(progress.fetched_at, self.began_at)

    def doubt_the_silent(self, now: float, timeouts: Timeouts) -> None:
        """A voter that was unreachable may have lost track of the leader: tell it again until it fetches."""
        for progress in self.voters.values():
            # Computed exactly as in `deadline`: otherwise rounding could make it due for ever.
            silent = now >= self._last_heard(progress) + timeouts.fetch_s
            if progress.begun and progress is not self.own and silent:
                progress.begun = False

    def postpone(self, seconds: float) -> None:
        """This process was stalled for so long and could not hear anybody: extend all deadlines."""
        self.began_at += seconds
        for progress in self.voters.values():
            progress.fetched_at += seconds

    def successors(self) -> tuple[int, ...]:
        """Other voters, the one with the longest log first."""
        others = [progress for progress in self.voters.values() if progress is not self.own]
        return tuple(progress.id for progress in sorted(others, key=lambda each: (-each.end_offset, each.id)))

    def forget_old_observers(self, silent_since: float) -> None:
        for key in [key for key, each in self.observers.items() if each.fetched_at < silent_since]:
            del self.observers[key]


def misfit(log: LogView, epoch: int, leader: int, request: Fetch) -> FetchReply | None:
    """The reply to a replica whose log is not a prefix of the leader's: truncate, or load a snapshot; None if it is."""
    snapshot = log.latest_snapshot
    if request.offset < log.start_offset:
        assert snapshot is not None, "a log that begins later than at 0 begins after a snapshot"
        return FetchReply(epoch, leader, snapshot=snapshot)
    if request.offset == 0 or (snapshot is not None and (request.offset, request.last_epoch) == snapshot):
        return None
    known, end_offset = log.epoch_end_offset(request.last_epoch)
    if known == request.last_epoch and request.offset <= end_offset:
        return None
    if known < 0:
        if snapshot is not None:
            return FetchReply(epoch, leader, snapshot=snapshot)
        return FetchReply(epoch, leader, diverging=(0, 0))
    return FetchReply(epoch, leader, diverging=(known, end_offset))
