"""The Java client in groups of the consumer protocol, and Apache Kafka's tools that show and configure such groups."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupType, KafkaException
from tests.clients.running import RunningBroker
from tests.clients.test_consumer_protocol import FAST, Reader, described, shared
from tests.clients.test_java_tools import run
from tests.clients.test_librdkafka import create, producer, send
from tests.contract.wire import WireClient
from tests.waiting import eventually

from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.spec("CLI-02", "CLI-04")]

Tool = Callable[..., str]


@pytest.fixture
def fast_broker(own_broker: Callable[..., RunningBroker]) -> RunningBroker:
    return own_broker(**FAST)


@pytest.fixture
def tool(fast_broker: RunningBroker) -> Tool:
    def call(name: str, *arguments: object, **how: Any) -> str:
        return run(name, "--bootstrap-server", fast_broker.bootstrap, *arguments, **how)

    return call


@pytest.fixture
def reader(fast_broker: RunningBroker, topic: str) -> Iterator[Reader]:
    create(fast_broker, topic, partitions=2)
    member = Reader(fast_broker, "g", [topic])
    eventually(shared([member], topic, 2), "it has both")
    yield member
    member.stop()


def test_two_java_consumers_share_a_topic(fast_broker: RunningBroker, tool: Tool, topic: str) -> None:
    create(fast_broker, topic, partitions=4)
    lines = [f"value-{number}" for number in range(200)]
    outputs: list[str] = []

    def consume() -> None:
        outputs.append(
            tool(
                "console-consumer", "--topic", topic, "--group", "g", "--timeout-ms", 20_000,
                "--consumer-property", "group.protocol=consumer",
                "--consumer-property", "auto.offset.reset=earliest",
            )
        )  # fmt: skip

    threads = [threading.Thread(target=consume) for _ in range(2)]
    for thread in threads:
        thread.start()
    sender = producer(fast_broker)
    for number, line in enumerate(lines):
        send(sender, topic, [line.encode()], partition=number % 4)
    for thread in threads:
        thread.join()
    seen = Counter(line for text in outputs for line in text.splitlines() if line.startswith("value-"))
    assert set(seen) == set(lines)
    assert all("Processed a total of" in text for text in outputs)
    described = tool("consumer-groups", "--describe", "--group", "g")
    assert len(re.findall(rf"^g\s+{topic}\s+\d\s+50\s+50\s+0\s", described, re.MULTILINE)) == 4


@pytest.mark.parametrize("strategy", ["RangeAssignor", "CooperativeStickyAssignor"])
def test_java_consumers_of_both_protocols_share_a_topic(
    fast_broker: RunningBroker, tool: Tool, topic: str, strategy: str
) -> None:
    """One of the consumer protocol comes to one of the classic protocol, reads a while, and goes."""
    create(fast_broker, topic, partitions=4)
    outputs: dict[str, str] = {}

    def consume(name: str, *arguments: object) -> threading.Thread:
        def work() -> None:
            properties = [f"group.protocol={name}", "auto.offset.reset=earliest", "auto.commit.interval.ms=200"]
            if name == "classic":
                assignor = f"partition.assignment.strategy=org.apache.kafka.clients.consumer.{strategy}"
                properties += [assignor, "heartbeat.interval.ms=200"]
            words = [word for each in properties for word in ("--consumer-property", each)]
            outputs[name] = tool("console-consumer", "--topic", topic, "--group", "g", *arguments, *words)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    sender = producer(fast_broker)
    lines: list[str] = []

    def write() -> None:
        for number in range(4):
            lines.append(f"value-{len(lines)}")
            send(sender, topic, [lines[-1].encode()], partition=number)

    def kind() -> ConsumerGroupType | None:
        with contextlib.suppress(KafkaException):
            return described(fast_broker, "g").type
        return None

    def written_until(holds: Callable[[], bool], what: str) -> None:
        def reached() -> bool:
            write()
            return holds()

        eventually(reached, what)

    classic = consume("classic", "--timeout-ms", 25_000)
    written_until(lambda: kind() is ConsumerGroupType.CLASSIC, "it is a classic group")
    modern = consume("consumer", "--max-messages", 50)
    written_until(lambda: kind() is ConsumerGroupType.CONSUMER, "it goes over")
    written_until(lambda: not modern.is_alive(), "the other one has read so much")
    assert "Processed a total of 50 messages" in outputs["consumer"]
    written_until(lambda: kind() is ConsumerGroupType.CLASSIC, "it goes back")
    write()
    classic.join()
    seen = {line for text in outputs.values() for line in text.splitlines() if line.startswith("value-")}
    assert seen == set(lines)


def test_a_java_consumer_reads_fast(fast_broker: RunningBroker, tool: Tool, topic: str, tmp_path: Path) -> None:
    create(fast_broker, topic, partitions=3)
    send(producer(fast_broker), topic, [b"x" * 100] * 3000)
    config = tmp_path / "consumer.properties"
    config.write_text("group.protocol=consumer\nauto.offset.reset=earliest\n")
    told = tool(
        "consumer-perf-test", "--topic", topic, "--messages", 3000, "--consumer.config", config, "--group", "perf",
        "--timeout", 20000,
    )  # fmt: skip
    assert re.search(r", 3\d\d\d, ", told), told


def test_the_tool_shows_members_states_and_epochs(tool: Tool, reader: Reader, topic: str) -> None:
    members = tool("consumer-groups", "--describe", "--group", "g", "--members", "--verbose")
    assert re.search(r"CURRENT-EPOCH\s+CURRENT-ASSIGNMENT\s+TARGET-EPOCH\s+TARGET-ASSIGNMENT", members), members
    assert re.search(rf"\s1\s+{topic}:0,1\s+1\s+{topic}:0,1", members), members
    state = tool("consumer-groups", "--describe", "--group", "g", "--state", "--verbose")
    assert re.search(r"uniform\s+Stable\s+1\s+1\s+1", state), state
    listed = tool("consumer-groups", "--list", "--type", "consumer", "--state", "stable")
    assert re.search(r"^g\s+Consumer\s+Stable", listed, re.MULTILINE), listed
    assert re.search(r"^g\s+Consumer\s+consumer", tool("groups", "--list"), re.MULTILINE)
    assert "is not empty" in tool("consumer-groups", "--delete", "--group", "g")


def test_a_group_is_configured(tool: Tool, reader: Reader) -> None:
    group = ("--entity-type", "groups", "--entity-name", "g")
    refused = tool("configs", *group, "--alter", "--add-config", "consumer.session.timeout.ms=99", code=1)
    assert "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session" in refused
    tool("configs", *group, "--alter", "--add-config", "consumer.session.timeout.ms=2500")
    described = tool("configs", *group, "--describe")
    assert re.search(r"consumer\.session\.timeout\.ms=2500 .*DYNAMIC_GROUP_CONFIG", described), described
    tool("configs", *group, "--alter", "--delete-config", "consumer.session.timeout.ms")
    assert "2500" not in tool("configs", *group, "--describe")


def test_the_feature_is_turned_off_and_on(tool: Tool, fast_broker: RunningBroker, reader: Reader) -> None:
    client = WireClient("127.0.0.1", fast_broker.port)

    def error() -> int:
        beat = message("ConsumerGroupHeartbeatRequest")(version=1, group_id="g", member_id="m9", member_epoch=3)
        return int(client.call(beat, 1).error_code)

    assert re.search(r"group.version\s.*FinalizedVersionLevel: 1", tool("features", "describe"))
    assert error() == ErrorCode.UNKNOWN_MEMBER_ID
    assert "group.version was downgraded to 0." in tool("features", "downgrade", "--feature", "group.version=0")
    eventually(lambda: error() == ErrorCode.UNSUPPORTED_VERSION, "no broker answers for such groups")
    assert "group.version was upgraded to 1." in tool("features", "upgrade", "--feature", "group.version=1")
    eventually(lambda: error() == ErrorCode.UNKNOWN_MEMBER_ID, "they do again")
    client.close()
