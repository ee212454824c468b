"""Apache Kafka's own command line tools and Java clients, unchanged."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.apache_java import java
from tests.clients.running import AN_HOUR_AGO_MS, RunningBroker
from tests.contract.wire import WireClient
from tests.docs.commands import to_type
from tests.moves.brokers import Brokers

from ballast_wire.messages import message
from ballast_wire.records import Record, encode_batch

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.spec("CLI-02")]

TIMEOUT_S = 120
TOOLS = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "configs": "kafka.admin.ConfigCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "streams-application-reset": "org.apache.kafka.tools.StreamsResetter",
    "client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "dump-log": "kafka.tools.DumpLogSegments",
    "e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "replica-verification": "org.apache.kafka.tools.ReplicaVerificationTool",
    "client-compatibility": "org.apache.kafka.tools.ClientCompatibilityTest",
}
Tool = Callable[..., str]


def run(
    name: str, *arguments: object, stdin: str | None = None, code: int = 0, java_options: Sequence[str] = ()
) -> str:
    """What the tool prints; it must end with this code."""
    ended = subprocess.run(
        java(TOOLS[name], *arguments, options=java_options),
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == code, f"{name} {arguments} ended with {ended.returncode}: {ended.stdout}"
    return ended.stdout


def through_consoles(bootstrap: str, config: Path, topic: str, java_options: Sequence[str] = ()) -> None:
    """What the one has produced the other reads."""
    at, lines = ("--bootstrap-server", bootstrap), [f"value {number}" for number in range(50)]
    sent = ("--producer.config", config, "--topic", topic)
    run("console-producer", *at, *sent, stdin="\n".join(lines) + "\n", java_options=java_options)
    wanted = ("--topic", topic, "--from-beginning", "--max-messages", 50, "--timeout-ms", 30_000)
    read = run("console-consumer", *at, "--consumer.config", config, *wanted, java_options=java_options)
    assert [line for line in read.splitlines() if line.startswith("value")] == lines


@pytest.fixture
def tool(broker: RunningBroker) -> Tool:
    def call(name: str, *arguments: object, **how: Any) -> str:
        return run(name, "--bootstrap-server", broker.bootstrap, *arguments, **how)

    return call


def produced(broker: RunningBroker, tool: Tool, topic: str, partitions: int = 1) -> list[str]:
    tool("topics", "--create", "--topic", topic, "--partitions", partitions)
    lines = [f"value {number}" for number in range(100)]
    tool("console-producer", "--topic", topic, stdin="\n".join(lines) + "\n")
    return lines


@pytest.mark.spec("TOP-01", "TOP-02", "TOP-20", "TOP-24")
def test_topics(tool: Tool, topic: str) -> None:
    tool("topics", "--create", "--topic", topic, "--partitions", 3, "--config", "retention.ms=100000")
    described = tool("topics", "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert "retention.ms=100000" in described
    assert described.count("Leader: 1") == 3
    tool("topics", "--create", "--topic", topic, code=1)
    tool("topics", "--alter", "--topic", re.escape(topic), "--partitions", 5)
    assert "PartitionCount: 5" in tool("topics", "--describe", "--topic", topic)
    assert "5 partition(s)" in tool("topics", "--alter", "--topic", topic, "--partitions", 4, code=1)
    tool("topics", "--delete", "--topic", topic)
    assert topic not in tool("topics", "--list").split()


@pytest.mark.spec("TOP-23")
def test_configs(tool: Tool, topic: str) -> None:
    tool("topics", "--create", "--topic", topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tool("configs", *entity, "--alter", "--add-config", "retention.ms=5000,cleanup.policy=[compact,delete]")
    described = tool("configs", *entity, "--describe")
    assert "retention.ms=5000 " in described
    assert "cleanup.policy=compact,delete " in described
    tool("configs", *entity, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in tool("configs", *entity, "--describe")
    refused = tool("configs", *entity, "--alter", "--add-config", "retention.ms=never", code=1)
    assert "Invalid value never for configuration retention.ms" in refused
    everything = tool("configs", "--entity-type", "brokers", "--entity-name", 1, "--describe", "--all")
    assert "log.retention.hours=168" in everything


@pytest.mark.spec("CLI-01")
def test_console_tools_and_offsets(broker: RunningBroker, tool: Tool, topic: str) -> None:
    lines = produced(broker, tool, topic)
    read = tool("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", 100, "--timeout-ms", 30000)
    assert [line for line in read.splitlines() if line.startswith("value")] == lines
    assert tool("get-offsets", "--topic", topic).split()[-1] == f"{topic}:0:100"
    assert tool("get-offsets", "--topic", topic, "--time", "earliest").split()[-1] == f"{topic}:0:0"


@pytest.mark.spec("CLI-01")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_performance_tools(broker: RunningBroker, tool: Tool, topic: str, codec: str) -> None:
    tool("topics", "--create", "--topic", topic, "--partitions", 2)
    properties = (f"bootstrap.servers={broker.bootstrap}", "acks=all", f"compression.type={codec}")
    size = ("--num-records", 20_000, "--record-size", 100, "--throughput", -1)
    assert "20000 records sent" in run("producer-perf-test", "--topic", topic, *size, "--producer-props", *properties)
    read = tool("consumer-perf-test", "--topic", topic, "--messages", 20_000, "--timeout", 30_000)
    assert read.splitlines()[-1].split(", ")[4] == "20000"


@pytest.mark.spec("CLI-01", "CLI-04")
def test_verifiable_tools(tool: Tool, topic: str) -> None:
    told = tool("verifiable-producer", "--topic", topic, "--max-messages", 20, "--acks", -1)
    assert told.count('"name":"producer_send_success"') == 20
    group = ("--group-id", topic, "--group-protocol", "consumer", "--reset-policy", "earliest")
    told = tool("verifiable-consumer", "--topic", topic, "--max-messages", 20, *group)
    assert f'"offsets":[{{"topic":"{topic}","partition":0,"offset":20}}],"success":true' in told


def test_configs_of_client_metrics_are_refused(tool: Tool) -> None:
    wanted = ("--alter", "--name", "m", "--metrics", "org.apache.kafka.", "--interval", 1000)
    assert "Configs of client metrics are not kept here." in tool("client-metrics", *wanted, code=1)
    assert tool("client-metrics", "--list").strip() == ""


@pytest.mark.spec("CLI-04")
def test_groups(broker: RunningBroker, tool: Tool, topic: str) -> None:
    produced(broker, tool, topic)
    read = ("--topic", topic, "--group", topic, "--from-beginning", "--max-messages", 40, "--timeout-ms", 30000)
    tool("console-consumer", *read)
    described = tool("consumer-groups", "--describe", "--group", topic)
    assert re.search(rf"{topic}\s+{topic}\s+0\s+40\s+100\s+60", described)
    assert re.search(rf"^{topic}\s+Classic\s+consumer", tool("groups", "--list"), re.MULTILINE)
    reset = ("--reset-offsets", "--to-earliest", "--topic", topic, "--group", topic, "--execute")
    assert re.search(rf"{topic}\s+{topic}\s+0\s+0\s", tool("consumer-groups", *reset))
    tool("consumer-groups", "--delete-offsets", "--group", topic, "--topic", topic)
    tool("consumer-groups", "--delete", "--group", topic)
    assert topic not in tool("consumer-groups", "--list").split()


@pytest.mark.spec("TOP-26")
def test_delete_records(broker: RunningBroker, tool: Tool, topic: str, tmp_path: Path) -> None:
    produced(broker, tool, topic)
    wanted = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 30}]}
    (tmp_path / "offsets.json").write_text(json.dumps(wanted))
    assert "low_watermark: 30" in tool("delete-records", "--offset-json-file", tmp_path / "offsets.json")
    assert tool("get-offsets", "--topic", topic, "--time", "earliest").split()[-1] == f"{topic}:0:30"


def test_log_dirs(broker: RunningBroker, tool: Tool, topic: str) -> None:
    produced(broker, tool, topic, partitions=2)
    printed = tool("log-dirs", "--describe", "--topic-list", topic)
    found = json.loads(printed[printed.index("{") :])
    directories = found["brokers"][0]["logDirs"]
    assert sorted(d["logDir"] for d in directories) == sorted(map(str, broker.log_dirs))
    replicas = [replica for d in directories for replica in d["partitions"]]
    assert sorted(replica["partition"] for replica in replicas) == [f"{topic}-0", f"{topic}-1"]
    assert sum(replica["size"] for replica in replicas) > 100


def test_the_way_of_a_record_is_timed(broker: RunningBroker, topic: str) -> None:
    """It makes the topic itself, and reads each record back before it sends the next."""
    timed = run("e2e-latency", broker.bootstrap, topic, 100, "all", 100)
    assert re.search(r"^Percentiles: 50th = \d+, 99th = \d+, 99.9th = \d+$", timed, re.MULTILINE)


def test_what_a_broker_must_be_able_to(broker: RunningBroker, tool: Tool, topic: str) -> None:
    """It asks for what came after Apache Kafka 0.10, and reads a record larger than it wants to."""
    tool("topics", "--create", "--topic", topic)
    able = ["cluster-id", "create-topics", "describe-acls", "describe-configs", "idempotent-producer"]
    able.append("offsets-for-times")
    words = [word for what in able for word in (f"--{what}-supported", "true")]
    words += ["--expect-record-too-large-exception", "false", "--num-cluster-nodes", "1"]
    assert tool("client-compatibility", "--topic", topic, *words).rstrip().endswith("SUCCESS.")


def test_replicas_have_the_same_records(tmp_path: Path) -> None:
    """It fetches from all of them as a replica of no number, and goes on until it is ended."""
    with Brokers(tmp_path, 2, [0, 1]) as two:
        at = ("--bootstrap-server", two.bootstrap)
        run("topics", *at, "--create", "--topic", "both", "--replica-assignment", "0:1,1:0")
        run("console-producer", *at, "--topic", "both", stdin="a value\n" * 100)
        looking = java(TOOLS["replica-verification"], "--broker-list", two.bootstrap, "--report-interval-ms", 100)
        with subprocess.Popen(looking, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ended_here:
            assert ended_here.stdout is not None
            said = [next(ended_here.stdout) for _ in range(5)]
            ended_here.kill()
    assert "verification process is started" in said[0]
    assert all("max lag is 0 for partition" in line for line in said[2:]), said


@pytest.mark.spec("CLI-10")
def test_what_the_cluster_says_of_itself(tool: Tool) -> None:
    versions = tool("broker-api-versions")
    assert re.search(r"Produce\(0\): 0 to \d+ \[usable: 13\]", versions)
    assert "Metadata(3): 0 to 13" in versions
    assert re.search(r"metadata.version\s.*FinalizedVersionLevel: 4.1-IV1", tool("features", "describe"))
    status = tool("metadata-quorum", "describe", "--status")
    assert re.search(r"LeaderId:\s+1\b", status)
    assert re.search(r"^1\s.*Leader", tool("metadata-quorum", "describe", "--replication"), re.MULTILINE)


def test_a_feature_as_the_page_enables_it(tool: Tool) -> None:
    (command,) = to_type("tests/clients/test_java_tools.py::test_a_feature_as_the_page_enables_it")
    program, *words = command.split()
    assert (program, words[:2]) == ("kafka-features.sh", ["--bootstrap-server", "HOST:PORT"])
    feature = "eligible.leader.replicas.version"
    assert f"{feature} was downgraded to 0." in tool("features", "downgrade", "--feature", f"{feature}=0")
    enabled = tool("features", *(word.replace("NAME=LEVEL", f"{feature}=1") for word in words[2:]))
    assert f"{feature} was upgraded to 1." in enabled


@pytest.mark.spec("CLI-11")
def test_quotas_as_the_page_sets_them(own_broker: Callable[..., RunningBroker]) -> None:
    broker = own_broker()
    commands = to_type("tests/clients/test_java_tools.py::test_quotas_as_the_page_sets_them")
    assert [command.split()[:3] for command in commands] == [
        ["kafka-configs.sh", "--bootstrap-server", "HOST:PORT"]
    ] * 4

    def configs(*words: str) -> str:
        return run("configs", "--bootstrap-server", broker.bootstrap, *words)

    *changes, look = [command.split()[3:] for command in commands]
    for change in changes:
        assert "Completed updating" in configs(*change)
    described = configs(*look)
    assert "request_percentage=20.0" in described
    assert "producer_byte_rate=1048576.0" in described
    assert "controller_mutation_rate=10.0" in configs("--describe", "--entity-type", "clients")
    assert "connection_creation_rate=50.0" in configs("--describe", "--entity-type", "ips")
    removed = ["--alter", "--delete-config", "connection_creation_rate", "--entity-type", "ips"]
    configs(*removed, "--entity-name", "10.0.0.1")
    assert "connection_creation_rate" not in configs("--describe", "--entity-type", "ips")
    both = ["--entity-type", "users", "--entity-name", "bob", "--entity-type", "clients", "--entity-name", "app"]
    configs("--alter", "--add-config", "request_percentage=0.5", *both)
    assert "request_percentage=0.5" in configs("--describe", *both)


@pytest.mark.spec("CLI-11")
def test_a_tool_that_may_make_no_more_topics_is_told_and_makes_them_later(
    own_broker: Callable[..., RunningBroker], topic: str
) -> None:
    """The Java client asks again, for as long as its user is patient; kafka-topics is not."""
    broker = own_broker()

    def tool(name: str, *words: object, **how: Any) -> str:
        return run(name, "--bootstrap-server", broker.bootstrap, *words, **how)

    entity = ("--entity-type", "clients", "--entity-default")
    tool("configs", "--alter", "--add-config", "controller_mutation_rate=0.01", *entity)
    tool("topics", "--create", "--topic", topic)
    refused = tool("topics", "--create", "--topic", f"{topic}-2", code=1)
    assert "The throttling quota has been exceeded." in refused
    assert tool("topics", "--list").split() == [topic]
    tool("configs", "--alter", "--add-config", "controller_mutation_rate=100", *entity)
    tool("topics", "--create", "--topic", f"{topic}-2")
    assert set(tool("topics", "--list").split()) == {topic, f"{topic}-2"}


@pytest.mark.spec("CLI-11")
def test_java_producers_and_consumers_get_through_a_quota_of_time(
    broker: RunningBroker, tool: Tool, topic: str
) -> None:
    entity = ("--entity-type", "clients", "--entity-name", "busy")
    tool("configs", "--alter", "--add-config", "request_percentage=0.01", *entity)
    try:
        tool("topics", "--create", "--topic", topic)
        lines = [f"value {number}" for number in range(20)]
        said = "client.id=busy"
        tool("console-producer", "--topic", topic, "--producer-property", said, stdin="\n".join(lines) + "\n")
        read = tool(
            "console-consumer", "--topic", topic, "--from-beginning", "--max-messages", 20, "--consumer-property", said
        )
        assert [line for line in read.splitlines() if line.startswith("value")] == lines
    finally:
        tool("configs", "--alter", "--delete-config", "request_percentage", *entity)


def test_leaderless_partitions_as_the_page_says(tool: Tool, topic: str) -> None:
    """Where all have one: the tools take the words of the page, name nothing and change nothing."""
    tool("topics", "--create", "--topic", topic)
    look, elect = to_type("tests/clients/test_java_tools.py::test_leaderless_partitions_as_the_page_says")
    assert look.split()[:3] == ["kafka-topics.sh", "--bootstrap-server", "HOST:PORT"]
    assert tool("topics", *look.split()[3:]).strip() == ""
    assert elect.split()[:3] == ["kafka-leader-election.sh", "--bootstrap-server", "HOST:PORT"]
    told = tool("leader-election", *elect.replace("TOPIC", topic).replace("NUMBER", "0").split()[3:])
    assert f"Valid replica already elected for partitions {topic}-0" in told


def test_the_cluster_tool(broker: RunningBroker) -> None:
    assert re.search(r"Cluster ID: \S{22}\b", run("cluster", "cluster-id", "--bootstrap-server", broker.bootstrap))
    listed = run("cluster", "list-endpoints", "--bootstrap-server", broker.bootstrap)
    assert re.search(rf"^1\s+127.0.0.1\s+{broker.port}\s.*unfenced\s+broker", listed, re.MULTILINE)


def test_a_broker_is_forgotten_as_the_page_says(tmp_path: Path) -> None:
    (command,) = to_type("tests/clients/test_java_tools.py::test_a_broker_is_forgotten_as_the_page_says")
    assert command.startswith("kafka-cluster.sh unregister ")
    with Brokers(tmp_path, 2, [0, 1]) as two:
        two[1].kill()
        words = command.replace("HOST:PORT", two.bootstrap).replace("NUMBER", "1").split()[1:]
        assert "Broker 1 is no longer registered." in run("cluster", *words)
        listed = run("cluster", "list-endpoints", "--bootstrap-server", two.bootstrap, "--include-fenced-brokers")
        assert re.findall(r"^(\d+)\s+127", listed, re.MULTILINE) == ["0"], listed


def test_elections_and_reassignments(tool: Tool, topic: str) -> None:
    tool("topics", "--create", "--topic", topic)
    tool("leader-election", "--election-type", "preferred", "--all-topic-partitions")
    assert "No partition reassignments found." in tool("reassign-partitions", "--list")


@pytest.mark.spec("CLI-05")
def test_producers_are_described(broker: RunningBroker, tool: Tool, topic: str) -> None:
    produced(broker, tool, topic)
    described = tool("transactions", "describe-producers", "--topic", topic, "--partition", 0)
    assert re.search(r"^\d+\s+0\s+-1\s+99\s", described, re.MULTILINE)


@pytest.mark.spec("CLI-05")
def test_a_transaction_that_hangs_is_aborted(own_broker: Callable[..., RunningBroker], topic: str) -> None:
    """One of which no coordinator knows: only the partition can be told to end it."""
    broker = own_broker(**{"transaction.partition.verification.enable": "false"})

    def tool(name: str, *arguments: object) -> str:
        return run(name, "--bootstrap-server", broker.bootstrap, *arguments)

    def consumed(*until: object) -> str:
        asked = ("--topic", topic, "--from-beginning", "--isolation-level", "read_committed")
        return tool("console-consumer", *asked, *until)

    tool("topics", "--create", "--topic", topic)
    client = WireClient("127.0.0.1", broker.port)
    try:
        batches = [
            encode_batch([Record(value=b"hangs", timestamp=AN_HOUR_AGO_MS)], transactional=True, producer_id=7,
                         producer_epoch=3, base_sequence=0),
            encode_batch([Record(value=b"waits", timestamp=AN_HOUR_AGO_MS)]),
        ]  # fmt: skip
        kind = message("ProduceRequest")
        for name, batch in zip(("hanging", None), batches, strict=True):
            part = kind.TopicProduceData.PartitionProduceData(index=0, records=bytes(batch))
            data = [kind.TopicProduceData(name=topic, partition_data=[part])]
            said = client.call(kind(transactional_id=name, acks=-1, timeout_ms=5000, topic_data=data), 9)
            assert said.responses[0].partition_responses[0].error_code == 0
    finally:
        client.close()
    assert "waits" not in consumed("--timeout-ms", 3000)
    partition = ("--topic", topic, "--partition", 0)
    described = tool("transactions", "describe-producers", *partition)
    assert re.search(r"^7\s+3\s+-1\s+0\s+\d+\s+0\s*$", described, re.MULTILINE), described
    tool("transactions", "abort", *partition, "--start-offset", 0)
    seen = consumed("--max-messages", 1, "--timeout-ms", 30_000)
    assert "waits" in seen
    assert "hangs" not in seen
    described = tool("transactions", "describe-producers", *partition)
    assert re.search(r"^7\s+3\s+-?\d+\s+0\s+\d+\s+None\s*$", described, re.MULTILINE), described


@pytest.mark.spec("LOG-01")
def test_dump_log_reads_the_files(own_broker: Callable[..., RunningBroker], topic: str) -> None:
    broker = own_broker()

    def tool(name: str, *arguments: object, **how: Any) -> str:
        return run(name, "--bootstrap-server", broker.bootstrap, *arguments, **how)

    lines = produced(broker, tool, topic)
    # Enough to fill an index: one entry per 4 KiB.
    size = ("--num-records", 2000, "--record-size", 100, "--throughput", -1)
    run("producer-perf-test", "--topic", topic, *size, "--producer-props", f"bootstrap.servers={broker.bootstrap}")
    broker.stop()
    (folder,) = [path for directory in broker.log_dirs for path in directory.glob(f"{topic}-0")]
    segment = folder / f"{0:020}.log"
    printed = run("dump-log", "--files", segment, "--print-data-log")
    assert re.findall(r"payload: (value \d+)", printed) == lines
    assert "isvalid: true" in printed
    assert "isvalid: false" not in printed
    for name in ("index", "timeindex"):
        checked = run("dump-log", "--files", segment.with_suffix(f".{name}"), "--index-sanity-check")
        assert "passed sanity check" in checked
