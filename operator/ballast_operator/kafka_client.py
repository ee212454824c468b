"""Connects to one Kafka cluster without ever blocking the operator's event loop.

kafka-python's admin client does I/O in a thread of its own and blocks its caller, so each cluster gets one more thread
that calls it, with a bounded queue. Used from the operator's event loop only. Only this module touches the library's
connection manager; `observe` and `apply.kafka` build messages and get messages back.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import kafka.errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kafka.protocol.admin import DescribeQuorumRequest

from ballast_operator.bearer import TokenProvider, use_for_tokens
from ballast_operator.clock import monotonic
from ballast_operator.pem import as_ascii, load_pair
from ballast_operator.pulse import beat
from ballast_operator.reachability import answering, why_unreachable

T = TypeVar("T")

REQUEST_TIMEOUT_MS = 15_000
BOOTSTRAP_TIMEOUT_MS = 6_000
# For connecting to one broker, before another is tried; the library raises it after failures (setup_timeout_max_ms).
CONNECT_TIMEOUT_MS = 2_000
CALL_TIMEOUT_SECONDS = 60.0
MAX_WAITING_CALLS = 16
MAX_NODES_TRIED = 4
# How long other brokers are tried, in request timeouts: a request that timed out can be retried once.
TRIED_FOR_TIMEOUTS = 4 / 3
SIDE_BY_SIDE = 3
TIMEOUTS = (kafka_errors.RequestTimedOutError, kafka_errors.KafkaTimeoutError)
PASSED_OVER = (kafka_errors.KafkaConnectionError, kafka_errors.NodeNotReadyError, OSError, *TIMEOUTS)


class KafkaUnavailableError(Exception):
    """The cluster could not be reached; nothing is known about its state."""


class KafkaForbiddenError(KafkaUnavailableError):
    """The cluster answers, but does not authorize this request."""


class KafkaBusyError(KafkaUnavailableError):
    """Too many calls are already waiting for this cluster."""


class Answer(NamedTuple):
    """A response; `again` if the request was resent, so that the first attempt may have taken effect unanswered."""

    response: Any
    again: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How to reach a cluster; equal settings may share a connection. `tokens`: with OAUTHBEARER. `service`: with
    GSSAPI, whose tickets are those of the process. `hosts`: which names the certificates at addresses have to carry,
    where it is not the address itself."""

    bootstrap_servers: str
    tls: bool = False
    verify_hostname: bool = True
    ca_pem: str | None = None
    certificate_pem: str | None = None
    key_pem: str | None = None
    key_password: str | None = None
    sasl_mechanism: str | None = None
    username: str | None = None
    password: str | None = None
    tokens: TokenProvider | None = None
    service: str | None = None
    hosts: tuple[tuple[str, str], ...] = ()
    request_timeout_ms: int = REQUEST_TIMEOUT_MS

    @property
    def shown(self) -> str | None:
        """The credential that we present, in words; None without SASL."""
        return None if self.sasl_mechanism is None else "our token" if self.tokens else f"user {self.username}"

    def __repr__(self) -> str:
        return f"ConnectionSettings({self.bootstrap_servers!r}, tls={self.tls}, sasl={self.sasl_mechanism})"


def client_options(settings: ConnectionSettings) -> dict[str, Any]:
    """The library's options for these settings."""
    options: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap_servers.split(","),
        "client_id": "ballast-operator",
        "request_timeout_ms": settings.request_timeout_ms,
        "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
        "reconnect_backoff_max_ms": 2_000,
        "metadata_max_age_ms": 30_000,
        "max_in_flight_requests_per_connection": 10,
    }
    if settings.tls:
        options["ssl_context"] = _ssl_context(settings)
        options["ssl_check_hostname"] = settings.verify_hostname
    protocol = ("SASL_" if settings.sasl_mechanism else "") + ("SSL" if settings.tls else "PLAINTEXT")
    options["security_protocol"] = protocol
    if settings.tokens is not None:
        use_for_tokens()
        options |= {"sasl_mechanism": settings.sasl_mechanism, "sasl_oauth_token_provider": settings.tokens}
    elif settings.service is not None:
        options |= {"sasl_mechanism": settings.sasl_mechanism, "sasl_kerberos_service_name": settings.service}
    elif settings.sasl_mechanism:
        options |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.username,
            "sasl_plain_password": settings.password,
        }
    return options


