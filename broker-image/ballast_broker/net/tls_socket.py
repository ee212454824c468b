"""Wraps a TLS socket in the interface of a plain one: `BlockingIOError` if it would block. Loop thread only.

Python's TLS socket writes a record of up to 16 KB at a time and counts it as sent once the kernel has all of it, so
nothing is kept between calls; a record that the kernel took in part must be offered again with the same bytes.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable

RECORD_BYTES = 16 * 1024
SENT_AT_ONCE = 256 * 1024  # then other connections have their turn
SMALL_BYTES = 2 * 1024  # parts up to this size share a record with what follows


class TlsSocket:
    def __init__(self, wrapped: ssl.SSLSocket) -> None:
        self._ssl = wrapped
        self._head = b""  # a small part, reported as sent but held back for what follows
        self.fileno = wrapped.fileno
        self.pending: Callable[[], int] = wrapped.pending  # bytes already decrypted, which no selector sees
        self.more = False  # the last read filled a record, so there may be more
        self.wants_to_write = False  # TLS must write before it can read on

    def do_handshake(self) -> None:
        self._ssl.do_handshake()

    def certificate(self) -> bytes | None:
        return self._ssl.getpeercert(binary_form=True)

    # -- reading --------------------------------------------------------------------------------------------------
    def recv_into(self, buffer: memoryview, size: int = 0) -> int:
        self.more = self.wants_to_write = False
        try:
            count = self._ssl.recv_into(buffer, size or len(buffer))
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            self.wants_to_write = True
            raise BlockingIOError from None
        self.more = count >= RECORD_BYTES or self._ssl.pending() > 0
        return count

    def recv(self, size: int) -> bytes:
        buffer = bytearray(min(size, RECORD_BYTES))
        return bytes(buffer[: self.recv_into(memoryview(buffer))])

    # -- writing --------------------------------------------------------------------------------------------------
    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        """Returns how much was sent; `flags` tells whether more follows at once."""
        if flags and len(self._head) + len(data) <= SMALL_BYTES:
            self._head += data
            return len(data)
        view = memoryview(data)
        sent = 0
        try:
            if self._head:
                sent = self._send_with_head(view)
            while sent < len(view) and sent < SENT_AT_ONCE:
                sent += self._ssl.send(view[sent : sent + RECORD_BYTES])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            if not sent:
                raise BlockingIOError from None
        return sent

    def _send_with_head(self, view: memoryview) -> int:
        head = self._head
        with_head = head + bytes(view[: RECORD_BYTES - len(head)])
        sent = self._ssl.send(with_head)
        self._head = with_head[sent:][: max(0, len(head) - sent)]
        return max(0, sent - len(head))

    # -- the end --------------------------------------------------------------------------------------------------
    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._ssl.unwrap()  # sends close_notify; does not wait for the peer's
        self._ssl.close()


def wrap(context: ssl.SSLContext, sock: socket.socket, *, server: bool, host: str | None = None) -> TlsSocket:
    """Wrap a connected socket. OSError if the peer is gone already; `sock` is closed then."""
    try:
        wrapped = context.wrap_socket(sock, server_side=server, do_handshake_on_connect=False, server_hostname=host)
    except (OSError, ValueError) as error:
        sock.close()
        raise OSError(str(error)) from error
    return TlsSocket(wrapped)
