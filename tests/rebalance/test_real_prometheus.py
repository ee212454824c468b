"""The whole chain before the operator: exporter → Prometheus → Spark → plan → proposal and report."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client import Gauge
from tests.certificates import Authority
from tests.planner.clusters import solve_in_turn
from tests.rebalance.real_prometheus import DEADLINE_S, prometheus, prometheus_of, wait_for
from tests.rebalance.skewed import GIB, Exporter, skewed_cluster
from tests.rebalance.test_prometheus_http import FakePrometheus, secret

from ballast_planner import PlanOptions, plan_balance, plan_hash, rows_from_resource
from ballast_rebalance import command, job
from ballast_rebalance.access import AccessFiles
from ballast_rebalance.arguments import add_arguments
from ballast_rebalance.job import JobOptions, Outcome, Watch, run_once, watch
from ballast_rebalance.measured import Refusal, check
from ballast_rebalance.metrics_source import MetricsOptions, measure
from ballast_rebalance.outcomes import OutcomeMetrics
from ballast_rebalance.prometheus_http import Endpoint, PrometheusError
from ballast_rebalance.proposal import ProposalOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def exporter() -> Exporter:
    return Exporter(skewed_cluster())


@pytest.fixture(scope="module")
def endpoint(exporter: Exporter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with exporter.served() as port, prometheus(tmp_path_factory.mktemp("prometheus"), [port]) as found:
        wait_for(lambda: found.scalar("count(ballast_replica_size_bytes)") == 120)
        yield found


@pytest.fixture
def options(endpoint: Endpoint) -> JobOptions:
    return JobOptions(
        proposal=ProposalOptions("c", "ns"),
        planning=PlanOptions(max_moves=500),
        metrics=MetricsOptions(endpoint.url),
    )


@pytest.mark.spec("REB-02")
def test_batch_reader_returns_every_series(spark: SparkSession, endpoint: Endpoint) -> None:
    frame = (
        spark.read.format("prometheus")
        .option("url", endpoint.url)
        .option("query", "ballast_replica_size_bytes{$selector}")
        .option("labels", "topic,partition,broker,log_dir")
        .option("splitBy", "broker")
        .load()
    )
    assert frame.columns == ["time", "value", "topic", "partition", "broker", "log_dir"]
    rows = frame.collect()
    expected = {(r.topic, str(r.partition), str(r.broker), r.log_dir, float(r.size)) for r in skewed_cluster()}
    assert {(row.topic, row.partition, row.broker, row.log_dir, row.value) for row in rows} == expected


@pytest.mark.spec("REB-02")
def test_range_reader_reads_each_step_once(spark: SparkSession, endpoint: Endpoint) -> None:
    end = int(time.time())
    frame = (
        spark.read.format("prometheus")
        .option("url", endpoint.url)
        .option("query", "count(ballast_log_dir_total_bytes)")
        .option("start", str(end - 9))
        .option("end", str(end))
        .option("step", "1")
        .option("maxPoints", "3")
        .load()
    )
    times = [row.time for row in frame.select("time").collect()]
    assert len(times) == len(set(times))


@pytest.mark.spec("REB-01", "REB-08", "REB-09")
def test_a_skew_is_found_and_proposed(spark: SparkSession, options: JobOptions, tmp_path: Path) -> None:
    out, page = tmp_path / "git", tmp_path / "report.html"
    outcome = run_once(spark, replace(options, out=out, report=page))
    assert outcome.reason == "Proposed", outcome.message
    assert outcome.plan is not None
    quality, bounds = outcome.plan.quality, outcome.plan.bounds
    assert quality is not None
    assert bounds is not None
    assert quality.before.out_of_band > 0
    assert quality.after.out_of_band == 0
    assert quality.bytes_network + quality.bytes_disk <= 1.1 * bounds.bytes_total
    (file,) = out.glob("*.yaml")
    (resource,) = yaml.safe_load_all(file.read_text(encoding="utf-8"))
    assert resource["spec"]["planHash"] == plan_hash(outcome.plan)
    assert len(rows_from_resource(resource, {})) == len(outcome.plan.moves)
    assert plan_hash(outcome.plan) in page.read_text(encoding="utf-8")


PASSWORD = "hush-4711"
LOGIN = ("me", PASSWORD, "$2b$04$4KSKhvD2gv/00V6XpeomyOAW0QStykOmrP9SrxiFemcdA1sPuU0Xq")


@pytest.mark.spec("REB-02")
def test_a_prometheus_with_passwords_is_asked_and_the_password_is_nowhere_to_be_seen(
    exporter: Exporter, tmp_path: Path
) -> None:
    """Neither on a command line of any process, in what the job says, nor in what Spark keeps of a run for its UI."""
    events, settings, out = (tmp_path / name for name in ("events", "settings", "out"))
    for folder in (events, settings, tmp_path / "p"):
        folder.mkdir()
    kept = {"enabled": "true", "compress": "false", "dir": events.as_uri()}
    lines = [f"spark.eventLog.{name} {value}\n" for name, value in kept.items()]
    told = "".join([*lines, "spark.sql.ui.explainMode extended\n"])
    (settings / "spark-defaults.conf").write_text(told, encoding="utf-8")
    files = {"username": LOGIN[0], "password": PASSWORD, "headers": "X-Key: hush-4712"} | pair(
        Authority(tmp_path / "ours")
    )
    seen = set[bytes]()
    jobs_of = {"ballast": list[str]()}
    with exporter.served() as port:
        jobs_of["ballast"].append(f"127.0.0.1:{port}")
        with prometheus_of(tmp_path / "p", jobs_of, login=LOGIN) as (endpoint, _):
            wait_for(lambda: endpoint.scalar("count(ballast_replica_size_bytes)") == 120)
            with pytest.raises(PrometheusError, match="HTTP 401 Unauthorized"):
                Endpoint(endpoint.url).now()
            job_line = [sys.executable, "-m", "ballast_rebalance", "--prometheus", endpoint.url, "--master", "local[2]",
                        "--memory", "512m", "--prometheus-secret", str(secret(tmp_path / "s", files)),
                        "--out", str(out), "--cluster", "demo"]  # fmt: skip
            variables = os.environ | {"SPARK_CONF_DIR": str(settings), "PYTHONPATH": str(ROOT / "spark")}
            with subprocess.Popen(job_line, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
                assert process.stdout is not None
                while process.poll() is None:
                    seen |= command_lines()
                    time.sleep(0.2)
                said = process.stdout.read()
    assert process.returncode == 0, said.decode()
    assert any(b"java" in line for line in seen)
    texts = [
        said,
        *seen,
        *(file.read_bytes() for place in (events, out) for file in place.rglob("*") if file.is_file()),
    ]
    assert any(b"SparkListenerSQLExecutionStart" in text for text in texts)
    encoded = dict(endpoint.headers)["Authorization"].split()[1].encode()
    for word in (PASSWORD.encode(), encoded, b"hush-4712", files["tls.key"].splitlines()[1].encode()):
        assert not [text[:200] for text in texts if word in text]


@pytest.mark.spec("REB-02")
def test_a_prometheus_that_asks_for_certificates_is_shown_that_of_a_secret(
    spark: SparkSession, exporter: Exporter, tmp_path: Path
) -> None:
    """As cert-manager makes it: the driver reads it, and workers show it as well."""
    ours = Authority(tmp_path / "ours")
    files = {"ca.crt": ours.ca.read_text(), **pair(ours)}
    with exporter.served() as port, prometheus_of(
        tmp_path, {"ballast": [f"127.0.0.1:{port}"]}, authority=ours
    ) as (endpoint, _):  # fmt: skip
        wait_for(lambda: endpoint.scalar("count(ballast_replica_size_bytes)") == 120)
        with pytest.raises(Refusal) as refused:
            measure(spark, MetricsOptions(endpoint.url, files=AccessFiles(authorities=ours.ca)))
        assert refused.value.reason == "PrometheusUnavailable"
        found = measure(spark, MetricsOptions(endpoint.url, files=AccessFiles(secret(tmp_path / "s", files))))
    assert len(found.replicas) == 120


def pair(authority: Authority) -> dict[str, str]:
    whole = authority.issue("job")
    return {f"tls.{end}": whole.with_suffix(f".{end}").read_text() for end in ("crt", "key")}


def command_lines() -> set[bytes]:
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.add(file.read_bytes())
    return found


@pytest.mark.spec("REB-06")
def test_executors_find_what_the_driver_finds(spark: SparkSession, options: JobOptions) -> None:
    from ballast_rebalance.job import measure as measure_by
    from ballast_rebalance.solve import spark_solver

    load = measure_by(spark, options).load()
    sent = plan_balance(load, PlanOptions(), spark_solver(spark, load, worth_sending=0))
    assert sent.moves
    assert plan_hash(sent) == plan_hash(plan_balance(load, PlanOptions(), solve_in_turn))


@pytest.mark.spec("REB-01")
def test_the_stream_proposes_when_looks_agree(spark: SparkSession, options: JobOptions, tmp_path: Path) -> None:
    outcomes: list[Outcome] = []
    state = str(tmp_path / "state")
    streaming = replace(options, out=tmp_path / "git", interval_s=1.0, confirmations=2, checkpoint=state)
    metrics = OutcomeMetrics(streaming.interval_s)
    watcher = Watch(spark, streaming, None, metrics, outcomes.append)
    query = watch(spark, streaming, watcher.on_batch)
    try:
        deadline = time.monotonic() + 3 * DEADLINE_S
        while len(outcomes) < 2 and time.monotonic() < deadline and query.exception() is None:
            time.sleep(0.1)
    finally:
        query.stop()
    assert [outcome.reason for outcome in outcomes[:2]] == ["Confirming", "Proposed"]
    assert len(list((tmp_path / "git").glob("*.yaml"))) == 1
    assert metrics.registry.get_sample_value("ballast_rebalance_runs_total", {"reason": "Confirming"}) == 1


class Teller:
    """The status of the KafkaCluster, as far as a watch writes it; `heard` is called with each reason."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        self._heard = heard

    def pinned_topics(self, _cluster: str) -> frozenset[str]:
        return frozenset()

    def tell(self, _cluster: str, look: dict[str, Any]) -> None:
        self._heard(look["reason"])


