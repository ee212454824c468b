"""What Apache Kafka and Ballast answer to the same tokens, good and bad, over SASL OAUTHBEARER (CLI-06, CLI-10)."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
from tests.contract.nodes import Node, both
from tests.contract.wire import WireClient
from tests.identity_provider import AUDIENCE, CURVES, ISSUER, claims, jwk, new_key, raw_token, signed

from ballast_broker.security.oauthbearer import first_message
from ballast_wire.messages import message

PACKAGE = "org.apache.kafka.common.security.oauthbearer."
OF_LISTENER = "listener.name.plaintext.oauthbearer."
KEY, OTHER, OF_CURVES = new_key(), new_key(), {name: new_key(name) for name in CURVES}
SECRET = b"a secret of 64 bytes that stands in the set of keys, for all to see"
NEAR_MS = 5000
AFTER_FAILURE = b"\x01"


class Said(NamedTuple):
    error_code: int
    error_message: str | None
    auth_bytes: bytes
    lifetime_ms: int

    def is_like(self, other: Said) -> bool:
        return self[:3] == other[:3] and abs(self.lifetime_ms - other.lifetime_ms) < NEAR_MS


CLOSED = Said(-1, None, b"", 0)


def properties(folder: Path) -> dict[str, str]:
    """Equal ones, the same file for both: the brokers' own way in is by a token as well."""
    keys = [jwk(KEY, "one"), *(jwk(key, name) for name, key in OF_CURVES.items())]
    keys.append(json.loads(jwt.algorithms.HMACAlgorithm.to_jwk(SECRET)) | {"kid": "secret"})
    (folder / "keys.json").write_text(json.dumps({"keys": keys}))
    (folder / "token").write_text(signed(KEY, sub="node", exp=int(time.time()) + 36_000))
    return {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "keys.json").as_uri(),
        "sasl.oauthbearer.token.endpoint.url": (folder / "token").as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        f"{OF_LISTENER}connections.max.reauth.ms": "100000",
        f"{OF_LISTENER}sasl.server.callback.handler.class": f"{PACKAGE}OAuthBearerValidatorCallbackHandler",
        # Without it, or only said of the mechanism, Apache Kafka 4.1.1 looks at no signature, and at little else.
        "sasl.oauthbearer.jwt.validator.class": f"{PACKAGE}BrokerJwtValidator",
        f"{OF_LISTENER}sasl.login.callback.handler.class": f"{PACKAGE}OAuthBearerLoginCallbackHandler",
        f"{OF_LISTENER}sasl.jaas.config": f"{PACKAGE}OAuthBearerLoginModule required;",
    }


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    folder = tmp_path_factory.mktemp("tokens")
    allowed = f"{(folder / 'keys.json').as_uri()},{(folder / 'token').as_uri()}"
    with contextlib.ExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("JDK_JAVA_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={allowed}")
        yield stack.enter_context(both(folder, properties(folder)))


def exchange(node: Node, first: bytes, second: bytes = AFTER_FAILURE) -> list[Said]:
    """What is answered to the one, and where that was not the end to the other."""
    with contextlib.closing(WireClient("localhost", node.port)) as client:
        shaken = client.call(message("SaslHandshakeRequest")(mechanism="OAUTHBEARER"), 1)
        assert (shaken.error_code, shaken.mechanisms) == (0, ["OAUTHBEARER"])
        found = [_said(client, first)]
        if found[0].auth_bytes:
            found.append(_said(client, second))
        if found[-1] != CLOSED and found[-1].error_code:
            with pytest.raises(ConnectionError):
                client.call(message("MetadataRequest")(topics=[]), 1)
        elif found[-1].lifetime_ms:
            client.call(message("MetadataRequest")(topics=[]), 1)
        return found


def _said(client: WireClient, text: bytes) -> Said:
    try:
        answer = client.call(message("SaslAuthenticateRequest")(auth_bytes=text), 2)
    except ConnectionError:
        return CLOSED
    return Said(answer.error_code, answer.error_message, bytes(answer.auth_bytes), answer.session_lifetime_ms)


