"""Scenarios on a Kubernetes: embedded, host (the real programs on this machine), kind, or the current kubeconfig.

Each scenario is a test under tests/kubernetes, told as it goes; SCENARIO is a part of a name. --prepare builds what
the provider needs (for host: Kubernetes itself and an image) and runs nothing; --list names the scenarios.
current: BALLAST_E2E_IMAGE names an image that the nodes can run, BALLAST_E2E_NODE an address where node ports answer.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ballast_cli import CommandError
from ballast_cli.test import source_variables

ROOT = Path(__file__).resolve().parents[2]
PROVIDERS = ("embedded", "host", "kind", "current")
CANNOT_RUN_HERE = 3


class Missing(CommandError):
    """This machine lacks something that the provider needs."""

    exit_code = CANNOT_RUN_HERE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--provider", choices=PROVIDERS, default="host", help="where (host)")
    parser.add_argument("--prepare", action="store_true", help="only build what the provider needs")
    parser.add_argument("--list", action="store_true", help="only name the scenarios")
    parser.add_argument("--all", action="store_true", help="also those that CI does not run yet")
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", help="a part of a scenario's name (all)")


def run(args: argparse.Namespace) -> int:
    command = [sys.executable, "-P", "-m", "pytest", "-m", "kubernetes", "tests/kubernetes", "--quiet"]
    if args.list:
        command += ["--collect-only"]
    else:
        _prepare(args.provider)
        if args.prepare:
            return 0
        command += ["--capture=no", "--no-header", "--durations=0", "--durations-min=1"]
    if args.scenario:
        command += ["-k", " or ".join(args.scenario)]
    variables = source_variables() | {"BALLAST_E2E_PROVIDER": args.provider}
    if args.all:
        variables["BALLAST_E2E_ALL"] = "1"
    sys.stdout.flush()
    os.chdir(ROOT)
    os.execve(command[0], command, variables)


def _prepare(name: str) -> None:
    sys.path.append(str(ROOT))
    from e2e.kubernetes.binaries import BuildError
    from e2e.kubernetes.providers import PROVIDERS as KNOWN

    provider = KNOWN[name](lambda text: print(f"  {text}", flush=True))
    missing = provider.missing()
    if missing:
        raise Missing(f"provider {name} needs {'; '.join(missing)}.")
    try:
        provider.prepare()
    except BuildError as error:
        raise CommandError(str(error)) from None
