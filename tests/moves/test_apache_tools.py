"""Apache Kafka's kafka-reassign-partitions and kafka-log-dirs, unchanged, move replicas of a Ballast cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.dump_log import check_partition
from tests.apache_java import java
from tests.moves.brokers import Brokers, eventually, plan

pytestmark = [pytest.mark.java, pytest.mark.timeout(480)]

TOOLS = {
    "reassign": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "configs": "kafka.admin.ConfigCommand",
    "dump-log": "kafka.tools.DumpLogSegments",
}
TOOL_S = 120
PLENTY = 1_000_000_000


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """0, 1 and 2; broker 3 joins in the test that commissions it."""
    with Brokers(tmp_path_factory.mktemp("moves"), 4, (0, 1, 2)) as running:
        yield running
        assert not [found for broker in running.brokers for found in broker.complaints()]


def run(name: str, *arguments: object, code: int = 0) -> str:
    command = java(TOOLS[name], *arguments)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_S, check=False)
    printed = ended.stdout + ended.stderr
    assert ended.returncode == code, f"{name} {arguments} ended with {ended.returncode}: {printed}"
    return printed


class Tool:
    def __init__(self, brokers: Brokers, folder: Path) -> None:
        self._brokers = brokers
        self._folder = folder

    def reassign(self, action: str, text: str | None = None, *more: object, code: int = 0) -> str:
        arguments: list[object] = ["--bootstrap-server", self._brokers.bootstrap, action, *more]
        if text is not None:
            path = self._folder / "plan.json"
            path.write_text(text)
            arguments += ["--reassignment-json-file", path]
        return run("reassign", *arguments, code=code)

    def execute(self, text: str, *more: object, code: int = 0) -> str:
        return self.reassign("--execute", text, *more, code=code)

    def finish(self, text: str, topic: str) -> str:
        """Wait until the brokers say it is done; then what --verify says."""
        wanted = {(row["topic"], row["partition"]): row for row in json.loads(text)["partitions"]}

        def arrived() -> bool:
            replicas = self._brokers.replicas(topic)
            there = all(replicas[number] == row["replicas"] for (_, number), row in wanted.items())
            return there and self._brokers.in_sync(topic) and not self._brokers.futures()

        eventually(arrived, f"{topic} is where {text} wants it")
        return self.reassign("--verify", text)

    def generate(self, topics: list[str], brokers: str, *more: object) -> tuple[str, str]:
        """The current and the proposed plan."""
        path = self._folder / "topics.json"
        path.write_text(json.dumps({"version": 1, "topics": [{"topic": topic} for topic in topics]}))
        arguments = ("--generate", "--topics-to-move-json-file", path, "--broker-list", brokers, *more)
        printed = run("reassign", "--bootstrap-server", self._brokers.bootstrap, *arguments)
        current, proposed = re.findall(r"^\{.*\}$", printed, re.MULTILINE)
        return current, proposed

    def log_dirs(self, topic: str) -> dict[int, dict[str, list[dict[str, Any]]]]:
        """Per broker and directory: the replicas of the topic."""
        printed = run("log-dirs", "--bootstrap-server", self._brokers.bootstrap, "--describe", "--topic-list", topic)
        found = json.loads(next(line for line in printed.splitlines() if line.startswith('{"')))
        return {
            broker["broker"]: {each["logDir"]: each["partitions"] for each in broker["logDirs"]}
            for broker in found["brokers"]
        }

    def throttles(self, kind: str, name: object) -> str:
        entity = ("--entity-type", kind, "--entity-name", name)
        printed = run("configs", "--bootstrap-server", self._brokers.bootstrap, *entity, "--describe")
        return "\n".join(line for line in printed.splitlines() if "throttle" in line or "max.bytes.per" in line)


@pytest.fixture
def tool(brokers: Brokers, tmp_path: Path) -> Tool:
    return Tool(brokers, tmp_path)


def rollback_of(printed: str) -> str:
    return re.findall(r"^\{.*\}$", printed, re.MULTILINE)[0]


@pytest.mark.spec("DIR-10", "DIR-40", "DIR-32")
def test_moves_between_directories(brokers: Brokers, tool: Tool) -> None:
    brokers.create("disks", [[0], [1]])
    brokers.produce("disks", (0, 1), 6)
    targets = [brokers.other_directory(0, "disks", 0), brokers.other_directory(1, "disks", 1)]
    wanted = plan([("disks", 0, [0], [targets[0]]), ("disks", 1, [1], [targets[1]])])
    limit = ("--replica-alter-log-dirs-throttle", 10_000)
    printed = tool.execute(wanted, *limit)
    assert "The replica-alter-dir throttle limit was set to 10000 B/s" in printed
    for number in (0, 1):
        said = f"Successfully started moving log directory to {targets[number]} for replica disks-{number}"
        assert f"{said} with broker {number}" in printed
    verified = tool.reassign("--verify", wanted)
    assert "Reassignment of replica disks-0-0 is still in progress." in verified.replace("log directory of ", "")
    described = tool.log_dirs("disks")
    moving = described[0][targets[0]]
    assert [each["isFuture"] for each in moving] == [True]
    assert moving[0]["offsetLag"] > 0
    assert "replica.alter.log.dirs.io.max.bytes.per.second=10000" in tool.throttles("brokers", 0)
    # The same plan again with another limit: Kafka's way to change the throttle of what runs.
    tool.execute(wanted, "--replica-alter-log-dirs-throttle", PLENTY, "--additional")
    verified = tool.finish(wanted, "disks")
    assert "Reassignment of replica disks-0-0 completed successfully." in verified
    assert "Reassignment of replica disks-1-1 completed successfully." in verified
    assert "Clearing broker-level throttles on brokers 0,1,2" in verified
    assert tool.throttles("brokers", 0) == ""
    assert [brokers.directory_of(each, "disks", each) for each in (0, 1)] == targets
    # Somewhere else than asked for, and not on its way there.
    elsewhere = plan([("disks", 0, [0], [brokers.other_directory(0, "disks", 0)])])
    assert "is not being moved from" in tool.reassign("--verify", elsewhere)


@pytest.mark.spec("DIR-13", "DIR-40", "CLU-32", "DIR-11")
def test_to_another_broker_into_a_named_directory(brokers: Brokers, tool: Tool) -> None:
    brokers.create("named", [[0]])
    brokers.produce("named", [0], 1)
    target = str(brokers[1].volumes[2])
    wanted = plan([("named", 0, [1], [target])])
    printed = tool.execute(wanted)
    assert f"Successfully started moving log directory to {target} for replica named-0 with broker 1" in printed
    assert "Reassignment of replica named-0-1 completed successfully." in tool.finish(wanted, "named")
    assert brokers.directory_of(1, "named", 0) == target
    eventually(lambda: brokers.directory_of(0, "named", 0) is None, "it left broker 0")
    # And back: the plan that --execute printed.
    back = rollback_of(printed)
    tool.execute(back)
    tool.finish(back, "named")
    assert brokers.replicas("named") == [[0]]


@pytest.mark.spec("CLU-32", "CLU-30", "REP-30")
def test_throttled_listed_refused_cancelled(brokers: Brokers, tool: Tool) -> None:
    brokers.create("slow", [[0, 1], [1, 0]])
    brokers.produce("slow", (0, 1), 4)
    wanted = plan([("slow", 0, [2, 1], None)])
    assert "The inter-broker throttle limit was set to 10000 B/s" in tool.execute(wanted, "--throttle", 10_000)
    assert "slow-0: replicas: 2,1,0. adding: 2. removing: 0." in tool.reassign("--list")
    assert "Reassignment of partition slow-0 is still in progress." in tool.reassign("--verify", wanted)
    assert "follower.replication.throttled.replicas=0:2" in tool.throttles("topics", "slow")
    assert "leader.replication.throttled.rate=10000" in tool.throttles("brokers", 2)
    refused = tool.execute(plan([("slow", 1, [2, 0], None)]), code=1)
    assert "Cannot execute because there is an existing partition assignment" in refused
    tool.execute(plan([("slow", 1, [2, 0], None)]), "--additional", "--throttle", 10_000)
    both = plan([("slow", 0, [2, 1], None), ("slow", 1, [2, 0], None)])
    assert "slow-1: replicas: 2,0,1. adding: 2. removing: 1." in tool.reassign("--list")
    assert "Successfully cancelled partition reassignments for: slow-0,slow-1" in tool.reassign("--cancel", both)
    assert "No partition reassignments found." in tool.reassign("--list")
    assert [sorted(replicas) for replicas in brokers.replicas("slow")] == [[0, 1], [0, 1]]
    assert tool.throttles("topics", "slow") == ""
    eventually(lambda: brokers.directory_of(2, "slow", 0) is None, "what was begun on broker 2 is gone")


@pytest.mark.spec("CLU-34", "CLU-22", "CLU-32")
def test_replication_factor_and_manual_placement(brokers: Brokers, tool: Tool) -> None:
    brokers.create("factor", [[0], [1], [2]])
    brokers.produce("factor", (0, 1, 2), 0.5)
    wider = plan([("factor", 0, [0, 1, 2], None), ("factor", 1, [1, 2, 0], None), ("factor", 2, [2, 0, 1], None)])
    printed = tool.execute(wider)
    assert "Successfully started partition reassignments for factor-0,factor-1,factor-2" in printed
    assert "Reassignment of partition factor-2 is completed." in tool.finish(wider, "factor")
    placed = plan([("factor", 0, [0, 1], None), ("factor", 1, [0, 1], None), ("factor", 2, [1, 0], None)])
    tool.execute(placed)
    tool.finish(placed, "factor")
    eventually(lambda: brokers.directory_of(2, "factor", 2) is None, "broker 2 has none")
    tool.execute(rollback_of(printed))
    tool.finish(rollback_of(printed), "factor")
    assert brokers.replicas("factor") == [[0], [1], [2]]


@pytest.mark.spec("CLU-33", "CLU-32")
@pytest.mark.timeout(600)
def test_a_broker_is_commissioned_and_decommissioned(brokers: Brokers, tool: Tool) -> None:
    brokers.create("wide", [[n % 3, (n + 1) % 3] for n in range(8)])
    brokers.produce("wide", range(8), 0.3)
    brokers.join(3)
    current, proposed = tool.generate(["wide"], "0,1,2,3")
    assert json.loads(current)["partitions"][0]["replicas"] == brokers.replicas("wide")[0]
    used = [replica for row in json.loads(proposed)["partitions"] for replica in row["replicas"]]
    assert sorted(used) == sorted([0, 1, 2, 3] * 4), "level by number, as Kafka plans"
    tool.execute(proposed, "--throttle", PLENTY)
    assert "Clearing topic-level throttles on topic wide" in tool.finish(proposed, "wide")
    assert any(3 in replicas for replicas in brokers.replicas("wide"))
    _, leaving = tool.generate(["wide"], "0,1,2", "--disable-rack-aware")
    tool.execute(leaving)
    tool.finish(leaving, "wide")
    assert not any(3 in replicas for replicas in brokers.replicas("wide"))
    eventually(lambda: not any(brokers.directory_of(3, "wide", n) for n in range(8)), "broker 3 is empty")
    assert all(not replicas for replicas in tool.log_dirs("wide")[3].values())


@pytest.mark.spec("DIR-28", "LOG-01")
def test_files_after_a_move_are_the_same_and_apache_kafka_reads_them(brokers: Brokers, tool: Tool) -> None:
    brokers.create("same", [[1]], segment_bytes="1048576")
    brokers.produce("same", [0], 4)
    source = Path(brokers.directory_of(1, "same", 0) or "")
    before = files_of(source / "same-0")
    target = Path(brokers.other_directory(1, "same", 0))
    wanted = plan([("same", 0, [1], [str(target)])])
    tool.execute(wanted)
    eventually(lambda: brokers.directory_of(1, "same", 0) == str(target), "moved")
    after = files_of(target / "same-0")
    assert len([name for name in before if name.endswith(".log")]) > 3
    assert after.keys() == before.keys()
    assert [name for name in before if before[name] != after[name]] == []
    logs = sorted((target / "same-0").glob("*.log"))
    assert check_partition(Path(os.environ["BALLAST_KAFKA_JARS"]), target / "same-0") == []
    # Not the active segment's: for the zeros behind their entries the tool takes them for damaged, Kafka's own as well.
    indexes = [path for path in sorted((target / "same-0").glob("*index")) if path.stem != logs[-1].stem]
    assert printed_mismatches(run("dump-log", "--files", ",".join(map(str, indexes)), "--index-sanity-check")) == []


def printed_mismatches(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if "ismatch" in line or "ound non" in line]


def files_of(folder: Path) -> dict[str, bytes]:
    """Everything but the indexes of the active segment, which are as long as they may grow, and marks of what is yet
    to be flushed."""
    active = max(path.stem for path in folder.glob("*.log"))
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if not (path.stem == active and path.suffix in (".index", ".timeindex")) and path.suffix != ".unflushed"
    }
