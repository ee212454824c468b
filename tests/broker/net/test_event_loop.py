"""The event loop calls what is ready; a callback that fails or is removed meanwhile does not affect others."""

from __future__ import annotations

import asyncio
import selectors
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from tests.broker.net.serving import until

from ballast_broker.net import event_loop, processors
from ballast_broker.net.event_loop import AWAKE_S, EVENT_READ, EVENT_WRITE, SHORT_S, STEADY, EventLoop
from ballast_broker.turns import LONGEST_TURN_S


class End:
    """One end of a socket pair that waits for data and calls `then` with it."""

    def __init__(self, loop: EventLoop, then: Callable[[End, bytes], None]) -> None:
        self._socket, self.peer = socket.socketpair()
        self._loop = loop
        self._then = then
        self._socket.setblocking(False)
        self.fd = self._socket.fileno()
        self.events = 0
        self.closed = False
        self.error: BaseException | None = None
        self.received = b""
        self.wrote = 0
        loop.wait_for(self, EVENT_READ)

    def on_readable(self) -> None:
        data = self._socket.recv(100)
        self.received += data
        self._then(self, data)

    def on_writable(self) -> None:
        self.wrote += 1
        self._loop.wait_for(self, self.events & ~EVENT_WRITE)

    def close(self, error: BaseException | None) -> None:
        if not self.closed:
            self.closed, self.error = True, error
            self._loop.wait_for(self, 0)
            self._socket.close()


class Ends:
    def __init__(self) -> None:
        self.turns: list[list[bytes]] = []  # what all of them had received after each turn
        self.all: list[End] = []
        self.loop = event_loop.running()

    def note_turn(self) -> None:
        self.turns.append([end.received for end in self.all])

    def add(self, then: Callable[[End, bytes], None] = lambda end, data: None) -> End:
        self.all.append(End(self.loop, then))
        return self.all[-1]


@asynccontextmanager
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    try:
        yield made
    finally:
        for end in made.all:
            end.close(None)
            end.peer.close()


async def test_all_that_are_ready_have_their_turn_before_its_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "LONGEST_TURN_S", 60.0)  # however busy the machine is
    async with ends() as made:
        first = made.add(lambda end, data: made.loop.after_turn(made.note_turn))
        second = made.add()
        first.peer.send(b"one")
        second.peer.send(b"two")
        await until(lambda: made.turns, "a turn")
        assert made.turns == [[b"one", b"two"]]


