"""Tracks which partitions of a fetch session may have news: the others cost nothing, however many there are.

A partition is due until a look finds it settled: everything read and committed, and a follower in the ISR. From then on
its replica tells when something changes. A follower implicitly fetches a settled partition with each request of its
session; what the leader must know of that (`Follower.asked_again`) is recorded when the partition is due again.
Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ballast_broker.replication.reading import READ_COMMITTED, FetchEntry, FetchParams, FetchResult
from ballast_wire.errors import ErrorCode

if TYPE_CHECKING:
    from ballast_broker.replication.replica import Replica
    from ballast_broker.replication.waiting import ParkedFetch

NEVER_TOLD: Final = -2


class Watch:
    """The watch of one session. `due` is in the order in which partitions are read."""

    __slots__ = ("asked_ms", "due", "parked", "replica_id")

    def __init__(self) -> None:
        self.due: dict[Watched, None] = {}
        self.replica_id = -1
        self.asked_ms = 0  # when the session's last request came
        self.parked: ParkedFetch | None = None

    @property
    def of_follower(self) -> bool:
        return self.replica_id >= 0

    def asked(self, params: FetchParams, now_ms: int) -> None:
        self.replica_id = params.replica_id
        self.asked_ms = now_ms

    def mark(self, entry: Watched) -> None:
        """Make the partition due: look at it with the next response."""
        if entry in self.due:
            return
        self.due[entry] = None
        if self.replica_id >= 0 and entry.replica is not None:
            follower = entry.replica.state.followers.get(self.replica_id)
            if follower is not None:
                follower.asked_again(self.asked_ms)

    def to_read(self, entries: Iterable[FetchEntry], *, full: bool) -> list[FetchEntry]:
        """Those of `entries` that are still due. If the response is `full`, a consumer's partitions are left out, to be
        read first the next time, except those never told before."""
        read_all = not full or self.of_follower
        return [
            entry
            for entry in entries
            if isinstance(entry, Watched)
            and entry in self.due
            and (read_all or entry.told_high_watermark == NEVER_TOLD)
        ]

    def looked(self, result: FetchResult, params: FetchParams, replica: Replica | None) -> None:
        """Decide whether the partition stays due after this result; from now on `replica` tells of its changes."""
        entry = result.entry
        assert isinstance(entry, Watched)
        if entry.replica is not replica:
            entry.watch_replica(replica)
        if replica is not None and _is_settled(entry, result, params, replica):
            self.due.pop(entry, None)

    def not_told(self, result: FetchResult) -> None:
        """The result will not be sent: if it is news, the partition is due again."""
        entry = result.entry
        if isinstance(entry, Watched) and entry.is_news(result):
            self.due.setdefault(entry)

    def put_last(self, entry: Watched) -> None:
        """A partition that got data is read last the next time: for fairness, if not all fit into one response."""
        if entry in self.due:
            del self.due[entry]
            self.due[entry] = None


@dataclass(slots=True, eq=False)
class Watched(FetchEntry):
    """One partition of a session: what is requested, and what was last told of it."""

    watch: Watch | None = None
    replica: Replica | None = None
    told_high_watermark: int = NEVER_TOLD
    told_log_start_offset: int = NEVER_TOLD

    def ask(self, asked: FetchEntry) -> None:
        """The client changed its request for this partition."""
        if asked.current_leader_epoch != self.current_leader_epoch:  # it may not have used an answer of the one before
            self.told_high_watermark = self.told_log_start_offset = NEVER_TOLD
        self.topic_partition = asked.topic_partition
        self.fetch_offset = asked.fetch_offset
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.current_leader_epoch = asked.current_leader_epoch
        self.log_start_offset = asked.log_start_offset
        self.max_bytes = asked.max_bytes

    def watch_replica(self, replica: Replica | None) -> None:
        if self.replica is not None:
            self.replica.watched.pop(self, None)
        self.replica = replica
        if replica is not None:
            replica.watched[self] = None

    def leave(self) -> None:
        """The session has dropped the partition."""
        if self.watch is not None:
            self.watch.mark(self)  # records until when its follower kept asking
            self.watch.due.pop(self, None)
        self.watch_replica(None)

    def is_news(self, result: FetchResult) -> bool:
        """Whether it must be sent: data, errors and moved offsets. To leave a partition out means no change."""
        return (
            result.error is not ErrorCode.NONE
            or (result.slice is not None and result.slice.size > 0)
            or result.diverging_epoch is not None
            or result.preferred_replica >= 0
            or result.high_watermark != self.told_high_watermark
            or result.log_start_offset != self.told_log_start_offset
        )

    def told(self, result: FetchResult) -> None:
        # To be told again next time, whatever the offsets are then: a follower that has to cut its log first cannot use
        # these either.
        again = result.error is not ErrorCode.NONE or result.diverging_epoch is not None
        self.told_high_watermark = NEVER_TOLD if again else result.high_watermark
        self.told_log_start_offset = NEVER_TOLD if again else result.log_start_offset


def _is_settled(entry: Watched, result: FetchResult, params: FetchParams, replica: Replica) -> bool:
    """Whether the next look can find something else only after `Replica.wake` or `Replica.changed`."""
    if not result.is_plain or result.slice is not None:
        return False
    if params.replica_id < 0:
        committed = params.isolation == READ_COMMITTED
        return entry.fetch_offset >= (result.last_stable_offset if committed else result.high_watermark)
    # Not settled: the high watermark may wait for time to pass (a follower about to join), or an out-of-sync follower
    # must still fetch to join. Nor if the follower may be leaving: nothing wakes us when the controller confirms that.
    log, state = replica.log, replica.state
    return (
        log is not None
        and entry.fetch_offset == log.end_offset == result.high_watermark
        and params.replica_id in state.isr
        and (state.pending is None or params.replica_id in state.pending.members)
    )
