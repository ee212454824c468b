"""The client end of connections between brokers: responses match their requests, and waiters learn of the close."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest
from tests.broker.net.serving import Serving, until

from ballast_broker.net.channel import SocketChannel, SocketNetwork
from ballast_broker.net_reply import Peer, Pending, Reply
from ballast_wire.headers import frame_response, is_flexible, parse_request_header, skip_header_tags
from ballast_wire.messages import message

Request, Response = message("MetadataRequest"), message("MetadataResponse")
OLD, FLEXIBLE = 1, 9


def asking(topic: str, version: int = OLD) -> Any:
    return Request(version=version, topics=[Request.MetadataRequestTopic(version=version, name=topic)])


def answer_to(frame: memoryview) -> bytes:
    """A Metadata response that names the topic asked for."""
    header = parse_request_header(frame)
    flexible = is_flexible("MetadataRequest", header.version)
    body = skip_header_tags(frame, header.end) if flexible else header.end
    asked = Request.decode(bytes(frame[body:]), version=header.version)
    topic = Response.MetadataResponseTopic(error_code=0, name=asked.topics[0].name, is_internal=False, partitions=[])
    response = Response(version=header.version, brokers=[], controller_id=1, topics=[topic])
    return frame_response(3, header.correlation_id, response.encode(version=header.version), flexible=flexible)


def answering(_: Peer, frame: memoryview) -> Reply:
    return answer_to(frame)


async def connect(serving: Serving) -> SocketChannel:
    return await SocketNetwork("broker-1").connect("127.0.0.1", serving.port, timeout_s=10)


@pytest.mark.parametrize("version", [OLD, FLEXIBLE])
async def test_a_call_is_answered(version: int) -> None:
    async with Serving(answering) as serving:
        channel = await connect(serving)
        response = await channel.call(asking("t", version), version)
        assert [topic.name for topic in response.topics] == ["t"]
        channel.close()


async def test_what_was_decoded_can_be_sent_on() -> None:
    async with Serving(answering) as serving:
        channel = await connect(serving)
        received = Request.decode(bytes(asking("t").encode(version=OLD)), version=OLD)
        assert (await channel.call(received, OLD)).topics[0].name == "t"
        channel.close()


@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
async def test_many_calls_at_once(size: int) -> None:
    """Responses of any size; large ones arrive in pieces."""
    topics = [f"{n}-" + "x" * min(size, 30_000) for n in range(max(1, min(100, 3_000_000 // size)))]
    async with Serving(answering) as serving:
        channel = await connect(serving)
        found = await asyncio.gather(*(channel.call(asking(topic), OLD) for topic in topics))
        assert [response.topics[0].name for response in found] == topics
        channel.close()


class Silent:
    """A server that never answers."""

    def __init__(self) -> None:
        self.frames = 0

    def __call__(self, _: Peer, frame: memoryview) -> Reply:
        del frame
        self.frames += 1
        return Pending(asyncio.get_running_loop().create_future(), pipelined=True)


async def test_all_who_wait_learn_that_the_peer_is_gone() -> None:
    silent = Silent()
    async with Serving(silent) as serving:
        channel = await connect(serving)
        calls = [asyncio.create_task(channel.call(asking("t"), OLD)) for _ in range(3)]
        await until(lambda: silent.frames == 3, "all were asked")
        for connection in list(serving.server.connections):
            connection.close(None)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, ConnectionError)
        assert channel.closed
        with pytest.raises(ConnectionError):
            await channel.call(asking("t"), OLD)


async def test_closing_it_here_ends_the_calls() -> None:
    silent = Silent()
    async with Serving(silent) as serving:
        channel = await connect(serving)
        call = asyncio.create_task(channel.call(asking("t"), OLD))
        await until(lambda: silent.frames == 1, "it was asked")
        channel.close()
        with pytest.raises(ConnectionError):
            await call


async def test_an_answer_to_a_call_that_was_given_up_is_passed_over() -> None:
    waiting: list[tuple[asyncio.Future[tuple[bytes]], bytes]] = []

    def later(_: Peer, frame: memoryview) -> Reply:
        waiting.append((asyncio.get_running_loop().create_future(), answer_to(frame)))
        return Pending(waiting[-1][0], pipelined=True)

    async with Serving(later) as serving:
        channel = await connect(serving)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await channel.call(asking("first"), OLD)
        second = asyncio.create_task(channel.call(asking("second"), OLD))
        await until(lambda: len(waiting) == 2, "both were asked")
        for future, answer in waiting:
            future.set_result((answer,))
        assert (await second).topics[0].name == "second"
        channel.close()


@pytest.mark.parametrize(
    "nonsense", [struct.pack(">i", -1), struct.pack(">i", 2**31 - 1), struct.pack(">iiB", 5, 1, 255)]
)
async def test_nonsense_from_the_peer_ends_the_channel(nonsense: bytes) -> None:
    async with Serving(lambda peer, frame: nonsense) as serving:
        channel = await connect(serving)
        with pytest.raises(ConnectionError):
            await channel.call(asking("t"), OLD)
        assert channel.closed


async def test_nobody_there_is_told_as_such() -> None:
    async with Serving() as serving:
        serving.server.stop_listening()
        with pytest.raises(ConnectionRefusedError):
            await connect(serving)


@pytest.mark.parametrize(
    "elsewhere",
    [
        (socket.AF_INET6, ("::1", 0, 0, 0)),
        (socket.AF_INET, ("127.0.0.1", 0)),  # port 0 is nobody's
    ],
)
async def test_a_name_with_several_addresses_is_tried_at_each(
    monkeypatch: pytest.MonkeyPatch, elsewhere: tuple[int, Any]
) -> None:
    """On many machines `localhost` is ::1 first, but a broker that listens on `localhost` is at 127.0.0.1."""
    async with Serving(answering) as serving:
        family, address = elsewhere
        found = [(family, address), (socket.AF_INET, ("127.0.0.1", serving.port))]

        async def addresses(*_: Any, **__: Any) -> Any:
            return [(family, socket.SOCK_STREAM, 6, "", address) for family, address in found]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", addresses)
        channel = await SocketNetwork("broker-1").connect("localhost", serving.port, timeout_s=10)
        assert (await channel.call(asking("t"), OLD)).topics[0].name == "t"
        channel.close()
