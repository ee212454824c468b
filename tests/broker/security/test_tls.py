"""TLS contexts from PEM, in files or in properties, and reloads of files that change."""

from __future__ import annotations

import logging
import os
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from e2e.processes import BROKER_SOURCES
from tests.certificates import Authority, believing

from ballast_broker import security_settings
from ballast_broker.config.broker import broker_config
from ballast_broker.config_types import ConfigError
from ballast_broker.net.secured import Access
from ballast_broker.net.server import Limits, Server
from ballast_broker.security.tls import LOOK_EVERY_S, TlsContexts
from ballast_broker.security.tls_settings import TlsSettings

STORES = Path(__file__).parent / "stores"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(BROKER_SOURCES)}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("ca"))
    made.issue("one")
    made.issue("two")
    made.issue("locked", password="to the key")
    return made


def settings(authority: Authority, name: str = "one", **changes: Any) -> TlsSettings:
    properties = {
        "node.id": "1",
        "listeners": "SSL://a:9092",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.folder / f"{name}.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
    }
    named = {key.replace("_", "."): value for key, value in changes.items()}
    whole = {key: value for key, value in (properties | named).items() if value is not None}
    found = broker_config(whole).listener_security["SSL"].tls
    assert found is not None
    return found


def shown(contexts: TlsContexts, authority: Authority) -> str:
    """The common name of the certificate that a client gets."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = believing(authority.ca)
    client = asking.wrap_bio(back, there, server_hostname="localhost")
    server = contexts.current().wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for each in (client, server):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                continue
    subject: Any = client.getpeercert()
    return str(dict(part[0] for part in subject["subject"])["commonName"])


@pytest.mark.spec("CLI-06")
def test_a_key_may_have_a_password(authority: Authority) -> None:
    right = settings(authority, "locked", ssl_key_password="to the key")
    assert shown(TlsContexts(right, float, server=True), authority) == "locked"
    for wrong in ("to another", None):
        with pytest.raises(ConfigError, match=r"cannot be used: .*is ssl\.key\.password right\?") as refused:
            TlsContexts(settings(authority, "locked", ssl_key_password=wrong), float, server=True)
        assert "to another" not in str(refused.value)


@pytest.mark.spec("CLI-06")
def test_certificates_may_stand_in_the_properties_on_one_line(authority: Authority) -> None:
    def on_one_line(path: Path) -> str:
        return " ".join(path.read_text().split("\n"))

    found = settings(
        authority,
        ssl_keystore_location=None,
        ssl_keystore_certificate_chain=on_one_line(authority.folder / "one.crt"),
        ssl_keystore_key=on_one_line(authority.folder / "one.key"),
        ssl_truststore_location=None,
        ssl_truststore_certificates=on_one_line(authority.ca),
    )
    assert shown(TlsContexts(found, float, server=True), authority) == "one"


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize(("name", "kind"), [("node.jks", "JKS"), ("node.p12", "PKCS12"), ("node.jks", "PKCS12")])
def test_what_java_has_written_is_shown_and_believed(name: str, kind: str) -> None:
    """The client trusts a CA of the truststore, and presents a certificate that the server trusts."""
    properties = {
        "node.id": "1",
        "listeners": "SSL://a:9092",
        "ssl.client.auth": "required",
        "ssl.keystore.type": kind,
        "ssl.keystore.location": str(STORES / name),
        "ssl.keystore.password": "of-the-store",
        "ssl.truststore.location": str(STORES / "trust.jks"),
    }
    if name == "node.jks":
        properties["ssl.key.password"] = "of-the-key"
    found = broker_config(properties)
    assert not found.warnings
    tls = found.listener_security["SSL"].tls
    assert tls is not None
    server = TlsContexts(tls, float, server=True).current()
    client = TlsContexts(tls, float, server=False).current()
    assert _handshake(server, client) == ("node", "node")


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str, str]:
    """The peer names that the client and the server see."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(back, there, server_hostname="localhost"),
        server.wrap_bio(there, back, server_side=True),
    )
    for _ in range(4):
        for each in ends:
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                continue
    met: list[Any] = [each.getpeercert() for each in ends]
    first, second = (str(dict(part[0] for part in each["subject"])["commonName"]) for each in met)
    return first, second


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize("believed", ["the authority between", "the certificate itself"])
def test_what_is_in_the_truststore_is_believed_whoever_issued_it(
    authority: Authority, tmp_path: Path, believed: str
) -> None:
    """As in Java: a company's nodes often know the authority that issues their certificates, and not its root."""
    between = Authority(tmp_path, "between", under=authority)
    node = between.issue("node")
    trusted = between.ca if believed == "the authority between" else tmp_path / "node.crt"
    known = settings(
        authority, ssl_client_auth="required", ssl_keystore_location=str(node), ssl_truststore_location=str(trusted)
    )
    server, client = (TlsContexts(known, float, server=each).current() for each in (True, False))
    assert _handshake(server, client) == ("node", "node")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ssl_keystore_location": "/nowhere.pem"}, "ssl.keystore.location /nowhere.pem cannot be read: No such file"),
        ({"ssl_truststore_location": "/nowhere.pem"}, "ssl.truststore.location /nowhere.pem cannot be read"),
        ({"ssl_keystore_location": "CA"}, "has no private key in it"),
        ({"ssl_keystore_location": "KEY"}, "has no certificate in it"),
        ({"ssl_truststore_location": "KEY"}, "has no certificate in it"),
        ({"ssl_keystore_location": "MIXED"}, "key values mismatch"),
        ({"ssl_cipher_suites": "TLS_NO_SUCH"}, "Invalid value TLS_NO_SUCH for configuration ssl.cipher.suites"),
        ({"ssl_cipher_suites": "TLS_AES_128_GCM_SHA256"}, "name all three of them"),
    ],
)
def test_what_cannot_be_used_is_named(authority: Authority, tmp_path: Path, changes: dict[str, str], says: str) -> None:
    mixed = tmp_path / "mixed.pem"
    mixed.write_text((authority.folder / "one.key").read_text() + (authority.folder / "two.crt").read_text())
    files = {"CA": authority.ca, "KEY": authority.folder / "one.key", "MIXED": mixed}
    changed = {name: str(files.get(value, value)) for name, value in changes.items()}
    with pytest.raises(ConfigError) as refused:
        TlsContexts(settings(authority, **changed), float, server=True)
    assert says in str(refused.value)


