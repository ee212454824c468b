"""The job's command line, shared by `./ballast rebalance` and `python -m ballast_rebalance` (spark-submit).

It imports only the standard library, so that it can explain itself before anything is installed.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import re
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ballast_rebalance.job import JobOptions, Outcome, Watch
    from ballast_rebalance.kubernetes_store import KubernetesStore
    from ballast_rebalance.outcomes import OutcomeMetrics

UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
log = logging.getLogger(__name__)
MAX_MESSAGE = 4_000
# So many times running the stream may fail without a single look.
MAX_FAILURES = 10
DURATIONS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
# Reasons that mean all is well; every other one but Proposed is an exit code.
QUIET = frozenset(
    {"Proposed", "Balanced", "TooLittleToGain", "AlreadyProposed", "ReassignmentInProgress", "Confirming"}
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_argument_group("where the load comes from (with both, the order of replicas from the brokers)")
    source.add_argument("--prometheus", metavar="URL", help="one that scrapes the brokers")
    source.add_argument("--bootstrap", metavar="HOST:PORT", type=addresses, help="a broker, or several by commas")
    source.add_argument(
        "--prometheus-token", type=Path, metavar="FILE", help="a file with the bearer token that Prometheus asks for"
    )
    source.add_argument(
        "--prometheus-ca",
        type=Path,
        metavar="FILE",
        help="certificates (PEM) of who may have signed Prometheus's",
    )
    source.add_argument(
        "--prometheus-secret", type=Path, metavar="DIR",
        help="a folder with what Prometheus asks for, as a Secret is mounted: the files token, or username and "
        "password; headers (Name: value); ca.crt; tls.crt and tls.key",
    )  # fmt: skip
    source.add_argument(
        "--prometheus-header", metavar="NAME=VALUE", type=header, action="append", default=[],
        help="a header that is no secret, such as X-Scope-OrgID=team-a, or one of several",
    )  # fmt: skip
    source.add_argument("--cluster", help="the KafkaCluster's name, for the proposal")
    source.add_argument(
        "--cluster-label", metavar="NAME=VALUE", type=pair, action="append", default=[],
        help="a label that selects the cluster's series, or one of several",
    )  # fmt: skip
    source.add_argument("--capacity", type=size, help="take every directory for a disk of this size")
    source.add_argument(
        "--weight", metavar="VOLUME=PERCENT", type=weight, action="append", default=[],
        help="take a volume (a part of the directory's path) for so many percent of its size",
    )  # fmt: skip
    source.add_argument("--max-age", type=duration, default=180.0, help="older samples are refused (default 3m)")
    target = parser.add_argument_group("where the proposal goes (nowhere: it is printed)")
    target.add_argument("--apply", action="store_true", help="create the Reassignment in Kubernetes")
    target.add_argument("--namespace", default="default", help="of the Reassignment (default)")
    target.add_argument("--kubeconfig", metavar="FILE", help="default: a pod's own, $KUBECONFIG, ~/.kube/config")
    target.add_argument("--out", type=Path, metavar="DIR", help="write it as YAML, for a pull request")
    target.add_argument("--report", type=Path, metavar="FILE", help="write a page that a person can read")
    target.add_argument("--json", action="store_true", help="print one object as the last line, with the plan")
    plan = parser.add_argument_group("planning")
    plan.add_argument(
        "--band", type=band, default=0.10, help="how far a fill may lie from the level, in parts of it (default 0.10)"
    )
    plan.add_argument("--high-water", type=high_water, default=0.95, help="no directory is ever fuller (default 0.95)")
    plan.add_argument("--max-moves", type=max_moves, default=500, help="partitions of one proposal (default 500)")
    plan.add_argument(
        "--min-improvement", type=float, default=0.02,
        help="what the spread or the highest fill must gain for a proposal (default 0.02 of the capacity)",
    )  # fmt: skip
    plan.add_argument("--min-spread", type=float, default=0.05, help="less is level already (default 0.05)")
    plan.add_argument("--min-size", type=quantity, default=1, help="smaller replicas stay where they are, e.g. 1Mi")
    plan.add_argument("--exclude-topic", action="append", default=[], metavar="TOPIC", help="stays; may be repeated")
    plan.add_argument("--only-disks", action="store_true", help="move nothing between brokers")
    plan.add_argument("--horizon", type=duration, default=86_400.0, help="forecast this far (default 24h; 0: not)")
    plan.add_argument(
        "--throttle-network", metavar="QUANTITY", type=throttle, help="bytes per second between brokers, e.g. 50Mi"
    )
    plan.add_argument(
        "--throttle-disk", metavar="QUANTITY", type=throttle, help="bytes per second between a broker's disks"
    )
    plan.add_argument(
        "--expires-after", type=duration, default=86_400.0, help="later it can be approved no more (default 24h)"
    )
    running = parser.add_argument_group("running")
    running.add_argument("--stream", action="store_true", help="watch, and propose when it is worth it")
    running.add_argument("--interval", type=interval, default=300.0, help="between looks with --stream (default 5m)")
    running.add_argument("--confirmations", type=int, default=2, help="looks that must agree before a proposal")
    running.add_argument("--checkpoint", metavar="DIR", help="where the stream keeps its place, or a URI")
    running.add_argument("--metrics-port", type=port, help="serve the job's own metrics, with --stream")
    running.add_argument("--master", help="Spark master (default: local[*], or what spark-submit says)")
    running.add_argument("--memory", help="the driver's memory, e.g. 2g")


def refused(args: argparse.Namespace) -> str | None:
    """Why arguments cannot work together; said before anything is installed for them."""
    if not args.prometheus and not args.bootstrap:
        return "where the load comes from is missing: give --prometheus URL or --bootstrap HOST:PORT (or both)"
    if args.prometheus and "@" in re.sub(r"^\w+://", "", args.prometheus).split("/")[0]:
        # It would be told in refusals, in logs and in the KafkaCluster's status.
        ways = "--prometheus-secret DIR or --prometheus-token FILE says who asks"
        return f"an address with a password is not taken; {ways}"
    if args.prometheus and not re.match(r"https?://[^/]", args.prometheus):
        return f"{args.prometheus!r} is not an address such as http://prometheus:9090"
    if args.prometheus and re.search(r"[?#]", args.prometheus):
        return "an address with ? or # is not taken: queries follow what is there"
    if (args.prometheus_secret or args.prometheus_token or args.prometheus_header) and not args.prometheus:
        return "what Prometheus asks for needs its address: give --prometheus URL"
    if args.prometheus_ca and not str(args.prometheus).startswith("https:"):
        return "--prometheus-ca is for an address with https://"
    if args.stream and not args.prometheus:
        return "--stream watches Prometheus: give --prometheus URL"
    if (args.metrics_port or args.checkpoint) and not args.stream:
        return "--metrics-port and --checkpoint are for a job that watches: give --stream"
    if (args.apply or args.out) and not args.cluster:
        return "a Reassignment belongs to a KafkaCluster: give --cluster NAME"
    return None


def run(args: argparse.Namespace) -> int:
    """0 when proposed or when there is nothing to do; 3 when it refused; 2 for arguments that cannot work."""
    if why := refused(args):
        print(why, file=sys.stderr)
        return 2
    try:
        from ballast_rebalance.job import run_once
        from ballast_rebalance.prometheus_http import PrometheusError
        from ballast_rebalance.session import SessionError, lasting_session
    except ModuleNotFoundError as error:
        print(f"{error.name} is not installed; `./ballast rebalance` installs what the job needs", file=sys.stderr)
        return 2

    try:
        options = job_options(args)
        _require_writable(args.out, args.report)
        metrics = _metrics(args) if args.stream else None
        store = _store(args)
    except (ValueError, PrometheusError) as error:
        print(f"rebalance cannot begin: {error}", file=sys.stderr)
        return 2
    try:
        with lasting_session(args.master, args.memory) as spark:
            if metrics is not None:
                return _watch(spark, args, options, store, metrics)
            outcome = told(run_once(spark, options, store), args.cluster, store)
    except SessionError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        if store is not None:
            store.close()
    show(outcome, args.json)
    return 0 if outcome.reason in QUIET else 3


def job_options(args: argparse.Namespace) -> JobOptions:
    from ballast_planner import PlanOptions
    from ballast_rebalance.access import AccessFiles
    from ballast_rebalance.job import JobOptions
    from ballast_rebalance.metrics_source import MetricsOptions
    from ballast_rebalance.proposal import ProposalOptions
    from ballast_rebalance.worth import Threshold

    metrics = None
    if args.prometheus:
        metrics = MetricsOptions(
            args.prometheus,
            cluster_labels=tuple(args.cluster_label),
            max_age_s=args.max_age,
            files=AccessFiles(
                args.prometheus_secret, args.prometheus_token, args.prometheus_ca, tuple(args.prometheus_header)
            ),
        )
        metrics.access()  # a slip of the pen shows now, not at the first look
    return JobOptions(
        proposal=ProposalOptions(
            cluster=args.cluster or "cluster",
            namespace=args.namespace,
            inter_broker_throttle=args.throttle_network,
            intra_broker_throttle=args.throttle_disk,
            expires_after=timedelta(seconds=args.expires_after),
        ),
        planning=PlanOptions(
            band=args.band,
            high_water=args.high_water,
            max_moves=args.max_moves,
            min_size_bytes=args.min_size,
            excluded_topics=frozenset(args.exclude_topic),
            across_brokers=not args.only_disks,
            inter_broker_bytes_per_second=quantity(args.throttle_network) if args.throttle_network else None,
            intra_broker_bytes_per_second=quantity(args.throttle_disk) if args.throttle_disk else None,
        ),
        threshold=Threshold(args.min_improvement, args.min_spread),
        metrics=metrics,
        bootstrap=args.bootstrap,
        client_options=getattr(args, "client_options", {}),
        capacity_bytes=args.capacity,
        weights=dict(args.weight),
        horizon_s=args.horizon,
        out=args.out,
        report=args.report,
        confirmations=max(1, args.confirmations),
        interval_s=args.interval,
        checkpoint=args.checkpoint,
    )


def told(outcome: Outcome, cluster: str, store: KubernetesStore | None) -> Outcome:
    """The KafkaCluster's status says what came of the look; where it cannot, the outcome does."""
    if store is None:
        return outcome
    look: dict[str, str | None] = {
        "reason": outcome.reason,
        "message": outcome.message[:MAX_MESSAGE],
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        # Absent fields of a merge patch would stay as an earlier look left them.
        "proposal": outcome.submitted,
    }
    trouble = store.tell(cluster, look)
    return outcome if trouble is None else replace(outcome, lacks=(*outcome.lacks, trouble))


