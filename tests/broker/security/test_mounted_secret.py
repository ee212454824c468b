"""A mounted Kubernetes Secret as a keystore: a key and a certificate that are replaced while the broker runs."""

from __future__ import annotations

import contextlib
import shutil
import ssl
from pathlib import Path

import pytest
from tests.certificates import Authority, believing

from ballast_broker.config.broker import broker_config
from ballast_broker.config_types import ConfigError
from ballast_broker.security.tls import LOOK_EVERY_S, TlsContexts

pytestmark = pytest.mark.spec("OPR-40")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def contexts(store: Path, ca: Path, clock: Clock) -> TlsContexts:
    prefix = "listener.name.tls.ssl"
    properties = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": "TLS://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        "listener.security.protocol.map": "TLS:SSL,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "1@127.0.0.1:9093",
        "inter.broker.listener.name": "TLS",
        "log.dirs": "/nowhere",
        f"{prefix}.keystore.type": "PEM",
        f"{prefix}.keystore.location": str(store),
        f"{prefix}.truststore.type": "PEM",
        f"{prefix}.truststore.location": str(ca),
    }
    tls = broker_config(properties).listener_security["TLS"].tls
    assert tls is not None
    return TlsContexts(tls, clock, server=True)


def served(found: TlsContexts, ca: Path) -> bytes | None:
    """The certificate that a client gets now."""
    client = believing(ca)
    client_in, client_out, server_in, server_out = (ssl.MemoryBIO() for _ in range(4))
    coming = client.wrap_bio(client_in, client_out, server_hostname="localhost")
    there = found.current().wrap_bio(server_in, server_out, server_side=True)
    for side, out, to in ((coming, client_out, server_in), (there, server_out, client_in), (coming, None, None)):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
        if out is not None and to is not None:
            to.write(out.read())
    return coming.getpeercert(True)


def test_a_mounted_secret_is_read_and_followed_when_it_is_renewed(tmp_path: Path) -> None:
    authority, clock = Authority(tmp_path), Clock()
    first, second = authority.issue("first"), authority.issue("second")
    store = tmp_path / "mounted"
    store.mkdir()
    shutil.copy(first.with_suffix(".key"), store / "tls.key")
    with pytest.raises(ConfigError, match=r"tls\.crt cannot be read"):
        contexts(store, authority.ca, clock)
    shutil.copy(first.with_suffix(".crt"), store / "tls.crt")
    found = contexts(store, authority.ca, clock)
    before = served(found, authority.ca)
    assert before == ssl.PEM_cert_to_DER_cert(first.with_suffix(".crt").read_text())
    # One file after the other: a key and a certificate that do not match are not loaded.
    for name, expected in (("tls.key", first), ("tls.crt", second)):
        shutil.copy(second.with_suffix(Path(name).suffix), store / name)
        clock.now += LOOK_EVERY_S
        shown = ssl.PEM_cert_to_DER_cert(expected.with_suffix(".crt").read_text())
        assert served(found, authority.ca) == shown


def test_both_files_may_be_replaced_by_one_link_as_kubelet_does_it(tmp_path: Path) -> None:
    authority, clock = Authority(tmp_path), Clock()
    store = tmp_path / "mounted"
    store.mkdir()
    for name in ("tls.key", "tls.crt"):
        (store / name).symlink_to(f"..data/{name}")

    def mount(name: str) -> bytes:
        whole, content = authority.issue(name), store / f"..{name}"
        content.mkdir()
        for suffix in (".key", ".crt"):
            shutil.copy(whole.with_suffix(suffix), content / f"tls{suffix}")
        (store / "..new").symlink_to(content.name)
        (store / "..new").replace(store / "..data")
        return ssl.PEM_cert_to_DER_cert(whole.with_suffix(".crt").read_text())

    first = mount("first")
    found = contexts(store, authority.ca, clock)
    assert served(found, authority.ca) == first
    second = mount("second")
    assert served(found, authority.ca) == first, "not at every connection"
    clock.now += LOOK_EVERY_S
    assert served(found, authority.ca) == second
