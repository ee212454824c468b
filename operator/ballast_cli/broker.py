"""Run one broker in the foreground.

FILE contains Kafka's properties: docs/configuration.md lists them and shows a
minimal file. The broker runs in this process: it receives signals directly, and
its exit code is that of the command.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.properties", help="configuration of the broker")
    parser.add_argument(
        "--override",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set a property, overriding FILE; repeatable",
    )
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="warning",
        help="lowest level to log (default: warning)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from ballast_broker.__main__ import main  # not at the top: --help must not need its imports

    overrides = [word for pair in args.override for word in ("--override", pair)]
    return main([args.file, "--log-level", args.log_level, *overrides])
