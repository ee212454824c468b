"""An OAuth identity provider: signing keys, and a small HTTP server that publishes them and issues tokens."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

ISSUER, AUDIENCE = "https://issuer.example", "kafka"
CLIENTS = {"node": "s3cret of node", "alice": "s3cret of alice"}
CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def new_key(algorithm: str = "RS256", bits: int = 2048) -> Private:
    if algorithm in CURVES:
        return ec.generate_private_key(CURVES[algorithm])
    return rsa.generate_private_key(65537, bits)


def jwk(key: Private, kid: str | None = None, **more: Any) -> dict[str, Any]:
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        found = RSAAlgorithm.to_jwk(public, as_dict=True)
    else:
        found = ECAlgorithm.to_jwk(public, as_dict=True)
    found.pop("key_ops", None)
    return found | ({} if kid is None else {"kid": kid}) | more


def claims(**changes: Any) -> dict[str, Any]:
    """The claims of a valid token, with changes; None removes a claim."""
    now = int(time.time())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now - 60, "exp": now + 600, "scope": "kafka"}
    return {name: value for name, value in (good | changes).items() if value is not None}


def signed(key: Private, kid: str | None = "one", algorithm: str = "RS256", **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm, headers={} if kid is None else {"kid": kid})


def raw_token(header: Any, payload: Any, signature: bytes = b"x" * 32) -> str:
    def part(each: Any) -> str:
        text = each if isinstance(each, bytes) else json.dumps(each).encode()
        return base64.urlsafe_b64encode(text).rstrip(b"=").decode()

    return ".".join(map(part, (header, payload, signature)))


class Provider:
    """A context manager. `keys` are the published keys by id; a set `answer` replaces every response from then on."""

    def __init__(self, certificate: Path | None = None, port: int = 0) -> None:
        self.keys: dict[str, Private] = {"one": new_key()}
        self.lifetime_s = 600
        self.answer: tuple[int, bytes] | None = None  # status and body that replace the real response
        self.asked: list[str] = []
        self.before_answer: Callable[[], object] = lambda: None
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(self.path)
                provider.before_answer()
                self._say(*(provider.answer or (200, provider.jwks())))

            def do_POST(self) -> None:
                provider.asked.append(self.path)
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self._say(*(provider.answer or provider.grant(self.headers["Authorization"] or "", form)))

            def _say(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port: int = self._server.server_address[1]
        self.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{self.port}"
        self.jwks_url, self.token_url = f"{self.url}/keys", f"{self.url}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Provider:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def jwks(self) -> bytes:
        return json.dumps({"keys": [jwk(key, name, use="sig") for name, key in self.keys.items()]}).encode()

    def token(self, sub: str | None = "alice", kid: str = "one", **changes: Any) -> str:
        return signed(self.keys[kid], kid, sub=sub, **changes)

    def grant(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, bytes]:
        """Issue a token to a client that knows its secret."""
        name, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if form.get("grant_type") != ["client_credentials"] or CLIENTS.get(name) != secret:
            return 401, b'{"error":"invalid_client","error_description":"who are you?"}'
        kid = next(reversed(self.keys))
        token = self.token(
            name, kid, exp=int(time.time()) + self.lifetime_s, scope=form.get("scope"), jti=str(len(self.asked))
        )
        answer = {"access_token": token, "expires_in": self.lifetime_s, "token_type": "Bearer"}
        return 200, json.dumps(answer).encode()
