"""Whether anybody listens at the addresses that somebody typed: the client library would go on trying for long."""

from __future__ import annotations

import socket

from ballast_cli import CommandError

CONNECT_SECONDS = 3.0


def require_listener(bootstrap: str) -> None:
    """Returns when one of the addresses takes a connection; says what the last of them answered otherwise."""
    why = ""
    for address in bootstrap.split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
            return
        except OSError as error:
            why = f"{address}: {error}"
    raise CommandError(f"{bootstrap} does not answer: {why}")
