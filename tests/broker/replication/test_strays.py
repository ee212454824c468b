"""Stray logs: those that a broker finds on its disks at a start but has no replicas of any more."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.replication.cluster import Cluster, eventually

from ballast_broker.replication.strays import settle_strays
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

ORDERS = TopicPartition("orders", 0)


@pytest.mark.spec("LOG-34")
async def test_what_was_taken_from_a_broker_while_it_was_away_goes(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        assert await one.produce_to_all(ORDERS, "a") is ErrorCode.NONE
        await two.crash()
        older = cluster.controller.image
        cluster.controller.reassign("orders", [1])
        partition = cluster.controller.registration(ORDERS)
        assert partition.replicas == (1,)
        await two.start()
        assert settle_strays(two.logs, 2, older) == [], "it was here then"
        assert two.logs.get(ORDERS) is not None
        assert settle_strays(two.logs, 2, cluster.controller.image) == []
        assert two.logs.get(ORDERS) is None
        assert not two.logs.strays
        (left,) = (path.name for path in two.directories[0].glob("orders-0*"))
        assert left.endswith("-delete")


@pytest.mark.spec("LOG-34")
async def test_a_log_that_is_newer_than_the_metadata_is_set_aside(tmp_path: Path) -> None:
    """Metadata restored to an older state knows of no replica here, yet this may be the only copy."""
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1]])
        older = cluster.controller.image
        one.produce(ORDERS, "a")
        cluster.controller.reassign("orders", [2])
        await eventually(lambda: cluster.leader(ORDERS) == 2, "the other one has it")
        two.produce(ORDERS, "b")
        assert settle_strays(two.logs, 2, older) == [ORDERS]
        (path,) = two.logs.strays
        assert path.endswith("-stray")
