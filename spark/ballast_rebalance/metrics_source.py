"""Measures the load from Prometheus, read through Spark. Metric names are those of docs/metrics.md. Driver only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ballast_planner import Broker, Directory
from ballast_rebalance.access import AccessFiles, headers_of
from ballast_rebalance.forecast import sustained_growth
from ballast_rebalance.measured import EMPTY, REPLICA_COLUMNS, Measured, Refusal, counted
from ballast_rebalance.prometheus import MATCH, SELECTOR
from ballast_rebalance.prometheus_http import Endpoint, PartialAnswerError, PrometheusError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPLICA_KEYS = ("topic", "partition", "broker")
PARTITION_KEYS = ("topic", "partition")
HISTORY = ("before", "halfway", "lowest", "peak", "peak_before", "falls")
TRAFFIC = ("bytes_in", "bytes_out")
SIZE = "ballast_replica_size_bytes"
COUNT = "ballast_replicas"
TOTAL = "ballast_log_dir_total_bytes"
USED = "ballast_log_dir_used_bytes"
LEADER = "ballast_partition_leader"
POSITION = "ballast_replica_position"
RACK = "ballast_broker_info"
OFFLINE = "ballast_log_dir_offline"
CORDONED = "ballast_log_dir_cordoned"
SILENT = "ballast_log_dir_silent"
MOVES = "ballast_moves"
REASSIGNING = "ballast_reassigning_partitions"
REGISTERED = "ballast_registered_broker"
BYTES_IN = "ballast_partition_bytes_in_total"
BYTES_OUT = "ballast_partition_bytes_out_total"
# Prometheus takes a sample of up to this age for current.
LOOKBACK_S = 300.0
UNORDERED = "the order of assignments is not known: plans can be read but not handed over"
# Brokers of an earlier release do not report reassignments.
UNSEEN = "whether whole topics are being reassigned is not known: they look like ones with more replicas"


@dataclass(frozen=True)
class MetricsOptions:
    """`cluster_labels` become matchers; a broker seen within `memory_s` must still be there."""

    url: str
    cluster_labels: Sequence[tuple[str, str]] = ()
    max_age_s: float = 180.0
    memory_s: float = 3_600.0
    window_s: float = 6 * 3_600.0
    rate_s: float = 300.0
    files: AccessFiles = field(default_factory=AccessFiles)

    @property
    def match(self) -> str:
        return ",".join(f'{name}="{value}"' for name, value in self.cluster_labels)

    def access(self) -> dict[str, str]:
        """The credentials, as options of the data source."""
        try:
            return self.files.read()
        except PrometheusError as error:
            raise PrometheusError(f"{self.url} cannot be asked: {error}") from error

    @property
    def watched(self) -> str:
        """The query of the stream: the bytes used in the directory that holds most."""
        return f"max({USED}{{{self.match}}})"


def answers(options: MetricsOptions) -> bool:
    """Whether a stream would get an answer now."""
    try:
        _endpoint(options.url, options.access()).query(options.watched)
    except PrometheusError:
        return False
    return True


def measure(spark: SparkSession, options: MetricsOptions, at_s: float | None = None) -> Measured:
    """Measure the cluster at one moment. Raises Refusal for stale, partial or missing metrics."""
    try:
        source = _Source(spark, options, at_s)
        source.check_fresh()
        return source.measure()
    except PartialAnswerError as error:
        raise Refusal("MetricsPartial", str(error)) from error
    except PrometheusError as error:
        raise Refusal("PrometheusUnavailable", str(error)) from error
    except Exception as error:
        if "PartialAnswerError" in str(error):
            raise Refusal("MetricsPartial", _last_line(str(error))) from error
        if "PrometheusError" in str(error):
            raise Refusal("PrometheusUnavailable", _last_line(str(error))) from error
        raise


def _endpoint(url: str, access: Mapping[str, str]) -> Endpoint:
    return Endpoint(
        url,
        headers=headers_of(access["secretHeaders"]),
        authorities=access["authorities"] or None,
        certificate=access["secretCertificate"] or None,
    )


class _Source:
    """Queries for one moment; by default the present, by the clock that also stamped the samples."""

    def __init__(self, spark: SparkSession, options: MetricsOptions, at_s: float | None) -> None:
        self.spark, self.options = spark, options
        self.access = options.access()
        self.endpoint = _endpoint(options.url, self.access)
        self.at_s = self.endpoint.now() if at_s is None else at_s

    def check_fresh(self) -> None:
        """Refuses before anything large is read."""
        age = f"max({self.at_s:.3f} - timestamp({TOTAL}{{{self.options.match}}}))"
        oldest = self.endpoint.scalar(age, self.at_s)
        if oldest is None:
            raise Refusal(
                "MetricsMissing", f"Prometheus has no {TOTAL}: are the brokers scraped? Is --cluster-label right?"
            )
        if oldest > self.options.max_age_s:
            raise Refusal(
                "MetricsStale",
                f"the oldest sample is {oldest:.0f} s old, more than {self.options.max_age_s:.0f} s: "
                "is each broker still scraped, more often than that?",
            )
        gone = self.endpoint.query(self._gone(), self.at_s)
        if gone:
            names = ", ".join(sorted(row["metric"].get("broker", "?") for row in gone))
            raise Refusal(
                "MetricsPartial",
                f"brokers that were scraped within the last hour are missing: {names}; "
                "bring them back, or unregister those that are gone for good",
            )

    def _gone(self) -> str:
        """Query for brokers that have disappeared, except those that are no longer registered, if a controller says."""
        chosen, past = f"{{{self.options.match}}}", f"[{self.options.memory_s:.0f}s]"
        registered = (
            f'label_replace(count by (registered) ({REGISTERED}{chosen}), "broker", "$1", "registered", "(.+)")'
        )
        seen = f"count by (broker) (max_over_time({TOTAL}{chosen}{past})) unless count by (broker) ({TOTAL}{chosen})"
        told = f"max_over_time({COUNT}{chosen}{past}) and on () {REGISTERED}{chosen}"
        return f"{seen} unless on (broker) ({told} unless on (broker) {registered})"

    def measure(self) -> Measured:
        small = _without_controllers(self._small())
        _one_cluster_at_rest(small)
        directories = _directories(small)
        replicas = self._replicas()
        if replicas.empty:
            raise _without_replicas(small)
        lacks = [*_complete(replicas), *_offline(small), *_silent(small)]
        if not _tells_reassignments(small):
            lacks.append(UNSEEN)
        order_known = bool(replicas["position"].notna().all())
        if not order_known:
            lacks.append(UNORDERED)
            replicas = replicas.sort_values(["topic", "partition", "leader", "broker"], ascending=[1, 1, 0, 1])
            replicas["position"] = replicas.groupby(["topic", "partition"]).cumcount()
        replicas["position"] = replicas["position"].astype(np.int64)
        replicas = replicas[list(REPLICA_COLUMNS)]
        return Measured(self.at_s, _brokers(small, directories), directories, replicas, order_known, tuple(lacks))

    def _frame(self, queries: Mapping[str, str], labels: Sequence[str], past_s: float = 0.0) -> DataFrame:
        """All queries in one read, each row with its query's name; also of brokers that were there within `past_s`."""
        settings = {
            "url": self.options.url,
            "queries": json.dumps(queries),
            "labels": ",".join(labels),
            "time": f"{self.at_s:.3f}",
            "match": self.options.match,
            "splitBy": "broker",
            "past": f"{past_s:.0f}" if past_s else "",
            **self.access,
        }
        reader = self.spark.read.format("prometheus")
        for key, value in settings.items():
            if value:
                reader = reader.option(key, value)
        return reader.load()

    def _small(self) -> pd.DataFrame:
        """Directories and brokers: a row per metric and directory."""
        metrics = (TOTAL, USED, OFFLINE, CORDONED, SILENT, RACK, MOVES, REASSIGNING, COUNT)
        queries = {metric: f"{metric}{{{MATCH}}}" for metric in metrics}
        return pd.DataFrame(self._frame(queries, ("broker", "log_dir", "rack", "cluster_id")).toPandas())

    def _replicas(self) -> pd.DataFrame:
        """Replica sizes, joined in Spark with everything else known of the replica or its partition."""
        from pyspark.sql import functions as f

        keys, labels, of_partition = list(REPLICA_KEYS), [*REPLICA_KEYS, "log_dir"], (*HISTORY, *TRAFFIC)
        # Only a broker that has been removed since has the earlier sizes of what it gave away.
        read = self._frame(self._replica_queries(), labels, past_s=self.options.window_s + LOOKBACK_S).persist()
        try:

            def column(name: str, columns: Sequence[str]) -> DataFrame:
                return read.filter(f.col("name") == name).select(*columns, f.col("value").alias(name))

            frame = column("size", labels)
            for name in ("leader", "position"):
                frame = frame.join(column(name, keys), keys, "left")
            # The largest of the partition: a replica that was elsewhere, or being copied, does not show how it grew.
            largest = [f.max(f.when(f.col("name") == name, f.col("value"))).alias(name) for name in of_partition]
            frame = frame.join(read.groupBy(*PARTITION_KEYS).agg(*largest), list(PARTITION_KEYS), "left")
            numbers = ("partition", "broker")
            chosen = (*labels, "size", "leader", "position", *of_partition)
            typed = frame.select(*[f.col(c).cast("long") if c in numbers else f.col(c) for c in chosen])
            found = pd.DataFrame(typed.toPandas(), columns=list(chosen))
        finally:
            read.unpersist()
        return _with_growth(found, self.options.window_s)

    def _replica_queries(self) -> dict[str, str]:
        window, half = f"{self.options.window_s:.0f}s", f"{self.options.window_s / 2:.0f}s"
        rate = f"{self.options.rate_s:.0f}s"
        size = f"{SIZE}{{{SELECTOR}}}"
        return {
            "size": size,
            "before": f"max by (topic, partition) ({size} offset {window})",
            "halfway": f"max by (topic, partition) ({size} offset {half})",
            # The highest of the replicas' minimums: others may have been in the middle of being copied.
            "lowest": f"max by (topic, partition) (min_over_time({size}[{window}]))",
            "peak": f"max by (topic, partition) (max_over_time({size}[{window}]))",
            "peak_before": f"max by (topic, partition) (max_over_time({size}[{half}] offset {half}))",
            # How often it shrank.
            "falls": f"max by (topic, partition) (resets({size}[{window}]))",
            "leader": f"{LEADER}{{{SELECTOR}}}",
            "position": f"{POSITION}{{{SELECTOR}}}",
            # A leader that moved within the window counts on two brokers: summed over all, not split by broker.
            "bytes_in": f"sum by (topic, partition) (rate({BYTES_IN}{{{MATCH}}}[{rate}]))",
            "bytes_out": f"sum by (topic, partition) (rate({BYTES_OUT}{{{MATCH}}}[{rate}]))",
        }


