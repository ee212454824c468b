"""SASL on a listener: which passwords are accepted, and what a client may request before it has logged in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.net.serving import Client, Serving, framed, until

from ballast_broker.net import channel as channel_module
from ballast_broker.net import secured
from ballast_broker.net.channel import SocketNetwork
from ballast_broker.net.outgoing import Login, Outgoing
from ballast_broker.net.sasl import MAX_FRAME_BYTES, Authentication, Later, Refused, SaslListener
from ballast_broker.net.secured import Access
from ballast_broker.net_reply import Peer, Reply
from ballast_broker.security.scram import HASHES, Credential, ScramClient, credential_of, salted_password
from ballast_wire.errors import ErrorCode
from ballast_wire.headers import frame_request, frame_response, is_flexible, parse_request_header
from ballast_wire.messages import message

PASSWORD = "wonder land"
VERSIONS, HANDSHAKE, AUTHENTICATE, METADATA = 18, 17, 36, 3


def credential(user: str, mechanism: str) -> Credential | None:
    if user != "alice":
        return None
    return credential_of(mechanism, salted_password(mechanism, PASSWORD, b"salt", 4096), b"salt", 4096)


def access(**how: Any) -> Access:
    settings: dict[str, Any] = {"failure_delay_s": 0.0, "mechanisms": ("PLAIN", *HASHES)} | how
    return Access(sasl=SaslListener(plain_users={"alice": PASSWORD, "": ""}, find=credential, **settings))


def who(peer: Peer, frame: memoryview) -> Reply:
    """Answer every request with the client's principal, in the cluster id of a Metadata response."""
    header = parse_request_header(frame)
    kind = message("MetadataResponse")
    response = kind(version=2, brokers=[], cluster_id=peer.principal.name, controller_id=1, topics=[])
    return frame_response(METADATA, header.correlation_id, response.encode(version=2), flexible=False)


def request(name: str, version: int, **fields: Any) -> bytes:
    kind = message(name + "Request")
    body = kind(version=version, **fields).encode(version=version)
    flexible = is_flexible(name + "Request", version)
    return frame_request(kind.API_KEY, version, 7, "test", body, flexible=flexible)[4:]


def response(name: str, version: int, frame: bytes) -> Any:
    tagged = is_flexible(name + "Request", version)
    return message(name + "Response").decode(frame[5 if tagged else 4 :], version=version)


async def say(client: Client, name: str, version: int, **fields: Any) -> Any:
    return response(name, version, await client.call(request(name, version, **fields)))


async def known_as(client: Client) -> str:
    answer = await say(client, "Metadata", 2, topics=[])
    return str(answer.cluster_id)


async def shake(client: Client, mechanism: str, version: int = 1) -> Any:
    return await say(client, "SaslHandshake", version, mechanism=mechanism)


async def plainly(client: Client, user: str, password: str, version: int = 2) -> Any:
    token = f"\0{user}\0{password}".encode()
    return await say(client, "SaslAuthenticate", version, auth_bytes=token)


