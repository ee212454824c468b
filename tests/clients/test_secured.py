"""Clients written by others, over TLS and with passwords; and what those meet who have no business there."""

from __future__ import annotations

import functools
import socket
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, ThrottleEvent, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from e2e.asking import ask, message
from kafka import KafkaConsumer, KafkaProducer
from tests.clients import test_aiokafka as aio
from tests.clients import test_kafka_python as kp
from tests.clients import test_librdkafka as rd
from tests.clients.secured import USER, WAYS, Secured
from tests.clients.test_quotas import change_quotas

from ballast_cli import command_config
from ballast_cli.__main__ import main
from ballast_rebalance import admin
from ballast_rebalance.admin import measure_by_admin, require_answer
from ballast_rebalance.measured import Refusal

pytestmark = pytest.mark.spec("CLI-06")
VALUES = [b"%d " % n + b"x" * (n * 997 % 60_000) for n in range(60)]
SOME_WAYS = [("MUTUAL", None), ("OPEN", "PLAIN"), ("SAFE", "SCRAM-SHA-512")]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    running = Secured(tmp_path_factory.mktemp("secured")).start()
    yield running
    assert running.broker.stop() == 0
    said = running.broker.log_text()
    assert "Traceback" not in said, said
    assert "wonder" not in said


def end(sender: Producer) -> None:
    rd.end_producer(sender)


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_librdkafka(secured: Secured, topic: str, listener: str, mechanism: str | None) -> None:
    settings = secured.librdkafka(listener, mechanism)
    rd.create(secured.broker, topic)
    sender = Producer(settings)
    rd.send(sender, topic, VALUES)
    end(sender)
    reader = Consumer(settings | {"group.id": f"of-{topic}", "auto.offset.reset": "earliest"})
    reader.subscribe([topic])
    assert [each.value() for each in rd.read(reader, len(VALUES))] == VALUES
    reader.close()


@pytest.mark.parametrize(("listener", "mechanism"), SOME_WAYS)
def test_kafka_python(secured: Secured, topic: str, listener: str, mechanism: str | None) -> None:
    settings = secured.python(listener, mechanism)
    rd.create(secured.broker, topic)
    with closing(KafkaProducer(**settings)) as sender:
        for value in VALUES:
            sender.send(topic, value)
        sender.flush(30)
    with closing(KafkaConsumer(topic, auto_offset_reset="earliest", group_id=None, **settings)) as reader:
        assert [each.value for each in kp.read(reader, len(VALUES))] == VALUES


@pytest.mark.parametrize(("listener", "mechanism"), SOME_WAYS)
async def test_aiokafka(secured: Secured, topic: str, listener: str, mechanism: str | None) -> None:
    settings = secured.python(listener, mechanism)
    async with aio.running(AIOKafkaProducer(**settings)) as sender:
        for value in VALUES:
            await sender.send_and_wait(topic, value)
    how = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    async with aio.running(AIOKafkaConsumer(topic, **settings, **how)) as reader:
        assert [each.value for each in await aio.read(reader, len(VALUES))] == VALUES


def refused(settings: dict[str, Any]) -> list[KafkaError]:
    """What librdkafka hears until it gives up, and has heard something."""
    heard: list[KafkaError] = []
    quiet = {"error_cb": heard.append, "log_level": 0}
    client = AdminClient(settings | quiet)
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.7)
    client.poll(0)
    while not heard:
        client.poll(0.1)
    return heard


@pytest.mark.parametrize(
    ("mechanism", "wrong", "says"),
    [
        ("PLAIN", {"sasl.password": "hush"}, "Authentication failed: Invalid username or password"),
        ("SCRAM-SHA-256", {"sasl.username": "nobody"}, "invalid credentials with SASL mechanism SCRAM-SHA-256"),
    ],
)
def test_who_does_not_know_the_password_is_told_so(
    secured: Secured, mechanism: str, wrong: dict[str, str], says: str
) -> None:
    heard = refused(secured.librdkafka("SAFE", mechanism, **wrong))
    assert any(each.code() == KafkaError._AUTHENTICATION and says in each.str() for each in heard), heard
    assert "hush" not in secured.broker.log_text()


def test_without_a_certificate_nobody_comes_in_where_one_is_asked_for(secured: Secured) -> None:
    settings = secured.librdkafka("MUTUAL", None)
    del settings["ssl.certificate.location"], settings["ssl.key.location"]
    refused(settings)


def test_a_plain_client_is_shown_out_by_tls_and_the_other_way_round(secured: Secured) -> None:
    plain = {"bootstrap.servers": secured.broker.listeners["TLS"]}
    refused(plain)
    tls = secured.librdkafka("TLS", None) | {"bootstrap.servers": secured.broker.bootstrap}
    refused(tls)
    with pytest.raises((ConnectionError, TimeoutError)):
        ask(secured.broker.listeners["SAFE"], message("ApiVersionsRequest")(), 0, timeout_s=5)


def test_who_has_not_said_who_he_is_asks_nothing(secured: Secured) -> None:
    address = secured.broker.listeners["OPEN"]
    assert ask(address, message("ApiVersionsRequest")(), 0).api_keys
    with pytest.raises(ConnectionError):
        ask(address, message("MetadataRequest")(topics=[]), 1)


