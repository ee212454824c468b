"""Run end-to-end scenarios on a Kubernetes.

--provider selects it: embedded (Ballast's own), host (the real programs, on
this machine), kind, or current (that of the kubeconfig). Each scenario is a
test under tests/kubernetes that prints its steps.

current: BALLAST_E2E_IMAGE is an image that the nodes can run,
         BALLAST_E2E_NODE an address that serves node ports
kind:    BALLAST_E2E_KIND_IMAGE is another node image,
         BALLAST_E2E_BASE another base of our image (image --base)
"""

from __future__ import annotations

import argparse
import os
import re
import sys

from ballast_cli import CommandError
from ballast_cli.arguments import minutes
from ballast_cli.places import ROOT
from ballast_cli.test import source_variables

PROVIDERS = ("embedded", "host", "kind", "current")
CANNOT_RUN_HERE = 3
TEST = re.compile(r"^def (test_\w+)", re.MULTILINE)


class Missing(CommandError):
    """This machine lacks something that the provider needs."""

    exit_code = CANNOT_RUN_HERE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--provider", choices=PROVIDERS, help="Kubernetes to use; required except with --list")
    parser.add_argument("--prepare", action="store_true", help="only build what the provider needs, e.g. images")
    parser.add_argument("--list", action="store_true", help="only list the scenarios")
    parser.add_argument(
        "--faults", type=minutes, metavar="MINUTES", help="only inject faults of every kind for this long, on host"
    )
    parser.add_argument(
        "--away", type=minutes, metavar="MINUTES", help="only stop the operator for this long, while a replica moves"
    )
    parser.add_argument("--seed", type=int, help="seed of --faults (default: random)")
    parser.add_argument(
        "scenario", nargs="*", type=scenario, metavar="SCENARIO", help="part of a scenario's name (default: all)"
    )


def scenario(part: str) -> str:
    if not any(part in name for name in scenarios()):
        raise argparse.ArgumentTypeError(f"no scenario has {part!r} in its name: --list tells the names")
    return part


def refused(args: argparse.Namespace) -> str | None:
    if args.seed is not None and args.faults is None:
        return "--seed is of --faults."
    if args.provider is None and not args.list:
        return "--provider says where: embedded begins at once, host builds a real Kubernetes first, for minutes."
    if args.away is not None and (args.faults is not None or args.scenario):
        return "--away is a scenario of its own: without --faults, and without names of scenarios."
    if args.faults is not None and (args.provider != "host" or args.scenario):
        return "--faults breaks a node of its own: with --provider host, and without names of scenarios."
    return None


def run(args: argparse.Namespace) -> int:
    command = [sys.executable, "-P", "-m", "pytest", "-m", "kubernetes", "tests/kubernetes", "--quiet"]
    if args.list:
        command += ["--collect-only"]
    else:
        _prepare(args.provider, whole=args.prepare)
        if args.prepare:
            return 0
        command += ["--capture=no", "--no-header", "--durations=0", "--durations-min=1"]
    variables = source_variables() | {"BALLAST_E2E_PROVIDER": args.provider or "embedded"}
    chosen = args.scenario
    if args.faults is not None:
        chosen = ["test_mixed_faults"]
        variables["BALLAST_E2E_FAULT_MINUTES"] = str(args.faults)
        variables["BALLAST_E2E_FAULT_SEED"] = "" if args.seed is None else str(args.seed)
    if args.away is not None:
        chosen = ["test_operator_away"]
        variables["BALLAST_E2E_AWAY_MINUTES"] = str(args.away)
    if chosen:
        command += ["-k", " or ".join(chosen)]
    sys.stdout.flush()
    os.chdir(ROOT)
    os.execve(command[0], command, variables)


def scenarios() -> list[str]:
    """All names that SCENARIO is matched against: those of test files and of the tests in them."""
    texts = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "tests" / "kubernetes").glob("test_*.py")}
    marked = {stem: text for stem, text in texts.items() if "pytest.mark.kubernetes" in text}
    return [name for stem, text in marked.items() for name in (stem, *TEST.findall(text))]


def _prepare(name: str, whole: bool) -> None:
    """Build what the provider needs to start; with `whole`, also what only some scenarios need."""
    sys.path.append(str(ROOT))
    from e2e.kubernetes.binaries import BuildError
    from e2e.kubernetes.providers import PROVIDERS as KNOWN
    from e2e.kubernetes.providers import ProviderError

    provider = KNOWN[name](lambda text: print(f"  {text}", flush=True))
    missing = provider.missing()
    if missing:
        raise Missing(f"provider {name} needs {'; '.join(missing)}.")
    try:
        provider.prepare()
        if whole:
            provider.prepare_spark()
    except (BuildError, ProviderError) as error:
        raise CommandError(str(error)) from None
