"""Prometheus alone tells that a topic is being reassigned, all of it at once: it looks like one with more replicas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from tests.moves.brokers import Brokers, metrics_page, plan
from tests.rebalance.real_prometheus import prometheus, wait_for

from ballast_rebalance.measured import Refusal, check
from ballast_rebalance.metrics_source import UNSEEN, MetricsOptions, measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("operator", "spark", "broker-image")
TOPIC, PARTITIONS = "copied", 4


def reassign(brokers: Brokers, action: str, file: Path, *more: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in SOURCES)}
    words = ["-m", "ballast_cli", "reassign", action, "--bootstrap", brokers.bootstrap, "--json", str(file), *more]
    done = subprocess.run([sys.executable, "-P", *words], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.spec("REB-08")
def test_a_topic_that_is_being_reassigned_as_a_whole_is_not_planned_with(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(TOPIC, partition, [0, 1], None) for partition in range(PARTITIONS)]
    wanted = tmp_path / "plan.json"
    wanted.write_text(plan(rows), encoding="utf-8")
    with Brokers(tmp_path / "brokers", 2, (0, 1), metrics_port="0") as brokers:
        brokers.create(TOPIC, [[0]] * PARTITIONS)
        brokers.produce(TOPIC, range(PARTITIONS), 1)
        ports = [urlsplit(metrics_page(brokers[node])).port or 0 for node in (0, 1)]
        with prometheus(tmp_path, ports) as endpoint:
            sizes = f'ballast_replica_size_bytes{{topic="{TOPIC}"}}'
            wait_for(lambda: endpoint.scalar(f"count({sizes} > 1e6)") == PARTITIONS)
            found = measure(spark, MetricsOptions(endpoint.url))
            check(found)
            assert UNSEEN not in found.lacks
            reassign(brokers, "execute", wanted, "--throttle", "1000")
            wait_for(lambda: endpoint.scalar(f"count({sizes})") == 2 * PARTITIONS)
            with pytest.raises(Refusal, match="4 partitions being reassigned") as caught:
                measure(spark, MetricsOptions(endpoint.url))
            assert caught.value.reason == "ReassignmentInProgress"
            reassign(brokers, "execute", wanted, "--throttle", "100000000", "--additional")
            wait_for(lambda: endpoint.scalar("max(ballast_reassigning_partitions)") == 0)
            done = measure(spark, MetricsOptions(endpoint.url))
    check(done)
    assert done.order_known
    assert len(done.replicas[done.replicas["topic"] == TOPIC]) == 2 * PARTITIONS
