"""The load as Prometheus knows it, read through Spark. Metric names are those of docs/metrics.md. Driver only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ballast_planner import Broker, Directory
from ballast_rebalance.measured import REPLICA_COLUMNS, Measured, Refusal
from ballast_rebalance.prometheus import SELECTOR
from ballast_rebalance.prometheus_http import Endpoint, PartialAnswerError, PrometheusError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPLICA_KEYS = ("topic", "partition", "broker")
SIZE = "ballast_replica_size_bytes"
TOTAL = "ballast_log_dir_total_bytes"
USED = "ballast_log_dir_used_bytes"
LEADER = "ballast_partition_leader"
POSITION = "ballast_replica_position"
RACK = "ballast_broker_info"
OFFLINE = "ballast_log_dir_offline"
CORDONED = "ballast_log_dir_cordoned"
BYTES_IN = "ballast_partition_bytes_in_total"
BYTES_OUT = "ballast_partition_bytes_out_total"


@dataclass(frozen=True)
class MetricsOptions:
    """`cluster` becomes a matcher where given; a broker seen within `memory_s` must still be there."""

    url: str
    cluster_label: tuple[str, str] | None = None
    max_age_s: float = 180.0
    memory_s: float = 3_600.0
    window_s: float = 6 * 3_600.0
    rate_s: float = 300.0
    token: str | None = None

    @property
    def match(self) -> str:
        return f'{self.cluster_label[0]}="{self.cluster_label[1]}"' if self.cluster_label else ""


def measure(spark: SparkSession, options: MetricsOptions, at_s: float | None = None) -> Measured:
    """Everything of one moment. Raises Refusal for stale, partial or missing metrics."""
    source = _Source(spark, options, time.time() if at_s is None else at_s)
    try:
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


class _Source:
    def __init__(self, spark: SparkSession, options: MetricsOptions, at_s: float) -> None:
        self.spark, self.options, self.at_s = spark, options, at_s
        self.endpoint = Endpoint(options.url, bearer_token=options.token)

    def check_fresh(self) -> None:
        """Refuses before anything large is read."""
        age = f"max({self.at_s:.3f} - timestamp({TOTAL}{{{self.options.match}}}))"
        oldest = self.endpoint.scalar(age, self.at_s)
        if oldest is None:
            raise Refusal("MetricsMissing", f"Prometheus has no {TOTAL}: are the brokers scraped?")
        if oldest > self.options.max_age_s:
            raise Refusal(
                "MetricsStale", f"the oldest sample is {oldest:.0f} s old, more than {self.options.max_age_s:.0f} s"
            )
        memory = f"max_over_time({TOTAL}{{{self.options.match}}}[{self.options.memory_s:.0f}s])"
        gone = self.endpoint.query(
            f"count by (broker) ({memory}) unless count by (broker) ({TOTAL}{{{self.options.match}}})", self.at_s
        )
        if gone:
            names = ", ".join(sorted(row["metric"].get("broker", "?") for row in gone))
            raise Refusal("MetricsPartial", f"brokers that were scraped within the last hour are missing: {names}")

    def measure(self) -> Measured:
        directories = self._directories()
        replicas = self._replicas()
        lacks = self._complete(replicas)
        order_known = bool(replicas["position"].notna().all())
        if not order_known:
            lacks.append("the order of assignments is not known: plans can be read but not handed over")
            replicas = replicas.sort_values(["topic", "partition", "leader", "broker"], ascending=[1, 1, 0, 1])
            replicas["position"] = replicas.groupby(["topic", "partition"]).cumcount()
        replicas["position"] = replicas["position"].astype(np.int64)
        return Measured(self.at_s, self._brokers(directories), directories, replicas, order_known, tuple(lacks))

    def _frame(self, query: str, labels: Sequence[str], split: bool) -> DataFrame:
        reader = self.spark.read.format("prometheus").option("url", self.options.url).option("query", query)
        settings = {"labels": ",".join(labels), "time": f"{self.at_s:.3f}", "match": self.options.match}
        if self.options.token:
            settings["token"] = self.options.token
        if split:
            settings["splitBy"] = "broker"
        for key, value in settings.items():
            if value:
                reader = reader.option(key, value)
        return reader.load()

    def _small(self, metric: str, labels: Sequence[str]) -> pd.DataFrame:
        return self._frame(f"{metric}{{{SELECTOR}}}", labels, split=False).toPandas()

    def _directories(self) -> list[Directory]:
        keys = ["broker", "log_dir"]
        total, used = self._small(TOTAL, keys), self._small(USED, keys)
        frame = total.merge(used, on=keys, how="left", suffixes=("", "_used"))
        lost = frame[frame["value_used"].isna()]
        if not lost.empty:
            broker, path = lost.iloc[0]["broker"], lost.iloc[0]["log_dir"]
            raise Refusal("MetricsPartial", f"{USED} of {path} on broker {broker} is missing")
        offline = self._flags(OFFLINE)
        cordoned = self._flags(CORDONED)
        return [
            Directory(
                int(row.broker),
                row.log_dir,
                int(row.value),
                int(row.value_used),
                cordoned=(row.broker, row.log_dir) in cordoned,
                online=(row.broker, row.log_dir) not in offline,
            )
            for row in frame.itertuples(index=False)
        ]

    def _flags(self, metric: str) -> set[tuple[str, str]]:
        frame = self._small(metric, ["broker", "log_dir"])
        return {(row.broker, row.log_dir) for row in frame.itertuples(index=False) if row.value > 0}

    def _brokers(self, directories: Sequence[Directory]) -> list[Broker]:
        frame = self._small(RACK, ["broker", "rack"])
        racks: Mapping[str, str | None] = dict(zip(frame["broker"], frame["rack"], strict=True))
        ids = sorted({directory.broker for directory in directories})
        return [Broker(broker, racks.get(str(broker)) or None) for broker in ids]

    def _replicas(self) -> pd.DataFrame:
        """Sizes joined in Spark with all that is known of the same replica or partition."""
        from pyspark.sql import functions as f

        keys, window, rate = list(REPLICA_KEYS), f"{self.options.window_s:.0f}s", f"{self.options.rate_s:.0f}s"
        series = f"{SIZE}{{{SELECTOR}}}"

        def column(query: str, name: str, labels: Sequence[str]) -> DataFrame:
            frame = self._frame(query, labels, split="broker" in labels)
            return frame.select(*labels, f.col("value").alias(name))

        placed = [*keys, "log_dir"]
        frame = column(series, "size", placed)
        frame = frame.join(
            column(f"({series} - {series} offset {window}) / {self.options.window_s:.0f}", "growth", placed),
            placed,
            "left",
        )
        frame = frame.join(column(f"max_over_time({series}[{window}])", "peak", placed), placed, "left")
        frame = frame.join(column(f"{LEADER}{{{SELECTOR}}}", "leader", keys), keys, "left")
        frame = frame.join(column(f"{POSITION}{{{SELECTOR}}}", "position", keys), keys, "left")
        partition = ["topic", "partition"]
        for metric, name in ((BYTES_IN, "bytes_in"), (BYTES_OUT, "bytes_out")):
            query = f"sum by (topic, partition) (rate({metric}{{{SELECTOR}}}[{rate}]))"
            frame = frame.join(column(query, name, partition), partition, "left")
        typed = frame.select(
            *[f.col(name) for name in REPLICA_COLUMNS if name not in ("partition", "broker")],
            f.col("partition").cast("long"),
            f.col("broker").cast("long"),
        )
        return typed.toPandas()[list(REPLICA_COLUMNS)]

    def _complete(self, replicas: pd.DataFrame) -> list[str]:
        lacks = []
        if replicas.empty:
            raise Refusal("MetricsMissing", f"Prometheus has no {SIZE}: is it switched off on the brokers?")
        if replicas["leader"].isna().all():
            lacks.append("leaders are not known: the first replica is taken for the leader")
        if replicas["bytes_in"].isna().all():
            lacks.append("traffic is not known: it is not levelled")
        if replicas["growth"].isna().all():
            lacks.append("there is no history yet: sizes are taken as they are, without a forecast")
        replicas["leader"] = replicas["leader"].fillna(0.0) > 0
        return lacks


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if "Error" in line]
    return (lines or [text])[-1][:500]
