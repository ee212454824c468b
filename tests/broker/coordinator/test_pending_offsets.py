"""Offsets committed in transactions: invisible until the end, and what counts then; also after loading the log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker import turning
from tests.broker.coordinator.test_service import OFFSETS, T0, T1, Coordinating, coordinating
from tests.broker.replication.cluster import RealClock, eventually

from ballast_broker.coordinator import service
from ballast_broker.coordinator.consumers.group import JOINING, LEAVING
from ballast_broker.coordinator.consumers.heartbeat import Ask
from ballast_broker.coordinator.group import Group, GroupState, Member
from ballast_broker.coordinator.offsets import CommittedOffset
from ballast_broker.coordinator.pending_offsets import PendingOffsets
from ballast_broker.coordinator.service import GroupCoordinator
from ballast_broker.coordinator.transactional_commits import Committer, check_committer
from ballast_broker.storage.transactions import render_marker
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition

pytestmark = pytest.mark.spec("CLI-05", "CLI-04")

P1, P2 = (11, 0), (12, 0)


def offset(number: int) -> CommittedOffset:
    return CommittedOffset(number, -1, "", 0)


async def agreed(_: TopicPartition) -> ErrorCode:
    return ErrorCode.NONE


async def commit(
    groups: GroupCoordinator, partition: TopicPartition, number: int, producer: tuple[int, int] = P1, group: str = "g"
) -> ErrorCode:
    committed = CommittedOffset(number, -1, "", RealClock().wall_ms())
    answers = await groups.transactional.commit(group, Committer(), {partition: committed}, producer, agreed)
    return answers[partition]


async def end(scene: Coordinating, committed: bool, producer: tuple[int, int] = P1) -> None:
    """End the transaction as the partition's leader does: write the marker, then tell the groups."""
    marker = render_marker(*producer, 0, committed=committed, now_ms=RealClock().wall_ms())
    scene.node.replicas.append(OFFSETS, None, marker, -1, origin="coordinator")
    await scene.groups.transaction_ended(0, producer[0], committed)


def known(groups: GroupCoordinator, group: str = "g") -> dict[TopicPartition, int]:
    return {partition: each.offset for partition, each in groups.fetch_offsets(group).items()}


@pytest.mark.parametrize("committed", [True, False])
async def test_an_offset_counts_once_its_transaction_is_committed(tmp_path: Path, committed: bool) -> None:
    async with coordinating(tmp_path) as scene:
        await scene.commit("g", T1, 1)
        assert await commit(scene.groups, T0, 5) is ErrorCode.NONE
        for groups in (scene.groups, await scene.next_one()):
            assert known(groups) == {T1: 1}
            assert set(groups.transactional.unstable("g")) == {T0}
        await end(scene, committed)
        for groups in (scene.groups, await scene.next_one()):
            assert known(groups) == ({T0: 5, T1: 1} if committed else {T1: 1})
            assert not groups.transactional.unstable("g")


async def test_what_is_last_in_the_log_counts(tmp_path: Path) -> None:
    """With a commit outside of transactions and those of two producers, in whatever order these end."""
    async with coordinating(tmp_path) as scene:
        await commit(scene.groups, T0, 5, P1)
        await scene.commit("g", T0, 6)
        await commit(scene.groups, T1, 7, P1)
        await commit(scene.groups, T1, 8, P2)
        await end(scene, True, P2)
        await end(scene, True, P1)
        for groups in (scene.groups, await scene.next_one()):
            assert known(groups) == {T0: 6, T1: 8}