def test_suites_of_tls_12_are_chosen_by_their_names_in_java(authority: Authority) -> None:
    suites = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"
    context = TlsContexts(settings(authority, ssl_cipher_suites=suites), float, server=True).current()
    assert context.maximum_version == ssl.TLSVersion.TLSv1_2
    older = [each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"]
    assert older == ["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305"]


@pytest.mark.spec("CLI-06")
def test_a_changed_file_is_taken_and_a_broken_one_is_not(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "node.pem"
    file.write_text((authority.folder / "one.pem").read_text())
    now = [0.0]
    contexts = TlsContexts(settings(authority, ssl_keystore_location=str(file)), lambda: now[0], server=True)
    assert shown(contexts, authority) == "one"
    file.write_text((authority.folder / "two.pem").read_text())
    assert shown(contexts, authority) == "one", "it is not looked at for each connection"
    now[0] += LOOK_EVERY_S
    assert shown(contexts, authority) == "two"
    same = contexts.current()
    now[0] += LOOK_EVERY_S
    assert contexts.current() is same, "nothing has changed"

    with caplog.at_level(logging.ERROR):
        for broken in ("half a certificate", None, None):
            file.write_text(broken) if broken else file.unlink(missing_ok=True)
            now[0] += LOOK_EVERY_S
            assert shown(contexts, authority) == "two"
    told = [each.message for each in caplog.records if each.levelno == logging.ERROR]
    assert len(told) == 2, "once for each trouble"
    assert "listener SSL keeps its old certificates" in told[0]
    assert "cannot be read: No such file" in told[1]
    file.write_text((authority.folder / "one.pem").read_text())
    now[0] += LOOK_EVERY_S
    assert shown(contexts, authority) == "one"


@pytest.mark.spec("CLI-06")
def test_a_certificate_that_does_not_hold_today_is_not_taken(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is not valid yet is loaded when it becomes valid, without being written again."""
    file = tmp_path / "node.pem"
    file.write_text((authority.folder / "one.pem").read_text())
    now, wall = [0.0], [time.time()]
    contexts = TlsContexts(
        settings(authority, ssl_keystore_location=str(file)), lambda: now[0], server=True, wall_s=lambda: wall[0]
    )
    month_s = 31 * 24 * 3600.0
    for away_s, says in ((month_s, "it ended at 20"), (-month_s, "it begins at 20")):
        file.write_text((authority.folder / "two.pem").read_text())
        wall[0] += away_s
        for _ in range(3):
            now[0] += LOOK_EVERY_S
            assert shown(contexts, authority) == "one"
        told = [each.message for each in caplog.records if each.levelno == logging.ERROR]
        assert len(told) == 1, told
        assert "listener SSL keeps its old certificates" in told[0]
        assert says in told[0]
        caplog.clear()
        wall[0] -= away_s
        now[0] += LOOK_EVERY_S
        assert shown(contexts, authority) == "two"
        file.write_text((authority.folder / "one.pem").read_text())
        now[0] += LOOK_EVERY_S
        assert shown(contexts, authority) == "one"


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize(
    ("listeners", "voters"),
    [
        ("SSL://127.0.0.1:9092,CONTROLLER://0.0.0.0:9093", "1@127.0.0.1:9093"),
        ("CONTROLLER://127.0.0.1:9093,SSL://127.0.0.1:9092", "1@here:9093"),  # of which the first one knows nothing
    ],
)
async def test_between_nodes_what_others_would_not_believe_is_not_taken(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listeners: str, voters: str
) -> None:
    now = [0.0]
    monkeypatch.setattr(security_settings, "monotonic", lambda: now[0])
    keystore, truststore = tmp_path / "node.pem", tmp_path / "ca.crt"
    keystore.write_text((authority.folder / "one.pem").read_text())
    truststore.write_text(authority.ca.read_text())
    properties = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": f"{listeners},CLIENTS://127.0.0.1:9094",
        "advertised.listeners": "SSL://127.0.0.1:9092,CLIENTS://127.0.0.1:9094",
        "listener.security.protocol.map": "SSL:SSL,CLIENTS:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "SSL",
        "controller.quorum.voters": voters,
        "ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(truststore),
    }
    config = broker_config(properties)
    found = security_settings.accesses(config, lambda *_: None, lambda *_: None)
    contexts = {name: each.tls for name, each in found.items() if each.tls is not None}
    for listener in ("SSL", "CONTROLLER"):
        tls = security_settings.outgoing(config, listener, "").tls
        assert tls is not None
        contexts[f"to {listener}"] = tls
    assert len(contexts) == 5
    in_force = {name: each.current() for name, each in contexts.items()}

    def changed() -> set[str]:
        now[0] += LOOK_EVERY_S
        return {name for name, each in contexts.items() if each.current() is not in_force[name]}

    other = Authority(tmp_path / "other", "other")
    keystore.write_text(other.issue("foreign").read_text())
    assert changed() == {"CLIENTS"}, "who comes there may believe others than this node does"
    keystore.write_text(authority.issue("elsewhere", names="DNS:elsewhere").read_text())
    takes_any_name = {"CONTROLLER", "to CONTROLLER"} if "here" in voters else set()
    assert changed() == {"CLIENTS"} | takes_any_name
    in_force = {name: each.current() for name, each in contexts.items()}
    keystore.write_text(other.issue("foreign").read_text())
    assert changed() == {"CLIENTS"}
    truststore.write_text(authority.ca.read_text() + other.ca.read_text())
    assert changed() == set(contexts), "with whom to believe comes who it is"


@pytest.mark.spec("CLI-06")
async def test_it_is_known_when_the_certificates_end_and_when_renewed_ones_do(
    authority: Authority, tmp_path: Path
) -> None:
    def end_of(*names: str) -> float:
        """The earliest expiry of these certificates, by openssl."""
        told = [
            subprocess.run(["openssl", "x509", "-noout", "-enddate", "-in", authority.folder / f"{name}.pem"],
                           capture_output=True, text=True, check=True, timeout=20).stdout
            for name in names
        ]  # fmt: skip
        return min(ssl.cert_time_to_seconds(one.strip().removeprefix("notAfter=")) for one in told)

    authority.issue("short", days=1)
    keystore, now = tmp_path / "keystore.pem", [0.0]
    keystore.write_bytes((authority.folder / "one.pem").read_bytes())
    contexts = TlsContexts(settings(authority, ssl_keystore_location=str(keystore)), lambda: now[0], server=True)
    server = Server(Limits(), {"SSL": Access(contexts), "SASL": Access()})
    assert server.certificates_end_s() == {"SSL": end_of("one")}
    keystore.write_bytes((authority.folder / "short.pem").read_bytes())
    now[0] += LOOK_EVERY_S
    assert server.certificates_end_s() == {"SSL": end_of("short")}
    assert end_of("short") < end_of("one")


def test_a_process_does_not_start_with_what_cannot_be_used(tmp_path: Path) -> None:
    broken = tmp_path / "node.pem"
    broken.write_text("half a certificate")
    file = tmp_path / "node.properties"
    lines = ("node.id=1", "listeners=SSL://127.0.0.1:0", "ssl.keystore.type=PEM", f"ssl.keystore.location={broken}")
    file.write_text("\n".join((*lines, f"log.dirs={tmp_path}/data")) + "\n")
    command = [sys.executable, "-m", "ballast_broker", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=ENVIRONMENT)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"broker 1: ssl.keystore.location {broken} has no private key in it" in ended.stderr
    assert "Traceback" not in ended.stderr
