"""The token with which a node logs in to others: how it is fetched, cached and renewed; and how others react to it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e.processes import BROKER_SOURCES
from tests.broker.net.serving import Serving, until
from tests.broker.net.test_oauth import as_it_was, asking, oauth
from tests.broker.net.test_sasl import who
from tests.identity_provider import CLIENTS, Provider, jwk, new_key, raw_token, signed

from ballast_broker import security_settings
from ballast_broker.config.broker import broker_config
from ballast_broker.config_types import ConfigError
from ballast_broker.net import channel as channel_module
from ballast_broker.net import remote
from ballast_broker.net.channel import SocketNetwork
from ballast_broker.net.outgoing import Login, Outgoing
from ballast_broker.net.own_token import LEAST_BETWEEN_S, OwnTokens
from ballast_broker.net.sasl import Authentication, SaslListener
from ballast_broker.net.secured import Access
from ballast_wire.messages import message

pytestmark = pytest.mark.spec("CLI-06")
CLIENT = {
    "sasl_oauthbearer_client_credentials_client_id": "node",
    "sasl_oauthbearer_client_credentials_client_secret": CLIENTS["node"],
}
__all__ = ["as_it_was"]  # a fixture


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as running:
        yield running


class Clock:
    def __init__(self) -> None:
        self.passed_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.passed_s


def tokens(url: str, clock: Clock | None = None, **more: str) -> OwnTokens:
    own = oauth("http://127.0.0.1:1/keys", sasl_oauthbearer_token_endpoint_url=url, **(CLIENT | more)).own
    assert own is not None
    return OwnTokens(own, clock or Clock())


def sub_of(token: str) -> str:
    import jwt

    return str(jwt.decode(token, options={"verify_signature": False})["sub"])


async def test_a_node_goes_to_others_with_its_token(provider: Provider) -> None:
    async with asking(provider.jwks_url) as there:
        login = Login("OAUTHBEARER", "", "", tokens=tokens(provider.token_url))
        network = SocketNetwork("broker-1", Outgoing(login=login))
        for _ in range(3):
            channel = await network.connect("127.0.0.1", there.serving.port, timeout_s=10)
            answer = await channel.call(message("MetadataRequest")(version=2, topics=[]), 2)
            assert answer.cluster_id == "node"
            channel.close()
        assert provider.asked.count("/token") == 1


async def test_a_session_is_renewed_while_the_token_holds(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "RENEWED_AT", 0.0)
    async with asking(provider.jwks_url) as there:
        clock = Clock()
        login = Login("OAUTHBEARER", "", "", tokens=tokens(provider.token_url, clock))
        channel = await SocketNetwork("broker-1", Outgoing(login=login)).connect(
            "127.0.0.1", there.serving.port, timeout_s=10
        )
        (connection,) = there.serving.server.connections
        session = connection._dispatch
        assert isinstance(session, Authentication)
        ends = session._ends_at_s
        await until(lambda: session._ends_at_s != ends, "the login is renewed")
        assert provider.asked.count("/token") == 1
        clock.passed_s = 500
        await until(lambda: provider.asked.count("/token") == 2, "with a new token when the old one is old")
        answer = await channel.call(message("MetadataRequest")(version=2, topics=[]), 2)
        assert answer.cluster_id == "node"
        channel.close()


async def test_a_token_is_asked_for_once_and_again_when_most_of_its_time_has_gone(provider: Provider) -> None:
    clock = Clock()
    own = tokens(provider.token_url, clock, sasl_oauthbearer_scope="a b")
    answered = threading.Event()
    real = provider.grant
    asked = []

    def slowly(authorization: str, form: dict[str, list[str]]) -> tuple[int, bytes]:
        asked.append(form)
        answered.wait(20)
        return real(authorization, form)

    provider.grant = slowly  # type: ignore[method-assign]
    try:
        waiting = [asyncio.ensure_future(own.current()) for _ in range(5)]
        await until(lambda: asked, "it is asked for")
        waiting.pop().cancel()
        answered.set()
        first = {await each for each in waiting}
        assert len(first) == 1
        assert sub_of(*first) == "node"
        assert asked == [{"grant_type": ["client_credentials"], "scope": ["a b"]}]
        clock.passed_s = 0.75 * 600
        assert {await own.current()} == first
        clock.passed_s = 0.85 * 600
        own._again_at_s = 0.0
        assert await own.current() not in first
    finally:
        del provider.grant


def test_what_is_answered_after_the_loop_has_ended_ends_the_asking(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command uses a separate event loop for each token that it presents."""
    own, real, answered = tokens(provider.token_url), provider.grant, threading.Event()

    def late(authorization: str, form: dict[str, list[str]]) -> tuple[int, bytes]:
        answered.wait(20)
        return real(authorization, form)

    monkeypatch.setattr(provider, "grant", late)
    with monkeypatch.context() as impatient:
        impatient.setattr(remote, "GIVEN_UP_S", 0.05)
        with pytest.raises(ConnectionAbortedError, match="does not answer"):
            asyncio.run(own.current())
    answered.set()
    for thread in threading.enumerate():
        if thread.name == "ballast-remote":
            thread.join(20)
    own._again_at_s = 0.0
    assert sub_of(asyncio.run(own.current())) == "node"


