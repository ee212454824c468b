"""The group coordinator with its log: real replicas on real files, and what the next coordinator loads from them.

A commit stays in flight while the follower cannot fetch: the link is cut until the commit may complete.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker import turning
from tests.broker.api.asking import Asker
from tests.broker.controller.scene import Scene, expand_request
from tests.broker.controller.scene import Scene as ClusterScene
from tests.broker.replication.cluster import Cluster, Node, RealClock, eventually, told

from ballast_broker.api import join_group, offset_commit, sync_group
from ballast_broker.api.authorizer import ALLOWS_EVERYTHING
from ballast_broker.api.context import RequestContext
from ballast_broker.controller.commands.context import Outcome
from ballast_broker.controller.commands.partitions import create_partitions
from ballast_broker.coordinator.consumers.config import ConsumerConfig
from ballast_broker.coordinator.group import Group, GroupState, Member, Protocol
from ballast_broker.coordinator.leadership import GroupLeadership
from ballast_broker.coordinator.loading import tell_unloaded
from ballast_broker.coordinator.offsets import CommittedOffset
from ballast_broker.coordinator.rebalance import GroupLimits, JoinAsk, SyncAsk
from ballast_broker.coordinator.service import CoordinatorConfig, GroupCoordinator, partition_for
from ballast_broker.coordinator.store import OFFSETS_TOPIC, CoordinatorStore
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.gate import whole
from ballast_broker.metadata.image import MetadataImage
from ballast_broker.metadata.loader import MetadataLoader
from ballast_broker.metadata.partition_records import PartitionChangeRecord
from ballast_broker.metadata.persistent import at_once
from ballast_broker.metadata.snapshot import image_records
from ballast_broker.real_world import RealRandom
from ballast_broker.storage.directory_threads import DirectoryThreads
from ballast_broker.storage.slices import LogSlice
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

pytestmark = pytest.mark.spec("CLI-04")

OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
RETENTION_MS = 60_000
PATIENT_MS = 20_000
LINK = frozenset({1, 2})


class SlowClock(RealClock):
    """The clock of a machine on which some things take long."""

    ahead_s = 0.0
    stepped_ms = 0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s

    def wall_ms(self) -> int:
        return super().wall_ms() + self.stepped_ms


class Reads:
    """The reads of a log in a directory's threads; the next `failing` reads fail, and each takes `takes_s`."""

    def __init__(self, threads: DirectoryThreads, clock: SlowClock) -> None:
        self.failing = 0
        self.takes_s = 0.0
        self._clock = clock
        self._run = threads.run
        threads.run = self.run  # type: ignore[method-assign]

    async def run(self, work: Callable[[], Any]) -> Any:
        if not isinstance(getattr(work, "__self__", None), LogSlice):
            return await self._run(work)
        if self.failing:
            self.failing -= 1
            raise OSError(errno.EIO, "a sector that cannot be read")
        self._clock.ahead_s += self.takes_s
        return await self._run(work)


AT_ONCE = GroupLimits(initial_rebalance_delay_ms=0)


