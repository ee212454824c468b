"""Defines what the Raft core is set up with: its view of the log, timeouts, and persisted state. PURE."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, Protocol
from uuid import UUID

from ballast_broker.raft.messages import NOBODY, SnapshotId
from ballast_broker.raft.voters import VoterSet

FOREVER = float("inf")
NEVER = float("-inf")


class Position(NamedTuple):
    """A log's end, ordered as Raft compares logs: the greater one may have committed records that the other lacks."""

    epoch: int
    """The epoch of the last record."""
    end_offset: int


NOWHERE = Position(0, 0)


class LogView(Protocol):
    """What the core needs of the metadata log (synchronous, no waiting)."""

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot after which the log begins; 0 if there is neither."""

    @property
    def lacks(self) -> Position | None:
        """The end up to which the log was once on stable storage, if its disk has lost some of that; else None."""

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...
    @property
    def voters(self) -> VoterSet:
        """The voters by the newest voters record, committed or not."""

    @property
    def voters_before(self) -> VoterSet:
        """The voters by the previous voters record."""

    @property
    def voters_offset(self) -> int:
        """The offset of the newest voters record; -1 if the voters do not come from the log."""

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above `epoch` and its end offset; (-1, -1) if the log begins later."""


class Role(Enum):
    UNATTACHED = "unattached"
    FOLLOWER = "follower"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """In seconds. Kafka's defaults, except for the first election, which need not wait for anybody."""

    election_s: float = 1.0
    fetch_s: float = 2.0
    fetch_wait_ms: int = 500
    retry_s: float = 0.02
    backoff_s: float = 0.05
    backoff_max_s: float = 1.0
    first_election_s: float = 0.1
    begin_epoch_s: float = 1.0

    @property
    def check_quorum_s(self) -> float:
        return self.fetch_s * 1.5

    def stretched(self, factor: float) -> Timeouts:
        """Longer timeouts, for peers that take longer to answer."""
        return replace(self, election_s=self.election_s * factor, fetch_s=self.fetch_s * factor)


DEFAULT_TIMEOUTS = Timeouts()


@dataclass(frozen=True, slots=True)
class Persisted:
    epoch: int = 0
    voted_for: int = NOBODY
    leader: int = NOBODY
    voted_directory: UUID | None = None
