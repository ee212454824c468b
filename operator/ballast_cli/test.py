"""Run all checks that need only Python: lint, types, import rules, tests.

With arguments, runs only pytest, with these arguments. Tests that need real
disks, Java, Go, Node, Prometheus, Chromium or Kubernetes run only if their
marker is selected (-m java), as in CI.

./ballast test --compiled ...   compile the broker's hot modules, as in an image
./ballast test --spec-report    report which behaviours of docs/spec have tests
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ballast_cli.compiled import compiled_packages
from ballast_cli.places import ROOT

PASSES_ARGUMENTS_ON = True
SOURCES = ("broker-image", "operator", "spark")
COMPILED = "--compiled"
LINT_IMPORTS = "import sys; from importlinter.cli import lint_imports_command as run; sys.exit(run())"


# Test files that run in parallel: five on two processors, as most tests wait more than they compute.
BESIDE = min(5, 5 * (os.cpu_count() or 1) // 2)


@dataclass(frozen=True)
class Stage:
    name: str
    arguments: tuple[str, ...]


STAGES = (
    Stage("lint", ("-m", "ruff", "check", "--quiet")),
    Stage("format", ("-m", "ruff", "format", "--check", "--quiet")),
    Stage("imports", ("-c", LINT_IMPORTS, "--no-logo")),
)
TYPES = Stage("types", ("-m", "mypy"))
TESTS = Stage("tests", ("-m", "pytest", "-q", f"--numprocesses={BESIDE}"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "ballast test [--compiled] [PYTEST ARGUMENTS]"


def run(args: argparse.Namespace) -> int:
    os.chdir(ROOT)
    if args.rest:
        sources, options = SOURCES, []
        if args.rest[0] == COMPILED:
            sources = (str(compiled_packages(lambda text: print(text, flush=True))), *SOURCES[1:])
            options = ["--override-ini", f"pythonpath={shlex.join((*sources, '.'))}"]
        pytest = [sys.executable, "-P", "-m", "pytest", *options, *args.rest]
        os.execve(sys.executable, pytest, source_variables(sources))
    variables = source_variables()
    since = time.monotonic()
    with ThreadPoolExecutor(1) as beside:
        types = beside.submit(run_beside, TYPES, variables)
        with reading_in(variables):
            results = [(stage.name, *run_stage(stage, variables)) for stage in STAGES]
        results.append((TESTS.name, *run_stage(TESTS, variables)))
        results.append((TYPES.name, *types.result()))
    print()
    for name, code, seconds in results:
        print(f"{name:<10} {'ok' if code == 0 else f'FAILED ({code})':<12} {seconds:6.1f} s")
    print(f"{'in all':<23} {time.monotonic() - since:6.1f} s")
    return int(any(code for _, code, _ in results))


def source_variables(sources: Sequence[str] = SOURCES) -> dict[str, str]:
    """The environment with this project's packages before all others. The hash seed is fixed, so that sets have the
    same order and a seed of the simulation gives the same run in any process."""
    variables = {"PYTHONHASHSEED": "0"} | os.environ
    inherited = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    own = [str(ROOT / source) for source in sources]
    variables["PYTHONPATH"] = os.pathsep.join(own + [path for path in inherited if path not in own])
    return variables


def reading_in(variables: dict[str, str]) -> subprocess.Popen[bytes]:
    """Collect all tests while the lint stages run: otherwise each test process would compile all test files."""
    arguments = (sys.executable, "-P", "-m", "pytest", "-q", "--collect-only")
    return subprocess.Popen(arguments, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def run_stage(stage: Stage, variables: dict[str, str]) -> tuple[int, float]:
    """Run a stage; returns the exit code and its seconds. All stages run, so that one run shows every failure."""
    print(f"== {stage.name}", flush=True)
    since = time.monotonic()
    code = subprocess.run([sys.executable, "-P", *stage.arguments], env=variables, check=False).returncode
    return code, time.monotonic() - since


def run_beside(stage: Stage, variables: dict[str, str]) -> tuple[int, float]:
    """Run a stage at low priority beside the others, so that it does not delay tests. A failure is printed at once."""
    since = time.monotonic()
    arguments = (sys.executable, "-P", *stage.arguments)
    with subprocess.Popen(arguments, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        os.setpriority(os.PRIO_PROCESS, run.pid, 10)
        said, _ = run.communicate()
    if run.returncode:
        print(f"\n== {stage.name}\n{said}", flush=True)
    return run.returncode, time.monotonic() - since
