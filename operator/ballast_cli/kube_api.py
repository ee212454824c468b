"""A small Kubernetes client on the standard library, for the commands that stand in for kubectl.

It reads a kubeconfig (token, client certificate, basic authentication), knows resources by discovery, and speaks JSON.
What it cannot do, such as login helpers, it refuses with a sentence.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from ballast_cli import CommandError

Obj = dict[str, Any]
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
TIMEOUT_SECONDS = 60.0
# How a server that dies is noticed, before its answer or within it.
LOST = (OSError, http.client.HTTPException)


# Refusals of a server that cannot do it just now.
BUSY = 429
BROKEN = 500


class Refused(CommandError):
    """The server said no; the text is its own."""

    exit_code = 1

    def __init__(self, status: Obj, code: int) -> None:
        reason = status.get("reason") or http.client.responses.get(code, str(code))
        super().__init__(f"Error from server ({reason}): {status.get('message', '')}")
        self.code = code

    @property
    def passing(self) -> bool:
        """Whether the same may be done a moment later: the server is starting, or its storage does not answer it."""
        return self.code == BUSY or self.code >= BROKEN


@dataclass(frozen=True)
class Kind:
    group: str
    version: str
    plural: str
    singular: str
    kind: str
    namespaced: bool
    short_names: tuple[str, ...]
    categories: tuple[str, ...]

    @property
    def qualified(self) -> str:
        """How a line of output names the type."""
        return f"{self.singular}.{self.group}" if self.group else self.singular

    def path(self, namespace: str | None, name: str = "") -> str:
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespaced and namespace:
            base += f"/namespaces/{quote(namespace)}"
        return f"{base}/{self.plural}" + (f"/{quote(name)}" if name else "")


def _named(items: list[Obj], name: str, what: str) -> Obj:
    for item in items:
        if item.get("name") == name:
            found: Obj = item.get(what) or {}
            return found
    raise CommandError(f"the kubeconfig has no {what} named {name!r}.")


def _config_path(explicit: str | None) -> Path:
    from ballast_operator.kubeconfig import named_kubeconfig

    found = named_kubeconfig(explicit) or Path("~/.kube/config").expanduser()
    if not found.is_file():
        raise CommandError(f"there is no kubeconfig at {found}. ./ballast up prints the one of its cluster.")
    return found


class KubeApi:
    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        import yaml

        path = _config_path(kubeconfig)
        try:
            config: Obj = yaml.safe_load(path.read_bytes())
        except OSError as fault:
            raise CommandError(f"{path} cannot be read: {fault.strerror}.") from None
        except yaml.YAMLError:
            config = {}
        if not isinstance(config, dict) or not config:
            raise CommandError(f"{path} is no kubeconfig. ./ballast up prints the one of its cluster.")
        chosen = _named(config.get("contexts") or [], context or config.get("current-context", ""), "context")
        cluster = _named(config.get("clusters") or [], chosen.get("cluster", ""), "cluster")
        user = _named(config.get("users") or [], chosen.get("user", ""), "user")
        self.namespace: str = chosen.get("namespace") or "default"
        self.server = urlsplit(cluster["server"])
        try:
            self.headers = _authorization(user, path.parent)
            self.tls = _tls(cluster, user, path.parent) if self.server.scheme == "https" else None
        except ssl.SSLError as fault:
            raise CommandError(f"{path} has something that is no certificate or no key: {fault}.") from None
        except OSError as fault:
            raise CommandError(f"{fault.filename}, which {path} names, cannot be read: {fault.strerror}.") from None
        except ValueError as fault:
            raise CommandError(f"{path} has data that is not base64: {fault}.") from None
        self._kinds: list[Kind] = []

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self.server.hostname or "", self.server.port
        if self.tls is None:
            return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=self.tls)

    def _send(
        self, method: str, path: str, body: Any, headers: dict[str, str], patient: bool = False
    ) -> http.client.HTTPResponse:
        """A patient reader waits for the rest of an answer for as long as the connection stands."""
        content = None if body is None else json.dumps(body).encode()
        connection = self._connection()
        try:
            # One connection for one answer: it is closed when the answer has been read.
            closing = self.headers | headers | {"Connection": "close"}
            connection.request(method, self.server.path.rstrip("/") + path, content, closing)
            reading = connection.sock
            response = connection.getresponse()
            if patient and not response.isclosed():
                reading.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                reading.settimeout(None)
        except LOST as fault:
            connection.close()
            raise self._lost(fault) from None
        if response.status >= 400:
            with response:
                text = self._read(response)
            try:
                status = json.loads(text)
            except ValueError:
                status = {"message": text.decode(errors="replace")}
            raise Refused(status, response.status)
        return response

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except LOST as fault:
            raise self._lost(fault) from None

    def _lost(self, fault: Exception) -> CommandError:
        return CommandError(f"cannot reach the Kubernetes API at {self.server.geturl()}: {fault}.")

    def call(
        self, method: str, path: str, query: dict[str, str] | None = None, body: Any = None,
        accept: str = "application/json", content_type: str = "application/json",
    ) -> Obj:  # fmt: skip
        whole = path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": accept, "Content-Type": content_type}
        with self._send(method, whole, body, headers) as response:
            decoded: Obj = json.loads(self._read(response))
            return decoded

    def watch(self, path: str, query: dict[str, str], accept: str = "application/json") -> Iterator[Obj]:
        """Events until the server ends the watch, however long nothing happens."""
        whole = f"{path}?{urlencode(query | {'watch': 'true'})}"
        with self._send("GET", whole, None, {"Accept": accept}, patient=True) as response:
            while True:
                try:
                    line = response.readline()
                    event = json.loads(line) if line else None
                except (*LOST, ValueError) as fault:
                    raise self._lost(fault) from None
                if event is None:
                    return
                yield event

    # discovery

    def kinds(self) -> list[Kind]:
        if not self._kinds:
            for path in ("/api", "/apis"):
                document = self.call("GET", path, accept=AGGREGATED)
                if document.get("kind") != "APIGroupDiscoveryList":
                    raise CommandError("the server has no aggregated discovery; it needs Kubernetes 1.30 or later.")
                self._kinds += _kinds_of(document)
        return self._kinds

    def kind(self, text: str) -> Kind:
        """By plural, singular, short name or kind, with or without the group."""
        name, _, group = text.lower().partition(".")
        for kind in self.kinds():
            names = {kind.plural, kind.singular, kind.kind.lower(), *kind.short_names}
            if name in names and (not group or kind.group == group or f"{kind.version}.{kind.group}" == group):
                return kind
        raise CommandError(f'the server doesn\'t have a resource type "{text}".')

    def kind_of(self, obj: Obj) -> Kind:
        group, _, version = str(obj.get("apiVersion", "")).rpartition("/")
        for _attempt in range(2):
            for kind in self.kinds():
                if (kind.group, kind.version, kind.kind) == (group, version, obj.get("kind")):
                    return kind
            self._kinds = []
        raise CommandError(f'the server has no kind "{obj.get("kind")}" in version "{obj.get("apiVersion")}".')

    def category(self, name: str) -> list[Kind]:
        return [kind for kind in self.kinds() if name in kind.categories]


def _kinds_of(document: Obj) -> list[Kind]:
    found: list[Kind] = []
    for group in document["items"]:
        for version in (group.get("versions") or [])[:1]:
            rows = [row for row in version["resources"] if {"list", "create"} & set(row["verbs"])]
            found += [_kind(group["metadata"].get("name", ""), version["version"], row) for row in rows]
    return found


def _kind(group: str, version: str, row: Obj) -> Kind:
    return Kind(
        group,
        version,
        row["resource"],
        row.get("singularResource") or row["resource"],
        row["responseKind"]["kind"],
        row["scope"] == "Namespaced",
        tuple(row.get("shortNames") or ()),
        tuple(row.get("categories") or ()),
    )


def _content(holder: Obj, field: str, base: Path) -> bytes | None:
    if holder.get(f"{field}-data"):
        return base64.b64decode(str(holder[f"{field}-data"]))
    if holder.get(field):
        return (base / str(holder[field])).read_bytes()
    return None


def _authorization(user: Obj, base: Path) -> dict[str, str]:
    if user.get("exec") or user.get("auth-provider"):
        raise CommandError("this kubeconfig logs in through a helper program; use kubectl with it.")
    token = user.get("token")
    if not token and user.get("tokenFile"):
        token = (base / user["tokenFile"]).read_text().strip()
    if token:
        return {"Authorization": f"Bearer {token}"}
    if user.get("username"):
        pair = f"{user['username']}:{user.get('password', '')}".encode()
        return {"Authorization": "Basic " + base64.b64encode(pair).decode()}
    return {}


def _tls(cluster: Obj, user: Obj, base: Path) -> ssl.SSLContext:
    authority = _content(cluster, "certificate-authority", base)
    # Bundles of certificates have names of authorities as comments, in any language.
    context = ssl.create_default_context(cadata=authority.decode("ascii", "ignore") if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate, key = _content(user, "client-certificate", base), _content(user, "client-key", base)
    if certificate and key:
        with tempfile.TemporaryDirectory() as directory:
            pair = Path(directory) / "pair.pem"
            pair.touch(0o600)
            pair.write_bytes(certificate + b"\n" + key)
            context.load_cert_chain(pair)
    return context
