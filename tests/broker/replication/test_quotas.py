"""Byte rates on a clock that the test sets, and throttled replication between brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.replication.cluster import Cluster, eventually
from tests.broker.seams import TurnedClock

from ballast_broker.replication.quotas import UNLIMITED, ByteRate, throttles_partition
from ballast_wire.names import TopicPartition

ORDERS = TopicPartition("orders", 0)


@pytest.mark.spec("REP-30", "DIR-26")
@given(
    limit=st.sampled_from([10_000, 1_000_000, 100_000_000]),
    share=st.floats(0.01, 1.0),
    idle_s=st.floats(0, 30),
)
def test_ten_seconds_come_out_within_five_percent(limit: int, share: float, idle_s: float) -> None:
    """Reads of up to a quarter second's share of the limit, as fast as allowed, after any idle time."""
    clock = TurnedClock()
    rate = ByteRate(clock, limit)
    clock.now += idle_s
    size = max(1, int(rate.largest_read(1 << 40) * share))
    began_s, taken, largest = clock.now, 0, 0
    while clock.now - began_s < 10:
        if rate.exceeded():
            clock.now += max(rate.wait_s(), 1e-6)
            continue
        rate.record(size)
        taken += size
        largest = max(largest, size)
    elapsed_s = clock.now - began_s
    assert taken <= limit * elapsed_s * 1.05 + largest
    assert taken >= limit * elapsed_s * 0.95


@pytest.mark.spec("REP-30", "DIR-26")
@given(limit=st.integers(1, 1 << 33), size=st.integers(1, 1 << 24))
def test_a_piece_passes_soon_unless_it_is_not_worth_a_request(limit: int, size: int) -> None:
    piece = ByteRate(TurnedClock(), limit).piece(size, 0.004)
    assert 1 <= piece <= size
    assert piece <= max(limit * 0.004, 65_536)
    assert piece <= max(limit * 0.25, 1)
    assert piece == size or piece >= min(65_536, int(limit * 0.25))


@pytest.mark.spec("REP-30")
def test_without_a_limit_pieces_are_as_large_as_asked_for() -> None:
    assert ByteRate(TurnedClock()).piece(1 << 40, 0.004) == 1 << 40


@pytest.mark.spec("REP-30")
def test_no_limit_costs_nothing_and_a_new_one_counts_from_now() -> None:
    clock = TurnedClock()
    rate = ByteRate(clock)
    rate.record(1 << 40)
    assert not rate.exceeded()
    rate.change_limit(1000)
    assert rate.exceeded()
    assert 0 < rate.wait_s() < 0.01
    clock.now += 0.1
    assert not rate.exceeded()
    rate.record(10_000)
    assert rate.wait_s() == pytest.approx(9.9, rel=0.01)
    rate.change_limit(UNLIMITED)
    assert rate.wait_s() == 0


@pytest.mark.spec("REP-30")
def test_bytes_of_in_sync_followers_make_no_endless_debt() -> None:
    clock = TurnedClock()
    rate = ByteRate(clock, 1000)
    rate.record_exempt(1_000_000)
    assert rate.wait_s() <= 1.01


@pytest.mark.spec("REP-30")
def test_which_replicas_are_throttled() -> None:
    assert throttles_partition(("*",), 3, 1)
    assert throttles_partition(("0:1", "3:1"), 3, 1)
    assert not throttles_partition(("3:2", "1:1"), 3, 1)
    assert not throttles_partition(("",), 3, 1)


@pytest.mark.spec("REP-30")
@pytest.mark.parametrize("side", ["leader", "follower"])
async def test_a_throttled_follower_catches_up_at_the_limit(tmp_path: Path, side: str) -> None:
    limit = 1_000_000
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2], [1, 2]])
        await two.crash()
        for _ in range(80):
            one.produce(ORDERS, "x" * 50_000)
        cluster.controller.configure(2, "orders", {f"{side}.replication.throttled.replicas": "0:1,0:2"})
        cluster.controller.configure(4, "1", {f"{side}.replication.throttled.rate": str(limit)})
        cluster.controller.configure(4, "2", {f"{side}.replication.throttled.rate": str(limit)})
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await two.start()
        # The other partition is not throttled and does not wait for this one.
        assert (await one.produce_to_all(TopicPartition("orders", 1), "free")) == 0
        assert loop.time() - began_s < 2
        await eventually(lambda: loop.time() - began_s >= 2.5)
        copied = two.log(ORDERS).size_bytes
        assert limit * 2.5 * 0.85 <= copied <= limit * (loop.time() - began_s) + 300_000
        cluster.controller.configure(4, "1", {f"{side}.replication.throttled.rate": str(1 << 40)})
        cluster.controller.configure(4, "2", {f"{side}.replication.throttled.rate": str(1 << 40)})
        await eventually(lambda: cluster.isr(ORDERS) == {1, 2})


@pytest.mark.spec("REP-30")
@pytest.mark.parametrize(("side", "broker"), [("leader", "1"), ("follower", "2")])
async def test_an_in_sync_follower_is_throttled_by_neither_side(tmp_path: Path, side: str, broker: str) -> None:
    async with Cluster(tmp_path) as cluster:
        one, _ = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        assert (await one.produce_to_all(ORDERS, "first")) == 0
        cluster.controller.configure(2, "orders", {f"{side}.replication.throttled.replicas": "*"})
        cluster.controller.configure(4, broker, {f"{side}.replication.throttled.rate": "1000"})
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for _ in range(10):
            assert (await one.produce_to_all(ORDERS, "x" * 10_000)) == 0
        assert loop.time() - began_s < 30, "throttled, it takes more than a minute"


@pytest.mark.spec("REP-30")
async def test_a_follower_that_may_take_nothing_holds_up_no_other(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2], [1, 2]])
        await two.crash()
        one.produce(ORDERS, "held back")
        cluster.controller.configure(2, "orders", {"follower.replication.throttled.replicas": "0:2"})
        cluster.controller.configure(4, "2", {"follower.replication.throttled.rate": "0"})
        await two.start()
        await eventually(lambda: cluster.isr(TopicPartition("orders", 1)) == {1, 2})
        assert (await one.produce_to_all(TopicPartition("orders", 1), "free")) == 0
        assert two.log(ORDERS).log_end_offset == 0
        cluster.controller.configure(4, "2", {"follower.replication.throttled.rate": "1000000"})
        await eventually(lambda: cluster.isr(ORDERS) == {1, 2})
