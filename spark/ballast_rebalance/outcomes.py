"""Exports metrics of the job itself: the outcome of the last run, and why nothing was proposed (REB-08)."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from ballast_planner import Plan


class OutcomeMetrics:
    """One registry for a job that runs every `interval_s`; `serve` exposes it."""

    def __init__(self, interval_s: float) -> None:
        self.registry = CollectorRegistry()
        self._runs = Counter("ballast_rebalance_runs", "runs by outcome", ["reason"], registry=self.registry)
        self._last = Gauge(
            "ballast_rebalance_last_outcome", "1 for the outcome of the last run", ["reason"], registry=self.registry
        )
        self._time = Gauge(
            "ballast_rebalance_last_run_timestamp_seconds",
            "when the last run ended; before the first run, when the job started",
            registry=self.registry,
        )
        # Until the first run has ended: the job is not late from its first second on.
        self._time.set(time.time())
        interval = Gauge("ballast_rebalance_interval_seconds", "time between two runs", registry=self.registry)
        interval.set(interval_s)
        self._seconds = Gauge(
            "ballast_rebalance_last_run_duration_seconds", "duration of the last run", registry=self.registry
        )
        self._spread = Gauge(
            "ballast_rebalance_fill_spread_ratio",
            "highest minus lowest fill level, before and after the plan of the last run; absent if it made no plan",
            ["state"],
            registry=self.registry,
        )
        self._bytes = Gauge(
            "ballast_rebalance_proposed_bytes",
            "bytes that the plan of the last run moves, over the network and from disk to disk within a broker",
            ["way"],
            registry=self.registry,
        )

    def record(self, reason: str, plan: Plan | None, seconds: float) -> None:
        self._runs.labels(reason).inc()
        self._last.clear()
        self._last.labels(reason).set(1)
        self._time.set(time.time())
        self._seconds.set(seconds)
        # Forget the plan of an earlier run.
        self._spread.clear()
        self._bytes.clear()
        if plan is not None and plan.quality is not None:
            self._spread.labels("before").set(plan.quality.before.spread)
            self._spread.labels("after").set(plan.quality.after.spread)
            self._bytes.labels("network").set(plan.quality.bytes_network)
            self._bytes.labels("disk").set(plan.quality.bytes_disk)

    def serve(self, port: int, address: str = "0.0.0.0") -> None:
        start_http_server(port, addr=address, registry=self.registry)
