"""Keeps a broker's state of one partition it holds: its role, the ISR, the high watermark. PURE.

Events go in (metadata, an append, a follower's fetch, the controller's response, time), decisions come out: whether
the high watermark moved, which waiting produce requests to complete, which ISR change to ask for. The log is not here;
its end offset comes in with the events. Guarantees: the high watermark never goes back while this broker leads, it
never passes a member of the ISR, and it does not advance while the ISR is below `min.insync.replicas`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from ballast_broker.replication.waiters import Waiter, Waiters
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

UNKNOWN_OFFSET: Final = -1
NEVER_MS: Final = -(2**62)
NO_LEADER: Final = -1


class Registration(Protocol):
    """What the metadata says of a partition (metadata.image.PartitionRegistration)."""

    @property
    def replicas(self) -> tuple[int, ...]: ...
    @property
    def adding_replicas(self) -> tuple[int, ...]: ...
    @property
    def isr(self) -> tuple[int, ...]: ...
    @property
    def elr(self) -> tuple[int, ...]: ...
    @property
    def leader(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def partition_epoch(self) -> int: ...


class Transition(Enum):
    """What new metadata means for this replica."""

    STALE = "older than what is known: ignored"
    NEW_LEADER = "leads a new epoch"
    STILL_LEADER = "leads the same epoch; replicas or ISR may have changed"
    NEW_FOLLOWER = "follows a new epoch"
    STILL_FOLLOWER = "follows the same epoch"


@dataclass(slots=True)
class Follower:
    """The leader's view of another replica."""

    broker_id: int
    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    last_fetch_ms: int = 0
    leader_end_at_last_fetch: int = UNKNOWN_OFFSET
    last_caught_up_ms: int = NEVER_MS
    broker_epoch: int = -1
    # The broker's epoch in the metadata; None if it is fenced or shutting down; -1: not known yet.
    live_epoch: int | None = -1

    @property
    def eligible(self) -> bool:
        """Whether it may be in the ISR: alive, and what we know of its log is from its current broker epoch."""
        live = self.live_epoch
        return live is not None and (live == -1 or self.broker_epoch in (-1, live))

    def has_outlived(self, broker_epoch: int) -> bool:
        """Whether a fetch has an older broker epoch: what the broker had then, it may have lost since."""
        return 0 <= broker_epoch < max(self.broker_epoch, self.live_epoch or -1)

    def fetched(self, offset: int, log_start_offset: int, broker_epoch: int, leader_end: int, now_ms: int) -> None:
        # If it has all that the leader had at the previous fetch, it was caught up at that time.
        if offset >= leader_end:
            self.last_caught_up_ms = now_ms
        elif 0 <= self.leader_end_at_last_fetch <= offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self.leader_end_at_last_fetch = leader_end
        self.last_fetch_ms = now_ms

    def asked_again(self, now_ms: int) -> None:
        """It has repeated its last fetch until `now_ms`, while the leader's log end did not move."""
        if now_ms <= self.last_fetch_ms:
            return
        self.last_fetch_ms = now_ms
        if 0 <= self.leader_end_at_last_fetch <= self.log_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)

    def put_out(self) -> None:
        """The controller removed it from the ISR, perhaps for a failed disk. Forget that it was caught up: otherwise
        the high watermark would wait for it as for one about to join."""
        self.last_caught_up_ms = NEVER_MS
        self.leader_end_at_last_fetch = UNKNOWN_OFFSET

    def caught_up(self, leader_end: int, now_ms: int, max_lag_ms: int) -> bool:
        return self.log_end_offset == leader_end or now_ms - self.last_caught_up_ms <= max_lag_ms


