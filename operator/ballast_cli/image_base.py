"""Makes the base of an image without a registry: a small Debian or Ubuntu, by debootstrap.

The release and the mirror are those that apt uses on this machine. A base is made once per release, architecture and
list of packages and kept in the cache (BALLAST_CACHE, else ~/.cache/ballast).
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MAKING_SECONDS = 900.0
# Not needed in a container.
LEFT_OUT = (
    "./var/cache/apt/*", "./var/lib/apt/lists/*", "./var/log/*", "./dev/*", "./proc/*", "./sys/*", "./tmp/*",
    "./usr/share/doc/*", "./usr/share/man/*", "./usr/share/locale/*", "./usr/share/info/*", "./debootstrap",
)  # fmt: skip


class BaseError(Exception):
    """The base cannot be made; the text says why."""


@dataclass(frozen=True)
class Base:
    folder: Path  # as a root file system
    layer: Path  # the same, as a tar file


def cache_folder() -> Path:
    named = os.environ.get("BALLAST_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ballast"


def missing_for_base() -> list[str]:
    """What this machine lacks; empty if a base can be made."""
    missing = []
    if os.geteuid() != 0:
        missing.append("to run as root")
    if shutil.which("debootstrap") is None:
        missing.append("debootstrap (apt-get install debootstrap)")
    if shutil.which("apt-get") is None:
        missing.append("Debian or Ubuntu")
    return missing


def release() -> tuple[str, str]:
    """The code name of this machine's release, and the mirror from which apt gets it."""
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    if not codename:
        raise BaseError("/etc/os-release names no VERSION_CODENAME, so there is nothing to take a base from.")
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.splitlines()
    for line in lines:
        parts = line.split()
        if parts[1:] == [codename, "main"]:
            return codename, parts[0]
    raise BaseError(f"apt on this machine knows no mirror of {codename}.")


def debian_base(packages: Sequence[str], say: Callable[[str], None]) -> Base:
    """The base with these packages, from the cache if possible."""
    codename, mirror = release()
    key = hashlib.sha256(" ".join([codename, platform.machine(), *packages]).encode()).hexdigest()[:10]
    folder = cache_folder() / "images" / f"base-{codename}-{key}"
    layer = folder.with_suffix(".tar")
    if not (folder.is_dir() and layer.is_file()):
        say(f"making a base of {codename} with {', '.join(packages)}")
        _make(folder, layer, codename, mirror, packages)
    return Base(folder, layer)


def _make(folder: Path, layer: Path, codename: str, mirror: str, packages: Sequence[str]) -> None:
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        _debootstrap(codename, str(fresh), mirror, packages)
        left_out = [f"--exclude={pattern}" for pattern in LEFT_OUT]
        temporary = layer.with_name(f".{layer.name}.{os.getpid()}")
        pack = ["tar", "--numeric-owner", "--sort=name", "-C", str(fresh), *left_out, "-cf", str(temporary), "."]
        subprocess.run(pack, check=True, timeout=MAKING_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.replace(folder)
        temporary.replace(layer)
    except subprocess.TimeoutExpired as error:
        raise BaseError(f"{error.cmd[0]} took longer than {MAKING_SECONDS:.0f} s") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _debootstrap(codename: str, folder: str, mirror: str, packages: Sequence[str]) -> None:
    """Run debootstrap in its own mount namespace, so that its mounts vanish however it ends."""
    command = ["unshare", "--mount", "debootstrap", "--variant=minbase", f"--include={','.join(packages)}"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, codename, folder, mirror],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(MAKING_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code != 0:
            log.seek(0)
            raise BaseError("debootstrap failed:\n" + "\n".join(log.read().splitlines()[-10:]))
