"""Finds out which bootstrap addresses answer, or explains why none does: the client library only reports a timeout,
and may have tried nothing but the one address that hangs.

Blocks; called in the thread of a cluster's connection, before bootstrap and after a failed one. Sends nothing but a TLS
handshake or an ApiVersions request, neither of which needs authentication.
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
# After the first answer, give the others a moment: it is not known yet which of them will authenticate us.
GRACE_SECONDS = 0.1
# ApiVersions, version 0: length, API key, version, correlation id, null client id.
API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000000 ffff")


def answering(addresses: Sequence[str], context: ssl.SSLContext | None) -> list[str]:
    """The addresses that answer at all, probed in parallel, so that an unreachable node or a stopped process delays
    nobody. Does not check whether they authenticate us."""
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
    """Bytes that any listener has to answer."""
    if context is None:
        return API_VERSIONS
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=_place(address)[0]).do_handshake()
    return outgoing.read()


def why_unreachable(addresses: str, context: ssl.SSLContext | None, shown: str | None) -> str:
    """Why the first address that accepts a connection does not serve us. `context`: with TLS; `shown`: the credential
    that we present, with SASL."""
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
