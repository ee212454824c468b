"""Implements GSSAPI (RFC 4752), for clients and for this node's own logins. Loop thread, except what runs in threads:
each message of an exchange is processed there.

Imported only if GSSAPI is configured, since it needs `gssapi` and libkrb5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any

import gssapi
from gssapi.exceptions import GSSError

from ballast_broker.net.kerberos_threads import KerberosThreads, TooBusy
from ballast_broker.net.sasl import Later, Refused
from ballast_broker.security.kerberos_names import NameOf, NoLocalName, local_names
from ballast_broker.security.kerberos_settings import KerberosSettings

KERBEROS = gssapi.MechType.kerberos
NO_LAYER = 1  # the only security layer of RFC 4752 that we support: the others are left to TLS
MOST_BYTES = 65_536
OFFER = bytes([NO_LAYER]) + MOST_BYTES.to_bytes(3, "big")
INVALID = "Authentication failed during authentication due to invalid credentials with SASL mechanism GSSAPI"
_caches = count()


class KerberosError(Exception):
    """Kerberos failed; the message has its own words."""


class _Context(gssapi.SecurityContext):  # type: ignore[misc]
    """Raises errors at once, not at the next call."""


_Context.__DEFER_STEP_ERRORS__ = False  # the metaclass ignores it in a class body


def reason_of(error: GSSError) -> str:
    """The mechanism's message, else GSSAPI's, in one line."""
    said = list(error.get_all_statuses(error.min_code, False)) or list(error.get_all_statuses(error.maj_code, True))
    return "; ".join(" ".join(str(each).split()) for each in said)


def _own_key(settings: KerberosSettings) -> Any:
    """The principal's credentials; KerberosError if the keytab has no key for it."""
    try:
        name = gssapi.Name(settings.principal, gssapi.NameType.kerberos_principal)
        keytab = {"keytab": f"FILE:{settings.keytab}"}
        return gssapi.Credentials(name=name, usage="accept", mechs=[KERBEROS], store=keytab)
    except GSSError as error:
        raise KerberosError(f"keytab {settings.keytab}: {reason_of(error)}") from None


def default_realm() -> str:
    """The default realm in krb5.conf; empty if it names none, as in Apache Kafka."""
    try:
        name = gssapi.Name("x", gssapi.NameType.kerberos_principal).canonicalize(KERBEROS)
    except GSSError:
        return ""
    return str(name).rpartition("@")[2]


# -- who comes in -----------------------------------------------------------------------------------------------------
class KerberosListener:
    """The part shared by all connections of a listener. Created at startup; KerberosError if the keytab has no key for
    the principal."""

    def __init__(self, settings: KerberosSettings) -> None:
        self.name_of: NameOf = local_names(settings.rules, default_realm())
        self.threads = KerberosThreads()
        self.credentials = _own_key(settings)

    def begin(self, tell: Callable[[str], None]) -> Gssapi:
        return Gssapi(self, tell)


@dataclass(frozen=True, slots=True)
class _Answer:
    token: bytes = b""
    principal: str | None = None  # set by the last message


class Gssapi:
    """One authentication. `tell` gets the reason of a failure, which the client is not told."""

    def __init__(self, listener: KerberosListener, tell: Callable[[str], None]) -> None:
        self._listener = listener
        self._tell = tell
        self._context = _Context(creds=listener.credentials, usage="accept")
        self._offered = False
        self._answer: asyncio.Future[_Answer] | None = None
        self.user = ""
        self.by_token = False
        self.done = False
        self.lifetime_ms: int | None = None

    def step(self, message: bytes) -> bytes:
        if self._answer is None:
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            try:
                self._answer = self._listener.threads.run(lambda: self._read(message))
            except TooBusy as error:
                raise self._refused(str(error)) from None
            self._answer.add_done_callback(lambda answer: _tell(answer, ready))
            raise Later(ready)
        ended, self._answer = self._answer, None
        try:
            answer = ended.result()
            if answer.principal is not None:
                self.user, self.done = self._listener.name_of(answer.principal), True
        except GSSError as error:
            raise self._refused(reason_of(error)) from None
        except (KerberosError, NoLocalName, TooBusy) as error:
            raise self._refused(str(error)) from None
        return answer.token

    def _refused(self, why: str) -> Refused:
        self._tell(why)
        return Refused(INVALID)

    # -- in the thread --------------------------------------------------------------------------------------------
    def _read(self, message: bytes) -> _Answer:
        context = self._context
        if not context.complete:
            token = context.step(message)
            if token or not context.complete:
                return _Answer(token or b"")
            message = b""
        if not self._offered:
            if message:
                raise KerberosError("it says something where it has only to wait")
            self._offered = True
            return _Answer(context.wrap(OFFER, False).message)
        chosen = context.unwrap(message).message
        if len(chosen) < len(OFFER) or not chosen[0] & NO_LAYER:
            raise KerberosError(f"it chooses a security layer that was not offered: {chosen[:4].hex()}")
        # The rest of the message is an authorization id. Apache Kafka ignores it: the ticket names the principal.
        try:
            return _Answer(principal=str(context.initiator_name))
        except UnicodeDecodeError:
            raise KerberosError("its principal is no text") from None


