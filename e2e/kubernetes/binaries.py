"""Builds Kubernetes and the small programs beside it from Go modules whose versions and hashes are pinned here.

Built once per source and machine, and kept in the cache (BALLAST_CACHE, else ~/.cache/ballast). Go finds modules where
its own configuration says. An interrupted build leaves nothing that could be taken for a complete one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from ballast_cli.image_base import cache_folder

MODULES = Path(__file__).parent / "go"
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
ADDONS = ("coredns", "hostdir", "pause")
OLDEST_GO = (1, 21)  # fetches the version that go.mod asks for by itself
LIMIT_SECONDS = 2100.0
COMPONENT_VERSION = "k8s.io/component-base/version"


class BuildError(Exception):
    """The programs cannot be built; the text says why."""


def missing_for_build() -> list[str]:
    """What a build needs and this machine lacks: nothing where all is built already."""
    if built() is not None:
        return []
    if shutil.which("go") is None:
        return ["Go 1.21 or newer (apt-get install golang-go, or from go.dev)"]
    found = re.search(r"go(\d+)\.(\d+)", _go_version())
    if found is None or (int(found[1]), int(found[2])) < OLDEST_GO:
        return [f"Go 1.21 or newer (here is {_go_version().strip()})"]
    return []


def kubernetes_version() -> str:
    text = (MODULES / "controlplane" / "go.mod").read_text()
    found = re.search(r"k8s\.io/kubernetes (v\S+)", text)
    assert found is not None
    return found[1]


def built() -> Path | None:
    """The folder with all programs, if they are built already."""
    folder = _folder()
    return folder if folder.is_dir() else None


def kubectl() -> str:
    """The program that BALLAST_KUBECTL names, else the one that was built; empty if there is none."""
    folder = built()
    return os.environ.get("BALLAST_KUBECTL") or (str(folder / "kubectl") if folder else "")


def binaries(say: Callable[[str], None]) -> Path:
    """The folder with all programs, built now if necessary."""
    folder = _folder()
    if folder.is_dir():
        return folder
    missing = missing_for_build()
    if missing:
        raise BuildError(f"building Kubernetes needs {', '.join(missing)}")
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    fresh.mkdir(parents=True)
    try:
        say(f"building Kubernetes {kubernetes_version()} (about ten minutes the first time)")
        _build("controlplane", fresh, [f"k8s.io/kubernetes/cmd/{name}" for name in CONTROL_PLANE], _version_flags())
        say(f"building {', '.join(ADDONS)}")
        _build("addons", fresh, [f"./{name}" for name in ADDONS], "")
        fresh.replace(folder)
    except OSError:
        if not folder.is_dir():  # another process was faster
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _folder() -> Path:
    return cache_folder() / "kubernetes" / _key()


def _go_version() -> str:
    return subprocess.run(["go", "version"], capture_output=True, text=True, check=False, cwd="/").stdout


def _key() -> str:
    """Changes with the sources and the machine, but not with Go: what another version has built is as good."""
    digest = hashlib.sha256(platform.machine().encode())
    for path in sorted(MODULES.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return f"{kubernetes_version()}-{digest.hexdigest()[:12]}"


def _version_flags() -> str:
    """Linker flags with the version; without them the programs say v0.0.0 and refuse each other."""
    version = kubernetes_version()
    major, minor = version.lstrip("v").split(".")[:2]
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(f"-X {COMPONENT_VERSION}.{name}={value}" for name, value in values.items())


def _build(module: str, target: Path, packages: list[str], flags: str) -> None:
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "auto"}
    command = ["go", "build", "-trimpath", "-ldflags", f"-s -w {flags}".strip(), "-o", f"{target}/", *packages]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=MODULES / module, env=environment, capture_output=True, text=True, check=False,
            timeout=LIMIT_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BuildError(f"building {module} took longer than {time.monotonic() - began:.0f} s") from None
    if done.returncode != 0:
        raise BuildError(f"building {module} failed:\n" + "\n".join(done.stderr.splitlines()[-12:]))
