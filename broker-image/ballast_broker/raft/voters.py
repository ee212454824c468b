"""Defines voter sets and their history in the metadata log: the newest one is in force, committed or not. PURE.

In a static quorum (kraft.version 0) the configuration names the voters, without directory ids, and the log does not.
From kraft.version 1 on the log's newest voters record is in force as soon as it is appended; truncation undoes it.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

STATIC, DYNAMIC = 0, 1
"""Levels of the feature kraft.version."""
SUPPORTED = (STATIC, DYNAMIC)
BEFORE_THE_LOG = -1


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Voter:
    """A node with one particular metadata directory: with another directory id it is a different voter."""

    id: int
    directory: UUID | None = None
    """The directory id; None in a static quorum, where only the voter id counts."""
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    """By listener name. A voter whose addresses change is still the same voter."""
    versions: tuple[int, int] = SUPPORTED

    def __str__(self) -> str:
        """In Kafka's notation."""
        return key_text(self.id, self.directory)

    def __hash__(self) -> int:
        return hash((self.id, self.directory))


@dataclass(frozen=True, slots=True)
class VoterSet:
    version: int
    voters: tuple[Voter, ...]
    ids: tuple[int, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(voter.id for voter in self.voters))

    @property
    def is_static(self) -> bool:
        return self.version == STATIC and bool(self.voters)

    def find(self, voter_id: int) -> Voter | None:
        return next((voter for voter in self.voters if voter.id == voter_id), None)

    def has(self, replica: int, directory: UUID | None) -> bool:
        voter = self.find(replica)
        return voter is not None and voter.directory in (None, directory)

    def with_voter(self, voter: Voter) -> VoterSet:
        """Add the voter, replacing the one with its id, if any."""
        others = [each for each in self.voters if each.id != voter.id]
        return voter_set(self.version, [*others, voter])

    def without(self, voter_id: int) -> VoterSet:
        return VoterSet(self.version, tuple(each for each in self.voters if each.id != voter_id))

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.voters))}]"


def voter_set(version: int, voters: Iterable[Voter]) -> VoterSet:
    return VoterSet(version, tuple(sorted(voters, key=lambda voter: voter.id)))


NO_VOTERS = VoterSet(STATIC, ())
"""For a node without configured voters whose log is empty: it finds the leader by the bootstrap servers."""


class VoterHistory:
    """The voter sets in a log, each with its record's offset; before them the one known without the log."""

    def __init__(self, base: VoterSet) -> None:
        self._base = base
        self._entries: list[tuple[int, VoterSet]] = []
        self._start = 0
        self.latest = base
        self.offset = BEFORE_THE_LOG
        """The offset of the record of `latest`."""

    def begin_with(self, base: VoterSet) -> None:
        """Set the voters to use if the log names none."""
        self._base = base
        self._look()

    def add(self, offset: int, voters: VoterSet) -> None:
        assert offset > self.offset
        self._entries.append((offset, voters))
        self._look()

    def cut(self, end_offset: int) -> None:
        """The log was truncated to `end_offset`."""
        self._entries = [entry for entry in self._entries if entry[0] < end_offset]
        self._look()

    def begin_after(self, end_offset: int, voters: VoterSet | None) -> None:
        """The log begins at `end_offset`, after a snapshot with these voters (None: it names none)."""
        self._entries = [] if voters is None else [(end_offset - 1, voters)]
        self._start = end_offset
        self._look()

    @property
    def previous(self) -> VoterSet:
        """The voter set before the latest; NO_VOTERS if it is not known."""
        if len(self._entries) > 1:
            return self._entries[-2][1]
        return self._base if self._entries and self._entries[0][0] > self._start else NO_VOTERS

    def before(self, end_offset: int) -> VoterSet | None:
        """The voter set in the log up to `end_offset`; None if it names none."""
        return next((voters for offset, voters in reversed(self._entries) if offset < end_offset), None)

    def _look(self) -> None:
        self.offset, self.latest = self._entries[-1] if self._entries else (BEFORE_THE_LOG, self._base)


def key_text(replica: int, directory: UUID | None) -> str:
    text = "<undefined>" if directory is None else uuid_text(directory)
    return f"ReplicaKey(id={replica}, directoryId={text})"


def uuid_text(directory: UUID) -> str:
    return urlsafe_b64encode(directory.bytes).rstrip(b"=").decode()
