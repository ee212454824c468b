"""Topics that are deleted and re-created under the same name while a broker is down: two topics, two logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.replication.cluster import Cluster, Node, eventually

from ballast_broker.replication.strays import settle_strays
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

ORDERS = TopicPartition("orders", 0)


def move(source: Path, target: Path) -> None:
    source.rename(target)


@pytest.mark.spec("TOP-24")
async def test_a_broker_that_was_away_does_not_lead_the_new_topic_with_the_old_ones_records(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        _, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[2]])
        assert await two.produce_to_all(ORDERS, "old") is ErrorCode.NONE
        await two.crash()
        cluster.controller.delete_topic("orders")
        cluster.controller.create_topic("orders", [[1, 2]])
        await two.start()
        settle_strays(two.logs, 2, cluster.controller.image)
        assert two.stored(ORDERS) == []


@pytest.mark.spec("TOP-24")
async def test_nor_does_it_follow_with_them(tmp_path: Path) -> None:
    """The epochs of both topics begin at 0: by them alone the old records would be taken for the new ones."""
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        assert await one.produce_to_all(ORDERS, "old") is ErrorCode.NONE
        await two.crash()
        cluster.controller.delete_topic("orders")
        cluster.controller.create_topic("orders", [[1, 2]])
        one.produce(ORDERS, "new")
        one.produce(ORDERS, "newer")
        await two.start()
        settle_strays(two.logs, 2, cluster.controller.image)
        await eventually(lambda: len(two.stored(ORDERS)) == 2, "it has caught up")
        assert two.stored(ORDERS) == ["new", "newer"]


async def made_again_while_a_log_was_away(cluster: Cluster, away: Path) -> tuple[Node, Path]:
    """A follower that has caught up with the new topic, and the former path of the log that is at `away` now."""
    one, two = await cluster.add(1, 2, directories=2)
    cluster.controller.create_topic("orders", [[1, 2]])
    assert await one.produce_to_all(ORDERS, "old") is ErrorCode.NONE
    place = Path(two.log(ORDERS).folder.path)
    await two.crash()
    move(place, away)
    cluster.controller.delete_topic("orders")
    cluster.controller.create_topic("orders", [[1, 2]])
    assert await one.produce_to_all(ORDERS, "new") is ErrorCode.NONE
    await two.start()
    await eventually(lambda: two.stored(ORDERS) == ["new"])
    return two, place


@pytest.mark.spec("TOP-24", "DIR-41")
@pytest.mark.parametrize("kept", [True, False])
async def test_a_directory_that_was_away_brings_back_a_log_of_the_topic_before(tmp_path: Path, kept: bool) -> None:
    """By then the new topic's log is in another directory; whichever of the two is found first, the new topic's log
    counts. If that is gone as well, neither does."""
    async with Cluster(tmp_path) as cluster:
        two, place = await made_again_while_a_log_was_away(cluster, tmp_path / "away")
        new = Path(two.log(ORDERS).folder.path)
        await two.crash()
        [other] = [path for path in two.directories if path != new.parent]
        move(tmp_path / "away", other / place.name)
        if not kept:
            cluster.controller.delete_topic("orders")
        await two.start()
        settle_strays(two.logs, 2, cluster.controller.image)
        assert (ORDERS in two.logs.logs) is kept
        if kept:
            assert two.stored(ORDERS) == ["new"]
        assert len([path for path in two.directories if (path / "orders-0").exists()]) == kept
        assert {*two.logs._strays.values()} == {ORDERS}


@pytest.mark.spec("TOP-24")
async def test_a_copy_of_the_topic_before_does_not_take_the_log_of_this_one_along(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        two, place = await made_again_while_a_log_was_away(cluster, tmp_path / "away")
        cluster.cuts.add(frozenset({1, 2}))
        new = Path(two.log(ORDERS).folder.path)
        await two.crash()
        [other] = [path for path in two.directories if path != new.parent]
        move(tmp_path / "away", other / f"{place.name}.{'0' * 32}-future")
        await two.start()
        assert two.stored(ORDERS) == ["new"]
