"""Limits for all connections together: their number, idle time and memory."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.broker.net.serving import PATIENCE_S, Serving, echo, framed, until

from ballast_broker.config.broker import broker_config
from ballast_broker.net import server as server_module
from ballast_broker.net.server import Limits, Server
from ballast_broker.net_reply import Peer, Pending, Reply
from ballast_broker.settings import connection_limits

MIB = 1 << 20


@pytest.mark.spec("CLI-09")
async def test_more_connections_than_max_wait_until_one_ends() -> None:
    async with Serving(max_connections=2) as serving:
        first, second = await serving.connect(), await serving.connect()
        assert await first.call(b"1") == b"1"
        assert await second.call(b"2") == b"2"
        third = await serving.connect()
        third.send(b"3")
        assert await first.call(b"1") == b"1"
        assert len(serving.server.connections) == 2
        first.close()
        assert await third.receive() == b"3"


@pytest.mark.spec("CLI-09")
async def test_clients_that_take_all_connections_keep_no_broker_or_controller_out() -> None:
    async with Serving(max_connections=1, own_listeners=frozenset({"REPLICATION"})) as serving:
        port = serving.server.listen("REPLICATION", "127.0.0.1", 0, echo)
        client, waiting = await serving.connect(), await serving.connect()
        waiting.send(b"2")
        assert await client.call(b"1") == b"1"
        brokers = [await serving.connect(port=port) for _ in range(2)]
        for broker in brokers:
            assert await broker.call(b"fetch") == b"fetch"
            broker.close()
        await until(lambda: len(serving.server.connections) == 1, "the brokers are gone")
        assert await client.call(b"1") == b"1"
        assert len(serving.server.connections) == 1  # what brokers give up is not for clients
        client.close()
        assert await waiting.receive() == b"2"


@pytest.mark.spec("CLI-09")
async def test_a_listener_with_a_bound_of_its_own_keeps_nobody_out_of_others() -> None:
    async with Serving(of_listeners={"ADMIN": 1}, own_listeners=frozenset({"ADMIN"})) as serving:
        port = serving.server.listen("ADMIN", "127.0.0.1", 0, echo)
        admin, waiting = await serving.connect(port=port), await serving.connect(port=port)
        waiting.send(b"2")
        assert await admin.call(b"1") == b"1"
        client = await serving.connect()
        assert await client.call(b"3") == b"3"
        assert len(serving.server.connections) == 2
        admin.close()
        assert await waiting.receive() == b"2"


def test_a_listeners_own_bound_is_configured() -> None:
    given = {"node.id": "1", "listener.name.plaintext.max.connections": "5"}
    config = broker_config(given)
    assert connection_limits(config, 100).of_listeners == {"PLAINTEXT": 5}
    assert config.warnings == ()
    with pytest.raises(ValueError, match="Value must be at least 0"):
        broker_config(given | {"listener.name.plaintext.max.connections": "-1"})


@pytest.mark.parametrize(
    ("listeners", "own"),
    [
        ("PLAINTEXT://:1,CONTROLLER://:2", {"CONTROLLER"}),
        ("PLAINTEXT://:1,REPLICATION://:3,CONTROLLER://:2", {"CONTROLLER", "REPLICATION"}),
    ],
)
def test_which_listeners_are_the_clusters_own(listeners: str, own: set[str]) -> None:
    mapped = "PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT"
    config = broker_config(
        {
            "node.id": "1",
            "listeners": listeners,
            "advertised.listeners": listeners.replace("://:", "://here:").rpartition(",")[0],
            "listener.security.protocol.map": mapped,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "REPLICATION" if "REPLICATION" in own else "PLAINTEXT",
            "log.dirs": "/data/d1",
        }
    )
    assert connection_limits(config, 100).own_listeners == own


@pytest.mark.spec("CLI-09")
async def test_more_connections_of_one_address_are_refused() -> None:
    async with Serving(max_connections_per_ip=1) as serving:
        first = await serving.connect()
        assert await first.call(b"1") == b"1"
        second = await serving.connect()
        assert await second.closed_by_server()
        assert serving.server.refused_count == 1
        first.close()
        await until(lambda: not serving.server.connections, "the first is gone")
        third = await serving.connect()
        assert await third.call(b"3") == b"3"


@pytest.mark.spec("CLI-09")
async def test_idle_connections_end() -> None:
    async with Serving(max_idle_ms=200) as serving:
        silent, half = await serving.connect(), await serving.connect()
        half.send_raw(b"\x00\x00")
        assert await silent.closed_by_server()
        assert await half.closed_by_server()


@pytest.mark.spec("CLI-09")
async def test_a_client_that_never_reads_ends() -> None:
    async with Serving(max_idle_ms=300, send_buffer_bytes=20_000) as serving:
        deaf = await serving.connect(receive_buffer_bytes=20_000)
        deaf.send(*[b"x" * 500_000] * 20)
        await until(lambda: len(serving.server.connections) == 1, "it is there")
        await until(lambda: not serving.server.connections, "it is gone")


@pytest.mark.spec("CLI-09")
async def test_who_went_away_while_waiting_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "GONE_AFTER_S", 0.05)
    never: asyncio.Future[tuple[bytes]] = asyncio.get_running_loop().create_future()
    async with Serving(lambda peer, frame: Pending(never, pipelined=False)) as serving:
        gone, there = await serving.connect(), await serving.connect()
        for client in (gone, there):
            client.send(b"a long poll", b"and more behind it")
        await until(lambda: sum(c.awaited for c in serving.server.connections) == 2, "both wait")
        gone.close()
        await until(lambda: len(serving.server.connections) == 1, "one is gone")
        await asyncio.sleep(0.2)
        assert len(serving.server.connections) == 1
    never.cancel()


async def test_who_waits_for_an_answer_is_not_idle() -> None:
    waiting: list[asyncio.Future[tuple[bytes]]] = []

    def later(_: Peer, frame: memoryview) -> Reply:
        if bytes(frame) == b"now":
            return framed(b"now")
        waiting.append(asyncio.get_running_loop().create_future())
        return Pending(waiting[-1], pipelined=False)

    async with Serving(later, max_idle_ms=200) as serving:
        patient, silent = await serving.connect(), await serving.connect()
        patient.send(b"join")
        assert await silent.closed_by_server()
        assert len(serving.server.connections) == 1
        waiting[0].set_result((framed(b"joined"),))
        assert await patient.receive() == b"joined"
        assert await patient.call(b"now") == b"now"  # the time that it waited does not count


@pytest.mark.spec("CLI-09")
async def test_memory_of_incoming_requests_is_bounded() -> None:
    async with Serving(max_queued_bytes=4 * MIB) as serving:
        first, second = await serving.connect(), await serving.connect()
        body = b"x" * (3 * MIB)
        first.send_raw(framed(body)[: 2 * MIB])
        await until(lambda: serving.server.queued_bytes == 3 * MIB, "the first has begun")
        second.send(body)
        await asyncio.sleep(0.05)
        assert serving.server.queued_bytes == 3 * MIB  # the second waits, most of it in the kernel
        first.send_raw(framed(body)[2 * MIB :])
        assert await first.receive() == body
        assert await second.receive() == body
        assert serving.server.queued_bytes == 0


@pytest.mark.spec("CLI-09")
async def test_who_waits_for_memory_holds_little_of_it() -> None:
    async with Serving(max_queued_bytes=4 * MIB) as serving:
        first, *others = [await serving.connect() for _ in range(11)]
        first.send_raw((4 * MIB).to_bytes(4, "big") + b"x")
        await until(lambda: serving.server.queued_bytes == 4 * MIB, "the first has begun")
        for each in others:
            each.send(b"y" * MIB)

        def held() -> list[int]:
            return [len(each._backlog) for each in serving.server.connections if each._backlog is not None]

        await until(lambda: len(held()) == len(others), "the others wait")
        assert max(held()) <= 64 * 1024  # the rest is in the kernel
        first.close()
        for each in others:
            assert await each.receive() == b"y" * MIB


@pytest.mark.spec("CLI-09")
async def test_memory_of_a_client_that_left_is_given_to_the_next() -> None:
    async with Serving(max_queued_bytes=4 * MIB) as serving:
        first, second = await serving.connect(), await serving.connect()
        first.send_raw((3 * MIB).to_bytes(4, "big") + b"x")
        await until(lambda: serving.server.queued_bytes == 3 * MIB, "the first has begun")
        second.send(b"y" * (3 * MIB))
        first.close()
        assert await second.receive() == b"y" * (3 * MIB)


def has_address(address: str) -> bool:
    try:
        socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET).close()
    except OSError:
        return False
    return True


@pytest.mark.spec("CLI-01")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_a_listener_without_a_host_is_found_by_addresses_of_both_families(address: str) -> None:
    if not has_address(address):
        pytest.skip(f"this machine has no {address}")
    hosts: list[str] = []

    def note(peer: Peer, frame: memoryview) -> Reply:
        hosts.append(peer.host)
        return echo(peer, frame)

    async with Serving() as serving:
        port = serving.server.listen("EVERYWHERE", "", 0, note)
        reader, writer = await asyncio.open_connection(address, port)
        writer.write(framed(b"here"))
        assert await asyncio.wait_for(reader.readexactly(8), PATIENCE_S) == framed(b"here")
        writer.close()
    assert hosts == [f"/{address}"]


async def test_a_port_that_is_taken_is_named() -> None:
    async with Serving() as serving:
        other = Server(Limits())
        with pytest.raises(OSError, match=f"PLAINTEXT://127.0.0.1:{serving.port}"):
            other.listen("PLAINTEXT", "127.0.0.1", serving.port, lambda peer, frame: None)


async def test_stop_listening_keeps_connections() -> None:
    async with Serving() as serving:
        client = await serving.connect()
        assert await client.call(b"1") == b"1"
        serving.server.stop_listening()
        assert await client.call(b"2") == b"2"
        with pytest.raises(ConnectionRefusedError):
            await serving.connect()