@pytest.mark.spec("CLI-09")
async def test_where_many_are_ready_a_turn_ends_in_time_and_those_left_come_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them always have more to read, and each takes more than half of the longest turn."""
    spent_s = 0.0
    called: list[End] = []
    monkeypatch.setattr(event_loop, "monotonic", lambda: time.monotonic() + spent_s)

    def take_long(end: End, data: bytes) -> None:
        nonlocal spent_s
        spent_s += LONGEST_TURN_S * 0.6
        called.append(end)

    async with ends() as made:
        for _ in range(5):
            made.add(take_long)
        for end in made.all:
            end.peer.send(bytes(5000))
        while len(called) < 50:
            before = len(called)
            await asyncio.sleep(0)  # somebody else's turn
            assert len(called) - before <= 2
        rounds = [called[start : start + 5] for start in range(0, 50, 5)]
        assert all(len(set(each)) == 5 for each in rounds), "one was called twice before another had its turn"
        mine, other = socket.socketpair()
        asyncios: list[str] = []
        made.loop.add_reader(mine, asyncios.append, "read")
        other.send(b"x")
        for _ in range(2):
            await asyncio.sleep(0)
        assert asyncios, "what is asyncio's waits for no turn"
        made.loop.remove_reader(mine)
        mine.close()
        other.close()


async def test_outside_a_turn_its_end_is_soon() -> None:
    async with ends() as made:
        made.loop.after_turn(made.note_turn)
        assert not made.turns
        await until(lambda: made.turns, "the callback")


async def test_one_that_errs_is_closed_and_the_others_go_on() -> None:
    def err(end: End, data: bytes) -> None:
        raise ValueError(data)

    async with ends() as made:
        bad, good = made.add(err), made.add()
        bad.peer.send(b"bad")
        good.peer.send(b"good")
        await until(lambda: bad.error is not None and good.received, "both were called")
        assert isinstance(bad.error, ValueError)
        assert (good.received, good.closed) == (b"good", False)


async def test_what_goes_wrong_at_the_end_of_a_turn_is_told_and_ends_nothing() -> None:
    def fail() -> None:
        raise ValueError("at the end of a turn")

    def end_turn_with_both(end: End, data: bytes) -> None:
        made.loop.after_turn(fail)
        made.loop.after_turn(made.note_turn)

    told: list[str] = []
    async with ends() as made:
        made.loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        end = made.add(end_turn_with_both)
        end.peer.send(b"x")
        await until(lambda: made.turns, "the other callback of the turn")
        assert told == ["at the end of a turn"]


async def test_asyncio_has_what_is_asyncios_though_connections_are_ready_too() -> None:
    async with ends() as made:
        end = made.add()
        mine, other = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=mine)
        end.peer.send(b"ours")
        other.send(b"asyncio's\n")
        assert await reader.readline() == b"asyncio's\n"
        await until(lambda: end.received == b"ours", "the connection was called")
        writer.close()
        await writer.wait_closed()
        other.close()


async def test_one_that_another_closes_in_the_same_turn_is_not_called() -> None:
    async with ends() as made:

        def close_others(end: End, data: bytes) -> None:
            for other in made.all:
                if other is not end:
                    other.close(None)

        first, second = made.add(close_others), made.add(close_others)
        first.peer.send(b"x")
        second.peer.send(b"x")
        await until(lambda: first.received or second.received, "one of them was called")
        assert sorted([first.received, second.received]) == [b"", b"x"]
        assert [first.error, second.error] == [None, None]


async def test_reading_and_writing_are_waited_for_apart() -> None:
    async with ends() as made:
        end = made.add()
        made.loop.wait_for(end, EVENT_WRITE)
        end.peer.send(b"later")
        await until(lambda: end.wrote == 1, "it can be written to")
        assert (end.events, end.received) == (0, b"")
        made.loop.wait_for(end, EVENT_READ | EVENT_WRITE)
        await until(lambda: end.wrote == 2 and end.received == b"later", "both")
        assert end.events == EVENT_READ


async def test_asyncios_reader_that_a_connection_exchanges_in_its_turn_is_not_lost() -> None:
    mine, other = socket.socketpair()
    called: list[str] = []

    def exchange(end: End, data: bytes) -> None:
        made.loop.remove_reader(mine)
        made.loop.add_reader(mine, called.append, "new")

    async with ends() as made:
        end = made.add(exchange)
        made.loop.add_reader(mine, called.append, "old")
        end.peer.send(b"x")
        other.send(b"y")
        await until(lambda: called, "the reader")
        assert called[0] == "new"
        made.loop.remove_reader(mine)
    mine.close()
    other.close()


def test_connections_on_another_loop_are_refused_in_words() -> None:
    async def serve() -> None:
        event_loop.running()

    with pytest.raises(TypeError, match="connections need an EventLoop"):
        asyncio.run(serve())


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop()
    yield made
    made.close()


@pytest.mark.parametrize(
    "ask",
    [
        lambda loop: loop.call_soon(lambda: None),
        lambda loop: loop.call_later(3600, lambda: None),
        lambda loop: loop.stop(),
    ],
    ids=["a callback", "a timer", "the end"],
)
def test_asyncio_is_gone_back_to_when_it_has_something_to_do(
    loop: EventLoop, ask: Callable[[EventLoop], object]
) -> None:
    def answer(end: End, data: bytes) -> None:
        if len(end.received) < 3:
            end.peer.send(b"x")
        else:
            ask(loop)

    end = End(loop, answer)
    end.peer.send(b"x")
    assert loop._selector.select(None) == []  # type: ignore[attr-defined]
    assert end.received == b"xxx"
    end.close(None)
    end.peer.close()


def test_who_is_always_ready_makes_no_timer_wait(loop: EventLoop) -> None:
    def go_on(end: End, data: bytes) -> None:
        end.peer.send(b"x")

    end = End(loop, go_on)
    go_on(end, b"")
    loop.run_until_complete(asyncio.sleep(0.01))
    assert len(end.received) > 1
    end.close(None)
    end.peer.close()


def test_a_timer_made_by_a_connection_is_not_late() -> None:
    async def last_until(timer: asyncio.Future[None]) -> float:
        began_s = asyncio.get_running_loop().time()

        def make_timer(end: End, data: bytes) -> None:
            made.loop.call_later(0.001, timer.set_result, None)

        async with ends() as made:
            made.add(make_timer).peer.send(b"x")
            async with asyncio.timeout(20):
                await timer
        return asyncio.get_running_loop().time() - began_s

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        assert runner.run(last_until(runner.get_loop().create_future())) < 10


class PlayedWaits:
    """A loop whose waits last as long as the test says. A busy wait polls eleven times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.ready_at_s = 0.0
        self.looks: list[float | None] = []
        monkeypatch.setattr(event_loop, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(processors, "usable", lambda: 2.0)
        monkeypatch.setattr(event_loop, "EPOLL", False)
        monkeypatch.setattr(selectors.DefaultSelector, "select", lambda selector, timeout=None: self._look(timeout))
        self.loop = EventLoop()
        self.loop.call_soon(lambda: None)  # never called: for its sake every wait is the last one

    def _look(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        self.looks.append(timeout)
        awake_until = self.now_s + AWAKE_S / 10.5
        if timeout is None:
            self.now_s = max(awake_until, self.ready_at_s)
        else:
            self.now_s = max(awake_until, min(self.now_s + timeout, self.ready_at_s))
        if self.now_s < self.ready_at_s:
            return []
        return [(selectors.SelectorKey(0, 0, EVENT_READ, (None, None)), EVENT_READ)]

    def wait(self, lasting_s: float, timeout: float | None = None) -> list[float | None]:
        """Return the timeouts of all polls until something was ready, or the timeout was over."""
        self.looks.clear()
        self.ready_at_s = self.now_s + lasting_s
        self.loop._selector.select(timeout)  # type: ignore[attr-defined]
        return self.looks.copy()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedWaits]:
    played = PlayedWaits(monkeypatch)
    yield played
    played.loop.close()


def test_a_wait_that_is_likely_to_be_short_is_waited_awake(waits: PlayedWaits) -> None:
    short_s = AWAKE_S * 0.45
    assert [waits.wait(short_s) for _ in range(STEADY)] == [[None]] * STEADY
    assert waits.wait(short_s) == [0] * 5
    assert waits.wait(short_s, timeout=10) == [0] * 5


def test_one_that_lasts_is_slept_through_and_so_are_those_after_it(waits: PlayedWaits) -> None:
    for _ in range(STEADY):
        waits.wait(SHORT_S * 0.9)
    assert waits.wait(3600) == [0] * 11 + [None]
    assert waits.now_s > 3700
    assert [waits.wait(SHORT_S * 0.9) for _ in range(STEADY)] == [[None]] * STEADY
    assert waits.wait(SHORT_S * 0.9) == [0] * 11 + [None]  # short as before, and slept through at its end
    assert waits.wait(SHORT_S * 0.9)[0] == 0


def test_waits_that_are_short_only_now_and_then_are_slept_through(waits: PlayedWaits) -> None:
    for _ in range(STEADY * 3):
        assert waits.wait(SHORT_S / 2) == [None]
        assert waits.wait(SHORT_S * 2) == [None]


def test_asyncio_that_does_not_wait_says_nothing_of_clients(waits: PlayedWaits) -> None:
    for _ in range(STEADY - 1):
        waits.wait(SHORT_S / 2)
    assert [waits.wait(3600, timeout=0) for _ in range(10)] == [[0]] * 10
    assert waits.wait(SHORT_S / 2) == [None]
    assert waits.wait(SHORT_S / 2)[0] == 0


def test_a_timer_is_not_late_for_having_waited_awake(waits: PlayedWaits) -> None:
    for _ in range(STEADY):
        waits.wait(SHORT_S / 2)
    began_s = waits.now_s
    assert waits.wait(3600, timeout=AWAKE_S * 1.5) == [0] * 11 + [pytest.approx(AWAKE_S * (1.5 - 11 / 10.5), rel=0.01)]
    assert waits.now_s - began_s == pytest.approx(AWAKE_S * 1.5, rel=0.01)


def test_without_a_processor_to_spare_everything_is_slept_through(
    monkeypatch: pytest.MonkeyPatch, waits: PlayedWaits
) -> None:
    monkeypatch.setattr(processors, "usable", lambda: 1.5)
    waits.loop.close()
    waits.loop = EventLoop()
    waits.loop.call_soon(lambda: None)
    assert [waits.wait(SHORT_S / 2) for _ in range(STEADY * 2)] == [[None]] * STEADY * 2
