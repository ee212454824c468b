"""`./ballast operator`: the operator against the current kubeconfig."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--namespace", action="append", default=[], metavar="NS", help="watch this namespace only; may be given again"
    )
    parser.add_argument("--kubeconfig", help="file to use instead of $KUBECONFIG")
    parser.add_argument("--probe-port", type=int, metavar="PORT", help="serve /live, /ready and /metrics on this port")
    parser.add_argument(
        "--relist-seconds", type=float, default=300.0, metavar="S",
        help="compare with the API this often, should a watch have lost something (300)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from ballast_operator.kubeconfig import KubeconfigError
    from ballast_operator.main import main

    try:
        return main(args.namespace, args.probe_port, args.kubeconfig, args.relist_seconds)
    except KubeconfigError as error:
        print(f"ballast operator: {error}")
        return 2
