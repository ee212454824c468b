"""OAUTHBEARER on a listener: which tokens are accepted, and how keys are fetched and cached."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.net.serving import Client, Serving, until
from tests.broker.net.test_sasl import known_as, request, response, say, shake, who
from tests.certificates import Authority
from tests.identity_provider import AUDIENCE, ISSUER, Provider, jwk, new_key, raw_token, signed

from ballast_broker import security_settings
from ballast_broker.config.broker import broker_config
from ballast_broker.config_types import ConfigError
from ballast_broker.net import remote, secured, token_keys
from ballast_broker.net.event_loop import EventLoop
from ballast_broker.net.oauth import TokenChecker
from ballast_broker.net.sasl import Authentication, SaslListener, no_token
from ballast_broker.net.secured import Access
from ballast_broker.net.token_keys import TokenKeys
from ballast_broker.security.oauth_settings import OauthSettings
from ballast_broker.security.oauthbearer import first_message
from ballast_broker.security.tokens import keys_of
from ballast_wire.errors import ErrorCode

pytestmark = pytest.mark.spec("CLI-06")
INVALID = b'{"status":"invalid_token"}'
GENERIC = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as running:
        yield running


@pytest.fixture(autouse=True)
def as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    if "provider" not in request.fixturenames:
        yield
        return
    running: Provider = request.getfixturevalue("provider")
    keys = dict(running.keys)
    running.asked.clear()
    yield
    running.keys, running.answer = keys, None
    running.before_answer = lambda: None


def oauth(url: str, **more: str) -> OauthSettings:
    properties = {
        "node.id": "1",
        "listeners": "PLAINTEXT://a:1,OPEN://a:2",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OPEN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "100",
    }
    named = {key.replace("_", "."): value for key, value in more.items()}
    sasl = broker_config(properties | named).listener_security["OPEN"].sasl
    assert sasl is not None
    assert sasl.oauth is not None
    return sasl.oauth


class Asking:
    """A listener that accepts tokens."""

    def __init__(self, serving: Serving, keys: TokenKeys) -> None:
        self.serving = serving
        self.keys = keys

    async def client(self) -> Client:
        one = await self.serving.connect()
        answer = await shake(one, "OAUTHBEARER")
        assert (answer.error_code, answer.mechanisms) == (0, ["OAUTHBEARER"])
        return one

    async def shown(self, token: str, client: Client | None = None) -> Any:
        return await show(client or await self.client(), first_message(token, {}))


async def show(client: Client, message: bytes, version: int = 2) -> Any:
    return await say(client, "SaslAuthenticate", version, auth_bytes=message)


@asynccontextmanager
async def asking(
    url: str, *, have_keys: bool = True, now_s: Callable[[], float] = time.time, reauth_ms: int = 0, **more: str
) -> AsyncIterator[Asking]:
    wanted = oauth(url, **more)
    assert wanted.keys is not None
    keys = TokenKeys(wanted.keys, keys_of)
    keys.start()
    checker = TokenChecker(keys, wanted.rules, now_s)
    listener = SaslListener(
        ("OAUTHBEARER",),
        {},
        lambda user, mechanism: None,
        failure_delay_s=0.0,
        max_reauth_ms=reauth_ms,
        begin_of={"OAUTHBEARER": checker.begin},
    )
    async with Serving(who, access=Access(sasl=listener)) as serving:
        if have_keys:
            await until(lambda: keys.keys, "there are keys")
        yield Asking(serving, keys)
    keys.close()


async def test_a_token_lets_in_who_it_is_about(provider: Provider) -> None:
    async with asking(provider.jwks_url) as there:
        one = await there.client()
        answer = await there.shown(provider.token("alice"), one)
        assert (answer.error_code, answer.error_message, answer.auth_bytes) == (0, "", b"")
        assert 599_000 - 5000 < answer.session_lifetime_ms <= 600_000
        assert await known_as(one) == "alice"


@pytest.mark.parametrize("version", [0, 1])
async def test_older_ways_to_say_it(provider: Provider, version: int) -> None:
    """In SaslAuthenticate without a lifetime, and after a handshake of version 0 without Kafka's header."""
    async with asking(provider.jwks_url) as there:
        one = await there.serving.connect()
        await shake(one, "OAUTHBEARER", version)
        first = first_message(provider.token("bob"), {"tenant": "shop"})
        if version == 0:
            assert await one.call(first) == b""
        else:
            assert (await show(one, first, 0)).error_code == 0
        assert await known_as(one) == "bob"


