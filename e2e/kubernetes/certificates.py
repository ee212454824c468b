"""Makes the node's certificates and kubeconfigs with openssl: one authority, one certificate for each component."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

DAYS = "30"
# Name → subject; its groups are those to which Kubernetes' own roles are bound.
SPEAKERS = {
    "admin": "/O=system:masters/CN=admin",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
    "kubelet": "/O=system:nodes/CN=system:node:node1",
}
SERVICE_NAMES = (
    "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
)  # fmt: skip


def make_certificates(folder: Path, server: str, addresses: list[str]) -> None:
    folder.mkdir(parents=True)
    _key(folder / "ca.key")
    _openssl("req", "-x509", "-new", "-key", folder / "ca.key", "-subj", "/CN=ballast-e2e", "-days", DAYS,
             "-out", folder / "ca.crt")  # fmt: skip
    _key(folder / "sa.key")
    _openssl("ec", "-in", folder / "sa.key", "-pubout", "-out", folder / "sa.pub")
    names = [f"IP:{address}" for address in addresses] + [f"DNS:{name}" for name in SERVICE_NAMES]
    _certificate(folder, "apiserver", "/CN=kube-apiserver", ",".join(names))
    for name, subject in SPEAKERS.items():
        _certificate(folder, name, subject)
        (folder / f"{name}.conf").write_text(_kubeconfig(folder, name, server))


def _openssl(*arguments: object) -> None:
    command = ["openssl", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def _key(path: Path) -> None:
    _openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", path)
    path.chmod(0o600)


def _certificate(folder: Path, name: str, subject: str, names: str = "") -> None:
    key, request, extensions = folder / f"{name}.key", folder / f"{name}.csr", folder / f"{name}.ext"
    _key(key)
    _openssl("req", "-new", "-key", key, "-subj", subject, "-out", request)
    alternative = f"\nsubjectAltName={names}" if names else ""
    extensions.write_text(f"extendedKeyUsage=serverAuth,clientAuth{alternative}\n")
    _openssl("x509", "-req", "-in", request, "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-CAcreateserial",
             "-days", DAYS, "-out", folder / f"{name}.crt", "-extfile", extensions)  # fmt: skip


def _kubeconfig(folder: Path, name: str, server: str) -> str:
    def inline(file: str) -> str:
        return base64.b64encode((folder / file).read_bytes()).decode()

    user = f"{{client-certificate-data: {inline(f'{name}.crt')}, client-key-data: {inline(f'{name}.key')}}}"
    return f"""apiVersion: v1
kind: Config
current-context: e2e
clusters: [{{name: e2e, cluster: {{server: "{server}", certificate-authority-data: {inline("ca.crt")}}}}}]
users: [{{name: e2e, user: {user}}}]
contexts: [{{name: e2e, context: {{cluster: e2e, user: e2e}}}}]
"""
