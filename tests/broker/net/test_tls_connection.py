"""Connections over TLS are as complete, bounded and patient as those without; and clients that do not speak TLS."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from tests.broker.net.serving import (
    PATIENCE_S,
    Serving,
    Slice,
    echo,
    file_reply,
    framed,
    random_file,
    tls_of_a_node,
    until,
)
from tests.certificates import Authority, believing

from ballast_broker.net import secured
from ballast_broker.net.secured import Access
from ballast_broker.net_reply import Peer, Pending, Reply
from ballast_broker.security.tls import TlsContexts

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("ca"))
    made.issue("node")
    made.issue("orders", subject="/C=DE/O=Shop, Inc./CN=orders")
    return made


def access(authority: Authority, **changes: str) -> Access:
    settings = tls_of_a_node(authority, **changes)
    return Access(TlsContexts(settings, asyncio.get_running_loop().time, server=True))


def client(authority: Authority, own: str | None = None, version: str | None = None) -> ssl.SSLContext:
    context = believing(authority.ca)
    if own is not None:
        context.load_cert_chain(authority.folder / f"{own}.pem")
    if version is not None:
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    return context


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
async def test_frames_of_every_size_come_back_whole(authority: Authority, version: str) -> None:
    async with Serving(access=access(authority)) as serving:
        one = await serving.connect(tls=client(authority, version=version))
        for size in (0, 1, 100, 16_379, 16_380, 16_381, 16_384, 40_000, 300_000, 700_000, 3 * MIB + 7):
            body = os.urandom(size)
            assert await one.call(body) == body, size


@pytest.mark.spec("CLI-06")
async def test_many_frames_at_once_come_back_in_order(authority: Authority) -> None:
    bodies = [bytes([n % 251]) * (n * 37 % 2000) for n in range(2000)]
    async with Serving(access=access(authority)) as serving:
        one = await serving.connect(tls=client(authority))
        one.send(*bodies)
        assert [await one.receive() for _ in bodies] == bodies


async def test_frames_that_wait_decrypted_are_answered_when_the_request_before_them_is(authority: Authority) -> None:
    """One TLS record has several frames: the kernel has no more data, so the selector would not report it."""
    asked: list[asyncio.Future[Any]] = []

    def slowly(peer: Peer, frame: memoryview) -> Reply:
        asked.append(asyncio.get_running_loop().create_future())
        body = bytes(frame)
        asked[-1].add_done_callback(lambda _: None)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        asked[-1].add_done_callback(lambda _: answered.set_result((framed(body),)))
        return Pending(answered, pipelined=False)

    async with Serving(slowly, access=access(authority)) as serving:
        one = await serving.connect(tls=client(authority))
        bodies = [os.urandom(70_000), b"small", os.urandom(100_001), b"last"]
        one.send(*bodies)
        for n, body in enumerate(bodies):
            await until(lambda n=n: len(asked) > n, f"request {n}")
            asked[n].set_result(None)
            assert await one.receive() == body


@pytest.mark.spec("LOG-31", "CLI-06")
async def test_a_file_is_read_and_encrypted(authority: Authority, tmp_path: Path) -> None:
    content = random_file(tmp_path / "data", 5 * MIB)
    parts: list[Slice] = []

    def from_file(peer: Peer, frame: memoryview) -> Reply:
        position, size = int.from_bytes(frame[:4], "big"), int.from_bytes(frame[4:8], "big")
        parts.append(Slice(tmp_path / "data", position, size))
        return file_reply(b"head", parts[-1], b"tail")

    async with Serving(from_file, access=access(authority)) as serving:
        one = await serving.connect(tls=client(authority))
        for position, size in (
            (0, 1),
            (5, 100),
            (1000, 16_384),
            (7, 65_536),
            (3, 65_537),
            (0, 5 * MIB),
            (MIB, 3 * MIB),
        ):
            answer = await one.call(position.to_bytes(4, "big") + size.to_bytes(4, "big"))
            assert answer == b"head" + content[position : position + size] + b"tail", (position, size)
    assert [part.released for part in parts] == [1] * len(parts)


async def test_a_slow_reader_gets_everything_and_holds_nobody(authority: Authority, tmp_path: Path) -> None:
    content = random_file(tmp_path / "data", 4 * MIB)

    def either(peer: Peer, frame: memoryview) -> Reply:
        if len(frame) > 10:
            return echo(peer, frame)
        return file_reply(b"", Slice(tmp_path / "data", 0, len(content)))

    async with Serving(either, access=access(authority), send_buffer_bytes=8192) as serving:
        slow = await serving.connect(tls=client(authority), receive_buffer_bytes=8192)
        slow.send(b"x")
        (connection,) = serving.server.connections
        await until(lambda: connection.busy, "it does not fit into the socket")
        quick = await serving.connect(tls=client(authority))
        for n in range(50):
            assert await quick.call(b"while it waits %d" % n) == b"while it waits %d" % n
        assert await slow.receive() == content


async def test_a_client_that_goes_in_the_middle_leaves_nothing(authority: Authority, tmp_path: Path) -> None:
    random_file(tmp_path / "data", 4 * MIB)
    parts: list[Slice] = []

    def from_file(peer: Peer, frame: memoryview) -> Reply:
        parts.append(Slice(tmp_path / "data", 0, 4 * MIB))
        return file_reply(b"", parts[-1])

    async with Serving(from_file, access=access(authority)) as serving:
        one = await serving.connect(tls=client(authority), receive_buffer_bytes=8192)
        one.send(b"x")
        await until(lambda: parts, "the request")
        one.writer.transport.abort()
        await until(lambda: not serving.server.connections, "the connection is gone")
        assert parts[0].released == 1


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize(
    ("auth", "own", "rules", "expected"),
    [
        ("none", "orders", "DEFAULT", "ANONYMOUS"),
        ("requested", None, "DEFAULT", "ANONYMOUS"),
        ("requested", "orders", "DEFAULT", r"CN=orders,O=Shop\, Inc.,C=DE"),
        ("required", "orders", "DEFAULT", r"CN=orders,O=Shop\, Inc.,C=DE"),
        ("required", "orders", "RULE:^CN=(.*?),.*$/$1/U", "ORDERS"),
    ],
)
async def test_a_certificate_says_who_it_is(
    authority: Authority, auth: str, own: str | None, rules: str, expected: str
) -> None:
    def who(peer: Peer, frame: memoryview) -> Reply:
        return framed(peer.principal.name.encode())

    asked = access(authority, ssl_client_auth=auth, ssl_principal_mapping_rules=rules)
    async with Serving(who, access=asked) as serving:
        one = await serving.connect(tls=client(authority, own))
        assert (await one.call(b"?")).decode() == expected


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize("case", ["no certificate", "of another authority", "expired", "no rule for it"])
async def test_a_certificate_that_is_not_believed_lets_nobody_in(
    authority: Authority, tmp_path: Path, case: str
) -> None:
    def never(peer: Peer, frame: memoryview) -> Reply:
        raise AssertionError("a request of somebody unknown")

    context = client(authority)
    if case == "of another authority":
        context.load_cert_chain(Authority(tmp_path, "strangers").issue("orders"))
    elif case == "expired":
        context.load_cert_chain(authority.issue("old", days=-1))
    elif case == "no rule for it":
        context.load_cert_chain(authority.folder / "orders.pem")
    asked = access(authority, ssl_client_auth="required", ssl_principal_mapping_rules="RULE:^CN=nobody$/x/")
    async with Serving(never, access=asked) as serving:
        with contextlib.suppress(OSError):  # with TLS 1.3 a client hears of it only with the first answer
            one = await serving.connect(tls=context)
            one.send(b"anything")
            assert await one.closed_by_server()
        await until(lambda: not serving.server.connections, "the connection is gone")


@pytest.mark.spec("CLI-06")
async def test_who_does_not_speak_tls_is_shown_out(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    async with Serving(access=access(authority)) as serving:
        with caplog.at_level(logging.INFO):
            for spoken in (
                framed(b"\0\x12\0\0plain request"),
                b"GET / HTTP/1.1\r\n\r\n",
                b"\x16\x03\x01\x02",
                os.urandom(500),
            ):
                plain = await serving.connect()
                plain.send_raw(spoken)
                plain.writer.write_eof()
                assert await plain.closed_by_server()
        assert "TLS handshake with /127.0.0.1 on listener PLAINTEXT failed: " in caplog.text
        assert (await (await serving.connect(tls=client(authority))).call(b"fine")) == b"fine"
        assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_a_tls_client_is_shown_out_where_nobody_speaks_it(authority: Authority) -> None:
    async with Serving() as serving:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await serving.connect(tls=client(authority))


@pytest.mark.spec("CLI-06", "CLI-09")
async def test_a_thousand_who_stall_cost_little_and_are_shown_out(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = min(1000, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200) // 2)
    async with Serving(access=access(authority), backlog=count) as serving:
        stalled = []
        hello = _hello(authority)
        for n in range(count):
            sock = socket.socket()
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", serving.port))
            sock.send((b"", hello[:50], hello)[n % 3])
            stalled.append(sock)
        await until(lambda: len(serving.server.connections) == count, "all are there")
        good = await serving.connect(tls=client(authority))
        assert await good.call(b"still here") == b"still here"
        loop = asyncio.get_running_loop()
        secure = [each for each in serving.server.connections if isinstance(each, secured.SecuredConnection)]
        waiting = [(each, each._deadline) for each in secure if each._deadline is not None]
        assert len(waiting) == count
        assert all(deadline.when() <= loop.time() + secured.SETTLED_WITHIN_S for _, deadline in waiting)
        for each, _ in waiting:
            each._too_late()
        assert len(serving.server.connections) == 1
        assert await good.call(b"and now") == b"and now"
        for sock in stalled:
            sock.close()


def _hello(authority: Authority) -> bytes:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        client(authority).wrap_bio(there, back, server_hostname="localhost").do_handshake()
    return back.read()


async def test_the_time_to_say_who_one_is_ends(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Serving(access=access(authority)) as serving:
        good = await serving.connect(tls=client(authority))
        monkeypatch.setattr(secured, "SETTLED_WITHIN_S", 0.05)
        stalled = await serving.connect()
        async with asyncio.timeout(PATIENCE_S):
            assert await stalled.closed_by_server()
        assert await good.call(b"who came in may stay") == b"who came in may stay"


@pytest.mark.spec("CLI-06")
async def test_new_connections_get_the_new_certificate_and_old_ones_go_on(authority: Authority, tmp_path: Path) -> None:
    file = tmp_path / "node.pem"
    file.write_text((authority.folder / "node.pem").read_text())
    asked = access(authority, ssl_keystore_location=str(file))
    assert asked.tls is not None

    def serial(one: Any) -> str:
        return str(one.writer.get_extra_info("peercert")["serialNumber"])

    async with Serving(access=asked) as serving:
        before = await serving.connect(tls=client(authority))
        file.write_text(authority.issue("new").read_text())
        asked.tls._look_at_s = 0.0  # the time has come
        after = await serving.connect(tls=client(authority))
        assert serial(before) != serial(after)
        assert (await before.call(b"old"), await after.call(b"new")) == (b"old", b"new")
