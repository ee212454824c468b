"""A member of the classic protocol with cooperative rebalancing: it revokes some partitions and keeps the rest.

It joins with the partitions that it owns; those that a plan takes from it it revokes sooner or later, and then joins
again, so that another member gets them. If it is told that it is no member, got no response for a session timeout, or
has not rejoined within the rebalance timeout, it must assume that others own its partitions, and starts over.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from typing import Any
from uuid import UUID

from tests.sim.checkers import Broken
from tests.sim.clients import RETRY_S, SimClient
from tests.sim.members import Holders

from ballast_broker.coordinator.consumers.embedded import assignment_of, subscription_of
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

FIND, JOIN, SYNC, BEAT, LEAVE = 3, 9, 5, 4, 5
SESSION_S = 3.0
REBALANCE_S = 6.0
INTERVAL_S = 0.3
ANSWER_S = REBALANCE_S + SESSION_S
GIVES_BACK = 0.6  # the share that it revokes at a time of what it has to
PROTOCOL = "cooperative-sticky"
ANOTHER_COORDINATOR = {
    ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}  # fmt: skip
IS_NOBODY = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}
TO_ACT_UPON = {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED}


class Over(Exception):
    """It is not a member any more."""


def now() -> float:
    return asyncio.get_running_loop().time()


def _named(topic: str, numbers: set[int]) -> bytes:
    name = topic.encode()
    return struct.pack(">ih", 1, len(name)) + name + struct.pack(f">i{len(numbers)}i", len(numbers), *sorted(numbers))


def subscription(topic: str, owned: set[int]) -> bytes:
    name = topic.encode()
    return struct.pack(">hih", 1, 1, len(name)) + name + struct.pack(">i", -1) + _named(topic, owned)


def assignment(topic: str, numbers: set[int]) -> bytes:
    return struct.pack(">h", 1) + _named(topic, numbers) + struct.pack(">i", -1)


def plan(owned: dict[str, set[int]], partitions: int) -> dict[str, set[int]]:
    """Give equally many to each, and move as few as possible. What another member still owns nobody gets yet: that
    member revokes it and joins once more."""
    order = sorted(owned, key=lambda each: (-len(owned[each]), each))
    most, with_one_more = divmod(partitions, len(order))
    shares = {member_id: most + (place < with_one_more) for place, member_id in enumerate(order)}
    left = set(range(partitions))
    planned: dict[str, set[int]] = {}
    for member_id in order:
        planned[member_id] = set(sorted(owned[member_id] & left)[: shares[member_id]])
        left -= planned[member_id]
    for member_id in order:
        taken = set(sorted(left)[: shares[member_id] - len(planned[member_id])])
        left -= taken
        others = set().union(*(numbers for other, numbers in owned.items() if other != member_id))
        planned[member_id] |= taken - others
    return planned


class Cooperative:
    """Lives one life after the other, each with its own member id."""

    def __init__(
        self, clients: tuple[SimClient, SimClient], rng: random.Random, topic: str, topic_id: UUID, partitions: int,
        holders: Holders, group: str, moves: asyncio.Event,
    ) -> None:  # fmt: skip
        self._client, self._beats = clients  # two, so that heartbeats go on while another request waits
        self._rng = rng
        self._topic = topic
        self._topic_id = topic_id
        self._partitions = partitions
        self._holders = holders
        self._group = group
        self._moves = moves  # a plan takes something from somebody
        self._name = self._client.name
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._holders.forget(self._name)
        self._coordinator: str | None = None
        self._member_id, self._generation = "", -1
        self.held: set[int] = set()
        self._gives: set[int] = set()
        self._joins = True
        self._answered_s = self._calm_s = 0.0  # when it sent the last request whose answer said: a member; no rebalance

    async def run(self) -> None:
        while True:
            patience = asyncio.timeout(None)
            try:
                async with patience as self._patience:
                    await self._live()
            except TimeoutError:
                if not patience.expired():
                    raise
            except Over:
                pass
            self._begin_anew()
            await asyncio.sleep(RETRY_S)

    async def _live(self) -> None:
        while True:
            if self._joins and not self._gives:
                await self._join()
            else:
                self._give_back()
                await self._beat()
            await asyncio.sleep(self._rng.uniform(0.5, 1.5) * (RETRY_S if self._joins else INTERVAL_S))

    async def leave(self) -> None:
        kind = message("LeaveGroupRequest")
        identity = kind.MemberIdentity(version=LEAVE, member_id=self._member_id, group_instance_id=None, reason=None)
        self._holders.forget(self._name)
        await self._ask(self._beats, kind(group_id=self._group, members=[identity]), LEAVE)

    # -- into a generation ----------------------------------------------------------------------------------------
    async def _join(self) -> None:
        kind = message("JoinGroupRequest")
        protocol = kind.JoinGroupRequestProtocol(
            version=JOIN, name=PROTOCOL, metadata=subscription(self._topic, self.held)
        )
        request = kind(
            group_id=self._group, member_id=self._member_id, group_instance_id=None, reason=None,
            session_timeout_ms=int(SESSION_S * 1000), rebalance_timeout_ms=int(REBALANCE_S * 1000),
            protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        asked_s = now()
        answer = await self._ask_while_it_beats(request, JOIN)
        error = self._error(answer)
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            raise Broken(f"who joins hears nothing that some clients do not survive: {self._name} hears {error.name}")
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
        elif error is ErrorCode.NONE:
            self._member_id, self._generation = answer.member_id, answer.generation_id
            self._heard(asked_s, calm=True)
            is_leader = answer.leader == answer.member_id and not answer.skip_assignment
            await self._sync(self._plan(answer) if is_leader else {})

    def _plan(self, answer: Any) -> dict[str, set[int]]:
        owned = {
            each.member_id: set(subscription_of(bytes(each.metadata)).owned.get(self._topic, ()))
            for each in answer.members
        }
        planned = plan(owned, self._partitions)
        if any(numbers - planned[member_id] for member_id, numbers in owned.items()):
            self._moves.set()
        return planned

    async def _sync(self, planned: dict[str, set[int]]) -> None:
        kind = message("SyncGroupRequest")
        request = kind(
            group_id=self._group, generation_id=self._generation, member_id=self._member_id, group_instance_id=None,
            protocol_type="consumer", protocol_name=PROTOCOL,
            assignments=[
                kind.SyncGroupRequestAssignment(
                    version=SYNC, member_id=member_id, assignment=assignment(self._topic, numbers)
                )
                for member_id, numbers in planned.items()
            ],
        )  # fmt: skip
        asked_s = now()
        answer = await self._ask_while_it_beats(request, SYNC)
        if self._error(answer) is not ErrorCode.NONE:
            return
        assigned = set(assignment_of(bytes(answer.assignment))[0].get(self._topic, ()))
        self._gives, self._joins = self.held - assigned, False
        self._heard(asked_s, calm=True)
        if now() >= self._until_s():
            raise Over
        for number in sorted(assigned - self.held):
            self._holders.take(self._name, (self._topic_id, number))
        self.held |= assigned
        self._heard(asked_s, calm=True)

    # -- in a generation ------------------------------------------------------------------------------------------
    def _give_back(self) -> None:
        for number in sorted(self._gives):
            if self._rng.random() < GIVES_BACK:
                self._holders.give_back(self._name, (self._topic_id, number))
                self._gives.discard(number)
                self.held.discard(number)
                self._joins = True

    async def _beat(self) -> None:
        kind = message("HeartbeatRequest")
        request = kind(
            group_id=self._group, generation_id=self._generation, member_id=self._member_id, group_instance_id=None
        )
        asked_s = now()
        error = self._error(await self._ask(self._beats, request, BEAT))
        if error is not None:
            self._heard(asked_s, calm=error is ErrorCode.NONE)
            self._joins = self._joins or error is ErrorCode.REBALANCE_IN_PROGRESS

    def _heard(self, asked_s: float, *, calm: bool) -> None:
        self._answered_s = max(self._answered_s, asked_s)
        if calm:
            self._calm_s = max(self._calm_s, asked_s)
        self._patience.reschedule(self._until_s() if self.held else None)

    def _until_s(self) -> float:
        """Until then nobody else gets its partitions: so long the group waits for a live member to rejoin."""
        return min(self._answered_s + SESSION_S, self._calm_s + REBALANCE_S)

    # -- coordinators ---------------------------------------------------------------------------------------------
    async def _ask_while_it_beats(self, request: Any, version: int) -> Any:
        asking = asyncio.get_running_loop().create_task(self._ask(self._client, request, version))
        try:
            while not (await asyncio.wait({asking}, timeout=INTERVAL_S))[0]:
                if self.held:
                    with contextlib.suppress(Over):  # it may be in the next generation without knowing it yet
                        await self._beat()
            return asking.result()
        finally:
            asking.cancel()

    def _error(self, answer: Any) -> ErrorCode | None:
        """None if there is no answer, or only that another broker coordinates."""
        error = None if answer is None else ErrorCode(answer.error_code)
        if error is None or error in ANOTHER_COORDINATOR:
            self._coordinator = None
            return None
        if error in IS_NOBODY:
            raise Over
        if error not in TO_ACT_UPON:
            raise Broken(f"a member is told what it can act upon: {self._name} hears {error.name}")
        return error

    async def _ask(self, client: SimClient, request: Any, version: int) -> Any:
        try:
            host = self._coordinator
            if host is None:
                find = message("FindCoordinatorRequest")
                found = await client.ask_any(find(key=self._group, key_type=0), FIND)
                if found.error_code:
                    return None
                host = self._coordinator = found.host
            answer = await client.ask(host, request, version)
        except (OSError, TimeoutError):
            return None
        if answer.error_code == ErrorCode.NONE:
            self._holders.answered_by[self._name] = host
        return answer