def test_a_user_who_is_deleted_does_not_come_in_again(secured: Secured) -> None:
    admin = AdminClient({"bootstrap.servers": secured.broker.bootstrap})
    mechanism = ScramMechanism.SCRAM_SHA_512
    upsertion = UserScramCredentialUpsertion("guest", ScramCredentialInfo(mechanism, 8192), b"for a while")
    admin.alter_user_scram_credentials([upsertion])["guest"].result(20)
    described = admin.describe_user_scram_credentials(["guest"])
    assert isinstance(described, dict)
    known = described["guest"].result(20).scram_credential_infos
    assert [(each.mechanism, each.iterations) for each in known] == [(mechanism, 8192)]
    guest = {"sasl.username": "guest", "sasl.password": "for a while"}
    settings = secured.librdkafka("SAFE", "SCRAM-SHA-512", **guest)
    assert AdminClient(settings).list_topics(timeout=20).brokers
    assert refused(secured.librdkafka("SAFE", "SCRAM-SHA-256", **guest)), "of this mechanism it has none"
    admin.alter_user_scram_credentials([UserScramCredentialDeletion("guest", mechanism)])["guest"].result(20)
    assert refused(settings)


@pytest.mark.spec("CLI-11")
@pytest.mark.timeout(90)
def test_a_quota_of_a_user_is_that_of_who_came_in(secured: Secured, topic: str) -> None:
    rd.create(secured.broker, topic)
    value, count, limit = b"x" * 10_000, 300, 1_000_000
    change_quotas(secured.broker, {"user": USER}, producer_byte_rate=limit)
    took: dict[str, float] = {}
    told: dict[str, list[float]] = {"OPEN": [], "MUTUAL": []}
    try:
        for listener, mechanism in (("OPEN", "SCRAM-SHA-256"), ("MUTUAL", None)):
            settings = secured.librdkafka(listener, mechanism, throttle_cb=functools.partial(note, told[listener]))
            sender = Producer(settings | {"batch.size": 100_000})
            began = time.monotonic()
            rd.send(sender, topic, [value] * count)
            took[listener] = time.monotonic() - began
            end(sender)
    finally:
        change_quotas(secured.broker, {"user": USER}, producer_byte_rate=None)
    assert took["OPEN"] > count * len(value) / limit - 2.0
    assert told["OPEN"]
    assert not told["MUTUAL"], "its name is another one"


def note(told: list[float], event: ThrottleEvent) -> None:
    told.append(event.throttle_time)


def test_certificates_are_changed_under_traffic(secured: Secured, topic: str) -> None:
    rd.create(secured.broker, topic)
    sender = Producer(secured.librdkafka("TLS", None))

    def shown() -> bytes | None:
        host, _, port = secured.broker.listeners["TLS"].rpartition(":")
        context = secured.context("TLS")
        assert context is not None
        with (
            socket.create_connection((host, int(port)), 10) as plain,
            context.wrap_socket(plain, server_hostname=host) as tls,
        ):
            return tls.getpeercert(binary_form=True)

    before = shown()
    secured.keystore.write_text(secured.authority.issue("next").read_text())
    deadline = time.monotonic() + 40
    sent = 0
    while shown() == before:
        rd.send(sender, topic, [b"%d" % (sent + n) for n in range(10)])
        sent += 10
        assert time.monotonic() < deadline
    rd.send(sender, topic, [b"%d" % sent])
    end(sender)
    settings = secured.librdkafka("TLS", None) | {"group.id": "g", "auto.offset.reset": "earliest"}
    reader = Consumer(settings)
    reader.assign([TopicPartition(topic, 0, 0)])
    assert [each.value() for each in rd.read(reader, sent + 1)] == [b"%d" % n for n in range(sent + 1)]
    reader.close()


def test_our_own_commands_come_in_as_kafkas_do(
    secured: Secured, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rd.create(secured.broker, topic, 2)
    config = str(secured.java(tmp_path, "SAFE", "SCRAM-SHA-512"))
    at = ["--bootstrap", secured.broker.listeners["SAFE"], "--command-config", config]
    assert main(["status", *at]) == 0
    assert "volume-0" in capsys.readouterr().out
    assert main(["reassign", "generate", *at, "--topics", topic, "--json", str(tmp_path / "plan.json")]) == 0
    args = Namespace(bootstrap=secured.broker.listeners["SAFE"], command_config=Path(config))
    options = command_config.library_options(args, "test")
    require_answer(args.bootstrap, options)
    measured = measure_by_admin(args.bootstrap, options)
    assert topic in set(measured.replicas["topic"])


@pytest.mark.parametrize("listener", ["TLS", "SAFE", "OPEN"])
def test_the_job_tells_who_requires_more_than_it_was_given(
    secured: Secured, listener: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "ANSWER_SECONDS", 1.0)
    address = secured.broker.listeners[listener]
    with pytest.raises(Refusal, match="it requires TLS or SASL") as caught:
        require_answer(address)
    assert caught.value.reason == "ClusterUnavailable"


def test_passwords_are_shown_to_nobody(secured: Secured) -> None:
    kind = message("DescribeConfigsRequest")
    asked = kind.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    answer = ask(secured.broker.bootstrap, kind(resources=[asked], include_synonyms=True), 4)
    configs = {each.name: each for each in answer.results[0].configs}
    for name in ("ssl.key.password", "ssl.keystore.key", "ssl.keystore.password"):
        assert (configs[name].is_sensitive, configs[name].value, configs[name].config_type) == (True, None, 9)
    assert "wonder" not in repr(answer.results)
