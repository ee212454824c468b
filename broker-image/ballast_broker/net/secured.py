"""Implements connections that have to authenticate: by a certificate (TLS), by SASL, or both.

Until it is authenticated a connection is cheap: it may send only small frames, and has limited time. The plain path
(`connection.py`) knows nothing of all this. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from ballast_broker.net.connection import Connection, descriptor_of
from ballast_broker.net.event_loop import EVENT_READ, EVENT_WRITE
from ballast_broker.net.sasl import Authentication, SaslListener
from ballast_broker.net.tls_socket import SENT_AT_ONCE, wrap
from ballast_broker.net_reply import Dispatch, FileData, Principal
from ballast_broker.security.names import NoName, name_by_rules, subject_of
from ballast_broker.security.tls import TlsContexts, reason_of

if TYPE_CHECKING:
    from ballast_broker.net.server import Server

log = logging.getLogger(__name__)

SETTLED_WITHIN_S = 30.0
READS_PER_TURN: Final = 16
FILE_PIECE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Access:
    """What a listener requires of connections; at least one of the two."""

    tls: TlsContexts | None = None
    sasl: SaslListener | None = None


class SecuredConnection(Connection):
    __slots__ = ("_deadline",)

    def __init__(
        self, server: Server, sock: socket.socket, host: str, listener: str, dispatch: Dispatch, access: Access
    ) -> None:
        self._deadline: asyncio.TimerHandle | None = None
        super().__init__(server, sock, host, listener, dispatch)
        self._deadline = self._loop.call_later(SETTLED_WITHIN_S, self._too_late)
        if access.sasl is not None:
            self.is_known = False
            self.max_frame_bytes = access.sasl.frame_bytes
            self._dispatch = Authentication(access.sasl, dispatch, self, self._loop)

    def settled(self, principal: Principal, dispatch: Dispatch) -> None:
        """The client is authenticated; from now on `dispatch` handles its requests."""
        self.principal = principal
        self.is_known = True
        self._dispatch = dispatch
        self.max_frame_bytes = self._server.max_request_bytes
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        log.info("closing the connection from %s: it has not logged in within %g s", self.host, SETTLED_WITHIN_S)
        self.close(None)

    def close(self, error: BaseException | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        super().close(error)


class TlsConnection(SecuredConnection):
    __slots__ = ("_access", "_shaken", "_tls")

    def __init__(
        self, server: Server, sock: socket.socket, host: str, listener: str, dispatch: Dispatch, access: Access
    ) -> None:
        assert access.tls is not None
        self._access = access
        self._tls = wrap(access.tls.current(), sock, server=True)
        self._shaken = False
        super().__init__(server, cast(socket.socket, self._tls), host, listener, dispatch, access)

    # -- the handshake --------------------------------------------------------------------------------------------
    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._loop.wait_for(self, EVENT_READ)
        except ssl.SSLWantWriteError:
            self._loop.wait_for(self, EVENT_WRITE)
        except (OSError, ValueError) as error:
            log.info("TLS handshake with %s on listener %s failed: %s", self.host, self.listener, reason_of(error))
            self.close(None)
        else:
            self._shaken = True
            self._know_by_certificate()
            if not self.closed:
                self._loop.wait_for(self, EVENT_READ)
                self._read_what_is_decrypted()

    def _know_by_certificate(self) -> None:
        if self._access.sasl is not None:
            return
        assert self._access.tls is not None
        settings = self._access.tls.settings
        principal = self.principal
        certificate = None if settings.client_auth == "none" else self._tls.certificate()
        if certificate is not None:
            try:
                principal = Principal(name=name_by_rules(settings.mapping_rules)(subject_of(certificate)))
            except NoName as error:
                log.info("closing the connection from %s: %s", self.host, error)
                self.close(None)
                return
        self.settled(principal, self._dispatch)

    # -- reading --------------------------------------------------------------------------------------------------
    def on_readable(self) -> None:
        if not self._shaken:
            self._shake_hands()
            return
        for _ in range(READS_PER_TURN):
            super().on_readable()
            if self.closed or not self._tls.more or not self.events & EVENT_READ:
                break
        if self.closed:
            return
        if self._tls.wants_to_write:
            self._tls.wants_to_write = False
            self._loop.wait_for(self, EVENT_WRITE)
        else:
            self._read_what_is_decrypted()

    def resume(self) -> None:
        super().resume()
        self._read_what_is_decrypted()

    def _read_what_is_decrypted(self) -> None:
        """Read decrypted data soon: the kernel has nothing left of it, so the selector would not call us."""
        if not self.closed and self.events & EVENT_READ and self._tls.pending():
            self._loop.call_soon(self._read_on_soon)

    def _read_on_soon(self) -> None:
        if self.closed or not self.events & EVENT_READ:
            return
        try:
            self.on_readable()
        except Exception as error:
            self.close(error)

    # -- writing --------------------------------------------------------------------------------------------------
    def on_writable(self) -> None:
        if self._shaken:
            super().on_writable()
        else:
            self._shake_hands()

    def _send_file(self, part: FileData) -> bool:
        """Read and encrypt in pieces; what the socket does not accept is read again later."""
        if self._file_sent == 0 and part is not self._warmed and not self._server.is_warm(part):
            self._warm(part)
            return False
        descriptor, stop = descriptor_of(part), self._file_sent + SENT_AT_ONCE
        while self._file_sent < part.size:
            if self._file_sent >= stop:
                return False
            size = min(FILE_PIECE_BYTES, part.size - self._file_sent)
            piece = os.pread(descriptor, size, part.position + self._file_sent)
            if not piece:
                raise ConnectionAbortedError("the file ended before the reply did")
            self._file_sent += self._tls.send(piece)
        self._file_sent, self._warmed = 0, None
        self._out.popleft()
        part.release()
        return True
