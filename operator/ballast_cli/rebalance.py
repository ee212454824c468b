"""Propose moves that level a cluster's disks, from Prometheus or from the brokers themselves.

Without --apply, --out or --report the proposal is printed.
"""

from __future__ import annotations

import argparse

from ballast_rebalance import command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    command.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return command.run(args)
