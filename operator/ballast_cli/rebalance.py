"""Propose moves that level a cluster's disks, with the Spark job.

Prints the proposal, unless --apply or --out is given.
"""

from __future__ import annotations

import argparse

from ballast_cli import command_config
from ballast_cli.reach import require_listener
from ballast_rebalance import arguments, command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_arguments(parser)
    command_config.add_argument(parser)


def refused(args: argparse.Namespace) -> str | None:
    if args.command_config is not None and args.bootstrap is None:
        return "--command-config needs --bootstrap HOST:PORT"
    return arguments.refused(args)


def run(args: argparse.Namespace) -> int:
    if args.bootstrap is not None and not args.apply:  # --apply reports it in the KafkaCluster's status
        require_listener(args.bootstrap)
    if args.command_config is not None:
        args.client_options = command_config.library_options(args, "ballast-rebalance")
    return command.run(args)