async def test_a_bad_token_is_answered_twice_and_then_the_connection_ends(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    async with asking(provider.jwks_url) as there:
        one = await there.client()
        token = provider.token(exp=int(time.time()) - 100, iat=1)
        with caplog.at_level(logging.INFO):
            answer = await there.shown(token, one)
        assert (answer.error_code, answer.error_message, answer.auth_bytes) == (0, "", INVALID)
        assert answer.session_lifetime_ms == 0
        assert "by OAUTHBEARER failed: it has ended 10" in caplog.text
        assert token[:20] not in caplog.text
        one.send(request("SaslAuthenticate", 2, auth_bytes=b"\x01"), request("Metadata", 2, topics=[]))
        answer = response("SaslAuthenticate", 2, await one.receive())
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == INVALID.decode()
        assert await one.closed_by_server()


async def test_after_a_bad_token_no_good_one_helps(provider: Provider) -> None:
    async with asking(provider.jwks_url) as there:
        one = await there.client()
        assert (await there.shown(provider.token(sub=None), one)).auth_bytes == INVALID
        assert (await there.shown(provider.token(), one)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await one.closed_by_server()
        two = await there.serving.connect()
        await shake(two, "OAUTHBEARER", 0)
        assert await two.call(first_message("no.such.token", {})) == INVALID
        two.send(b"\x01")
        assert await two.closed_by_server()


async def test_a_request_instead_of_the_last_word_ends_the_connection(provider: Provider) -> None:
    async with asking(provider.jwks_url) as there:
        one = await there.client()
        assert (await there.shown("x.y.z", one)).auth_bytes == INVALID
        one.send(request("Metadata", 2, topics=[]))
        assert await one.closed_by_server()


@pytest.mark.parametrize(
    "message", [b"", b"\x01", b"\0alice\0secret", b"n,,\x01\x01", b"n,,\x01auth=Basic YQ==\x01\x01", b"\xff" * 9000]
)
async def test_what_is_no_message_of_the_mechanism_is_refused_without_a_reason(
    provider: Provider, message: bytes
) -> None:
    async with asking(provider.jwks_url) as there:
        one = await there.client()
        answer = await show(one, message)
        assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, GENERIC)
        assert await one.closed_by_server()


@given(st.binary(max_size=300) | st.binary(max_size=80).map(lambda more: b"n,,\x01auth=Bearer " + more + b"\x01\x01"))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_let_anybody_in(provider: Provider, message: bytes) -> None:
    async def ask() -> None:
        async with asking(provider.jwks_url, have_keys=False) as there:
            one = await there.client()
            answer = await show(one, message)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED or answer.auth_bytes == INVALID
            one.send(request("Metadata", 2, topics=[]))
            assert await one.closed_by_server()

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(ask())


async def test_whom_a_client_wants_to_be_is_whom_its_token_is_about(provider: Provider) -> None:
    async with asking(provider.jwks_url) as there:
        for wanted, code in (("alice", 0), ("admin", ErrorCode.SASL_AUTHENTICATION_FAILED)):
            one = await there.client()
            message = f"n,a={wanted},\x01auth=Bearer {provider.token()}\x01\x01".encode()
            answer = await show(one, message)
            assert answer.error_code == code
        assert "an authorization id (admin) that is different from the token's principal name (alice)" in (
            answer.error_message
        )
        assert await one.closed_by_server()


async def test_a_token_that_is_larger_than_a_frame_may_be_is_not_read(provider: Provider) -> None:
    async with asking(provider.jwks_url) as there:
        fits = await there.shown(provider.token(more="x" * 9000))
        assert fits.error_code == 0
        one = await there.client()
        one.send(request("SaslAuthenticate", 2, auth_bytes=first_message(provider.token(more="x" * 14_000), {})))
        assert await one.closed_by_server()


# -- sessions


async def test_a_session_ends_with_its_token_and_is_renewed_by_another(provider: Provider) -> None:
    async with asking(provider.jwks_url) as there:
        one = await there.client()
        first = await there.shown(provider.token(exp=int(time.time()) + 90), one)
        assert 80_000 < first.session_lifetime_ms <= 90_000
        await shake(one, "OAUTHBEARER")
        second = await there.shown(provider.token(exp=int(time.time()) + 300), one)
        assert 290_000 < second.session_lifetime_ms <= 300_000
        (connection,) = there.serving.server.connections
        session = connection._dispatch
        assert isinstance(session, Authentication)
        assert 200 < session._ends_at_s - asyncio.get_running_loop().time() <= 300
        session._ends_at_s = 0.0
        one.send(request("Metadata", 2, topics=[]))
        assert await one.closed_by_server()


async def test_the_sooner_of_a_tokens_end_and_what_is_configured_counts(provider: Provider) -> None:
    async with asking(provider.jwks_url, reauth_ms=60_000) as there:
        assert (await there.shown(provider.token())).session_lifetime_ms == 60_000
        short = await there.shown(provider.token(exp=int(time.time()) + 20))
        assert 10_000 < short.session_lifetime_ms <= 20_000


async def test_a_token_that_has_just_ended_opens_a_session_that_has_ended(provider: Provider) -> None:
    """As with Apache Kafka: within the clock skew it is accepted, but the session has expired already."""
    async with asking(provider.jwks_url) as there:
        one = await there.client()
        answer = await there.shown(provider.token(exp=int(time.time()) - 5), one)
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
        one.send(request("Metadata", 2, topics=[]))
        assert await one.closed_by_server()


@pytest.mark.parametrize("how", ["as somebody else", "with a bad token"])
async def test_a_session_is_renewed_only_by_who_it_is(provider: Provider, how: str) -> None:
    async with asking(provider.jwks_url) as there:
        one = await there.client()
        await there.shown(provider.token("alice"), one)
        await shake(one, "OAUTHBEARER")
        if how == "as somebody else":
            answer = await there.shown(provider.token("bob"), one)
            assert "Cannot change principals during re-authentication from User.alice: User." in answer.error_message
        else:
            assert (await there.shown(provider.token("alice", aud="other"), one)).auth_bytes == INVALID
            answer = await show(one, b"\x01")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await one.closed_by_server()


# -- keys


async def test_a_key_that_was_published_since_is_asked_for_while_the_client_waits(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_keys, "LEAST_BETWEEN_S", 0.0)
    async with asking(provider.jwks_url) as there:
        provider.keys = {"two": new_key()}
        assert (await there.shown(provider.token(kid="two"))).auth_bytes == b""
        assert len(provider.asked) == 2
        one = await there.serving.connect()
        await shake(one, "OAUTHBEARER", 0)
        provider.keys = {"three": new_key()}
        assert await one.call(first_message(provider.token(kid="three"), {})) == b""
        assert await known_as(one) == "alice"


async def test_keys_that_nobody_knows_do_not_make_a_flood_of_questions(provider: Provider) -> None:
    stranger = new_key()
    async with asking(provider.jwks_url) as there:
        for number in range(20):
            answer = await there.shown(signed(stranger, f"kid-{number}"))
            assert answer.auth_bytes == INVALID
        assert len(provider.asked) == 1
        there.keys._began_at_s -= token_keys.LEAST_BETWEEN_S
        for number in range(20):
            await there.shown(signed(stranger, f"kid-{number}"))
        assert len(provider.asked) == 2


async def test_all_who_wait_for_a_key_wait_for_one_question(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the event loop serves others."""
    monkeypatch.setattr(token_keys, "LEAST_BETWEEN_S", 0.0)
    async with asking(provider.jwks_url) as there:
        known = await there.client()
        await there.shown(provider.token(), known)
        answered = threading.Event()
        provider.before_answer = lambda: answered.wait(20)
        old, provider.keys = provider.keys, {"two": new_key()}
        clients = [await there.client() for _ in range(5)]
        waiting = [asyncio.ensure_future(there.shown(provider.token(kid="two"), each)) for each in clients]
        await until(lambda: len(provider.asked) == 2, "keys are asked for")
        assert await known_as(known) == "alice"
        with_old = await there.shown(signed(old["one"], "one"))
        assert with_old.auth_bytes == b"", "known keys count while new ones are asked for"
        gone = await there.client()
        gone.send(request("SaslAuthenticate", 2, auth_bytes=first_message(provider.token(kid="two"), {})))
        gone.close()
        answered.set()
        assert [(await each).auth_bytes for each in waiting] == [b""] * 5
        assert [await known_as(each) for each in clients] == ["alice"] * 5


async def test_keys_are_asked_for_ever_again_and_one_that_is_gone_counts_no_more(provider: Provider) -> None:
    async with asking(provider.jwks_url, sasl_oauthbearer_jwks_endpoint_refresh_ms="20") as there:
        old = provider.token()
        assert (await there.shown(old)).auth_bytes == b""
        provider.keys = {"two": new_key()}
        await until(lambda: [key.name for key in there.keys.keys] == ["two"], "the keys are new")
        assert (await there.shown(old)).auth_bytes == INVALID


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((500, b"oh\n dear"), "answers 500 Internal Server Error: oh  dear"),
        ((302, b""), "answers 302 Found"),
        ((200, b"no json"), "it is no JSON"),
        ((200, b'{"keys": []}'), "it has no key of RSA"),
        ((200, b" " * (remote.MOST_BYTES + 1)), f"has more than {remote.MOST_BYTES} bytes"),
    ],
)
async def test_what_was_known_counts_while_nothing_better_is_to_be_had(
    provider: Provider, caplog: pytest.LogCaptureFixture, answer: tuple[int, bytes], says: str
) -> None:
    async with asking(provider.jwks_url, sasl_oauthbearer_jwks_endpoint_refresh_ms="20") as there:
        provider.answer = answer
        asked = len(provider.asked)
        await until(lambda: len(provider.asked) > asked + 3, "it is tried again")
        told = [each.message for each in caplog.records if each.levelno == logging.WARNING]
        assert len(told) == 1
        assert "the 1 known before still count" in told[0]
        assert says in told[0]
        assert (await there.shown(provider.token())).auth_bytes == b""
        provider.answer = None
        await until(lambda: "were fetched again" in caplog.text, "the end of it is told, too")


async def test_an_endpoint_that_is_away_at_the_start_is_asked_until_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    key = new_key()
    async with asking(f"http://127.0.0.1:{port}/keys", have_keys=False) as there:
        answer = await there.shown(signed(key))
        assert answer.auth_bytes == INVALID
        assert "no token is accepted until then" in caplog.text
        with Provider(port=port) as late:
            late.keys = {"one": key}
            await until(lambda: there.keys.keys, "there are keys")
            assert (await there.shown(signed(key))).auth_bytes == b""


async def test_who_never_answers_is_given_up(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that waits for its key meanwhile has no more time than others."""
    monkeypatch.setattr(token_keys, "LEAST_BETWEEN_S", 0.0)
    monkeypatch.setattr(secured, "SETTLED_WITHIN_S", 0.3)
    async with asking(provider.jwks_url) as there:
        answered = threading.Event()
        provider.before_answer = lambda: answered.wait(20)
        one = await there.client()
        one.send(request("SaslAuthenticate", 2, auth_bytes=first_message(signed(new_key(), "two"), {})))
        assert await one.closed_by_server()
        answered.set()


async def test_who_waits_for_a_silent_endpoint_is_answered_when_it_is_given_up(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(token_keys, "LEAST_BETWEEN_S", 0.0)
    async with asking(provider.jwks_url) as there:
        monkeypatch.setattr(remote, "GIVEN_UP_S", 0.1)
        answered = threading.Event()
        provider.before_answer = lambda: answered.wait(20)
        try:
            assert (await there.shown(signed(new_key(), "two"))).auth_bytes == INVALID
            assert "does not answer within 0.1 s" in caplog.text
            await until(lambda: "has not answered yet" in caplog.text, "it is not asked twice at once")
            assert (await there.shown(provider.token())).auth_bytes == b""
        finally:
            answered.set()
        await until(lambda: "were fetched again" in caplog.text, "it answers")


async def test_a_file_of_keys_is_read_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_keys, "LOOK_EVERY_S", 0.02)
    file, one, two = tmp_path / "keys.json", new_key(), new_key()
    file.write_text(json.dumps({"keys": [jwk(one, "one")]}))
    async with asking(file.as_uri()) as there:
        assert (await there.shown(signed(one))).auth_bytes == b""
        file.write_text(json.dumps({"keys": [jwk(two, "two")]}))
        assert (await there.shown(signed(two, "two"))).auth_bytes == b"", "who comes with it need not wait"
        await until(lambda: [key.name for key in there.keys.keys] == ["two"], "the old one is gone")
        file.unlink()
        assert (await there.shown(signed(two, "two"))).auth_bytes == b""


async def test_who_publishes_keys_must_be_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    with Provider(certificate=ours.issue("issuer")) as safe:
        for authority, believed in ((ours, True), (other, False)):
            caplog.clear()
            module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
            options = f'ssl.truststore.type=PEM ssl.truststore.location="{authority.ca}"'
            jaas: dict[str, Any] = {"listener.name.open.oauthbearer.sasl.jaas.config": f"{module} required {options};"}
            async with asking(safe.jwks_url, have_keys=believed, **jaas) as there:
                answer = await there.shown(safe.token())
                assert answer.auth_bytes == (b"" if believed else INVALID)
                if not believed:
                    await until(lambda: "certificate verify failed" in caplog.text, "it is told why")


@pytest.mark.parametrize("text", [None, "", "{}"])
async def test_a_file_without_keys_is_told_at_the_start(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "keys.json"
    if text is not None:
        file.write_text(text)
    config = broker_config(
        {
            "node.id": "1",
            "listeners": "PLAINTEXT://a:1,SASL_PLAINTEXT://a:2",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": file.as_uri(),
        }
    )
    with pytest.raises(ConfigError, match=r"Invalid value file:.* for configuration sasl\.oauthbearer\.jwks\.endpoint"):
        security_settings.accesses(config, lambda user, mechanism: None, no_token)


async def test_bad_tokens_of_all_kinds_are_refused_alike(provider: Provider) -> None:
    key = provider.keys["one"]
    bad = [
        "x",
        raw_token({"alg": "none"}, {"sub": "alice"}, b""),
        raw_token({"alg": "HS256", "kid": "one"}, {"sub": "alice"}),
        signed(new_key(), "one"),
        signed(key, iss="other"),
        signed(key, nbf=int(time.time()) + 100),
    ]
    async with asking(provider.jwks_url) as there:
        for token in bad:
            assert (await there.shown(token)).auth_bytes == INVALID
