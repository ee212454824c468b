"""Run one broker in the foreground.

The broker runs in this very process: signals reach it, and its exit code is the command's. FILE holds Kafka's own
properties (docs/configuration.md lists them, and shows a minimal file); --override takes precedence over the file.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.properties", help="the broker's properties")
    parser.add_argument(
        "--override", metavar="KEY=VALUE", action="append", default=[], help="a property that wins; may be repeated"
    )
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="warning",
        help="what is logged, and what is worse (warning)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from ballast_broker.__main__ import main  # not at the top: --help must not need its imports

    overrides = [word for pair in args.override for word in ("--override", pair)]
    return main([args.file, "--log-level", args.log_level, *overrides])
