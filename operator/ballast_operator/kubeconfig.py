"""Where the Kubernetes API is and how to authenticate: from a kubeconfig file or from inside a pod.

What a kubeconfig may hold but is not understood here (exec plugins, auth providers) is refused by name.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubeconfigError(Exception):
    """There is no usable way to the Kubernetes API."""


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

    def ssl_context(self) -> ssl.SSLContext | None:
        if not self.server.startswith("https"):
            return None
        context = ssl.create_default_context(cadata=self.ca_pem.decode("ascii", "ignore") if self.ca_pem else None)
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
        return self.token_file.read_text().strip() if self.token_file else self.token


def named_kubeconfig(given: str | None) -> Path | None:
    """The one given, else the first of $KUBECONFIG that is there, or its first; None where none is named."""
    named = [given] if given else [one for one in os.environ.get("KUBECONFIG", "").split(os.pathsep) if one]
    paths = [Path(one).expanduser() for one in named]
    return next((path for path in paths if path.is_file()), paths[0] if paths else None)


def find_access(kubeconfig: str | None = None) -> ApiAccess:
    """The kubeconfig given, else the first of $KUBECONFIG that is there, else the pod's service account, else
    ~/.kube/config."""
    named = named_kubeconfig(kubeconfig)
    if named is not None:
        return read_kubeconfig(named)
    if (SERVICE_ACCOUNT / "token").exists():
        return _in_cluster()
    default = Path("~/.kube/config").expanduser()
    if default.exists():
        return read_kubeconfig(default)
    raise KubeconfigError("no Kubernetes found: set KUBECONFIG, or start one with ./ballast up")


def _in_cluster() -> ApiAccess:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    return ApiAccess(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ca_pem=(SERVICE_ACCOUNT / "ca.crt").read_bytes(),
        token_file=SERVICE_ACCOUNT / "token",
        namespace=(SERVICE_ACCOUNT / "namespace").read_text().strip(),
    )


def read_kubeconfig(path: Path) -> ApiAccess:
    """The access of the current context."""
    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise KubeconfigError(f"{path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError:
        document = None
    if not isinstance(document, Mapping):
        raise KubeconfigError(f"{path} is no kubeconfig")
    current = document.get("current-context")
    context = _named(document, "contexts", current, "context", path)
    cluster = _named(document, "clusters", context["cluster"], "cluster", path)
    user = _named(document, "users", context["user"], "user", path) if context.get("user") else {}
    for key in ("exec", "auth-provider"):
        if key in user:
            raise KubeconfigError(f"{path}: user {context['user']} uses {key}, which is not supported; use a token")
    return ApiAccess(
        server=cluster["server"].rstrip("/"),
        ca_pem=_pem(cluster, "certificate-authority", path),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        certificate_pem=_pem(user, "client-certificate", path),
        key_pem=_pem(user, "client-key", path),
        token=user.get("token"),
        token_file=Path(user["tokenFile"]) if user.get("tokenFile") else None,
        username=user.get("username"),
        password=user.get("password"),
        namespace=context.get("namespace") or "default",
    )


def _named(document: Mapping[str, Any], section: str, name: str | None, key: str, path: Path) -> Mapping[str, Any]:
    for row in document.get(section) or ():
        if row.get("name") == name:
            return dict(row[key] or {})
    raise KubeconfigError(f"{path}: there is no {key} named {name!r}")


def _pem(section: Mapping[str, Any], key: str, path: Path) -> bytes | None:
    if section.get(f"{key}-data"):
        return base64.b64decode(section[f"{key}-data"])
    if section.get(key):
        return Path(path.parent / section[key]).read_bytes()
    return None
