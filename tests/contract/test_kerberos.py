"""What Apache Kafka and Ballast answer in the same exchanges of SASL GSSAPI, good and bad (CLI-06, CLI-12)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests import kdc as kerberos
from tests.contract.nodes import Node, both
from tests.contract.wire import WireClient
from tests.kdc import REALM, Kdc, context, login_module

from ballast_wire.messages import message

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.spec("CLI-06", "CLI-12")]
SKEW_S = 8
RULES = rf"RULE:[1:$1@$0](alice@{REALM})s/@.*//U,RULE:[1:$1@$0](dora@.*),RULE:[2:$1]"
OFFER = b"\x01\x01\x00\x00"


class Said(NamedTuple):
    error_code: int
    error_message: str | None
    has_bytes: bool
    lifetime_ms: int


CLOSED = Said(-1, None, False, 0)
REFUSED = Said(
    58,
    "Authentication failed during authentication due to invalid credentials with SASL mechanism GSSAPI",
    False,
    0,
)


class There(NamedTuple):
    kdc: Kdc
    keytabs: dict[str, Path]
    nodes: tuple[Node, Node]

    def context(self, user: str) -> Any:
        return context(user, self.keytabs[user])


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    folder = tmp_path_factory.mktemp("kerberos")
    with contextlib.ExitStack() as stack:
        kdc = stack.enter_context(kerberos.running(folder / "kdc", skew_s=SKEW_S))
        keytabs = {user: kdc.keytab(user) for user in ("alice", "bob/host", "carol", "dora", "kafka/localhost")}
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in kdc.environment.items():
            environment.setenv(name, value)
        environment.setenv("JDK_JAVA_OPTIONS", " ".join(kdc.java))
        module = login_module("kafka/localhost", keytabs["kafka/localhost"])
        properties = {
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "GSSAPI",
            "sasl.mechanism.inter.broker.protocol": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "listener.name.plaintext.sasl.kerberos.principal.to.local.rules": RULES,
            "listener.name.plaintext.gssapi.connections.max.reauth.ms": "100000",
            "listener.name.plaintext.gssapi.sasl.jaas.config": module,
        }
        yield There(kdc, keytabs, stack.enter_context(both(folder, properties)))


class Exchange:
    """One connection; `said` is what was answered."""

    def __init__(self, client: WireClient, port: int) -> None:
        self._client = client
        self.port = port
        self.said: list[Said] = []

    def begin(self) -> None:
        shaken = self._client.call(message("SaslHandshakeRequest")(mechanism="GSSAPI"), 1)
        assert (shaken.error_code, shaken.mechanisms) == (0, ["GSSAPI"])

    def say(self, token: bytes) -> bytes:
        try:
            answer = self._client.call(message("SaslAuthenticateRequest")(auth_bytes=token), 2)
        except ConnectionError:
            self.said.append(CLOSED)
            return b""
        found = bytes(answer.auth_bytes)
        lifetime_ms = round(answer.session_lifetime_ms, -4)
        self.said.append(Said(answer.error_code, answer.error_message or None, bool(found), lifetime_ms))
        return found

    def offered(self, own: Any) -> bytes:
        """The server's last message but one, which it has wrapped."""
        found: bytes = own.unwrap(self.say(own.step(self.say(own.step())) or b"")).message
        return found

    def whole(self, own: Any, chosen: bytes = b"\x01\x00\x00\x00") -> None:
        assert self.offered(own) == OFFER
        self.say(own.wrap(chosen, False).message)

    def asks(self) -> None:
        try:
            self._client.call(message("MetadataRequest")(topics=[]), 1)
            self.said.append(Said(0, "answered", True, 0))
        except ConnectionError:
            self.said.append(CLOSED)


Case = Callable[[There, Exchange], None]


def garbage(_: There, exchange: Exchange) -> None:
    exchange.say(b"\x60garbage")


def nothing(_: There, exchange: Exchange) -> None:
    exchange.say(b"")


def right(there: There, exchange: Exchange) -> None:
    exchange.whole(there.context("alice"))
    exchange.asks()


def right_with_two_parts(there: There, exchange: Exchange) -> None:
    exchange.whole(there.context("bob/host"))
    exchange.asks()


def as_somebody_else(there: There, exchange: Exchange) -> None:
    exchange.whole(there.context("alice"), b"\x01\x00\x00\x00bob")
    exchange.asks()


def larger_than_offered(there: There, exchange: Exchange) -> None:
    exchange.whole(there.context("alice"), b"\x01\xff\xff\xff")
    exchange.asks()


def a_layer_that_is_not_offered(there: There, exchange: Exchange) -> None:
    exchange.whole(there.context("alice"), b"\x04\x00\x00\x00")


def no_layer_at_all(there: There, exchange: Exchange) -> None:
    exchange.whole(there.context("alice"), b"\x00\x00\x00\x00")


def not_wrapped(there: There, exchange: Exchange) -> None:
    own = there.context("alice")
    exchange.offered(own)
    exchange.say(b"\x01\x00\x00\x00")


def words_before_the_offer(there: There, exchange: Exchange) -> None:
    own = there.context("alice")
    own.step(exchange.say(own.step()))
    exchange.say(b"hello")


def of_another_rule(there: There, exchange: Exchange) -> None:
    exchange.whole(there.context("carol"))
    exchange.asks()


def with_a_name_that_is_none(there: There, exchange: Exchange) -> None:
    exchange.whole(there.context("dora"))
    exchange.asks()


def too_late(there: There, exchange: Exchange) -> None:
    token = there.context("alice").step()
    time.sleep(SKEW_S + 1.5)  # a clock that is behind is no other thing
    exchange.say(token)


def seen_before(there: There, exchange: Exchange) -> None:
    token = there.context("alice").step()
    with contextlib.closing(WireClient("localhost", exchange.port)) as client:
        before = Exchange(client, exchange.port)
        before.begin()
        before.say(token)
        assert before.said[0].error_code == 0
        exchange.say(token)


def renewed(there: There, exchange: Exchange) -> None:
    exchange.whole(there.context("alice"))
    exchange.begin()
    exchange.whole(there.context("alice"))
    exchange.asks()


def renewed_as_another(there: There, exchange: Exchange) -> None:
    exchange.whole(there.context("alice"))
    exchange.begin()
    exchange.whole(there.context("bob/host"))


NAMELESS = (of_another_rule, with_a_name_that_is_none)
CASES = (
    garbage, nothing, right, right_with_two_parts, as_somebody_else, larger_than_offered, a_layer_that_is_not_offered,
    no_layer_at_all, not_wrapped, words_before_the_offer, of_another_rule, with_a_name_that_is_none, too_late,
    seen_before, renewed, renewed_as_another,
)  # fmt: skip


def answers(there: There, node: Node, case: Case) -> list[Said]:
    with contextlib.closing(WireClient("localhost", node.port)) as client:
        exchange = Exchange(client, node.port)
        exchange.begin()
        case(there, exchange)
        return exchange.said


def test_exchanges_are_answered_as_by_apache_kafka(there: There) -> None:
    different = []
    for case in CASES:
        theirs, ours = (answers(there, node, case) for node in there.nodes)
        if case in NAMELESS:
            # Apache Kafka has let him in before it looks for his name, and cuts him off without a word.
            assert (theirs[-2:], ours[-2:]) == ([Said(0, None, False, 100_000), CLOSED], [REFUSED, CLOSED])
            theirs, ours = theirs[:-2], ours[:-2]
        if theirs != ours:
            different.append((case.__name__, theirs, ours))
    assert not different, "\n".join(map(str, different))
