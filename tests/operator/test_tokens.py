"""How the operator comes by the token with which it goes to a cluster of others."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.identity_provider import CLIENTS, Provider

from ballast_operator import tokens as tokens_module
from ballast_operator.tokens import AGAIN_S, ClientCredentials, TokenError

pytestmark = pytest.mark.spec("OPR-40")


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as running:
        yield running


class Clock:
    """What the module takes for the time; tests let it pass without waiting."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def time(self) -> float:
        return time.time() + self.passed_s

    def monotonic(self) -> float:
        return time.monotonic() + self.passed_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(tokens_module, "time", found)
    return found


def credentials(provider: Provider, secret: str = CLIENTS["node"], ca: str | None = None) -> ClientCredentials:
    return ClientCredentials(provider.token_url, "node", secret, "kafka", ca)


def test_a_token_is_asked_for_once_and_again_when_most_of_its_time_has_gone(provider: Provider, clock: Clock) -> None:
    provider.lifetime_s = 600
    tokens = credentials(provider)
    first = tokens.token()
    assert [tokens.token() for _ in range(3)] == [first] * 3
    assert provider.asked == ["/token"]
    clock.passed_s = 490
    assert tokens.token() != first
    assert len(provider.asked) == 2


def test_the_old_one_is_shown_while_no_newer_one_is_to_be_had(provider: Provider, clock: Clock) -> None:
    provider.lifetime_s = 600
    tokens = credentials(provider)
    first = tokens.token()
    provider.answer = (503, b"<html>down</html>")
    clock.passed_s = 490
    assert tokens.token() == first
    assert (tokens.refusal, len(provider.asked)) == ("", 2)
    clock.passed_s = 601
    with pytest.raises(TokenError, match="answers 503"):
        tokens.token()
    assert tokens.refusal == f"{provider.token_url} answers 503"
    provider.answer, provider.lifetime_s = None, 6000
    clock.passed_s += AGAIN_S
    assert tokens.token() != first
    assert tokens.refusal == ""


def test_one_that_is_refused_is_replaced_at_once_and_the_next_only_after_a_while(provider: Provider) -> None:
    tokens = credentials(provider)
    first = tokens.token()
    tokens._again_at_s = 0.0  # it was had long ago
    tokens.refused(first)
    second = tokens.token()
    assert second != first
    tokens.refused(first)
    assert tokens.token() == second, "it is another one that was refused"
    tokens.refused(second)
    assert tokens.token() == second, "who does not believe it may believe no other one either"
    assert len(provider.asked) == 2
    tokens._again_at_s = 0.0
    provider.answer = (503, b"later")
    assert tokens.token() == second, "while there is no other, it is shown"


def test_equal_ones_are_equal_and_tell_nothing(provider: Provider) -> None:
    """So a connection stays when the Secret is read anew, and ends when it has changed."""
    tokens = credentials(provider)
    tokens.token()
    assert tokens == credentials(provider)
    assert tokens != credentials(provider, "another")
    assert CLIENTS["node"] not in repr(tokens)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (
            401,
            b'{"error":"invalid_client","error_description":"who\\nare you?"}',
            " answers 401: invalid_client: who are",
        ),
        (404, b"the secrets of another server", " answers 404"),
        (404, b'["error"]', " answers 404"),
        (302, b"", " answers 302"),
        (200, b'{"id_token":"x"}', "has no access_token"),
        (200, b"[" * 100_000, "has no access_token"),
        (200, b'{"access_token":"opaque"}', "no JWT with an end"),
        (200, b'{"access_token":"a.e30.b"}', "no JWT with an end"),
        (200, b'{"access_token":"a.eyJleHAiOjF9.b"}', "has ended already"),
        (200, b'{"access_token":"a\\u0001.eyJleHAiOjk5OTk5OTk5OTk5fQ.b"}', "no JWT with an end"),
        (200, b"x" * 2_000_000, "too long"),
    ],
)
def test_why_there_is_none_is_told(provider: Provider, status: int, body: bytes, says: str) -> None:
    provider.answer = (status, body)
    tokens = credentials(provider)
    with pytest.raises(TokenError) as refused:
        tokens.token()
    assert str(refused.value).endswith(says) or says in str(refused.value)
    assert "secrets of another" not in str(refused.value)
    with pytest.raises(TokenError):
        tokens.token()
    assert len(provider.asked) == 1, "not asked again at once"


def test_the_endpoint_is_believed_by_its_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with Provider(authority.issue("issuer")) as provider:
        assert credentials(provider, ca=authority.ca.read_text()).token().count(".") == 2
        with pytest.raises(TokenError, match="the certificate is not believed"):
            credentials(provider).token()
        with pytest.raises(TokenError, match=r"^https://127\.0\.0\.1"):
            credentials(provider, ca="no certificate").token()


def test_nobody_there() -> None:
    with pytest.raises(TokenError, match=r"http://127\.0\.0\.1:9/token: Connection refused"):
        ClientCredentials("http://127.0.0.1:9/token", "a", "b").token()


@pytest.mark.parametrize("begins", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["headers", "body"])
def test_a_provider_that_says_a_little_again_and_again_holds_nobody_up(
    begins: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "WITHIN_S", 0.3)
    over = threading.Event()

    def talk(listening: socket.socket) -> None:
        with listening.accept()[0] as client, suppress(ConnectionError):
            client.sendall(begins)
            while not over.wait(0.02):
                client.sendall(b"X: y\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        talking = threading.Thread(target=talk, args=(listening,), daemon=True)
        talking.start()
        began = time.monotonic()
        uri = f"http://127.0.0.1:{listening.getsockname()[1]}/token"
        with pytest.raises(TokenError) as failed:
            ClientCredentials(uri, "a", "b").token()
        took_s = time.monotonic() - began
        over.set()
        talking.join(5)
    assert str(failed.value) == f"{uri}: timed out"
    assert took_s < 5
