"""Prometheus as a Spark data source: `spark.read.format("prometheus")`, batch and stream, Arrow batches.

Options
  url            the server
  query          PromQL; `$selector` is replaced by a split's matchers and those of `match`, `$match` by the latter
  queries        instead: a JSON object of several, name to query, in one read; rows then have a column `name`
  labels         comma-separated labels that become string columns; all others are dropped
  time           instant query at this time (seconds since the epoch; default: now), or
  start end step range query (seconds)
  splitBy        a label; each of its values, and its absence, gets queries of its own (needs `$selector`)
  past           also split by values of that label that were there within so many seconds before (default: 300)
  match          matchers that every query carries, for instance cluster="a"
  token          a bearer token that the server asks for
  secretHeaders  further headers to send: a JSON array of [name, value]
  secretCertificate  a client key and its certificate, as PEM
  authorities    the authorities that may have signed the server's certificate, as PEM (default: the machine's)
  delay          of a stream: seconds before a step counts as complete (default: 30)
  maxPoints maxSamples maxQueries timeout   limits per query and of queries at the same time

Rows: time timestamp, value double, name if there are several queries, then the labels. An instant query's series are
counted when the read is planned and again when it is read; a difference is an error, so there is never a silent hole.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import DoubleType, StringType, StructField, StructType, TimestampType

from ballast_rebalance.access import headers_of
from ballast_rebalance.prometheus_http import Endpoint, PartialAnswerError

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

SELECTOR, MATCH = "$selector", "$match"
DEFAULT_MAX_POINTS = 10_000
DEFAULT_MAX_SAMPLES = 10_000_000
DEFAULT_MAX_QUERIES = 16
DEFAULT_PAST_S = 300.0
ROWS_PER_BATCH = 50_000
SERIES_PER_SPLIT = 5_000


@dataclass(frozen=True)
class Settings:
    """The options, parsed once."""

    endpoint: Endpoint
    queries: tuple[tuple[str, str], ...]
    named: bool
    labels: tuple[str, ...]
    split_by: str | None
    match: str
    max_points: int
    max_samples: int
    max_queries: int
    at_s: float | None
    start_s: float | None
    end_s: float | None
    step_s: float
    past_s: float

    @staticmethod
    def from_options(options: Mapping[str, str]) -> Settings:
        lowered = {key.lower(): value for key, value in options.items()}
        if not lowered.get("url"):
            raise ValueError("the prometheus source needs the option 'url'")
        if bool(lowered.get("query")) == bool(lowered.get("queries")):
            raise ValueError("the prometheus source needs the option 'query' or 'queries'")
        named = bool(lowered.get("queries"))
        queries = json.loads(lowered["queries"]) if named else {"": lowered["query"]}
        split_by = lowered.get("splitby") or None
        match = lowered.get("match", "")
        for query in queries.values():
            if (split_by or match) and SELECTOR not in query and MATCH not in query:
                raise ValueError(f"splitBy and match need {SELECTOR} or {MATCH} in the query {query}")

        def number(name: str) -> float | None:
            return float(lowered[name]) if lowered.get(name) else None

        return Settings(
            endpoint=Endpoint(
                lowered["url"],
                number("timeout") or 60.0,
                headers=_headers(lowered),
                authorities=lowered.get("authorities"),
                certificate=lowered.get("secretcertificate"),
            ),
            queries=tuple(sorted(queries.items())),
            named=named,
            labels=tuple(filter(None, (label.strip() for label in lowered.get("labels", "").split(",")))),
            split_by=split_by,
            match=match,
            max_points=int(lowered.get("maxpoints", DEFAULT_MAX_POINTS)),
            max_samples=int(lowered.get("maxsamples", DEFAULT_MAX_SAMPLES)),
            max_queries=int(lowered.get("maxqueries", DEFAULT_MAX_QUERIES)),
            at_s=number("time"),
            start_s=number("start"),
            end_s=number("end"),
            step_s=number("step") or 60.0,
            past_s=number("past") or DEFAULT_PAST_S,
        )

    def expression(self, query: str, matchers: str = "") -> str:
        joined = ",".join(filter(None, (self.match, matchers)))
        return query.replace(SELECTOR, joined).replace(MATCH, self.match)


def _headers(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Spark redacts options that have `secret` or `token` in their names."""
    token = options.get("token")
    own = (("Authorization", f"Bearer {token}"),) if token else ()
    return (*headers_of(options.get("secretheaders", "")), *own)


