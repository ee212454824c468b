"""Groups that go from one protocol to the other with their members, with their log, and the coordinator after them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.broker.coordinator.consumers.test_classic_members import STICKY, subscription
from tests.broker.coordinator.consumers.test_service import beat, commit, group, of_t
from tests.broker.coordinator.test_service import AT_ONCE, OFFSETS, T0, Coordinating, coordinating
from tests.broker.replication.cluster import eventually

from ballast_broker.coordinator.consumers.config import ConsumerConfig
from ballast_broker.coordinator.consumers.embedded import assignment, assignment_of
from ballast_broker.coordinator.consumers.group import ConsumerGroup, GroupState, Partitions
from ballast_broker.coordinator.effects import JoinResult, SyncResult
from ballast_broker.coordinator.group import Group, Protocol
from ballast_broker.coordinator.group import GroupState as ClassicState
from ballast_broker.coordinator.rebalance import JoinAsk, SyncAsk
from ballast_broker.coordinator.store import Settled
from ballast_broker.coordinator.transactional_commits import Committer, check_consumer
from ballast_broker.storage.producers import Verification
from ballast_wire.errors import ApiError, ErrorCode

pytestmark = pytest.mark.spec("CLI-04")

REBALANCE, NONE = ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NONE


def terms(member_id: str = "", *owned: int, fresh: str = "c", **more: Any) -> JoinAsk:
    metadata = subscription({"t"}, {"t": owned} if owned else {})
    ask = JoinAsk(
        member_id, None, "c", "h", 10_000, 30_000, "consumer", (Protocol(STICKY, metadata),), fresh, False, True
    )
    return replace(ask, **more)


async def join(scene: Coordinating, member_id: str = "", *owned: int, **more: Any) -> JoinResult:
    return await scene.groups.join("g", terms(member_id, *owned, **more))


async def sync(scene: Coordinating, joined: JoinResult, **assignments: Partitions) -> SyncResult:
    topics = scene.cluster.controller.image.topics
    given = {name: assignment(partitions, topics, 3) for name, partitions in assignments.items()}
    ask = SyncAsk(joined.member_id, None, joined.generation, joined.protocol_type, joined.protocol_name, given)
    return await scene.groups.sync("g", ask)


def numbers(result: SyncResult) -> set[int]:
    assert result.error is NONE
    return set(assignment_of(result.assignment)[0].get("t", ()))


async def classic_alone(scene: Coordinating, member_id: str = "c", **more: Any) -> JoinResult:
    """The one member of a classic group has both partitions."""
    joined = await join(scene, fresh=member_id, **more)
    assert numbers(await sync(scene, joined, **{member_id: of_t(scene, 0, 1)})) == {0, 1}
    return joined


def told(scene: Coordinating, joined: JoinResult, instance_id: str | None = None) -> ErrorCode:
    return scene.groups.heartbeat("g", joined.member_id, instance_id, joined.generation)


def classic(scene: Coordinating) -> Group:
    found = scene.groups.describe("g")
    assert isinstance(found, Group)
    return found


async def test_a_group_goes_over_and_back_with_its_members_and_offsets(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        joined = await classic_alone(scene)
        assert await commit(scene, "c", joined.generation) is NONE
        answer = await beat(scene)
        assert (answer.epoch, answer.assigned) == (joined.generation + 1, {})
        assert scene.groups._shards[0].classic_groups == {}
        assert (await scene.next_one()).describe("g") == group(scene)
        assert await commit(scene, "c", joined.generation) is NONE
        assert told(scene, joined) is REBALANCE
        assert (await sync(scene, joined)).error is REBALANCE
        again = await join(scene, "c", 0, 1)
        assert (again.error, again.generation, again.leader, again.members) == (NONE, joined.generation, "", ())
        assert (again.protocol_type, again.protocol_name) == ("consumer", STICKY)
        [kept] = numbers(await sync(scene, again))
        again = await join(scene, "c", kept)
        assert again.generation == answer.epoch
        assert numbers(await sync(scene, again)) == {kept}
        assert told(scene, again) is NONE
        assert (await beat(scene, "m", answer.epoch)).assigned == of_t(scene, 1 - kept)
        assert group(scene).state is GroupState.STABLE
        await beat(scene, "m", -1)
        assert classic(scene).state is ClassicState.PREPARING_REBALANCE
        assert told(scene, again) is REBALANCE
        last = await join(scene, "c", kept)
        assert (last.leader, [each.member_id for each in last.members]) == ("c", ["c"])
        assert last.generation == answer.epoch + 1
        assert numbers(await sync(scene, last, c=of_t(scene, 0, 1))) == {0, 1}
        assert set(scene.groups.fetch_offsets("g")) == {T0}
        after = (await scene.next_one()).describe("g")
        assert isinstance(after, Group)
        assert (after.generation, after.members["c"].assignment) == (
            last.generation,
            classic(scene).members["c"].assignment,
        )


@pytest.mark.parametrize("instance_id", [None, "i"])
async def test_who_waits_as_the_group_goes_over_goes_along(tmp_path: Path, instance_id: str | None) -> None:
    """Or it would wait for a generation that never comes; REBALANCE_IN_PROGRESS ends aiokafka's consumers there."""
    async with coordinating(tmp_path) as scene:
        joined = await classic_alone(scene)
        other = asyncio.ensure_future(join(scene, fresh="d", group_instance_id=instance_id))
        await asyncio.sleep(0)
        assert classic(scene).state is ClassicState.PREPARING_REBALANCE
        answer = await beat(scene)
        came = await other
        assert (came.error, came.member_id) == (NONE, "d")
        assert came.generation >= answer.epoch
        assert set(group(scene).members) == {"c", "d", "m"}
        assert told(scene, joined) is REBALANCE


