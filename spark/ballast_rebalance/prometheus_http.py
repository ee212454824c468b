"""A client of Prometheus's HTTP query API that retries, and never takes a partial answer for a whole one.

Blocking; used by the driver and by Spark's Python workers, so it must be importable without Spark. A server that
answers with `warnings` or `isPartial` has left something out: that is an error here, never a silent hole.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

RETRIED_STATUS = frozenset({429, 500, 502, 503, 504})
REDIRECTS = frozenset({301, 302, 303, 307, 308})
UNKNOWN = {
    401: " (who asks is said by --prometheus-secret or --prometheus-token)",
    403: " (who asks, by --prometheus-secret or --prometheus-token, may not)",
}
MAX_ANSWER_BYTES = 1 << 30
CHUNK_BYTES = 1 << 20


class PrometheusError(RuntimeError):
    """The query could not be answered completely; the message says what the server said."""


class PartialAnswerError(PrometheusError):
    """The server answered and left something out."""


@dataclass(frozen=True)
class Endpoint:
    """Where Prometheus is, the timeouts for each read (`timeout_s`) and for a whole answer (`answer_s`), and retries.

    `headers` contain credentials, so the repr leaves them out. `authorities` are those that may have signed its
    certificate, as PEM; by default those that this machine trusts. `certificate` is the client's, with its key.
    """

    url: str
    timeout_s: float = 60.0
    answer_s: float = 300.0
    attempts: int = 4
    first_pause_s: float = 0.2
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    authorities: str | None = None
    certificate: str | None = field(default=None, repr=False)

    def query(self, expression: str, at_s: float | None = None) -> list[dict[str, Any]]:
        """An instant vector: dictionaries with `metric` and `value`."""
        parameters = {"query": expression} | ({} if at_s is None else {"time": f"{at_s:.3f}"})
        data = self.ask("/api/v1/query", parameters)
        if data.get("resultType") not in ("vector", "scalar"):
            raise PrometheusError(f"{expression}: an instant vector was expected, not {data.get('resultType')}")
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        result: list[dict[str, Any]] = data["result"]
        return result

    def query_range(self, expression: str, start_s: float, end_s: float, step_s: float) -> list[dict[str, Any]]:
        """A matrix: dictionaries with `metric` and `values`."""
        data = self.ask(
            "/api/v1/query_range",
            {"query": expression, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"},
        )
        result: list[dict[str, Any]] = data["result"]
        return result

    def label_values(self, label: str, match: str, start_s: float, end_s: float) -> list[str]:
        """The values of a label among the series that match, sorted."""
        parameters = {"match[]": match, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}"}
        return sorted(self.ask(f"/api/v1/label/{urllib.parse.quote(label)}/values", parameters))

    def scalar(self, expression: str, at_s: float | None = None) -> float | None:
        """The one value of an expression, None where there is no series."""
        result = self.query(expression, at_s)
        if len(result) > 1:
            raise PrometheusError(f"{expression}: one value was expected, not {len(result)}")
        return float(result[0]["value"][1]) if result else None

    def now(self) -> float:
        """The time by the server's clock."""
        found = self.scalar("time()")
        if found is None:
            raise PrometheusError(f"{self.url} answers time() with nothing: is it a Prometheus?")
        return found

    def ask(self, path: str, parameters: Mapping[str, str]) -> Any:
        """The `data` of an answer; transient faults are retried with exponential backoff."""
        pause_s = self.first_pause_s
        for attempt in range(1, self.attempts + 1):
            try:
                return self._ask_once(path, parameters)
            except _PassingFaultError as fault:
                if attempt == self.attempts:
                    raise PrometheusError(f"{self.url}{path}: {fault} ({attempt} attempts)") from fault
                time.sleep(pause_s)
                pause_s *= 2
        raise AssertionError("attempts must be at least 1")

    def _ask_once(self, path: str, parameters: Mapping[str, str]) -> Any:
        url = f"{self.url.rstrip('/')}{path}"
        body = urllib.parse.urlencode(parameters).encode()
        headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
        headers |= dict(self.headers)
        # Long queries need POST; older versions of the label API take only GET.
        if "/label/" in path:
            request = urllib.request.Request(f"{url}?{body.decode()}", headers=headers)
        else:
            request = urllib.request.Request(url, data=body, headers=headers)
        try:
            opener = _opener(self.authorities, self.certificate, is_here(url))
            with opener.open(request, timeout=self.timeout_s) as answer:
                text = self._read(answer)
        except urllib.error.HTTPError as error:
            if error.code in REDIRECTS:
                raise PrometheusError(f"{url} sends elsewhere: give the address {error.headers['Location']}") from error
            detail = _error_of(error)
            if error.code in RETRIED_STATUS:
                raise _PassingFaultError(f"HTTP {error.code} {detail}") from error
            raise PrometheusError(f"{url}: HTTP {error.code} {detail}{UNKNOWN.get(error.code, '')}") from error
        except (OSError, http.client.HTTPException) as error:
            # Refused, timed out, or broken off in the middle of the answer.
            raise _PassingFaultError(str(error)) from error
        return _data_of(text, url)

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        """The body; raises TimeoutError if it takes too long as a whole, even if something comes now and then."""
        deadline, pieces, left = time.monotonic() + self.answer_s, [], MAX_ANSWER_BYTES
        while left and (piece := answer.read1(min(left, CHUNK_BYTES))):
            pieces.append(piece)
            left -= len(piece)
            if time.monotonic() > deadline:
                raise TimeoutError(f"the answer took longer than {self.answer_s:g} s")
        return b"".join(pieces)


