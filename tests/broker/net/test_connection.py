"""One connection: frames arrive in any pieces, replies leave in order, and everything is bounded."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
import tracemalloc
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.net.serving import Serving, Slice, echo, file_reply, framed, random_file, until

from ballast_broker.net import connection
from ballast_broker.net.connection import MAX_PIPELINED, REQUESTS_PER_TURN
from ballast_broker.net_reply import Peer, Pending, Reply
from ballast_broker.turns import LONGEST_TURN_S
from ballast_wire.fast.reader import MalformedRequest

MIB = 1 << 20
HELD_S = 1.0
READ_BY_THREAD_BYTES = 256 * 1024


# ---- frames


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
async def test_frames_come_in_any_pieces(piece: int) -> None:
    bodies = [b"", b"a", b"bc" * 500, b"d"]
    stream = b"".join(map(framed, bodies))
    async with Serving() as serving:
        client = await serving.connect()
        for at in range(0, len(stream), piece):
            client.send_raw(stream[at : at + piece])
            await asyncio.sleep(0)
        assert [await client.receive() for _ in bodies] == bodies


@pytest.mark.parametrize("size", [100_000, 600_000, MIB, MIB + 1, 5 * MIB + 3])
async def test_large_frames_arrive_whole(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with Serving() as serving:
        client = await serving.connect()
        assert await client.call(body) == body
        assert await client.call(b"small") == b"small"
        assert serving.server.queued_bytes == 0


async def test_buffers_are_used_again_and_nobody_sees_what_was_in_them() -> None:
    async with Serving() as serving:
        clients = [await serving.connect() for _ in range(6)]
        for turn, size in enumerate((900_000, 70_000, 300_000, MIB, 65_536)):
            bodies = [bytes([turn * 10 + number]) * (size - number) for number in range(len(clients))]
            for client, body in zip(clients, bodies, strict=True):
                client.send_raw(framed(body)[: size // 2])  # all of them wait for their second half
            await asyncio.sleep(0)
            for client, body in zip(clients, bodies, strict=True):
                client.send_raw(framed(body)[size // 2 :])
            assert [await client.receive() for client in clients] == bodies
        assert serving.server.queued_bytes == 0


def has_queued(serving: Serving, count: int) -> bool:
    return serving.server.queued_bytes == count


async def test_large_frames_go_on_where_they_began() -> None:
    """After small ones in the shared buffer: each connection fills its own buffer while others go on reading."""
    async with Serving() as serving:
        clients = [await serving.connect() for _ in range(5)]
        bodies = [bytes([number + 1]) * (70_000 + 60_000 * number) for number in range(len(clients))]
        for _ in range(3):
            for client, body in zip(clients, bodies, strict=True):
                client.send_raw(framed(b"one") + framed(b"two") + framed(body)[:50_000])
            assert [(await client.receive(), await client.receive()) for client in clients] == [(b"one", b"two")] * 5
            begun = sum(map(len, bodies))
            await until(partial(has_queued, serving, begun), "all have begun")
            for client, body in reversed(list(zip(clients, bodies, strict=True))):
                client.send_raw(framed(body)[50_000:] + framed(b"three"))
            for client, body in zip(clients, bodies, strict=True):
                assert await client.receive() == body
                assert await client.receive() == b"three"
        assert serving.server.queued_bytes == 0


async def test_a_frame_can_be_written_to() -> None:
    """Offsets are stamped into the request's own buffer."""

    def stamp(_: Peer, frame: memoryview) -> Reply:
        frame[:1] = b"!"
        return framed(bytes(frame))

    async with Serving(stamp) as serving:
        client = await serving.connect()
        for size in (10, 2 * MIB):
            assert (await client.call(b"x" * size))[:2] == b"!x"
        client.send(*[b"xy"] * (REQUESTS_PER_TURN * 3))  # some of them wait in the connection's own buffer
        assert [await client.receive() for _ in range(REQUESTS_PER_TURN * 3)] == [b"!y"] * (REQUESTS_PER_TURN * 3)


