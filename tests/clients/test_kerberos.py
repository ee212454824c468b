"""Clients of Kerberos with real tickets: Apache Kafka's own, kafka-python, and our commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer
from tests.clients.kerberos import SERVICE, WithKerberos
from tests.clients.test_java_tools import run, through_consoles
from tests.kdc import REALM, login_module

from ballast_broker.__main__ import main
from ballast_broker.net.channel import SocketNetwork
from ballast_broker.net.outgoing import Login, Outgoing
from ballast_broker.security.kerberos_settings import KerberosSettings
from ballast_wire.messages import message

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.spec("CLI-12")]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithKerberos]:
    with WithKerberos.running(tmp_path_factory.mktemp("kerberos")) as running:
        yield running


@pytest.mark.parametrize("listener", ["OPEN", "SAFE"])
def test_produced_and_read(there: WithKerberos, tmp_path: Path, topic: str, listener: str) -> None:
    config, java = there.java(tmp_path, listener), there.kdc.java
    at = ("--bootstrap-server", there.broker.listeners[listener])
    run("topics", *at, "--command-config", config, "--create", "--topic", topic, java_options=java)
    through_consoles(there.broker.listeners[listener], config, topic, java)


def test_a_java_client_goes_on_beyond_the_end_of_its_sessions(there: WithKerberos, tmp_path: Path, topic: str) -> None:
    """On the listener SAFE a session holds for three seconds, and this lasts seven."""
    config = there.java(tmp_path, "SAFE")
    run("topics", "--bootstrap-server", there.broker.bootstrap, "--create", "--topic", topic)
    at = ("--producer-props", f"bootstrap.servers={there.broker.listeners['SAFE']}", "--producer.config", config)
    how = ("--throughput", 100, "--num-records", 700, "--record-size", 100, "--topic", topic)
    said = run("producer-perf-test", *how, *at, java_options=there.kdc.java)
    assert "700 records sent" in said
    assert "xception" not in said, said


def test_who_he_is_decides_what_he_may(there: WithKerberos, tmp_path: Path, topic: str) -> None:
    config = there.java(tmp_path, "OPEN", "bob")
    at = ("--bootstrap-server", there.broker.listeners["OPEN"], "--command-config", config)
    refused = run("topics", *at, "--create", "--topic", topic, code=1, java_options=there.kdc.java)
    assert "Authorization failed" in refused
    allowed = ("--bootstrap-server", there.broker.bootstrap, "--add", "--allow-principal", "User:bob")
    run("acls", *allowed, "--operation", "Create", "--topic", topic)
    run("topics", *at, "--create", "--topic", topic, java_options=there.kdc.java)


@pytest.mark.parametrize("listener", ["OPEN", "SAFE"])
def test_kafka_python(there: WithKerberos, topic: str, listener: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(there.keytabs["alice"]))
    monkeypatch.setenv("KRB5CCNAME", f"MEMORY:{uuid.uuid4()}")
    run("topics", "--bootstrap-server", there.broker.bootstrap, "--create", "--topic", topic)
    producer = KafkaProducer(**there.python(listener))
    try:
        assert [producer.send(topic, b"x").get(20).offset for _ in range(3)] == [0, 1, 2]
    finally:
        producer.close()


def test_our_commands_come_in_with_a_keytab(there: WithKerberos, tmp_path: Path) -> None:
    for listener in ("OPEN", "SAFE"):
        done = status(there, there.java(tmp_path, listener))
        assert done.returncode == 0, done.stderr
        assert "broker" in done.stdout
    stranger = tmp_path / "stranger.properties"
    stranger.write_text(there.java(tmp_path, "OPEN").read_text().replace("alice@", "nobody@"))
    refused = status(there, stranger)
    assert refused.returncode != 0
    assert "nobody" in refused.stderr, refused.stderr


def status(there: WithKerberos, config: Path) -> subprocess.CompletedProcess[str]:
    listener = config.name.partition("-")[0] if "-" in config.name else "OPEN"
    at = ("--bootstrap", there.broker.listeners[listener], "--command-config", str(config))
    return subprocess.run(
        [sys.executable, "-m", "ballast_cli", "status", *at],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_ticket_for_a_key_that_the_broker_does_not_have_is_refused(there: WithKerberos, tmp_path: Path) -> None:
    """Somebody has given the service a new key, and the broker's keytab has the old one."""
    keytab = there.keytabs[SERVICE]
    old = keytab.read_bytes()
    there.kdc.new_key(SERVICE, keytab)
    config = there.java(tmp_path, "OPEN")
    at = ("--bootstrap-server", there.broker.listeners["OPEN"], "--command-config", config)
    run("topics", *at, "--list", java_options=there.kdc.java)
    new = keytab.read_bytes()
    keytab.write_bytes(old)
    refused = run("topics", *at, "--list", code=1, java_options=there.kdc.java)
    assert "invalid credentials with SASL mechanism GSSAPI" in refused, refused
    keytab.write_bytes(new)
    run("topics", *at, "--list", java_options=there.kdc.java)


