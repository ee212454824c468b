"""Which addresses of a cluster answer, and why none does, in words: the client library only says that it tried for so
long, and may have tried nothing but the one that hangs.

Blocks; called in the thread of a cluster's connection, before its bootstrap and after one that failed. Sends nothing
but a TLS handshake or the question which requests are known, which anybody may ask.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
from collections.abc import Sequence

from ballast_operator.clock import monotonic

CONNECT_SECONDS = 3.0
# With TLS 1.3 a server refuses a client's certificate only after the handshake.
ALERT_SECONDS = 1.0
ANSWER_SECONDS = 2.0
# When one has answered, those that are about to are waited for: which of them believes us is not known yet.
GRACE_SECONDS = 0.1
# ApiVersions, version 0, of no client in particular: length, key, version, correlation, no client id.
API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000000 ffff")


def answering(addresses: Sequence[str], context: ssl.SSLContext | None) -> list[str]:
    """Those that answer anything at all, asked side by side: a node that is cut off, or a process that is held, takes
    no longer than the others. Whether they let us in is not asked."""
    found: list[str] = []
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for address in addresses:
            with contextlib.suppress(OSError, ValueError):
                plain = stack.enter_context(_begun(address))
                selector.register(plain, selectors.EVENT_WRITE, (plain, address))
        end = monotonic() + ANSWER_SECONDS
        while selector.get_map() and monotonic() < end:
            for key, events in selector.select(end - monotonic()):
                plain, address = key.data
                try:
                    if events & selectors.EVENT_WRITE:
                        plain.send(_greeting(address, context))
                        selector.modify(plain, selectors.EVENT_READ, key.data)
                        continue
                    if plain.recv(1):
                        found.append(address)
                        end = min(end, monotonic() + GRACE_SECONDS)
                except (OSError, ValueError):
                    pass  # refused, or cut; or no name that TLS could ask for
                selector.unregister(plain)
    return found


def _begun(address: str) -> socket.socket:
    host, port = _place(address)
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    plain = socket.socket(family, kind, protocol)
    plain.setblocking(False)
    plain.connect_ex(where)
    return plain


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.strip().rpartition(":")
    return host.strip("[]"), int(port)


def _greeting(address: str, context: ssl.SSLContext | None) -> bytes:
    """What whoever listens there has to answer."""
    if context is None:
        return API_VERSIONS
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=_place(address)[0]).do_handshake()
    return outgoing.read()


def why_unreachable(addresses: str, context: ssl.SSLContext | None, shown: str | None) -> str:
    """What the first address that can be asked answers; `context` where TLS is configured, `shown` where SASL is: by
    what it should have known us."""
    reason = "there is no address"
    for address in addresses.split(","):
        try:
            host, port = _place(address)
            with socket.create_connection((host, port), timeout=CONNECT_SECONDS) as plain:
                if context is not None:
                    _handshake(plain, context, host)
        except ssl.SSLError as error:
            return f"TLS with {address} failed: {_words(error)}"
        except (OSError, ValueError) as error:
            reason = f"{address}: {error}"
            continue
        if shown is not None:
            return f"{address} can be reached, but did not authenticate {shown}"
        return f"{address} can be reached, but does not answer; it may want {'SASL' if context else 'TLS or SASL'}"
    return reason


def _handshake(plain: socket.socket, context: ssl.SSLContext, host: str) -> None:
    with context.wrap_socket(plain, server_hostname=host) as secured:
        secured.settimeout(ALERT_SECONDS)
        try:
            secured.recv(1)
        except TimeoutError:
            # Nothing was refused: the server waits for a request.
            return


def _words(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not believed: {error.verify_message}"
    return str(error.reason or error).lower().replace("_", " ")
