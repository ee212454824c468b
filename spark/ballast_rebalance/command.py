"""Runs the job's command line, for both `./ballast rebalance` and `python -m ballast_rebalance` (spark-submit).

Imports only the standard library at first, so that --help works before anything is installed.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ballast_rebalance.arguments import quantity, refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ballast_rebalance.job import JobOptions, Outcome, Watch
    from ballast_rebalance.kubernetes_store import KubernetesStore
    from ballast_rebalance.outcomes import OutcomeMetrics

log = logging.getLogger(__name__)
MAX_MESSAGE = 4_000
# How often in a row the stream may fail without a single look.
MAX_FAILURES = 10
# How long somebody is waited for in silence: all attempts at a Prometheus that hangs take four minutes.
SILENT_SECONDS = 5.0
# Reasons that mean all is well; any other makes the exit code 3.
QUIET = frozenset(
    {"Proposed", "Balanced", "TooLittleToGain", "AlreadyProposed", "ReassignmentInProgress", "Confirming"}
)


def run(args: argparse.Namespace) -> int:
    """The exit code: 0 if it proposed or had nothing to do, 3 if it refused, 2 for arguments that cannot work."""
    if why := refused(args):
        print(why, file=sys.stderr)
        return 2
    try:
        from ballast_rebalance.job import run_once, unanswered
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
        print(f"rebalance cannot start: {error}", file=sys.stderr)
        return 2
    try:
        away = None
        if metrics is None:
            with _told_if_slow(" and ".join(filter(None, (args.prometheus, args.bootstrap)))):
                away = unanswered(options)
        if away is not None:
            outcome = report_outcome(away, args.cluster, store)
        else:
            with lasting_session(args.master, args.memory) as spark:
                if metrics is not None:
                    return _watch(spark, args, options, store, metrics)
                outcome = report_outcome(run_once(spark, options, store), args.cluster, store)
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
        metrics.access()  # mistakes show now, not at the first look
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
        confirmations=args.confirmations,
        interval_s=args.interval,
        checkpoint=args.checkpoint,
    )


def report_outcome(outcome: Outcome, cluster: str, store: KubernetesStore | None) -> Outcome:
    """Write the outcome of a look into the KafkaCluster's status; if that fails, add a note to the outcome."""
    if store is None:
        return outcome
    look: dict[str, str | None] = {
        "reason": outcome.reason,
        "message": outcome.message[:MAX_MESSAGE],
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        # Present even if None: absent fields of a merge patch would stay as an earlier look left them.
        "proposal": outcome.submitted,
    }
    trouble = store.tell(cluster, look)
    return outcome if trouble is None else replace(outcome, lacks=(*outcome.lacks, trouble))


def show(outcome: Outcome, as_json: bool) -> None:
    """Print the outcome for people and, as the last line, for programs."""
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


@contextmanager
def _told_if_slow(where: str) -> Iterator[None]:
    timer = threading.Timer(SILENT_SECONDS, log.warning, ("waiting for an answer of %s", where))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _require_writable(folder: Path | None, page: Path | None) -> None:
    """Raises ValueError now for what could not be written later, when a Reassignment may have been created."""
    for path in filter(None, (folder, page)):
        inside = path if path == folder else path.parent
        try:
            inside.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=inside).close()
            if path == page and path.exists():
                path.open("ab").close()
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}") from error


def _store(args: argparse.Namespace) -> KubernetesStore | None:
    if not args.apply:
        return None
    from kubernetes.config import ConfigException

    from ballast_rebalance.kubernetes_store import KubernetesStore

    try:
        return KubernetesStore(args.namespace, args.kubeconfig)
    except ConfigException as error:
        raise ValueError(f"--apply found no Kubernetes: {error}") from error


def _look_without_batches(watcher: Watch, options: JobOptions) -> None:
    """Look at each interval until Prometheus answers: else the last outcome would pass for the current one."""
    from ballast_rebalance.metrics_source import answers

    assert options.metrics is not None
    while True:
        watcher.look("no Prometheus")
        time.sleep(options.interval_s)
        if answers(options.metrics):
            return


def _metrics(args: argparse.Namespace) -> OutcomeMetrics:
    """Metrics, served before Spark starts, which takes a while."""
    from ballast_rebalance.outcomes import OutcomeMetrics

    metrics = OutcomeMetrics(args.interval)
    if args.metrics_port:
        try:
            metrics.serve(args.metrics_port)
        except OSError as error:
            raise ValueError(f"cannot serve metrics on port {args.metrics_port}: {error.strerror}") from error
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
    from ballast_rebalance.metrics_source import answers

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    def listener(outcome: Outcome) -> None:
        show(report_outcome(outcome, args.cluster, store), args.json)
        sys.stdout.flush()

    watcher = Watch(spark, options, store, metrics, listener)
    # Of each stream that was ever started, Spark leaks a thread and three sockets: none is that would end at once.
    assert options.metrics is not None
    if not answers(options.metrics):
        _look_without_batches(watcher, options)
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
            # A query that has had a look starts anew: on a busy machine Spark gives up on its workers early.
            failures = 1 if watcher.cycles > seen else failures + 1
            if failures > MAX_FAILURES:
                raise
            log.warning("the stream ended and is started again: %s", error)
