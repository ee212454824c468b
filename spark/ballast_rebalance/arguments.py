"""Defines the job's command line, and refuses arguments that cannot work.

Imports only the standard library, so that --help works before anything is installed.
"""

from __future__ import annotations

import argparse
import math
import re
from decimal import Decimal
from pathlib import Path

UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
KAFKA_PORT = 9092
DURATIONS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _of_the_load(parser)
    _of_the_proposal(parser)
    _of_the_plan(parser)
    _of_running(parser)


def _of_the_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where the load comes from (--prometheus, --bootstrap or both)")
    group.add_argument("--prometheus", metavar="URL", help="a Prometheus that scrapes the brokers")
    group.add_argument(
        "--bootstrap", metavar="HOST:PORT", type=addresses, help="a broker, or several separated by commas"
    )
    group.add_argument(
        "--prometheus-token", type=Path, metavar="FILE", help="file with the bearer token for Prometheus"
    )
    group.add_argument(
        "--prometheus-ca",
        type=Path,
        metavar="FILE",
        help="CA certificates (PEM) for Prometheus",
    )
    group.add_argument(
        "--prometheus-secret", type=Path, metavar="DIR",
        help="directory with credentials for Prometheus, such as a mounted Secret: the files token, or username and "
        "password; headers (Name: value); ca.crt; tls.crt and tls.key",
    )  # fmt: skip
    group.add_argument(
        "--prometheus-header", metavar="NAME=VALUE", type=header, action="append", default=[],
        help="HTTP header that is not secret, e.g. X-Scope-OrgID=team-a; repeatable",
    )  # fmt: skip
    group.add_argument("--cluster", help="name of the KafkaCluster, for the proposal")
    group.add_argument(
        "--cluster-label", metavar="NAME=VALUE", type=pair, action="append", default=[],
        help="label that selects the series of the cluster; repeatable",
    )  # fmt: skip
    group.add_argument("--capacity", type=size, help="treat every directory as a disk of this size")
    group.add_argument(
        "--weight", metavar="VOLUME=PERCENT", type=weight, action="append", default=[],
        help="count only this percentage of a volume (a part of the directory's path); repeatable",
    )  # fmt: skip
    group.add_argument("--max-age", type=duration, default=180.0, help="refuse older samples (default: 3m)")


