"""Runs clients written in Go: small programs that do one job and print lines of JSON.

They are built once, from the sources, versions and hashes in `go/`, and cached. Go gets modules, and the Go version
that go.mod asks for, from where its own configuration says.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ballast_cli.compiled import files_under, key_of
from ballast_cli.image_base import cache_folder

SOURCES = Path(__file__).parent / "go"
PROGRAMS = ("franz", "sarama", "kafkago")
OLDEST_GO = (1, 21)  # fetches the version that go.mod asks for by itself
BUILD_LIMIT_S = 600
RUN_LIMIT_S = 120
ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "auto"}


def command(program: str, job: str, bootstrap: str, topic: str) -> list[str]:
    return [str(built() / program), job, bootstrap, topic]


def told(program: str, job: str, bootstrap: str, topic: str, login: Mapping[str, str] | None = None) -> list[Any]:
    """The program's output for this job, which must succeed."""
    done = subprocess.run(
        command(program, job, bootstrap, topic),
        env=os.environ | dict(login or {}), capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{program} {job} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


@functools.cache
def built() -> Path:
    """The folder with all programs, built if needed."""
    folder = cache_folder() / "go-clients" / key_of(platform.machine(), files_under(SOURCES), SOURCES)
    if folder.is_dir():
        return folder
    found = re.search(r"go(\d+)\.(\d+)", _go_version())
    if found is None or (int(found[1]), int(found[2])) < OLDEST_GO:
        pytest.skip("the clients are not built yet, and here is no Go 1.21 or newer")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as place:
        made = Path(place) / "programs"
        done = subprocess.run(
            ["go", "build", "-trimpath", "-o", f"{made}/", *(f"./{name}" for name in PROGRAMS)],
            cwd=SOURCES, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=BUILD_LIMIT_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        if not folder.is_dir():  # another process may have been faster
            made.rename(folder)
    return folder


def _go_version() -> str:
    if shutil.which("go") is None:
        return ""
    return subprocess.run(["go", "version"], capture_output=True, text=True, check=False, cwd="/").stdout
