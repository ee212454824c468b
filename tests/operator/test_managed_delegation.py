"""Delegation tokens of a cluster that the operator runs: their secret, who can read it, and another one."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator

import pytest
from tests.contract.logins import LoginFailed, TokenClient, log_in_by
from tests.contract.wire import WireClient
from tests.operator.test_managed_secured import LISTENERS, RIGHTS, SUBJECT, Secured, make_user, producing

from ballast_broker.security.scram import ScramClient
from ballast_operator.apply.kubernetes import path_of
from ballast_wire.messages import message

pytestmark = [pytest.mark.timeout(240), pytest.mark.spec("OPR-40", "CLI-13")]
MECHANISM = "SCRAM-SHA-512"
FIRST, SECOND = "nobody-is-to-read-this-secret-one", "nobody-is-to-read-this-secret-two"
PLAIN_SCRAM = {"name": "CLIENTS", "port": 9092, "authentication": {"type": MECHANISM}}
Token = tuple[str, str]


class WithDelegation(Secured):
    """Users at a listener without TLS, for the plainest client there is; an admin by certificate at another."""

    def make_tokens_of(self, secret: str) -> None:
        data = {"secretKey": base64.b64encode(secret.encode()).decode()}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "demo-tokens"}, "data": data}
        self.api("apply", path_of("v1", "secrets", "default", "demo-tokens"), body)

    def token(self, broker: int) -> Token:
        """A new one of alice's, which all brokers know."""
        with contextlib.closing(WireClient(self.hosts[broker], 9092)) as client:
            log_in_by(client, MECHANISM, ScramClient(MECHANISM, "alice", "wonder", "of-alice"))
            answer = client.call(message("CreateDelegationTokenRequest")(renewers=[], max_lifetime_ms=-1), 3)
        assert answer.error_code == 0
        token = (answer.token_id, base64.b64encode(bytes(answer.hmac)).decode())
        self.until("brokers let the token in", lambda: all(self.lets_in(token)))
        return token

    def lets_in(self, token: Token) -> list[bool]:
        return [self._lets_in(host, token) for host in self.hosts]

    def _lets_in(self, host: str, token: Token) -> bool:
        with contextlib.closing(WireClient(host, 9092)) as client:
            try:
                log_in_by(client, MECHANISM, TokenClient(MECHANISM, *token))
            except LoginFailed:
                return False
            return True


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithDelegation]:
    """Tokens come to a cluster that runs; their Secret when it is missed."""
    listeners = [PLAIN_SCRAM, LISTENERS[1]]
    with WithDelegation(tmp_path_factory.mktemp("delegation")) as found:
        found.secret("demo-clients", found.outside)
        found.secret("demo-internal", found.inside, SUBJECT)
        found.declare(listeners=listeners, security=RIGHTS)
        found.until_ready("KafkaCluster", "demo", 90)
        make_user(found)
        before = found.pods()
        tokens = {"delegationTokens": {"secretName": "demo-tokens"}}
        found.declare(listeners=listeners, security={**RIGHTS, **tokens})
        assert "Secret demo-tokens does not exist" in found.until_reason("KafkaCluster", "demo", "SecretNotFound")
        found.make_tokens_of("short")
        said = found.until_reason("KafkaCluster", "demo", "SecretUnusable")
        assert "secretKey has 5 characters, which are to be 32 at least" in said
        assert found.pods() == before
        found.make_tokens_of(FIRST)
        found.until_new(before, 120)
        found.until_ready("KafkaCluster", "demo", 60)
        yield found


def test_a_token_is_made_at_one_broker_and_shown_at_all(world: WithDelegation) -> None:
    assert world.lets_in(world.token(0)) == [True] * 3
    assert world.lets_in(("nobody", "guessed")) == [False] * 3


def test_only_the_secret_and_the_broker_have_it(world: WithDelegation) -> None:
    told = [
        world.objects(version, plural)
        for version, plural in (("v1", "configmaps"), ("v1", "pods"), ("apps/v1", "statefulsets"), ("v1", "events"))
    ]
    seen = json.dumps([*told, world.list("KafkaCluster")])
    assert "${secret:/etc/ballast-tls/tls-1-delegation:secretKey}" in seen
    logs = [path for part in ("pods", "volumes") for path in (world.data / part).rglob("*.log")]
    assert any(path.parent.name == "__cluster_metadata-0" for path in logs)
    for form in (FIRST, base64.b64encode(FIRST.encode()).decode()):
        assert form not in seen
        assert form not in world.operator_log
        assert [path for path in logs if form.encode() in path.read_bytes()] == []


@pytest.mark.spec("OPR-44")
def test_another_secret_comes_broker_by_broker_and_ends_the_tokens_of_before(world: WithDelegation) -> None:
    before, former = world.pods(), world.token(1)
    world.topic("orders", partitions=3, replicas=3)
    world.until_ready("KafkaTopic", "orders")
    with producing(world.certified()) as errors:
        world.make_tokens_of(SECOND)
        world.until_new(before, 120)
        world.until_ready("KafkaCluster", "demo", 60)
    assert errors == []
    assert world.lets_in(former) == [False] * 3
    assert world.lets_in(world.token(2)) == [True] * 3
    settled = world.pods()
    world.make_tokens_of(f"{SECOND}\n")
    world.topic("after", partitions=1, replicas=3)
    world.until_ready("KafkaTopic", "after")
    world.until_ready("KafkaCluster", "demo")
    assert world.pods() == settled, "the end of a line is no other secret"
