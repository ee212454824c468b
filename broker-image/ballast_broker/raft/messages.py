"""Defines the messages between the nodes of the metadata quorum, and the core's effects for its driver. PURE.

The requests and replies are Kafka's (Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot); `raft/wire.py`
converts them to their wire form. Effects are carried out in order; `Persist` must be durable before any later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ballast_broker.raft.voters import VoterSet
from ballast_wire.errors import ErrorCode

NOBODY = -1


class SnapshotId(NamedTuple):
    """`offset` is the first one that the snapshot does not contain; `epoch` is that of its last record."""

    offset: int
    epoch: int


# ---------------------------------------------------------------------- requests and replies


@dataclass(frozen=True, slots=True)
class Vote:
    epoch: int
    candidate: int
    last_epoch: int
    end_offset: int
    pre_vote: bool
    directory: UUID | None = None
    """The candidate's directory id."""
    voter_directory: UUID | None = None
    """The directory id of the voter asked; None if the candidate does not know it."""
    voter: int | None = None
    """The id of the voter asked, in a received request: another node may have its address by now."""


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    epoch: int
    leader: int
    voter_directory: UUID | None = None
    voter: int | None = None


@dataclass(frozen=True, slots=True)
class EndEpoch:
    epoch: int
    leader: int
    successors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    epoch: int
    replica: int
    offset: int
    last_epoch: int
    max_wait_ms: int
    directory: UUID | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply to Vote, BeginEpoch and EndEpoch; each tells the sender's epoch and the leader it knows."""

    epoch: int
    leader: int
    error: ErrorCode = ErrorCode.NONE
    granted: bool = False


@dataclass(frozen=True, slots=True)
class FetchReply:
    """Exactly one of: an error, a divergence, a snapshot to load, or records (which may be none)."""

    epoch: int
    leader: int
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    diverging: tuple[int, int] | None = None
    """The last epoch in common and its end offset: truncate there."""
    snapshot: SnapshotId | None = None
    records: bytes | memoryview = b""


Request = Vote | BeginEpoch | EndEpoch | Fetch

# ---------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Persist:
    """Write epoch, vote and leader to stable storage before going on."""

    epoch: int
    voted_for: int
    leader: int
    voted_directory: UUID | None = None


@dataclass(frozen=True, slots=True)
class Send:
    to: int
    request: Request


@dataclass(frozen=True, slots=True)
class AnswerFetch:
    """Answer the fetch `token`, parked or just received; the driver reads the records from the log."""

    token: int
    reply: FetchReply
    from_offset: int = -1
    """First offset to send; -1 for no records."""


@dataclass(frozen=True, slots=True)
class AppendLeaderChange:
    """Append, then tell the core (`appended`)."""

    epoch: int
    voters: VoterSet
    granting: tuple[int, ...]
    founds: bool = False
    """The voters come from formatting, and are not in the log yet: from this record on the log names them."""


@dataclass(frozen=True, slots=True)
class AppendVoters:
    """Append, then tell the core (`appended`)."""

    epoch: int
    voters: VoterSet


@dataclass(frozen=True, slots=True)
class AppendFetched:
    """Append, flush, then tell the core (`flushed`)."""

    records: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Truncate:
    offset: int


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """Fetch this snapshot from the leader, begin the log after it, then tell the core (`snapshot_loaded`)."""

    leader: int
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class HighWatermark:
    offset: int


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """The leader from now on (-1: unknown). Also tells that this node became leader, or no longer is."""

    leader: int
    epoch: int


Effect = (
    Persist
    | Send
    | AnswerFetch
    | AppendLeaderChange
    | AppendVoters
    | AppendFetched
    | Truncate
    | LoadSnapshot
    | HighWatermark
    | LeaderChanged
)
