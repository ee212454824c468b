"""Makes certificate authorities and certificates for tests with openssl, as a user would."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

HERE = "IP:127.0.0.1,DNS:localhost"
DAYS = 30


def openssl(*arguments: object) -> str:
    command = ["openssl", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, timeout=60, text=True, check=False)
    assert ended.returncode == 0, f"{command}: {ended.stderr}"
    return ended.stdout


def believing(ca: Path) -> ssl.SSLContext:
    """A client's context that trusts `ca`. Python's default context is stricter from 3.13 on and refuses these CAs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca)
    return context


class Authority:
    """A certificate authority. Others trust the file `ca`; `issue` returns a file with a key and its certificate."""

    def __init__(self, folder: Path, name: str = "tests", under: Authority | None = None) -> None:
        """`under`: the authority that issues this one's certificate; by default it issues its own."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = folder / f"{name}-ca.crt"
        self._key = folder / f"{name}-ca.key"
        _new_key(self._key)
        by = () if under is None else ("-CA", under.ca, "-CAkey", under._key)
        openssl("req", "-x509", "-new", "-key", self._key, "-subj", f"/CN={name}", "-days", DAYS, "-out", self.ca, *by)

    def issue(
        self, name: str, *, subject: str | None = None, names: str = HERE, days: int = DAYS, password: str | None = None
    ) -> Path:
        key, request, extensions = (self.folder / f"{name}.{each}" for each in ("key", "csr", "ext"))
        certificate, whole = self.folder / f"{name}.crt", self.folder / f"{name}.pem"
        _new_key(key)
        openssl("req", "-new", "-utf8", "-key", key, "-subj", subject or f"/CN={name}", "-out", request)
        extensions.write_text(f"extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName={names}\n")
        openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key, "-CAcreateserial", "-days", days,
                "-out", certificate, "-extfile", extensions)  # fmt: skip
        if password is not None:
            plain = key.rename(key.with_suffix(".open"))
            openssl("pkcs8", "-topk8", "-v2", "aes-256-cbc", "-in", plain, "-passout", f"pass:{password}", "-out", key)
        whole.write_text(key.read_text() + certificate.read_text())
        return whole


def _new_key(path: Path) -> None:
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)
    path.chmod(0o600)
