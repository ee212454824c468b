"""Entry point of `python -m ballast_rebalance`, and the file that is passed to spark-submit."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

if not __package__:
    # Run as a file: import packages from the parent directory, and no module of this one by its bare name.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from ballast_rebalance.arguments import add_arguments
from ballast_rebalance.command import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="ballast-rebalance", description="Propose moves that level the disks.")
    add_arguments(parser)
    try:
        return run(parser.parse_args())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
