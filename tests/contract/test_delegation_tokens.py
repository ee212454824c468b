"""Delegation tokens asked for, used and ended, at Apache Kafka and at Ballast, and one that changes from the one to the
other with its directory (CLI-10, CLI-13)."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.contract.compare import check_corpus
from tests.contract.logins import PASSWORD, LoginFailed, TokenClient, log_in, log_in_by
from tests.contract.nodes import Ballast, Kafka, Node, both
from tests.contract.wire import WireClient

from ballast_broker.security.scram import HASHES, ScramClient
from ballast_wire.messages import message

pytestmark = [pytest.mark.java, pytest.mark.timeout(240), pytest.mark.spec("CLI-10", "CLI-13")]

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
USERS = " ".join(f'user_{user}="{PASSWORD}"' for user in ("admin", "alice", "bob", "carol", "dave", "erin"))
LOGIN = f'{PLAIN} required username="admin" password="{PASSWORD}" {USERS};'
SECRET = "of all nodes"
PROPERTIES = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
    **{f"listener.name.{each}.plain.sasl.jaas.config": LOGIN for each in ("plaintext", "controller")},
    **{f"listener.name.plaintext.{each.lower()}.sasl.jaas.config": f"{SCRAM} required;" for each in HASHES},
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
    "delegation.token.secret.key": SECRET,
    "delegation.token.max.lifetime.ms": "36000000",
    "delegation.token.expiry.time.ms": "18000000",
}
CORPUS = "corpus_tokens"
TEN_MINUTES_MS = 600_000


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    with both(tmp_path_factory.mktemp("tokens"), PROPERTIES) as found:
        yield found


def test_asked_for_and_answered_as_by_apache_kafka(nodes: tuple[Node, Node]) -> None:
    check_corpus(nodes, CORPUS)


def made(node: Node, user: str = "alice", lifetime_ms: int = -1) -> tuple[str, str]:
    """A token's id, and its HMAC as it is shown."""
    with contextlib.closing(WireClient("localhost", node.port)) as client:
        log_in(client, user)
        request = message("CreateDelegationTokenRequest")(renewers=[], max_lifetime_ms=lifetime_ms)
        answer = client.call(request, 3)
    assert answer.error_code == 0
    time.sleep(0.5)  # Apache Kafka's nodes learn late of what their controller has answered
    return answer.token_id, base64.b64encode(bytes(answer.hmac)).decode()


def said(node: Node, mechanism: str, scram: ScramClient) -> list[Any]:
    """What is told of a login by this, and whether the connection may be used."""
    with contextlib.closing(WireClient("localhost", node.port)) as client:
        try:
            lifetime_ms = log_in_by(client, mechanism, scram).session_lifetime_ms
        except LoginFailed as failed:
            return [str(failed)]
        answer = client.call(message("MetadataRequest")(topics=[]), 1)
        return [round(lifetime_ms / TEN_MINUTES_MS), len(answer.brokers)]


@pytest.mark.parametrize("mechanism", sorted(HASHES))
def test_a_token_is_shown_as_to_apache_kafka(nodes: tuple[Node, Node], mechanism: str) -> None:
    tokens = [made(node) for node in nodes]
    for change in (
        {},
        {"extensions": "tokenauth=TRUE"},
        {"extensions": "tokenauth=false"},
        {"extensions": "tokenauth"},
        {"extensions": "tokenauth=true,tokenauth=false"},
        {"extensions": "t1=x,tokenauth=true"},
    ):
        shown = [TokenClient(mechanism, *token, **change) for token in tokens]
        theirs, ours = (said(node, mechanism, each) for node, each in zip(nodes, shown, strict=True))
        assert theirs == ours, change
    others: tuple[Sequence[ScramClient], ...] = (
        [TokenClient(mechanism, "none", token[1]) for token in tokens],
        [TokenClient(mechanism, token[0], "other") for token in tokens],
        [ScramClient(mechanism, *token, "as-a-user") for token in tokens],
    )
    for clients in others:
        theirs, ours = (said(node, mechanism, each) for node, each in zip(nodes, clients, strict=True))
        assert theirs == ours
        assert "invalid credentials" in theirs[0]


def test_a_session_ends_with_its_token(nodes: tuple[Node, Node]) -> None:
    """Later, Apache Kafka takes a token that is over until it is removed, for no time at all; here it is refused."""
    for node in nodes:
        token = made(node, lifetime_ms=10_000)
        with contextlib.closing(WireClient("localhost", node.port)) as client:
            answer = log_in_by(client, "SCRAM-SHA-256", TokenClient("SCRAM-SHA-256", *token))
            assert 0 < answer.session_lifetime_ms <= 10_000
            client.call(message("MetadataRequest")(topics=[]), 1)
            time.sleep(answer.session_lifetime_ms / 1000 + 0.5)
            with pytest.raises(ConnectionError):
                client.call(message("MetadataRequest")(topics=[]), 1)
        with contextlib.closing(WireClient("localhost", node.port)) as client:
            if isinstance(node, Ballast):
                with pytest.raises(LoginFailed, match="invalid credentials"):
                    log_in_by(client, "SCRAM-SHA-256", TokenClient("SCRAM-SHA-256", *token))
            else:
                late = log_in_by(client, "SCRAM-SHA-256", TokenClient("SCRAM-SHA-256", *token))
                assert late.session_lifetime_ms == 0


def test_a_token_goes_on_counting_when_its_cluster_changes_hands(tmp_path: Path) -> None:
    node: Node = Kafka(tmp_path / "taken", PROPERTIES)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: node.stop())
        node.await_ready()
        tokens = [made(node)]
        for kind in (Ballast, Kafka):
            node = node.succeeded_by(kind)
            node.await_ready()
            for number, token in enumerate(tokens):
                mechanism = sorted(HASHES)[number]
                assert isinstance(said(node, mechanism, TokenClient(mechanism, *token))[0], int), kind
            tokens.append(made(node, "bob"))
