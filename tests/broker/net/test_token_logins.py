"""Logins with delegation tokens over SCRAM: as which principal, for how long, and which are refused."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from tests.broker.net.serving import Serving
from tests.broker.net.test_sasl import known_as, request, say, shake
from tests.contract.logins import TokenClient

from ballast_broker import token_logins
from ballast_broker.metadata.delegation_tokens import DelegationToken
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from ballast_broker.net.sasl import SaslListener
from ballast_broker.net.secured import Access
from ballast_broker.net_reply import Peer, Principal, Reply
from ballast_broker.security.delegation import hmac_of
from ballast_broker.security.scram import HASHES, Credential, ScramClient, ScramError, ScramServer
from ballast_broker.token_logins import MOST_FOUND, TokenLogins
from ballast_wire.errors import ErrorCode
from ballast_wire.headers import frame_response, parse_request_header
from ballast_wire.messages import message

pytestmark = pytest.mark.spec("CLI-13")

SECRET = b"of this cluster"
NOW_MS, MINUTE_MS = 1_700_000_000_000, 60_000
TOKEN = DelegationToken("one", "User:ann", "User:bob", (), NOW_MS, NOW_MS + 10 * MINUTE_MS, NOW_MS + MINUTE_MS)
MECHANISM = "SCRAM-SHA-256"


def image_of(*tokens: DelegationToken) -> MetadataImage:
    delta = MetadataDelta(EMPTY_IMAGE)
    for each in tokens:
        delta.replay(each.record())
    return delta.apply()


class Logins:
    """A listener that knows some tokens, with a clock that the test sets; nobody has a password."""

    def __init__(self, *tokens: DelegationToken, **how: Any) -> None:
        self.now_ms = NOW_MS
        self.image = image_of(*tokens)
        self.logins = TokenLogins(SECRET, lambda: self.image, lambda: self.now_ms)
        self.seen: list[Principal] = []
        listener = SaslListener(
            tuple(HASHES), {}, lambda user, mechanism: None, find_token=self.logins.find, failure_delay_s=0.0, **how
        )
        self.serving = Serving(self._who, access=Access(sasl=listener))

    def _who(self, peer: Peer, frame: memoryview) -> Reply:
        self.seen.append(peer.principal)
        kind = message("MetadataResponse")
        answer = kind(version=2, brokers=[], cluster_id=peer.principal.name, controller_id=1, topics=[])
        return frame_response(3, parse_request_header(frame).correlation_id, answer.encode(version=2), flexible=False)


def shown(token_id: str, mechanism: str = MECHANISM, secret: bytes = SECRET, **how: Any) -> TokenClient:
    return TokenClient(mechanism, token_id, base64.b64encode(hmac_of(secret, token_id)).decode(), **how)


async def log_in(one: Any, client: ScramClient, mechanism: str = MECHANISM) -> Any:
    """The last response; ScramError if the server does not prove that it knows the secret."""
    await shake(one, mechanism)
    asked = await say(one, "SaslAuthenticate", 2, auth_bytes=client.first())
    answer = await say(one, "SaslAuthenticate", 2, auth_bytes=client.final(bytes(asked.auth_bytes)))
    if not answer.error_code:
        client.check(bytes(answer.auth_bytes))
    return answer


@pytest.mark.parametrize("mechanism", sorted(HASHES))
async def test_who_shows_a_token_is_its_owner_until_it_ends(mechanism: str) -> None:
    logins = Logins(TOKEN)
    logins.now_ms += 20_000
    async with logins.serving as serving:
        one = await serving.connect()
        answer = await log_in(one, shown("one", mechanism), mechanism)
        assert (answer.error_code, answer.session_lifetime_ms) == (ErrorCode.NONE, 40_000)
        assert await known_as(one) == "ann"
        assert logins.seen == [Principal(name="ann", by_token=True)]


async def test_a_session_is_as_short_as_the_listener_says_or_the_token() -> None:
    logins = Logins(TOKEN, max_reauth_ms=30_000)
    async with logins.serving as serving:
        one = await serving.connect()
        assert (await log_in(one, shown("one"))).session_lifetime_ms == 30_000
        logins.now_ms += 50_000
        assert (await log_in(one, shown("one"))).session_lifetime_ms == 10_000


async def test_a_session_ends_with_its_token_and_a_renewed_one_renews_it() -> None:
    logins = Logins(TOKEN._replace(expires_ms=NOW_MS + 150))
    async with logins.serving as serving:
        one, other = await serving.connect(), await serving.connect()
        for each in (one, other):
            assert (await log_in(each, shown("one"))).session_lifetime_ms == 150
        logins.image = image_of(TOKEN)
        assert (await log_in(other, shown("one"))).session_lifetime_ms == MINUTE_MS
        await asyncio.sleep(0.2)
        one.send(request("Metadata", 2, topics=[]))
        assert await one.closed_by_server()
        assert await known_as(other) == "ann"


@pytest.mark.parametrize(
    "client",
    [
        shown("two"),
        shown("one", secret=b"other"),
        shown("one", extensions="tokenauth=false"),
        shown("one", extensions="other=true"),
        ScramClient(MECHANISM, "one", base64.b64encode(hmac_of(SECRET, "one")).decode(), "as-a-user"),
    ],
)
async def test_who_does_not_show_a_token_does_not_come_in(client: ScramClient) -> None:
    async with Logins(TOKEN).serving as serving:
        one = await serving.connect()
        answer = await log_in(one, client)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "invalid credentials" in answer.error_message
        assert await one.closed_by_server()


async def test_what_is_over_lets_nobody_in(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    logins = Logins(TOKEN)
    logins.now_ms += MINUTE_MS
    async with logins.serving as serving:
        one = await serving.connect()
        assert (await log_in(one, shown("one"))).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await one.closed_by_server()
    assert "the delegation token has expired" in caplog.text
    assert base64.b64encode(hmac_of(SECRET, "one")).decode() not in caplog.text


async def test_a_removed_token_lets_nobody_in_though_it_was_found_before() -> None:
    logins = Logins(TOKEN)
    async with logins.serving as serving:
        assert not (await log_in(await serving.connect(), shown("one"))).error_code
        logins.image = EMPTY_IMAGE
        assert (await log_in(await serving.connect(), shown("one"))).error_code


async def test_one_that_there_is_not_is_asked_for_like_any_other() -> None:
    """Its salt is always the same as well, even if a token appears or disappears meanwhile."""
    logins = Logins(TOKEN)
    salts = set()
    async with logins.serving as serving:
        for logins.image in (EMPTY_IMAGE, image_of(TOKEN), EMPTY_IMAGE):
            one = await serving.connect()
            await shake(one, MECHANISM)
            asked = await say(one, "SaslAuthenticate", 2, auth_bytes=shown("one").first())
            assert asked.error_code == ErrorCode.NONE
            salts.add(bytes(asked.auth_bytes).split(b",", 1)[1])
    assert len(salts) == 1


def test_what_is_kept_of_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def noted(_secret: bytes, token_id: str, _mechanism: str, salt: bytes) -> Credential:
        made.append(token_id)
        return Credential(salt, 1, b"", b"")

    monkeypatch.setattr(token_logins, "token_credential", noted)
    tokens = [TOKEN._replace(id=str(each)) for each in range(MOST_FOUND + 1)]
    logins = TokenLogins(SECRET, lambda: image_of_all, lambda: NOW_MS)
    image_of_all = image_of(*tokens)
    for _ in range(2):
        logins.find("5", MECHANISM, b"salt")
    assert made == ["5"]
    for each in tokens:
        logins.find(each.id, MECHANISM, b"salt")
    assert len(logins._found) == MOST_FOUND


def test_an_extension_without_a_value_is_no_message() -> None:
    for extensions in ("tokenauth", "tokenauth=", "t1=x", "=true"):
        server = ScramServer(MECHANISM, lambda user: None, "nonce", b"")
        with pytest.raises(ScramError, match="first message format"):
            server.step(f"n,,n=one,r=abc,{extensions}".encode())
