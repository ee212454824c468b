"""Controllers that vote come and go with Apache Kafka's own tools, unchanged, on real processes that are killed too."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from e2e.processes import free_ports
from tests.apache_java import java
from tests.broker.controller.test_apache_tools import dump
from tests.clients.running import RunningBroker
from tests.clients.test_java_tools import TOOLS, run
from tests.docs.commands import to_type
from tests.waiting import eventually

pytestmark = [pytest.mark.java, pytest.mark.timeout(400), pytest.mark.spec("CLU-05")]

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
FORMATTED = "00000000000000000000-0000000000.checkpoint"


class Quorum:
    """Nodes that are brokers and controllers; each may vote."""

    def __init__(self, folder: Path) -> None:
        self.nodes: dict[int, RunningBroker] = {}
        self.ports = dict(enumerate(free_ports(6)))
        self._folder = folder

    def node(self, number: int, **more: str) -> RunningBroker:
        client, controller = self.ports[2 * number - 2], self.ports[2 * number - 1]
        # Who founds a quorum waits for all that are named: they could know of another one.
        founds = "controller_quorum_standalone" in more
        servers = ",".join(f"127.0.0.1:{self.ports[each]}" for each in ((1,) if founds else (1, 3, 5)))
        listeners = f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}"
        properties: dict[str, str] = {
            "node_id": str(number),
            "process_roles": "broker,controller",
            "cluster_id": CLUSTER_ID,
            "controller_listener_names": "CONTROLLER",
            "listeners": listeners,
            "advertised_listeners": listeners,
            "controller_quorum_bootstrap_servers": servers,
        }
        self.nodes[number] = RunningBroker(self._folder / f"node-{number}", **(properties | more))
        return self.nodes[number]

    def file(self, number: int) -> Path:
        return self.nodes[number].folder / "server.properties"

    def directory(self, number: int) -> str:
        text = (self.nodes[number].log_dirs[0] / "meta.properties").read_text()
        found = re.search(r"^directory\.id=(\S+)$", text, re.MULTILINE)
        assert found
        return found[1]

    def metadata(self, number: int) -> Path:
        return self.nodes[number].log_dirs[0] / "__cluster_metadata-0"

    def at(self, number: int) -> tuple[str, str]:
        return "--bootstrap-server", f"127.0.0.1:{self.ports[2 * number - 2]}"

    def at_controller(self, number: int) -> tuple[str, str]:
        return "--bootstrap-controller", f"127.0.0.1:{self.ports[2 * number - 1]}"

    def described(self, number: int) -> tuple[int, set[int]]:
        """Who leads and who votes, as this broker tells."""
        told = run("metadata-quorum", *self.at(number), "describe", "--status")
        leader = re.search(r"LeaderId:\s+(\d+)", told)
        voters = re.search(r"CurrentVoters:\s+(.*)", told)
        assert leader
        assert voters
        return int(leader[1]), {int(each) for each in re.findall(r'"id": (\d+)', voters[1])}

    def removal(self, number: int) -> tuple[str, ...]:
        return "remove-controller", "--controller-id", str(number), "--controller-directory-id", self.directory(number)


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[Quorum]:
    made = Quorum(tmp_path)
    yield made
    for node in made.nodes.values():
        node.kill()


def test_one_controller_becomes_three_and_one_leaves_while_its_leader_is_killed(quorum: Quorum) -> None:
    quorum.node(1, controller_quorum_standalone="true").start()
    run("topics", *quorum.at(1), "--create", "--topic", "kept")
    for number in (2, 3):
        quorum.node(number).start()
    assert quorum.described(3) == (1, {1})
    added = run("metadata-quorum", *quorum.at(3), "--command-config", quorum.file(2), "add-controller")
    assert f"Added controller 2 with directory id {quorum.directory(2)}" in added
    run("metadata-quorum", *quorum.at_controller(1), "--command-config", quorum.file(3), "add-controller")
    assert quorum.described(2) == (1, {1, 2, 3})
    again = run("metadata-quorum", *quorum.at(1), "--command-config", quorum.file(3), "add-controller", code=1)
    assert "already part of the set of voters" in again

    command = java(TOOLS["metadata-quorum"], *quorum.at(2))
    with subprocess.Popen([*command, *quorum.removal(1)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as tool:
        quorum.nodes[1].kill()
        tool.wait(90)
    eventually(lambda: quorum.described(2)[0] in (2, 3))
    if 1 in quorum.described(2)[1]:
        assert "Removed" in run("metadata-quorum", *quorum.at_controller(2), *quorum.removal(1))
    assert quorum.described(3)[1] == {2, 3}
    assert "Cannot remove voter" in run("metadata-quorum", *quorum.at(3), *quorum.removal(1), code=1)

    quorum.nodes[1].start()
    for number in (2, 3):
        quorum.nodes[number].kill()
        quorum.nodes[number].start()
        eventually(lambda: quorum.described(1)[1] == {2, 3})
        assert quorum.described(1)[0] in (2, 3), "the one that was removed only looks on"
    assert "kept" in run("topics", *quorum.at(1), "--list")
    records = dump(quorum.metadata(1) / "00000000000000000000.log")
    told = [each["data"]["voters"] for each in records if each["type"] == "KRaftVoters"]
    assert [[each["voterId"] for each in voters] for voters in told] == [[1], [1, 2], [1, 2, 3], [2, 3]]
    assert told[-1][0]["voterDirectoryId"] == quorum.directory(2)
    assert [each["data"] for each in records if each["type"] == "KRaftVersion"] == [{"version": 0, "kRaftVersion": 1}]


def test_a_leader_that_is_removed_hands_over_and_what_it_led_goes_on(quorum: Quorum) -> None:
    quorum.node(1, controller_quorum_standalone="true").start()
    quorum.node(2, metadata_log_max_record_bytes_between_snapshots="1").start()
    run("metadata-quorum", *quorum.at(1), "--command-config", quorum.file(2), "add-controller")
    assert "Removed" in run("metadata-quorum", *quorum.at(1), *quorum.removal(1))
    eventually(lambda: quorum.described(1) == (2, {2}))
    quorum.nodes[1].kill()
    run("topics", *quorum.at(2), "--create", "--topic", "new")
    quorum.nodes[2].kill()
    *_, snapshot = sorted(quorum.metadata(2).glob("*.checkpoint"))
    for path, voters in ((quorum.metadata(1) / FORMATTED, [1]), (snapshot, [2])):
        header = dump(path)[:3]
        assert [each["type"] for each in header] == ["SnapshotHeader", "KRaftVersion", "KRaftVoters"]
        assert [each["voterId"] for each in header[2]["data"]["voters"]] == voters
    quorum.nodes[2].start()
    assert quorum.described(2) == (2, {2})


def test_a_static_quorum_becomes_one_that_can_be_changed(quorum: Quorum) -> None:
    voters = f"1@127.0.0.1:{quorum.ports[1]}"
    quorum.node(1, controller_quorum_voters=voters).start()
    quorum.node(2).start()
    refused = run("metadata-quorum", *quorum.at(1), "--command-config", quorum.file(2), "add-controller", code=1)
    assert "kraft.version feature is 0" in refused
    run("features", *quorum.at(1), "upgrade", "--feature", "kraft.version=1")
    assert re.search(r"kraft.version.*FinalizedVersionLevel: 1", run("features", *quorum.at(2), "describe"))
    run("metadata-quorum", *quorum.at(1), "--command-config", quorum.file(2), "add-controller")
    assert quorum.described(1) == (1, {1, 2})
    refused = run("features", *quorum.at(1), "downgrade", "--feature", "kraft.version=0", code=1)
    assert "downgrade" in refused
    for number in (1, 2):
        quorum.nodes[number].kill()
        quorum.nodes[number].start()  # the one with the property that names one voter
    eventually(lambda: quorum.described(1)[1] == {1, 2})


def formatted(quorum: Quorum, number: int, *how: str) -> RunningBroker:
    node = quorum.node(number)
    node.folder.mkdir(parents=True)
    file = quorum.file(number)
    file.write_text("".join(f"{name}={value}\n" for name, value in node._properties.items()))
    tool = java("kafka.tools.StorageTool", "format", *how, "-t", CLUSTER_ID, "-c", file)
    subprocess.run(tool, check=True, timeout=60, capture_output=True)
    return node


def test_what_kafkas_own_tool_formats_is_taken(quorum: Quorum) -> None:
    """`kafka-storage format --standalone`: no property says that this node founds the quorum."""
    formatted(quorum, 1, "--standalone").start()
    assert quorum.described(1) == (1, {1})
    assert quorum.directory(1) in run("metadata-quorum", *quorum.at(1), "describe", "--status")


def test_a_voter_that_moves_says_so(quorum: Quorum) -> None:
    """Restarted elsewhere, it tells the leader where it is to be found now."""
    quorum.node(1, controller_quorum_standalone="true").start()
    quorum.node(2).start()
    run("metadata-quorum", *quorum.at(1), "--command-config", quorum.file(2), "add-controller")
    quorum.nodes[2].stop()
    quorum.ports[3] = free_ports(1)[0]
    quorum.node(2).start()
    moved = f"CONTROLLER://127.0.0.1:{quorum.ports[3]}"
    eventually(lambda: moved in run("metadata-quorum", *quorum.at(1), "describe", "--status"))


def test_voters_are_changed_as_the_page_says(quorum: Quorum) -> None:
    describe, add, remove, upgrade = to_type(
        "tests/clients/test_changing_voters.py::test_voters_are_changed_as_the_page_says"
    )
    quorum.node(1, controller_quorum_voters=f"1@127.0.0.1:{quorum.ports[1]}").start()
    quorum.node(2).start()

    def typed(command: str) -> str:
        program, *words = command.split()
        words = [
            {"HOST:PORT": quorum.at(1)[1], "NEW.properties": str(quorum.file(2)), "ID": "2"}.get(word, word)
            for word in words
        ]
        words = [quorum.directory(2) if word == "DIRECTORY" else word for word in words]
        return run(program.removeprefix("kafka-").removesuffix(".sh"), *words)

    typed(upgrade)
    assert "Added controller 2" in typed(add)
    assert quorum.directory(2) in typed(describe)
    assert "Removed" in typed(remove)
    assert quorum.described(1)[1] == {1}


def test_what_kafkas_own_tool_formats_for_several_is_taken(quorum: Quorum) -> None:
    """`--initial-controllers`: both are voters from the first moment on, each by the directory id that it was given."""
    directories = {1: "AAAAAAAAAAAAAAAAAABlAA", 2: "AAAAAAAAAAAAAAAAAABmAA"}
    initial = ",".join(f"{n}@127.0.0.1:{quorum.ports[2 * n - 1]}:{each}" for n, each in directories.items())
    for number in directories:
        formatted(quorum, number, "--initial-controllers", initial)
    with ThreadPoolExecutor(2) as starting:  # each waits for the other
        list(starting.map(lambda number: quorum.nodes[number].start(), directories))
    assert quorum.described(1)[1] == {1, 2}
    assert [quorum.directory(number) for number in directories] == list(directories.values())
