"""Loads PEM texts into Python's ssl. Needs only the standard library: `./ballast status` uses it, too."""

from __future__ import annotations

import ssl
import tempfile


def as_ascii(bundle: str) -> str:
    """Strip non-ASCII characters: bundles name their CAs in comments, in any language."""
    return bundle.encode("ascii", "ignore").decode()


def believing(authorities: str | None) -> ssl.SSLContext:
    """A client context that trusts these CAs, or else the system's; the same with every Python. From 3.13 on, Python's
    default rejects CAs as `openssl req -x509` makes them, which older clusters have, and accepts intermediate CAs."""
    context = ssl.create_default_context(cadata=as_ascii(authorities) if authorities else None)
    context.verify_flags = context.verify_flags & ~ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def load_pair(context: ssl.SSLContext, certificate: str, key: str, password: str | None = None) -> None:
    # The ssl module reads certificate chains from files only; this one is deleted at once.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(certificate + "\n" + key)
        file.flush()
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(file.name, password=password or "")