@dataclass(frozen=True)
class Ask:
    """One query to Prometheus; `series` is how many series it must return (None: unknown)."""

    expression: str
    series: int | None
    start_s: float
    end_s: float | None = None
    step_s: float = 0.0
    name: str = ""


class Split(InputPartition):
    """What one Spark task asks, one query after another."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        super().__init__(tuple(asks))
        self.asks = tuple(asks)


class PrometheusDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "prometheus"

    def schema(self) -> StructType:
        fields = [StructField("time", TimestampType()), StructField("value", DoubleType())]
        settings = self._settings()
        names = (("name",) if settings.named else ()) + settings.labels
        return StructType(fields + [StructField(name, StringType()) for name in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        return PrometheusReader(self._settings())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PrometheusStreamReader(self._settings(), dict(self.options))

    def _settings(self) -> Settings:
        return Settings.from_options(dict(self.options))


class PrometheusReader(DataSourceReader):
    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        settings = self.settings
        if settings.start_s is not None:
            end_s = settings.end_s if settings.end_s is not None else time.time()
            return _grouped(plan_range(settings, settings.start_s, end_s), settings.max_queries)
        at_s = settings.at_s if settings.at_s is not None else time.time()
        return _grouped(plan_instant(settings, at_s), settings.max_queries)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        return read_split(self.settings, partition)


class PrometheusStreamReader(DataSourceStreamReader):
    """Each trigger reads the steps that have become complete since the last one."""

    def __init__(self, settings: Settings, options: Mapping[str, str]) -> None:
        self.settings = settings
        lowered = {key.lower(): value for key, value in options.items()}
        # Samples arrive up to a scrape interval late; a step is read only once no more can arrive.
        self.delay_s = float(lowered.get("delay", "30"))
        # Fixed here, as Spark asks twice for the initial offset: a step that ended in between would be in no batch.
        self._begins_s = settings.start_s if settings.start_s is not None else time.time()

    def initialOffset(self) -> dict[str, float]:
        return self._offset(self._step(self._begins_s) - 1)

    def latestOffset(self, start: dict[str, float] | None = None, limit: ReadLimit | None = None) -> dict[str, float]:
        newest = self._step(time.time() - self.delay_s)
        return self._offset(max(newest, self._last(start) if start else newest))

    def partitions(self, start: dict[str, float], end: dict[str, float]) -> Sequence[InputPartition]:
        first, last, step_s = self._last(start) + 1, self._last(end), self.settings.step_s
        if first > last:
            return []
        asks = plan_range(self.settings, first * step_s, last * step_s)
        return _grouped(asks, self.settings.max_queries)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        return read_split(self.settings, partition)

    def _step(self, at_s: float) -> int:
        return int(at_s // self.settings.step_s)

    def _offset(self, step: int) -> dict[str, float]:
        return {"step": step, "seconds": self.settings.step_s}

    def _last(self, offset: Mapping[str, float]) -> int:
        """The last step that an offset includes; one from a checkpoint may count steps of another length."""
        seconds = offset.get("seconds", self.settings.step_s)
        return int(offset["step"]) if seconds == self.settings.step_s else self._step(offset["step"] * seconds)


def plan_instant(settings: Settings, at_s: float) -> list[Ask]:
    """One query per value of the split label, each with the number of series that it must return.

    Counting costs Prometheus as much as answering, so the counts are queried in parallel as well.
    """

    def counted(named: tuple[str, str]) -> Ask:
        name, expression = named
        return Ask(expression, _count(settings, expression, at_s), at_s, name=name)

    with ThreadPoolExecutor(settings.max_queries) as pool:
        return list(pool.map(counted, _expressions(settings, at_s, at_s)))


def plan_range(settings: Settings, start_s: float, end_s: float) -> list[Ask]:
    """Queries cut by split label and by time so that each stays under the limits on points and samples."""
    asks = []
    for name, expression in _expressions(settings, start_s, end_s):
        series = _count(settings, expression, end_s)
        points = max(1, min(settings.max_points, settings.max_samples // max(series, 1)))
        begin = start_s
        while begin <= end_s + 1e-9:
            last = min(begin + (points - 1) * settings.step_s, end_s)
            asks.append(Ask(expression, None, begin, last, settings.step_s, name))
            begin = begin + points * settings.step_s
    return asks


def _expressions(settings: Settings, start_s: float, end_s: float) -> list[tuple[str, str]]:
    """(name, expression) of every query, those with a `$selector` once for each value of the split label."""
    matchers = _split_matchers(settings, start_s, end_s)
    return [
        (name, settings.expression(query, matcher))
        for name, query in settings.queries
        for matcher in (matchers if SELECTOR in query else [""])
    ]


def _split_matchers(settings: Settings, start_s: float, end_s: float) -> list[str]:
    if settings.split_by is None:
        return [""]
    match = "{" + ",".join(filter(None, (settings.match, f'{settings.split_by}!=""'))) + "}"
    values = settings.endpoint.label_values(settings.split_by, match, start_s - settings.past_s, end_s)
    # Series without the label match "": without a query of their own they would be missing.
    return [f'{settings.split_by}="{_quote(value)}"' for value in (*values, "")]


def _count(settings: Settings, expression: str, at_s: float) -> int:
    return int(settings.endpoint.scalar(f"count({expression})", at_s) or 0)


def _quote(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _grouped(asks: Sequence[Ask], limit: int) -> list[InputPartition]:
    """At most `limit` splits, because each runs one query at a time and the server limits concurrent queries."""
    wanted = [ask for ask in asks if ask.series != 0]
    if all(ask.series is not None for ask in wanted):
        # A task costs more than asking for a few thousand series.
        limit = min(limit, 1 + sum(ask.series or 0 for ask in wanted) // SERIES_PER_SPLIT)
    # Spark turns an empty list into one InputPartition(None); a Split without queries says what is meant.
    return [Split(wanted[index::limit]) for index in range(min(limit, len(wanted)))] or [Split([])]


def read_split(settings: Settings, split: Split) -> Iterator[pa.RecordBatch]:
    """The answers as Arrow batches of bounded size."""
    for ask in split.asks:
        if ask.end_s is None:
            series = settings.endpoint.query(ask.expression, ask.start_s)
            if ask.series is not None and len(series) != ask.series:
                raise PartialAnswerError(
                    f"{ask.expression}: {ask.series} series were counted, {len(series)} were answered"
                )
        else:
            series = settings.endpoint.query_range(ask.expression, ask.start_s, ask.end_s, ask.step_s)
        yield from _batches(settings, ask.name, series)


def _batches(settings: Settings, name: str, series: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    labels = settings.labels
    texts = (("name",) if settings.named else ()) + labels
    schema = pa.schema(
        [("time", pa.timestamp("us", tz="UTC")), ("value", pa.float64())] + [(text, pa.string()) for text in texts]
    )
    names: list[str | None] = [name] if settings.named else []
    times: list[int] = []
    values: list[float] = []
    columns: list[list[str | None]] = [[] for _ in labels]
    for one in series:
        points = one["values"] if "values" in one else [one["value"]]
        times.extend(round(float(at) * 1e6) for at, _ in points)
        values.extend(float(value) for _, value in points)
        for column, label in zip(columns, labels, strict=True):
            column.extend([one["metric"].get(label)] * len(points))
        if len(times) >= ROWS_PER_BATCH:
            yield _batch(schema, times, values, [[one] * len(times) for one in names] + columns)
            times, values, columns = [], [], [[] for _ in labels]
    if times:
        yield _batch(schema, times, values, [[one] * len(times) for one in names] + columns)


def _batch(
    schema: pa.Schema, times: Sequence[int], values: Sequence[float], columns: Sequence[Sequence[str | None]]
) -> pa.RecordBatch:
    arrays = [pa.array(times, pa.timestamp("us", tz="UTC")), pa.array(values, pa.float64())]
    arrays += [pa.array(column, pa.string()) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
