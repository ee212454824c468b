"""Certificates and keys as texts, given to Python's ssl. Needs nothing but that: `./ballast status` comes this way."""

from __future__ import annotations

import ssl
import tempfile


def as_ascii(bundle: str) -> str:
    """Bundles of certificates have names of authorities as comments, in any language."""
    return bundle.encode("ascii", "ignore").decode()


def believing(authorities: str | None) -> ssl.SSLContext:
    """A client's, that believes these authorities, or else those of this machine; the same of every Python. From 3.13
    on its own default refuses authorities as `openssl req -x509` makes them, and as older clusters have them, and takes
    those that are signed by another one."""
    context = ssl.create_default_context(cadata=as_ascii(authorities) if authorities else None)
    context.verify_flags = context.verify_flags & ~ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def load_pair(context: ssl.SSLContext, certificate: str, key: str, password: str | None = None) -> None:
    # The ssl module reads certificates from files only; the file is gone before anybody else could look for it.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(certificate + "\n" + key)
        file.flush()
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(file.name, password=password or "")
