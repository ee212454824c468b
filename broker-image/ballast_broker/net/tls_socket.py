"""A socket that encrypts, in the words of one that does not: `BlockingIOError` where it has to wait. Loop thread only.

Python's own TLS socket writes a record of 16 KB at a time and counts it as sent when the kernel has all of it, so there
is nothing to keep between calls; a record that the kernel took half of is offered again with the same bytes.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable

RECORD_BYTES = 16 * 1024
SENT_AT_ONCE = 256 * 1024  # then others have their turn
SMALL_BYTES = 2 * 1024  # what more follows at once travels in one record with it


class TlsSocket:
    def __init__(self, wrapped: ssl.SSLSocket) -> None:
        self._ssl = wrapped
        self._head = b""  # small, and taken as sent: what follows is sent with it
        self.fileno = wrapped.fileno
        self.pending: Callable[[], int] = wrapped.pending  # decrypted already: no selector knows of it
        self.more = False  # the last read brought as much as a record holds, so there may be more
        self.wants_to_write = False  # to go on reading

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
        """How much of it is sent; `flags` says whether more follows at once."""
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
            self._ssl.unwrap()  # says goodbye, and waits for no answer
        self._ssl.close()


def wrap(context: ssl.SSLContext, sock: socket.socket, *, server: bool, host: str | None = None) -> TlsSocket:
    """OSError where it is gone already; `sock` is closed then."""
    try:
        wrapped = context.wrap_socket(sock, server_side=server, do_handshake_on_connect=False, server_hostname=host)
    except (OSError, ValueError) as error:
        sock.close()
        raise OSError(str(error)) from error
    return TlsSocket(wrapped)
