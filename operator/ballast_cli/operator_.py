"""Run the operator in the foreground, against the current kubeconfig.

In a pod without a kubeconfig, it manages the Kubernetes cluster of the pod.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any, cast

from ballast_cli import CommandError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--namespace", action="append", default=[], metavar="NS", help="namespace to watch; repeatable (default: all)"
    )
    parser.add_argument("--kubeconfig", help="kubeconfig file (default: $KUBECONFIG)")
    parser.add_argument(
        "--probe-port", metavar="[ADDRESS:]PORT", type=_probe_port, help="serve /live, /ready and /metrics on this port"
    )
    parser.add_argument(
        "--relist-seconds", type=_seconds, default=300.0, metavar="S",
        help="how often to list all objects, in case a watch missed a change (default: 300)",
    )  # fmt: skip
    parser.add_argument("--log-file", metavar="FILE", help="log to FILE instead of stderr, rotated to FILE.1")


def _probe_port(text: str) -> str:
    port = text.rpartition(":")[2]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port, and no address with one")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds of 1 or more")
    return seconds


def run(args: argparse.Namespace) -> int:
    # Kopf imports the `kubernetes` client if it is installed (as beside Spark) to support its objects, which no handler
    # here returns. Hiding it saves a quarter of the start-up time and a fifth of the memory.
    modules = cast(dict[str, Any], sys.modules)
    loaded = modules.setdefault("kubernetes", None)
    from ballast_operator.kubeconfig import KubeconfigError
    from ballast_operator.main import main

    if loaded is None:
        del modules["kubernetes"]
    if args.log_file is not None:
        try:
            Path(args.log_file).open("ab").close()
        except OSError as error:
            raise CommandError(f"cannot log to {args.log_file}: {error.strerror}") from error
    try:
        return main(args.namespace, args.probe_port, args.kubeconfig, args.relist_seconds, args.log_file)
    except KubeconfigError as error:
        raise CommandError(str(error)) from error