def tokens() -> dict[str, str]:
    now = int(time.time())
    return {
        "good": signed(KEY),
        "that ends soon": signed(KEY, exp=now + 50),
        "within the skew": signed(KEY, exp=now - 10),
        "ended": signed(KEY, exp=now - 40),
        "not begun": signed(KEY, nbf=now + 60),
        "about to begin": signed(KEY, nbf=now + 15),
        "issued in the future": signed(KEY, iat=now + 300),
        "without exp": signed(KEY, exp=None),
        "without iat": signed(KEY, iat=None),
        "exp is a text": signed(KEY, exp="x"),
        "exp with a fraction": signed(KEY, exp=now + 60.75),
        "of another issuer": signed(KEY, iss="https://other.example"),
        "without issuer": signed(KEY, iss=None),
        "for others": signed(KEY, aud="other"),
        "for others and us": signed(KEY, aud=["other", AUDIENCE]),
        "for nobody": signed(KEY, aud=None),
        "without sub": signed(KEY, sub=None),
        "sub is empty": signed(KEY, sub=" "),
        "sub is a number": jwt.PyJWS().encode(json.dumps(claims() | {"sub": 5}).encode(), KEY, "RS256", {"kid": "one"}),
        "scopes": signed(KEY, scope=["a", "b"]),
        "scope twice": signed(KEY, scope=["a", "a"]),
        "scope is empty": signed(KEY, scope=""),
        "scope is an object": signed(KEY, scope={"a": 1}),
        "without scope": signed(KEY, scope=None),
        "by another key": signed(OTHER, "one"),
        "by a key that nobody knows": signed(OTHER, "two"),
        "HS256 with a public secret": signed(SECRET, "one", "HS256"),  # type: ignore[arg-type]
        "none": raw_token({"alg": "none", "kid": "one"}, claims(), b""),
        "of four parts": signed(KEY) + ".x",
        "no token": "x",
        "no json": raw_token(b"x", b"y"),
        "no claims": jwt.PyJWS().encode(b"[]", KEY, "RS256", {"kid": "one"}),
        "critical": jwt.encode(claims(), KEY, "RS256", headers={"kid": "one", "crit": ["x"], "x": 1}),
        **{f"{name}": signed(KEY, "one", name) for name in ("RS384", "RS512", "PS256", "PS384", "PS512")},
        **{name: signed(key, name, name) for name, key in OF_CURVES.items()},
        "of a curve with another's name": signed(OF_CURVES["ES256"], "ES384", "ES256"),
    }


@pytest.mark.java
@pytest.mark.timeout(180)
@pytest.mark.spec("CLI-06", "CLI-10")
def test_tokens_count_as_with_apache_kafka(nodes: tuple[Node, Node]) -> None:
    kafka, ballast = nodes
    counted = 0
    different: list[tuple[str, list[Said], list[Said]]] = []
    for name, token in tokens().items():
        theirs, ours = (exchange(node, first_message(token, {"tenant": "shop"})) for node in (kafka, ballast))
        if len(theirs) != len(ours) or not all(map(Said.is_like, theirs, ours)):
            different.append((name, theirs, ours))
        counted += not ours[-1].error_code
    assert not different, "\n".join(map(str, different))
    assert counted >= 15


@pytest.mark.java
@pytest.mark.timeout(180)
@pytest.mark.spec("CLI-06", "CLI-10")
def test_messages_are_answered_as_by_apache_kafka(nodes: tuple[Node, Node]) -> None:
    token = signed(KEY).encode()
    messages = [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer " + token + b"\x01",
        b"y,,\x01auth=Bearer " + token + b"\x01\x01",
        b"n,a=alice,\x01auth=Bearer " + token + b"\x01\x01",
        b"n,a=bob,\x01auth=Bearer " + token + b"\x01\x01",
        b"n,,\x01auth=bearer   " + token + b"\x01\x01",
        b"n,,\x01auth=" + token + b"\x01\x01",
        b"n,,\x01host=localhost\x01port=9092\x01auth=Bearer " + token + b"\x01\x01",
        b"n,,\x01host=\x01auth=Bearer " + token + b"\x01\x01",
        b"\0alice\0secret",
    ]
    different = [
        (each[:30], *found)
        for each in messages
        if not all(map(Said.is_like, *(found := [exchange(node, each) for node in nodes])))
    ]
    assert not different


@pytest.mark.java
@pytest.mark.timeout(180)
@pytest.mark.spec("CLI-06", "CLI-10")
def test_sessions_are_renewed_as_with_apache_kafka(nodes: tuple[Node, Node]) -> None:
    found: list[list[Any]] = []
    for node in nodes:
        said: list[Any] = []
        for user in ("alice", "bob"):
            with contextlib.closing(WireClient("localhost", node.port)) as client:
                for name in ("alice", user):
                    client.call(message("SaslHandshakeRequest")(mechanism="OAUTHBEARER"), 1)
                    answer = _said(client, first_message(signed(KEY, sub=name), {}))
                    said.append((answer.error_code, answer.auth_bytes, answer.lifetime_ms))
        found.append(said)
    assert found[0] == found[1]