async def test_where_no_thread_can_be_begun_the_next_asking_may_have_one(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tokens(provider.token_url)
    with monkeypatch.context() as crowded:

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        crowded.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ConnectionAbortedError, match="can't start new thread"):
            await own.current()
    own._again_at_s = 0.0
    assert sub_of(await own.current()) == "node"


async def test_while_nothing_newer_is_to_be_had_the_old_one_is_shown_as_long_as_it_holds(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    own = tokens(provider.token_url, clock)
    first = await own.current()
    provider.answer = (503, b"later")
    clock.passed_s = 0.9 * 600
    for _ in range(3):
        own._again_at_s = 0.0
        assert await own.current() == first
    told = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert len(told) == 1
    assert "answers 503 Service Unavailable: later" in told[0]
    clock.passed_s = 601
    with pytest.raises(ConnectionAbortedError, match=r"there is no token to show: .* answers 503"):
        await own.current()
    asked = len(provider.asked)
    with pytest.raises(ConnectionAbortedError):
        await own.current()
    assert len(provider.asked) == asked, "not at once again"
    provider.answer = None
    own._again_at_s = 0.0
    clock.passed_s = 0
    own._held = None
    assert sub_of(await own.current()) == "node"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((200, b""), "has no access_token"),
        ((200, b"[]"), "has no access_token"),
        ((200, b'{"access_token": 5}'), "has no access_token"),
        ((200, b'{"access_token": "opaque"}'), "is no JWT"),
        ((200, b'{"access_token": "a.b\\u0001.c"}'), "is no JWT"),
        ((200, json.dumps({"access_token": raw_token({}, {})}).encode()), "is no JWT with an end"),
        ((200, json.dumps({"access_token": raw_token({}, {"exp": "x"})}).encode()), "is no JWT with an end"),
        ((200, json.dumps({"access_token": raw_token({}, {"exp": 1e999})}).encode()), "has no end"),
        ((200, json.dumps({"access_token": raw_token({}, {"exp": 1})}).encode()), "has ended already"),
        ((401, b'{"error":"invalid_client"}'), 'answers 401 Unauthorized: {"error":"invalid_client"}'),
    ],
)
async def test_what_is_no_token_is_not_shown(
    provider: Provider, caplog: pytest.LogCaptureFixture, answer: tuple[int, bytes], says: str
) -> None:
    provider.answer = answer
    with pytest.raises(ConnectionAbortedError) as refused:
        await tokens(provider.token_url).current()
    assert says in str(refused.value)
    assert CLIENTS["node"] not in caplog.text


