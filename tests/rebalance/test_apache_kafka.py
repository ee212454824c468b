"""What a real kafka-log-dirs says becomes a plan that a real kafka-reassign-partitions takes as it is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clients.test_java_tools import run
from tests.operator.apache import ApacheKafka

from ballast_planner import PlanOptions, plan_balance, to_kafka_json
from ballast_rebalance.admin import measure_by_admin
from ballast_rebalance.measured import Measured, with_capacity

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]
TOPIC, PARTITIONS = "skewed", 12
MIB = 1 << 20
CAPACITY = 64 * MIB


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[ApacheKafka]:
    # A short path of its own: Kafka's logs are many and go when the cluster goes.
    found = ApacheKafka(tmp_path / "kafka", brokers=2, log_dirs=2)
    found.directory.mkdir()
    try:
        found.start()
        yield found
    finally:
        found.stop()


def told_by_log_dirs(kafka: ApacheKafka) -> dict[tuple[int, str, str], int]:
    """(broker, directory, partition) → bytes, from the tool's own output."""
    out = run("log-dirs", "--bootstrap-server", kafka.bootstrap, "--describe", "--topic-list", TOPIC)
    document: dict[str, Any] = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    return {
        (broker["broker"], log_dir["logDir"], partition["partition"]): partition["size"]
        for broker in document["brokers"]
        for log_dir in broker["logDirs"]
        for partition in log_dir["partitions"]
    }


def fill(kafka: ApacheKafka) -> None:
    """Most data into the partitions whose replicas lie in the first directory of broker 0."""
    from kafka import KafkaProducer

    heavy = {name for (b, path, name), _ in told_by_log_dirs(kafka).items() if (b, path) == (0, kafka.log_dir(0, 0))}
    assert heavy
    value = os.urandom(100_000)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap.split(","), acks="all")
    try:
        for partition in range(PARTITIONS):
            for _ in range(80 if f"{TOPIC}-{partition}" in heavy else 5):
                producer.send(TOPIC, value, partition=partition)
        producer.flush()
    finally:
        producer.close()


def measured(kafka: ApacheKafka) -> Measured:
    return with_capacity(measure_by_admin(kafka.bootstrap), CAPACITY)


def spread(sizes: dict[tuple[int, str, str], int], kafka: ApacheKafka) -> float:
    sums = {(b, kafka.log_dir(b, d)): 0 for b in range(2) for d in range(2)}
    for (broker, path, _), size in sizes.items():
        sums[broker, path] += size
    return (max(sums.values()) - min(sums.values())) / CAPACITY


@pytest.mark.spec("REB-01", "REB-05", "REB-07")
def test_a_plan_from_its_log_dirs_is_taken_by_its_own_tool(kafka: ApacheKafka, tmp_path: Path) -> None:
    server = ("--bootstrap-server", kafka.bootstrap)
    run("topics", *server, "--create", "--topic", TOPIC, "--partitions", PARTITIONS, "--replication-factor", 1)
    fill(kafka)
    before = told_by_log_dirs(kafka)
    found = measured(kafka)
    rows = found.replicas
    seen = {(r.broker, r.log_dir, f"{r.topic}-{r.partition}"): r.size for r in rows.itertuples() if r.topic == TOPIC}
    assert seen == before, "the job sees what the tool sees"
    plan = plan_balance(found.load(), PlanOptions())
    assert plan.moves
    assert plan.quality is not None
    assert plan.quality.after.out_of_band == 0
    file = tmp_path / "plan.json"
    file.write_text(to_kafka_json(plan.moves), encoding="utf-8")
    answer = run("reassign-partitions", *server, "--execute", "--reassignment-json-file", file)
    assert "Successfully started" in answer
    finished = f"{len(plan.moves)} moved"
    for _ in range(30):
        verified = run("reassign-partitions", *server, "--verify", "--reassignment-json-file", file)
        if "in progress" not in verified:
            break
    assert "in progress" not in verified, finished
    assert "error" not in verified.lower()
    after = told_by_log_dirs(kafka)
    assert spread(before, kafka) > 0.3
    assert spread(after, kafka) < 0.15
    assert sum(after.values()) == sum(before.values())
