"""Groups of the consumer protocol with their log: real replicas on real files, and the coordinator that comes after."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.broker.controller.scene import expand_request
from tests.broker.coordinator.consumers.test_heartbeat import image_of
from tests.broker.coordinator.test_service import OFFSETS, RETENTION_MS, T0, Coordinating, ask, coordinating
from tests.broker.replication.cluster import RealClock, eventually

from ballast_broker.controller.commands.partitions import create_partitions
from ballast_broker.coordinator.consumers import pattern_resolver, resolving
from ballast_broker.coordinator.consumers.config import ConsumerConfig
from ballast_broker.coordinator.consumers.group import ConsumerGroup, GroupState, MemberState, Partitions, Resolved
from ballast_broker.coordinator.consumers.heartbeat import Answer, Ask
from ballast_broker.coordinator.consumers.resolving import MayDescribe, resolve
from ballast_broker.coordinator.offsets import CommittedOffset
from ballast_broker.coordinator.service import GroupCoordinator
from ballast_broker.coordinator.shard import Shard
from ballast_broker.metadata.image import MetadataImage
from ballast_wire.errors import ApiError, ErrorCode

pytestmark = pytest.mark.spec("CLI-04")

SHORT = ConsumerConfig(session_timeout_ms=300, session_timeouts_ms=(100, 1000))


async def beat(scene: Coordinating, member_id: str = "m", epoch: int = 0, **more: Any) -> Answer:
    if epoch == 0:
        more = {"rebalance_timeout_ms": 60_000, "topics": frozenset({"t"}), "owned": {}} | more
    return await scene.groups.consumers.heartbeat("g", Ask(member_id, epoch, "c", "h", **more))


def group(scene: Coordinating) -> ConsumerGroup:
    return scene.groups.consumers.describe("g")


def of_t(scene: Coordinating, *numbers: int) -> Partitions:
    return {topic_id(scene): frozenset(numbers)}


def topic_id(scene: Coordinating) -> UUID:
    return scene.cluster.topic_id("t")


async def commit(scene: Coordinating, member_id: str, epoch: int, age_ms: int = 0) -> ErrorCode:
    offset = CommittedOffset(5, -1, "", RealClock().wall_ms() - age_ms)
    return (await scene.groups.commit("g", member_id, None, epoch, {T0: offset}))[T0]


async def test_the_next_coordinator_knows_what_this_one_knew(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await beat(scene)
        await beat(scene, "s", instance_id="i", topics=None, pattern="t.*")
        await eventually(lambda: group(scene).resolved, "the pattern is resolved")
        await beat(scene, "m", 1, owned=of_t(scene, 0, 1))
        before = group(scene)
        assert before.state is GroupState.RECONCILING
        after = (await scene.next_one()).consumers.describe("g")
        assert after == before


async def test_nobody_is_told_what_is_not_committed_and_one_comes_after_the_other(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        scene.cut()
        first = await scene.begin(beat(scene, "a"))
        second = asyncio.get_running_loop().create_task(beat(scene, "b"))
        await asyncio.sleep(0)
        assert not first.done()
        with pytest.raises(ApiError):
            group(scene)
        scene.heal()
        [answer] = await first
        assert (answer.epoch, (await second).epoch) == (1, 2)
        assert {each.current.epoch for each in group(scene).members.values()} == {1, 2}


async def test_what_took_too_long_to_commit_counts_once_it_is(tmp_path: Path) -> None:
    async with coordinating(tmp_path, cut_timeout_ms=50) as scene:
        scene.cut()
        [error] = await asyncio.gather(beat(scene, "a"), return_exceptions=True)
        assert isinstance(error, ApiError)
        assert error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        scene.heal()
        await eventually(lambda: "g" in [each.group_id for each in scene.groups.list_groups()], "it is committed")
        assert (await beat(scene, "a", 1)).epoch == 1
        assert (await scene.next_one()).consumers.describe("g") == group(scene)


async def test_who_waits_for_a_turn_elsewhere_is_told_so(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        scene.cut()
        tasks = [asyncio.get_running_loop().create_task(beat(scene, name)) for name in ("a", "b")]
        await eventually(lambda: scene.node.log(OFFSETS).log_end_offset > 0)
        scene.groups.resign_all()
        scene.heal()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [getattr(each, "code", None) for each in results][1:] == [ErrorCode.NOT_COORDINATOR]


async def test_a_member_that_is_not_heard_of_is_none_any_more(tmp_path: Path) -> None:
    async with coordinating(tmp_path, consumers=SHORT) as scene:
        await beat(scene, "silent")
        await beat(scene, "m")

        async def go_on() -> None:
            while True:
                own = group(scene).members["m"].current
                await beat(scene, "m", own.epoch, owned=own.assigned)
                await asyncio.sleep(0.02)

        beating = asyncio.get_running_loop().create_task(go_on())
        await eventually(lambda: list(group(scene).members) == ["m"], "the silent one is gone")
        await eventually(lambda: group(scene).members["m"].current.assigned == of_t(scene, 0, 1), "and what it had")
        beating.cancel()
        assert list((await scene.next_one()).consumers.describe("g").members) == ["m"]


async def test_the_next_coordinator_misses_members_too(tmp_path: Path) -> None:
    async with coordinating(tmp_path, consumers=SHORT) as scene:
        await beat(scene)
        following = await scene.next_one()
        scene.groups.resign_all()
        scene.groups = following
        await eventually(lambda: group(scene).state is GroupState.EMPTY, "its session is over there, too")


async def test_who_keeps_what_it_is_to_give_back_goes(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await beat(scene, "keeps", rebalance_timeout_ms=50)
        await beat(scene, "waits")
        await beat(scene, "keeps", 1, owned=of_t(scene, 0, 1))
        assert group(scene).members["keeps"].current.state is MemberState.UNREVOKED_PARTITIONS
        await eventually(lambda: list(group(scene).members) == ["waits"], "it had so much time and no more")
        assert (await beat(scene, "waits", 2)).assigned == of_t(scene, 0, 1)


async def test_a_static_member_that_is_away_has_its_whole_session_to_come_back(tmp_path: Path) -> None:
    """What it was to give back it gave back as it went; its rebalance timeout is no question any more."""
    async with coordinating(tmp_path) as scene:
        await beat(scene, "s", instance_id="i", rebalance_timeout_ms=200)
        await beat(scene, "waits")
        await beat(scene, "s", 1, instance_id="i", owned=of_t(scene, 0, 1))
        assert group(scene).members["s"].current.state is MemberState.UNREVOKED_PARTITIONS
        await beat(scene, "s", -2, instance_id="i")
        await asyncio.sleep(0.4)
        assert set(group(scene).members) == {"s", "waits"}
        assert (await beat(scene, "again", instance_id="i")).epoch == 2


async def test_topics_that_change_are_seen_at_the_next_heartbeat(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await beat(scene)
        await beat(scene, "p", topics=None, pattern="t|new")
        await eventually(lambda: group(scene).resolved, "the pattern is resolved")
        assert (await beat(scene, "m", -1)).epoch == -1
        epoch = (await beat(scene, "p", 1)).epoch
        request = expand_request(("t", 3, None))
        scene.cluster.controller.commit(create_partitions(scene.cluster.controller.context(), request))
        answer = await beat(scene, "p", epoch)
        assert answer.assigned == of_t(scene, 0, 1, 2)
        scene.cluster.controller.create_topic("new", [[1]])
        await eventually(lambda: group(scene).resolved["t|new"].topics == {"t", "new"}, "it stands for two now")
        answer = await beat(scene, "p", answer.epoch)
        assert answer.assigned == {**of_t(scene, 0, 1, 2), scene.cluster.topic_id("new"): frozenset({0})}


@pytest.mark.parametrize("there", [True, False])
async def test_a_topic_that_is_made_while_its_first_reader_is_written_is_seen(tmp_path: Path, there: bool) -> None:
    """The group that is known by then does not read it, or there is none."""
    async with coordinating(tmp_path) as scene:
        if there:
            await beat(scene)
        scene.cut()
        coming = await scene.begin(beat(scene, "n", topics=frozenset({"new"})))
        scene.cluster.controller.create_topic("new", [[1]])
        scene.heal()
        [answer] = await coming
        answer = await beat(scene, "n", answer.epoch)
        assert answer.assigned == {scene.cluster.topic_id("new"): frozenset({0})}


@pytest.mark.spec("CLI-06")
async def test_a_pattern_stands_for_no_more_than_its_member_may_know_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rights = {"t"}

    async def heard(groups: GroupCoordinator, epoch: int = 0, **more: Any) -> Answer:
        return await groups.consumers.heartbeat("g", Ask("p", epoch, "c", "h", **more), rights.__contains__)

    async with coordinating(tmp_path, consumers=ConsumerConfig(patterns_take_rights=True)) as scene:
        scene.cluster.controller.create_topic("secret", [[1]])
        answer = await heard(scene.groups, rebalance_timeout_ms=60_000, pattern=".*", owned={})
        await eventually(lambda: group(scene).resolved, "the pattern is resolved")
        assert group(scene).resolved[".*"].topics == {"t"}
        answer = await heard(scene.groups, answer.epoch)
        rights.add("secret")
        after = await scene.next_one()
        assert after.consumers.describe("g").resolved[".*"].topics == {"t"}
        answer = await heard(after, answer.epoch)  # it knew nobody whose rights it takes
        await eventually(lambda: len(after.consumers.describe("g").resolved[".*"].topics) == 2, "somebody is there now")
        rights.discard("secret")
        answer = await heard(after, answer.epoch)
        assert len(after.consumers.describe("g").resolved[".*"].topics) == 2
        monkeypatch.setattr(pattern_resolver, "RIGHTS_HOLD_MS", -1)
        answer = await heard(after, answer.epoch)
        await eventually(lambda: after.consumers.describe("g").resolved[".*"].topics == {"t"}, "it is looked at again")


@pytest.mark.spec("CLI-06")
async def test_rights_that_did_not_change_are_looked_at_once_in_a_while(tmp_path: Path) -> None:
    looks: list[str] = []

    def may_describe(topic: str) -> bool:
        looks.append(topic)
        return True

    async with coordinating(tmp_path, consumers=ConsumerConfig(patterns_take_rights=True)) as scene:

        async def heard(epoch: int, **more: Any) -> Answer:
            return await scene.groups.consumers.heartbeat("g", Ask("p", epoch, "c", "h", **more), may_describe)

        answer = await heard(0, rebalance_timeout_ms=60_000, pattern="t", owned={})
        await eventually(lambda: group(scene).resolved, "the pattern is resolved")
        for many in (2, 3):
            scene.clock.ahead_s += pattern_resolver.RIGHTS_HOLD_MS / 1000 + 1
            scene.clock.stepped_ms += pattern_resolver.RIGHTS_HOLD_MS + 1000
            for _ in range(3):
                answer = await heard(answer.epoch)
                life = scene.groups.consumers._lives["g"]
                await eventually(lambda life=life: not life.resolving, "it has been looked at")  # type: ignore[misc]
            assert len(looks) == many


async def test_a_heartbeat_that_changes_nothing_is_not_written(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await beat(scene)
        end = scene.node.log(OFFSETS).log_end_offset
        for _ in range(3):
            assert (await beat(scene, "m", 1)).assigned is None
        assert scene.node.log(OFFSETS).log_end_offset == end


async def test_offsets_are_committed_at_the_present_epoch_only(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await beat(scene)
        assert await commit(scene, "m", 1) is ErrorCode.NONE
        for member_id, epoch, error in (
            ("m", 0, ErrorCode.STALE_MEMBER_EPOCH),
            ("m", 2, ErrorCode.STALE_MEMBER_EPOCH),
            ("x", 1, ErrorCode.UNKNOWN_MEMBER_ID),
            ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            with pytest.raises(ApiError) as caught:
                await commit(scene, member_id, epoch)
            assert caught.value.code is error
        for member_id, epoch, error in (
            ("m", 2, ErrorCode.STALE_MEMBER_EPOCH),
            ("x", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            with pytest.raises(ApiError) as caught:
                scene.groups.fetch_offsets("g", member_id, epoch)
            assert caught.value.code is error
        assert scene.groups.fetch_offsets("g", "m", 1) == scene.groups.fetch_offsets("g") != {}
        assert await scene.groups.delete_offsets("g", [T0]) == {T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}


async def test_offsets_and_groups_expire(tmp_path: Path) -> None:
    """Of what is read, never; of what is not, so long after the commit; and an empty group goes with its last one."""
    async with coordinating(tmp_path) as scene:
        await beat(scene)
        assert await commit(scene, "m", 1, age_ms=2 * RETENTION_MS) is ErrorCode.NONE
        assert await scene.groups.expire_offsets() == 0
        await beat(scene, "m", -1)
        assert await scene.groups.expire_offsets() == 1
        assert scene.groups.describe("g") is None
        assert (await scene.next_one()).list_groups() == []


async def test_a_group_is_deleted_when_it_is_empty(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await beat(scene)
        assert await commit(scene, "m", 1) is ErrorCode.NONE
        assert await scene.groups.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
        await beat(scene, "m", -1)
        assert await scene.groups.delete_group("g") is ErrorCode.NONE
        assert await scene.groups.delete_group("g") is ErrorCode.GROUP_ID_NOT_FOUND
        after = await scene.next_one()
        assert (after.list_groups(), after.fetch_offsets("g")) == ([], {})


async def test_an_empty_group_goes_from_one_protocol_to_the_other_with_its_offsets(tmp_path: Path) -> None:
    async with coordinating(tmp_path, consumers=ConsumerConfig(upgrades=False)) as scene:
        await scene.become_empty("g")
        assert await commit(scene, "", -1) is ErrorCode.NONE
        assert (await beat(scene)).epoch == 1
        refused = await scene.groups.join("g", replace(ask("classic"), protocol_type="connect"))
        assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        await beat(scene, "m", -1)
        joined = await scene.groups.join("g", ask("classic"))
        assert joined.error is ErrorCode.NONE
        with pytest.raises(ApiError) as caught:
            await beat(scene)
        assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND
        assert set(scene.groups.fetch_offsets("g")) == {T0}
        after = await scene.next_one()
        assert [type(each) for each in after.list_groups()] == [type(each) for each in scene.groups.list_groups()]
        assert set(after.fetch_offsets("g")) == {T0}


async def test_who_joins_a_group_that_went_to_the_other_protocol_as_its_coordinator_moved_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coordinating(tmp_path) as scene:
        await beat(scene)
        await beat(scene, "m", -1)
        make_way = scene.groups.consumers.make_way

        async def make_way_and_move(shard: Shard, group_id: str) -> None:
            await make_way(shard, group_id)
            scene.groups.resign_all()

        monkeypatch.setattr(scene.groups.consumers, "make_way", make_way_and_move)
        joined = await asyncio.wait_for(scene.groups.join("g", ask("classic")), 5)
        assert joined.error is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("there", [True, False])
async def test_a_group_on_its_way_to_the_other_protocol_takes_nobody_in_before(tmp_path: Path, there: bool) -> None:
    """Nor does one that is not there before: it would be in the log as both."""
    async with coordinating(tmp_path) as scene:
        if there:
            await scene.become_empty("g")
        scene.cut()
        coming = await scene.begin(beat(scene))
        joining = asyncio.ensure_future(scene.groups.join("g", ask("d")))
        await asyncio.sleep(0)
        assert not joining.done()
        scene.heal()
        [answer] = await coming
        assert answer.epoch == 1
        await joining
        assert isinstance(scene.groups.describe("g"), ConsumerGroup)
        assert scene.groups._shards[0].classic_groups == {}


@pytest.mark.spec("CLI-08")
async def test_a_name_too_long_to_be_written_harms_nobody(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await scene.become_empty("g")
        with pytest.raises(ApiError) as caught:
            await beat(scene, "m" * 40_000)
        assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert (await scene.groups.join("g", ask("classic"))).error is ErrorCode.NONE


async def test_an_administrator_takes_members_out(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await beat(scene, "a")
        await beat(scene, "s", instance_id="i")
        errors = await scene.groups.consumers.remove("g", [("x", None), ("", "j"), ("a", None), ("", "i")])
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        assert errors == [unknown, unknown, ErrorCode.NONE, ErrorCode.NONE]
        assert group(scene).state is GroupState.EMPTY


async def test_the_pattern_of_a_group_is_resolved_though_that_of_an_earlier_one_of_its_name_still_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on = asyncio.Event()

    async def slow(text: str, image: MetadataImage, wall_ms: int, may_describe: MayDescribe | None = None) -> Resolved:
        await going_on.wait()
        return await resolve(text, image, wall_ms, may_describe)

    monkeypatch.setattr(pattern_resolver, "resolve", slow)
    async with coordinating(tmp_path) as scene:
        await beat(scene, "m", topics=None, pattern="t")
        await beat(scene, "m", -1)
        scene.cut()
        deleting = await scene.begin(scene.groups.delete_group("g"))
        joining = asyncio.ensure_future(beat(scene, "n", topics=None, pattern="t"))
        await asyncio.sleep(0)
        scene.heal()
        assert await deleting == [ErrorCode.NONE]
        assert (await joining).epoch == 1
        going_on.set()
        await eventually(lambda: group(scene).resolved, "the pattern is resolved")


async def test_others_have_their_turn_while_a_pattern_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that makes much work of each name, of names that are long."""
    monkeypatch.setattr(resolving, "RESTS", 0)
    monkeypatch.setattr(resolving, "LONGEST_TURN_S", -1.0)  # each name is much work, however fast the machine is
    chance = random.Random(1)
    names = {"".join(chance.choices("ab", k=200)) + f"-{number}": (UUID(int=number), 1) for number in range(1, 40)}
    image = MetadataImage(topics=image_of(names))
    task = asyncio.get_running_loop().create_task(resolve("(a|b)*a[ab]{900}|.*-[0-9]", image, 0))
    turns, longest_s, last_s = 0, 0.0, time.process_time()
    while not task.done():
        await asyncio.sleep(0)
        turns, now_s = turns + 1, time.process_time()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    assert len((await task).topics) == 9
    assert turns >= len(names)
    assert longest_s < 0.5


def test_others_have_most_of_the_time_while_a_pattern_makes_much_work() -> None:
    assert [resolving.rest_s(took_s) for took_s in (0.001, 0.03)] == [0.0, pytest.approx(0.12)]


async def test_names_that_are_no_groups_leave_nothing_behind(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        for epoch in (5, -1):
            with pytest.raises(ApiError):
                await beat(scene, "m", epoch)
        with pytest.raises(ApiError):
            await beat(scene, pattern="(")
        assert scene.groups.consumers._lives == {}
        assert scene.groups.list_groups() == []
