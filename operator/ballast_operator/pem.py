"""Certificates and keys as texts, given to Python's ssl. Needs nothing but that: `./ballast status` comes this way."""

from __future__ import annotations

import ssl
import tempfile


def as_ascii(bundle: str) -> str:
    """Bundles of certificates have names of authorities as comments, in any language."""
    return bundle.encode("ascii", "ignore").decode()


def load_pair(context: ssl.SSLContext, certificate: str, key: str, password: str | None = None) -> None:
    # The ssl module reads certificates from files only; the file is gone before anybody else could look for it.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(certificate + "\n" + key)
        file.flush()
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(file.name, password=password or "")
