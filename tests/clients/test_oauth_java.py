"""Apache Kafka's own tools with tokens that they get themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clients.oauth import USER, WithTokens
from tests.clients.test_java_tools import run, through_consoles

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.spec("CLI-01", "CLI-02", "CLI-06")]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithTokens]:
    with WithTokens.running(tmp_path_factory.mktemp("tokens")) as running:
        yield running


def allowed(there: WithTokens) -> tuple[str]:
    """Java clients since 3.9.1 go only where they are told that they may."""
    return (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={there.provider.token_url}",)


@pytest.mark.parametrize("listener", ["OPEN", "SAFE"])
def test_produced_and_read(there: WithTokens, tmp_path: Path, topic: str, listener: str) -> None:
    config, java = there.java(tmp_path, listener), allowed(there)
    at = ("--bootstrap-server", there.broker.listeners[listener])
    acls = ("--bootstrap-server", there.broker.bootstrap, "--add", "--allow-principal", f"User:{USER}")
    run("acls", *acls, "--producer", "--topic", topic)
    run("acls", *acls, "--consumer", "--topic", topic, "--group", "*")
    run("topics", *at, "--command-config", config, "--create", "--topic", topic, java_options=java)
    through_consoles(there.broker.listeners[listener], config, topic, java)


def test_a_java_client_goes_on_beyond_the_end_of_its_sessions(there: WithTokens, tmp_path: Path, topic: str) -> None:
    """On the listener SAFE a session holds for three seconds, and this lasts seven."""
    config, java = there.java(tmp_path, "SAFE"), allowed(there)
    acls = ("--bootstrap-server", there.broker.bootstrap, "--add", "--allow-principal", f"User:{USER}")
    run("acls", *acls, "--producer", "--topic", topic)
    run("topics", "--bootstrap-server", there.broker.bootstrap, "--create", "--topic", topic)
    at = ("--producer-props", f"bootstrap.servers={there.broker.listeners['SAFE']}", "--producer.config", config)
    how = ("--throughput", 100, "--num-records", 700, "--record-size", 100, "--topic", topic)
    said = run("producer-perf-test", *how, *at, java_options=java)
    assert "700 records sent" in said
    assert "xception" not in said, said


def test_a_token_that_is_not_believed_is_said_to_be_so(there: WithTokens, tmp_path: Path) -> None:
    config = there.java(tmp_path, "OPEN")
    at = ("--bootstrap-server", there.broker.listeners["OPEN"], "--command-config", config)
    wrong = there.provider.token(USER, aud="somebody")
    file = tmp_path / "token"
    file.write_text(wrong)
    config.write_text(config.read_text().replace(there.provider.token_url, file.as_uri()))
    java = (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={file.as_uri()}",)
    said = run("topics", *at, "--list", code=1, java_options=java)
    assert '{"status":"invalid_token"}' in said, said
    file.write_text(there.provider.token(USER))
    run("topics", *at, "--list", java_options=java)