async def test_an_end_while_the_log_is_loaded_counts(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await commit(scene.groups, T0, 5)
        another = scene._another()
        another.lead(0)
        await another.transaction_ended(0, P1[0], True)  # its marker is after what is read
        await scene.loaded(another)
        assert known(another) == {T0: 5}


@pytest.mark.parametrize("of_consumers", [False, True])
async def test_a_group_that_is_deleted_takes_what_is_pending_with_it(tmp_path: Path, of_consumers: bool) -> None:
    async with coordinating(tmp_path) as scene:
        if of_consumers:
            for ask in (Ask("m", JOINING, "c", "h", topics=frozenset({"t"}), owned={}), Ask("m", LEAVING, "c", "h")):
                await scene.groups.consumers.heartbeat("g", ask)
        await commit(scene.groups, T0, 5)
        assert [group.group_id for group in scene.groups.list_groups()] == ["g"]
        assert await scene.groups.delete_group("g") is ErrorCode.NONE
        for groups in (scene.groups, await scene.next_one()):
            assert groups.list_groups() == []  # at once, though the transaction may never end
            assert not groups.transactional.unstable("g")
            assert await groups.delete_group("g") is ErrorCode.GROUP_ID_NOT_FOUND
        await end(scene, True)
        for groups in (scene.groups, await scene.next_one()):
            assert known(groups) == {}


async def test_a_group_whose_only_transaction_is_aborted_is_there_until_it_expires(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await commit(scene.groups, T0, 5)
        await end(scene, False)
        for groups in (scene.groups, await scene.next_one()):
            assert [group.group_id for group in groups.list_groups()] == ["g"]
        await scene.groups.expire_offsets()
        assert scene.groups.list_groups() == []


async def test_an_offset_that_is_deleted_does_not_come_back_with_its_transaction(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await commit(scene.groups, T0, 5)
        await commit(scene.groups, T1, 6)
        scene.cut()
        under_way = await scene.begin(commit(scene.groups, T1, 7))
        deletion = await scene.begin(scene.groups.delete_offsets("g", [T0, T1]))
        scene.heal()
        assert (await under_way, await deletion) == ([ErrorCode.NONE], [dict.fromkeys((T0, T1), ErrorCode.NONE)])
        for groups in (scene.groups, await scene.next_one()):
            assert not groups.transactional.unstable("g")
        await end(scene, True)
        for groups in (scene.groups, await scene.next_one()):
            assert known(groups) == {}


async def test_what_is_pending_keeps_its_group_and_the_offset_before_it(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await scene.commit("g", T0, 1, age_ms=10**9)
        await scene.commit("g", T1, 1, age_ms=10**9)
        await commit(scene.groups, T0, 5)
        await commit(scene.groups, T0, 5, group="h")
        assert await scene.groups.expire_offsets() == 1
        assert known(scene.groups) == {T0: 1}
        assert [group.group_id for group in scene.groups.list_groups()] == ["g", "h"]
        await end(scene, False)
        assert await scene.groups.expire_offsets() == 1
        assert scene.groups.list_groups() == []


async def test_offsets_of_a_deleted_topic_do_not_come_back_with_the_end_of_a_transaction(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await commit(scene.groups, T0, 5)
        log_end = scene.node.log(OFFSETS).log_end_offset
        assert [*scene.groups.forget_topics(frozenset({"t"}))]
        await eventually(lambda: scene.node.log(OFFSETS).log_end_offset > log_end, "a tombstone")
        await end(scene, True)
        for groups in (scene.groups, await scene.next_one()):
            assert known(groups) == {}


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_what_is_being_written_is_not_stable(tmp_path: Path, in_transaction: bool) -> None:
    """A consumer that started at the group's old offset would process again what the transaction covers."""
    async with coordinating(tmp_path) as scene:
        await scene.commit("g", T0, 1)
        scene.cut()
        work = commit(scene.groups, T0, 5) if in_transaction else scene.commit("g", T0, 5)
        under_way = await scene.begin(work)
        assert set(scene.groups.transactional.unstable("g")) == {T0}
        scene.heal()
        assert await under_way == [ErrorCode.NONE]
        assert set(scene.groups.transactional.unstable("g")) == ({T0} if in_transaction else set())


async def test_what_the_transactions_coordinator_does_not_agree_to_is_not_written(tmp_path: Path) -> None:
    async def refused(partition: TopicPartition) -> ErrorCode:
        assert partition == OFFSETS
        return ErrorCode.INVALID_TXN_STATE

    async with coordinating(tmp_path) as scene:
        before = scene.node.log(OFFSETS).log_end_offset
        with pytest.raises(ApiError) as error:
            await scene.groups.transactional.commit("g", Committer(), {T0: offset(1)}, P1, refused)
        assert error.value.code is ErrorCode.INVALID_TXN_STATE
        assert scene.node.log(OFFSETS).log_end_offset == before
        assert scene.groups.list_groups() == []


async def test_a_commit_in_a_transaction_holds_up_what_is_stable_and_its_abort_is_known(tmp_path: Path) -> None:
    """Although it has no sequence numbers. Otherwise the cleaner would keep an aborted offset in place of the valid
    one."""
    async with coordinating(tmp_path) as scene:
        log = scene.node.log(OFFSETS)
        await scene.commit("g", T0, 1)
        first = log.log_end_offset
        await commit(scene.groups, T0, 5)
        await commit(scene.groups, T1, 6)
        assert log.last_stable_offset == first
        await end(scene, False)
        await eventually(lambda: log.last_stable_offset == log.log_end_offset)
        aborted = [(each.producer_id, each.first_offset) for each in log.aborted_transactions(0, log.log_end_offset)]
        assert aborted == [(P1[0], first)]


@pytest.mark.spec("CLI-09")
async def test_a_commit_of_many_partitions_is_made_in_turns_and_counts_by_who_leads_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 300
    async with coordinating(tmp_path) as scene:
        turning.end_at_once(monkeypatch)
        offsets = {TopicPartition("t", each): offset(1) for each in range(count)}
        committing = scene.groups.transactional.commit("g", Committer(), offsets, P1, agreed)
        answers, had = await turning.beside(committing)
        assert had >= count
        assert set(answers.values()) == {ErrorCode.NONE}
        assert set(scene.groups.transactional.unstable("g")) == set(offsets)
        end_before = scene.node.log(OFFSETS).log_end_offset
        begun = asyncio.ensure_future(scene.groups.transactional.commit("g", Committer(), offsets, P2, agreed))
        for _ in range(count // 2):
            await asyncio.sleep(0)
        scene.groups.resign(0)
        with pytest.raises(ApiError) as refused:
            await begun
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        assert scene.node.log(OFFSETS).log_end_offset == end_before


@pytest.mark.spec("CLI-09")
async def test_many_offsets_are_taken_away_in_turns_and_what_is_so_in_between_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FORGOTTEN_AT_ONCE", 10)
    many = [TopicPartition("t", number) for number in range(45)]
    async with coordinating(tmp_path) as scene:
        for _ in range(2):
            for each in many[:15]:
                assert await scene.commit("g", each, 5) is ErrorCode.NONE
            answers, had = await turning.beside(scene.groups.delete_offsets("g", many))
            assert answers == dict.fromkeys(many, ErrorCode.NONE), "also those behind the group's last offset"
            assert had >= 5
            assert known(scene.groups) == known(await scene.next_one()) == {}
        for each in many:
            await scene.commit("g", each, 5)
        deletion = asyncio.ensure_future(scene.groups.delete_offsets("g", many))
        while len(known(scene.groups)) == len(many):
            await asyncio.wait((asyncio.ensure_future(asyncio.sleep(0)),))
        assert await scene.commit("g", many[0], 7) is ErrorCode.NONE
        assert set((await deletion).values()) == {ErrorCode.NONE}
        assert known(scene.groups) == known(await scene.next_one()) == {many[0]: 7}
        for each in many:
            await scene.commit("g", each, 5)
        deletion = asyncio.ensure_future(scene.groups.delete_offsets("g", many))
        await asyncio.wait((asyncio.ensure_future(asyncio.sleep(0)),))
        scene.groups.resign(0)
        with pytest.raises(ApiError) as refused:
            await deletion
        assert refused.value.code is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("adds", [False, True])
async def test_nothing_is_written_behind_the_end_of_a_transaction(tmp_path: Path, adds: bool) -> None:
    """It would stay pending: the end came during the verification, to which the coordinator had agreed before."""
    async with coordinating(tmp_path) as scene:

        async def agreed_and_aborted(_: TopicPartition) -> ErrorCode:
            await end(scene, False)
            return ErrorCode.NONE

        commits = scene.groups.transactional
        answer = await commits.commit("g", Committer(), {T0: offset(1)}, P1, agreed_and_aborted, adds=adds)
        # If it may have been the end of the previous transaction, the coordinator must be asked again.
        assert answer == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE if adds else ErrorCode.INVALID_TXN_STATE}
        assert not commits.unstable("g")
        assert scene.groups.list_groups() == []


async def test_nothing_is_written_behind_the_end_of_a_transaction_that_a_slow_disk_is_taking(tmp_path: Path) -> None:
    """An older client's end leaves the epoch as it is, so a late commit cannot be recognised by it."""
    async with coordinating(tmp_path) as scene:
        await commit(scene.groups, T0, 5)
        log = scene.node.log(OFFSETS)
        log.directory.slow_until = asyncio.get_running_loop().time() + 3600
        marker = render_marker(*P1, 0, committed=True, now_ms=RealClock().wall_ms())
        ending = scene.node.replicas.append_own(OFFSETS, marker, -1)
        late = asyncio.ensure_future(commit(scene.groups, T0, 4))
        await ending
        assert await late is ErrorCode.INVALID_TXN_STATE
        assert not log.producers.is_open(*P1)


async def test_the_coordinator_is_asked_once_in_a_transaction(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        asked = []

        async def agreed(partition: TopicPartition) -> ErrorCode:
            asked.append(partition)
            return ErrorCode.NONE

        for number in range(4):
            await scene.groups.transactional.commit("g", Committer(), {T0: offset(number)}, P1, agreed, adds=True)
            if number == 1:
                await end(scene, True)
        assert asked == [OFFSETS, OFFSETS]
        assert known(scene.groups) == {T0: 1}


@pytest.mark.parametrize(
    ("committer", "error"),
    [
        (Committer(), ErrorCode.NONE),
        (Committer("m", None, 4), ErrorCode.NONE),
        (Committer("m", None, 3), ErrorCode.ILLEGAL_GENERATION),
        (Committer("m", None, -1), ErrorCode.ILLEGAL_GENERATION),
        (Committer("n", None, 4), ErrorCode.UNKNOWN_MEMBER_ID),
        (Committer("m", "i", 4), ErrorCode.NONE),
        (Committer("n", "i", 4), ErrorCode.FENCED_INSTANCE_ID),
        (Committer("m", "j", 4), ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_may_commit(committer: Committer, error: ErrorCode) -> None:
    group = Group("g", state=GroupState.STABLE, generation=4)
    group.add(Member("m", "i", "", "", 1, 1, ()))
    assert code_of(group, committer) is error


def test_who_may_commit_where_there_is_nobody() -> None:
    assert code_of(None, Committer("m", None, 4)) is ErrorCode.ILLEGAL_GENERATION
    assert code_of(None, Committer("m", None, -1)) is ErrorCode.NONE
    assert code_of(Group("g"), Committer("m", None, -1)) is ErrorCode.NONE
    assert code_of(Group("g"), Committer("m", None, 4)) is ErrorCode.UNKNOWN_MEMBER_ID
    dead = Group("g", state=GroupState.DEAD)
    assert code_of(dead, Committer()) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def code_of(group: Group | None, committer: Committer) -> ErrorCode:
    try:
        check_committer(group, committer)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


KINDS = ["pend", "pend", "commit", "forget", "end", "abort"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 3)), max_size=30))
def test_the_last_in_the_log_of_what_counts_is_what_is_known(events: list[tuple[str, int]]) -> None:
    """Compared with a naive model that goes through the whole log each time."""
    pending = PendingOffsets()
    offsets: dict[TopicPartition, CommittedOffset] = {}
    written: list[tuple[int | None, CommittedOffset | None, bool]] = []  # by whom, what, and whether it counts
    for number, (kind, producer) in enumerate(events):
        if kind == "pend":
            pending.add(producer, "g", T0, offset(number))
            written.append((producer, offset(number), False))
        elif kind == "commit":
            pending.supersede("g", T0)
            offsets[T0] = offset(number)
            written.append((None, offset(number), True))
        elif kind == "forget":
            pending.forget("g", T0)
            offsets.pop(T0, None)
            written = [(None, None, True)]
        else:
            offsets |= {partition: value for _, partition, value in pending.end(producer, kind == "end")}
            keep = [each for each in written if each[0] != producer or kind == "end"]
            written = [(None, value, True) if by == producer else (by, value, counts) for by, value, counts in keep]
        counting = [value for _, value, counts in written if counts]
        assert offsets.get(T0) == (counting[-1] if counting else None)
        assert bool(pending.of_group("g")) == any(not counts for _, _, counts in written)
