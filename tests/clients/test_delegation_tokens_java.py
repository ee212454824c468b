"""Delegation tokens by Apache Kafka's own tool, shown by its clients and by Spark's connector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clients.running_spark import RunningSpark
from tests.clients.secured import PASSWORD, SCRAM, USER, Secured
from tests.clients.test_java_tools import run
from tests.docs.commands import to_type

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.spec("CLI-02", "CLI-13")]

SECRET = "nobody-is-to-read-this"
SESSION_MS = 1000
RENEWER = "User:scheduler"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    running = Secured(tmp_path_factory.mktemp("secured"))
    running.broker._properties |= {
        "delegation.token.secret.key": SECRET,
        "listener.name.safe.connections.max.reauth.ms": SESSION_MS,
    }
    running.start()
    yield running
    assert running.broker.stop() == 0
    said = running.broker.log_text()
    assert "Traceback" not in said, said
    assert SECRET not in said


def row(printed: str, token_id: str | None = None) -> dict[str, str]:
    """The one that the tool's table has of this token; the last one without."""
    lines = [line.split() for line in printed.splitlines()]
    header = next(line for line in lines if "TOKENID" in line)
    found = [line for line in lines if line and line is not header and (token_id in (None, line[0]))]
    values = next(line for line in reversed(found) if len(line) >= 3 and len(line[1]) > 80)
    return dict(zip(("id", "hmac", "owner"), values, strict=False))


def made(secured: Secured, folder: Path, listener: str = "SAFE") -> dict[str, str]:
    config = secured.java(folder, listener, "SCRAM-SHA-512")
    at = ("--bootstrap-server", secured.broker.listeners[listener], "--command-config", config)
    return row(run("delegation-tokens", *at, "--create", "--max-life-time-period", -1, "--renewer-principal", RENEWER))


def by_token(secured: Secured, folder: Path, listener: str, mechanism: str, token: dict[str, str]) -> Path:
    config = secured.java(folder, listener, mechanism)
    lines = [line for line in config.read_text().splitlines() if not line.startswith("sasl.jaas.config")]
    login = f'username="{token["id"]}" password="{token["hmac"]}" tokenauth="true"'
    config.write_text("\n".join([*lines, f"sasl.jaas.config={SCRAM} required {login};"]) + "\n")
    return config


def test_the_tool_as_the_page_has_it(secured: Secured, tmp_path: Path) -> None:
    config = secured.java(tmp_path, "SAFE", "PLAIN")
    told: list[str] = []
    hmac = ""
    for command in to_type("tests/clients/test_delegation_tokens_java.py::test_the_tool_as_the_page_has_it"):
        text = command.replace("HOST:PORT", secured.broker.listeners["SAFE"]).replace("alice.properties", str(config))
        program, *words = text.replace(" HMAC", f" {hmac}").split()
        assert program == "kafka-delegation-tokens.sh"
        told.append(run("delegation-tokens", *words))
        hmac = hmac or row(told[0])["hmac"]
    created = row(told[0])
    assert created["owner"] == f"User:{USER}"
    assert row(told[1], created["id"]) == created
    assert RENEWER in told[1]
    assert all("Completed" in each for each in told[2:]), told[2:]
    at = ("--bootstrap-server", secured.broker.listeners["SAFE"], "--command-config", config)
    assert created["id"] not in run("delegation-tokens", *at, "--describe", "--owner-principal", f"User:{USER}")
    gone = run("delegation-tokens", *at, "--renew", "--renew-time-period", -1, "--hmac", hmac, code=1)
    assert "Delegation Token is not found on server" in gone


@pytest.mark.parametrize(("listener", "mechanism"), [("OPEN", "SCRAM-SHA-256"), ("SAFE", "SCRAM-SHA-512")])
def test_a_client_comes_in_by_a_token(
    secured: Secured, tmp_path: Path, topic: str, listener: str, mechanism: str
) -> None:
    token = made(secured, tmp_path)
    config = by_token(secured, tmp_path, listener, mechanism, token)
    at = ("--bootstrap-server", secured.broker.listeners[listener])
    lines = [f"value {number}" for number in range(50)]
    run("console-producer", *at, "--producer.config", config, "--topic", topic, stdin="\n".join(lines) + "\n")
    wanted = ("--topic", topic, "--from-beginning", "--max-messages", 50, "--timeout-ms", 30_000)
    read = run("console-consumer", *at, "--consumer.config", config, *wanted)
    assert [line for line in read.splitlines() if line.startswith("value")] == lines
    more = ("--create", "--max-life-time-period", -1, "--renewer-principal", RENEWER)
    refused = run("delegation-tokens", *at, "--command-config", config, *more, code=1)
    assert "Delegation Token requests are not allowed" in refused
    assert token["hmac"] not in secured.broker.log_text()


def test_a_client_shows_its_token_again_when_a_session_ends(secured: Secured, tmp_path: Path, topic: str) -> None:
    config = by_token(secured, tmp_path, "SAFE", "SCRAM-SHA-256", made(secured, tmp_path))
    safe = secured.broker.listeners["SAFE"]
    run("topics", "--bootstrap-server", safe, "--command-config", config, "--create", "--topic", topic)
    sent = run(
        "producer-perf-test", "--topic", topic, "--num-records", 40, "--record-size", 10, "--throughput", 10,
        "--producer.config", config, "--producer-props", f"bootstrap.servers={safe}",
    )  # fmt: skip
    assert "40 records sent" in sent


def test_sparks_connector_shows_a_token(secured: Secured, tmp_path: Path, topic: str) -> None:
    """As Spark does for a cluster that `spark.kafka.clusters` names: its own code asks for the token and uses it."""
    run("topics", "--bootstrap-server", secured.broker.bootstrap, "--create", "--topic", topic)
    lines = [f"value {number}" for number in range(20)]
    config = secured.java(tmp_path, "OPEN", "SCRAM-SHA-512")
    at = ("--bootstrap-server", secured.broker.listeners["OPEN"])
    run("console-producer", *at, "--producer.config", config, "--topic", topic, stdin="\n".join(lines) + "\n")
    jaas = f'{SCRAM} required username="{USER}" password="{PASSWORD}";'.replace('wonder "land"', 'wonder \\"land\\"')
    settings = {
        "auth.bootstrap.servers": at[1],
        "target.bootstrap.servers.regex": ".*",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.token.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": jaas,
    }
    named = {f"spark.kafka.clusters.one.{name}": value for name, value in settings.items()}
    with RunningSpark(tmp_path / "driver.log", named) as spark:
        token_id = spark.do("obtain_token", cluster="one")
        found = spark.read(at[1], subscribe=topic)
    assert [each["value"] for each in found] == lines
    described = run(
        "delegation-tokens", *at, "--command-config", config, "--describe", "--owner-principal", f"User:{USER}"
    )
    assert row(described, token_id)["owner"] == f"User:{USER}"
