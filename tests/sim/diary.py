"""Records what the clients of the simulation know of transactions: who did what, when, and what they were told."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

Place = tuple[TopicPartition, int]


def now() -> float:
    return asyncio.get_running_loop().time()


class Outcome(enum.Enum):
    NOT = "not committed"  # aborted, or nobody ever asked to commit it
    MAYBE = "asked to commit, and not told what came of it"
    COMMITTED = "committed"


class Identity(NamedTuple):
    """The identity of a producer; a greater one fences a smaller one."""

    producer_id: int
    epoch: int


NOBODY = Identity(-1, -1)


@dataclass(eq=False)
class Transaction:
    name: str  # the transactional id
    number: int  # counts the transactions of this id
    values: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    offset: int | None = None  # what a group commits with it
    identity: Identity = NOBODY
    commit_asked_s: float | None = None
    outcome: Outcome = Outcome.NOT

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.name} ({self.outcome.value})"


class Beginning(NamedTuple):
    """An incarnation of a transactional id got its identity; from then on all earlier ones are fenced."""

    name: str
    identity: Identity
    at_s: float


class Refusal(NamedTuple):
    """An incarnation got a fatal error: it can do nothing any more."""

    name: str
    identity: Identity
    error: ErrorCode
    at_s: float


@dataclass
class Diary:
    transactions: list[Transaction] = field(default_factory=list)
    beginnings: list[Beginning] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    acked: dict[Place, bytes] = field(default_factory=dict)
    plain: set[bytes] = field(default_factory=set)  # sent outside of transactions
    seen: dict[Place, bytes] = field(default_factory=dict)  # by read_committed consumers
    deleted: dict[TopicPartition, int] = field(default_factory=dict)  # what is before this offset may be gone
    broken: list[str] = field(default_factory=list)  # violations noticed while they happened
    _watching: list[asyncio.Future[Transaction]] = field(default_factory=list)

    def begin(self, name: str, partitions: list[TopicPartition]) -> Transaction:
        number = 1 + sum(each.name == name for each in self.transactions)
        transaction = Transaction(name, number, {each: [] for each in partitions})
        self.transactions.append(transaction)
        return transaction

    def ask_to_commit(self, transaction: Transaction, identity: Identity) -> None:
        """Note that its producer is about to send the commit."""
        transaction.identity, transaction.commit_asked_s, transaction.outcome = identity, now(), Outcome.MAYBE
        for each in self._watching:
            if not each.done():
                each.set_result(transaction)
        self._watching.clear()

    async def next_commit(self, seconds: float) -> Transaction | None:
        """Wait until a producer is about to commit; return its transaction, or None if that takes too long."""
        asked: asyncio.Future[Transaction] = asyncio.get_running_loop().create_future()
        self._watching.append(asked)
        try:
            return await asyncio.wait_for(asked, seconds)
        except TimeoutError:
            return None

    def is_fenced(self, name: str, identity: Identity, at_s: float) -> bool:
        """Whether a later incarnation had its identity by that time.

        After the transactional id has expired, the next incarnation gets another producer id, which may be lower.
        """
        told = [each for each in self.beginnings if each.name == name and each.at_s < at_s]
        same = [each for each in told if each.identity.producer_id == identity.producer_id]
        if any(identity < each.identity for each in same):
            return True
        since_s = min((each.at_s for each in same), default=at_s)
        return any(each.at_s > since_s for each in told if each not in same)

    def names(self) -> set[str]:
        return {each.name for each in self.transactions}