@pytest.mark.parametrize("member_id", ["", "c"])
async def test_who_joins_as_the_group_goes_over_is_in_the_one_that_follows(tmp_path: Path, member_id: str) -> None:
    """COORDINATOR_NOT_AVAILABLE ends Sarama's consumers there."""
    async with coordinating(tmp_path) as scene:
        await classic_alone(scene)
        scene.cut()
        coming = await scene.begin(beat(scene))
        other = asyncio.ensure_future(join(scene, member_id, fresh="d"))
        await asyncio.sleep(0)
        scene.heal()
        await coming
        assert ((await other).error, (await other).member_id) == (NONE, member_id or "d")
        assert set(group(scene).members) == {"c", "m", member_id or "d"}


async def test_who_joins_as_the_first_member_makes_the_group_is_in_it(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        scene.cut()
        coming = await scene.begin(beat(scene))
        other = asyncio.ensure_future(join(scene, fresh="d"))
        await asyncio.sleep(0)
        scene.heal()
        await coming
        assert (await other).error is NONE
        assert set(group(scene).members) == {"d", "m"}


async def test_a_group_that_goes_over_is_there_for_administrators_too(tmp_path: Path) -> None:
    """GROUP_ID_NOT_FOUND would tell them that it is gone, with what it has committed."""
    async with coordinating(tmp_path) as scene:
        joined = await classic_alone(scene)
        assert await commit(scene, "c", joined.generation) is NONE
        scene.cut()
        coming = await scene.begin(beat(scene))
        assert await scene.groups.delete_group("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        with pytest.raises(ApiError) as refused:
            await scene.groups.delete_offsets("g", [T0])
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        scene.heal()
        await coming
        assert await scene.groups.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
        assert set(scene.groups.fetch_offsets("g")) == {T0}


async def test_who_syncs_as_the_group_goes_over_joins_again(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        joined = await classic_alone(scene)
        scene.cut()
        coming = await scene.begin(beat(scene))
        assert (await sync(scene, joined)).error is REBALANCE
        scene.heal()
        await coming


@pytest.mark.parametrize("waits", [False, True])
async def test_a_group_whose_going_over_is_not_written_goes_on_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    async with coordinating(tmp_path) as scene:
        joined = await classic_alone(scene)
        other = asyncio.ensure_future(join(scene, fresh="d")) if waits else None
        await asyncio.sleep(0)

        async def refused() -> ErrorCode:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE

        def append(
            partition: int, batch: bytearray, settled: Settled, verified: Verification | None = None
        ) -> Awaitable[ErrorCode]:
            assert told(scene, joined) is ErrorCode.COORDINATOR_NOT_AVAILABLE
            settled(False)
            return refused()

        with monkeypatch.context() as patched:
            patched.setattr(scene.groups._store, "append_batch", append)
            with pytest.raises(ApiError):
                await beat(scene)
        if other is not None:
            assert told(scene, joined) is REBALANCE
            answers = [await join(scene, "c", 0, 1), await other]
            assert [(each.error, each.generation) for each in answers] == [(NONE, joined.generation + 1)] * 2
            return
        assert classic(scene).state is ClassicState.STABLE
        assert told(scene, joined) is NONE
        assert numbers(await sync(scene, joined)) == {0, 1}
        assert scene.groups.classic._timers.keys() == {"g"}


@pytest.mark.parametrize("committed", [True, False])
async def test_the_coordinator_moves_as_the_group_goes_over(tmp_path: Path, committed: bool) -> None:
    async with coordinating(tmp_path) as scene:
        joined = await classic_alone(scene)
        if committed:
            await beat(scene)
        else:
            scene.cut()
            coming = await scene.begin(beat(scene))
            scene.groups.resign_all()
            scene.heal()
            await asyncio.gather(coming, return_exceptions=True)
        scene.groups.resign_all()
        scene.groups = await scene.next_one()
        # What was in the log counts, whoever was told of it.
        assert set(group(scene).members) == {"c", "m"}
        assert told(scene, joined) is REBALANCE
        again = await join(scene, "c", 0, 1)
        assert len(numbers(await sync(scene, again))) == 1


async def test_the_coordinator_moves_as_the_group_goes_back(tmp_path: Path) -> None:
    """What the last one had would be nobody's until somebody joined for another reason."""
    async with coordinating(tmp_path) as scene:
        await classic_alone(scene)
        await beat(scene)
        again = await join(scene, "c", 0, 1)
        [kept] = numbers(await sync(scene, again))
        again = await join(scene, "c", kept)
        await beat(scene, "m", -1)
        scene.groups.resign_all()
        scene.groups = await scene.next_one()
        assert told(scene, again) is ErrorCode.ILLEGAL_GENERATION  # which is to join again
        last = await join(scene, "c")
        assert last.leader == "c"
        assert numbers(await sync(scene, last, c=of_t(scene, 0, 1))) == {0, 1}


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (ConsumerConfig(upgrades=False), {}),
        (None, {"protocol_type": "connect"}),
        (None, {"protocols": (Protocol(STICKY, b"\0"),)}),
    ],
)
async def test_a_group_that_may_not_go_over_stays(
    tmp_path: Path, config: ConsumerConfig | None, change: dict[str, Any]
) -> None:
    async with coordinating(tmp_path, consumers=config) as scene:
        joined = await classic_alone(scene, **change)
        with pytest.raises(ApiError) as caught:
            await beat(scene)
        assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND
        assert told(scene, joined) is NONE
        assert scene.groups.consumers._lives == {}


async def test_a_group_that_may_not_go_back_stays_with_classic_members_alone(tmp_path: Path) -> None:
    async with coordinating(tmp_path, consumers=ConsumerConfig(downgrades=False)) as scene:
        await classic_alone(scene)
        await beat(scene)
        await beat(scene, "m", -1)
        again = await join(scene, "c", 0, 1)
        assert again.leader == ""
        assert numbers(await sync(scene, again)) == {0, 1}
        assert isinstance(scene.groups.describe("g"), ConsumerGroup)
        assert await scene.groups.leave("g", [("c", None)]) == [NONE]
        assert group(scene).state is GroupState.EMPTY


@pytest.mark.parametrize("classic_members", [1, 2])
async def test_a_group_goes_back_that_is_not_too_large_for_the_classic_protocol(
    tmp_path: Path, classic_members: int
) -> None:
    """Who leaves does not count."""
    async with coordinating(tmp_path, classic_limits=replace(AT_ONCE, max_size=1)) as scene:
        await classic_alone(scene)
        await beat(scene)
        if classic_members == 2:
            await join(scene, fresh="d")
        await beat(scene, "m", -1)
        assert isinstance(scene.groups.describe("g"), Group if classic_members == 1 else ConsumerGroup)


async def test_a_silent_consumer_leaves_a_classic_group_behind(tmp_path: Path) -> None:
    short = ConsumerConfig(session_timeout_ms=100, session_timeouts_ms=(100, 1000))
    async with coordinating(tmp_path, consumers=short) as scene:
        await classic_alone(scene)
        await beat(scene)
        await eventually(lambda: isinstance(scene.groups.describe("g"), Group), "it goes back")
        assert classic(scene).state is ClassicState.PREPARING_REBALANCE


async def test_whoever_joins_as_an_empty_group_makes_way_is_in_the_one_that_follows(tmp_path: Path) -> None:
    async with coordinating(tmp_path, classic_limits=replace(AT_ONCE, initial_rebalance_delay_ms=50)) as scene:
        await beat(scene)
        await beat(scene, "m", -1)
        assert group(scene).state is GroupState.EMPTY
        both = await asyncio.gather(join(scene, fresh="c"), join(scene, fresh="d"))
        assert {each.error for each in both} == {NONE}
        assert set(classic(scene).members) == {"c", "d"}


async def test_an_empty_group_that_somebody_joins_first_does_not_make_way(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await beat(scene)
        await beat(scene, "m", -1)
        scene.cut()
        modern = await scene.begin(beat(scene))
        old = asyncio.ensure_future(join(scene, fresh="c"))
        await eventually(lambda: scene.groups.consumers._lives["g"].users == 2, "it waits for its turn")
        scene.heal()
        [beaten] = await modern
        assert (beaten.member_id, (await old).error) == ("m", NONE)
        assert set(group(scene).members) == {"c", "m"}


@pytest.mark.parametrize("silent", ["session", "join", "sync"])
async def test_a_classic_member_that_is_late_goes(tmp_path: Path, silent: str) -> None:
    limits: dict[str, Any] = {"session_timeout_ms": 100} if silent == "session" else {"rebalance_timeout_ms": 100}
    async with coordinating(tmp_path) as scene:
        scene.groups.classic._sessions_ms = 1, 60_000
        joined = await classic_alone(scene, **limits)
        await beat(scene)
        if silent == "join":
            assert told(scene, joined) is REBALANCE
        elif silent == "sync":
            await join(scene, "c", 0, 1, **limits)
        else:
            await asyncio.sleep(0.05)
            assert told(scene, joined) is REBALANCE
        await eventually(lambda: set(group(scene).members) == {"m"}, "it is gone")
        assert (await beat(scene, "m", group(scene).members["m"].current.epoch)).assigned == of_t(scene, 0, 1)


async def test_a_member_that_joins_and_syncs_in_time_stays(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        joined = await classic_alone(scene, rebalance_timeout_ms=150)
        await beat(scene)
        assert told(scene, joined) is REBALANCE
        again = await join(scene, "c", rebalance_timeout_ms=150)
        assert len(numbers(await sync(scene, again))) == 1
        await asyncio.sleep(0.3)
        assert set(group(scene).members) == {"c", "m"}


async def test_classic_members_are_missed_by_the_next_coordinator_too(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        scene.groups.classic._sessions_ms = 1, 60_000
        await classic_alone(scene, session_timeout_ms=200)
        await beat(scene)
        following = await scene.next_one()
        scene.groups.resign_all()
        scene.groups = following
        await eventually(lambda: set(group(scene).members) == {"m"}, "its own session is over there, too")


async def test_a_new_member_is_given_its_id_first(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await beat(scene)
        named = await join(scene, fresh="c", requires_known_member_id=True)
        assert (named.error, named.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "c")
        assert set(group(scene).members) == {"m"}
        assert (await join(scene, "c", requires_known_member_id=True)).generation == 2


async def test_who_commits_says_its_generation(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        joined = await classic_alone(scene)
        await beat(scene)
        assert await commit(scene, "c", joined.generation) is NONE
        for member_id, code in (("c", ErrorCode.ILLEGAL_GENERATION), ("m", ErrorCode.STALE_MEMBER_EPOCH)):
            with pytest.raises(ApiError) as caught:
                await commit(scene, member_id, 7)
            assert caught.value.code is code
            with pytest.raises(ApiError) as caught:
                scene.groups.fetch_offsets("g", member_id, 7)
            assert caught.value.code is code
        scene.groups.consumers.check_committer(group(scene), "c", joined.generation, knows_epochs=False)
        with pytest.raises(ApiError):
            check_consumer(group(scene), Committer("c", None, 7))
        check_consumer(group(scene), Committer("c", None, joined.generation))


async def test_static_members_go_over_and_back_without_leaving(tmp_path: Path) -> None:
    """The last that goes back takes the group along; where nothing else changes, nobody has to join again."""
    async with coordinating(tmp_path) as scene:
        await classic_alone(scene, group_instance_id="i")
        over = await beat(scene, "m", instance_id="i")
        assert over.assigned == of_t(scene, 0, 1)
        assert list(group(scene).members) == ["m"]
        assert over.epoch == 1
        back = await join(scene, fresh="d", group_instance_id="i")
        assert (back.error, back.generation, back.member_id) == (NONE, over.epoch, "d")
        assert classic(scene).state is ClassicState.STABLE
        assert numbers(await sync(scene, back)) == {0, 1}
        assert told(scene, back, "i") is NONE
        after = (await scene.next_one()).describe("g")
        assert isinstance(after, Group)
        assert (after.generation, set(after.members)) == (back.generation, {"d"})


async def test_a_static_member_in_the_middle_of_a_rebalance_gets_all(tmp_path: Path) -> None:
    """What the classic group was about to assign is nobody's; a new epoch sees to it."""
    async with coordinating(tmp_path) as scene:
        joined = await join(scene, fresh="c", group_instance_id="i")
        assert classic(scene).state is ClassicState.COMPLETING_REBALANCE
        assert (await beat(scene, "m", instance_id="i")).assigned == of_t(scene, 0, 1)
        assert told(scene, joined, "i") is ErrorCode.FENCED_INSTANCE_ID


async def test_the_last_static_member_goes_back_while_others_are_on_their_way(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        joined = await classic_alone(scene)
        await beat(scene, "m", instance_id="i")
        back = asyncio.ensure_future(join(scene, fresh="d", group_instance_id="i"))
        await eventually(lambda: isinstance(scene.groups.describe("g"), Group), "the group has gone back")
        assert set(classic(scene).members) == {"c", "d"}
        assert told(scene, joined) is ErrorCode.ILLEGAL_GENERATION  # it had not come so far
        answers = [await join(scene, "c", 0, 1), await back]
        assert {each.error for each in answers} == {NONE}
        assert len({each.generation for each in answers}) == 1


async def test_an_administrator_takes_the_last_consumer_and_a_classic_member_out_at_once(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await classic_alone(scene)
        await beat(scene)
        await join(scene, fresh="d")
        errors = await scene.groups.leave("g", [("m", None), ("x", None), ("c", None), ("m", None)])
        assert errors == [NONE, ErrorCode.UNKNOWN_MEMBER_ID, NONE, NONE]
        assert set(classic(scene).members) == {"d"}
        assert await scene.groups.leave("g", [("d", None)]) == [NONE]
        assert classic(scene).state is ClassicState.EMPTY


async def test_who_leaves_as_the_group_goes_over_is_gone_after_it(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await classic_alone(scene)
        scene.cut()
        coming = await scene.begin(beat(scene))
        leaving = asyncio.ensure_future(scene.groups.leave("g", [("c", None)]))
        await asyncio.sleep(0)
        scene.heal()
        await coming
        assert await leaving == [NONE]
        assert set(group(scene).members) == {"m"}


async def test_a_consumer_that_slept_while_its_group_went_back_joins_again(tmp_path: Path) -> None:
    """GROUP_ID_NOT_FOUND is the end of Java's consumers."""
    async with coordinating(tmp_path) as scene:
        await classic_alone(scene)
        epoch = (await beat(scene)).epoch
        assert await scene.groups.leave("g", [("m", None)]) == [NONE]
        assert set(classic(scene).members) == {"c"}
        with pytest.raises(ApiError) as refused:
            await beat(scene, "m", epoch, owned={})
        assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
        await beat(scene)
        assert set(group(scene).members) == {"c", "m"}


async def test_a_consumer_whose_place_was_taken_as_its_group_went_back_is_fenced(tmp_path: Path) -> None:
    """Else the two would take the place from each other again and again."""
    async with coordinating(tmp_path) as scene:
        epoch = (await beat(scene, "m", instance_id="i")).epoch
        assert (await join(scene, fresh="d", group_instance_id="i")).error is NONE
        assert set(classic(scene).members) == {"d"}
        with pytest.raises(ApiError) as refused:
            await beat(scene, "m", epoch, instance_id="i", owned=of_t(scene, 0, 1))
        assert refused.value.code is ErrorCode.FENCED_INSTANCE_ID


async def test_all_who_leave_as_the_group_goes_back_are_gone_after_it(tmp_path: Path) -> None:
    """None of them waits for the others to be done with a group that there is no more."""
    async with coordinating(tmp_path) as scene:
        await classic_alone(scene)
        await beat(scene)
        await join(scene, fresh="d")
        scene.cut()
        last = await scene.begin(beat(scene, "m", -1))
        leaving = [asyncio.ensure_future(scene.groups.leave("g", [(each, None)])) for each in ("c", "d")]
        await asyncio.sleep(0)
        scene.heal()
        await last
        assert [await each for each in leaving] == [[NONE], [NONE]]
        assert classic(scene).state is ClassicState.EMPTY


async def test_who_joins_as_the_group_goes_back_joins_the_classic_one(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await classic_alone(scene)
        await beat(scene)
        scene.cut()
        leaving = await scene.begin(beat(scene, "m", -1))
        joining = asyncio.ensure_future(join(scene, "c", 0, 1))
        following = asyncio.ensure_future(beat(scene, "n"))
        await asyncio.sleep(0)
        scene.heal()
        await leaving
        assert (await joining).error is NONE
        assert (await following).epoch > 2
        assert set(group(scene).members) == {"c", "n"}
        assert scene.groups._shards[0].classic_groups == {}


async def test_a_group_with_members_of_both_is_neither_deleted_nor_forgotten(tmp_path: Path) -> None:
    async with coordinating(tmp_path) as scene:
        await classic_alone(scene)
        await beat(scene)
        assert await scene.groups.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
        assert await commit(scene, "c", 1, age_ms=10**9) is NONE
        assert await scene.groups.expire_offsets() == 0
        await beat(scene, "m", -1)
        assert await scene.groups.expire_offsets() == 0
        assert await scene.groups.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
        assert await scene.groups.leave("g", [("c", None)]) == [NONE]
        assert await scene.groups.delete_group("g") is NONE
        assert (await scene.next_one()).list_groups() == []
        assert scene.node.log(OFFSETS).log_end_offset > 0
