"""Implements SASL on the server's side of a connection: authentication before any request, and re-authentication.

SaslHandshake names the mechanism, then its messages come in SaslAuthenticate (or bare, after a handshake of version 0).
ApiVersions is answered even before authentication, by the listener's own dispatch. Loop thread only.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ballast_broker.net_reply import Dispatch, Peer, Pending, Principal, Reply
from ballast_broker.security.oauthbearer import OauthbearerError
from ballast_broker.security.properties import PLAIN
from ballast_broker.security.scram import Credential, ScramError, ScramServer, TokenLogin
from ballast_wire.errors import ErrorCode
from ballast_wire.fast.reader import MalformedRequest
from ballast_wire.headers import frame_response, is_flexible, parse_request_header, skip_header_tags
from ballast_wire.messages import message

if TYPE_CHECKING:
    from ballast_broker.net.secured import SecuredConnection

log = logging.getLogger(__name__)

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
HIGHEST = {SASL_HANDSHAKE: 1, SASL_AUTHENTICATE: 2}
WITH_LIFETIME = 1  # the first version of SaslAuthenticate that has a session lifetime
MAX_FRAME_BYTES = 16 * 1024
MAX_FRAME_BYTES_WITH_TICKETS = 64 * 1024  # a ticket lists all groups of its user
FindCredential = Callable[[str, str], Credential | None]
Begin = Callable[[Callable[[str], None]], "Mechanism"]  # gets a callback for the reason of a failure
FindToken = Callable[[str, str, bytes], TokenLogin | None]


def no_token(_token_id: str, _mechanism: str, _salt: bytes) -> TokenLogin | None:
    return None


@dataclass(frozen=True, slots=True)
class SaslListener:
    """The part shared by all connections of a listener."""

    mechanisms: tuple[str, ...]
    plain_users: Mapping[str, str] = field(repr=False)
    find: FindCredential  # user, mechanism
    failure_delay_s: float = 0.1
    find_token: FindToken = no_token  # token id, mechanism, and the salt to use
    max_reauth_ms: int = 0
    max_reauth_ms_of: Mapping[str, int] = field(default_factory=dict)  # mechanism → its own limit
    begin_of: Mapping[str, Begin] = field(default_factory=dict)  # mechanism → factory, for those not implemented here
    frame_bytes: int = MAX_FRAME_BYTES
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def lifetime_ms(self, mechanism: str, shown_ms: int | None) -> int | None:
        """A login's lifetime: the shorter of the configured one and that of the credentials shown. None: unlimited."""
        configured_ms = self.max_reauth_ms_of.get(mechanism, self.max_reauth_ms)
        if configured_ms <= 0:
            return shown_ms
        return configured_ms if shown_ms is None else min(shown_ms, configured_ms)


class Refused(Exception):
    """Authentication failed; the client gets the message."""


class Later(Exception):
    """Repeat the same step once `ready` is done."""

    def __init__(self, ready: asyncio.Future[None]) -> None:
        super().__init__()
        self.ready = ready


class Mechanism(Protocol):
    user: str
    by_token: bool  # by a delegation token
    done: bool
    lifetime_ms: int | None  # of the credentials shown; None: unlimited

    def step(self, message: bytes) -> bytes: ...


