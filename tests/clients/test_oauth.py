"""Clients written by others, with tokens that somebody has signed; and with tokens that nobody should believe."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider
from tests.clients import test_aiokafka as aio
from tests.clients import test_kafka_python as kp
from tests.clients import test_librdkafka as rd
from tests.clients.oauth import USER, WithTokens
from tests.clients.test_secured import refused
from tests.contract.wire import WireClient
from tests.identity_provider import new_key, signed

from ballast_broker.security.oauthbearer import first_message
from ballast_wire.messages import message

pytestmark = pytest.mark.spec("CLI-01", "CLI-06")
VALUES = [b"%d " % n + b"x" * (n * 997 % 60_000) for n in range(60)]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithTokens]:
    with WithTokens.running(tmp_path_factory.mktemp("tokens")) as running:
        yield running


class Tokens(AbstractTokenProvider):
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


class AioTokens(AioTokenProvider):
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


@pytest.mark.parametrize("listener", ["OPEN", "SAFE"])
@pytest.mark.parametrize("how", ["by a function", "by itself"])
def test_librdkafka(there: WithTokens, topic: str, listener: str, how: str) -> None:
    settings = there.librdkafka(listener) if how == "by a function" else there.oidc(listener)
    rd.create(there.broker, topic)
    there.allow(USER, topic, f"of-{topic}")
    sender = Producer(settings)
    rd.send(sender, topic, VALUES)
    rd.end_producer(sender)
    reader = Consumer(settings | {"group.id": f"of-{topic}", "auto.offset.reset": "earliest"})
    reader.subscribe([topic])
    assert [each.value() for each in rd.read(reader, len(VALUES))] == VALUES
    reader.close()


@pytest.mark.parametrize("listener", ["OPEN", "SAFE"])
def test_kafka_python(there: WithTokens, topic: str, listener: str) -> None:
    settings = there.python(listener) | {"sasl_oauth_token_provider": Tokens(there.provider.token(USER))}
    rd.create(there.broker, topic)
    there.allow(USER, topic)
    with closing(KafkaProducer(**settings)) as sender:
        for value in VALUES:
            sender.send(topic, value)
        sender.flush(30)
    with closing(KafkaConsumer(topic, auto_offset_reset="earliest", group_id=None, **settings)) as reader:
        assert [each.value for each in kp.read(reader, len(VALUES))] == VALUES


@pytest.mark.parametrize("listener", ["OPEN", "SAFE"])
async def test_aiokafka(there: WithTokens, topic: str, listener: str) -> None:
    settings = there.python(listener) | {"sasl_oauth_token_provider": AioTokens(there.provider.token(USER))}
    rd.create(there.broker, topic)
    there.allow(USER, topic)
    async with aio.running(AIOKafkaProducer(**settings)) as sender:
        for value in VALUES:
            await sender.send_and_wait(topic, value)
    how = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    async with aio.running(AIOKafkaConsumer(topic, **settings, **how)) as reader:
        assert [each.value for each in await aio.read(reader, len(VALUES))] == VALUES


def test_what_a_token_says_is_who_may_do_what(there: WithTokens, topic: str) -> None:
    rd.create(there.broker, topic)
    there.allow(USER, topic)
    for user, error in ((USER, None), ("bob", KafkaError.TOPIC_AUTHORIZATION_FAILED)):
        told: list[KafkaError | None] = []
        sender = Producer(there.librdkafka("OPEN", there.provider.token(user)))
        sender.produce(topic, b"x", on_delivery=functools.partial(note, told))
        sender.flush(20)
        assert [each and each.code() for each in told] == [error]
        rd.end_producer(sender)


def note(told: list[KafkaError | None], failed: KafkaError | None, _: Message) -> None:
    told.append(failed)


@pytest.mark.parametrize("wrong", ["ended", "issuer", "audience", "signature", "HS256", "none"])
def test_who_has_no_good_token_is_told_so(there: WithTokens, wrong: str) -> None:
    provider, now = there.provider, int(time.time())
    token = {
        "ended": lambda: provider.token(exp=now - 100),
        "issuer": lambda: provider.token(iss="https://other.example"),
        "audience": lambda: provider.token(aud=["somebody"]),
        "signature": lambda: signed(new_key(), "one"),
        "HS256": lambda: signed(b"x" * 64, "one", "HS256"),  # type: ignore[arg-type]
        "none": lambda: "x.y.z",
    }[wrong]()
    heard = refused(there.librdkafka("OPEN", token))
    assert any(each.code() == KafkaError._AUTHENTICATION and "invalid_token" in each.str() for each in heard), heard


@pytest.mark.timeout(90)
def test_a_client_goes_on_beyond_the_end_of_its_sessions(there: WithTokens, topic: str) -> None:
    """On the listener SAFE a session holds for three seconds."""
    rd.create(there.broker, topic)
    there.allow(USER, topic)
    failed: list[KafkaError] = []
    sender = Producer(there.librdkafka("SAFE", error_cb=failed.append) | {"enable.idempotence": True})
    sent, began = 0, time.monotonic()
    undisturbed_since = began
    while time.monotonic() < undisturbed_since + 8:
        rd.send(sender, topic, [b"%d" % (sent + n) for n in range(20)])
        sent += 20
        if failed:  # where the machine stalls, it is late for the end of a session, is cut off, and connects anew
            assert time.monotonic() < began + 50, failed
            failed.clear()
            undisturbed_since = time.monotonic()
    rd.end_producer(sender)
    reader = Consumer(there.librdkafka("SAFE") | {"group.id": "none"})
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=20) == (0, sent)
    reader.close()


def test_a_session_whose_token_has_ended_is_closed(there: WithTokens) -> None:
    host, _, port = there.broker.listeners["OPEN"].rpartition(":")
    with closing(WireClient(host, int(port))) as client:
        assert client.call(message("SaslHandshakeRequest")(mechanism="OAUTHBEARER"), 1).error_code == 0
        token = there.provider.token(USER, exp=int(time.time()) + 8)  # a slow machine logs in within seven
        shown = message("SaslAuthenticateRequest")(auth_bytes=first_message(token, {}))
        answer = client.call(shown, 2)
        assert 0 < answer.session_lifetime_ms <= 8000
        began = time.monotonic()

        def ask_for_ever() -> None:
            while time.monotonic() < began + 30:
                client.call(message("MetadataRequest")(topics=[]), 1)

        client.call(message("MetadataRequest")(topics=[]), 1)
        with pytest.raises(ConnectionError):
            ask_for_ever()
        assert 0.5 < time.monotonic() - began < 25


def test_keys_are_changed_under_traffic(there: WithTokens, topic: str) -> None:
    """A client whose token is signed with a key that the broker has not seen yet waits, and comes in."""
    rd.create(there.broker, topic)
    there.allow(USER, topic)
    provider, old = there.provider, there.provider.keys
    sender = Producer(there.librdkafka("OPEN"))
    rd.send(sender, topic, [b"before"])
    asked = provider.asked.count("/keys")
    deadline = time.monotonic() + 40
    try:
        provider.keys = old | {"next": new_key()}
        new = there.librdkafka("OPEN", provider.token(USER, "next"))
        while True:
            heard: list[KafkaError] = []
            with_new = Producer(new | {"error_cb": heard.append, "log_level": 0})
            with_new.produce(topic, b"after")
            left = with_new.flush(10)
            rd.end_producer(with_new)
            if not left:
                break
            assert time.monotonic() < deadline, heard  # others may have had it ask for keys a moment ago
        assert provider.asked.count("/keys") > asked
        rd.send(sender, topic, [b"and on"])
    finally:
        provider.keys = old
        rd.end_producer(sender)


def test_what_is_configured_is_shown_and_secrets_are_not(there: WithTokens) -> None:
    host, _, port = there.broker.bootstrap.rpartition(":")
    kind = message("DescribeConfigsRequest")
    asked = kind.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    with closing(WireClient(host, int(port))) as client:
        answer = client.call(kind(resources=[asked], include_synonyms=True), 4)
    configs = {each.name: each for each in answer.results[0].configs}
    assert configs["sasl.oauthbearer.jwks.endpoint.url"].value == there.provider.jwks_url
    secret = configs["sasl.oauthbearer.client.credentials.client.secret"]
    assert (secret.is_sensitive, secret.value, secret.config_type) == (True, None, 9)
    assert json.dumps(there.provider.jwks().decode()) not in repr(configs)