@pytest.mark.parametrize(
    ("principal", "keytab", "said"),
    [
        ("kafka/localhost", "/nowhere/node.keytab", "keytab /nowhere/node.keytab: .*not found|No such file"),
        ("kafka/elsewhere", None, r"No key table entry found .*kafka/elsewhere@"),
    ],
)
def test_a_node_without_its_key_does_not_start(
    there: WithKerberos,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    principal: str,
    keytab: str | None,
    said: str,
) -> None:
    module = login_module(principal, Path(keytab) if keytab else there.keytabs["alice"])
    file = tmp_path / "node.properties"
    file.write_text(
        "node.id=1\nprocess.roles=broker,controller\ncontroller.listener.names=CONTROLLER\n"
        "controller.quorum.voters=1@localhost:9094\nlisteners=SAFE://localhost:0,CONTROLLER://localhost:9094\n"
        "listener.security.protocol.map=SAFE:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT\ninter.broker.listener.name=SAFE\n"
        f"log.dirs={tmp_path}/d\nsasl.kerberos.service.name=kafka\n"
        f"listener.name.safe.gssapi.sasl.jaas.config={module}\n"
    )
    assert main([str(file)]) == 2
    assert said_in(said, capfd.readouterr().err)


def said_in(pattern: str, text: str) -> bool:
    return re.search(rf"GSSAPI as .*@{REALM}: .*({pattern})", text) is not None


def network(principal: str, keytab: Path) -> SocketNetwork:
    """As a node goes to others."""
    from ballast_broker.net.kerberos import OwnTickets

    own = OwnTickets(KerberosSettings(f"{principal}@{REALM}", str(keytab), "kafka", ("DEFAULT",)))
    return SocketNetwork("broker-2", Outgoing(login=Login("GSSAPI", principal, "", tickets=own)))


async def test_a_node_goes_to_others_and_says_why_where_it_cannot(
    there: WithKerberos, caplog: pytest.LogCaptureFixture
) -> None:
    from ballast_broker.net.kerberos import KerberosError

    host, _, port = there.broker.listeners["OPEN"].rpartition(":")
    known = network("alice", there.keytabs["alice"])
    request = message("MetadataRequest")(topics=[])

    async def asks(nodes: SocketNetwork) -> int:
        channel = await nodes.connect(host, int(port), timeout_s=60)
        try:
            return len((await channel.call(request, 1)).brokers)
        finally:
            channel.close()

    assert await asks(known) == 1
    with pytest.raises(KerberosError, match=r"No key table entry found .*stranger@EXAMPLE.COM"):
        network("stranger", there.keytabs["alice"])
    gone = there.kdc.keytab("gone")
    there.kdc.forget("gone")
    with pytest.raises(ConnectionResetError, match=r"Kerberos says: Client .*not found in"):
        await asks(network("gone", gone))
    assert "localhost:" in caplog.text
    there.kdc.stop()
    try:
        assert await asks(known) == 1, "by the ticket that it has"
        with pytest.raises(ConnectionResetError, match="Kerberos says: Cannot contact any KDC"):
            await asks(network("alice", there.keytabs["alice"]))
    finally:
        there.kdc.start()