@pytest.mark.spec("CLI-09")
async def test_requests_that_take_long_have_each_a_turn_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    spent_s = 0.0
    turn, turns = 0, Counter[int]()
    monkeypatch.setattr(connection, "monotonic", lambda: time.monotonic() + spent_s)

    def take_long(peer: Peer, frame: memoryview) -> Reply:
        nonlocal spent_s
        spent_s += LONGEST_TURN_S * 0.6
        turns[turn] += 1
        return echo(peer, frame)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with Serving(take_long) as serving, asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(count_turns())
        client = await serving.connect()
        bodies = [b"%d" % number for number in range(20)]
        client.send(*bodies)
        assert [await client.receive() for _ in bodies] == bodies
        counting.cancel()
    assert sum(turns.values()) == 20
    assert max(turns.values()) <= 4  # what is left is taken up once more in the same turn


@pytest.mark.spec("CLI-08")
@pytest.mark.parametrize("claimed", [2**31 - 1, 104_857_601, -1, -(2**31)])
async def test_an_impossible_length_ends_the_connection_and_no_other(claimed: int) -> None:
    async with Serving() as serving:
        bad, good = await serving.connect(), await serving.connect()
        bad.send_raw(claimed.to_bytes(4, "big", signed=True) + b"x" * 100)
        assert await bad.closed_by_server()
        assert await good.call(b"still here") == b"still here"


@pytest.mark.spec("CLI-08")
async def test_a_length_that_is_only_claimed_costs_no_memory() -> None:
    async with Serving() as serving:
        clients = [await serving.connect() for _ in range(10)]
        tracemalloc.start()
        try:
            for client in clients:
                client.send_raw((100 * MIB).to_bytes(4, "big") + b"x")
            await until(lambda: serving.server.queued_bytes == 1000 * MIB, "all have been heard")
            assert tracemalloc.get_traced_memory()[0] < 16 * MIB
        finally:
            tracemalloc.stop()
        for client in clients:
            client.close()
        await until(lambda: not serving.server.connections, "all are gone")
        assert serving.server.queued_bytes == 0


@pytest.mark.spec("CLI-08")
async def test_what_the_dispatcher_cannot_read_ends_the_connection_and_gives_its_memory_back() -> None:
    def refuse(_: Peer, frame: memoryview) -> Reply:
        raise MalformedRequest(f"{len(frame)} bytes of nonsense")

    async with Serving(refuse) as serving:
        for size in (10, 3 * MIB):
            client = await serving.connect()
            client.send(b"x" * size)
            assert await client.closed_by_server()
        assert serving.server.queued_bytes == 0


@pytest.mark.parametrize(
    ("start", "seems"),
    [(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "TLS: this listener has none"), (b"GET / HTTP/1.1\r\n\r\n", "HTTP")],
)
async def test_who_took_the_listener_for_another_kind_is_told_in_the_log(
    caplog: pytest.LogCaptureFixture, start: bytes, seems: str
) -> None:
    caplog.set_level("INFO")
    async with Serving(echo) as serving:
        client = await serving.connect()
        client.send_raw(start)
        assert await client.closed_by_server()
    assert caplog.text.rstrip().endswith(f"bytes, which seems to be {seems}")


async def test_a_bug_in_a_handler_ends_the_connection_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def stumble(peer: Peer, frame: memoryview) -> Reply:
        if bytes(frame) == b"stumble":
            raise KeyError("a bug")
        return echo(peer, frame)

    async with Serving(stumble) as serving:
        bad, good = await serving.connect(), await serving.connect()
        bad.send(b"stumble", b"next")
        assert await bad.closed_by_server()
        assert await good.call(b"still here") == b"still here"
    assert "a bug" in caplog.text


@pytest.mark.spec("CLI-08")
@settings(max_examples=20, deadline=None)
@given(st.lists(st.binary(max_size=2000), max_size=5))
async def test_noise_disturbs_nobody(noise: list[bytes]) -> None:
    async with Serving(max_request_bytes=10_000) as serving:
        good, bad = await serving.connect(), await serving.connect()
        for piece in noise:
            bad.send_raw(piece)
            assert await good.call(piece) == piece
        bad.close()
        assert await good.call(b"end") == b"end"


# ---- order


