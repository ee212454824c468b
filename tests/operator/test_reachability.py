"""A cluster that cannot be reached is told with the cause, not with how long it was tried."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from kafka.errors import KafkaConnectionError, KafkaTimeoutError, RequestTimedOutError
from kafka.protocol.admin import DescribeQuorumRequest
from tests.operator.world import World

from ballast_local.certificates import make_certificate
from ballast_operator import kafka_client
from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection, KafkaUnavailableError
from ballast_operator.reachability import answering, why_unreachable

pytestmark = pytest.mark.spec("OPR-25")


@contextmanager
def listening(context: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server that takes connections, with TLS if it is given, and answers nothing."""
    server = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                plain, _ = server.accept()
            except OSError:
                return
            taken.append(plain)
            if context is not None:
                try:
                    taken[-1] = context.wrap_socket(plain, server_side=True)
                except (OSError, ssl.SSLError):
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)
        for one in taken:
            one.close()


def nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_an_address_where_nobody_listens_and_one_where_somebody_else_does() -> None:
    assert "refused" in why_unreachable(nobody(), None, None)
    with listening() as address:
        assert why_unreachable(f"{nobody()},{address}", None, None).endswith("it may want TLS or SASL")
        assert "did not authenticate user operator" in why_unreachable(address, None, "user operator")


def test_a_certificate_that_is_not_believed(tmp_path: Path) -> None:
    certificate, key = make_certificate()
    (tmp_path / "pair.pem").write_text(certificate + key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "pair.pem")
    with listening(server) as address:
        strange = ssl.create_default_context(cadata=make_certificate()[0])
        assert "the certificate is not believed" in why_unreachable(address, strange, None)
        known = ssl.create_default_context(cadata=certificate)
        assert why_unreachable(address, known, None).endswith("it may want SASL")


async def test_a_secret_that_holds_no_certificate_is_said() -> None:
    connection = KafkaConnection(ConnectionSettings(nobody(), tls=True, ca_pem="no certificate"))
    try:
        with pytest.raises(KafkaUnavailableError, match="Secret for TLS cannot be used"):
            await connection.supports(DescribeQuorumRequest)
    finally:
        await connection.close()


async def test_a_cluster_that_is_away_costs_nothing_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an operator that looks at it for a day has thousands of threads, each with sockets of its own."""
    monkeypatch.setattr(kafka_client, "BOOTSTRAP_TIMEOUT_MS", 100)
    connection = KafkaConnection(ConnectionSettings("127.0.0.1:1"))
    before = set(threading.enumerate())
    for _ in range(3):
        with pytest.raises(KafkaUnavailableError):
            await connection.supports(DescribeQuorumRequest)
    assert not [each.name for each in set(threading.enumerate()) - before if each.name.startswith("kafka-io-")]
    await connection.close()


def test_a_node_that_is_cut_off_costs_who_connects_nothing(ballast_world: World) -> None:
    """The library asked one at random and waited for it until the time was over: the cluster was Unreachable."""
    with listening() as one, listening() as other:
        addresses = ",".join([one, other, *ballast_world.bootstrap.split(",")[:1]])
        for _ in range(3):
            connection = KafkaConnection(ConnectionSettings(addresses))
            began = time.monotonic()
            try:
                assert ballast_world.run(connection.supports(DescribeQuorumRequest))
            finally:
                ballast_world.run(connection.close())
            assert time.monotonic() - began < kafka_client.BOOTSTRAP_TIMEOUT_MS / 1000


def test_whoever_answers_is_found_by_whatever_he_answers(tmp_path: Path) -> None:
    certificate, key = make_certificate()
    (tmp_path / "pair.pem").write_text(certificate + key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "pair.pem")
    strange = ssl.create_default_context(cadata=make_certificate()[0])
    with listening(server) as secured, listening() as silent:
        assert answering([silent, secured, nobody(), "nonsense"], strange) == [secured]
        assert answering([silent, nobody()], None) == []


class Brokers:
    """The library's manager, as far as it is asked: broker 0 fails, and is first until it is passed over."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure
        self._passed_over = False
        self.cluster = SimpleNamespace()
        self.config = {"request_timeout_ms": 1000}

    def least_loaded_node(self) -> int:
        return int(self._passed_over)

    def update_backoff(self, node: int) -> None:
        self._passed_over = node == 0

    async def send(self, request: str, node_id: int) -> str:
        if node_id == 0:
            self._passed_over |= isinstance(self._failure, KafkaConnectionError)
            raise self._failure
        return f"{request} by {node_id}"


@pytest.mark.parametrize("failure", [RequestTimedOutError(), KafkaTimeoutError(), KafkaConnectionError()])
async def test_a_broker_that_hangs_is_passed_over(failure: Exception) -> None:
    """One that is frozen lets everybody in and greets nobody, which is no lost connection."""
    assert await kafka_client._send_one(Brokers(failure), "done", None) == "done by 1"
    answers = await kafka_client._send_side_by_side(Brokers(failure), ["done", "too"])
    assert [(answer.response, answer.again) for answer in answers] == [("done by 1", True), ("too by 1", True)]