@pytest.fixture
def java_tmp(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """Where Spark makes its temporary directories meanwhile."""
    assert spark._jvm is not None
    system = spark._jvm.java.lang.System
    before = system.setProperty("java.io.tmpdir", str(tmp_path))
    yield tmp_path
    system.setProperty("java.io.tmpdir", before)


@pytest.mark.spec("REB-08")
def test_a_watch_without_prometheus_says_so_at_each_look_and_leaves_nothing_behind(
    spark: SparkSession, java_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream ends before there is a batch; the condition of an earlier look must not stay for ever. Spark keeps
    something of each stream that it ever began: the next one begins when Prometheus answers again."""
    reasons, kept_places = list[str](), list[list[Path]]()
    streams: list[StreamingQuery] = []

    def answer(_path: str, parameters: dict[str, str]) -> tuple[int, Any]:
        if len(server.asked) > 1 and reasons.count("PrometheusUnavailable") < 3:
            return 422, {"error": "away"}
        result = [{"metric": {}, "value": [0, "1"]}] if parameters["query"] == "time()" else []
        kind = "matrix" if "step" in parameters else "vector"
        return 200, {"status": "success", "data": {"resultType": kind, "result": result}}

    def heard(reason: str) -> None:
        reasons.append(reason)
        kept_places.append(list(java_tmp.glob("temporary-*")))
        if reason != "PrometheusUnavailable":  # within a batch, whose end `stop` waits for
            threading.Thread(target=streams[-1].stop).start()

    def begun(*given: Any) -> StreamingQuery:
        streams.append(watch(*given))
        return streams[-1]

    monkeypatch.setattr(job, "watch", begun)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    store: Any = Teller(heard)
    with contextlib.closing(FakePrometheus(answer)) as server:
        args = parser.parse_args(["--prometheus", server.url, "--stream", "--interval", "1"])
        assert command._watch(spark, args, command.job_options(args), store, OutcomeMetrics(300.0)) == 0
    assert reasons[:4] == [*["PrometheusUnavailable"] * 3, "MetricsMissing"]  # and more, until the stream has stopped
    assert (len(streams), [len(places) for places in kept_places][:4]) == (2, [0, 0, 0, 1])
    # Spark's own page of stack for the stream that ended; the look says it in a line.
    assert spark._jvm is not None
    runs_it = streams[0]._jsq.streamingQuery().getClass().getName()
    log4j: Any = spark._jvm.org.apache.logging.log4j
    assert log4j.LogManager.getLogger(runs_it).getLevel().name() == "OFF"


@pytest.mark.spec("REB-08")
def test_stale_partial_and_missing_metrics_refuse(spark: SparkSession, tmp_path: Path) -> None:
    exporter = Exporter(skewed_cluster(partitions=30))
    with exporter.served() as port, prometheus(tmp_path, [port]) as endpoint:
        wait_for(lambda: endpoint.scalar("count(ballast_replica_size_bytes)") == 60)
        metrics = MetricsOptions(endpoint.url)
        options = JobOptions(proposal=ProposalOptions("c"), metrics=metrics)
        exporter.size.remove("orders", "3", "1", "/disk0")
        wait_for(lambda: endpoint.scalar("count(ballast_replica_size_bytes)") == 59)
        assert run_once(spark, options).reason == "MetricsPartial"
        for disk in ("/disk0", "/disk1"):
            exporter.total.remove("2", disk)
        wait_for(lambda: endpoint.scalar("count(ballast_log_dir_total_bytes)") == 4)
        missing = run_once(spark, options)
        assert (missing.reason, "missing: 2" in missing.message) == ("MetricsPartial", True)
        other = replace(options, metrics=replace(metrics, cluster_labels=(("env", "nowhere"),)))
        assert run_once(spark, other).reason == "MetricsMissing"
        stale = replace(options, metrics=replace(metrics, max_age_s=0.000001))
        assert run_once(spark, stale).reason == "MetricsStale"
    assert run_once(spark, options).reason == "PrometheusUnavailable"


@pytest.mark.spec("REB-08")
def test_a_broker_that_was_taken_away_is_not_missed(spark: SparkSession, tmp_path: Path) -> None:
    """By then it has nothing. Of a controller that tells nothing a broker that is down may be away as well."""
    exporter = Exporter(skewed_cluster(partitions=30))
    replicas = Gauge("ballast_replicas", "Replicas", ["broker"], registry=exporter.registry)
    registered = Gauge("ballast_registered_broker", "1", ["broker", "registered"], registry=exporter.registry)
    for gauge in (exporter.total, exporter.used):
        gauge.labels("9", "/disk0").set(40 * GIB)
    for broker in ("1", "2", "3", "9"):
        replicas.labels(broker).set(0)
        registered.labels("1", broker).set(1)
    with exporter.served() as port, prometheus(tmp_path, [port]) as endpoint:
        wait_for(lambda: endpoint.scalar("count(ballast_replicas)") == 4)
        options = JobOptions(proposal=ProposalOptions("c"), metrics=MetricsOptions(endpoint.url))
        replicas.remove("9")
        for gauge in (exporter.total, exporter.used):
            gauge.remove("9", "/disk0")
        # One scrape may meet the change half made.
        theirs = '{__name__=~"ballast_replicas|ballast_log_dir_.*_bytes",broker="9"}'
        wait_for(lambda: endpoint.scalar(f"count({theirs})") is None)
        missed = run_once(spark, options)
        assert (missed.reason, "missing: 9" in missed.message) == ("MetricsPartial", True)
        registered.remove("1", "9")
        wait_for(lambda: endpoint.scalar("count(ballast_registered_broker)") == 3)
        assert run_once(spark, options).reason == "Proposed"
        for broker in ("1", "2", "3"):
            registered.remove("1", broker)
        wait_for(lambda: endpoint.scalar("count(ballast_registered_broker)") is None)
        assert run_once(spark, options).reason == "MetricsPartial"


@pytest.mark.spec("REB-04", "REB-08")
def test_a_partition_has_one_history_wherever_its_replicas_were(spark: SparkSession, tmp_path: Path) -> None:
    """Kubernetes gives a pod that is made anew another address: Prometheus then has two series of each replica. And a
    replica that was being copied grew as fast as the network, and its partition not at all. What compaction took from
    is at its peak again, which says nothing of how it goes on; what takes in more than retention takes goes on."""
    exporter = Exporter(skewed_cluster())
    copied = exporter.size.labels("orders", "4", "2", "/disk0")
    whole = copied._value.get()
    copied.set(whole / 10)
    compacted = exporter.size.labels("orders", "6", "1", "/disk0")
    retained = exporter.size.labels("orders", "7", "2", "/disk0")
    with exporter.served() as old, exporter.served() as new:
        addresses = {"ballast": [f"127.0.0.1:{old}"]}
        with prometheus_of(tmp_path, addresses) as (endpoint, targets):

            def scraped(more: float, less: float) -> None:
                compacted.set(more)
                retained.set(less)
                size = "ballast_replica_size_bytes"
                wait_for(
                    lambda: (
                        endpoint.scalar(f"count({size} == {more})") == endpoint.scalar(f"count({size} == {less})") == 1
                    )
                )

            wait_for(lambda: (endpoint.scalar("min(count_over_time(ballast_replica_size_bytes[1m]))") or 0) >= 3)
            began = time.time()
            scraped(7 * GIB, 3 * GIB)
            peaked = time.time()
            scraped(GIB / 16, GIB / 32)
            exporter.size.labels("orders", "3", "1", "/disk0").inc(GIB)
            copied.set(whole)
            targets.set({"ballast": [f"127.0.0.1:{new}"]})
            address = {"instance": f"127.0.0.1:{new}"}
            count = "count by (instance) (ballast_replica_size_bytes)"
            wait_for(lambda: [row["metric"] for row in endpoint.query(count)] == [address])
            wait_for(lambda: time.time() - began > 2 * (peaked - began) + 4)  # it was in the first half of the window
            scraped(7 * GIB, 4 * GIB)
            now = time.time()
            window_s = 2.0 * math.ceil((now - began) / 2)  # its half is told in whole seconds, too
            found = measure(spark, MetricsOptions(endpoint.url, window_s=window_s), now)
    check(found)
    assert len(found.replicas) == 120
    assert found.replicas["growth"].notna().all()
    partition = found.replicas["partition"]
    assert set(partition[found.replicas["growth"] > 0]) == {3, 6, 7}
    assert set(partition[found.replicas["peak"].notna()]) == {6, 7}
    more = found.load(3_600.0).replicas.size > found.load().replicas.size
    assert more.sum() == 4, "two partitions go on as they grew, the third stays where it was already"


@pytest.mark.spec("REB-04")
def test_a_new_partition_grows_and_one_that_only_came_from_a_removed_broker_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    exporter = Exporter(skewed_cluster(partitions=30))
    given_away = ("moved", "0", "9", "/disk0")
    exporter.size.labels(*given_away).set(GIB)
    with exporter.served() as port, prometheus(tmp_path, [port]) as endpoint:

        def scraped(size: float) -> None:
            for topic in ("moved", "fresh"):
                exporter.size.labels(topic, "0", "1", "/disk0").set(size)
            found = f'count(ballast_replica_size_bytes{{topic="fresh"}} == {size})'
            wait_for(lambda: endpoint.scalar(found) == 1)

        wait_for(lambda: endpoint.scalar("count(ballast_replica_size_bytes)") == 61)
        began = time.time()
        exporter.size.remove(*given_away)
        scraped(0.0)
        scraped(GIB)
        now = time.time()
        window_s = 2.0 * math.ceil((now - began) / 2)
        found = measure(spark, MetricsOptions(endpoint.url, window_s=window_s), now).replicas
    grown = found[found["growth"] > 0]
    assert list(zip(grown["topic"], grown["growth"], strict=True)) == [("fresh", GIB / window_s)]


@pytest.mark.spec("REB-08")
def test_two_clusters_and_moves_in_progress_refuse(spark: SparkSession, tmp_path: Path) -> None:
    exporter = Exporter(skewed_cluster(partitions=30))
    moves = Gauge("ballast_moves", "Moves", ["broker"], registry=exporter.registry)
    info = Gauge("ballast_broker_info", "1", ["broker", "rack", "cluster_id"], registry=exporter.registry)
    for broker in "123":
        moves.labels(broker).set(broker == "2")
        info.labels(broker, "", "one").set(1)
    with exporter.served() as port, prometheus(tmp_path, [port]) as endpoint:
        options = JobOptions(proposal=ProposalOptions("c"), metrics=MetricsOptions(endpoint.url))
        wait_for(lambda: endpoint.scalar("sum(ballast_moves)") == 1)
        assert run_once(spark, options).reason == "ReassignmentInProgress"
        info.remove("3", "", "one")
        info.labels("3", "", "other").set(1)
        moves.labels("2").set(0)  # as the last of the three, so that a scrape that sees it has seen the others
        wait_for(lambda: endpoint.scalar("sum(ballast_moves)") == 0)
        refused = run_once(spark, options)
        assert (refused.reason, "clusters one and other" in refused.message) == ("MetricsInconsistent", True)


@pytest.mark.spec("REB-03")
def test_the_disk_of_a_controller_is_no_place_for_replicas(spark: SparkSession, tmp_path: Path) -> None:
    """It is scraped with the brokers, has a directory that stands empty, and nothing of what replicas have."""
    exporter = Exporter(skewed_cluster(partitions=30))
    moves = Gauge("ballast_moves", "Moves", ["broker"], registry=exporter.registry)
    info = Gauge("ballast_broker_info", "1", ["broker", "rack", "cluster_id"], registry=exporter.registry)
    for node in ("1", "2", "3", "1000"):
        info.labels(node, "", "one").set(1)
        if node != "1000":
            moves.labels(node).set(0)
    exporter.total.labels("1000", "/metadata").set(40 * GIB)
    exporter.used.labels("1000", "/metadata").set(GIB)
    with exporter.served() as port, prometheus(tmp_path, [port]) as endpoint:
        wait_for(lambda: endpoint.scalar("count(ballast_log_dir_used_bytes)") == 7)
        found = measure(spark, MetricsOptions(endpoint.url))
    check(found)
    assert [broker.id for broker in found.brokers] == [1, 2, 3]
    assert {row.broker for row in found.directories} == {1, 2, 3}


@pytest.mark.spec("REB-08")
def test_without_the_order_of_replicas_nothing_is_handed_over(spark: SparkSession, tmp_path: Path) -> None:
    with Exporter(skewed_cluster(), order=False).served() as port, prometheus(tmp_path, [port]) as endpoint:
        wait_for(lambda: endpoint.scalar("count(ballast_replica_size_bytes)") == 120)
        options = JobOptions(proposal=ProposalOptions("c"), metrics=MetricsOptions(endpoint.url))
        printed = run_once(spark, options)
        assert (printed.reason, printed.resources) == ("Proposed", ())
        assert any("order" in text for text in printed.lacks)
        assert run_once(spark, replace(options, out=tmp_path / "git")).reason == "OrderUnknown"
