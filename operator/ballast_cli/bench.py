"""Run a benchmark; most compare Ballast with Apache Kafka.

BALLAST_KAFKA_JARS names the directory of Kafka's jars. Brokers run as in an
image, with their hot modules compiled (`operator` runs them like `./ballast
up`); with --interpreted or --profile they run as in a checkout. Ratios are
Ballast's figure divided by Kafka's.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from ballast_cli import CommandError
from ballast_cli.compiled import CannotCompile, compiled_packages
from ballast_cli.places import ROOT

NAMES = (
    "broker", "coordinators", "scale", "partitions", "replication", "failover", "metadata", "moves", "operator",
    "planner", "topics",
)  # fmt: skip
WITHOUT_SERVERS = ("operator", "planner")
PASSES_ARGUMENTS_ON = True
OWN_HELP = True


class Help(argparse.Action):
    """Print the general help, and that of the bench named before it, if its module can be loaded."""

    def __call__(self, parser: argparse.ArgumentParser, args: argparse.Namespace, *_: object) -> None:
        parser.print_help()
        if getattr(args, "name", None):
            print()
            try:
                own_parser(args.name, load(args.name)).print_help()
            except ModuleNotFoundError as error:
                print(f"The options of {args.name} itself are shown once {error.name} is installed.")
        parser.exit()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-h", "--help", action=Help, nargs=0, help="show this help and, after NAME, also its own options"
    )
    parser.add_argument("name", metavar="NAME", choices=NAMES, help="one of " + ", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="finish within a minute, once Ballast is compiled")
    parser.add_argument("--json", action="store_true", help="print the ratios as a JSON object on the last line")
    parser.add_argument("--interpreted", action="store_true", help="run Ballast without compiling it")
    parser.add_argument("--profile", action="store_true", help="instead, show where Ballast spends its time")


def parse(args: argparse.Namespace) -> Any:
    """Load the bench's module and let it parse its own arguments."""
    bench = load(args.name)
    if args.profile and not getattr(bench, "PROFILES", False):
        raise CommandError(f"'bench {args.name}' has no --profile.")
    own_parser(args.name, bench).parse_args(args.rest, namespace=args)
    return bench


def load(name: str) -> Any:
    sys.path.append(str(ROOT))
    return importlib.import_module(f"bench.{name}")


def own_parser(name: str, bench: Any) -> argparse.ArgumentParser:
    own = argparse.ArgumentParser(
        prog=f"ballast bench {name}", description=bench.__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    bench.add_arguments(own)
    return own


def run(args: argparse.Namespace) -> int:
    bench = parse(args)
    from bench import machine
    from bench.servers import Ballast, ServerFailed

    if args.name not in WITHOUT_SERVERS and not args.interpreted and not args.profile:
        Ballast.packages = _packages(Ballast.packages)
    if getattr(bench, "UNPACED_NETWORK", False):
        machine.use_unpaced_network()
    try:
        code: int = bench.run(args)
    except ServerFailed as failed:
        raise CommandError(str(failed)) from failed
    return code


def _packages(interpreted: Path) -> Path:
    try:
        return compiled_packages(lambda text: print(text, file=sys.stderr, flush=True))
    except CannotCompile as lacking:
        print(f"Ballast is interpreted, which an image's is not: {lacking}", file=sys.stderr)
        return interpreted