def _of_the_proposal(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where the proposal goes (default: it is printed)")
    group.add_argument("--apply", action="store_true", help="create the Reassignment in Kubernetes")
    group.add_argument("--namespace", default="default", help="namespace of the Reassignment (default: default)")
    group.add_argument(
        "--kubeconfig", metavar="FILE", help="kubeconfig (default: the pod's own, $KUBECONFIG, ~/.kube/config)"
    )
    group.add_argument("--out", type=Path, metavar="DIR", help="write it as YAML here, for a pull request")
    group.add_argument("--report", type=Path, metavar="FILE", help="write an HTML report")
    group.add_argument("--json", action="store_true", help="print the plan as a JSON object on the last line")


def _of_the_plan(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("planning")
    group.add_argument(
        "--band", type=band, default=0.10, help="allowed deviation from the level, as a fraction of it (default: 0.10)"
    )
    group.add_argument(
        "--high-water", type=high_water, default=0.95, help="maximum fill of a directory (default: 0.95)"
    )
    group.add_argument(
        "--max-moves", type=at_least_one, default=500, help="maximum partitions per proposal (default: 500)"
    )
    group.add_argument(
        "--min-improvement", type=share, default=0.02,
        help="minimum gain in the spread or the highest fill, as a fraction of the capacity (default: 0.02)",
    )  # fmt: skip
    group.add_argument(
        "--min-spread", type=share, default=0.05, help="propose nothing below this spread (default: 0.05)"
    )
    group.add_argument("--min-size", type=quantity, default=1, help="do not move smaller replicas, e.g. 1Mi")
    group.add_argument(
        "--exclude-topic", action="append", default=[], metavar="TOPIC", help="do not move this topic; repeatable"
    )
    group.add_argument("--only-disks", action="store_true", help="move nothing between brokers")
    group.add_argument(
        "--horizon", type=duration, default=86_400.0, help="forecast this far ahead (default: 24h; 0: no forecast)"
    )
    group.add_argument(
        "--throttle-network", metavar="QUANTITY", type=throttle, help="limit per second between brokers, e.g. 50Mi"
    )
    group.add_argument(
        "--throttle-disk", metavar="QUANTITY", type=throttle, help="limit per second between disks of a broker"
    )
    group.add_argument(
        "--expires-after", type=duration, default=86_400.0, help="how long it can be approved (default: 24h)"
    )


def _of_running(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("running")
    group.add_argument("--stream", action="store_true", help="keep watching, and propose when it is worthwhile")
    group.add_argument(
        "--interval", type=interval, default=300.0, help="time between checks with --stream (default: 5m)"
    )
    group.add_argument(
        "--confirmations", type=at_least_one, default=2, help="checks that must agree on a proposal (default: 2)"
    )
    group.add_argument("--checkpoint", metavar="DIR", help="directory or URI for the position of the stream")
    group.add_argument("--metrics-port", type=port, help="with --stream, serve the job's own metrics on this port")
    group.add_argument("--master", help="Spark master (default: local[*], or that of spark-submit)")
    group.add_argument("--memory", help="memory of the driver, e.g. 2g")


def refused(args: argparse.Namespace) -> str | None:
    """Why these arguments cannot work together, or None; called before anything is installed for them."""
    if not args.prometheus and not args.bootstrap:
        return "the source of the load is missing: give --prometheus URL or --bootstrap HOST:PORT (or both)"
    if args.prometheus and "@" in re.sub(r"^\w+://", "", args.prometheus).split("/")[0]:
        # It would appear in refusals, in logs and in the KafkaCluster's status.
        return "a URL with a password is not accepted; use --prometheus-secret DIR or --prometheus-token FILE"
    if args.prometheus and not re.match(r"https?://[^/]", args.prometheus):
        return f"{args.prometheus!r} is not a URL such as http://prometheus:9090"
    if args.prometheus and re.search(r"[?#]", args.prometheus):
        return "a URL with ? or # is not accepted: queries are appended to it"
    if (args.prometheus_secret or args.prometheus_token or args.prometheus_header) and not args.prometheus:
        return "credentials and headers for Prometheus need --prometheus URL"
    if args.cluster_label and not args.prometheus:
        return "--cluster-label selects series of Prometheus: give --prometheus URL"
    if args.prometheus_ca and not str(args.prometheus).startswith("https:"):
        return "--prometheus-ca needs a --prometheus URL with https://"
    if args.stream and not args.prometheus:
        return "--stream watches Prometheus: give --prometheus URL"
    if (args.metrics_port or args.checkpoint) and not args.stream:
        return "--metrics-port and --checkpoint need --stream"
    if (args.apply or args.out) and not args.cluster:
        return "a Reassignment belongs to a KafkaCluster: give --cluster NAME"
    if args.kubeconfig and not args.apply:
        return "--kubeconfig says where --apply creates the Reassignment: give --apply"
    return None


def quantity(text: str) -> int:
    """Bytes from a Kubernetes quantity such as 50Mi, rounded up as Kubernetes and the operator do."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a quantity such as 50Mi")
    return math.ceil(Decimal(found.group(1)) * UNITS[found.group(2) or ""])


def size(text: str) -> int:
    """A quantity above zero."""
    found = quantity(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of a disk")
    return found


def band(text: str) -> float:
    if not 0 < float(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie between 0 and 1: 0.1 is a tenth of the level")
    return float(text)


def high_water(text: str) -> float:
    if not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie above 0 and at most at 1: 0.95 is 95 %")
    return float(text)


def share(text: str) -> float:
    if not 0 <= float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie between 0 and 1: 0.02 is 2 % of the capacity")
    return float(text)


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1 to 65535")
    return int(text)


def addresses(text: str) -> str:
    """HOST:PORT, or several separated by commas; without a port it is Kafka's, 9092."""
    listed = []
    for one in text.split(","):
        found = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s,:/\[\]]+)(?::([0-9]{1,5}))?", one)
        if found is None or not 0 < int(found[1] or KAFKA_PORT) < 65536:
            raise argparse.ArgumentTypeError(f"{one!r} is not a broker address such as localhost:9092")
        listed.append(one if found[1] else f"{one}:{KAFKA_PORT}")
    return ",".join(listed)


def throttle(text: str) -> str:
    """A quantity above zero, as it was written: the Reassignment repeats it."""
    if not quantity(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a limit: nothing would ever arrive")
    return text


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or '"' in value or "\\" in value:
        raise argparse.ArgumentTypeError(f"{text!r} is not a label such as namespace=kafka")
    return name, value


def header(text: str) -> tuple[str, str]:
    """NAME=VALUE that is no secret."""
    from ballast_rebalance import access

    try:
        return access.header(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def weight(text: str) -> tuple[str, int]:
    """VOLUME=PERCENT."""
    found = re.fullmatch(r"([a-z0-9](?:[-a-z0-9]*[a-z0-9])?)=(\d{1,3})", text)
    if not found or not 1 <= int(found[2]) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a weight such as disk-2=50")
    return found[1], int(found[2])


def duration(text: str) -> float:
    """Seconds from a duration such as 5m."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 5m")
    return float(found.group(1)) * DURATIONS[found.group(2) or "s"]


def interval(text: str) -> float:
    """A duration of at least a second."""
    seconds = duration(text)
    if seconds < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than a second")
    return seconds
