"""Finds the Kubernetes API and how to authenticate, from a kubeconfig file or from inside a pod.

Fields of a kubeconfig that are not supported here (exec plugins, proxies, another identity) are refused by name.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ballast_operator.pem import believing

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Ignoring them would mean to ask another server, to ask as somebody else, or to ask in vain.
NOT_UNDERSTOOD = {
    "cluster": ("proxy-url", "tls-server-name"),
    "user": ("exec", "auth-provider", "as", "as-uid", "as-groups", "as-user-extra"),
}


class KubeconfigError(Exception):
    """There is no usable way to the Kubernetes API."""


class NoKubernetesError(KubeconfigError):
    """Nothing names an API server."""


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """One way to an API server. `token_file` is read again from time to time, since tokens in pods rotate."""

    server: str
    ca_pem: bytes | None = None
    insecure: bool = False
    certificate_pem: bytes | None = None
    key_pem: bytes | None = None
    token: str | None = None
    token_file: Path | None = None
    username: str | None = None
    password: str | None = None
    namespace: str = "default"
    origin: str = "the way to Kubernetes"

    def ssl_context(self) -> ssl.SSLContext | None:
        if not self.server.startswith("https"):
            return None
        try:
            return self._ssl_context()
        except ssl.SSLError as error:
            raise KubeconfigError(f"{self.origin} has something that is no certificate or no key: {error}") from error

    def _ssl_context(self) -> ssl.SSLContext:
        context = believing(self.ca_pem.decode("ascii", "ignore") if self.ca_pem else None)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_pem and self.key_pem:
            with tempfile.NamedTemporaryFile(suffix=".pem") as file:
                file.write(self.certificate_pem + b"\n" + self.key_pem)
                file.flush()
                context.load_cert_chain(file.name)
        return context

    def bearer_token(self) -> str | None:
        if self.token_file is None:
            return self.token
        try:
            return self.token_file.read_text().strip()
        except OSError as error:
            raise KubeconfigError(f"{self.token_file} cannot be read: {error.strerror}") from error


def named_kubeconfig(given: str | None) -> Path | None:
    """The one given, else the first of $KUBECONFIG that exists, or its first; None if none is named."""
    named = [given] if given else [one for one in os.environ.get("KUBECONFIG", "").split(os.pathsep) if one]
    paths = [_expanded(one) for one in named]
    return next((path for path in paths if os.path.isfile(path)), paths[0] if paths else None)


def _expanded(text: str) -> Path:
    """Unchanged if the home directory is unknown, as for a user of a container who is only a number."""
    return Path(os.path.expanduser(text))


def find_access(kubeconfig: str | None = None, context: str | None = None) -> ApiAccess:
    """The kubeconfig given, else the first of $KUBECONFIG that exists, else the pod's service account, else
    ~/.kube/config. With a context the service account is skipped: only kubeconfigs have contexts."""
    named = named_kubeconfig(kubeconfig)
    if named is not None:
        return read_kubeconfig(named, context)
    if context is None and os.path.exists(SERVICE_ACCOUNT / "token"):
        return _in_cluster()
    default = _expanded("~/.kube/config")
    if os.path.exists(default):  # not Path.exists, which raises without permission
        return read_kubeconfig(default, context)
    raise NoKubernetesError("no Kubernetes found: set KUBECONFIG, or start one with ./ballast up")


def _in_cluster() -> ApiAccess:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    return ApiAccess(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ca_pem=(SERVICE_ACCOUNT / "ca.crt").read_bytes(),
        token_file=SERVICE_ACCOUNT / "token",
        namespace=(SERVICE_ACCOUNT / "namespace").read_text().strip(),
    )


def read_kubeconfig(path: Path, context: str | None = None) -> ApiAccess:
    """The access of this context, or of the current one."""
    document = _document(path)
    chosen = _named(document, "contexts", context or document.get("current-context"), "context", path)
    cluster = _named(document, "clusters", chosen.get("cluster"), "cluster", path)
    user = _named(document, "users", chosen["user"], "user", path) if chosen.get("user") else {}
    for kind, holder in (("cluster", cluster), ("user", user)):
        for key in NOT_UNDERSTOOD[kind]:
            if holder.get(key):
                raise KubeconfigError(
                    f"{path}: the {kind} {chosen[kind]} has {key}, which is understood by kubectl but not here"
                )
    return ApiAccess(
        server=_server(cluster, path),
        ca_pem=_pem(cluster, "certificate-authority", path),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        certificate_pem=_pem(user, "client-certificate", path),
        key_pem=_pem(user, "client-key", path),
        token=user.get("token"),
        token_file=path.parent / user["tokenFile"] if user.get("tokenFile") else None,
        username=user.get("username"),
        password=user.get("password"),
        namespace=chosen.get("namespace") or "default",
        origin=str(path),
    )


def _document(path: Path) -> Mapping[str, Any]:
    import yaml  # here, so that commands have a --help before it is installed

    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise KubeconfigError(f"{path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError:
        document = None
    if not isinstance(document, Mapping) or not document:
        raise KubeconfigError(f"{path} is no kubeconfig; ./ballast up prints the one of its cluster")
    return document


def _named(document: Mapping[str, Any], section: str, name: str | None, key: str, path: Path) -> Mapping[str, Any]:
    rows = document.get(section)
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, Mapping) and row.get("name") == name and isinstance(row.get(key) or {}, Mapping):
            return dict(row.get(key) or {})
    raise KubeconfigError(f"{path}: there is no {key} named {name!r}")


def _server(cluster: Mapping[str, Any], path: Path) -> str:
    """The URL of the server. It is parsed here so that an invalid port is found now rather than later."""
    server = str(cluster.get("server") or "").rstrip("/")
    try:
        parts = urlsplit(server)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        raise KubeconfigError(f"{path}: {server!r} is no server such as https://kubernetes:6443")
    return server


def _pem(section: Mapping[str, Any], key: str, path: Path) -> bytes | None:
    if section.get(f"{key}-data"):
        try:
            return base64.b64decode(section[f"{key}-data"])
        except (binascii.Error, TypeError, ValueError) as error:
            raise KubeconfigError(f"{path} has data that is not base64: {error}") from error
    if section.get(key):
        file = path.parent / str(section[key])
        try:
            return file.read_bytes()
        except OSError as error:
            raise KubeconfigError(f"{file}, which {path} names, cannot be read: {error.strerror}") from error
    return None
