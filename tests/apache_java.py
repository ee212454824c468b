"""Commands that run Apache Kafka's classes in a JVM tuned to start fast: tests start hundreds of them."""

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
    """The command that runs a class of Apache Kafka, or one in `classes` (first on the class path), with arguments."""
    path = [*map(str, classes), f"{os.environ['BALLAST_KAFKA_JARS']}/*"]
    fast = ["-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Xmx{memory}"]
    fast.append(f"-Djava.io.tmpdir={left_behind()}")
    return ["java", *fast, *options, "-cp", os.pathsep.join(path), *map(str, arguments)]


@functools.cache
def left_behind() -> Path:
    """A temporary folder in which JVMs unpack native libraries: killed ones leave them, so this process removes it."""
    return _until_the_end("ballast-left-")


@functools.cache
def compiled(program: Path, *before: Path) -> Path:
    """Compile this source once instead of at each start; return the folder with its classes. The jars `before` come
    first on its class path."""
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