class Coordinating:
    """Broker 1 leads the one partition of the offsets topic, broker 2 follows."""

    def __init__(
        self,
        cluster: Cluster,
        node: Node,
        cut_timeout_ms: int,
        consumers: ConsumerConfig | None,
        classic_limits: GroupLimits,
    ) -> None:
        self.cluster = cluster
        self._classic_limits = classic_limits
        self._consumers = consumers or ConsumerConfig()
        self.node = node
        self._cut_timeout_ms = cut_timeout_ms
        self._stores: list[CoordinatorStore] = []
        self.clock = SlowClock()
        self.reads = Reads(node.log(OFFSETS).directory.threads, self.clock)
        self._all: list[GroupCoordinator] = []
        self.groups = self._another()
        self.leadership = leadership = GroupLeadership(node.broker_id, self.groups)

        def publish(delta: MetadataDelta, image: MetadataImage) -> None:
            told(node.replication.roles.publish, delta, image)
            told(leadership.publish, delta, image)

        cluster.controller.replace(node.broker_id, publish)
        leadership.publish(at_once(whole(cluster.controller.image)), cluster.controller.image)

    def _another(self, load_bytes: int = 1 << 20) -> GroupCoordinator:
        clock = self.clock
        store = CoordinatorStore(OFFSETS_TOPIC, self.node.replicas, clock, timeout_ms=PATIENT_MS, load_bytes=load_bytes)
        self._stores.append(store)
        config = CoordinatorConfig(1, RETENTION_MS, limits=self._classic_limits, consumers=self._consumers)
        groups = GroupCoordinator(store, clock, config, lambda: self.cluster.controller.image)
        self._all.append(groups)
        return groups

    async def loaded(self, groups: GroupCoordinator) -> GroupCoordinator:
        def answers() -> bool:
            try:
                groups.fetch_offsets("any")
            except ApiError as error:
                return error.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return True

        await eventually(answers, "the coordinator loads")
        return groups

    async def next_one(self, load_bytes: int = 1 << 20) -> GroupCoordinator:
        """Another coordinator, which knows only what the log says."""
        groups = self._another(load_bytes)
        groups.lead(0)
        return await self.loaded(groups)

    def cut(self) -> None:
        self.cluster.cuts.add(LINK)
        self._answer_within(self._cut_timeout_ms)

    def heal(self) -> None:
        self.cluster.cuts.clear()
        self._answer_within(PATIENT_MS)

    def _answer_within(self, timeout_ms: int) -> None:
        """Set the timeout. It may be short only while the link is cut: a busy machine may be slow at anything."""
        for store in self._stores:
            store._timeout_ms = timeout_ms

    def isr_change(self, *isr: int) -> Outcome:
        topic_id = self.cluster.topic_id(OFFSETS_TOPIC)
        return Outcome([PartitionChangeRecord(topic_id=topic_id, partition_id=0, isr=list(isr))])

    async def begin(self, *works: Coroutine[Any, Any, Any]) -> asyncio.Future[list[Any]]:
        """Start these; when all have written, none is committed yet."""
        tasks = [asyncio.get_running_loop().create_task(work) for work in works]
        end = self.node.log(OFFSETS).log_end_offset
        await eventually(lambda: self.node.log(OFFSETS).log_end_offset > end)
        return asyncio.gather(*tasks)

    async def commit(self, group_id: str, partition: TopicPartition, offset: int, *, age_ms: int = 0) -> ErrorCode:
        committed = CommittedOffset(offset, -1, "", RealClock().wall_ms() - age_ms)
        return (await self.groups.commit(group_id, "", None, -1, {partition: committed}))[partition]

    async def become_empty(self, group_id: str) -> None:
        """Let a member join and leave."""
        joined = await self.groups.join(group_id, ask("m"))
        assert joined.error is ErrorCode.NONE
        assert await self.groups.leave(group_id, [(joined.member_id, None)]) == [ErrorCode.NONE]

    def close(self) -> None:
        for groups in self._all:
            groups.close()


@asynccontextmanager
async def coordinating(
    folder: Path,
    *,
    cut_timeout_ms: int = PATIENT_MS,
    consumers: ConsumerConfig | None = None,
    offsets_topic: dict[str, str] | None = None,
    classic_limits: GroupLimits = AT_ONCE,
) -> AsyncIterator[Coordinating]:
    async with Cluster(folder) as cluster:
        nodes = await cluster.add(1, 2)
        cluster.controller.create_topic("t", [[1], [1]])
        cluster.controller.create_topic(OFFSETS_TOPIC, [[1, 2]], offsets_topic)
        await eventually(lambda: cluster.isr(OFFSETS) == {1, 2})
        scene = Coordinating(cluster, nodes[0], cut_timeout_ms, consumers, classic_limits)
        try:
            await scene.loaded(scene.groups)
            yield scene
        finally:
            scene.close()


