"""Rate limits: how much is allowed per second, and how long to wait, on a clock that the test sets."""

from __future__ import annotations

import pytest
from tests.broker.seams import TurnedClock

from ballast_broker.rates import TokenBucket, Window, WindowedRate


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.mark.spec("CLI-11")
def test_whoever_begins_may_take_at_once_what_ten_windows_allow(clock: TurnedClock) -> None:
    rate = WindowedRate(clock, 5.0)
    rate.record(50.0)
    assert not rate.exceeded()
    rate.record(1.0)
    assert rate.wait_s() == pytest.approx(51 / 5 - 10)
    clock.now += rate.wait_s()
    assert not rate.exceeded()


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize("window", [Window(), Window(1, 1.0), Window(3, 2.0)])
def test_nobody_waits_longer_than_a_window(clock: TurnedClock, window: Window) -> None:
    rate = WindowedRate(clock, 1.0, window)
    rate.record(1e9)
    assert rate.wait_s() == window.size_s


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize("piece", [0.3, 1.0, 2.0])
def test_who_waits_as_told_keeps_to_the_limit(clock: TurnedClock, piece: float) -> None:
    rate, taken, began = WindowedRate(clock, 2.0), 0.0, clock.now
    while clock.now < began + 300:
        rate.record(piece)
        taken += piece
        clock.now += max(rate.wait_s(), 0.001)
    assert taken / 300 == pytest.approx(2.0, rel=0.12)


def test_what_is_older_than_all_windows_is_forgotten(clock: TurnedClock) -> None:
    rate = WindowedRate(clock, 1.0, Window(3, 1.0))
    rate.record(1e6)
    clock.now += 2.9
    assert rate.exceeded()
    clock.now += 0.2
    assert not rate.exceeded()
    for _ in range(100_000):  # the number of windows is bounded, however many events there are
        rate.record(0.0001)
        clock.now += 0.01
    assert len(rate._windows) <= 4


def test_one_more_is_asked_for_before_it_is_taken(clock: TurnedClock) -> None:
    bucket = TokenBucket(clock, 2.0, 5.0)
    bucket.take(9.0)
    assert not bucket.wait_s(1)
    bucket.take(1.0)
    assert bucket.wait_s(1) == 0.5


def test_a_bucket_holds_one_at_least(clock: TurnedClock) -> None:
    bucket = TokenBucket(clock, 0.1, 0.0, least=1.0)
    assert not bucket.wait_s(1)
    bucket.take(1.0)
    assert bucket.wait_s(1) == pytest.approx(10.0)


def test_another_limit_counts_for_what_was_taken(clock: TurnedClock) -> None:
    rate = WindowedRate(clock, 1.0)
    rate.record(20.0)
    rate.change_limit(2.0)
    assert not rate.exceeded()
    rate.change_limit(1.0)
    assert rate.exceeded()


@pytest.mark.spec("CLI-11")
def test_a_bucket_is_full_at_first_and_a_debt_is_waited_off(clock: TurnedClock) -> None:
    bucket = TokenBucket(clock, 2.0, 11.0)
    bucket.take(22.0)
    assert not bucket.exceeded()
    bucket.take(5.0)
    assert bucket.wait_s() == pytest.approx(2.5)
    clock.now += 2.5
    assert not bucket.exceeded()
    clock.now += 1e6
    bucket.take(23.0)
    assert bucket.wait_s() == pytest.approx(0.5), "it holds what eleven windows bring, and no more"


def test_another_limit_leaves_a_debt(clock: TurnedClock) -> None:
    bucket = TokenBucket(clock, 1.0, 1.0)
    bucket.take(11.0)
    bucket.change_limit(5.0)
    assert bucket.wait_s() == pytest.approx(2.0)
    clock.now += 100
    bucket.change_limit(1.0)
    bucket.take(2.0)
    assert bucket.wait_s() == pytest.approx(1.0), "what the old limit had filled in is no more"