async def by_scram(mechanism: str, user: str, password: str, step: Callable[[bytes], Any]) -> bytes:
    """Log in with SCRAM; return the server's last message."""
    client = ScramClient(mechanism, user, password, "of-the-client")
    last: bytes = await step(client.final(await step(client.first())))
    client.check(last)
    return last


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize("version", [0, 1, 2])
async def test_plain_lets_in_who_knows_the_password(version: int) -> None:
    async with Serving(who, access=access()) as serving:
        one = await serving.connect()
        shaken = await shake(one, "PLAIN")
        assert (shaken.error_code, shaken.mechanisms) == (0, ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
        answer = await plainly(one, "alice", PASSWORD, version)
        assert (answer.error_code, answer.error_message, answer.auth_bytes) == (0, "", b"")
        assert await known_as(one) == "alice"


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize("mechanism", sorted(HASHES))
@pytest.mark.parametrize("version", [0, 1])
async def test_scram_lets_in_who_knows_the_password(mechanism: str, version: int) -> None:
    """After a handshake of version 0 the messages travel without Kafka's header."""
    async with Serving(who, access=access()) as serving:
        one = await serving.connect()
        await shake(one, mechanism, version)

        async def step(token: bytes) -> bytes:
            if version == 0:
                return await one.call(token)
            return bytes((await say(one, "SaslAuthenticate", 1, auth_bytes=token)).auth_bytes)

        await by_scram(mechanism, "alice", PASSWORD, step)
        assert await known_as(one) == "alice"


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize(
    ("token", "says"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0wonder land", "Authentication failed: Invalid username or password"),
        (b"bob\0alice\0wonder land", "Client requested an authorization id that is different from username"),
        (b"\0alice\0", "password not specified"),
        (b"\0\0wonder land", "username not specified"),
        (b"alice\0wonder land", "expected 3 tokens"),
        (b"\0alice\0\xff", "expected 3 tokens"),
        (b"", "expected 3 tokens"),
    ],
)
async def test_a_wrong_password_is_answered_and_then_the_connection_ends(
    token: bytes, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with Serving(who, access=access()) as serving:
            one = await serving.connect()
            await shake(one, "PLAIN")
            one.send(request("SaslAuthenticate", 2, auth_bytes=token), request("Metadata", 2, topics=[]))
            answer = response("SaslAuthenticate", 2, await one.receive())
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert says in answer.error_message
            assert await one.closed_by_server()
    assert "wonder" not in caplog.text
    assert "wrong" not in caplog.text


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", PASSWORD)])
async def test_scram_refuses_at_its_end_whoever_it_is(user: str, password: str) -> None:
    async with Serving(who, access=access()) as serving:
        one = await serving.connect()
        await shake(one, "SCRAM-SHA-256")
        answers = []

        async def step(token: bytes) -> bytes:
            answers.append(await say(one, "SaslAuthenticate", 2, auth_bytes=token))
            return bytes(answers[-1].auth_bytes)

        with pytest.raises(ValueError, match="does not know the password"):
            await by_scram("SCRAM-SHA-256", user, password, step)
        assert [each.error_code for each in answers] == [0, ErrorCode.SASL_AUTHENTICATION_FAILED]
        assert answers[1].error_message == (
            "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
        )
        assert await one.closed_by_server()


@pytest.mark.spec("CLI-06")
async def test_a_failure_is_told_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Serving(who, access=access(failure_delay_s=0.2)) as serving:
        one = await serving.connect()
        await shake(one, "PLAIN")
        began = asyncio.get_running_loop().time()
        assert (await plainly(one, "alice", "wrong")).error_code
        assert asyncio.get_running_loop().time() - began >= 0.19


@pytest.mark.spec("CLI-06")
async def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are() -> None:
    async with Serving(who, access=access(mechanisms=("SCRAM-SHA-512",))) as serving:
        one = await serving.connect()
        answer = await shake(one, "PLAIN")
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["SCRAM-SHA-512"])
        assert await one.closed_by_server()


@pytest.mark.spec("CLI-06")
async def test_before_it_is_known_who_it_is_nothing_else_is_answered() -> None:
    asked: list[int] = []

    def note(peer: Peer, frame: memoryview) -> Reply:
        asked.append(parse_request_header(frame).api_key)
        return who(peer, frame)

    async with Serving(note, access=access()) as serving:
        one = await serving.connect()
        one.send(request("ApiVersions", 0))
        await one.receive()
        assert asked == [VERSIONS]
        one.send(request("Metadata", 2, topics=[]))
        assert await one.closed_by_server()
        two = await serving.connect()
        await shake(two, "PLAIN")
        two.send(request("Metadata", 2, topics=[]))
        assert await two.closed_by_server()
        three = await serving.connect()
        answer = await plainly(three, "alice", PASSWORD)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await three.closed_by_server()
        four = await serving.connect()
        await shake(four, "PLAIN")
        assert (await shake(four, "PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await four.closed_by_server()
        assert asked == [VERSIONS]


@pytest.mark.spec("CLI-06", "CLI-09")
@pytest.mark.parametrize("whole", [True, False])
async def test_before_it_is_known_who_it_is_frames_are_small(whole: bool) -> None:
    async with Serving(who, access=access()) as serving:
        one = await serving.connect()
        body = request("SaslHandshake", 1, mechanism="x" * MAX_FRAME_BYTES)
        if whole:
            one.send(body)
        else:
            one.send_raw((64 * 1024 * 1024).to_bytes(4, "big") + body[:10])
        assert await one.closed_by_server()
        assert serving.server.queued_bytes == 0
        two = await serving.connect()
        await shake(two, "PLAIN")
        await plainly(two, "alice", PASSWORD)
        topics = [message("MetadataRequest").MetadataRequestTopic(version=2, name="t" * 200) for _ in range(500)]
        assert (await say(two, "Metadata", 2, topics=topics)).cluster_id == "alice"


@pytest.mark.parametrize(
    "body", [b"", b"\0\x11", b"\0\x11\0\1\0\0\0\7\0\4test\xff\xff\xff", b"\0\x24\0\x09" + bytes(20)]
)
async def test_what_cannot_be_read_ends_the_connection(body: bytes) -> None:
    async with Serving(who, access=access()) as serving:
        one = await serving.connect()
        one.send(body)
        assert await one.closed_by_server()


class Slowly:
    """Refuses whoever it is, once it has asked somebody."""

    user = ""
    by_token = done = False
    lifetime_ms: int | None = None

    def __init__(self) -> None:
        self._asked: asyncio.Future[None] | None = None

    def step(self, message: bytes) -> bytes:
        if self._asked is None:
            loop = asyncio.get_running_loop()
            self._asked = loop.create_future()
            loop.call_later(0.01, self._asked.set_result, None)
            raise Later(self._asked)
        raise Refused(f"not {message.decode()}")


@pytest.mark.spec("CLI-06", "CLI-12")
async def test_who_is_refused_after_others_were_asked_is_told_so() -> None:
    listener = access(mechanisms=("SLOW",), begin_of={"SLOW": lambda _tell: Slowly()})
    async with Serving(who, access=listener) as serving:
        one = await serving.connect()
        await shake(one, "SLOW")
        answer = await say(one, "SaslAuthenticate", 2, auth_bytes=b"alice")
        assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, "not alice")
        assert await one.closed_by_server()


# -- sessions


@pytest.mark.spec("CLI-06")
async def test_a_session_ends_unless_it_is_renewed() -> None:
    async with Serving(who, access=access(max_reauth_ms=60_000)) as serving:
        one = await serving.connect()
        await shake(one, "PLAIN")
        assert (await plainly(one, "alice", PASSWORD)).session_lifetime_ms == 60_000
        assert await known_as(one) == "alice"
        (connection,) = serving.server.connections
        session = connection._dispatch
        assert isinstance(session, Authentication)
        session._ends_at_s = 0.0
        await shake(one, "PLAIN")
        assert (await plainly(one, "alice", PASSWORD)).session_lifetime_ms == 60_000
        assert await known_as(one) == "alice"
        session._ends_at_s = 0.0
        one.send(request("Metadata", 2, topics=[]))
        assert await one.closed_by_server()


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize("how", ["as somebody else", "by another mechanism", "with a wrong password"])
async def test_a_session_is_renewed_only_by_who_it_is(how: str) -> None:
    users = {"alice": PASSWORD, "bob": PASSWORD}
    listener = SaslListener(("PLAIN", "SCRAM-SHA-256"), users, credential, failure_delay_s=0, max_reauth_ms=60_000)
    async with Serving(who, access=Access(sasl=listener)) as serving:
        one = await serving.connect()
        await shake(one, "PLAIN")
        await plainly(one, "alice", PASSWORD)
        if how == "by another mechanism":
            await shake(one, "SCRAM-SHA-256")
            client = ScramClient("SCRAM-SHA-256", "alice", PASSWORD, "abc")
            first = await say(one, "SaslAuthenticate", 2, auth_bytes=client.first())
            answer = await say(one, "SaslAuthenticate", 2, auth_bytes=client.final(first.auth_bytes))
        else:
            await shake(one, "PLAIN")
            somebody = how == "as somebody else"
            answer = await plainly(one, "bob" if somebody else "alice", PASSWORD if somebody else "wrong")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await one.closed_by_server()


async def test_without_sessions_nothing_stands_between_requests_and_their_answers() -> None:
    async with Serving(who, access=access()) as serving:
        one = await serving.connect()
        await shake(one, "PLAIN")
        assert (await plainly(one, "alice", PASSWORD)).session_lifetime_ms == 0
        (connection,) = serving.server.connections
        assert connection._dispatch is who


# -- where this node goes itself


def answering(peer: Peer, frame: memoryview) -> Reply:
    return who(peer, frame)


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize("mechanism", ["PLAIN", *HASHES])
async def test_a_node_goes_to_others_by_its_login(mechanism: str) -> None:
    async with Serving(answering, access=access()) as serving:
        network = SocketNetwork("broker-1", Outgoing(login=Login(mechanism, "alice", PASSWORD)))
        channel = await network.connect("127.0.0.1", serving.port, timeout_s=10)
        answer = await channel.call(message("MetadataRequest")(version=2, topics=[]), 2)
        assert answer.cluster_id == "alice"
        channel.close()


@pytest.mark.spec("CLI-06")
async def test_a_node_that_is_not_let_in_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async with Serving(answering, access=access()) as serving:
        for mechanism in ("PLAIN", "SCRAM-SHA-256"):
            caplog.clear()
            network = SocketNetwork("broker-1", Outgoing(login=Login(mechanism, "alice", "wrong")))
            for _ in range(3):
                with pytest.raises(ConnectionError, match="alice failed"):
                    await network.connect("127.0.0.1", serving.port, timeout_s=10)
            told = [each.message for each in caplog.records if each.levelno == logging.WARNING]
            assert len(told) == 1
            assert f"does not let this node in: {mechanism} as alice failed" in told[0]
            assert "wrong" not in caplog.text
        network = SocketNetwork("broker-1", Outgoing(login=Login("GSSAPI", "alice", "x")))
        with pytest.raises(ConnectionError, match="does not know GSSAPI, but PLAIN"):
            await network.connect("127.0.0.1", serving.port, timeout_s=10)


@pytest.mark.spec("CLI-06")
async def test_a_login_is_renewed_between_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "RENEWED_AT", 0.0)
    asked = access(max_reauth_ms=600_000)
    async with Serving(answering, access=asked) as serving:
        network = SocketNetwork("broker-1", Outgoing(login=Login("SCRAM-SHA-256", "alice", PASSWORD)))
        channel = await network.connect("127.0.0.1", serving.port, timeout_s=10)
        (connection,) = serving.server.connections
        session = connection._dispatch
        assert isinstance(session, Authentication)
        ends = session._ends_at_s
        await until(lambda: session._ends_at_s > ends, "the login is renewed")
        answer = await channel.call(message("MetadataRequest")(version=2, topics=[]), 2)
        assert answer.cluster_id == "alice"
        channel.close()


async def test_frames_before_a_login_are_not_left_behind() -> None:
    """Handshake, password and request in one piece, as a client may send them that knows the responses."""
    async with Serving(who, access=access()) as serving:
        one = await serving.connect()
        token = f"\0alice\0{PASSWORD}".encode()
        bodies = (
            request("SaslHandshake", 1, mechanism="PLAIN"),
            request("SaslAuthenticate", 2, auth_bytes=token),
            request("Metadata", 2, topics=[]),
        )
        one.send_raw(b"".join(map(framed, bodies)))
        await one.receive()
        await one.receive()
        assert response("Metadata", 2, await one.receive()).cluster_id == "alice"


@pytest.mark.spec("CLI-06", "CLI-09")
async def test_who_stalls_before_the_password_is_shown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Serving(who, access=access()) as serving:
        good = await serving.connect()
        await shake(good, "PLAIN")
        monkeypatch.setattr(secured, "SETTLED_WITHIN_S", 0.05)
        await plainly(good, "alice", PASSWORD)
        stalled = await serving.connect()
        await shake(stalled, "PLAIN")
        assert await stalled.closed_by_server()
        assert await known_as(good) == "alice"