class Later:
    """Answers a frame when the test says so; frames that begin with "p" are pipelined: the next may start at once."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, asyncio.Future[Any]] = {}

    def __call__(self, _: Peer, frame: memoryview) -> Reply:
        body = bytes(frame)
        if body.startswith(b"now"):
            return framed(body)
        future = self.waiting[body] = asyncio.get_running_loop().create_future()
        return Pending(future, pipelined=body.startswith(b"p"), for_this_client_only=body.startswith(b"fetch"))

    def answer(self, body: bytes) -> None:
        self.waiting[body].set_result((framed(body),))


async def test_replies_keep_the_order_of_requests() -> None:
    later = Later()
    async with Serving(later) as serving:
        client = await serving.connect()
        client.send(b"p1", b"p2", b"now", b"p3")
        await until(lambda: len(later.waiting) == 3, "all have begun")
        for body in (b"p3", b"p2", b"p1"):
            later.answer(body)
        assert [await client.receive() for _ in range(4)] == [b"p1", b"p2", b"now", b"p3"]


async def test_small_replies_and_files_keep_their_order(tmp_path: Path) -> None:
    content = random_file(tmp_path / "f", 300_000)

    def dispatch(_: Peer, frame: memoryview) -> Reply:
        if bytes(frame) == b"file":
            return file_reply(b"head", Slice(tmp_path / "f", 0, len(content)))
        return framed(bytes(frame))

    asked = [b"a", b"b", b"file", b"c", b"file", b"d"]
    async with Serving(dispatch) as serving:
        client = await serving.connect()
        client.send(*asked)
        answers = [b"head" + content if body == b"file" else body for body in asked]
        assert [await client.receive() for _ in asked] == answers


@pytest.mark.spec("CLI-08")
async def test_what_was_answered_before_the_end_is_told() -> None:
    async with Serving() as serving:
        client = await serving.connect()
        client.send_raw(framed(b"a") + framed(b"b") + (-1).to_bytes(4, "big", signed=True))
        assert [await client.receive(), await client.receive()] == [b"a", b"b"]
        assert await client.closed_by_server()


async def test_a_request_that_is_not_pipelined_holds_back_the_next() -> None:
    later = Later()
    async with Serving(later) as serving:
        client = await serving.connect()
        client.send(b"p1", b"alone", b"p2")
        await until(lambda: b"alone" in later.waiting, "it has begun")
        assert b"p2" not in later.waiting
        later.answer(b"alone")
        later.answer(b"p1")
        await until(lambda: b"p2" in later.waiting, "the next has begun")
        later.answer(b"p2")
        assert [await client.receive() for _ in range(3)] == [b"p1", b"alone", b"p2"]


async def test_the_next_request_waits_until_one_has_begun_and_not_until_its_answer() -> None:
    begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    answers: dict[bytes, asyncio.Future[Any]] = {}

    def dispatch(_: Peer, frame: memoryview) -> Reply:
        body = bytes(frame)
        future = answers[body] = asyncio.get_running_loop().create_future()
        return Pending(future, pipelined=True, begun=begun if body == b"first" else None)

    async with Serving(dispatch) as serving:
        client = await serving.connect()
        client.send(b"first", b"second")
        await until(lambda: b"first" in answers, "it was handled")
        client.send(b"third")
        other = await serving.connect()
        other.send(b"of another")
        await until(lambda: b"of another" in answers, "all that came was looked at")
        assert list(answers) == [b"first", b"of another"]
        begun.set_result(None)
        await until(lambda: b"third" in answers, "the others have begun")
        for body in (b"third", b"second", b"first"):
            answers[body].set_result((framed(body),))
        assert [await client.receive() for _ in range(3)] == [b"first", b"second", b"third"]
        answers[b"of another"].cancel()


async def test_requests_without_an_answer_take_no_place() -> None:
    def silent(_: Peer, frame: memoryview) -> Reply:
        return None if bytes(frame) == b"acks=0" else framed(bytes(frame))

    async with Serving(silent) as serving:
        client = await serving.connect()
        client.send(b"acks=0", b"acks=0", b"acks=1")
        assert await client.receive() == b"acks=1"


@pytest.mark.spec("CLI-09")
async def test_pipelined_requests_are_bounded() -> None:
    later = Later()
    async with Serving(later) as serving:
        client = await serving.connect()
        client.send(*[b"p%d" % n for n in range(3 * MAX_PIPELINED)])
        await until(lambda: len(later.waiting) == MAX_PIPELINED, "as many as may be have begun")
        await client.writer.drain()
        assert len(later.waiting) == MAX_PIPELINED
        for n in range(3 * MAX_PIPELINED):
            await until(lambda n=n: b"p%d" % n in later.waiting, "it has begun")
            later.answer(b"p%d" % n)
            assert await client.receive() == b"p%d" % n


@pytest.mark.spec("CLI-11")
async def test_a_client_that_is_held_is_answered_and_then_not_read_from() -> None:
    handled: list[bytes] = []

    def hold(peer: Peer, frame: memoryview) -> Reply:
        handled.append(bytes(frame))
        if bytes(frame) == b"over":
            peer.hold(HELD_S)
        return framed(bytes(frame))

    async with Serving(hold) as serving:
        client, other = await serving.connect(), await serving.connect()
        loop = asyncio.get_running_loop()
        began = loop.time()
        client.send(b"over", b"in the same piece")
        assert await client.receive() == b"over"
        assert loop.time() - began < HELD_S
        client.send(b"after it")
        assert await other.call(b"another") == b"another"
        assert handled == [b"over", b"another"]
        assert await client.receive() == b"in the same piece"
        assert loop.time() - began >= HELD_S
        assert await client.receive() == b"after it"

        client.send(b"over")
        assert await client.receive() == b"over"
        # and the server ends while it is


@pytest.mark.spec("CLI-11")
async def test_who_is_held_for_long_is_not_let_go_sooner_by_another_reason() -> None:
    def hold(peer: Peer, frame: memoryview) -> Reply:
        if bytes(frame) == b"over":
            peer.hold(HELD_S)
            peer.hold(HELD_S / 100)
        return framed(bytes(frame))

    async with Serving(hold) as serving:
        client, loop = await serving.connect(), asyncio.get_running_loop()
        began = loop.time()
        client.send(b"over", b"next")
        assert await client.receive() == b"over"
        assert await client.receive() == b"next"
        assert loop.time() - began >= HELD_S


class Watch:
    """Counts the parts of a request's work, as the measurement of request time does."""

    def __init__(self) -> None:
        self.legs: list[str] = []

    def begins(self) -> None:
        self.legs.append("begins")

    def ends(self) -> None:
        self.legs.append("ends")


