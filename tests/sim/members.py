"""Members of a group of the consumer protocol, whose coordinators are killed, cut off and moved.

A member owns its partitions until it revokes them, is fenced, gets no response for a session timeout, or takes longer
than its rebalance timeout to revoke one: then it must assume that others own them. No partition has two owners at once,
and in the end each has one. But a coordinator that is cut off may still answer its members while a new one, of which
neither it nor they can know, removes them and gives their partitions to others, as in Apache Kafka: a member that was
last answered by such a coordinator counts as owning nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

from tests.sim.checkers import Broken
from tests.sim.clients import RETRY_S, SimClient

from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

GROUP = "members"
FIND, BEAT = 3, 1
SESSION_S = 3.0
INTERVAL_S = 0.3
REBALANCE_S = 2.0
FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
PROPERTIES = {
    "group.consumer.session.timeout.ms": str(int(SESSION_S * 1000)),
    "group.consumer.min.session.timeout.ms": str(int(SESSION_S * 1000)),
    "group.consumer.heartbeat.interval.ms": str(int(INTERVAL_S * 1000)),
    "group.consumer.min.heartbeat.interval.ms": str(int(INTERVAL_S * 1000)),
}

Held = tuple[UUID, int]


class Holders:
    """The global view of who owns what, which no node or client has."""

    def __init__(self, leads: Callable[[str], bool]) -> None:
        self._leads = leads  # whether a host leads the group's partition in the newest leader epoch
        self.of: dict[Held, str] = {}
        self.answered_by: dict[str, str] = {}
        self.times_taken = 0

    def take(self, name: str, partition: Held) -> None:
        other = self.of.get(partition, name)
        if other != name and self._leads(self.answered_by[other]):
            raise Broken(f"a partition has one reader: {name} takes {partition[1]}, which {other} holds")
        self.of[partition] = name
        self.times_taken += 1

    def give_back(self, name: str, partition: Held) -> None:
        if self.of.get(partition) == name:
            del self.of[partition]

    def forget(self, name: str) -> None:
        for partition in [each for each, holder in self.of.items() if holder == name]:
            del self.of[partition]


class Member:
    def __init__(
        self, client: SimClient, rng: random.Random, topic: str, holders: Holders, group: str = GROUP
    ) -> None:  # fmt: skip
        self._client = client
        self._rng = rng
        self._group = group
        self._topic = topic
        self._holders = holders
        self._name = client.name
        self._lives = 0
        self._coordinator: str | None = None
        self._answered_s = 0.0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._holders.forget(self._name)
        self._lives += 1
        self.epoch = 0
        self.held: set[Held] = set()
        self.wanted: set[Held] | None = None
        self._gives_since_s: float | None = None  # when it was told to revoke something, until it confirms that it did
        self._gave = False
        self._says_all = True

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            too_slow = self._gives_since_s is not None and loop.time() >= self._gives_since_s + REBALANCE_S
            if too_slow or (self.epoch > 0 and loop.time() >= self._answered_s + SESSION_S):
                self._begin_anew()
            await self._beat()
            self._move_on()
            pause_s = self._rng.uniform(0.5, 1.5) * INTERVAL_S
            left_s = self._answered_s + SESSION_S - loop.time() if self.epoch > 0 else pause_s
            if self._gives_since_s is not None:
                left_s = min(left_s, self._gives_since_s + REBALANCE_S - loop.time())
            await asyncio.sleep(max(0.0, min(pause_s, left_s)))

    async def _beat(self) -> None:
        asked_s = asyncio.get_running_loop().time()
        try:
            left_s = self._answered_s + SESSION_S - asked_s if self.epoch > 0 else SESSION_S
            if self._gives_since_s is not None:
                left_s = min(left_s, self._gives_since_s + REBALANCE_S - asked_s)
            async with asyncio.timeout(left_s):
                answer = await self._ask()
        except (OSError, TimeoutError):
            answer = None
        error = None if answer is None else ErrorCode(answer.error_code)
        if answer is None or error is None:
            self._coordinator = None
            self._says_all, self.wanted = True, None  # it takes nothing new before its assignment is sent again
        elif error is ErrorCode.NONE:
            assert self._coordinator is not None
            self._holders.answered_by[self._name] = self._coordinator
            if self._gave and self._says_all:
                self._gives_since_s, self._gave = None, False
            self._answered_s, self.epoch, self._says_all = asked_s, answer.member_epoch, False
            if answer.assignment is not None:
                given = answer.assignment.topic_partitions
                self.wanted = {(each.topic_id, number) for each in given for number in each.partitions}
                if self.held - self.wanted and self._gives_since_s is None:
                    self._gives_since_s = asked_s
        elif error in FENCED:
            self._begin_anew()
        else:
            self._coordinator = None
            self._says_all = True

    async def _ask(self) -> Any:
        if self._coordinator is None:
            find = message("FindCoordinatorRequest")
            found = await self._client.ask_any(find(key=self._group, key_type=0), FIND)
            if found.error_code:
                return None
            self._coordinator = found.host
        kind = message("ConsumerGroupHeartbeatRequest")
        whole = self._says_all or self.epoch == 0
        held: dict[UUID, list[int]] = {}
        for topic_id, number in sorted(self.held):
            held.setdefault(topic_id, []).append(number)
        parts = [kind.TopicPartitions(version=BEAT, topic_id=each, partitions=held[each]) for each in held]
        request = kind(
            version=BEAT,
            group_id=self._group,
            member_id=f"{self._name}-{self._lives}",
            member_epoch=self.epoch,
            rebalance_timeout_ms=int(REBALANCE_S * 1000) if whole else -1,
            subscribed_topic_names=[self._topic] if whole else None,
            topic_partitions=parts if whole else None,
        )
        return await self._client.ask(self._coordinator, request, BEAT)

    def _move_on(self) -> None:
        """Revoke, sooner or later, what is no longer assigned; once that is done, take what is new and report it."""
        if self.wanted is None:
            return
        for partition in sorted(self.held - self.wanted):
            if self._rng.random() < 0.7:
                self.held.discard(partition)
                self._holders.give_back(self._name, partition)
        if self.held <= self.wanted:
            for partition in sorted(self.wanted - self.held):
                self._holders.take(self._name, partition)
            self.held, self.wanted, self._says_all = self.wanted, None, True
            self._gave = self._gives_since_s is not None


class Members:
    """The members of a group, in tasks of their own: they go on in the quiet phase."""

    def __init__(
        self, clients: list[SimClient], seed: int, topic: str, partitions: int, leads: Callable[[str], bool]
    ) -> None:
        self.holders = Holders(leads)
        self._partitions = partitions
        rng = random.Random(f"members of {seed}")
        self._members = [Member(each, random.Random(rng.random()), topic, self.holders) for each in clients]
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(member.run()) for member in self._members]

    def standing(self) -> list[tuple[int, set[Held]]]:
        """A value that changes whenever a member joins, leaves or is removed."""
        return [(member.epoch, set(member.held)) for member in self._members]

    async def settle(self) -> None:
        """Wait until each partition is owned and all members own equally many, within one."""
        while True:
            for task in self._tasks:
                if task.done():
                    task.result()
            sizes = [len(member.held) for member in self._members]
            if sum(sizes) == self._partitions and max(sizes) - min(sizes) <= 1:
                break
            await asyncio.sleep(RETRY_S)
        for task in self._tasks:
            task.cancel()