@dataclass(frozen=True, slots=True)
class IsrChange:
    """Effect: ask the controller for this ISR. Each member comes with the broker epoch of its fetches."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(member for member, _ in self.isr)


class IsrAnswer(Enum):
    ACCEPTED = "the change is in force"
    UNDONE = "refused; the ISR is as it was, and may be proposed anew"
    RETRY = "ask again with the same change"
    WAIT = "newer metadata is on its way and will settle it"


_UNDO: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
_WAIT: Final = frozenset(
    {
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)


class Partition:
    """State of one partition on this broker. Anybody may read the attributes; only this class writes them."""

    __slots__ = (
        "adding_replicas", "broker_id", "elr", "epoch_start_offset", "followers", "high_watermark", "isr",
        "leader_epoch", "leader_id", "log_end_offset", "max_lag_ms", "min_insync_replicas", "partition_epoch",
        "pending", "replicas", "topic_partition", "waiting",
    )  # fmt: skip

    def __init__(self, topic_partition: TopicPartition, broker_id: int, *, max_lag_ms: int) -> None:
        self.topic_partition = topic_partition
        self.broker_id = broker_id
        self.max_lag_ms = max_lag_ms
        self.min_insync_replicas = 1
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.adding_replicas: tuple[int, ...] = ()
        self.isr: frozenset[int] = frozenset()
        self.elr: frozenset[int] = frozenset()
        self.pending: IsrChange | None = None
        self.followers: dict[int, Follower] = {}
        self.epoch_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.waiting = Waiters()  # produce requests waiting for an offset to be committed

    # -- role -----------------------------------------------------------------------------------------------------
    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.broker_id

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The ISR and the members of a pending change, which may be in force already."""
        return self.isr if self.pending is None else self.isr.union(self.pending.members)

    @property
    def effective_min_isr(self) -> int:
        return min(self.min_insync_replicas, len(self.replicas))

    @property
    def under_replicated(self) -> bool:
        """Fewer in-sync replicas than there should be, not counting those that a reassignment is adding."""
        return self.is_leader and len(self.isr) < len(self.replicas) - len(self.adding_replicas)

    @property
    def under_min_isr(self) -> bool:
        return self.is_leader and len(self.isr) < self.effective_min_isr

    def become(self, metadata: Registration, *, log_end_offset: int, high_watermark: int, now_ms: int) -> Transition:
        """Apply the metadata. After a lost leadership the caller must refuse the waiting requests."""
        if metadata.leader_epoch < self.leader_epoch or metadata.partition_epoch < self.partition_epoch:
            return Transition.STALE
        new_epoch = metadata.leader_epoch > self.leader_epoch
        self.leader_id = metadata.leader
        self.leader_epoch = metadata.leader_epoch
        if metadata.partition_epoch > self.partition_epoch:
            self.pending = None
        self.partition_epoch = metadata.partition_epoch
        self.replicas, self.adding_replicas = metadata.replicas, metadata.adding_replicas
        for broker_id in self.isr.difference(metadata.isr):
            follower = self.followers.get(broker_id)
            if follower is not None:
                follower.put_out()
        self.isr, self.elr = frozenset(metadata.isr), frozenset(metadata.elr)
        self.log_end_offset = log_end_offset
        if not self.is_leader:
            self.followers.clear()
            self.pending = None
            self.high_watermark = min(high_watermark, log_end_offset)
            return Transition.NEW_FOLLOWER if new_epoch else Transition.STILL_FOLLOWER
        if new_epoch:
            self.epoch_start_offset = log_end_offset
            self.high_watermark = min(high_watermark, log_end_offset)
        self._reset_followers(new_epoch, now_ms)
        self.advance_high_watermark(now_ms)
        return Transition.NEW_LEADER if new_epoch else Transition.STILL_LEADER

    def take_epoch(self, metadata: Registration) -> bool:
        """Apply metadata that changes neither role nor ISR, but for example directories; False if it changes more."""
        if (
            metadata.leader_epoch != self.leader_epoch
            or metadata.partition_epoch < self.partition_epoch
            or self.pending is not None  # its answer depends on the epoch
            or metadata.leader != self.leader_id
            or metadata.replicas != self.replicas
            or self.isr.symmetric_difference(metadata.isr)
        ):
            return False
        self.partition_epoch = metadata.partition_epoch
        self.adding_replicas, self.elr = metadata.adding_replicas, frozenset(metadata.elr)
        return True

    def _reset_followers(self, new_epoch: bool, now_ms: int) -> None:
        known = {} if new_epoch else self.followers
        self.followers = {}
        for broker_id in self.replicas:
            if broker_id == self.broker_id:
                continue
            follower = known.get(broker_id)
            if follower is None:
                follower = Follower(broker_id)
                if broker_id in self.isr:
                    follower.last_caught_up_ms = now_ms
            self.followers[broker_id] = follower

    def update_eligible(self, brokers: Mapping[int, int]) -> None:
        """Set which brokers may be in an ISR (neither fenced nor shutting down), with their epochs."""
        for follower in self.followers.values():
            follower.live_epoch = brokers.get(follower.broker_id)

    # -- the high watermark ---------------------------------------------------------------------------------------
    def appended(self, log_end_offset: int, now_ms: int) -> bool:
        """The leader has appended up to `log_end_offset`. True if the high watermark moved."""
        self.log_end_offset = log_end_offset
        if not self.followers and self.isr:  # the only replica: its effective min ISR is at most 1
            self.high_watermark = log_end_offset
            return True
        return self.advance_high_watermark(now_ms)

    def follower_fetched(
        self, broker_id: int, broker_epoch: int, offset: int, log_start_offset: int, now_ms: int
    ) -> bool:
        """A follower fetched from `offset`, so it has all before that. True if the high watermark moved."""
        follower = self.followers[broker_id]
        follower.fetched(offset, log_start_offset, broker_epoch, self.log_end_offset, now_ms)
        return offset > self.high_watermark and self.advance_high_watermark(now_ms)

    def advance_high_watermark(self, now_ms: int) -> bool:
        if len(self.isr) < self.effective_min_isr:
            return False
        members = self.maximal_isr
        candidate = self.log_end_offset
        for follower in self.followers.values():
            end = follower.log_end_offset
            if end < candidate and (follower.broker_id in members or self._about_to_join(follower, now_ms)):
                candidate = end
        if candidate <= self.high_watermark:
            return False
        self.high_watermark = candidate
        return True

    def _about_to_join(self, follower: Follower, now_ms: int) -> bool:
        # A follower that keeps up could never join if the high watermark always ran ahead of it.
        return follower.eligible and follower.caught_up(self.log_end_offset, now_ms, self.max_lag_ms)

    def follow_high_watermark(self, leader_high_watermark: int, log_end_offset: int) -> int:
        """As a follower: take over the leader's, as far as this log goes. A stale response never moves it back."""
        self.log_end_offset = log_end_offset
        self.high_watermark = max(self.high_watermark, min(leader_high_watermark, log_end_offset))
        return self.high_watermark

    def truncated(self, log_end_offset: int) -> None:
        self.log_end_offset = log_end_offset
        self.high_watermark = min(self.high_watermark, log_end_offset)

    # -- waiting produce requests ---------------------------------------------------------------------------------
    def committed(self, offset: int) -> ErrorCode | None:
        """The response for a produce up to `offset` if that is committed or refused; None: not yet."""
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.high_watermark < offset:
            return None
        if len(self.maximal_isr) < self.effective_min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def take_committed(self) -> list[Waiter]:
        """Take the waiters whose offset the high watermark has reached; `committed` gives their response."""
        return self.waiting.take(self.high_watermark)

    def lowest_log_start_offset(self) -> int:
        """The lowest of all live followers (DeleteRecords waits for it); -1 while one has not fetched yet."""
        starts = [each.log_start_offset for each in self.followers.values() if each.live_epoch is not None]
        return min(starts, default=2**63 - 1)

    # -- the ISR --------------------------------------------------------------------------------------------------
    def propose_expand(self, broker_id: int) -> IsrChange | None:
        """After a follower's fetch: it joins once it has reached the high watermark and the epoch's start offset."""
        if broker_id in self.isr or self.pending is not None:
            return None
        follower = self.followers[broker_id]
        if not follower.eligible or follower.log_end_offset < max(self.high_watermark, self.epoch_start_offset):
            return None
        return self._propose(self.isr | {broker_id})

    def propose_shrink(self, now_ms: int) -> IsrChange | None:
        """Called periodically: members that have not been caught up for too long leave."""
        if not self.is_leader or self.pending is not None:
            return None
        late = {
            follower.broker_id
            for follower in self.followers.values()
            if follower.broker_id in self.isr and not follower.caught_up(self.log_end_offset, now_ms, self.max_lag_ms)
        }
        return self._propose(self.isr - late) if late else None

    def _propose(self, members: frozenset[int]) -> IsrChange:
        epochs = {follower.broker_id: follower.broker_epoch for follower in self.followers.values()}
        isr = tuple((member, epochs.get(member, -1)) for member in sorted(members))
        self.pending = IsrChange(self.leader_epoch, self.partition_epoch, isr)
        return self.pending

    def isr_answered(
        self, change: IsrChange, error: ErrorCode, *, isr: tuple[int, ...], leader_epoch: int, partition_epoch: int
    ) -> IsrAnswer:
        """Apply the controller's response to `change`. After ACCEPTED the high watermark may advance."""
        if self.pending is not change:
            return IsrAnswer.WAIT  # metadata or a new epoch has overtaken it
        if error in _UNDO:
            self.pending = None
            return IsrAnswer.UNDONE
        if error in _WAIT:
            return IsrAnswer.WAIT
        if error is not ErrorCode.NONE:
            return IsrAnswer.RETRY
        if leader_epoch != self.leader_epoch or partition_epoch < self.partition_epoch:
            return IsrAnswer.WAIT
        if partition_epoch > self.partition_epoch and not self.isr <= {*isr}:
            # Members left the ISR; whether into the ELR depends on min.insync.replicas at that time, and a change of
            # that may still be on its way to us: wait for the metadata.
            return IsrAnswer.WAIT
        self.pending = None
        self.isr = frozenset(isr)
        self.partition_epoch = partition_epoch
        return IsrAnswer.ACCEPTED
