"""Apache Kafka's own tools over TLS and with passwords, and as the ones who make the passwords."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.certificates import Authority, openssl
from tests.clients.running import RunningBroker
from tests.clients.secured import USER, WAYS, Secured
from tests.clients.test_java_tools import run, through_consoles

from ballast_cli.__main__ import main

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
    through_consoles(secured.broker.listeners[listener], config, topic)


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


def test_one_pair_of_files_that_keytool_made_serves_both(tmp_path: Path) -> None:
    """Properties as they stand in files of Apache Kafka's: a JKS with the key, a PKCS12 with what is believed."""
    authority = Authority(tmp_path / "ca")
    stores = _by_keytool(authority, authority.issue("node"), tmp_path)
    running = RunningBroker(tmp_path / "broker")
    running._properties |= stores | {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.client.auth": "required",
    }
    running.start()
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in stores.items()) + "security.protocol=SSL\n")
    at = ("--bootstrap-server", running.listeners["SSL"], "--command-config", config)
    run("topics", *at, "--create", "--topic", "kept", "--partitions", 1)
    assert "kept" in run("topics", *at, "--list").splitlines()
    assert main(["status", "--bootstrap", running.listeners["SSL"], "--command-config", str(config)]) == 0
    assert running.stop() == 0
    assert "Traceback" not in running.log_text()


def _by_keytool(authority: Authority, node: Path, folder: Path) -> dict[str, str]:
    handed, keystore, truststore = folder / "handed.p12", folder / "node.jks", folder / "trust.p12"
    openssl("pkcs12", "-export", "-in", node, "-certfile", authority.ca, "-out", handed, "-passout", "pass:changeit")
    _keytool("-importkeystore", "-srckeystore", handed, "-srcstorepass", "changeit", "-destkeystore", keystore,
             "-deststoretype", "JKS", "-deststorepass", "in-store", "-srcalias", "1",
             "-destkeypass", "in-key")  # fmt: skip
    _keytool("-importcert", "-alias", "ca", "-file", authority.ca, "-keystore", truststore, "-storepass", "trusted")
    return {
        "ssl.keystore.location": str(keystore),
        "ssl.keystore.password": "in-store",
        "ssl.key.password": "in-key",
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(truststore),
        "ssl.truststore.password": "trusted",
    }


def _keytool(*arguments: object) -> None:
    command = ["keytool", "-noprompt", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, timeout=60, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
