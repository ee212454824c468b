"""A node's connections to others over TLS: which certificates it trusts, and that nothing gets lost."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path

import pytest
from tests.broker.net.serving import Serving, tls_of_a_node
from tests.broker.net.test_channel import OLD, answering, asking
from tests.broker.net.test_tls_connection import access
from tests.certificates import Authority

from ballast_broker.net.channel import SocketNetwork
from ballast_broker.net.outgoing import Outgoing
from ballast_broker.security.tls import TlsContexts
from ballast_wire.headers import frame_response
from ballast_wire.messages import message


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("ca"))
    made.issue("node")
    made.issue("elsewhere", names="DNS:elsewhere.example")
    made.issue("expired", days=-1)
    return made


def network(authority: Authority, **changes: str) -> SocketNetwork:
    settings = tls_of_a_node(authority, **changes)
    return SocketNetwork("broker-1", Outgoing(TlsContexts(settings, asyncio.get_running_loop().time, server=False)))


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize("size", [10, 16_384, 100_000, 3_000_000])
async def test_many_calls_at_once(authority: Authority, size: int) -> None:
    """Responses of any size, which begin and end in the middle of TLS records."""
    topics = [f"{n}-" + "x" * min(size, 30_000) for n in range(max(1, min(100, 3_000_000 // size)))]
    async with Serving(answering, access=access(authority, ssl_client_auth="required")) as serving:
        channel = await network(authority).connect("127.0.0.1", serving.port, timeout_s=10)
        found = await asyncio.gather(*(channel.call(asking(topic), OLD) for topic in topics))
        assert [response.topics[0].name for response in found] == topics
        channel.close()


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize(
    ("shows", "says"),
    [
        ("elsewhere", "IP address mismatch"),
        ("expired", "certificate has expired"),
        ("strange", "self-signed|unable to get"),
    ],
)
async def test_a_certificate_that_is_not_that_of_the_place_is_not_believed(
    authority: Authority, tmp_path: Path, shows: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = Authority(tmp_path, "strangers").issue("node") if shows == "strange" else authority.folder / f"{shows}.pem"
    asked = access(authority, ssl_keystore_location=str(file))
    async with Serving(answering, access=asked) as serving:
        ours = network(authority)
        for _ in range(2):
            with pytest.raises(ConnectionError, match=says):
                await ours.connect("127.0.0.1", serving.port, timeout_s=10)
    told = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert len(told) == 1
    assert "does not let this node in: certificate verify failed" in told[0]


@pytest.mark.spec("CLI-06")
async def test_whether_the_host_is_checked_can_be_said(authority: Authority) -> None:
    asked = access(authority, ssl_keystore_location=str(authority.folder / "elsewhere.pem"))
    async with Serving(answering, access=asked) as serving:
        ours = network(authority, ssl_endpoint_identification_algorithm="")
        channel = await ours.connect("127.0.0.1", serving.port, timeout_s=10)
        assert (await channel.call(asking("t"), OLD)).topics[0].name == "t"
        channel.close()


@pytest.mark.spec("CLI-06")
async def test_where_nobody_speaks_tls_it_ends_in_time(authority: Authority) -> None:
    async with Serving(answering) as serving:
        with pytest.raises(ConnectionError):
            await network(authority).connect("127.0.0.1", serving.port, timeout_s=10)

    with socket.create_server(("127.0.0.1", 0)) as deaf, pytest.raises(TimeoutError):
        await network(authority).connect("127.0.0.1", deaf.getsockname()[1], timeout_s=0.2)


async def test_an_answer_in_the_last_record_of_the_one_before_is_not_left_there(authority: Authority) -> None:
    """The kernel has no more data, so the selector would not report it."""
    kind = message("MetadataResponse")

    def answer(correlation_id: int, topics: int) -> bytes:
        made = [kind.MetadataResponseTopic(name="t" * 1000, partitions=[]) for _ in range(topics)]
        body = kind(version=OLD, brokers=[], controller_id=1, topics=made).encode(version=OLD)
        return frame_response(3, correlation_id, body, flexible=False)

    async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer(1, 400) + answer(2, 1))
        await reader.read()
        writer.close()
        ended.set()

    ended = asyncio.Event()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.folder / "node.pem")
    server = await asyncio.start_server(both, "127.0.0.1", 0, ssl=context)
    async with server:
        channel = await network(authority).connect("127.0.0.1", server.sockets[0].getsockname()[1], timeout_s=10)
        async with asyncio.timeout(10):
            found = await asyncio.gather(*(channel.call(asking("t"), OLD) for _ in range(2)))
        assert [len(each.topics) for each in found] == [400, 1]
        channel.close()
        await ended.wait()