class _Plain:
    """RFC 4616: authorization id, user name and password, separated by NULs."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.user = ""
        self.by_token = False
        self.done = False
        self.lifetime_ms: int | None = None

    def step(self, message: bytes) -> bytes:
        try:
            wanted, user, password = message.decode().split("\0")
        except ValueError:
            raise Refused("Invalid SASL/PLAIN response: expected 3 tokens") from None
        if not user:
            raise Refused("Authentication failed: username not specified")
        if not password:
            raise Refused("Authentication failed: password not specified")
        expected = self._users.get(user)
        right = hmac.compare_digest((expected or "").encode(), password.encode())
        if expected is None or not right:
            raise Refused("Authentication failed: Invalid username or password")
        if wanted and wanted != user:
            raise Refused("Authentication failed: Client requested an authorization id that is different from username")
        self.user, self.done = user, True
        return b""


class Authentication:
    """The dispatch of a connection until it is authenticated; afterwards only if its session is limited."""

    def __init__(
        self, listener: SaslListener, dispatch: Dispatch, connection: SecuredConnection, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._listener = listener
        self._dispatch = dispatch
        self._connection = connection
        self._loop = loop
        self._mechanism_name = ""
        self._mechanism: Mechanism | None = None
        self._bare = False  # messages come without Kafka's request header
        self._known_as: tuple[str, str] | None = None  # mechanism and user of a session with limited lifetime
        self._lifetime_ms = 0
        self._ends_at_s = 0.0
        self._over = False

    def __call__(self, peer: Peer, frame: memoryview) -> Reply:
        if self._known_as is not None and self._mechanism is None:
            return self._in_session(peer, frame)
        return self._before(peer, frame)

    def _in_session(self, peer: Peer, frame: memoryview) -> Reply:
        if int.from_bytes(frame[:2], "big") == SASL_HANDSHAKE:
            return self._before(peer, frame)
        if self._loop.time() >= self._ends_at_s:
            raise MalformedRequest("its session has ended and it did not authenticate again")
        return self._dispatch(peer, frame)

    def _before(self, peer: Peer, frame: memoryview) -> Reply:
        if self._over:
            raise MalformedRequest("a request after authentication failed")
        if self._known_as is None and len(frame) > self._listener.frame_bytes:
            raise MalformedRequest(f"a request of {len(frame)} bytes before authentication")
        if self._bare:
            return self._bare_message(bytes(frame))
        header = parse_request_header(frame)
        key, version = header.api_key, header.version
        if key not in HIGHEST:
            if self._known_as is not None:
                return self._in_session(peer, frame)
            if key != API_VERSIONS:
                raise MalformedRequest(f"API key {key} before authentication")
            return self._dispatch(peer, frame)
        if not 0 <= version <= HIGHEST[key]:
            raise MalformedRequest(f"version {version} of API key {key} is not supported")
        name = "SaslHandshake" if key == SASL_HANDSHAKE else "SaslAuthenticate"
        body = skip_header_tags(frame, header.end) if is_flexible(name + "Request", version) else header.end
        try:
            request = message(name + "Request").decode(bytes(frame[body:]), version=version)
        except Exception as error:  # the codec may raise anything on bad bytes
            raise MalformedRequest(f"{name} version {version} cannot be read") from error
        answer = self._handshake if key == SASL_HANDSHAKE else self._authenticate
        return answer(request, version, header.correlation_id)

    def _handshake(self, request: Any, version: int, correlation_id: int) -> Reply:
        known = self._listener.mechanisms
        mechanism = request.mechanism
        error = ErrorCode.NONE
        if self._mechanism is not None:
            error = ErrorCode.ILLEGAL_SASL_STATE
        elif mechanism not in known:
            error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        response = message("SaslHandshakeResponse")(version=version, error_code=error, mechanisms=list(known))
        reply = _framed("SaslHandshake", SASL_HANDSHAKE, response, version, correlation_id)
        if error is not ErrorCode.NONE:
            log.info("%s wants to log in by %.40r: %s", self._connection.host, mechanism, error.name)
            return self._end_with(reply)
        self._mechanism_name, self._mechanism = mechanism, self._begin(mechanism)
        self._bare = version == 0
        return reply

    def _begin(self, name: str) -> Mechanism:
        listener = self._listener
        if name == PLAIN:
            return _Plain(listener.plain_users)
        if name in listener.begin_of:
            return listener.begin_of[name](self._failing)
        nonce = secrets.token_urlsafe(24)
        return ScramServer(
            name,
            lambda user: listener.find(user, name),
            nonce,
            listener.secret,
            lambda token_id, salt: listener.find_token(token_id, name, salt),
        )

    def _authenticate(self, request: Any, version: int, correlation_id: int) -> Reply:
        if self._mechanism is None:
            text = "SaslAuthenticate request received without a SaslHandshake before it"
            return self._refuse(ErrorCode.ILLEGAL_SASL_STATE, text, version, correlation_id)
        try:
            answer = self._step(self._mechanism, request.auth_bytes or b"")
        except Later as later:
            return self._again(later.ready, lambda: self._authenticate(request, version, correlation_id))
        except Refused as refused:
            return self._refuse(ErrorCode.SASL_AUTHENTICATION_FAILED, str(refused), version, correlation_id)
        response = message("SaslAuthenticateResponse")(
            version=version, error_code=ErrorCode.NONE, error_message="", auth_bytes=answer
        )
        if version >= WITH_LIFETIME:
            response.session_lifetime_ms = self._lifetime_ms if self._mechanism is None else 0
        return _framed("SaslAuthenticate", SASL_AUTHENTICATE, response, version, correlation_id)

    def _refuse(self, error: ErrorCode, text: str, version: int, correlation_id: int) -> Reply:
        kind = message("SaslAuthenticateResponse")
        response = kind(version=version, error_code=error, error_message=text, auth_bytes=b"")
        return self._end_with(_framed("SaslAuthenticate", SASL_AUTHENTICATE, response, version, correlation_id))

    def _bare_message(self, token: bytes) -> Reply:
        if self._mechanism is None:
            raise MalformedRequest("a message of SASL before its handshake")
        try:
            answer = self._step(self._mechanism, token)
        except Later as later:
            return self._again(later.ready, lambda: self._bare_message(token))
        except Refused:
            return self._end_with(b"")
        return len(answer).to_bytes(4, "big") + answer

    def _step(self, mechanism: Mechanism, token: bytes) -> bytes:
        """Process a message; returns the reply. The last message authenticates the connection."""
        try:
            answer = mechanism.step(token)
        except (ScramError, OauthbearerError) as error:
            self._failing(str(error))
            text = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
            raise Refused(f"{text} {self._mechanism_name}") from None
        except Refused as refused:
            self._failing(str(refused))
            raise
        if mechanism.done:
            self._known(Principal(name=mechanism.user, by_token=mechanism.by_token), mechanism.lifetime_ms)
        return answer

    def _failing(self, why: str) -> None:
        log.info("login of %s by %s failed: %s", self._connection.host, self._mechanism_name, why)

    def _known(self, principal: Principal, shown_ms: int | None) -> None:
        known_as = (self._mechanism_name, principal.name)
        if self._known_as is not None and self._known_as != known_as:
            text = f"Cannot change principals during re-authentication from User.{self._known_as[1]}"
            raise Refused(f"{text}: User.{principal.name}")
        self._mechanism, self._bare = None, False
        lifetime_ms = self._listener.lifetime_ms(self._mechanism_name, shown_ms)
        self._lifetime_ms = lifetime_ms or 0
        if lifetime_ms is not None:
            self._known_as = known_as
            self._ends_at_s = self._loop.time() + lifetime_ms / 1000
        self._connection.settled(principal, self._dispatch if lifetime_ms is None else self)

    def _again(self, ready: asyncio.Future[None], step: Callable[[], Reply]) -> Reply:
        """Repeat `step` when `ready` is done; nothing more is read from this client until then."""
        told: asyncio.Future[Any] = self._loop.create_future()

        def pass_on(later: asyncio.Future[Any]) -> None:
            if not told.done():
                told.set_result(later.result())

        def go_on(_: object) -> None:
            if told.done():  # the client has gone
                return
            try:
                reply = step()
            except Exception as error:
                told.set_exception(error)
                return
            if isinstance(reply, Pending):
                reply.future.add_done_callback(pass_on)
            else:
                told.set_result((reply,))

        ready.add_done_callback(go_on)
        return Pending(told, pipelined=False, for_this_client_only=True)

    def _end_with(self, reply: bytes) -> Reply:
        """Send a last reply, delayed to slow down guessing, then close the connection."""
        self._over = True
        told: asyncio.Future[tuple[bytes, ...]] = self._loop.create_future()

        def tell() -> None:
            if not told.done():
                told.set_result((reply,) if reply else ())
                told.add_done_callback(lambda _: self._loop.call_soon(self._connection.close, None))

        self._loop.call_later(self._listener.failure_delay_s, tell)
        return Pending(told, pipelined=False, for_this_client_only=True)


def _framed(name: str, key: int, response: Any, version: int, correlation_id: int) -> bytes:
    flexible = is_flexible(name + "Request", version)
    return frame_response(key, correlation_id, response.encode(version=version), flexible=flexible)