def _with_growth(found: pd.DataFrame, window_s: float) -> pd.DataFrame:
    """Add what a forecast needs, from each partition's sizes now, in the middle of the window and at its beginning.

    For a partition younger than the window, its lowest known size stands in for the one at the beginning.
    """
    now = found.groupby(list(PARTITION_KEYS))["size"].transform("max")
    begun = found["before"].fillna(found["lowest"])
    size, halfway, before = (each.to_numpy(np.float64) for each in (now, found["halfway"], begun))
    peak = found["peak"].where((found["falls"] > 0) | (found["peak"] > now))
    return found.assign(
        growth=sustained_growth(size, halfway, before, window_s),
        peak=peak,
        rise=(peak - found["peak_before"]).clip(lower=0) / (window_s / 2),
    )


def _without_replicas(small: pd.DataFrame) -> Refusal:
    """Tell an empty cluster from replica series that are switched off: each broker exports their count all the same."""
    counts = small[small["name"] == COUNT]
    all_tell = set(counts["broker"]) == set(small.loc[small["name"] == TOTAL, "broker"])
    if all_tell and (counts["value"] == 0).all():
        return Refusal("Balanced", EMPTY)
    return Refusal("MetricsMissing", f"Prometheus has no {SIZE}: is it switched off on the brokers?")