def _tell(answer: asyncio.Future[_Answer], ready: asyncio.Future[None]) -> None:
    answer.exception()  # mark as retrieved; `step` handles it, unless the client has gone
    ready.set_result(None)


# -- where this node goes ---------------------------------------------------------------------------------------------
class OwnTickets:
    """This node's Kerberos identity towards others: the key in its keytab, and the tickets that libkrb5 gets with it,
    caches in memory and renews after half of their lifetime; while no new ones can be had, the old ones are used until
    they expire. Created at startup; KerberosError if the keytab has no key for the principal."""

    def __init__(self, settings: KerberosSettings) -> None:
        _own_key(settings)
        self.principal = settings.principal
        self._service = settings.service
        self._store = {"client_keytab": f"FILE:{settings.keytab}", "ccache": f"MEMORY:ballast-{next(_caches)}"}
        self._threads = KerberosThreads()
        self._getting = Lock()

    async def begin(self, host: str) -> OwnExchange:
        """Begin a login. ConnectionAbortedError if there is no ticket for the service at that host."""
        exchange = OwnExchange(self._threads)
        await exchange.begin(lambda: self._context(host))
        return exchange

    # -- in a thread ----------------------------------------------------------------------------------------------
    def _context(self, host: str) -> Any:
        name = gssapi.Name(self.principal, gssapi.NameType.kerberos_principal)
        with self._getting:
            own = gssapi.Credentials(name=name, usage="initiate", mechs=[KERBEROS], store=self._store)
        service = gssapi.Name(f"{self._service}@{host}", gssapi.NameType.hostbased_service)
        flags = gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity
        return _Context(name=service, creds=own, usage="initiate", mech=KERBEROS, flags=flags)


class OwnExchange:
    """One login of this node: `token` is to be sent next, until `done`."""

    def __init__(self, threads: KerberosThreads) -> None:
        self._threads = threads
        self._context: Any = None
        self.token = b""
        self.done = False

    async def begin(self, made: Callable[[], Any]) -> None:
        def first() -> bytes:
            self._context = made()
            return self._context.step() or b""

        self.token = await self._run(first)

    async def answer(self, said: bytes) -> None:
        self.token = await self._run(lambda: self._next(said))

    async def _run(self, work: Callable[[], bytes]) -> bytes:
        try:
            return await self._threads.run(work)
        except GSSError as error:
            raise ConnectionAbortedError(f"Kerberos says: {reason_of(error)}") from None
        except (KerberosError, TooBusy) as error:
            raise ConnectionAbortedError(str(error)) from None

    # -- in the thread --------------------------------------------------------------------------------------------
    def _next(self, said: bytes) -> bytes:
        if not self._context.complete:
            return self._context.step(said) or b""
        offered = self._context.unwrap(said).message
        if len(offered) != len(OFFER) or not offered[0] & NO_LAYER:
            raise KerberosError(f"it offers no login without a security layer: {offered[:4].hex()}")
        self.done = True
        wrapped: bytes = self._context.wrap(bytes([NO_LAYER, 0, 0, 0]), False).message
        return wrapped