class _PassingFaultError(Exception):
    """A transient fault, worth another attempt."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would repeat the query without its body, and send the token to whichever host it names."""

    def redirect_request(self, *_: Any) -> None:
        return None


@lru_cache(maxsize=8)
def _opener(authorities: str | None, certificate: str | None, here: bool = False) -> urllib.request.OpenerDirector:
    """`here`: the server is on this machine, so no proxy can reach it, whatever the environment says."""
    context = alike(ssl.create_default_context(cadata=authorities))
    if certificate:
        _show(context, certificate)
    handlers = [_NoRedirects(), urllib.request.HTTPSHandler(context=context)]
    return urllib.request.build_opener(*handlers, *([urllib.request.ProxyHandler({})] if here else []))


def alike(context: ssl.SSLContext) -> ssl.SSLContext:
    """Make verification the same on every Python: from 3.13 on, the default refuses authorities as `openssl req -x509`
    makes them and older clusters have them, and accepts intermediate ones."""
    context.verify_flags = context.verify_flags & ~ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _show(context: ssl.SSLContext, certificate: str) -> None:
    """Load a client certificate. Python takes it only from a file, but on a disk the key might be found later."""
    with os.fdopen(os.memfd_create("certificate"), "wb", buffering=0) as file:
        file.write(certificate.encode())
        # Without a password given, OpenSSL would prompt on the terminal if the key has one.
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")


def is_here(url: str) -> bool:
    """Whether the URL's host is this machine."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_authorities(text: str) -> str:
    """The text, if there are certificates in it; raises PrometheusError."""
    try:
        if not text.strip():  # Python would take it for none given
            raise ValueError("nothing")
        _opener(text, None)
    except (ssl.SSLError, ValueError) as error:
        raise PrometheusError(f"there are no certificates (PEM): {error}") from error
    return text


def read_certificate(text: str) -> str:
    """The text, if it is a key without a password and its certificate; raises PrometheusError."""
    try:
        _opener(None, text)
    except ssl.SSLError as error:
        raise PrometheusError(f"are not a certificate and its key (PEM, without a password): {error}") from error
    return text


def _data_of(text: bytes, url: str) -> Any:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise _PassingFaultError("the answer is cut off or not JSON") from error
    if not isinstance(document, dict) or document.get("status") != "success" or "data" not in document:
        raise PrometheusError(f"{url}: {document.get('error', 'no data') if isinstance(document, dict) else 'no data'}")
    if document.get("warnings"):
        raise PartialAnswerError(f"{url}: the answer is partial: {'; '.join(document['warnings'])}")
    if document.get("isPartial"):  # as VictoriaMetrics says it, with status success and without a warning
        raise PartialAnswerError(f"{url}: the answer is partial: not all of its storage answered")
    return document["data"]


def _error_of(answer: urllib.error.HTTPError) -> str:
    try:
        body = answer.read(4096)
    except (OSError, http.client.HTTPException) as error:
        return str(error)
    try:
        return str(json.loads(body).get("error", ""))
    except (ValueError, AttributeError):
        return body[:200].decode(errors="replace").strip()
