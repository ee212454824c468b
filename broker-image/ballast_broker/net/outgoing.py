"""Sets up outgoing connections: the TLS handshake and the SASL login, before any request. Loop thread only."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ballast_broker.net.tls_socket import TlsSocket, wrap
from ballast_broker.security.oauthbearer import AFTER_FAILURE, first_message
from ballast_broker.security.properties import GSSAPI, OAUTHBEARER, PLAIN
from ballast_broker.security.scram import Salted, ScramClient, ScramError
from ballast_broker.security.tls import TlsContexts
from ballast_wire.messages import message

if TYPE_CHECKING:
    from ballast_broker.net.kerberos import OwnTickets
    from ballast_broker.net.own_token import OwnTokens
    from ballast_broker.seams import Channel

HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 2


@dataclass(frozen=True, slots=True)
class Login:
    mechanism: str
    user: str
    password: str = field(repr=False)
    found: Salted = field(default_factory=dict, repr=False, compare=False)
    tokens: OwnTokens | None = field(default=None, repr=False)  # with OAUTHBEARER, instead of user and password
    tickets: OwnTickets | None = field(default=None, repr=False)  # with GSSAPI, instead of a password


@dataclass(frozen=True, slots=True)
class Outgoing:
    tls: TlsContexts | None = None
    login: Login | None = None


async def shake_hands(context: ssl.SSLContext, sock: socket.socket, host: str) -> TlsSocket:
    wrapped = wrap(context, sock, server=False, host=host)
    try:
        while True:
            try:
                wrapped.do_handshake()
                return wrapped
            except ssl.SSLWantReadError:
                await _ready(wrapped.fileno(), to_read=True)
            except ssl.SSLWantWriteError:
                await _ready(wrapped.fileno(), to_read=False)
    except BaseException:
        wrapped.close()
        raise


async def _ready(descriptor: int, *, to_read: bool) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    if to_read:
        loop.add_reader(descriptor, ready.set)
    else:
        loop.add_writer(descriptor, ready.set)
    remove: Callable[[int], bool] = loop.remove_reader if to_read else loop.remove_writer
    try:
        await ready.wait()
    finally:
        remove(descriptor)


async def authenticate(channel: Channel, login: Login, host: str) -> int:
    """Log in to a node at this host. Returns the login's lifetime in milliseconds, 0 if unlimited. ConnectionError if
    either side does not accept the other."""
    asked = message("SaslHandshakeRequest")(version=HANDSHAKE_VERSION, mechanism=login.mechanism)
    answer = await channel.call(asked, HANDSHAKE_VERSION)
    if answer.error_code:
        raise ConnectionAbortedError(f"it does not know {login.mechanism}, but {', '.join(answer.mechanisms)}")
    if login.mechanism == OAUTHBEARER:
        said = await _show_token(channel, login)
    elif login.mechanism == GSSAPI:
        said = await _show_ticket(channel, login, host)
    elif login.mechanism == PLAIN:
        said = await _say(channel, login, f"\0{login.user}\0{login.password}".encode())
    else:
        client = ScramClient(login.mechanism, login.user, login.password, secrets.token_urlsafe(24), login.found)
        try:
            said = await _say(channel, login, client.first())
            said = await _say(channel, login, client.final(said.auth_bytes))
            client.check(said.auth_bytes)
        except ScramError as error:
            raise ConnectionAbortedError(f"{login.mechanism} as {login.user} failed: {error}") from None
    return int(said.session_lifetime_ms or 0)


async def _show_token(channel: Channel, login: Login) -> Any:
    assert login.tokens is not None
    token = await login.tokens.current()
    said = await _say(channel, login, first_message(token, login.tokens.extensions))
    if said.auth_bytes:  # the refusal; once we acknowledge it the exchange ends with an error
        login.tokens.refused(token)
        await _say(channel, login, AFTER_FAILURE)
        raise ConnectionAbortedError(f"{login.mechanism} failed: {said.auth_bytes[:200]!r}")
    return said


async def _show_ticket(channel: Channel, login: Login, host: str) -> Any:
    assert login.tickets is not None
    exchange = await login.tickets.begin(host)
    while True:
        said = await _say(channel, login, exchange.token)
        if exchange.done:
            return said
        await exchange.answer(said.auth_bytes)


async def _say(channel: Channel, login: Login, token: bytes) -> Any:
    asked = message("SaslAuthenticateRequest")(version=AUTHENTICATE_VERSION, auth_bytes=token)
    answer = await channel.call(asked, AUTHENTICATE_VERSION)
    if answer.error_code:
        who = f" as {login.user}" if login.user else ""
        raise ConnectionAbortedError(f"{login.mechanism}{who} failed: {answer.error_message}")
    return answer
