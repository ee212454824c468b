"""Topics that are deleted and created again under the same name while a broker is away: two topics, two logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.replication.cluster import Cluster, eventually

from ballast_broker.replication.strays import settle_strays
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

ORDERS = TopicPartition("orders", 0)


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
