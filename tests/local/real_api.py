"""Runs a real kube-apiserver on a real etcd, both on loopback, without controllers, nodes or root."""

from __future__ import annotations

import base64
import json
import secrets
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from e2e.processes import free_ports

START_SECONDS = 120.0


class RealApi:
    """A context manager; `kubeconfig` has the same form as the embedded API's."""

    def __init__(self, programs: Path, data: Path) -> None:
        self._programs, self._data = programs, data
        self._running = ExitStack()
        self.kubeconfig = data / "kubeconfig"

    def __enter__(self) -> RealApi:
        try:
            self._start()
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _start(self) -> None:
        client, peer, port = free_ports(3)
        self._spawn(
            "etcd", "--name=one", f"--data-dir={self._data / 'etcd'}", "--unsafe-no-fsync",
            f"--listen-client-urls=http://127.0.0.1:{client}", f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=one=http://127.0.0.1:{peer}",
        )  # fmt: skip
        token, key = secrets.token_hex(16), self._data / "accounts.key"
        (self._data / "tokens.csv").write_text(f'{token},tester,1,"system:masters"\n')
        subprocess.run(
            ["openssl", "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", key],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        process = self._spawn(
            str(self._programs / "kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{client}",
            f"--secure-port={port}", "--bind-address=127.0.0.1", f"--cert-dir={self._data / 'certificates'}",
            f"--token-auth-file={self._data / 'tokens.csv'}", "--authorization-mode=AlwaysAllow",
            "--service-account-issuer=https://here", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
        )  # fmt: skip
        server = f"https://127.0.0.1:{port}"
        certificate = self._data / "certificates" / "apiserver.crt"
        self._await_ready(process, server, token)
        (self._data / "tls.crt").write_bytes(certificate.read_bytes())
        authority = base64.b64encode(certificate.read_bytes()).decode()
        config = {
            "clusters": [{"name": "real", "cluster": {"server": server, "certificate-authority-data": authority}}],
            "users": [{"name": "real", "user": {"token": token}}],
        }
        self.kubeconfig.write_text(json.dumps(config))

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        log = self._running.enter_context((self._data / f"{Path(command[0]).name}.log").open("wb"))
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._data)
        self._running.callback(process.wait)
        self._running.callback(process.kill)
        return process

    def _await_ready(self, process: subprocess.Popen[bytes], server: str, token: str) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(f"{server}/readyz", headers={"Authorization": f"Bearer {token}"})
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(request, context=context, timeout=5):
                    return
            except (urllib.error.URLError, OSError) as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the real API is not ready: {error}\n{self._tail()}") from None
                time.sleep(0.2)

    def _tail(self) -> str:
        return "\n".join((self._data / "kube-apiserver.log").read_text(errors="replace").splitlines()[-15:])