def _complete(replicas: pd.DataFrame) -> list[str]:
    """Notes on what is unknown; turns the column `leader` into booleans."""
    lacks = []
    if replicas["leader"].isna().all():
        lacks.append("leaders are not known: the first replica is taken for the leader")
    if replicas["bytes_in"].isna().all():
        lacks.append("traffic is not known: it is not levelled")
    histories = replicas.groupby("broker")["before"].count()
    blind = [str(broker) for broker in histories.index[histories == 0]]
    if blind:
        whose = "" if len(blind) == len(histories) else f" of broker {', '.join(blind)}"
        lacks.append(
            f"the history{whose} is shorter than what a forecast is made of: growth may be more than is forecast"
        )
    replicas["leader"] = replicas["leader"].fillna(0.0) > 0
    return lacks


def _offline(small: pd.DataFrame) -> list[str]:
    """A note for each failed directory: its replicas are in no metrics."""
    rows = small[(small["name"] == OFFLINE) & (small["value"] > 0)].sort_values(["broker", "log_dir"])
    return [
        f"{row.log_dir} on broker {row.broker} is offline: what lies there is in no metrics"
        for row in rows.itertuples(index=False)
    ]


def _silent(small: pd.DataFrame) -> list[str]:
    """A note for each directory whose disk does not answer now, and may be about to fail."""
    rows = small[(small["name"] == SILENT) & (small["value"] > 0)].sort_values(["broker", "log_dir"])
    return [
        f"the disk of {row.log_dir} on broker {row.broker} does not answer: nothing is moved there"
        for row in rows.itertuples(index=False)
    ]