@pytest.mark.spec("CLI-11")
async def test_reading_and_writing_are_measured_where_somebody_asks() -> None:
    watch = Watch()

    def answer(peer: Peer, frame: memoryview) -> Reply:
        watch.legs.append(bytes(frame).decode())
        peer.time = watch
        return [framed(bytes(frame))] if bytes(frame) == b"parts" else framed(bytes(frame))

    async with Serving(answer) as serving:
        client = await serving.connect()
        assert await client.call(b"first") == b"first"
        assert watch.legs == ["first", "ends", "begins", "ends"], "it is written when the turn is done"
        watch.legs.clear()
        assert await client.call(b"second") == b"second"
        assert watch.legs == ["begins", "second", "ends", "begins", "ends"]
        watch.legs.clear()
        assert await client.call(b"parts") == b"parts"
        assert watch.legs[:3] == ["begins", "parts", "begins"], "written in the leg that it was read in"
        assert watch.legs.count("ends") >= 1


@pytest.mark.spec("CLI-09")
async def test_a_flood_does_not_hold_up_others() -> None:
    handled: list[bytes] = []

    def note(_: Peer, frame: memoryview) -> Reply:
        handled.append(bytes(frame))
        return framed(bytes(frame))

    async with Serving(note) as serving:
        flooding, other = await serving.connect(), await serving.connect()
        flooding.send(*[b"flood"] * 2000)
        other.send(b"other")
        await until(lambda: len(handled) == 2001, "all are handled")
        assert handled.index(b"other") < 1000
        assert [await flooding.receive() for _ in range(2000)] == [b"flood"] * 2000


