"""`python -m ballast_rebalance`, and the file that spark-submit is given."""

from __future__ import annotations

import argparse
import sys

from ballast_rebalance.command import add_arguments, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="ballast-rebalance", description="Propose moves that level the disks.")
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
