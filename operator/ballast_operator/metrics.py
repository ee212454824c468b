"""Collects the metrics of the operator itself, in Prometheus' format. Used from the event loop only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ballast_operator.clock import monotonic
from ballast_operator.model.meta import Key

BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# As far as alerts look back.
DELETED_SECONDS = 6 * 3600.0


class Sent(Collector):
    """Exports counts that are kept elsewhere: what was sent to the API server."""

    def __init__(self, writes: Callable[[], int], requests: Callable[[], Mapping[str, int]]) -> None:
        self._writes = writes
        self._requests = requests

    def collect(self) -> Iterable[CounterMetricFamily]:
        yield CounterMetricFamily("ballast_operator_status_writes", "status updates written", value=self._writes())
        requests = CounterMetricFamily(
            "ballast_operator_api_requests",
            "requests to the Kubernetes API, except watches and the Lease",
            labels=["verb"],
        )
        for verb, count in sorted(self._requests().items()):
            requests.add_metric([verb], count)
        yield requests


class Clusters(Collector):
    """The clusters that the operator runs, and for a while deleted ones, whose missing brokers are no alarm."""

    def __init__(self) -> None:
        self._deleted_at: dict[Key, float | None] = {}

    def heard(self, cluster: Key, deleted: bool) -> None:
        self._deleted_at[cluster] = monotonic() if deleted else None

    def collect(self) -> Iterable[GaugeMetricFamily]:
        oldest = monotonic() - DELETED_SECONDS
        self._deleted_at = {key: at for key, at in self._deleted_at.items() if at is None or at >= oldest}
        found = GaugeMetricFamily(
            "ballast_operator_cluster_deleted",
            "0 for each cluster that the operator runs, 1 for six hours after its KafkaCluster was deleted, so that "
            "its brokers do not count as missing",
            labels=["cluster_namespace", "cluster_name"],
        )
        for key, at in sorted(self._deleted_at.items()):
            found.add_metric([key.namespace, key.name], at is not None)
        yield found


class Metrics:
    """Counts, durations, errors, depth of the queue, age of the oldest look in progress."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._objects = Counter(
            "ballast_operator_reconciled_objects_total", "objects reconciled", ["kind"], registry=self.registry
        )
        self._errors = Counter(
            "ballast_operator_reconcile_errors_total", "reconciliations that failed", ["kind"], registry=self.registry
        )
        self._seconds = Histogram(
            "ballast_operator_reconcile_seconds",
            "duration of a reconciliation",
            ["kind"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._events = Counter(
            "ballast_operator_watch_events_total", "watch events received", ["kind"], registry=self.registry
        )
        self._depth = Gauge("ballast_operator_queue_depth", "objects waiting to be reconciled", registry=self.registry)
        self._oldest = Gauge(
            "ballast_operator_oldest_reconcile_seconds",
            "age of the oldest reconciliation in progress",
            registry=self.registry,
        )
        self._leader = Gauge("ballast_operator_leader", "1 while this process is the leader", registry=self.registry)
        self._dropped = Gauge(
            "ballast_operator_dropped_fields",
            "fields of resources that the CRDs drop or reject because they are older than the operator",
            registry=self.registry,
        )
        self.clusters = Clusters()
        self.registry.register(self.clusters)

    @contextlib.contextmanager
    def reconcile(self, kind: str, objects: int = 1) -> Iterator[None]:
        """Measures one look at some objects of a kind."""
        start = monotonic()
        errors = self._errors.labels(kind)  # exists from the first look on: rate() does not see a series' first value
        try:
            yield
        except Exception:
            errors.inc()
            raise
        finally:
            self._objects.labels(kind).inc(objects)
            self._seconds.labels(kind).observe(monotonic() - start)

    def event(self, kind: str) -> None:
        self._events.labels(kind).inc()

    def watch(
        self,
        depth: Callable[[], float],
        oldest: Callable[[], float],
        leads: Callable[[], bool],
        writes: Callable[[], int],
        requests: Callable[[], Mapping[str, int]],
        dropped: Callable[[], float],
    ) -> None:
        """Register values that are read at each scrape."""
        self._depth.set_function(depth)
        self._oldest.set_function(oldest)
        self._leader.set_function(lambda: float(leads()))
        self._dropped.set_function(dropped)
        self.registry.register(Sent(writes, requests))

    def text(self) -> bytes:
        return generate_latest(self.registry)