async def test_what_only_the_client_waited_for_is_given_up_with_it() -> None:
    later = Later()
    async with Serving(later) as serving:
        for body in (b"fetch", b"create"):
            client = await serving.connect()
            client.send(body)
            await until(lambda body=body: body in later.waiting, "it has begun")
            client.close()
            client.send_raw(b"")
        for connection in list(serving.server.connections):
            connection.close(None)
        assert later.waiting[b"fetch"].cancelled()
        assert not later.waiting[b"create"].cancelled()
        later.answer(b"create")


async def test_a_reply_that_fails_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    later = Later()
    async with Serving(later) as serving:
        client = await serving.connect()
        client.send(b"p1")
        await until(lambda: b"p1" in later.waiting, "it has begun")
        later.waiting[b"p1"].set_exception(RuntimeError("no answer"))
        assert await client.closed_by_server()
    assert "no answer" in caplog.text


# ---- replies that lie in files


class FromFile:
    """Answers every frame "position size" with that range of the file between two marks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.slices: list[Slice] = []

    def __call__(self, _: Peer, frame: memoryview) -> Reply:
        position, size = map(int, bytes(frame).split())
        self.slices.append(Slice(self.path, position, size))
        return file_reply(b"<", self.slices[-1], b">")


@pytest.mark.spec("LOG-31")
async def test_files_are_sent_between_bytes(tmp_path: Path) -> None:
    content = random_file(tmp_path / "f", 3 * MIB)
    from_file = FromFile(tmp_path / "f")
    async with Serving(from_file) as serving:
        client = await serving.connect()
        client.send(b"0 10", b"5 100000", b"1000 3000000")
        for position, size in ((0, 10), (5, 100_000), (1000, 3_000_000)):
            assert await client.receive() == b"<" + content[position : position + size] + b">"
        assert [part.released for part in from_file.slices] == [1, 1, 1]


@pytest.mark.spec("CLI-09")
async def test_a_slow_reader_gets_everything_and_holds_back_only_itself(tmp_path: Path) -> None:
    content = random_file(tmp_path / "f", 8 * MIB)
    from_file = FromFile(tmp_path / "f")
    async with Serving(from_file, send_buffer_bytes=20_000) as serving:
        slow, quick = await serving.connect(receive_buffer_bytes=20_000), await serving.connect()
        slow.send(*[b"0 %d" % (8 * MIB)] * 3)
        await until(lambda: len(from_file.slices) == 1, "the first has begun")
        assert await quick.call(b"1 5") == b"<" + content[1:6] + b">"
        assert len(from_file.slices) == 2  # the slow one's second request has not begun
        for _ in range(3):
            assert await slow.receive() == b"<" + content + b">"
        assert [part.released for part in from_file.slices] == [1] * 4


async def test_a_slice_is_let_go_when_the_client_leaves_in_the_middle(tmp_path: Path) -> None:
    random_file(tmp_path / "f", 8 * MIB)
    from_file = FromFile(tmp_path / "f")
    async with Serving(from_file, send_buffer_bytes=20_000) as serving:
        client = await serving.connect(receive_buffer_bytes=20_000)
        client.send(b"0 %d" % (8 * MIB))
        await until(lambda: bool(from_file.slices), "it has begun")
        client.writer.transport.abort()
        await until(lambda: not serving.server.connections, "the server has noticed")
        assert [part.released for part in from_file.slices] == [1]


async def test_a_file_that_is_shorter_than_the_reply_ends_the_connection(tmp_path: Path) -> None:
    random_file(tmp_path / "f", 100)
    from_file = FromFile(tmp_path / "f")
    async with Serving(from_file) as serving:
        client = await serving.connect()
        client.send(b"50 100")
        assert await client.closed_by_server()
        assert [(part.released, part.errors) for part in from_file.slices] == [(1, [])]


class Cold:
    """Makes the first and the last page of every slice look as if they must be read from disk first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False, stays_cold: bool = False) -> None:
        self.read_from: list[int] = []  # by a thread, to have it in memory
        self._fails = fails
        self._stays_cold = stays_cold
        self._read = os.preadv
        monkeypatch.setattr(os, "preadv", self._preadv)

    def _preadv(self, descriptor: int, buffers: Any, position: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            if self._stays_cold or not self.read_from:
                raise BlockingIOError
        elif self._fails:
            raise OSError(errno.EIO, "the disk is broken")
        else:
            self.read_from.append(position)
        return self._read(descriptor, buffers, position, flags)


@pytest.mark.spec("LOG-32")
async def test_cold_data_is_read_by_a_thread_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = random_file(tmp_path / "f", 3 * MIB)
    cold = Cold(monkeypatch)
    async with Serving(FromFile(tmp_path / "f")) as serving:
        client, other = await serving.connect(), await serving.connect()
        client.send(b"0 %d" % (3 * MIB), b"7 7")
        assert await other.call(b"1 2") == b"<" + content[1:3] + b">"
        assert await client.receive() == b"<" + content + b">"
        assert await client.receive() == b"<" + content[7:14] + b">"
        assert cold.read_from


@pytest.mark.spec("LOG-32")
async def test_what_memory_does_not_keep_is_read_once_and_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under memory pressure the first page may be evicted before the last has been read, again and again."""
    content = random_file(tmp_path / "f", 3 * MIB)
    cold = Cold(monkeypatch, stays_cold=True)
    async with Serving(FromFile(tmp_path / "f")) as serving:
        client = await serving.connect()
        assert await client.call(b"0 %d" % (3 * MIB)) == b"<" + content + b">"
        assert await client.call(b"7 7") == b"<" + content[7:14] + b">"
        assert cold.read_from == [*range(0, 3 * MIB, READ_BY_THREAD_BYTES), 7]


def refuse_to_send(out: int, source: int, offset: int | None, count: int) -> int:
    raise OSError(errno.EIO, "the disk is broken")


@pytest.mark.spec("LOG-32", "DIR-41")
@pytest.mark.parametrize("cold", [True, False])
async def test_data_that_cannot_be_read_ends_the_connection_and_is_told_to_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    """Otherwise consumers would retry for ever, and followers with all that they fetch on the connection."""
    random_file(tmp_path / "f", 100)
    if cold:
        Cold(monkeypatch, fails=True)
    else:
        monkeypatch.setattr(os, "sendfile", refuse_to_send)
    from_file = FromFile(tmp_path / "f")
    async with Serving(from_file) as serving:
        client = await serving.connect()
        with suppress(ConnectionError):
            client.send(b"0 100")
        assert await client.closed_by_server()
        assert [(part.released, part.errors) for part in from_file.slices] == [(1, [errno.EIO])]


@pytest.mark.spec("LOG-32", "DIR-41")
async def test_what_a_thread_reads_stays_open_though_its_connection_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its next read fails, as from a broken disk, or reads what has got the descriptor since."""
    random_file(tmp_path / "f", 3 * MIB)
    cold, reads, let_go = Cold(monkeypatch), os.preadv, threading.Event()
    produces: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future() for _ in range(2)]
    from_file = FromFile(tmp_path / "f")

    def wait_and_read(descriptor: int, buffers: Any, position: int, flags: int = 0) -> int:
        assert flags & os.RWF_NOWAIT or let_go.wait(20)
        return reads(descriptor, buffers, position, flags)

    def produce_or_fetch(peer: Peer, frame: memoryview) -> Reply:
        return Pending(produces[int(frame[1:])], pipelined=True) if bytes(frame[:1]) == b"p" else from_file(peer, frame)

    monkeypatch.setattr(os, "preadv", wait_and_read)
    async with Serving(produce_or_fetch) as serving:
        client = await serving.connect()
        client.send(b"p0", b"0 %d" % (3 * MIB), b"p1")
        await until(lambda: bool(from_file.slices), "the data is asked for")
        produces[0].set_result((framed(b"done"),))
        assert await client.receive() == b"done"
        produces[1].set_exception(ConnectionAbortedError())
        await until(lambda: not serving.server.connections, "the connection ends")
        assert (from_file.slices[0].released, cold.read_from) == (0, [])
        let_go.set()
        await until(lambda: from_file.slices[0].released == 1, "it is let go")
        assert from_file.slices[0].errors == []
        assert cold.read_from == [*range(0, 3 * MIB, READ_BY_THREAD_BYTES)]
