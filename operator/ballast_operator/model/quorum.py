"""Defines the view of the metadata quorum as its leader reports it: one immutable snapshot. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

STATIC, DYNAMIC = 0, 1
"""Levels of kraft.version: the configuration defines the voters, or the metadata log does."""
SILENT_MS = 5_000
BEHIND_MS = 30_000


class Member(NamedTuple):
    """A node with its directory id: with another disk it is another member. Times are by the leader's clock."""

    node: int
    directory: UUID | None
    end_offset: int
    fetched_ms: int
    caught_up_ms: int


@dataclass(frozen=True, slots=True)
class QuorumView:
    """`hosts` are those of the voters, as the metadata log has them."""

    version: int
    leader: int
    high_watermark: int
    voters: Mapping[int, Member]
    observers: tuple[Member, ...] = ()
    hosts: Mapping[int, str] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        """Whether all of the leader's log is committed, so that no other leader can undo it."""
        leader = self.voters.get(self.leader)
        return leader is not None and self.high_watermark >= leader.end_offset

    @property
    def in_step(self) -> frozenset[int]:
        """The voters that follow the metadata log without lagging."""
        return frozenset(node for node, member in self.voters.items() if self.follows(member))

    def is_silent(self, member: Member) -> bool:
        return member.node != self.leader and self._now_ms - member.fetched_ms > SILENT_MS

    def follows(self, member: Member) -> bool:
        caught_up = member.node == self.leader or self._now_ms - member.caught_up_ms <= BEHIND_MS
        return caught_up and not self.is_silent(member)

    @property
    def _now_ms(self) -> int:
        return max(member.fetched_ms for member in (*self.voters.values(), *self.observers))