async def test_a_wrong_secret_is_told_and_not_shown(provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    wrong: dict[str, Any] = {"sasl_oauthbearer_client_credentials_client_secret": "hush"}
    login = Login("OAUTHBEARER", "", "", tokens=tokens(provider.token_url, **wrong))
    async with asking(provider.jwks_url) as there:
        with pytest.raises(ConnectionError, match="there is no token to show"):
            await SocketNetwork("broker-1", Outgoing(login=login)).connect(
                "127.0.0.1", there.serving.port, timeout_s=10
            )
    assert "who are you?" in caplog.text
    assert "hush" not in caplog.text


async def test_a_token_that_others_do_not_believe_is_told_once(
    provider: Provider, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text(signed(new_key()) + "\n")
    login = Login("OAUTHBEARER", "", "", tokens=tokens(file.as_uri()))
    async with asking(provider.jwks_url) as there:
        network = SocketNetwork("broker-1", Outgoing(login=login))
        for _ in range(3):
            with pytest.raises(ConnectionError, match=r'OAUTHBEARER failed: \{"status":"invalid_token"\}'):
                await network.connect("127.0.0.1", there.serving.port, timeout_s=10)
    told = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert len(told) == 1
    assert "does not let this node in" in told[0]


async def test_a_token_whose_key_is_no_longer_published_is_replaced_at_once() -> None:
    """Although most of its lifetime is left. A token that nobody accepts does not cause one request after the other."""
    with Provider() as provider:
        own = tokens(provider.token_url)
        network = SocketNetwork("broker-1", Outgoing(login=Login("OAUTHBEARER", "", "", tokens=own)))
        async with asking(provider.jwks_url) as there:
            address = ("127.0.0.1", there.serving.port)
            (await network.connect(*address, timeout_s=10)).close()
            old = await own.current()
            provider.keys = {"two": new_key()}
            there.keys._began_at_s = float("-inf")
            asked_for = there.keys.anew()
            assert asked_for is not None
            await asked_for
            with pytest.raises(ConnectionError, match="invalid_token"):
                await network.connect(*address, timeout_s=10)
            own._again_at_s = 0.0
            (await network.connect(*address, timeout_s=10)).close()
            assert provider.asked.count("/token") == 2
            new = await own.current()
            own.refused(old)
            assert await own.current() == new, "it is another one that was refused"
            own._again_at_s = 0.0
            for _ in range(3):
                own.refused(await own.current())
            assert provider.asked.count("/token") == 3
            assert own._again_at_s > asyncio.get_running_loop().time() + LEAST_BETWEEN_S
            last = await own.current()
            provider.answer = (503, b"later")
            own._again_at_s = 0.0
            assert await own.current() == last != new, "while there is no other, it is shown"


async def test_a_file_with_a_token_is_read_again_in_time(provider: Provider, tmp_path: Path) -> None:
    file, clock = tmp_path / "token", Clock()
    one, two = provider.token("one"), provider.token("two", exp=int(time.time()) + 2000)
    file.write_text(one)
    own = tokens(file.as_uri(), clock)
    own.read_file()
    file.write_text(f" {two}\n")
    assert await own.current() == one
    clock.passed_s = 0.85 * 600
    assert await own.current() == two
    file.unlink()
    clock.passed_s = 1900
    assert await own.current() == two


@asynccontextmanager
async def silent_listener() -> AsyncIterator[Serving]:
    """A listener without OAUTHBEARER: it offers PLAIN only."""
    listener = SaslListener(("PLAIN",), {}, lambda user, mechanism: None, failure_delay_s=0.0)
    async with Serving(who, access=Access(sasl=listener)) as serving:
        yield serving


async def test_a_listener_without_the_mechanism_says_what_it_has(provider: Provider) -> None:
    async with silent_listener() as serving:
        login = Login("OAUTHBEARER", "", "", tokens=tokens(provider.token_url))
        with pytest.raises(ConnectionError, match="does not know OAUTHBEARER, but PLAIN"):
            await SocketNetwork("broker-1", Outgoing(login=login)).connect("127.0.0.1", serving.port, timeout_s=10)


async def test_a_file_without_a_token_is_told_at_the_start(tmp_path: Path) -> None:
    keys, file = tmp_path / "keys.json", tmp_path / "token"
    keys.write_text(json.dumps({"keys": [jwk(new_key(), "one")]}))
    properties = {
        "node.id": "1",
        "listeners": "SASL_PLAINTEXT://a:2",
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }
    config = broker_config(properties)
    with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.token\.endpoint\.url: .* cannot be read: No such file"):
        security_settings.outgoing(config, "SASL_PLAINTEXT", "OAUTHBEARER")
    file.write_text("no token")
    with pytest.raises(ConfigError, match="is no JWT"):
        security_settings.outgoing(config, "SASL_PLAINTEXT", "OAUTHBEARER")
    file.write_text(signed(new_key()))
    outgoing = security_settings.outgoing(config, "SASL_PLAINTEXT", "OAUTHBEARER")
    assert outgoing.login is not None
    assert outgoing.login.tokens is not None


def test_who_takes_no_tokens_does_not_load_what_checks_them() -> None:
    """Loading it would slow down every start."""
    modules = "ballast_broker.__main__, ballast_broker.app, ballast_broker.security_settings, ballast_broker.net.server"
    told = f"import sys, {modules}; print([each for each in ('jwt', 'cryptography') if each in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(BROKER_SOURCES)}
    ran = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, timeout=30, check=True, env=environment
    )
    assert ran.stdout.strip() == "[]"
