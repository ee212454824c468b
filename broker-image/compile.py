"""Compiles the modules on the produce and fetch path to machine code, with mypyc: `compile.py TARGET`.

TARGET gets a copy of both packages in which the modules below have an extension module beside their source; Python
prefers it. Images are built from such a copy, a checkout runs the sources, and both are the same program: what tests
show holds for either (`./ballast test --compiled`). Needs the packages of requirements/compiler.lock, a C compiler and
Python's headers; `--missing` lists what is missing.

Compiled code trusts its annotations and checks them where values come in, so a wrong one raises a TypeError that the
interpreter never raises. mypy narrows an attribute just set to None until the function sets it again, whatever was
called in between: read it again in another method. Code that awaits (or yields) in an `except` block leaves its
exception current for all other code while it waits: await after the block.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = ("ballast_broker", "ballast_wire")
MODULES = (
    "ballast_broker/api/authorizer.py",
    "ballast_broker/api/dispatch.py",
    "ballast_broker/api/fetch.py",
    "ballast_broker/api/fetch_answer.py",
    "ballast_broker/api/fetch_sessions.py",
    "ballast_broker/api/produce.py",
    "ballast_broker/api/produce_answers.py",
    "ballast_broker/api/rejected_batches.py",
    "ballast_broker/metrics/loop_lag.py",
    "ballast_broker/metrics/requests.py",
    "ballast_broker/net/connection.py",
    "ballast_broker/net/event_loop.py",
    "ballast_broker/net/frame_buffers.py",
    "ballast_broker/net/secured.py",
    "ballast_broker/net/server.py",
    "ballast_broker/net_reply.py",
    "ballast_broker/replication/partition.py",
    "ballast_broker/replication/reading.py",
    "ballast_broker/replication/replica.py",
    "ballast_broker/replication/replicas.py",
    "ballast_broker/replication/roles.py",
    "ballast_broker/replication/waiting.py",
    "ballast_broker/replication/watching.py",
    "ballast_broker/storage/appending.py",
    "ballast_broker/storage/batch_header.py",
    "ballast_broker/storage/epochs.py",
    "ballast_broker/storage/index.py",
    "ballast_broker/storage/log.py",
    "ballast_broker/storage/lookup.py",
    "ballast_broker/storage/open_files.py",
    "ballast_broker/storage/producers.py",
    "ballast_broker/storage/segment.py",
    "ballast_broker/storage/slices.py",
    "ballast_broker/storage/validation.py",
    "ballast_wire/fast/fetch.py",
    "ballast_wire/fast/following.py",
    "ballast_wire/fast/plain_fetch.py",
    "ballast_wire/fast/produce.py",
    "ballast_wire/fast/reader.py",
    "ballast_wire/fast/single_produce.py",
    "ballast_wire/fast/writer.py",
    "ballast_wire/headers.py",
    "ballast_wire/records.py",
)


def missing() -> list[str]:
    """What is missing on this machine, each with the way to install it."""
    lacks = [
        f"Python's package {name} (pip install -r requirements/compiler.lock)"
        for name in ("mypy", "setuptools")
        if importlib.util.find_spec(name) is None
    ]
    if shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is None:
        lacks.append("a C compiler (apt-get install gcc libc6-dev)")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        lacks.append("Python's headers (apt-get install python3-dev)")
    return lacks


def compile_to(target: Path) -> None:
    """Compile into `target`, leaving no intermediate files; it may be the source folder (when building an image)."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    if target != HERE:
        for package in PACKAGES:
            shutil.copytree(HERE / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    with contextlib.chdir(target), tempfile.TemporaryDirectory(prefix="ballast-compile-") as place:
        options = ["--config-file=", "--ignore-missing-imports", f"--cache-dir={place}/types"]
        extensions = mypycify([*options, *MODULES], target_dir=place, group_name="ballast", debug_level="0")
        for extension in extensions:  # do not fail the build for some compiler's warning
            extension.extra_compile_args = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
        builder = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
        builder.inplace, builder.build_temp, builder.build_lib = True, f"{place}/objects", f"{place}/lib"
        builder.ensure_finalized()
        builder.run()


def main(arguments: list[str]) -> int:
    if arguments == ["--missing"]:
        print("\n".join(missing()), end="")
        return 0
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    lacks = missing()
    if lacks:
        print(f"compiling needs {'; '.join(lacks)}.", file=sys.stderr)
        return 1
    compile_to(Path(arguments[0]).resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