def show(outcome: Outcome, as_json: bool) -> None:
    """What came of it, for a person and, as the last line, for a program."""
    from ballast_planner import to_kafka_json
    from ballast_planner.plan import plan_as_dict

    print(f"{outcome.reason}: {outcome.message}")
    for text in outcome.lacks:
        print(f"  note: {text}")
    for path in outcome.written:
        print(f"  wrote {path}")
    if outcome.submitted:
        print(f"  created reassignment/{outcome.submitted}")
    if outcome.resources:
        from ballast_rebalance.proposal import approve_command

        print(f"  approve: {approve_command(outcome.resources[-1])}")
    elif outcome.plan is not None and not as_json:
        print(to_kafka_json(outcome.plan.moves))
    if as_json:
        document = {"reason": outcome.reason, "message": outcome.message, "lacks": list(outcome.lacks)}
        if outcome.plan is not None:
            document |= plan_as_dict(outcome.plan) | {"plan": json.loads(to_kafka_json(outcome.plan.moves))}
        print(json.dumps(document))


def quantity(text: str) -> int:
    """Bytes from a Kubernetes quantity such as 50Mi, rounded up as Kubernetes and the operator do."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a quantity such as 50Mi")
    return math.ceil(Decimal(found.group(1)) * UNITS[found.group(2) or ""])


def size(text: str) -> int:
    """A quantity of something that is there."""
    found = quantity(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no size of a disk")
    return found


def band(text: str) -> float:
    if not 0 < float(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie between 0 and 1: 0.1 is a tenth of the level")
    return float(text)


def high_water(text: str) -> float:
    if not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie above 0 and at most at 1: 0.95 is 95 %")
    return float(text)


def max_moves(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return int(text)


def port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: they go from 1 to 65535")
    return int(text)


def addresses(text: str) -> str:
    """HOST:PORT, or several separated by commas; without a port it is Kafka's, 9092."""
    for one in text.split(","):
        found = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s,:/\[\]]+)(?::([0-9]{1,5}))?", one)
        if found is None or not 0 < int(found[1] or 9092) < 65536:
            raise argparse.ArgumentTypeError(f"{one!r} is no address of a broker such as localhost:9092")
    return text


