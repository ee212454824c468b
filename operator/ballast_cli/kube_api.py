"""A small Kubernetes client on the standard library, for the commands that stand in for kubectl.

It finds resources by discovery and speaks JSON. Every failure becomes a CommandError.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote as quoted
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

from ballast_cli import CommandError
from ballast_cli.nearest import meant
from ballast_cli.places import kept
from ballast_operator.kubeconfig import ApiAccess, KubeconfigError, NoKubernetesError, find_access

Obj = dict[str, Any]
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
TIMEOUT_SECONDS = 60.0
# Raised when the connection is lost, before or within a response.
LOST = (OSError, http.client.HTTPException)


NOT_FOUND = 404
# Status codes that may be temporary: BUSY, and BROKEN and above.
BUSY = 429
BROKEN = 500


class Refused(CommandError):
    """The server refused a request; the text is its own."""

    exit_code = 1

    def __init__(self, status: Obj, code: int) -> None:
        reason = status.get("reason") or http.client.responses.get(code, str(code))
        super().__init__(f"Error from server ({reason}): {status.get('message', '')}")
        self.code = code

    @property
    def is_transient(self) -> bool:
        """Whether a retry may succeed: the server is starting, or its storage does not respond."""
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
        """The type as shown in output."""
        return f"{self.singular}.{self.group}" if self.group else self.singular

    def shown(self, name: str) -> str:
        return f"{self.qualified}/{name}"

    def path(self, namespace: str | None, name: str = "") -> str:
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespaced and namespace:
            base += f"/namespaces/{quote(namespace)}"
        return f"{base}/{self.plural}" + (f"/{quote(name)}" if name else "")


class KubeApi:
    def __init__(self, access: ApiAccess) -> None:
        self.namespace = access.namespace
        self.server = urlsplit(access.server)
        try:
            self.headers = _authorization(access)
            self.tls = access.ssl_context()
        except KubeconfigError as error:
            raise CommandError(f"{error}.") from error
        self._kinds: list[Kind] = []

    @classmethod
    def found(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Connect by the given kubeconfig, or by the one that is found."""
        try:
            access = find_access(kubeconfig, context)
        except NoKubernetesError as error:
            made = kept("up") / "kubeconfig"
            which = f" ./ballast up has made this one: export KUBECONFIG={quoted(str(made))}" if made.is_file() else ""
            raise CommandError(f"{error}.{which}") from error
        except KubeconfigError as error:
            raise CommandError(f"{error}.") from error
        return cls(access)

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self.server.hostname or "", self.server.port
        if self.tls is None:
            return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=self.tls)

    def _send(
        self, method: str, path: str, body: Any, headers: dict[str, str], patient: bool = False
    ) -> http.client.HTTPResponse:
        """If `patient`, reading the body has no timeout, for as long as the connection stands (TCP keepalive)."""
        content = None if body is None else json.dumps(body).encode()
        connection = self._connection()
        try:
            # One connection per request, closed once the response has been read.
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
            text = self._read(response)
        try:
            decoded = json.loads(text)
        except ValueError:
            decoded = None
        if not isinstance(decoded, dict):  # from a proxy, or whatever else listens there
            raise CommandError(f"what answers at {self.server.geturl()} is no Kubernetes API.")
        return decoded

    def watch(self, path: str, query: dict[str, str], accept: str = "application/json") -> Iterator[Obj]:
        """Yield events until the server ends the watch, without a timeout."""
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
        """Find a kind by plural, singular, short name or kind, with or without the group."""
        name, _, group = text.lower().partition(".")
        for kind in self.kinds():
            names = {kind.plural, kind.singular, kind.kind.lower(), *kind.short_names}
            if name in names and (not group or kind.group == group or f"{kind.version}.{kind.group}" == group):
                return kind
        known = [each for kind in self.kinds() for each in (kind.plural, kind.singular)]
        raise CommandError(f'the server doesn\'t have a resource type "{text}".{meant(name, known)}')

    def kind_of(self, obj: Obj) -> Kind:
        for field in ("apiVersion", "kind"):
            if not obj.get(field):
                raise CommandError(f"a document has no {field}: it is not a Kubernetes resource.")
        group, _, version = str(obj["apiVersion"]).rpartition("/")
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


def _authorization(access: ApiAccess) -> dict[str, str]:
    token = access.bearer_token()
    if token:
        return {"Authorization": f"Bearer {token}"}
    if access.username:
        pair = f"{access.username}:{access.password or ''}".encode()
        return {"Authorization": "Basic " + base64.b64encode(pair).decode()}
    return {}
