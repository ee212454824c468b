"""Builds an image's layers on top of its base, with the same contents as the Dockerfiles.

There are two layers: packages from the locks, with hashes, which seldom change; and the sources. Both are cached by
what they were made of. Bytecode is made here, since a container's root is read-only, and the broker modules on the path
of every request are compiled to machine code (`compiled`).
"""

from __future__ import annotations

import enum
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ballast_cli import CommandError, compiled
from ballast_cli.image_archive import write_layer
from ballast_cli.places import ROOT

PLACE = "/opt/ballast"
USER = 10_001
PYTHON = (3, 11)  # the base's version, for which wheels are chosen
PIP_SECONDS = 900.0
# Published only as source archives, which are pure Python: wheels are built from those whose hashes are in the lock.
WITHOUT_WHEEL = ("pyspark",)
COMMAND = 'exec python3 -P -m ballast_cli "$@"'
# Java does not start for a user that is not in /etc/passwd.
PASSWD = f"""root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
ballast:x:{USER}:{USER}::/tmp:/usr/sbin/nologin
"""
# Spark starts its drivers and executors by the image's entry point.
SPARK_COMMAND = f"""case ${{1-}} in driver | executor | spark-submit)
  exec python3 -P -m ballast_rebalance.container "$@" ;;
esac
{COMMAND}"""


def architecture(machine: str) -> str:
    """The name that images use for a machine type."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


class Flavour(enum.Enum):
    BROKER = "broker"
    SPARK = "spark"

    @property
    def image(self) -> str:
        return "ballast" if self is Flavour.BROKER else "ballast-spark"

    @property
    def dockerfile(self) -> Path:
        return ROOT / ("broker-image" if self is Flavour.BROKER else "spark") / "Dockerfile"

    @property
    def locks(self) -> tuple[str, ...]:
        return ("operator",) if self is Flavour.BROKER else ("operator", "spark")

    @property
    def debian_packages(self) -> tuple[str, ...]:
        return ("ca-certificates", "python3-minimal", "libpython3-stdlib")

    @property
    def trees(self) -> tuple[str, ...]:
        """The project's folders that go into the image."""
        job = ("spark/ballast_rebalance",) if self is Flavour.SPARK else ()
        broker = ("broker-image/ballast_broker", "broker-image/ballast_wire") if self is Flavour.BROKER else ()
        executors = ("manifests/spark-executors",) if self is Flavour.SPARK else ()
        return (*broker, "operator", "spark/ballast_planner", *job, "crds", "manifests/examples", *executors)

    @property
    def command(self) -> str:
        """The script that is the image's entry point."""
        return f"#!/bin/sh\n{SPARK_COMMAND if self is Flavour.SPARK else COMMAND}\n"

    def version(self) -> str:
        found: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        return found

    def settings(self, machine: str) -> dict[str, Any]:
        """The image's configuration: user, environment, entry point and default command."""
        parts = [tree.partition("/")[0] for tree in self.trees if "/" in tree or tree == "operator"]
        kept = [part for part in dict.fromkeys(parts) if part != "manifests"]
        paths = [f"{PLACE}/{part}" for part in (*kept, "packages")]
        return {
            "architecture": architecture(machine),
            "config": {
                "User": f"{USER}:{USER}",
                "Env": [
                    "PATH=/usr/local/bin:/usr/bin:/bin",
                    f"PYTHONPATH={':'.join(paths)}",
                    "PYTHONUNBUFFERED=1",
                    "PYTHONDONTWRITEBYTECODE=1",
                    "HOME=/tmp",
                    "USER=ballast",  # the user may have no entry in /etc/passwd
                ],
                "Entrypoint": ["/usr/local/bin/ballast"],
                "Cmd": ["--help"],
                "WorkingDir": "/tmp",
            },
        }


@dataclass(frozen=True)
class Staged:
    packages: Path
    sources: Path


def stage(flavour: Flavour, folder: Path, say: Callable[[str], None]) -> Staged:
    packages = folder / f"packages-{_packages_key(flavour)}.tar"
    if not packages.exists():
        say(f"installing {' and '.join(flavour.locks)} for the image")
        with tempfile.TemporaryDirectory(dir=folder, prefix=".packages-") as place:
            _install(flavour, Path(place) / "packages")
            _compile(Path(place), PLACE)
            write_layer(packages, Path(place), PLACE)
    sources = folder / f"sources-{content_key(flavour)}.tar"
    if not sources.exists():
        for old in sorted(folder.glob("sources-*.tar"), key=lambda path: path.stat().st_mtime)[:-6]:
            old.unlink()
        brokers = compiled.compiled_packages(say) if _is_compiled(flavour) else None
        with tempfile.TemporaryDirectory(dir=folder, prefix=".sources-") as place:
            _copy_sources(flavour, Path(place), brokers)
            write_layer(sources, Path(place), "/")
    return Staged(packages, sources)


