"""Apache Kafka's own tools over TLS and with passwords, and as the ones who make the passwords."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clients.secured import USER, WAYS, Secured
from tests.clients.test_java_tools import run

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.spec("CLI-02", "CLI-06")]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    running = Secured(tmp_path_factory.mktemp("secured")).start()
    yield running
    assert running.broker.stop() == 0
    said = running.broker.log_text()
    assert "Traceback" not in said, said


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_produced_and_read(secured: Secured, tmp_path: Path, topic: str, listener: str, mechanism: str | None) -> None:
    """PEM on our side, a truststore of PEM and a keystore of PKCS12 on theirs."""
    config = secured.java(tmp_path, listener, mechanism)
    at = ("--bootstrap-server", secured.broker.listeners[listener])
    lines = [f"value {number}" for number in range(50)]
    run("console-producer", *at, "--producer.config", config, "--topic", topic, stdin="\n".join(lines) + "\n")
    wanted = ("--topic", topic, "--from-beginning", "--max-messages", 50, "--timeout-ms", 30_000)
    read = run("console-consumer", *at, "--consumer.config", config, *wanted)
    assert [line for line in read.splitlines() if line.startswith("value")] == lines


def test_a_wrong_password_is_said_to_be_wrong(secured: Secured, tmp_path: Path) -> None:
    for mechanism, says in (("PLAIN", "Invalid username or password"), ("SCRAM-SHA-512", "invalid credentials")):
        config = secured.java(tmp_path, "SAFE", mechanism, password="hush")
        at = ("--bootstrap-server", secured.broker.listeners["SAFE"], "--command-config", config)
        said = run("topics", *at, "--list", code=1)
        assert says in said
        assert "hush" not in secured.broker.log_text()


def test_users_are_made_described_and_deleted(secured: Secured, tmp_path: Path) -> None:
    at = ("--bootstrap-server", secured.broker.bootstrap, "--entity-type", "users", "--entity-name", "guest")
    passwords = "SCRAM-SHA-256=[iterations=8192,password=for-a-while],SCRAM-SHA-512=[password=other]"
    assert "Completed updating config for user guest" in run("configs", *at, "--alter", "--add-config", passwords)
    described = run("configs", *at, "--describe")
    assert "SCRAM-SHA-256=iterations=8192" in described
    assert "SCRAM-SHA-512=iterations=4096" in described
    config = secured.java(tmp_path, "SAFE", "SCRAM-SHA-256", password="for-a-while")
    config.write_text(config.read_text().replace(USER, "guest"))
    safe = ("--bootstrap-server", secured.broker.listeners["SAFE"], "--command-config", config)
    run("topics", *safe, "--list")
    run("configs", *at, "--alter", "--delete-config", "SCRAM-SHA-256")
    run("topics", *safe, "--list", code=1)
    few = run("configs", *at, "--alter", "--add-config", "SCRAM-SHA-512=[iterations=100,password=x]", code=1)
    assert "4096" in few or "iterations" in few
    run("configs", *at, "--alter", "--delete-config", "SCRAM-SHA-512")
    missing = run("configs", *at, "--alter", "--delete-config", "SCRAM-SHA-512", code=1)
    assert "does not exist" in missing, missing
