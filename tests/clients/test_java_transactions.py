"""Apache Kafka's own producer and tools with transactions (of version 2: every end bumps the epoch)."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from tests.apache_java import compiled, java
from tests.clients.running import AN_HOUR_AGO_MS, RunningBroker
from tests.clients.test_java_tools import run
from tests.clients.test_librdkafka import PATIENCE_S, create
from tests.clients.test_transactions import left_open, send, transactional, values_of
from tests.contract.wire import WireClient

from ballast_wire.messages import message
from ballast_wire.records import Record, encode_batch

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.spec("CLI-05", "CLI-02")]

CLIENTS = Path(__file__).parent
COUNT = 3_000
ABORTS = 100  # each after a commit
IN_A_ROW = 3


def transactions(broker: RunningBroker, *arguments: object) -> list[dict[str, str]]:
    """The rows of what the tool prints."""
    lines = run("transactions", "--bootstrap-server", broker.bootstrap, *arguments).splitlines()
    head, *rows = [re.split(r"\s*\t\s*", line.strip()) for line in lines if "\t" in line]
    return [dict(zip(head, row, strict=False)) for row in rows]


def commit_one(broker: RunningBroker, topic: str) -> None:
    """Whatever was sent before was aborted: readers pass it over."""
    sender = transactional(broker, topic)
    sender.begin_transaction()
    send(sender, topic, [b"committed"])
    sender.commit_transaction(PATIENCE_S)
    assert values_of(broker, topic, 1) == [b"committed"]


def test_a_producer_whose_every_end_bumps_its_epoch(broker: RunningBroker, topic: str) -> None:
    create(broker, topic, 2)
    properties = f"bootstrap.servers={broker.bootstrap}"
    run(
        "producer-perf-test", "--topic", topic, "--num-records", COUNT, "--record-size", 10, "--throughput", COUNT,
        "--transactional-id", topic, "--transaction-duration-ms", 50, "--producer-props", properties,
    )  # fmt: skip
    [described] = transactions(broker, "describe", "--transactional-id", topic)
    assert described["TransactionState"] == "CompleteCommit"
    assert int(described["ProducerEpoch"]) > 5
    read = run(
        "console-consumer", "--bootstrap-server", broker.bootstrap, "--topic", topic, "--from-beginning",
        "--isolation-level", "read_committed", "--max-messages", COUNT, "--timeout-ms", 30_000,
    )  # fmt: skip
    assert f"Processed a total of {COUNT} messages" in read
    features = run("features", "--bootstrap-server", broker.bootstrap, "describe")
    assert re.search(r"transaction.version\s+SupportedMinVersion: 0\s+SupportedMaxVersion: 2\s.*Level: 2", features)


def test_a_producer_that_aborts_before_anything_was_sent_is_not_fenced(broker: RunningBroker, topic: str) -> None:
    """While markers of the transaction before are on their way."""
    create(broker, topic)
    command = java("Aborting", broker.bootstrap, topic, ABORTS, classes=[compiled(CLIENTS / "Aborting.java")])
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert values_of(broker, topic, ABORTS) == [b"%d" % number for number in range(ABORTS)]


def test_transactions_are_listed_and_described(broker: RunningBroker, topic: str) -> None:
    create(broker, topic)
    sender = left_open(broker, topic, b"x")
    listed = {row["TransactionalId"]: row for row in transactions(broker, "list")}
    assert listed[topic]["TransactionState"] == "Ongoing"
    [described] = transactions(broker, "describe", "--transactional-id", topic)
    assert described["TopicPartitions"] == f"{topic}-0"
    assert listed[topic]["ProducerId"] == described["ProducerId"]
    [producing] = transactions(broker, "describe-producers", "--topic", topic, "--partition", 0)
    assert producing["ProducerId"] == described["ProducerId"]
    assert producing["CurrentTransactionStartOffset"] == "0"
    sender.abort_transaction(PATIENCE_S)
    commit_one(broker, topic)


def test_a_transaction_is_ended_by_its_id_and_its_producer_fenced(broker: RunningBroker, topic: str) -> None:
    create(broker, topic)
    sender = left_open(broker, topic, b"x")
    run("transactions", "--bootstrap-server", broker.bootstrap, "forceTerminateTransaction", "--transactionalId", topic)
    [producing] = transactions(broker, "describe-producers", "--topic", topic, "--partition", 0)
    assert producing["CurrentTransactionStartOffset"] == "None"
    with pytest.raises(KafkaException) as fenced:
        sender.commit_transaction(PATIENCE_S)
    assert fenced.value.args[0].code() == KafkaError._FENCED
    commit_one(broker, topic)


def test_a_transaction_that_its_coordinator_does_not_know_is_found_and_aborted(
    own_broker: Callable[..., RunningBroker], topic: str
) -> None:
    broker = own_broker(transaction_partition_verification_enable="false")
    create(broker, topic)
    transactional(broker, "somebody")  # there is a coordinator
    hang(broker, topic)
    found = transactions(broker, "find-hanging", "--broker-id", 1, "--max-transaction-timeout", 0)
    assert [(row["Topic"], row["Partition"], row["ProducerId"]) for row in found] == [(topic, "0", "4711")]
    run("transactions", "--bootstrap-server", broker.bootstrap, "abort", "--topic", topic, "--partition", 0,
        "--start-offset", found[0]["StartOffset"])  # fmt: skip
    [producing] = transactions(broker, "describe-producers", "--topic", topic, "--partition", 0)
    assert producing["CurrentTransactionStartOffset"] == "None"
    commit_one(broker, topic)


def hang(broker: RunningBroker, topic: str) -> None:
    """A batch of a transaction that no coordinator was told of."""
    batch = encode_batch(
        [Record(None, b"x", AN_HOUR_AGO_MS)], transactional=True, producer_id=4711, producer_epoch=0, base_sequence=0
    )
    kind = message("ProduceRequest")
    partition = kind.TopicProduceData.PartitionProduceData(index=0, records=bytes(batch))
    topics = [kind.TopicProduceData(name=topic, partition_data=[partition])]
    client = WireClient("127.0.0.1", broker.port)
    answer: Any = client.call(kind(transactional_id="lost", acks=-1, timeout_ms=5000, topic_data=topics), 9)
    client.close()
    assert answer.responses[0].partition_responses[0].error_code == 0, json.dumps(str(answer))


@pytest.mark.spec("CLI-05", "LOG-01")
def test_the_transaction_log_is_one_that_apache_kafka_reads(
    own_broker: Callable[..., RunningBroker], topic: str
) -> None:
    broker = own_broker(transaction_state_log_num_partitions=1)
    create(broker, topic)
    sender = transactional(broker, topic)
    sender.begin_transaction()
    send(sender, topic, [b"x"])
    sender.commit_transaction(PATIENCE_S)
    del sender
    transactional(broker, topic)  # waits until the one before is complete
    broker.stop()
    [segment] = [path for each in broker.log_dirs for path in each.glob("__transaction_state-0/*.log")]
    printed = run("dump-log", "--files", segment, "--transaction-log-decoder")
    states = re.findall(r'"transactionStatus":(\d)', printed)
    assert states == ["0", "1", "2", "4", "0"], "empty, ongoing, to be committed, committed, the next is empty"
    assert f'"transactionPartitions":[{{"topic":"{topic}","partitionIds":[0]}}]' in printed


@pytest.mark.spec("CLI-05", "CLU-04")
def test_a_cluster_may_do_without_the_bumps_and_get_them_later(
    own_broker: Callable[..., RunningBroker], topic: str
) -> None:
    broker = own_broker()
    create(broker, topic)
    epochs = []
    for change in ("downgrade", "upgrade"):
        level = 0 if change == "downgrade" else 2
        changed = run(
            "features", "--bootstrap-server", broker.bootstrap, change, "--feature", f"transaction.version={level}"
        )
        assert f"transaction.version was {change}d to {level}." in changed
        run(
            "producer-perf-test", "--topic", topic, "--num-records", 500, "--record-size", 10, "--throughput", 500,
            "--transactional-id", topic, "--transaction-duration-ms", 50,
            "--producer-props", f"bootstrap.servers={broker.bootstrap}",
        )  # fmt: skip
        [described] = transactions(broker, "describe", "--transactional-id", topic)
        assert described["TransactionState"] == "CompleteCommit"
        epochs.append(int(described["ProducerEpoch"]))
    assert epochs[0] == 0
    assert epochs[1] > 5
    assert len(values_of(broker, topic, 1_000)) == 1_000


@pytest.mark.spec("CLI-05", "CLU-04")
def test_a_producer_goes_on_while_its_cluster_changes_how_transactions_end(
    own_broker: Callable[..., RunningBroker], topic: str
) -> None:
    """In an open transaction, over the death of the broker: after that a client asks what the level is."""
    broker = own_broker()
    broker.stays_where_it_is()
    create(broker, topic)
    command = java("LeavingOpen", broker.bootstrap, topic, IN_A_ROW, classes=[compiled(CLIENTS / "LeavingOpen.java")])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as producer:
        try:
            bumps = [bumps_in_a_row(broker, topic, producer)]
            for change, level in (("downgrade", 0), ("upgrade", 1), ("upgrade", 2)):
                feature = f"transaction.version={level}"
                run("features", "--bootstrap-server", broker.bootstrap, change, "--feature", feature)
                broker.kill()
                broker.start()
                bumps.append(bumps_in_a_row(broker, topic, producer))
            assert producer.stdin is not None
            producer.stdin.close()
            assert producer.wait(PATIENCE_S) == 0
        finally:
            producer.kill()
    assert bumps == [IN_A_ROW, 0, 0, IN_A_ROW]
    count = 2 * len(bumps) * IN_A_ROW
    assert values_of(broker, topic, count) == [b"%d" % number for number in range(count)]


def bumps_in_a_row(broker: RunningBroker, topic: str, producer: subprocess.Popen[str]) -> int:
    """How far the epoch rises while it commits so many, after as many with which it gets used to the level."""
    epochs = []
    assert producer.stdin is not None
    assert producer.stdout is not None
    for _ in range(2):
        producer.stdin.write("\n")
        producer.stdin.flush()
        assert producer.stdout.readline(), "it failed"
        client = WireClient("127.0.0.1", broker.port)
        told: Any = client.call(message("DescribeTransactionsRequest")(transactional_ids=[topic]), 0)
        client.close()
        epochs.append(told.transaction_states[0].producer_epoch)
    return epochs[1] - epochs[0]
