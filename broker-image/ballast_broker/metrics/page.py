"""Renders `/metrics` in Prometheus's text format. `meanings.py` and `docs/metrics.md` document each name.

Values are read from the components at scrape time; nothing is counted just for this page. Per-partition series are
formatted by hand, in slices of `SLICE_S`, so that a page of 10,000 partitions never blocks the loop; changes in between
show partly, as in any scrape. Loop thread only.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ballast_broker.coordinator.transactions import STORED_STATES
from ballast_broker.metadata.image import NO_LEADER
from ballast_broker.metrics.meanings import MEANINGS
from ballast_broker.metrics.requests import LATENCY_BOUNDS_S, Histogram
from ballast_wire.names import TopicPartition

if TYPE_CHECKING:
    from ballast_broker.api.client_quotas import ClientQuotas
    from ballast_broker.coordinator.service import GroupCoordinator
    from ballast_broker.coordinator.transaction_service import TransactionCoordinator
    from ballast_broker.metadata.image import MetadataImage
    from ballast_broker.metrics.loop_lag import LoopLag
    from ballast_broker.metrics.requests import RequestMetrics
    from ballast_broker.metrics.traffic import Traffic
    from ballast_broker.net.server import Server
    from ballast_broker.raft.driver import RaftDriver
    from ballast_broker.replication.movers import Movers
    from ballast_broker.replication.partition import Partition
    from ballast_broker.replication.replicas import Replicas
    from ballast_broker.replication.replication import Replication
    from ballast_broker.storage.log import Log
    from ballast_broker.storage.manager import LogManager

SLICE_S = 0.002
LINES_OF_A_PIECE = 100
NOTHING = ""
COUNTED = (
    "ballast_replicas",
    "ballast_leaders",
    "ballast_under_replicated_partitions",
    "ballast_under_min_isr_partitions",
    "ballast_offline_replicas",
)

T = TypeVar("T")
Labels = str
Samples = Iterable[tuple[Labels, int]]


@dataclass(frozen=True, slots=True)
class Observed:
    """The components the page reads. A node that is only a controller has neither replication nor groups."""

    node_id: int
    cluster_id: str
    rack: str | None
    image: Callable[[], MetadataImage]
    logs: LogManager
    requests: RequestMetrics
    quotas: ClientQuotas
    traffic: Traffic
    quorum: RaftDriver
    server: Server
    lag: LoopLag
    replication: Replication | None = None
    groups: GroupCoordinator | None = None
    transactions: TransactionCoordinator | None = None
    per_partition: bool = True


def escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def label_set(**labels: object) -> Labels:
    return ",".join(f'{name}="{escape(str(value))}"' for name, value in labels.items())


class MetricsPage:
    def __init__(self, observed: Observed) -> None:
        self._seen = observed
        self._broker = label_set(broker=observed.node_id)
        self._process: Callable[[], str] | None = None

    async def render(self) -> AsyncIterator[bytes]:
        """Render the page in pieces; other tasks run in between."""
        if self._process is None:
            self._process = await asyncio.to_thread(process_page)  # takes a tenth of a second to import
        await asyncio.gather(*(directory.learn_usage() for directory in self._seen.logs.directories))
        now = asyncio.get_running_loop().time
        began, pieces = now(), [self._process()]
        for piece in self._pieces():
            pieces.append(piece)
            if now() - began > SLICE_S:
                yield "".join(pieces).encode()
                pieces.clear()
                await asyncio.sleep(0)
                began = now()
        yield "".join(pieces).encode()

    def _pieces(self) -> Iterator[str]:
        """The pieces of the page; rendering may pause after any of them."""
        yield from self._of_the_node()
        yield from self._of_directories()
        yield from self._of_requests()
        yield from self._of_quotas(self._seen.quotas)
        if self._seen.replication is not None:
            yield from self._of_replication(self._seen.replication)
            if self._seen.per_partition:
                yield from self._of_partitions(self._seen.replication.replicas)
        if self._seen.groups is not None and self._seen.replication is not None:
            yield from self._of_groups(self._seen.groups, self._seen.replication.replicas)
        if self._seen.transactions is not None:
            states = self._seen.transactions.states()
            told: Samples = ((f"{self._broker},{label_set(state=s.value)}", states[s]) for s in STORED_STATES)
            yield from family("ballast_transactions", "gauge", told)

    # -- the node -------------------------------------------------------------------------------------------------
    def _of_the_node(self) -> Iterator[str]:
        seen, own = self._seen, self._broker
        info = label_set(broker=seen.node_id, rack=seen.rack or "", cluster_id=seen.cluster_id)
        yield from family("ballast_broker_info", "gauge", [(info, 1)])
        yield from family("ballast_controller_active", "gauge", [(own, seen.quorum.is_leader)])
        yield from family("ballast_controller_heard", "gauge", [(own, seen.quorum.hears_leader)])
        yield from family("ballast_metadata_lacking", "gauge", [(own, seen.quorum.store.lacks is not None)])
        yield from self._of_the_cluster(seen.image(), tells=seen.quorum.is_leader)
        yield from family("ballast_metadata_offset", "gauge", [(own, seen.image().offset)])
        server = seen.server
        yield from family("ballast_connections", "gauge", [(own, len(server.connections))])
        yield from family("ballast_connections_accepted_total", "counter", [(own, server.accepted_count)])
        yield from family("ballast_connections_refused_total", "counter", [(own, server.refused_count)])
        yield from family("ballast_connections_delayed_total", "counter", [(own, server.delayed_count)])
        yield from family("ballast_request_queue_bytes", "gauge", [(own, server.queued_bytes)])
        ends = [(f"{own},{label_set(listener=name)}", int(at_s)) for name, at_s in server.certificates_end_s().items()]
        yield from family("ballast_certificate_end_timestamp_seconds", "gauge", ends)

    def _of_the_cluster(self, image: MetadataImage, *, tells: bool) -> Iterator[str]:
        """Mostly reported by the active controller only: otherwise it would be counted several times."""
        count = 0
        partitions = (p for topic in image.topics.topics_by_id.values() for p in topic.partitions.values())
        for some in in_pieces(partitions) if tells else ():
            count += sum(partition.leader == NO_LEADER for partition in some)
            yield NOTHING
        yield from family("ballast_leaderless_partitions", "gauge", [(self._broker, count)])
        # A broker neither listed here nor scraped was removed, which otherwise would look like being down.
        known = image.cluster.brokers if tells else ()
        registered = [(f"{self._broker},{label_set(registered=broker)}", 1) for broker in known]
        yield from family("ballast_registered_broker", "gauge", registered)
        # From the same image as the replica placements on this page, so that both are consistent.
        moving = len(image.topics.reassigning)
        yield from family("ballast_reassigning_partitions", "gauge", [(self._broker, moving)])

    def _of_directories(self) -> Iterator[str]:
        directories = self._seen.logs.directories
        labels = {d.path: label_set(broker=self._seen.node_id, log_dir=d.path) for d in directories}
        usages = [(labels[d.path], d.known_usage) for d in directories]
        known = [(label, usage) for label, usage in usages if usage is not None]
        yield from family("ballast_log_dir_total_bytes", "gauge", [(label, u.total_bytes) for label, u in known])
        used = [(label, u.total_bytes - u.usable_bytes) for label, u in known]
        yield from family("ballast_log_dir_used_bytes", "gauge", used)
        offline = [(labels[d.path], not d.online) for d in directories]
        yield from family("ballast_log_dir_offline", "gauge", offline)
        silent = [(labels[d.path], d.threads.silent) for d in directories]
        yield from family("ballast_log_dir_silent", "gauge", silent)
        yield from family("ballast_log_dir_cordoned", "gauge", [(labels[d.path], d.cordoned) for d in directories])
        cleaner, own = self._seen.logs.compactor, self._broker
        yield from family("ballast_cleaner_passes_total", "counter", [(own, cleaner.passes)])
        yield from family("ballast_cleaner_read_bytes_total", "counter", [(own, cleaner.cleaned_bytes)])
        yield from family("ballast_cleaner_uncleanable_partitions", "gauge", [(own, cleaner.left_alone)])

    def _of_requests(self) -> Iterator[str]:
        requests = self._seen.requests
        own = self._broker
        errors = [(f"{own},{label_set(api=api, error=e)}", count) for (api, e), count in requests.errors.items()]
        yield from family("ballast_request_errors_total", "counter", errors)
        yield head("ballast_request_duration_seconds", "histogram")
        for api, latency in list(requests.latency.items()):
            yield from histogram("ballast_request_duration_seconds", f"{own},{label_set(api=api)}", latency)
        yield head("ballast_event_loop_lag_seconds", "histogram")
        yield from histogram("ballast_event_loop_lag_seconds", own, self._seen.lag.histogram)
        lag = self._seen.lag
        longest = (("turn_seconds", lag.longest_s), ("turn_cpu_seconds", lag.longest_cpu_s))
        for name, seconds in longest:
            yield head(f"ballast_event_loop_longest_{name}", "gauge")
            yield f"ballast_event_loop_longest_{name}{{{own}}} {seconds:.6f}\n"

    def _of_quotas(self, quotas: ClientQuotas) -> Iterator[str]:
        kinds = [(f"{self._broker},{label_set(quota=name)}", each) for name, each in quotas.by_name().items()]
        yield from family("ballast_quota_throttles_total", "counter", [(own, each.throttles) for own, each in kinds])
        yield head("ballast_quota_throttled_seconds_total", "counter")
        for own, each in kinds:
            yield f"ballast_quota_throttled_seconds_total{{{own}}} {each.throttled_ms / 1000:.3f}\n"

    # -- replication ----------------------------------------------------------------------------------------------
    def _of_replication(self, replication: Replication) -> Iterator[str]:
        own, counts, replicas = self._broker, dict.fromkeys(COUNTED, 0), replication.replicas
        for some in in_pieces(replicas.partitions()):
            counts["ballast_replicas"] += len(some)
            counts["ballast_leaders"] += sum(p.is_leader for p in some)
            counts["ballast_under_replicated_partitions"] += sum(p.under_replicated for p in some)
            counts["ballast_under_min_isr_partitions"] += sum(p.under_min_isr for p in some)
            counts["ballast_offline_replicas"] += sum(replicas.local_log(p.topic_partition) is None for p in some)
            yield NOTHING
        for name, count in counts.items():
            yield from family(name, "gauge", [(own, count)])
        changes = replication.isr_changes
        yield from family("ballast_isr_shrinks_total", "counter", [(own, changes.shrinks)])
        yield from family("ballast_isr_expands_total", "counter", [(own, changes.expands)])
        yield from family("ballast_isr_failed_updates_total", "counter", [(own, changes.failed_updates)])
        yield from family("ballast_unclean_elections_total", "counter", [(own, changes.unclean_elections)])
        followed = replication.fetchers.totals
        yield from family("ballast_replica_fetch_failures_total", "counter", [(own, followed.failed)])
        yield from family("ballast_replica_truncated_records_total", "counter", [(own, followed.truncated_records)])
        yield from self._of_moves(replication.movers)

    def _of_moves(self, movers: Movers) -> Iterator[str]:
        moves = list(movers.moves.values())
        own = self._broker
        yield from family("ballast_moves", "gauge", [(own, len(moves))])
        yield from family("ballast_moves_paused", "gauge", [(own, sum(m.paused is not None for m in moves))])
        stuck = sum(m.not_converging for m in moves)
        yield from family("ballast_moves_not_converging", "gauge", [(own, stuck)])
        yield from family("ballast_moves_copied_bytes_total", "counter", [(own, movers.rate.total_bytes)])

    # -- partitions -----------------------------------------------------------------------------------------------
    def _of_partitions(self, replicas: Replicas) -> Iterator[str]:
        logs = list(self._seen.logs.logs.items())
        futures = list(self._seen.logs.future_logs.items())
        names: dict[TopicPartition, Labels] = {}
        for some in in_pieces(logs):
            names |= {topic_partition: self._partition_labels(topic_partition) for topic_partition, _ in some}
            yield NOTHING
        yield from family("ballast_replica_size_bytes", "gauge", self._sizes(logs))
        yield from family("ballast_replica_future_size_bytes", "gauge", self._sizes(futures))
        ends: Samples = ((names[tp], log.log_end_offset) for tp, log in logs)
        yield from family("ballast_replica_log_end_offset", "gauge", ends)
        starts: Samples = ((names[tp], log.log_start_offset) for tp, log in logs)
        yield from family("ballast_replica_log_start_offset", "gauge", starts)
        partitions = replicas.partitions()
        leaders: Samples = ((names[p.topic_partition], p.is_leader) for p in partitions if p.topic_partition in names)
        yield from family("ballast_partition_leader", "gauge", leaders)
        yield from family("ballast_replica_position", "gauge", self._positions(partitions, names))
        traffic = self._seen.traffic
        for name, counted in (
            ("ballast_partition_bytes_in_total", traffic.bytes_in),
            ("ballast_partition_bytes_out_total", traffic.bytes_out),
        ):
            yield from family(name, "counter", ((names[tp], n) for tp, n in list(counted.items()) if tp in names))

    def _partition_labels(self, topic_partition: TopicPartition) -> Labels:
        # No escaping needed: topic names have only letters, digits, dots, dashes and underscores.
        return f'topic="{topic_partition.topic}",partition="{topic_partition.partition}",{self._broker}'

    def _sizes(self, logs: list[tuple[TopicPartition, Log]]) -> Samples:
        places = {d.path: label_set(log_dir=d.path) for d in self._seen.logs.directories}
        for topic_partition, log in logs:
            yield f"{self._partition_labels(topic_partition)},{places[log.directory.path]}", log.size_bytes

    def _positions(self, partitions: list[Partition], names: dict[TopicPartition, Labels]) -> Samples:
        for partition in partitions:
            if self._seen.node_id in partition.replicas and partition.topic_partition in names:
                yield names[partition.topic_partition], partition.replicas.index(self._seen.node_id)

    # -- groups ---------------------------------------------------------------------------------------------------
    def _of_groups(self, coordinator: GroupCoordinator, replicas: Replicas) -> Iterator[str]:
        groups = coordinator.loaded_groups()
        own = self._broker
        states: Samples = ((f"{own},{label_set(group=g.group_id, state=g.state.value)}", 1) for g, _ in groups)
        yield from family("ballast_group_state", "gauge", states)
        members: Samples = ((f"{own},{label_set(group=g.group_id)}", len(g.members)) for g, _ in groups)
        yield from family("ballast_group_members", "gauge", members)
        committed: list[tuple[Labels, TopicPartition, int]] = []
        for group, offsets in groups:
            label = label_set(group=group.group_id)
            for some in in_pieces(list(offsets.items())):
                committed += [(label, tp, commit.offset) for tp, commit in some]
                yield NOTHING
        told: Samples = ((f"{group},{self._partition_labels(tp)}", offset) for group, tp, offset in committed)
        yield from family("ballast_group_committed_offset", "gauge", told)
        yield from family("ballast_group_lag", "gauge", self._lags(committed, replicas))

    def _lags(self, committed: list[tuple[Labels, TopicPartition, int]], replicas: Replicas) -> Samples:
        """Only for partitions with a replica here: other high watermarks are unknown."""
        for group, topic_partition, offset in committed:
            log = replicas.local_log(topic_partition)
            if log is not None:
                yield f"{group},{self._partition_labels(topic_partition)}", max(0, log.high_watermark - offset)


def head(name: str, kind: str) -> str:
    return f"# HELP {name} {MEANINGS[name]}\n# TYPE {name} {kind}\n"


def family(name: str, kind: str, samples: Samples) -> Iterator[str]:
    yield head(name, kind)
    for some in in_pieces(samples):
        yield "".join([f"{name}{{{labels}}} {value:d}\n" for labels, value in some])


def histogram(name: str, labels: Labels, taken: Histogram) -> Iterator[str]:
    for bound, count in zip((*LATENCY_BOUNDS_S, "+Inf"), itertools.accumulate(taken.buckets), strict=True):
        yield f'{name}_bucket{{{labels},le="{bound}"}} {count}\n'
    yield f"{name}_sum{{{labels}}} {taken.total_s:.6f}\n"
    yield f"{name}_count{{{labels}}} {taken.count}\n"


def in_pieces(things: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(things)
    while some := list(itertools.islice(iterator, LINES_OF_A_PIECE)):
        yield some


def process_page() -> Callable[[], str]:
    """CPU, memory, file descriptors and garbage collections, under prometheus-client's standard names."""
    from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return lambda: generate_latest(registry).decode()
