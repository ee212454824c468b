"""A coordinator's write is one batch or, if it is split, leaves a consistent state after each batch.

The topic takes batches of 1000 bytes. A crash, or a new epoch, between two batches leaves a log that ends there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.coordinator.consumers.test_migration import classic_alone, join
from tests.broker.coordinator.consumers.test_service import beat, group
from tests.broker.coordinator.test_service import OFFSETS, T0, Coordinating, coordinating, offsets_of
from tests.broker.coordinator.test_transaction_service import begun, refusal, scene
from tests.broker.replication.cluster import RealClock, eventually

from ballast_broker.coordinator.consumers.config import ConsumerConfig
from ballast_broker.coordinator.consumers.service import LET_GO_AT_ONCE
from ballast_broker.coordinator.group import GroupState
from ballast_broker.coordinator.offsets import CommittedOffset
from ballast_broker.coordinator.service import GroupCoordinator
from ballast_broker.coordinator.store import CoordinatorStore
from ballast_broker.coordinator.transaction_service import TransactionConfig
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition

pytestmark = pytest.mark.spec("CLI-04")

SHORT_BATCHES = {"max.message.bytes": "1000"}
MANY = [TopicPartition("t", number) for number in range(60)]


async def commit(scene: Coordinating, partitions: list[TopicPartition], metadata: str = "") -> set[ErrorCode]:
    committed = CommittedOffset(5, -1, metadata, RealClock().wall_ms())
    return set((await scene.groups.commit("g", "", None, -1, dict.fromkeys(partitions, committed))).values())


async def with_many_offsets(scene: Coordinating) -> None:
    for partition in MANY:
        assert await commit(scene, [partition], "m" * 20) == {ErrorCode.NONE}


def end(scene: Coordinating) -> int:
    return int(scene.node.log(OFFSETS).log_end_offset)


async def at_each_cut(scene: Coordinating, begin: int) -> AsyncIterator[GroupCoordinator]:
    """Coordinators that load the log as it was after each batch since `begin`, from the last one on."""
    log = scene.node.log(OFFSETS)
    scene.groups.resign_all()
    scene.cut()
    ends = [
        header.base_offset + header.last_offset_delta + 1 for segment in log.segments for _, header in segment.batches()
    ]
    for offset in reversed([each for each in ends if each > begin]):
        log.truncate_to(offset)
        yield await scene.next_one()


@pytest.mark.spec("CLI-04", "CLI-08")
async def test_what_belongs_together_and_is_too_long_is_refused_whole(tmp_path: Path) -> None:
    async with coordinating(tmp_path, offsets_topic=SHORT_BATCHES) as scene:
        before = end(scene)
        assert await commit(scene, MANY) == {ErrorCode.UNKNOWN_SERVER_ERROR}
        assert end(scene) == before
        assert await commit(scene, MANY[:5]) == {ErrorCode.NONE}
        assert set(offsets_of(await scene.next_one(), "g")) == set(MANY[:5])


@pytest.mark.parametrize("consumers", [False, True])
async def test_a_group_with_more_offsets_than_one_batch_takes_is_deleted(tmp_path: Path, consumers: bool) -> None:
    """Until the last batch it is an empty group with fewer offsets, which can be deleted again."""
    async with coordinating(tmp_path, offsets_topic=SHORT_BATCHES) as scene:
        if consumers:
            await beat(scene)
            await beat(scene, "m", -1)
        else:
            await scene.become_empty("g")
        await with_many_offsets(scene)
        before = end(scene)
        assert await scene.groups.delete_group("g") is ErrorCode.NONE
        assert scene.groups.describe("g") is None
        assert scene.groups.list_groups() == []
        left, count = 0, 0
        async for groups in at_each_cut(scene, before):
            count += 1
            found = offsets_of(groups, "g")
            assert len(found) >= left
            left = len(found)
            if count > 1:
                [there] = groups.list_groups()
                assert there.state.value == GroupState.EMPTY.value
                assert await groups.delete_group("g") is ErrorCode.NONE
                assert groups.list_groups() == []
            else:
                assert groups.list_groups() == []
                assert not found
            groups.resign_all()
        assert count > 2
        assert left > 0


async def test_a_deletion_that_ends_in_the_middle_leaves_a_group_that_can_be_used(tmp_path: Path) -> None:
    async with coordinating(tmp_path, offsets_topic=SHORT_BATCHES, cut_timeout_ms=50) as scene:
        await with_many_offsets(scene)
        scene.cut()
        assert await scene.groups.delete_group("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        scene.heal()
        await eventually(lambda: not offsets_of(scene.groups, "g"), "its offsets go all the same")
        assert await commit(scene, [T0]) == {ErrorCode.NONE}
        assert offsets_of(await scene.next_one(), "g") == {T0: 5}


async def test_offsets_that_go_for_themselves_go_in_as_many_batches_as_it_takes(tmp_path: Path) -> None:
    async with coordinating(tmp_path, offsets_topic=SHORT_BATCHES) as scene:
        await with_many_offsets(scene)
        assert set((await scene.groups.delete_offsets("g", MANY[:40])).values()) == {ErrorCode.NONE}
        assert set(offsets_of(scene.groups, "g")) == set(MANY[40:])
        assert set(offsets_of(await scene.next_one(), "g")) == set(MANY[40:])
        await with_many_offsets(scene)
        scene.cluster.controller.delete_topic("t")
        await eventually(lambda: scene.groups.describe("g") is None or not offsets_of(scene.groups, "g"))
        await eventually(lambda: end(scene) == scene.node.log(OFFSETS).high_watermark)
        assert offsets_of(await scene.next_one(), "g") == {}


async def test_offsets_expire_in_as_many_batches_as_it_takes(tmp_path: Path) -> None:
    async with coordinating(tmp_path, offsets_topic=SHORT_BATCHES) as scene:
        old = CommittedOffset(5, -1, "", RealClock().wall_ms() - 1_000_000)
        for partition in MANY:
            await scene.groups.commit("g", "", None, -1, {partition: old})
        assert await scene.groups.expire_offsets() == len(MANY)
        assert scene.groups.list_groups() == (await scene.next_one()).list_groups() == []


async def test_members_that_are_silent_go_in_as_many_batches_as_it_takes(tmp_path: Path) -> None:
    short = ConsumerConfig(session_timeout_ms=3_000, session_timeouts_ms=(100, 60_000))
    silent = 2 * LET_GO_AT_ONCE + 1
    async with coordinating(tmp_path, offsets_topic={"max.message.bytes": "20000"}, consumers=short) as scene:
        for number in range(silent):
            await beat(scene, f"member-{number:040d}")
        scene.clock.ahead_s += 10
        await eventually(lambda: group(scene).members == {}, "nobody was heard of", timeout_s=30)
        assert (await scene.next_one()).consumers.describe("g").members == {}


async def test_a_group_that_is_too_large_to_go_over_stays(tmp_path: Path) -> None:
    async with coordinating(tmp_path, offsets_topic=SHORT_BATCHES) as scene:
        await classic_alone(scene, "c" * 200)
        before = end(scene)
        with pytest.raises(ApiError) as refused:
            await beat(scene)
        assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert end(scene) == before
        for groups in (scene.groups, await scene.next_one()):
            [there] = groups.list_groups()
            assert there.state is GroupState.STABLE


async def test_who_leaves_a_group_that_is_too_large_to_go_back_has_left(tmp_path: Path) -> None:
    """Others wait for the partitions that the member had."""
    async with coordinating(tmp_path, offsets_topic={"max.message.bytes": "2000"}) as scene:
        await beat(scene)
        for name in "abc":
            await join(scene, fresh=name * 250)
        assert (await beat(scene, "m", -1)).epoch == -1
        assert set(group(scene).members) == {name * 250 for name in "abc"}
        assert (await scene.next_one()).consumers.describe("g") == group(scene)


@pytest.mark.spec("CLI-05")
async def test_ids_that_nobody_uses_are_forgotten_in_as_many_batches_as_it_takes(tmp_path: Path) -> None:
    config = TransactionConfig(partitions=1, id_expiration_ms=-1, expiry_interval_ms=5)
    async with scene(tmp_path, config=config, topic=SHORT_BATCHES) as (made, coordinator):
        for number in range(60):
            await coordinator.initialize(f"x{number}", 60_000, None)
        await begun(coordinator, name="open")
        forgetting = asyncio.get_running_loop().create_task(coordinator.forget_unused())
        await eventually(lambda: [each.transactional_id for each in coordinator.list_all()] == ["open"])
        forgetting.cancel()
        another = await made.next_one()
        assert [each.transactional_id for each in another.list_all()] == ["open"]
        assert refusal(another, "x0") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_pieces_hold_all_and_each_fits(tmp_path: Path) -> None:
    async with coordinating(tmp_path, offsets_topic=SHORT_BATCHES) as scene:
        store: Any = scene.groups._store
        assert isinstance(store, CoordinatorStore)
        entries = [(b"k" * (number % 90), b"v" * (number % 70)) for number in range(200)]
        pieces = store.pieces(0, entries)
        assert [entry for some in pieces for entry in entries[some]] == entries
        for some in pieces:
            assert await store.append(0, entries[some], lambda committed: None) is ErrorCode.NONE
        assert store.pieces(0, []) == []