class _Context(ssl.SSLContext):
    """Verifies certificates against the name in `hosts` where that differs from the address connected to."""

    hosts: Mapping[str, str] = {}

    def wrap_socket(self, sock: socket.socket, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        address = str(options.get("server_hostname"))
        if address in self.hosts:
            options["server_hostname"] = self.hosts[address]
        return super().wrap_socket(sock, *arguments, **options)


def _ssl_context(settings: ConnectionSettings) -> ssl.SSLContext:
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)
    context.hosts = dict(settings.hosts)
    if settings.ca_pem:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Java: trusted, also where the own issuer is not
        context.load_verify_locations(cadata=as_ascii(settings.ca_pem))
    else:
        context.load_default_certs()
    context.check_hostname = settings.verify_hostname
    if settings.certificate_pem and settings.key_pem:
        load_pair(context, settings.certificate_pem, settings.key_pem, settings.key_password)
    return context


class Admin(KafkaAdminClient):  # type: ignore[misc]  # the library has no types
    """The library's client, which leaks its thread and sockets if its constructor fails: they would accumulate with
    every attempt to reach a cluster that is down."""

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except BaseException:
            if hasattr(self, "_client"):
                self._client.close()
            raise
        self._manager.config["socket_connection_setup_timeout_ms"] = CONNECT_TIMEOUT_MS
        self._manager.config["socket_connection_setup_timeout_max_ms"] = BOOTSTRAP_TIMEOUT_MS


class KafkaConnection:
    """One cluster's client. `close` ends its threads; a failed call drops the client, and the next call reconnects."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kafka")
        self._waiting = 0
        self._client: KafkaAdminClient | None = None

    async def send(self, request: Any, node: int | None = None) -> Any:
        """The response to one request, from this node or any."""
        return await self._call(lambda client: client._manager.run(_send_one, client._manager, request, node))

    async def send_to_controller(self, request: Any, errors: Callable[[Any], Sequence[int]]) -> Any:
        """Like `send`, but to the controller: with KRaft any broker forwards it, before KRaft it has to be found."""

        def call(client: KafkaAdminClient) -> Any:
            if _any_broker_passes_on(client):
                return client._manager.run(_send_one, client._manager, request, None)
            return _send_to_controller(client, request, errors)

        return await self._call(call)

    async def send_all_to_controller(
        self, requests: Sequence[Any], errors: Callable[[Any], Sequence[int]]
    ) -> list[Answer]:
        """Like `send_to_controller`, for requests whose order does not matter: a few are in flight at a time."""

        def call(client: KafkaAdminClient) -> list[Answer]:
            if _any_broker_passes_on(client):
                answers: list[Answer] = client._manager.run(_send_side_by_side, client._manager, requests)
                return answers
            return [Answer(_send_to_controller(client, request, errors)) for request in requests]

        return await self._call(call) if requests else []

    async def send_each(self, requests: Mapping[int, Any]) -> dict[int, Any]:
        """Send several brokers a request each, in parallel; the value of a failed one is its exception."""
        if not requests:
            return {}
        result: dict[int, Any] = await self._call(
            lambda client: client._manager.run(_send_each, client._manager, requests)
        )
        return result

    async def supports(self, request: type[Any]) -> bool:
        """Whether the brokers know this request."""
        key = request.API_KEY
        return await self._call(lambda client: key in client._manager.broker_version_data.api_versions)

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            await asyncio.get_running_loop().run_in_executor(self._executor, self._drop)
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _call(self, function: Callable[[KafkaAdminClient], T]) -> T:
        if self._waiting >= MAX_WAITING_CALLS:
            raise KafkaBusyError(f"{self._waiting} calls are waiting for {self.settings.bootstrap_servers}")
        self._waiting += 1
        try:
            future = asyncio.get_running_loop().run_in_executor(self._executor, self._run, function)
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that arrives together with the answer.
            async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                return await future
        except TimeoutError:
            raise KafkaUnavailableError(f"no answer within {CALL_TIMEOUT_SECONDS:.0f} s") from None
        finally:
            self._waiting -= 1
            beat()

    def _run(self, function: Callable[[KafkaAdminClient], T]) -> T:
        """Runs in the cluster's thread."""
        try:
            if self._client is None:
                self._client = self._connect()
            return function(self._client)
        except kafka_errors.AuthorizationError as error:
            raise KafkaForbiddenError(describe_error(error)) from error
        except (kafka_errors.KafkaError, OSError) as error:
            self._drop()
            raise KafkaUnavailableError(describe_error(error)) from error
        except Exception:
            # A client whose thread has ended raises what ended it at every later call.
            self._drop()
            raise

    def _connect(self) -> KafkaAdminClient:
        try:
            options = client_options(self.settings)
        except (ssl.SSLError, ValueError) as error:
            raise KafkaUnavailableError(f"The Secret for TLS cannot be used: {error}") from error
        addresses = options["bootstrap_servers"]
        if len(addresses) > 1:
            # The library picks one of them at random and may spend its whole timeout on it.
            options["bootstrap_servers"] = answering(addresses, options.get("ssl_context")) or addresses
        try:
            return Admin(**options)
        except kafka_errors.KafkaTimeoutError as error:
            tokens = self.settings.tokens
            if tokens is not None and tokens.refusal:
                raise KafkaUnavailableError(f"There is no token to show: {tokens.refusal}") from error
            why = why_unreachable(self.settings.bootstrap_servers, options.get("ssl_context"), self.settings.shown)
            raise KafkaUnavailableError(why) from error

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                client.close()


