"""Checks that something listens at the given addresses: the client library would keep retrying for a long time."""

from __future__ import annotations

import socket

from ballast_cli import CommandError

CONNECT_SECONDS = 3.0


def require_listener(bootstrap: str) -> None:
    """Return once one of the addresses accepts a connection; otherwise raise CommandError with each error."""
    failures = []
    for address in bootstrap.split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
            return
        except OSError as error:
            failures.append(f"{address}: {error.strerror or error}")
    raise CommandError(f"no broker answers at {', '.join(failures)}")
