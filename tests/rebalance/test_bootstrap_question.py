"""Whoever listens at a bootstrap address is asked before Spark is started for what it would not answer."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.moves.brokers import Brokers
from tests.rebalance.test_java_and_command import Told, no_spark, parsed

from ballast_cli import command_config
from ballast_local.certificates import make_certificate
from ballast_rebalance import admin, command, session

pytestmark = pytest.mark.spec("REB-08")


@contextlib.contextmanager
def hanging() -> Iterator[str]:
    """Connections are accepted by the system alone, as for a process that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@contextlib.contextmanager
def closing() -> Iterator[str]:
    """As a listener that wants TLS or SASL closes the connection of who speaks something else."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            serving.join()


def asked(address: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[tuple[str, str]]:
    told: Any = Told()
    monkeypatch.setattr(session, "lasting_session", no_spark)
    monkeypatch.setattr(command, "_store", lambda args: told)
    monkeypatch.setattr(admin, "ANSWER_SECONDS", 0.5)
    args = parsed("--bootstrap", address, "--cluster", "demo", "--apply")
    args.client_options = settings
    assert command.run(args) == 3
    looks: list[tuple[str, str]] = told.looks
    return looks


@pytest.mark.parametrize("listener", [hanging, closing])
def test_who_does_not_answer_is_told_and_reported_without_spark(
    listener: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listening: AbstractContextManager[str] = listener()
    with listening as address:
        assert asked(address, monkeypatch) == [("demo", "ClusterUnavailable")]
    why = "it requires TLS or SASL (--command-config), or it hangs"
    assert capsys.readouterr().out == (
        f"ClusterUnavailable: {address} accepts connections, but does not answer Kafka's protocol: {why}\n"
    )


def test_who_hangs_is_not_waited_for_by_tls_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The library waits for the end of a handshake for ever."""
    file = tmp_path / "tls.properties"
    file.write_text("security.protocol=SSL\n")
    with hanging() as address:
        options = command_config.library_options(Namespace(bootstrap=address, command_config=file), "test")
        assert asked(address, monkeypatch, **options) == [("demo", "ClusterUnavailable")]
    assert f"TLS with {address} failed: it does not answer" in capsys.readouterr().out


def test_a_certificate_that_is_not_believed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = make_certificate()
    (tmp_path / "pair.pem").write_text(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair.pem")
    strange = ssl.create_default_context(cadata=make_certificate()[0])

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                context.wrap_socket(self.request, server_side=True).close()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        address = f"127.0.0.1:{server.server_address[1]}"
        try:
            asked(address, monkeypatch, security_protocol="SSL", ssl_context=strange)
        finally:
            server.shutdown()
            serving.join()
    assert f"TLS with {address} failed: " in capsys.readouterr().out


@pytest.mark.timeout(120)
def test_one_that_answers_is_enough(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with Brokers(tmp_path, 1, [0]) as one, hanging() as hung, socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        admin.require_answer(f"127.0.0.1:{deaf.getsockname()[1]},{one.bootstrap}")
        admin.require_answer(f"{hung},{one.bootstrap}")
    assert not [each.name for each in set(threading.enumerate()) - before if each.name.startswith("kafka-io-")]