def throttle(text: str) -> str:
    """A quantity as it was written, which the Reassignment says as well."""
    if not quantity(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no limit: nothing would ever arrive")
    return text


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or '"' in value or "\\" in value:
        raise argparse.ArgumentTypeError(f"{text!r} is not a label such as namespace=kafka")
    return name, value


def header(text: str) -> tuple[str, str]:
    """NAME=VALUE, as it may be seen by all."""
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


def _require_writable(folder: Path | None, page: Path | None) -> None:
    """Raises ValueError now for what could not be written in the end, when a Reassignment may have been created."""
    for path in filter(None, (folder, page)):
        inside = path if path == folder else path.parent
        try:
            inside.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=inside).close()
            if path == page and path.exists():
                path.open("ab").close()
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}") from error


def interval(text: str) -> float:
    """A duration that leaves time between two looks."""
    seconds = duration(text)
    if seconds < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than a second")
    return seconds


def _store(args: argparse.Namespace) -> KubernetesStore | None:
    if not args.apply:
        return None
    from kubernetes.config import ConfigException

    from ballast_rebalance.kubernetes_store import KubernetesStore

    try:
        return KubernetesStore(args.namespace, args.kubeconfig)
    except ConfigException as error:
        raise ValueError(f"--apply finds no Kubernetes: {error}") from error


