"""The job: measure, forecast, plan, propose; once, or at every trigger of a stream (REB-01).

The only module that ties the others together. `run_once` is one cycle; `watch` runs it from Structured Streaming.
Runs in Spark's driver, which alone talks to Kubernetes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ballast_planner import ClusterLoad, Plan, PlanOptions, Quality, plan_balance, plan_racks
from ballast_rebalance import admin, metrics_source, proposal, report, worth
from ballast_rebalance.measured import (
    Measured,
    Refusal,
    check,
    counted,
    require_volumes,
    shared_volumes,
    unkept_racks,
    with_capacity,
    with_weights,
)
from ballast_rebalance.metrics_source import MetricsOptions
from ballast_rebalance.outcomes import OutcomeMetrics
from ballast_rebalance.proposal import Older, ProposalOptions, ProposalStore
from ballast_rebalance.solve import spark_solver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobOptions:
    """`metrics` or `bootstrap` must be given; with both, the order of assignments comes from the brokers."""

    proposal: ProposalOptions
    planning: PlanOptions = field(default_factory=lambda: PlanOptions(max_moves=500))
    threshold: worth.Threshold = field(default_factory=worth.Threshold)
    metrics: MetricsOptions | None = None
    bootstrap: str | None = None
    client_options: Mapping[str, Any] = field(default_factory=dict)
    capacity_bytes: int | None = None
    weights: Mapping[str, int] = field(default_factory=dict)
    horizon_s: float = 24 * 3_600.0
    out: Path | None = None
    report: Path | None = None
    confirmations: int = 2
    interval_s: float = 300.0
    checkpoint: str | None = None


@dataclass(frozen=True)
class Outcome:
    """The result of a run. `reason` is Proposed or why not; `pending`: a plan was worth it but was not handed over."""

    reason: str
    message: str
    plan: Plan | None = None
    load: ClusterLoad | None = None
    resources: tuple[dict[str, Any], ...] = ()
    lacks: tuple[str, ...] = ()
    written: tuple[Path, ...] = ()
    submitted: str | None = None
    pending: bool = False


def unanswered(options: JobOptions) -> Outcome | None:
    """What a look would come to if Prometheus or the brokers do not answer: known without Spark, which starts late."""
    try:
        if options.metrics is not None:
            metrics_source.require_answer(options.metrics)
        if options.bootstrap is not None:
            admin.require_answer(options.bootstrap, options.client_options)
    except Refusal as refusal:
        return Outcome(refusal.reason, str(refusal))
    return None


def run_once(
    spark: SparkSession, options: JobOptions, store: ProposalStore | None = None, rehearsal: bool = False
) -> Outcome:
    """One cycle. Never raises because of the state of a cluster or its metrics: that is an outcome with a reason.

    A rehearsal finds out what would be proposed, but neither submits nor writes anything.
    """
    measured, found = None, False
    try:
        planning = planning_for(options, store)
        measured = measure(spark, options)
        check(measured)
        measured = replace(measured, lacks=(*measured.lacks, *unkept_racks(measured)))
        if options.capacity_bytes is not None:
            measured = with_capacity(measured, options.capacity_bytes)
        else:
            measured = replace(measured, lacks=(*measured.lacks, *shared_volumes(measured)))
        if options.weights:
            measured = with_weights(measured, options.weights, options.proposal.cluster)
        load = measured.load(options.horizon_s)
        now = measured.load() if options.horizon_s > 0 else None
        plan = plan_worth_it(spark, load, planning, options.threshold, now)
        if options.capacity_bytes is None:
            require_volumes(measured, plan)
        found = True
        if rehearsal:
            return Outcome("Proposed", _sentence(plan), plan, load, lacks=tuple(measured.lacks), pending=True)
        return _propose(replace(options, planning=planning), measured, load, plan, store)
    except Refusal as refusal:
        lacks = tuple(measured.lacks) if measured else ()
        return Outcome(refusal.reason, str(refusal), lacks=lacks, pending=found)


def plan_worth_it(
    spark: SparkSession, load: ClusterLoad, planning: PlanOptions, threshold: worth.Threshold, now: ClusterLoad | None
) -> Plan:
    """A plan that levels the cluster or, if that gains too little, one that only spreads partitions over more racks.

    Raises Refusal if neither is worth a proposal.
    """
    plan = plan_balance(load, planning, spark_solver(spark, load), now)
    try:
        worth.require_worth(plan, threshold)
    except Refusal:
        repair = plan_racks(load, planning, now)
        if not repair.moves:
            raise
        return repair
    return plan


def planning_for(options: JobOptions, store: ProposalStore | None) -> PlanOptions:
    """The planning options, with topics excluded whose brokers are fixed by their KafkaTopic (OPR-20)."""
    if store is None:
        return options.planning
    pinned = store.pinned_topics(options.proposal.cluster)
    return replace(options.planning, excluded_topics=options.planning.excluded_topics | pinned)


def measure(spark: SparkSession, options: JobOptions) -> Measured:
    """Measure the cluster from Prometheus, from the brokers, or from both."""
    if options.metrics is None:
        assert options.bootstrap is not None
        return admin.measure_by_admin(options.bootstrap, options.client_options, options.capacity_bytes)
    if options.bootstrap is None:
        return metrics_source.measure(spark, options.metrics)
    # Ask the brokers first: only they can tell an empty cluster from missing metrics.
    asked = admin.measure_by_admin(options.bootstrap, options.client_options, options.capacity_bytes)
    return _with_order(metrics_source.measure(spark, options.metrics), asked)


def _with_order(measured: Measured, asked: Measured) -> Measured:
    """Sizes and history from Prometheus, placement and order from the brokers.

    What is on a broker or disk that is away is in no metrics either: there the brokers' answer has to do.
    """
    keys = ["topic", "partition", "broker", "log_dir"]
    joined = measured.replicas.drop(columns=["position", "leader"]).merge(
        asked.replicas[[*keys, "position", "leader", "size"]],
        on=keys, how="outer", indicator=True, suffixes=("", "_told"),
    )  # fmt: skip
    joined["size"] = joined["size"].fillna(joined["size_told"])
    strange = joined[(joined["_merge"] != "both") & joined["log_dir"].notna()]
    if not strange.empty:
        row = strange.iloc[0]
        raise Refusal(
            "MetricsStale",
            f"the metrics are behind on {counted(len(strange), 'replica')}, first {row['topic']}-{row['partition']}: "
            "moved lately, or a broker is not scraped; ask again in a minute",
        )
    frame = joined[list(measured.replicas.columns)]
    answered = (metrics_source.UNORDERED, metrics_source.UNSEEN)
    lacks = tuple(text for text in measured.lacks if text not in answered)
    return replace(measured, replicas=frame, brokers=asked.brokers, order_known=True, lacks=lacks, all_known=True)


def _propose(
    options: JobOptions, measured: Measured, load: ClusterLoad, plan: Plan, store: ProposalStore | None
) -> Outcome:
    resources: tuple[dict[str, Any], ...] = ()
    if store is not None or options.out is not None:
        resources = tuple(proposal.build(plan, measured, options.proposal, options.planning))

    def is_kept(older: Older) -> bool:
        made = resources[-1]["spec"]["inputTime"]
        present = measured.load() if options.horizon_s > 0 else None
        return proposal.as_good(older, load, plan, options.planning, options.threshold, made, present)

    if options.out is not None:  # refuse before anything is created
        proposal.require_carried_out(resources[-1], options.out, load)
        proposal.superseded_files(resources, options.out, is_kept)
    submitted = proposal.submit(resources, store, is_kept) if store is not None else None
    written: list[Path] = []
    lacks = list(measured.lacks)
    try:
        if options.out is not None:
            written.append(proposal.write_yaml(resources, options.out))
        if options.report is not None:
            command = proposal.approve_command(resources[-1]) if resources else None
            ahead_s = options.horizon_s if measured.replicas["growth"].notna().any() else 0.0
            page = report.render(load, plan, options.proposal.cluster, measured.at_s, command, measured.lacks, ahead_s)
            options.report.parent.mkdir(parents=True, exist_ok=True)
            options.report.write_text(page, encoding="utf-8")
            written.append(options.report)
    except OSError as error:
        if submitted is None:
            raise
        lacks.append(f"not all was written: {error}")
    return Outcome("Proposed", _sentence(plan), plan, load, resources, tuple(lacks), tuple(written), submitted)


def _sentence(plan: Plan) -> str:
    quality, bounds = plan.quality, plan.bounds
    assert quality is not None
    assert bounds is not None
    repaired = quality.on_more_racks
    return (
        (f"{counted(repaired, 'partition')} come on more racks; " if repaired else "")
        + f"{counted(quality.partitions, 'partition')} in {counted(quality.waves, 'wave')}: "
        f"highest fill {quality.before.highest:.1%} -> {quality.after.highest:.1%}, "
        f"spread {quality.before.spread:.1%} -> {quality.after.spread:.1%}, "
        f"{quality.bytes_network + quality.bytes_disk:,} bytes "
        f"(no plan that levels needs fewer than {bounds.bytes_total:,})"
        + (
            ""
            if quality.expected_seconds is None
            else f", {report.human_time(quality.expected_seconds)} at the throttle"
        )
        + _what_follows(quality)
    )


def _what_follows(quality: Quality) -> str:
    """What follows a plan that was cut off at `max_moves`."""
    if quality.aim is None:
        return ""
    levels = f"highest fill {quality.aim.highest:.1%} and spread {quality.aim.spread:.1%}"
    return f"; {counted(quality.to_follow, 'more partition')} to follow in later plans, for {levels} in the end"


class Watch:
    """State between triggers: a plan is handed over only once looks in a row have found it worth it."""

    def __init__(
        self,
        spark: SparkSession,
        options: JobOptions,
        store: ProposalStore | None,
        metrics: OutcomeMetrics,
        listener: Callable[[Outcome], None] | None = None,
    ) -> None:
        self._spark, self._options, self._store = spark, options, store
        self._metrics, self._listener = metrics, listener
        self._worth_running = 0
        self.cycles = 0

    def on_batch(self, _frame: DataFrame, batch: int) -> None:
        self.look(f"batch {batch}")

    def look(self, occasion: str) -> None:
        started = time.monotonic()
        outcome = self.cycle()
        self._metrics.record(outcome.reason, outcome.plan, time.monotonic() - started)
        log.info("%s: %s: %s", occasion, outcome.reason, outcome.message)
        if self._listener is not None:
            self._listener(outcome)
        # Counts looks that ended: one that fails every time must not be restarted forever.
        self.cycles += 1

    def cycle(self) -> Outcome:
        rehearsal = self._worth_running + 1 < self._options.confirmations
        outcome = run_once(self._spark, self._options, self._store, rehearsal)
        # Keep the count while something merely blocks the proposal, so that every look reports it, not every other one.
        # A running reassignment changes the load, so confirmation starts over after it.
        stays = outcome.pending and outcome.reason != "ReassignmentInProgress"
        self._worth_running = self._worth_running + 1 if stays else 0
        return replace(outcome, reason="Confirming") if rehearsal and outcome.pending else outcome


def watch(spark: SparkSession, options: JobOptions, on_batch: Callable[[DataFrame, int], None]) -> StreamingQuery:
    """Start a stream over the directories' fill levels that calls `on_batch` at each trigger."""
    if options.metrics is None:
        raise ValueError("watching needs Prometheus: the stream is made of its steps")
    reader = (
        spark.readStream.format("prometheus")
        .option("url", options.metrics.url)
        .option("query", options.metrics.watched)
        .option("step", f"{max(1.0, options.interval_s):g}")
        .option("delay", "0")
    )
    for name, value in options.metrics.access().items():
        reader = reader.option(name, value) if value else reader
    writer = reader.load().writeStream.foreachBatch(on_batch).trigger(processingTime=f"{options.interval_s:g} seconds")
    if options.checkpoint is not None:
        writer = writer.option("checkpointLocation", options.checkpoint)
    return writer.start()
