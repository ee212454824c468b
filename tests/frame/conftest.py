"""Provides a small checkout with the real script and installer, and a loopback package index that can be held up."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 100
COMMAND = """
import importlib.metadata, os, sys
print(os.getpid(), importlib.metadata.version("tiny"), *sys.argv[1:])
"""


def make_wheel(name: str, version: str) -> bytes:
    buffer = io.BytesIO()
    information = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = '{version}'")
        wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        names = "".join(f"{name},,\n" for name in wheel.namelist())
        wheel.writestr(f"{information}/RECORD", f"{names}{information}/RECORD,,\n")
    return buffer.getvalue()


class Index(ThreadingHTTPServer):
    """A package index with a few packages; downloads wait while `open_gate` is not set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), IndexHandler)
        self.wheels = {
            f"{name}-{version}-py3-none-any.whl": make_wheel(name, version)
            for name, version in (("tiny", "1.0"), ("tiny", "2.0"), ("extra", "1.0"))
        }
        self.open_gate = threading.Event()
        self.asked = threading.Semaphore(0)
        self.downloads = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/simple/"

    def lock_text(self, package: str, version: str, digest: str = "") -> str:
        digest = digest or hashlib.sha256(self.wheels[f"{package}-{version}-py3-none-any.whl"]).hexdigest()
        return f"{package}=={version} \\\n    --hash=sha256:{digest}\n"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignored: tests kill clients in the middle of a download."""


class IndexHandler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        name = self.path.rsplit("/", 1)[-1]
        if name in self.server.wheels:
            self.server.asked.release()
            self.server.open_gate.wait(PATIENCE_S)
            self.server.downloads += 1
            self._answer(self.server.wheels[name], "application/octet-stream")
        else:
            links = "".join(f'<a href="/files/{wheel}">{wheel}</a>' for wheel in self.server.wheels)
            self._answer(f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html")

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Silent."""


@dataclass
class Checkout:
    """A checkout with the script, and how to start it."""

    root: Path
    home: Path
    index: Index
    variables: dict[str, str] = field(default_factory=dict)

    def write_lock(self, name: str, version: str, digest: str = "", package: str = "tiny") -> None:
        (self.root / "requirements" / f"{name}.lock").write_text(self.index.lock_text(package, version, digest))

    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        own = {
            "BALLAST_HOME": str(self.home),
            "BALLAST_PYTHON": sys.executable,
            "PIP_INDEX_URL": self.index.url,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_CACHE_DIR": "1",
            "PIP_TIMEOUT": str(PATIENCE_S),  # else a download that waits longer for the gate is begun again
        }
        return clean | own | self.variables

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.root / "ballast", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=self.environment(), cwd=self.root, preexec_fn=hear_hangups,
        )  # fmt: skip

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def hear_hangups() -> None:
    """Let SIGHUP end the child, as at a terminal, even if the tests run under `nohup`."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def make_checkout(root: Path, home: Path, index: Index) -> Checkout:
    (root / "requirements").mkdir(parents=True)
    package = root / "operator" / "ballast_cli"
    package.mkdir(parents=True)
    shutil.copy(ROOT / "ballast", root)
    shutil.copy(ROOT / "requirements" / "install.py", root / "requirements")
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(COMMAND)
    checkout = Checkout(root, home, index)
    for name in ("broker", "operator", "spark", "dev"):
        checkout.write_lock(name, "1.0")
    return checkout


@pytest.fixture(scope="session")
def shared_index() -> Iterator[Index]:
    with Index() as index:
        thread = threading.Thread(target=index.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield index
        index.open_gate.set()
        index.shutdown()
        thread.join()


@pytest.fixture
def index(shared_index: Index) -> Iterator[Index]:
    shared_index.open_gate.set()
    shared_index.downloads = 0
    while shared_index.asked.acquire(blocking=False):
        pass
    yield shared_index
    shared_index.open_gate.set()


@pytest.fixture(scope="session")
def first_start(
    tmp_path_factory: pytest.TempPathFactory, shared_index: Index
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A home directory made by a first start, and that start's output."""
    folder = tmp_path_factory.mktemp("first")
    shared_index.open_gate.set()
    checkout = make_checkout(folder / "root", folder / "home", shared_index)
    return checkout.home, checkout.run("broker", "a b", "--override", "x=y")


@pytest.fixture
def checkout(tmp_path: Path, index: Index) -> Checkout:
    """A checkout with nothing installed yet."""
    return make_checkout(tmp_path / "root", tmp_path / "home", index)


@pytest.fixture
def ready(checkout: Checkout, first_start: tuple[Path, object]) -> Checkout:
    """A checkout with the environment and `broker` installed."""
    shutil.copytree(first_start[0], checkout.home, symlinks=True)
    return checkout
