"""Members of a group of the classic protocol, whose coordinators are killed, cut off and moved.

Members leave, vanish, or stall for longer than a session and then commit as if nothing had happened; one is a static
member, whose next life may begin before its last one is over. What must hold:

- each generation has one plan (assignment), whoever is told it, and by whichever coordinator;
- once anybody has been told the plan of a generation, nobody can commit in an earlier one, nor as a previous life of a
  static member whose new life has been told its part;
- the last acknowledged offset stays, unless a later commit without an answer took effect;
- when all is quiet all members are in one generation, and each partition is assigned.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.sim.aimed import MOMENT_S, AimedFaults
from tests.sim.checkers import Broken
from tests.sim.clients import RETRY_S, SimClient
from tests.sim.network import Fabric
from tests.sim.offsets import PARTITIONS as OFFSETS_PARTITIONS
from tests.sim.offsets import TOPIC as OFFSETS
from tests.sim.schedule import QUIET_LIMIT_S, TOPIC, Run

from ballast_broker.coordinator.service import partition_for
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

GROUP = "classics"
MEMBERS = 3
FIND, JOIN, SYNC, BEAT, LEAVE, COMMIT, FETCH = 3, 9, 5, 4, 5, 8, 7
SESSION_S = 3.0
REBALANCE_S = 2.0
INTERVAL_S = 0.3
JOIN_TIMEOUT_S = 2 * REBALANCE_S + SESSION_S
SYNC_TIMEOUTS_S = (0.02, 0.3, JOIN_TIMEOUT_S)  # after a timeout a leader that joins again makes another plan
STANDS_STILL_S = 1.5 * SESSION_S
PROPERTIES = {"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "500"}
ANOTHER_COORDINATOR = {
    ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}  # fmt: skip
BEGIN_ANEW = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}


def now() -> float:
    return asyncio.get_running_loop().time()


class Committed(NamedTuple):
    """A commit; a greater one came later, or may have."""

    generation: int
    offset: int


class Life(NamedTuple):
    """One life of a static member: its member id, when it asked for it, and when it got it."""

    member_id: str
    asked_s: float
    joined_s: float


@dataclass
class Told:
    """What all members were told: the global view, which no node or client has."""

    plans: dict[int, str] = field(default_factory=dict)
    newest: int = -1
    since_s: float = 0.0  # when the first member was told the plan of the newest generation
    told_s: dict[Life, float] = field(default_factory=dict)  # when a static member was told its part of a plan
    acked: dict[int, Committed] = field(default_factory=dict)
    unknown: dict[int, set[Committed]] = field(default_factory=dict)
    commits: int = 0
    broken: list[str] = field(default_factory=list)  # violations noticed while they happened
    about_to_plan: asyncio.Event = field(default_factory=asyncio.Event)

    def plan(self, generation: int, plan: str) -> None:
        if self.plans.setdefault(generation, plan) != plan:
            self.broken.append(f"one plan for a generation: {generation} has {plan} and {self.plans[generation]}")
        if generation > self.newest:
            self.newest, self.since_s = generation, now()

    def ack(self, partition: int, committed: Committed, sent_s: float, life: Life | None) -> None:
        if committed.generation < self.newest and sent_s > self.since_s:
            self.broken.append(
                f"nobody commits in an earlier generation: {committed} at {sent_s}, {self.newest} since {self.since_s}"
            )
        for later, told_s in self.told_s.items() if life else ():
            if life and later.member_id != life.member_id and life.joined_s < later.asked_s and sent_s > told_s:
                self.broken.append(f"who was replaced commits nothing: {life} at {sent_s}, it was {later} at {told_s}")
        self.acked[partition] = max(committed, self.acked.get(partition, committed))

    def check(self, partition: int, found: int) -> None:
        acked = self.acked.get(partition)
        if acked is None or found == acked.offset:
            return
        maybe = {each.offset for each in self.unknown.get(partition, ()) if each.generation >= acked.generation}
        if found not in maybe:
            raise Broken(f"a group's offset is never lost: of {partition} {acked} was committed, found {found}")


class ClassicMember:
    """One life of a member."""

    def __init__(
        self, client: SimClient, told: Told, rng: random.Random, partitions: int, instance: str | None
    ) -> None:
        self._client = client
        self._told = told
        self._rng = rng
        self._partitions = partitions
        self._instance = instance
        self._coordinator: str | None = None
        self._life: Life | None = None
        self.member_id = ""
        self.generation = -1
        self.held: list[int] = []

    async def run(self) -> None:
        while True:
            if self.generation < 0:
                await self._join()
            else:
                await self._beat()
            await asyncio.sleep(self._rng.uniform(0.5, 1.5) * (INTERVAL_S if self.generation >= 0 else RETRY_S))

    async def leave(self) -> None:
        kind = message("LeaveGroupRequest")
        identity = kind.MemberIdentity(
            version=LEAVE, member_id=self.member_id, group_instance_id=self._instance, reason=None
        )
        await self._ask(kind(group_id=GROUP, members=[identity]), LEAVE)

    # -- into a generation ----------------------------------------------------------------------------------------
    async def _join(self) -> None:
        kind = message("JoinGroupRequest")
        protocol = kind.JoinGroupRequestProtocol(version=JOIN, name="even", metadata=b"")
        request = kind(
            group_id=GROUP, session_timeout_ms=int(SESSION_S * 1000), rebalance_timeout_ms=int(REBALANCE_S * 1000),
            member_id=self.member_id, group_instance_id=self._instance, protocol_type="consumer",
            protocols=[protocol], reason=None,
        )  # fmt: skip
        asked_s = now()
        answer = await self._ask(request, JOIN)
        error = self._error(answer)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        if error is ErrorCode.NONE:
            self.member_id = answer.member_id
            self._life = Life(answer.member_id, asked_s, now()) if self._instance is not None else None
            plan = self._plan(answer) if answer.leader == answer.member_id and not answer.skip_assignment else []
            await self._sync(answer.generation_id, plan)

    def _plan(self, answer: Any) -> list[tuple[str, bytes]]:
        """Assign each partition to one member; a unique name in each part identifies the plan."""
        members = sorted(each.member_id for each in answer.members)
        self._rng.shuffle(members)
        name = f"{self.member_id} {answer.generation_id} {self._rng.random()}"
        return [
            (member, json.dumps([name, list(range(at, self._partitions, len(members)))]).encode())
            for at, member in enumerate(members)
        ]

    async def _sync(self, generation: int, plan: list[tuple[str, bytes]]) -> None:
        kind = message("SyncGroupRequest")
        request = kind(
            group_id=GROUP, generation_id=generation, member_id=self.member_id, group_instance_id=self._instance,
            protocol_type="consumer", protocol_name="even",
            assignments=[
                kind.SyncGroupRequestAssignment(version=SYNC, member_id=member, assignment=part)
                for member, part in plan
            ],
        )  # fmt: skip
        if plan:
            self._told.about_to_plan.set()
        self._client.timeout_s = self._rng.choice(SYNC_TIMEOUTS_S)
        answer = await self._ask(request, SYNC)
        self._client.timeout_s = JOIN_TIMEOUT_S
        if self._error(answer) is ErrorCode.NONE and answer.assignment:
            plan_name, self.held = json.loads(bytes(answer.assignment))
            self.generation = generation
            self._told.plan(generation, plan_name)
            if self._life is not None:
                self._told.told_s[self._life] = now()

    # -- in a generation ------------------------------------------------------------------------------------------
    async def _beat(self) -> None:
        kind = message("HeartbeatRequest")
        request = kind(
            group_id=GROUP, generation_id=self.generation, member_id=self.member_id, group_instance_id=self._instance
        )
        error = self._error(await self._ask(request, BEAT))
        if error is ErrorCode.NONE and self.held and self._rng.random() < 0.5:
            if self._rng.random() < 0.1:
                await asyncio.sleep(STANDS_STILL_S)  # then it goes on as if it were still a member
            await self._commit(self._rng.choice(self.held))
        elif error is ErrorCode.REBALANCE_IN_PROGRESS and self.held and self._rng.random() < 0.5:
            await self._commit(self._rng.choice(self.held))  # its progress so far, before it rejoins
            self.generation = -1
        elif error in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            self.generation = -1

    async def _commit(self, partition: int) -> None:
        self._told.commits += 1
        committed, sent_s = Committed(self.generation, self._told.commits), now()
        self._told.unknown.setdefault(partition, set()).add(committed)
        kind = message("OffsetCommitRequest")
        part = kind.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
            version=COMMIT, partition_index=partition, committed_offset=committed.offset, committed_leader_epoch=-1,
            committed_metadata="",
        )  # fmt: skip
        request = kind(
            group_id=GROUP, generation_id_or_member_epoch=committed.generation, member_id=self.member_id,
            group_instance_id=self._instance,
            topics=[kind.OffsetCommitRequestTopic(version=COMMIT, name=TOPIC, partitions=[part])],
        )  # fmt: skip
        answer = await self._ask(request, COMMIT)
        error = None if answer is None else ErrorCode(answer.topics[0].partitions[0].error_code)
        if error is ErrorCode.NONE:
            self._told.ack(partition, committed, sent_s, self._life)
        elif error in BEGIN_ANEW or error is ErrorCode.ILLEGAL_GENERATION:
            self._told.unknown[partition].discard(committed)
            self._begin_anew(keep_id=error is ErrorCode.ILLEGAL_GENERATION)
        elif error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.generation = -1
        else:
            self._coordinator = None

    # -- coordinators ---------------------------------------------------------------------------------------------
    def _error(self, answer: Any) -> ErrorCode | None:
        """None if there was no answer. A member that is unknown, or was fenced, starts over as a new one."""
        error = None if answer is None else ErrorCode(answer.error_code)
        if error is None or error in ANOTHER_COORDINATOR:
            self._coordinator = None
        elif error in BEGIN_ANEW:
            self._begin_anew(keep_id=False)
        return error

    def _begin_anew(self, *, keep_id: bool) -> None:
        self.generation, self.held = -1, []
        if not keep_id:
            self.member_id = ""

    async def _ask(self, request: Any, version: int) -> Any:
        try:
            if self._coordinator is None:
                find = message("FindCoordinatorRequest")
                found = await self._client.ask_any(find(key=GROUP, key_type=0), FIND)
                if found.error_code:
                    return None
                self._coordinator = found.host
            return await self._client.ask(self._coordinator, request, version)
        except (OSError, TimeoutError):
            return None


class ClassicGroup:
    def __init__(self, fabric: Fabric, hosts: list[str], seed: int, partitions: int, broken: list[str]) -> None:
        self.told = Told(broken=broken)
        self._fabric = fabric
        self._hosts = hosts
        self._partitions = partitions
        self._rng = random.Random(f"classic {seed}")
        self._finishing = asyncio.Event()
        self._living: dict[int, ClassicMember] = {}
        self._lives = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for place in range(MEMBERS):
                tasks.create_task(self._live(place, tasks))

    async def _live(self, place: int, tasks: asyncio.TaskGroup) -> None:
        """Live one life after the other; the last one goes on until it is cancelled."""
        instance = "static" if place == 0 else None
        while True:
            client, member = self._member(instance)
            self._living[place] = member
            task = tasks.create_task(member.run())
            try:
                await asyncio.wait_for(self._finishing.wait(), self._rng.uniform(4.0, 20.0))
            except TimeoutError:
                await self._end(client, member, task)
            else:
                return

    def _member(self, instance: str | None) -> tuple[SimClient, ClassicMember]:
        self._lives += 1
        client = SimClient(self._fabric, f"classic{self._lives}", self._hosts, timeout_s=JOIN_TIMEOUT_S)
        rng = random.Random(self._rng.random())
        return client, ClassicMember(client, self.told, rng, self._partitions, instance)

    async def _end(self, client: SimClient, member: ClassicMember, task: asyncio.Task[None]) -> None:
        """It leaves, or vanishes without a word, or goes on for a while although its next life begins."""
        how = self._rng.choice(["leaves", "vanishes", "goes on"])
        if how == "goes on":
            asyncio.get_running_loop().call_later(2 * SESSION_S, self._vanish, client, task)
            return
        if how == "leaves" and member.member_id:
            task.cancel()
            await member.leave()
        self._vanish(client, task)

    def _vanish(self, client: SimClient, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._fabric.silence(client.name)

    # -- the end --------------------------------------------------------------------------------------------------
    def finish(self) -> None:
        """From now on nobody joins or leaves."""
        self._finishing.set()

    async def settle(self) -> None:
        """Wait until all are in one generation that has all partitions. TimeoutError if that takes too long."""
        async with asyncio.timeout(QUIET_LIMIT_S):
            while not self._is_settled():  # noqa: ASYNC110  (virtual time)
                await asyncio.sleep(0.2)

    def _is_settled(self) -> bool:
        living = list(self._living.values())
        held = sorted(partition for member in living for partition in member.held)
        return {member.generation for member in living} == {self.told.newest} and held == [*range(self._partitions)]

    async def check(self, client: SimClient) -> None:
        """Check the committed offsets, once nobody commits any more."""
        kind = message("OffsetFetchRequest")
        everything = list(range(self._partitions))
        topic = kind.OffsetFetchRequestTopic(version=FETCH, name=TOPIC, partition_indexes=everything)
        reader = ClassicMember(client, self.told, self._rng, self._partitions, None)
        while True:
            answer = await reader._ask(kind(group_id=GROUP, topics=[topic], require_stable=False), FETCH)
            if reader._error(answer) is ErrorCode.NONE:
                break
            reader._coordinator = None
            await asyncio.sleep(RETRY_S)
        for part in answer.topics[0].partitions:
            self.told.check(part.partition_index, part.committed_offset)


class ClassicRun(Run):
    def _properties(self, node_id: int) -> dict[str, str]:
        return {**super()._properties(node_id), **PROPERTIES}

    def _clients(self, hosts: list[str]) -> list[asyncio.Task[None]]:
        tasks = super()._clients(hosts)
        self.classics = ClassicGroup(
            self.fabric, hosts, self.seed, self.plan.partitions, self.transactions.broken
        )  # `_watch` looks at `broken` all the time
        self._classics_task = self.loop.create_task(self.classics.run())
        return [*tasks, self._classics_task]

    def _faults(self, hosts: list[str]) -> AimedFaults:
        return ClassicFaults(self, hosts)

    async def _quiet(self, background: list[asyncio.Task[None]]) -> None:
        await super()._quiet([task for task in background if task is not self._classics_task])
        self.classics.finish()
        try:
            await self.classics.settle()
        except TimeoutError:
            raise Broken(f"a group is whole again: after {QUIET_LIMIT_S} s it is {self._groups()}") from None
        await self._stop_clients([self._classics_task])
        if self.classics.told.broken:
            raise Broken(self.classics.told.broken[0])
        await asyncio.sleep(JOIN_TIMEOUT_S)  # until requests sent before are done
        hosts = [machine.host for machine in self.machines]
        await asyncio.wait_for(self.classics.check(SimClient(self.fabric, "offsets", hosts)), QUIET_LIMIT_S)

    def _groups(self) -> str:
        living = self.classics._living.values()
        return "; ".join(f"{each.member_id} in {each.generation} with {each.held}" for each in living)


class ClassicFaults(AimedFaults):
    run: ClassicRun

    def _kinds(self) -> list[Callable[[], Awaitable[None]]]:
        return [*super()._kinds(), *[self._coordinator_dies_with_a_plan] * 5]

    async def _coordinator_dies_with_a_plan(self) -> None:
        """It is cut off from all other brokers from the moment at which the group leader is about to send its plan."""
        about_to_plan = self.run.classics.told.about_to_plan
        about_to_plan.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(about_to_plan.wait(), MOMENT_S)
            coordinator = self._leader_of(TopicPartition(OFFSETS, partition_for(GROUP, OFFSETS_PARTITIONS)))
            if coordinator:
                self.run.note(f"{coordinator.host} is cut off as it is sent a plan, then killed")
                await self._die_alone(coordinator, self._others(coordinator))
