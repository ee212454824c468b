"""The broker's packages as in an image: modules on the path of every request are compiled (broker-image/compile.py).

Compilation takes a minute or two; the result is cached by sources and Python version.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from ballast_cli import CommandError
from ballast_cli.image_base import cache_folder
from ballast_cli.places import ROOT

SOURCES = ROOT / "broker-image"
COMPILER = SOURCES / "compile.py"
LOCK = ROOT / "requirements" / "compiler.lock"
LIMIT_S = 900.0
KEPT = 4


class CannotCompile(CommandError):
    """This machine lacks what compiling needs; the text says what, and how to get it."""


def missing_for_compiler() -> list[str]:
    """What this machine lacks; empty if it can compile."""
    asked = subprocess.run(
        [sys.executable, "-P", str(COMPILER), "--missing"], capture_output=True, text=True, timeout=60, check=True
    )
    return asked.stdout.splitlines()


def compiled_packages(say: Callable[[str], None]) -> Path:
    """The folder with both compiled packages; raises CannotCompile if they are not cached and cannot be made."""
    folder = cache_folder() / "compiled" / key()
    if folder.is_dir():
        folder.touch()
        return folder
    missing = missing_for_compiler()
    if missing:
        raise CannotCompile(f"compiling needs {'; '.join(missing)}.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    say("compiling what every request passes through; this takes a minute or two")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".compiling-") as place:
        made = Path(place) / "packages"
        made.mkdir()
        _compile_to(made)
        if not folder.is_dir():  # another process may have been faster
            made.rename(folder)
    for old in sorted(folder.parent.glob("[!.]*"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def key() -> str:
    return key_of(f"{sys.version} {sysconfig.get_config_var('SOABI')}", [LOCK, *files_under(SOURCES)], SOURCES)


def files_under(tree: Path) -> list[Path]:
    """The files of a source tree, without bytecode caches."""
    return [path for path in sorted(tree.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]


def key_of(extra: str, files: Iterable[Path], root: Path) -> str:
    """A cache key for the files (their paths relative to `root` and their contents) and for `extra`."""
    digest = hashlib.sha256(extra.encode())
    for path in files:
        digest.update(f"{os.path.relpath(path, root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _compile_to(folder: Path) -> None:
    command = [sys.executable, "-P", str(COMPILER), str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise CommandError(f"compiling took longer than {LIMIT_S:.0f} s") from None
    if done.returncode != 0:
        raise CommandError("compiling failed:\n" + "\n".join((done.stdout + done.stderr).strip().splitlines()[-10:]))