def _without_controllers(small: pd.DataFrame) -> pd.DataFrame:
    """Without nodes that are only controllers, whose directory takes no replicas: they export no metric of moves."""
    nodes, brokers = (set(small.loc[small["name"] == metric, "broker"]) for metric in (RACK, MOVES))
    return small[~small["broker"].isin(nodes - brokers)]


def _one_cluster_at_rest(small: pd.DataFrame) -> None:
    """Raises Refusal for series of several clusters, and while replicas move: copies grow into what looks free."""
    clusters = sorted(set(small.loc[small["name"] == RACK, "cluster_id"].dropna()))
    if len(clusters) > 1:
        raise Refusal(
            "MetricsInconsistent", f"the series are of clusters {' and '.join(clusters)}: choose by --cluster-label"
        )
    moving = int(small.loc[small["name"] == MOVES, "value"].sum())
    if moving:
        raise Refusal(
            "ReassignmentInProgress", f"{counted(moving, 'replica')} moving between directories; ask again after that"
        )
    # Each node reports the whole cluster, as far as it has caught up with the metadata.
    reassigned = int(small.loc[small["name"] == REASSIGNING, "value"].max() if _tells_reassignments(small) else 0)
    if reassigned:
        raise Refusal(
            "ReassignmentInProgress", f"{counted(reassigned, 'partition')} being reassigned; ask again after that"
        )


def _tells_reassignments(small: pd.DataFrame) -> bool:
    return bool((small["name"] == REASSIGNING).any())


def _directories(small: pd.DataFrame) -> list[Directory]:
    def flagged(metric: str) -> set[tuple[str, str]]:
        rows = small[(small["name"] == metric) & (small["value"] > 0)]
        return set(zip(rows["broker"], rows["log_dir"], strict=True))

    named = small.loc[small["name"].isin((TOTAL, USED))]
    odd = named[~np.isfinite(named["value"]) | pd.to_numeric(named["broker"], errors="coerce").isna()]
    if not odd.empty:
        row = odd.iloc[0]
        raise Refusal(
            "MetricsInconsistent",
            f"{row['name']} of {row['log_dir']} on broker {row['broker']} is {row['value']}: "
            "that is no number of bytes, or that is no broker's id",
        )
    used_rows = small[small["name"] == USED]
    used = {(row.broker, row.log_dir): row.value for row in used_rows.itertuples(index=False)}
    offline, closed = flagged(OFFLINE), flagged(CORDONED) | flagged(SILENT)
    directories: list[Directory] = []
    known: set[tuple[str, str]] = set()
    for row in small[small["name"] == TOTAL].itertuples(index=False):
        key = (row.broker, row.log_dir)
        if key in known:
            raise Refusal(
                "MetricsInconsistent",
                f"{TOTAL} of {row.log_dir} on broker {row.broker} has several series: choose by --cluster-label",
            )
        known.add(key)
        if key not in used:
            raise Refusal(
                "MetricsPartial",
                f"{USED} of {row.log_dir} on broker {row.broker} is missing: does a rule of the scrape drop it?",
            )
        directories.append(
            Directory(int(row.broker), row.log_dir, int(row.value), int(used[key]), key in closed, key not in offline)
        )
    return directories


def _brokers(small: pd.DataFrame, directories: Sequence[Directory]) -> list[Broker]:
    rows = small[small["name"] == RACK]
    racks: Mapping[str, str | None] = dict(zip(rows["broker"], rows["rack"], strict=True))
    ids = sorted({directory.broker for directory in directories})
    return [Broker(broker, racks.get(str(broker)) or None) for broker in ids]


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if "Error" in line]
    return (lines or [text])[-1][:500]