def _look_without_batches(watcher: Watch, options: JobOptions) -> None:
    """Until Prometheus answers: else the last look would stand as if it were of now. Spark keeps a thread and three
    sockets of each stream that ever began, so none begins that would end at once."""
    from ballast_rebalance.metrics_source import answers

    assert options.metrics is not None
    while True:
        watcher.look("no Prometheus")
        time.sleep(options.interval_s)
        if answers(options.metrics):
            return


def _metrics(args: argparse.Namespace) -> OutcomeMetrics:
    """Served from before Spark starts, which takes its time."""
    from ballast_rebalance.outcomes import OutcomeMetrics

    metrics = OutcomeMetrics(args.interval)
    if args.metrics_port:
        try:
            metrics.serve(args.metrics_port)
        except OSError as error:
            raise ValueError(f"it cannot serve metrics at port {args.metrics_port}: {error.strerror}") from error
    return metrics


def _watch(
    spark: SparkSession,
    args: argparse.Namespace,
    options: JobOptions,
    store: KubernetesStore | None,
    metrics: OutcomeMetrics,
) -> int:
    from pyspark.errors import StreamingQueryException

    from ballast_rebalance.job import Watch, watch

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    def listener(outcome: Outcome) -> None:
        show(told(outcome, args.cluster, store), args.json)
        sys.stdout.flush()

    watcher = Watch(spark, options, store, metrics, listener)
    failures = 0
    while True:
        seen = watcher.cycles
        query = watch(spark, options, watcher.on_batch)
        try:
            query.awaitTermination()
            return 0
        except StreamingQueryException as error:
            if any(name in str(error) for name in ("PrometheusError", "PartialAnswerError")):
                _look_without_batches(watcher, options)
                failures = 0
                continue
            # A query that got somewhere before starts anew: on a busy machine Spark gives up on its workers early.
            failures = 1 if watcher.cycles > seen else failures + 1
            if failures > MAX_FAILURES:
                raise
            log.warning("the stream ended and is started again: %s", str(error).splitlines()[0])
