"""Waiting for Kerberos happens in threads, not on the event loop, and is bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from tests.broker.net.serving import until

from ballast_broker.net import kerberos_threads
from ballast_broker.net.kerberos_threads import AT_ONCE, KerberosThreads, TooBusy

pytestmark = pytest.mark.spec("CLI-12")


class SlowKdc:
    """A KDC that answers nobody until the test lets it."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked: list[int] = []

    def ask(self, number: int) -> int:
        self.asked.append(number)
        assert self.answers.wait(30)
        return number


@contextmanager
def slow_kdc() -> Iterator[SlowKdc]:
    kdc = SlowKdc()
    try:
        yield kdc
    finally:
        kdc.answers.set()


async def test_a_few_at_once_and_the_others_in_their_turn() -> None:
    threads = KerberosThreads()
    with slow_kdc() as kdc:
        asking = [threads.run(partial(kdc.ask, number)) for number in range(3 * AT_ONCE)]
        await until(lambda: len(kdc.asked) == AT_ONCE, "as many ask as may")
        asking[AT_ONCE].cancel()  # has not begun, and need not
        kdc.answers.set()
        found = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(found.pop(AT_ONCE), asyncio.CancelledError)
    wanted = [number for number in range(3 * AT_ONCE) if number != AT_ONCE]
    assert found == wanted
    assert sorted(kdc.asked) == wanted


async def test_what_is_raised_is_told_and_the_next_goes_on() -> None:
    threads = KerberosThreads()
    for _ in range(2 * AT_ONCE):
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
    assert await threads.run(lambda: 7) == 7


async def test_too_many_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kerberos_threads, "MOST_WAITING", 2)
    threads = KerberosThreads()
    with slow_kdc() as kdc:
        asking = [threads.run(lambda: kdc.ask(0)) for _ in range(AT_ONCE + 2)]
        with pytest.raises(TooBusy, match="2 logins wait for Kerberos already"):
            threads.run(lambda: kdc.ask(1))
        kdc.answers.set()
        assert await asyncio.gather(*asking) == [0] * len(asking)


async def test_who_finds_no_thread_is_refused_and_takes_nobody_elses_place(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = KerberosThreads()
    with monkeypatch.context() as crowded:

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        crowded.setattr(threading.Thread, "start", refuse)
        for _ in range(AT_ONCE + 1):
            with pytest.raises(TooBusy, match="can't start new thread"):
                await threads.run(lambda: 7)
    assert await threads.run(lambda: 7) == 7
