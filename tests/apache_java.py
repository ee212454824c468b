"""Apache Kafka's classes, each in a Java of its own that starts as fast as Java can: tests start hundreds of them."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

COMPILE_TIMEOUT_S = 120


def java(
    *arguments: object, memory: str = "256m", options: Sequence[str] = (), classes: Sequence[Path] = ()
) -> list[str]:
    """The command that runs a class of theirs, or one of `classes`, which come first, with these arguments."""
    path = [*map(str, classes), f"{os.environ['BALLAST_KAFKA_JARS']}/*"]
    fast = ["-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Xmx{memory}"]
    fast.append(f"-Djava.io.tmpdir={left_behind()}")
    return ["java", *fast, *options, "-cp", os.pathsep.join(path), *map(str, arguments)]


@functools.cache
def left_behind() -> Path:
    """Where a Java unpacks its libraries: one that is killed leaves them, and they go with this process."""
    return _until_the_end("ballast-left-")


@functools.cache
def compiled(program: Path, *before: Path) -> Path:
    """A folder with the classes of this source: what Java would else do at each start is done once. Of what it uses
    the jars `before` come first."""
    folder = _until_the_end("ballast-classes-")
    jars = os.pathsep.join(map(str, [*before, *Path(os.environ["BALLAST_KAFKA_JARS"]).glob("*.jar")]))
    compiler = ["java", "-XX:TieredStopAtLevel=1", "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    done = subprocess.run(
        [*compiler, "-cp", jars, "-d", folder, program],
        capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def _until_the_end(prefix: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