def error_of(response: Any) -> KafkaUnavailableError:
    """The exception for a response with a top-level error code."""
    error = kafka_errors.for_code(response.error_code)
    kind = KafkaForbiddenError if issubclass(error, kafka_errors.AuthorizationError) else KafkaUnavailableError
    return kind(f"{error.message}: {response.error_message or ''}")


def describe_error(error: BaseException) -> str:
    """A library error in words: its first line, or the class name if there is none."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def _any_broker_passes_on(client: KafkaAdminClient) -> bool:
    """Whether brokers forward requests to the controller, as they do with KRaft."""
    return DescribeQuorumRequest.API_KEY in client._manager.broker_version_data.api_versions


def _send_to_controller(client: KafkaAdminClient, request: Any, errors: Callable[[Any], Sequence[int]]) -> Any:
    """Find the controller and send it the request (before KRaft)."""
    return client._manager.run(
        client._send_request_to_controller,
        request,
        lambda response: [kafka_errors.for_code(code) for code in errors(response)],
        False,
    )


async def _send_one(manager: Any, request: Any, node: int | None) -> Any:
    """Runs on the library's loop. If any broker will do, one that is unreachable or hangs is skipped for the next."""
    if node is not None:
        return await manager.send(request, node_id=node)
    failure: Exception = kafka_errors.NodeNotReadyError("no broker")
    end = monotonic() + TRIED_FOR_TIMEOUTS * manager.config["request_timeout_ms"] / 1000
    for _ in range(MAX_NODES_TRIED):
        chosen = manager.least_loaded_node()
        try:
            return await manager.send(request, node_id=chosen)
        except PASSED_OVER as error:
            failure = error
            _pass_over(manager, chosen, error)
        if monotonic() > end:
            break
    raise failure


def _pass_over(manager: Any, node: Any, error: Exception) -> None:
    """Back off from a broker that timed out: one that accepts connections but never answers counts as connected in the
    library."""
    if isinstance(error, TIMEOUTS) and node is not None:
        manager.update_backoff(node)


async def _send_side_by_side(manager: Any, requests: Sequence[Any]) -> list[Answer]:
    """Runs on the library's loop. Each request goes to the least loaded broker; answers are awaited in order."""
    answers: list[Answer] = []
    under_way: deque[tuple[Any, Any, Any]] = deque()
    for request in requests:
        if len(under_way) == SIDE_BY_SIDE:
            answers.append(await _answer(manager, *under_way.popleft()))
        node = manager.least_loaded_node()
        under_way.append((request, node, manager.send(request, node_id=node)))
    while under_way:
        answers.append(await _answer(manager, *under_way.popleft()))
    return answers


async def _answer(manager: Any, request: Any, node: Any, sent: Any) -> Answer:
    try:
        return Answer(await sent)
    except PASSED_OVER as error:
        _pass_over(manager, node, error)
        return Answer(await _send_one(manager, request, None), again=True)


async def _send_each(manager: Any, requests: Mapping[int, Any]) -> dict[int, Any]:
    """Runs on the library's loop. Refreshes the metadata once if a broker is unknown."""
    if any(manager.cluster.broker_metadata(node) is None for node in requests):
        with contextlib.suppress(kafka_errors.KafkaError):
            await manager.cluster.refresh_metadata()
    pending: dict[int, Any] = {}
    results: dict[int, Any] = {}
    for node, request in requests.items():
        try:
            pending[node] = manager.send(request, node_id=node)
        except kafka_errors.KafkaError as error:
            results[node] = error
    for node, future in pending.items():
        try:
            results[node] = await future
        except (kafka_errors.KafkaError, OSError) as error:
            results[node] = error
    return results
