"""One node that is controller and broker: up at once, and everything committed is there after a restart."""

from __future__ import annotations

import time

import pytest
from tests.broker.controller.cluster import Cluster

from ballast_broker.controller import replica


@pytest.mark.spec("CLU-02")
async def test_a_quorum_of_one_serves_in_a_tenth_of_a_second() -> None:
    began = time.monotonic()
    async with Cluster() as cluster:
        took = time.monotonic() - began
        assert took < 0.5  # the goal is 0.1 on a quiet machine; schemas load at first use
        assert cluster.active.image.features.level("metadata.version") == 27
        assert not cluster.active.image.cluster.brokers[1].fenced


@pytest.mark.spec("CLU-03")
async def test_what_was_committed_is_there_after_a_restart() -> None:
    async with Cluster() as cluster:
        await cluster.create_topic("orders", [1], [1])
        node = cluster.nodes[1]
        before = node.image.topics.by_name("orders")
        await node.kill()
        node.log.crash()
        await node.start()
        await cluster.until(node.lifecycle.running.is_set)
        after = node.image.topics.by_name("orders")
        assert before is not None
        assert after is not None
        assert after.id == before.id
        assert cluster.partition("orders", 1).leader == 1
        assert cluster.partition("orders", 1).leader_epoch > before.partitions[1].leader_epoch


@pytest.mark.spec("CLU-03")
async def test_a_snapshot_replaces_the_log_it_contains() -> None:
    async with Cluster() as cluster:
        node = cluster.nodes[1]
        await cluster.create_topic("one", [1])
        await node.replica.snapshot()
        await cluster.create_topic("two", [1])
        await node.replica.snapshot()
        assert node.log.log_start_offset > 0
        await node.kill()
        await node.start()
        await cluster.until(node.lifecycle.running.is_set)
        assert [topic.name for topic in node.image.topics] == ["one", "two"]


@pytest.mark.spec("CLU-03", "LOG-33")
async def test_a_start_replays_no_more_than_some_times_its_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "ALWAYS_REPLAYED_BYTES", 2_000)
    async with Cluster() as cluster:
        store = cluster.nodes[1].store
        await cluster.create_topic("many", *[[1]] * 40)
        await cluster.until(lambda: store.latest_snapshot)
        first = store.latest_snapshot
        assert first is not None
        await cluster.create_topic("few", *[[1]] * 20)  # more than 2,000 bytes, but less than the snapshot
        assert store.latest_snapshot == first
        for number in range(5):
            await cluster.create_topic(f"more-{number}", *[[1]] * 40)
        await cluster.until(lambda: store.latest_snapshot != first)
        assert store.log.log_start_offset == first.offset
