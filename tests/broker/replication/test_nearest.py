"""Consumers that name their rack are redirected to the replica in it, and are served there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.replication.cluster import Cluster, Node, eventually
from tests.broker.replication.test_partition import leader

from ballast_broker.replication.nearest import NOBODY, Nearest
from ballast_broker.replication.reading import FetchEntry, FetchParams, FetchResult
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

ORDERS = TopicPartition("orders", 0)
RACKS = {1: "a", 2: "b", 3: "b"}


def nearest(racks: dict[int, str] = RACKS) -> Nearest:
    found = Nearest()
    found.racks = racks
    return found


@pytest.mark.spec("REP-08")
def test_the_freshest_replica_in_the_rack_is_chosen() -> None:
    partition = leader(end=10)
    partition.follower_fetched(2, -1, 8, 0, now_ms=1)
    partition.follower_fetched(3, -1, 9, 0, now_ms=1)
    assert nearest().choose(partition, "b", 5) == 3
    partition.follower_fetched(2, -1, 10, 0, now_ms=2)
    assert nearest().choose(partition, "b", 5) == 2
    assert nearest().choose(partition, "a", 5) == NOBODY  # the leader's own rack
    assert nearest().choose(partition, "c", 5) == NOBODY
    assert nearest({}).choose(partition, "b", 5) == NOBODY


@pytest.mark.spec("REP-08")
def test_nobody_is_sent_to_a_replica_that_has_not_the_offset_or_is_out_of_sync() -> None:
    partition = leader(isr=(1, 2), end=10)
    partition.follower_fetched(2, -1, 8, 4, now_ms=1)
    partition.follower_fetched(3, -1, 10, 0, now_ms=1)
    assert [nearest().choose(partition, "b", offset) for offset in (3, 4, 8, 9)] == [NOBODY, 2, 2, NOBODY]


async def asked(node: Node, cluster: Cluster, offset: int, *, any_replica: bool = True, rack: str = "b") -> FetchResult:
    params = FetchParams(max_bytes=1 << 20, any_replica=any_replica, rack=rack)
    found = node.replicas.fetch(params, [FetchEntry(ORDERS, cluster.topic_id("orders"), offset)])
    assert isinstance(found, list)
    found[0].release()
    return found[0]


@pytest.mark.spec("REP-08")
async def test_a_reader_is_sent_to_its_rack_and_reads_what_is_committed(tmp_path: Path) -> None:
    async with Cluster(tmp_path, reads_in_rack=True) as cluster:
        (one,) = await cluster.add(1, rack="a")
        (two,) = await cluster.add(2, rack="b")
        cluster.controller.create_topic("orders", [[1, 2]], {"min.insync.replicas": "1"})
        assert await one.produce_to_all(ORDERS, "first", "second") is ErrorCode.NONE
        sent = await asked(one, cluster, 1)
        assert (sent.error, sent.preferred_replica, sent.slice) == (ErrorCode.NONE, 2, None)
        assert (await asked(one, cluster, 1, rack="a")).preferred_replica == -1
        assert (await asked(one, cluster, 1, rack="")).preferred_replica == -1
        await eventually(lambda: two.state(ORDERS).high_watermark == 2)
        served = await asked(two, cluster, 0)
        assert (served.error, served.high_watermark, served.preferred_replica) == (ErrorCode.NONE, 2, -1)
        assert (await asked(two, cluster, 3)).error is ErrorCode.OFFSET_OUT_OF_RANGE
        # Clients that do not know of follower fetching are sent to the leader.
        assert (await asked(two, cluster, 0, any_replica=False)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.spec("REP-08")
async def test_what_waits_at_a_follower_is_answered_when_it_hears_of_the_commit(tmp_path: Path) -> None:
    async with Cluster(tmp_path, reads_in_rack=True) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]], {"min.insync.replicas": "1"})
        entry = FetchEntry(ORDERS, cluster.topic_id("orders"), 0)
        waiting = two.replicas.fetch(FetchParams(max_wait_ms=30_000, any_replica=True, rack="b"), [entry])
        assert not isinstance(waiting, list)
        assert await one.produce_to_all(ORDERS, "first") is ErrorCode.NONE
        (result,) = await waiting
        assert (result.error, result.high_watermark) == (ErrorCode.NONE, 1)
        result.release()


@pytest.mark.spec("REP-08")
async def test_without_the_selector_nobody_is_sent_away(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        (one,) = await cluster.add(1, rack="a")
        await cluster.add(2, rack="b")
        cluster.controller.create_topic("orders", [[1, 2]], {"min.insync.replicas": "1"})
        assert await one.produce_to_all(ORDERS, "first") is ErrorCode.NONE
        assert (await asked(one, cluster, 0)).preferred_replica == -1
