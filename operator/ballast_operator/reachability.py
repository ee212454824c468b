"""Why a cluster cannot be reached, in words: the client library only says that it tried for so long.

Blocks; called in the thread of a cluster's connection after its bootstrap failed. Sends nothing but a TLS handshake.
"""

from __future__ import annotations

import socket
import ssl

CONNECT_SECONDS = 3.0
# With TLS 1.3 a server refuses a client's certificate only after the handshake.
ALERT_SECONDS = 1.0


def why_unreachable(addresses: str, context: ssl.SSLContext | None, shown: str | None) -> str:
    """What the first address that can be asked answers; `context` where TLS is configured, `shown` where SASL is: by
    what it should have known us."""
    reason = "there is no address"
    for address in addresses.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS) as plain:
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
    with context.wrap_socket(plain, server_hostname=host.strip("[]")) as secured:
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