def content_key(flavour: Flavour) -> str:
    """A cache key that changes with anything in the image."""
    extra = f"{_packages_key(flavour)} {flavour.command} {PASSWD} {compiled.key() if _is_compiled(flavour) else ''}"
    return compiled.key_of(extra, source_files(flavour), ROOT)


def source_files(flavour: Flavour) -> list[Path]:
    return [path for tree in flavour.trees for path in compiled.files_under(ROOT / tree)]


def missing_for_contents(flavour: Flavour) -> list[str]:
    """What this machine lacks to build the layers on top of a base."""
    return compiled.missing_for_compiler() if _is_compiled(flavour) else []


def _packages_key(flavour: Flavour) -> str:
    digest = hashlib.sha256(f"{PYTHON} {platform.machine()}".encode())
    digest.update(Path(__file__).read_bytes())
    for lock in flavour.locks:
        digest.update((ROOT / "requirements" / f"{lock}.lock").read_bytes())
    return digest.hexdigest()[:12]


def _install(flavour: Flavour, target: Path) -> None:
    """Install packages for the image's Python, whichever Python runs this."""
    locks = "".join((ROOT / "requirements" / f"{lock}.lock").read_text() for lock in flavour.locks)
    from_sdist, from_wheel = split_lock(locks)
    machine = platform.machine()
    platforms = [f"manylinux{version}_{machine}" for version in ("2014", "_2_17", "_2_24", "_2_26", "_2_28", "_2_34")]
    version = ".".join(map(str, PYTHON))
    install = ["install", "--no-deps", "--no-compile", "--target", str(target)]
    image = ["--only-binary=:all:", "--implementation", "cp", "--python-version", version]
    image += [f"--abi=cp{version.replace('.', '')}", "--abi=abi3", "--abi=none"]
    image += [f"--platform={name}" for name in platforms]
    with tempfile.TemporaryDirectory(dir=target.parent.parent, prefix=".wheels-") as place:
        lock = Path(place) / "packages.lock"
        lock.write_text(from_wheel)
        _pip(*install, *image, "--require-hashes", f"--requirement={lock}")
        if from_sdist:
            lock.write_text(from_sdist)
            _pip("wheel", "--no-deps", "--require-hashes", f"--wheel-dir={place}", f"--requirement={lock}")
            _pip(*install, "--no-index", *map(str, sorted(Path(place).glob("*.whl"))))
    shutil.rmtree(target / "bin", ignore_errors=True)
    for tests in sorted(target.rglob("tests"), reverse=True):
        if tests.is_dir():
            shutil.rmtree(tests)


def split_lock(text: str) -> tuple[str, str]:
    """Split a lock into the entries that are published without a wheel, and the others."""
    parts: tuple[list[str], list[str]] = ([], [])
    found = parts[1]
    for line in text.splitlines(keepends=True):
        if not line.startswith((" ", "#")):
            found = parts[0] if line.partition("==")[0] in WITHOUT_WHEEL else parts[1]
        found.append(line)
    return "".join(parts[0]), "".join(parts[1])


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", arguments[0], "--quiet", "--no-input", *arguments[1:]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise CommandError(f"pip took longer than {PIP_SECONDS:.0f} s") from None
    if done.returncode != 0:
        raise CommandError("pip failed:\n" + "\n".join(done.stderr.splitlines()[-10:]))


def _is_compiled(flavour: Flavour) -> bool:
    """Whether the broker is compiled: the image's Python can only load what the same version has made."""
    return flavour is Flavour.BROKER and sys.version_info[:2] == PYTHON


def _copy_sources(flavour: Flavour, place: Path, brokers: Path | None) -> None:
    """`brokers` has the compiled packages, which replace their sources."""
    inside = place / PLACE.lstrip("/")
    for path in source_files(flavour):
        target = inside / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    if brokers is not None:
        shutil.copytree(brokers, inside / "broker-image", dirs_exist_ok=True)
    _compile(inside, PLACE)
    program = place / "usr" / "local" / "bin" / "ballast"
    program.parent.mkdir(parents=True)
    program.write_text(flavour.command)
    program.chmod(0o755)
    if flavour is Flavour.SPARK:
        (place / "etc").mkdir()
        (place / "etc" / "passwd").write_text(PASSWD)


def _compile(tree: Path, inside: str) -> None:
    """Write bytecode that is never checked against its source, as an image never changes.

    Does nothing if this is not the image's Python version, which could not load it.
    """
    if sys.version_info[:2] != PYTHON:
        return
    command = [sys.executable, "-m", "compileall", "-q", "-s", str(tree), "-p", inside]
    command += ["--invalidation-mode", "unchecked-hash", str(tree)]
    subprocess.run(command, check=False, env=os.environ | {"PYTHONDONTWRITEBYTECODE": ""}, capture_output=True)