@pytest.mark.spec("CLI-10")
async def test_metadata_of_a_commit_is_measured_in_characters_as_java_counts_them(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        for partition, metadata, error in (
            (T0, "é" * 4096, ErrorCode.NONE),
            (T1, "é" * 4097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
            (T0, "\N{GRINNING FACE}" * 2048, ErrorCode.NONE),
            (T1, "\N{GRINNING FACE}" * 2049, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ):
            committed = CommittedOffset(5, -1, metadata, RealClock().wall_ms())
            assert await scene.groups.commit("g", "", None, -1, {partition: committed}) == {partition: error}
        assert scene.groups.fetch_offsets("g")[T0].metadata == "\N{GRINNING FACE}" * 2048


@pytest.mark.spec("CLI-10")
@pytest.mark.parametrize("version", [2, 4])
async def test_an_old_client_may_ask_for_its_offset_to_be_kept_for_ever(tmp_path: Path, version: int) -> None:
    kind = message("OffsetCommitRequest")
    partition = kind.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=5, committed_metadata=""
    )
    request = kind(
        version=version,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time_ms=2**63 - 1,
        topics=[kind.OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    async with coordinating(tmp_path) as scene:
        services: Any = SimpleNamespace(
            clock=scene.clock,
            groups=scene.groups,
            image=lambda: scene.cluster.controller.image,
            authorizer=ALLOWS_EVERYTHING,
        )
        peer: Any = None
        response = await offset_commit.handle(request, RequestContext(services, 8, version, 1, "tests", peer))
        assert list(response.error_codes()) == []
        assert offsets_of(await scene.next_one(), "g") == {T0: 5}
        await scene.groups.expire_offsets()
        assert offsets_of(scene.groups, "g") == {T0: 5}


@pytest.mark.spec("CLI-08")
@pytest.mark.parametrize(("client_id", "instance"), [("c" * 32_767, None), ("c", "é" * 16_383)])
async def test_a_member_with_the_longest_name_can_be_answered_and_stored(
    tmp_path: Path, client_id: str, instance: str | None
) -> None:
    kind, sync = message("JoinGroupRequest"), message("SyncGroupRequest")
    protocol = kind.JoinGroupRequestProtocol(name="range", metadata=b"")
    async with coordinating(tmp_path) as scene:
        services: Any = SimpleNamespace(groups=scene.groups, random=RealRandom(), authorizer=ALLOWS_EVERYTHING)
        peer: Any = SimpleNamespace(host="/127.0.0.1")
        context = RequestContext(services, 11, 5, 1, client_id, peer)

        async def join(member_id: str) -> Any:
            terms = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer"}
            asked = kind(version=5, group_id="g", group_instance_id=instance, member_id=member_id, **terms)
            asked.protocols = [protocol]
            return await join_group.handle(asked, context)

        joined = await join("")
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            joined = await join(joined.member_id)
        assert joined.error_code == ErrorCode.NONE
        assert joined.encode(version=5)
        asked = sync(version=4, group_id="g", generation_id=1, member_id=joined.member_id, assignments=[])
        asked.group_instance_id = instance
        assert (await sync_group.handle(asked, replace(context, version=4))).error_code == ErrorCode.NONE
        found = (await scene.next_one()).describe("g")
        assert found is not None
        assert list(found.members) == [joined.member_id]


def ask(fresh_member_id: str, member_id: str = "") -> JoinAsk:
    protocols = (Protocol("range", b"\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x00"),)
    return JoinAsk(
        member_id, None, "client", "/127.0.0.1", 10_000, 30_000, "consumer", protocols, fresh_member_id, False, False
    )


def offsets_of(groups: GroupCoordinator, group_id: str) -> dict[TopicPartition, int]:
    return {partition: committed.offset for partition, committed in groups.fetch_offsets(group_id).items()}


async def a_commit_outlives_an_expiry(scene: Coordinating) -> None:
    """The commit is in the log and not acknowledged when offsets and groups expire."""
    scene.cut()
    commit = await scene.begin(scene.commit("g", T0, 6))
    expiry = asyncio.ensure_future(scene.groups.expire_offsets())
    await asyncio.sleep(0)
    scene.heal()
    assert await commit == [ErrorCode.NONE]
    await expiry
    assert offsets_of(scene.groups, "g") == {T0: 6}
    assert offsets_of(await scene.next_one(), "g") == {T0: 6}


async def test_a_commit_under_way_outlives_the_expiry_of_what_it_replaces(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        assert await scene.commit("g", T0, 5, age_ms=2 * RETENTION_MS) is ErrorCode.NONE
        await a_commit_outlives_an_expiry(scene)


async def test_a_commit_under_way_outlives_the_end_of_a_group_without_offsets(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await scene.become_empty("g")
        await a_commit_outlives_an_expiry(scene)


async def test_a_deleted_group_does_not_come_back_with_a_commit_that_was_under_way(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        assert await scene.commit("g", T0, 5) is ErrorCode.NONE
        scene.cut()
        commit = await scene.begin(scene.commit("g", T1, 6))
        deletion = await scene.begin(scene.groups.delete_group("g"))
        with pytest.raises(ApiError) as refused:
            await scene.commit("g", T0, 7)
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        scene.heal()
        assert await commit == await deletion == [ErrorCode.NONE]
        assert offsets_of(scene.groups, "g") == {}
        assert offsets_of(await scene.next_one(), "g") == {}


async def test_a_deleted_group_does_not_come_back_with_a_commit_that_took_too_long(tmp_path: Path) -> None:
    async with coordinating(tmp_path, cut_timeout_ms=50) as scene:
        scene.cut()
        assert await scene.commit("g", T0, 5) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        scene.heal()
        await eventually(lambda: offsets_of(scene.groups, "g") == {T0: 5}, "what is in the log is known")
        scene.cut()
        assert await scene.commit("g", T1, 6) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        deletion = await scene.begin(scene.groups.delete_group("g"))
        scene.heal()
        await deletion
        await eventually(lambda: scene.groups.describe("g") is None)
        assert offsets_of(await scene.next_one(), "g") == {}


async def test_a_deletion_that_took_too_long_is_not_forgotten(tmp_path: Path) -> None:
    """A group that went on with the offsets still known here would lose them with the next coordinator."""
    async with coordinating(tmp_path, cut_timeout_ms=50) as scene:
        assert await scene.commit("g", T0, 5) is ErrorCode.NONE
        scene.cut()
        assert await scene.groups.delete_group("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        with pytest.raises(ApiError):
            await scene.commit("g", T1, 6)
        scene.heal()
        await eventually(lambda: scene.groups.describe("g") is None)
        assert offsets_of(scene.groups, "g") == offsets_of(await scene.next_one(), "g") == {}


async def test_others_have_their_turn_while_offsets_are_loaded_and_looked_through(tmp_path: Path) -> None:
    groups, each = 40, 100
    async with coordinating(tmp_path) as scene:
        now_ms = RealClock().wall_ms()
        for number in range(groups):
            offsets = {TopicPartition("t", each): CommittedOffset(1, -1, "", now_ms) for each in range(each)}
            await scene.groups.commit(f"g{number}", "", None, -1, offsets)
        assert (await turning.beside(scene.next_one()))[1] >= groups * each / 250
        assert (await turning.beside(scene.groups.expire_offsets()))[1] >= groups


@pytest.mark.spec("CLI-09")
async def test_a_commit_of_many_partitions_is_made_in_turns_and_counts_by_who_leads_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 500
    async with coordinating(tmp_path) as scene:
        turning.end_at_once(monkeypatch)
        offsets = {TopicPartition("t", each): CommittedOffset(1, -1, "", 1) for each in range(count)}
        answers, had = await turning.beside(scene.groups.commit("g", "", None, -1, offsets))
        assert had >= count
        assert set(answers.values()) == {ErrorCode.NONE}
        assert len(answers) == count
        committing = asyncio.ensure_future(scene.groups.commit("other", "", None, -1, offsets))
        for _ in range(count // 2):
            await asyncio.sleep(0)
        scene.groups.resign(0)
        with pytest.raises(ApiError) as refused:
            await committing
        assert refused.value.code is ErrorCode.NOT_COORDINATOR


async def test_who_only_commits_is_known_to_the_metrics_of_the_next_coordinator(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        assert await scene.commit("g", T0, 5) is ErrorCode.NONE
        [(group, offsets)] = (await scene.next_one()).loaded_groups()
        assert group.group_id == "g"
        assert list(offsets) == [T0]


async def test_a_topic_made_anew_keeps_what_is_committed_for_it_at_once(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        for group_id in ("a", "b"):
            assert await scene.commit(group_id, T0, 5) is ErrorCode.NONE
        scene.cut()
        end = scene.node.log(OFFSETS).log_end_offset
        scene.cluster.controller.delete_topic("t")
        await eventually(lambda: scene.node.log(OFFSETS).log_end_offset > end)
        scene.cluster.controller.create_topic("t", [[1], [1]])
        commit = await scene.begin(scene.commit("b", T0, 1))
        scene.heal()
        assert await commit == [ErrorCode.NONE]
        await eventually(lambda: not offsets_of(scene.groups, "a"))
        assert offsets_of(scene.groups, "b") == {T0: 1}
        assert offsets_of(await scene.next_one(), "b") == {T0: 1}


@pytest.mark.spec("CLI-09")
async def test_offsets_of_a_deleted_topic_are_forgotten_a_groups_in_a_step(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        groups = [f"g{number}" for number in range(5)]
        for group_id in groups:
            assert await scene.commit(group_id, T0, 5) is ErrorCode.NONE
        before = scene.cluster.controller.image
        scene.cluster.controller.replace(scene.node.broker_id, lambda _delta, _image: None)
        scene.cluster.controller.delete_topic("t")
        delta, image = scene.cluster.controller.last

        def left() -> int:
            return sum(1 for group_id in groups if offsets_of(scene.groups, group_id))

        steps = scene.leadership.publish(delta, image)
        assert steps is not None
        assert [left() for _ in steps] == [4, 3, 2, 1, 0]
        for group_id in groups:
            assert await scene.commit(group_id, T0, 5) is ErrorCode.NONE
        steps = scene.leadership.publish(delta, before)
        assert steps is not None
        assert [left() for _ in steps] == []
        assert left() == 0, "at once, where there is another topic of that name"


async def test_a_topic_deleted_while_its_offsets_are_loaded_takes_them_along(tmp_path: Path) -> None:
    """Otherwise the next topic of that name would be read from the old topic's offset."""
    async with coordinating(tmp_path) as scene:
        assert await scene.commit("g", T0, 5) is ErrorCode.NONE
        scene.groups.resign(0)
        scene.groups.lead(0)
        scene.cluster.controller.delete_topic("t")
        await scene.loaded(scene.groups)
        await eventually(lambda: not offsets_of(scene.groups, "g"))
        assert offsets_of(await scene.next_one(), "g") == {}


async def test_a_topic_deleted_while_its_offsets_had_no_leader_takes_them_along(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        kept = TopicPartition(OFFSETS_TOPIC, 0)
        for partition in (T0, T1, kept):
            assert await scene.commit("g", partition, 5) is ErrorCode.NONE
        scene.groups.resign_all()
        scene.cluster.controller.delete_topic("t")
        image = scene.cluster.controller.image
        scene.leadership.publish(at_once(whole(image)), image)
        await scene.loaded(scene.groups)
        await eventually(lambda: offsets_of(scene.groups, "g") == {kept: 5})
        scene.cluster.controller.create_topic("t", [[1], [1]])
        assert await scene.commit("g", T1, 1) is ErrorCode.NONE
        assert offsets_of(await scene.next_one(), "g") == {kept: 5, T1: 1}


@pytest.mark.parametrize("named", [True, False])
async def test_a_topic_made_anew_while_offsets_had_no_leader_is_read_from_its_beginning(
    tmp_path: Path, named: bool
) -> None:
    """Not from the group's offset in the previous topic of that name: it would miss all records before that."""
    async with coordinating(tmp_path) as scene:
        asker = Asker(Scene(()), image=lambda: scene.cluster.controller.image)
        asker.services.groups, asker.services.clock = scene.groups, scene.clock

        async def commit(offset: int, *partitions: int) -> None:
            asked = [
                {"partition_index": each, "committed_offset": offset, "committed_metadata": ""} for each in partitions
            ]
            answer = await asker.ask(
                "OffsetCommit", 8, group_id="g", generation_id_or_member_epoch=-1, member_id="",
                topics=[{"name": "t", "partitions": asked}],
            )  # fmt: skip
            assert {each["error_code"] for each in answer["topics"][0]["partitions"]} == {ErrorCode.NONE}

        async def committed() -> dict[int, int]:
            topics = [{"name": "t", "partition_indexes": [0, 1]}] if named else None
            answer = await asker.ask(
                "OffsetFetch", 8, groups=[{"group_id": "g", "topics": topics}], require_stable=False
            )
            told = [each for topic in answer["groups"][0]["topics"] for each in topic["partitions"]]
            return {each["partition_index"]: each["committed_offset"] for each in told if each["committed_offset"] >= 0}

        await commit(5, 0, 1)
        assert await committed() == {0: 5, 1: 5}
        scene.groups.resign_all()
        scene.cluster.controller.delete_topic("t")
        scene.cluster.controller.create_topic("t", [[1], [1]])
        asker.services.groups = scene.groups = await scene.next_one()
        assert await committed() == {}
        await commit(1, 1)
        assert await committed() == {1: 1}


async def test_a_topic_deleted_while_nothing_can_be_written_takes_its_offsets_along(tmp_path: Path) -> None:
    """As in a rolling restart: the group would read the next topic of that name from its offset in this one."""
    async with coordinating(tmp_path) as scene:
        for partition in (T0, T1):
            assert await scene.commit("g", partition, 5) is ErrorCode.NONE
        scene.cluster.controller.configure(2, OFFSETS_TOPIC, {"min.insync.replicas": "2"})
        scene.cluster.controller.commit(scene.isr_change(1))
        assert await scene.commit("g", T0, 6) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        scene.cluster.controller.delete_topic("t")
        scene.cluster.controller.create_topic("t", [[1], [1]])
        assert offsets_of(scene.groups, "g") == {}
        await asyncio.sleep(0)  # the first attempt is refused
        scene.cluster.controller.commit(scene.isr_change(1, 2))
        assert await scene.commit("g", T1, 1) is ErrorCode.NONE
        end = scene.node.log(OFFSETS).log_end_offset
        await eventually(lambda: scene.node.log(OFFSETS).high_watermark > end, "what is gone is written")
        assert offsets_of(scene.groups, "g") == offsets_of(await scene.next_one(), "g") == {T1: 1}


async def test_members_are_not_missed_for_the_time_that_the_load_takes(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        joined = await scene.groups.join("g", ask("m"))
        given = SyncAsk(joined.member_id, None, 1, None, None, {joined.member_id: b"all"})
        assert (await scene.groups.sync("g", given)).error is ErrorCode.NONE
        assert await scene.commit("other", T0, 5) is ErrorCode.NONE
        scene.reads.takes_s = 11.0  # longer than the session
        groups = await scene.next_one(load_bytes=1)
        assert scene.clock.ahead_s > scene.reads.takes_s
        await asyncio.sleep(0)
        assert groups.heartbeat("g", joined.member_id, None, 1) is ErrorCode.NONE


async def test_a_snapshot_that_brings_the_next_offsets_topic_brings_its_groups(tmp_path: Path) -> None:
    """A broker that missed the deletion of one and the creation of the other gets both in one metadata update."""
    async with coordinating(tmp_path) as scene:
        controller = scene.cluster.controller
        assert await scene.commit("g", T0, 5) is ErrorCode.NONE
        before = controller.image
        controller.replace(scene.node.broker_id, scene.node.replication.roles.publish)
        controller.delete_topic(OFFSETS_TOPIC)
        controller.create_topic(OFFSETS_TOPIC, [[1, 2], [2, 1], [1, 2]])
        loader = MetadataLoader([scene.leadership.publish])
        loader.image = before
        after = controller.image
        turning.at_one_go(loader.load_snapshot(image_records(after), after.offset, after.epoch))

        def both_are_loaded() -> bool:
            try:
                return scene.groups.list_groups() == []
            except ApiError:
                return False

        await eventually(both_are_loaded)
        for group_id in "abcdefghi":
            if partition_for(group_id, 3) in (0, 2):
                assert offsets_of(scene.groups, group_id) == {}
            else:
                with pytest.raises(ApiError):
                    scene.groups.fetch_offsets(group_id)


async def test_who_leads_none_of_the_new_partitions_looks_for_groups_where_others_do(tmp_path: Path) -> None:
    """Otherwise the broker that FindCoordinator names would refuse the group for ever."""
    async with coordinating(tmp_path) as scene:
        controller = scene.cluster.controller
        controller.commit(create_partitions(controller.context(), expand_request((OFFSETS_TOPIC, 2, [[2, 1]]))))
        for group_id in "abcdefghi":
            if partition_for(group_id, 2) == 0:
                assert offsets_of(scene.groups, group_id) == {}
            else:
                with pytest.raises(ApiError):
                    scene.groups.fetch_offsets(group_id)


async def test_what_a_coordinator_knew_before_it_moved_is_not_written_after(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        for group_id in ("a", "b"):
            assert await scene.commit(group_id, T0, 5, age_ms=2 * RETENTION_MS) is ErrorCode.NONE
        scene.cut()
        expiry = await scene.begin(scene.groups.expire_offsets())
        scene.groups.resign(0)  # it was elsewhere for a while
        scene.groups.lead(0)
        await scene.loaded(scene.groups)
        commit = await scene.begin(scene.commit("b", T0, 6))
        scene.heal()
        assert await commit == [ErrorCode.NONE]
        await expiry
        assert offsets_of(await scene.next_one(), "b") == {T0: 6}


async def test_an_assignment_is_stored_with_the_members_that_it_was_made_for(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        leader = await scene.groups.join("g", ask("m"))
        given = SyncAsk(leader.member_id, None, 1, None, None, {leader.member_id: b"all"})
        await scene.begin(scene.groups.sync("g", given), scene.groups.join("g", ask("n")))
        found = (await scene.next_one()).describe("g")
        assert found is not None
        assert list(found.members) == [leader.member_id]


async def test_a_group_that_is_deleted_as_its_last_member_leaves_stays_deleted(tmp_path: Path) -> None:
    """Both in one turn of the event loop: the record of the empty group precedes its tombstone in the log."""
    async with coordinating(tmp_path) as scene:
        await scene.become_empty("g")
        assert await scene.groups.delete_group("g") is ErrorCode.NONE
        assert scene.groups.list_groups() == (await scene.next_one()).list_groups() == []


@pytest.mark.spec("CLI-08")
async def test_a_group_is_not_kept_waiting_by_an_earlier_one_of_its_name(tmp_path: Path) -> None:
    """A consumer that is closed as soon as it has its member id leaves a timer behind, and then nothing else."""
    async with coordinating(tmp_path, classic_limits=GroupLimits(initial_rebalance_delay_ms=200)) as scene:
        scene.groups.classic._sessions_ms = (100, 60_000)
        closed = replace(ask("closed"), requires_known_member_id=True, session_timeout_ms=100)
        assert (await scene.groups.join("g", closed)).error is ErrorCode.MEMBER_ID_REQUIRED
        assert await scene.groups.leave("g", [("closed", None)]) == [ErrorCode.NONE]
        refused = CommittedOffset(5, -1, "m" * 5000, RealClock().wall_ms())
        assert await scene.groups.commit("g", "", None, -1, {T0: refused}) == {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
        assert scene.groups.describe("g") is None
        joining = asyncio.ensure_future(scene.groups.join("g", ask("m")))
        await eventually(joining.done, "the group's first generation begins")
        assert joining.result().generation == 1


@pytest.mark.spec("CLI-08")
async def test_what_was_under_way_for_a_deleted_group_does_not_stop_the_next_one_of_its_name(tmp_path: Path) -> None:
    async with coordinating(tmp_path, classic_limits=GroupLimits(initial_rebalance_delay_ms=200)) as scene:
        leader = await scene.groups.join("g", ask("m"))
        scene.cut()
        given = SyncAsk(leader.member_id, None, 1, None, None, {leader.member_id: b"all"})
        under_way = await scene.begin(scene.groups.sync("g", given))
        assert await scene.groups.leave("g", [(leader.member_id, None)]) == [ErrorCode.NONE]
        deleting = await scene.begin(scene.groups.delete_group("g"))
        scene.heal()
        while scene.groups.describe("g") is not None:  # noqa: ASYNC110 - the next turn is too late
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert (await scene.groups.join("g", ask("n"))).generation == 1
        assert await deleting == [ErrorCode.NONE]
        await under_way


async def test_a_coordinator_that_leads_on_in_a_new_epoch_keeps_who_waits(tmp_path: Path) -> None:
    """As when the reassignment of a partition of the offsets topic ends and its leader stays."""
    async with coordinating(tmp_path) as scene:
        first = await scene.groups.join("g", ask("m"))
        second = asyncio.ensure_future(scene.groups.join("g", ask("n")))
        scene.cut()
        commits = await scene.begin(scene.commit("a", T0, 5), scene.commit("a", T0, 6), scene.commit("b", T0, 7))
        log = scene.node.log(OFFSETS)
        epoch, topic_id = log.latest_epoch or 0, scene.cluster.topic_id(OFFSETS_TOPIC)
        change = PartitionChangeRecord(topic_id=topic_id, partition_id=0, leader=1)
        scene.cluster.controller.commit(Outcome([change]))
        assert log.latest_epoch == epoch + 1
        last = await scene.begin(scene.commit("b", T0, 8))
        assert not second.done()
        scene.heal()
        assert [*await commits, *await last] == [ErrorCode.NONE] * 4
        rejoined = await scene.groups.join("g", ask("-", first.member_id))
        assert (await second).generation == rejoined.generation == first.generation + 1
        for groups in (scene.groups, await scene.next_one()):
            assert (offsets_of(groups, "a"), offsets_of(groups, "b")) == ({T0: 6}, {T0: 8})


async def test_what_is_under_way_as_the_lead_is_lost_and_won_in_one_turn_is_for_who_loads_it(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        scene.cut()
        under_way = await scene.begin(scene.commit("g", T0, 5))
        topic_id = scene.cluster.topic_id(OFFSETS_TOPIC)
        for leader in (2, 1):
            change = PartitionChangeRecord(topic_id=topic_id, partition_id=0, leader=leader)
            scene.cluster.controller.commit(Outcome([change]))
        assert await under_way == [ErrorCode.NOT_COORDINATOR]
        scene.heal()
        await scene.loaded(scene.groups)
        await eventually(lambda: scene.node.log(OFFSETS).high_watermark == 1)
        assert offsets_of(scene.groups, "g") == {T0: 5}
        assert await scene.commit("g", T0, 6) is ErrorCode.NONE
        assert offsets_of(await scene.next_one(), "g") == {T0: 6}


@pytest.mark.spec("CLI-09")
async def test_thousands_of_members_that_are_sent_away_together_are_soon_gone(tmp_path: Path) -> None:
    """`kafka-consumer-groups` and admin clients name all members of a group in one request."""
    async with coordinating(tmp_path) as scene:
        group = scene.groups._shards[0].classic_groups["g"] = Group("g", GroupState.STABLE, protocol_type="consumer")
        names = [f"m{number}" for number in range(3000)]
        for name in names:
            member = Member(name, None, "client", "/127.0.0.1", 30_000, 10_000, ask(name).protocols)
            member.is_new, member.deadline_ms = False, int(scene.clock.monotonic() * 1000) + 3_600_000
            group.add(member)
        began = time.thread_time()
        assert set(await scene.groups.leave("g", [(name, None) for name in names])) == {ErrorCode.NONE}
        assert time.thread_time() - began < 0.3  # a search through all members for each took over a second
        assert group.is_in(GroupState.EMPTY)
        await eventually(lambda: len(scene.groups._tasks) == 0)
        found = (await scene.next_one()).describe("g")
        assert isinstance(found, Group)
        assert found.is_in(GroupState.EMPTY)


async def test_offsets_that_members_may_read_from_are_not_deleted(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        assert await scene.commit("g", T0, 5) is ErrorCode.NONE
        refused = {T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
        gathering = asyncio.ensure_future(scene.groups.join("g", ask("m")))
        await asyncio.sleep(0)
        assert await scene.groups.delete_offsets("g", [T0]) == refused
        joined = await gathering
        assert await scene.groups.delete_offsets("g", [T0]) == refused
        unreadable = replace(ask("-", joined.member_id), protocols=(Protocol("range", b"?"),))
        assert (await scene.groups.join("g", unreadable)).error is ErrorCode.NONE
        assert await scene.groups.delete_offsets("g", [T0]) == refused
        await scene.groups.leave("g", [(joined.member_id, None)])
        assert await scene.groups.delete_offsets("g", [T0]) == {T0: ErrorCode.NONE}


async def test_records_that_nobody_can_read_do_not_keep_a_partition_from_its_groups(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        assert await scene.commit("g", T0, 5) is ErrorCode.NONE
        strange = [(b"x", b"y"), (b"\x00\x01", b"\x00\x01"), (b"\x00\x02\x00\x01g", b"\x00\x09"), (b"\x00\x07z", None)]
        batch = encode_batch([Record(key=k, value=v, timestamp=RealClock().wall_ms()) for k, v in strange])
        scene.node.replicas.append(OFFSETS, None, batch, -1)
        assert await scene.commit("g", T1, 6) is ErrorCode.NONE
        assert offsets_of(await scene.next_one(), "g") == {T0: 5, T1: 6}


async def test_a_load_that_fails_is_tried_again_while_the_broker_leads(tmp_path: Path) -> None:
    """Otherwise nobody would coordinate these groups until the next election."""
    other = TopicPartition("u", 0)
    async with coordinating(tmp_path) as scene:
        for partition, offset in ((T0, 5), (other, 7)):
            assert await scene.commit("g", partition, offset) is ErrorCode.NONE
        scene.reads.failing = 2
        scene.groups.resign(0)
        scene.groups.lead(0)
        await eventually(lambda: scene.reads.failing < 2)
        with pytest.raises(ApiError) as refused:
            scene.groups.fetch_offsets("g")
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        assert scene.groups.list_groups() == []
        scene.cluster.controller.delete_topic("t")  # it must not come back with what is read later
        await eventually(scene.groups.loaded_groups, "the coordinator loads")
        await eventually(lambda: offsets_of(scene.groups, "g") == {other: 7})


@pytest.mark.parametrize(
    ("error", "level"), [(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER), logging.WARNING), (KeyError("x"), logging.ERROR)]
)
def test_a_load_that_fails_as_another_broker_leads_by_now_alarms_nobody(
    caplog: pytest.LogCaptureFixture, error: Exception, level: int
) -> None:
    try:
        raise error
    except Exception as raised:
        tell_unloaded("partition 4", raised, 0.1)
    (told,) = caplog.records
    assert told.levelno == level
    assert bool(told.exc_info) is (level == logging.ERROR)
    assert "partition 4 cannot be loaded" in told.message
    assert "again in 0.1 s" in told.message


async def test_a_coordinator_whose_disk_is_away_does_not_say_that_nothing_was_committed(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        assert await scene.commit("g", T0, 5) is ErrorCode.NONE
        scene.node.logs.directories[0].fail(OSError("gone"))
        groups = await scene.next_one()
        with pytest.raises(ApiError) as refused:
            groups.fetch_offsets("g")
        assert refused.value.code is ErrorCode.NOT_COORDINATOR


@pytest.mark.spec("CLI-09")
@pytest.mark.parametrize("name", ["DescribeGroups", "DeleteGroups"])
async def test_many_groups_are_described_and_deleted_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async with coordinating(tmp_path) as scene:
        ids = [f"g{number}" for number in range(40)]
        if name == "DescribeGroups":  # unknown groups are looked up without waiting, too
            for each in ids:
                assert await scene.commit(each, T0, 5) is ErrorCode.NONE
        asker = Asker(ClusterScene(()))
        asker.services.groups = scene.groups
        turning.end_at_once(monkeypatch)
        fields: dict[str, Any] = {"groups": ids} if name == "DescribeGroups" else {"groups_names": ids}
        answer, turns = await turning.beside(asker.ask(name, 1, **fields))
        assert turns >= len(ids)
        told = answer["groups" if name == "DescribeGroups" else "results"]
        assert [(each["group_id"], each["error_code"]) for each in told] == [
            (each, 0 if name == "DescribeGroups" else ErrorCode.GROUP_ID_NOT_FOUND) for each in ids
        ]
