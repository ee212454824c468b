"""A group of the consumer protocol outlives a change of brokers: one writes its records, and the other loads them."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.compare import build, plain
from tests.contract.nodes import Ballast, KafkaWithoutTransactions, Node
from tests.contract.wire import WireClient

from ballast_wire.messages import message

PATIENCE_S = 30.0
MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS = 79, 27
JOINING = {"member_epoch": 0, "rebalance_timeout_ms": 30_000, "topic_partitions": []}


class Asker:
    def __init__(self, node: Node) -> None:
        node.await_ready()
        self._client = WireClient("localhost", node.port)

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        return plain(self._client.call(build(message(api + "Request"), fields, version), version), version)

    def until(self, reached: Callable[[Any], bool], api: str, version: int, **fields: Any) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not reached(answer := self.ask(api, version, **fields)):
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)
        return answer

    def beat(self, **fields: Any) -> Any:
        return self.until(lambda answer: answer["error_code"] == 0, "ConsumerGroupHeartbeat", 1, **fields)

    def described(self, *names: str) -> dict[str, Any]:
        answer = self.until(
            lambda answer: all(group["error_code"] == 0 for group in answer["groups"]),
            "ConsumerGroupDescribe",
            1,
            group_ids=names,
            include_authorized_operations=False,
        )
        for group in answer["groups"]:
            group["members"].sort(key=lambda member: member["member_id"])
        return {group["group_id"]: group for group in answer["groups"]}

    def close(self) -> None:
        self._client.close()


@pytest.mark.java
@pytest.mark.timeout(240)
@pytest.mark.spec("CLI-04")
@pytest.mark.parametrize(
    ("first", "second"), [(KafkaWithoutTransactions, Ballast), (Ballast, KafkaWithoutTransactions)]
)
def test_a_group_goes_on_where_it_was(tmp_path: Path, first: type[Node], second: type[Node]) -> None:
    node = first(tmp_path / "node")
    try:
        asker = Asker(node)
        new = {"name": "t", "num_partitions": 3, "replication_factor": 1, "assignments": [], "configs": []}
        asker.ask("CreateTopics", 7, topics=[new], timeout_ms=10_000, validate_only=False)
        asker.until(
            lambda answer: answer["coordinators"][0]["error_code"] == 0,
            "FindCoordinator",
            4,
            key_type=0,
            coordinator_keys=["names"],
        )
        topics = asker.until(lambda answer: bool(answer["topics"]), "Metadata", 12, topics=None)["topics"]
        topic_id = next(topic["topic_id"] for topic in topics if topic["name"] == "t")

        def owned(*numbers: int) -> list[dict[str, Any]]:
            return [{"topic_id": topic_id, "partitions": list(numbers)}]

        static = {"group_id": "names", "member_id": "m2", "instance_id": "i2"}
        asker.beat(group_id="names", member_id="m1", subscribed_topic_names=["t"], **JOINING)
        asker.beat(**static, subscribed_topic_names=["t"], **JOINING)
        asker.beat(group_id="names", member_id="m1", member_epoch=1, topic_partitions=owned(0, 1, 2))
        asker.beat(group_id="pattern", member_id="m1", subscribed_topic_regex="t.*", **JOINING)
        asker.until(
            lambda answer: answer["member_epoch"] == 2,
            "ConsumerGroupHeartbeat",
            1,
            group_id="pattern",
            member_id="m1",
            member_epoch=1,
        )
        before = asker.described("names", "pattern")
        asker.close()
        node = node.succeeded_by(second)
        asker = Asker(node)
        after = asker.described("names", "pattern")
        assert after == before
        assert [member["member_type"] for member in after["names"]["members"]] == [1, 1]
        # What was to be given back is given back, and who waits for it gets it; nobody has to join again.
        assert (
            asker.beat(group_id="names", member_id="m1", member_epoch=1, topic_partitions=owned(0, 1))["assignment"]
            is None
        )
        assert asker.beat(**static, member_epoch=2)["assignment"]["topic_partitions"] == owned(2)
        assert asker.beat(group_id="pattern", member_id="m1", member_epoch=2)["assignment"] is None
        asker.close()
    finally:
        node.stop()


class ClassicMember:
    """Of a group of the consumer protocol: it joins again whenever it is told to, with what it has."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
        self.id = ""
        self.generation = -1
        self.owned: list[int] = []

    def join(self) -> None:
        joined = self.asker.until(
            lambda answer: answer["error_code"] in (0, MEMBER_ID_REQUIRED),
            "JoinGroup",
            5,
            session_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[{"name": "cooperative-sticky", "metadata": subscription("t", self.owned)}],
            **self._named(rebalance_timeout_ms=30_000),
        )
        self.id = joined["member_id"]
        if joined["error_code"]:
            self.join()
            return
        self.generation = joined["generation_id"]
        leads = joined["leader"] == self.id and joined["members"]
        self.sync([{"member_id": self.id, "assignment": assignment("t", [0, 1])}] if leads else [])

    def sync(self, assignments: list[dict[str, Any]]) -> None:
        answer = self.asker.ask("SyncGroup", 3, assignments=assignments, **self._named(generation_id=self.generation))
        assert answer["error_code"] == 0
        self.owned = assigned(bytes.fromhex(answer["assignment"]))

    def beat(self) -> int:
        answer = self.asker.ask("Heartbeat", 4, **self._named(generation_id=self.generation))
        code: int = answer["error_code"]
        return code

    def _named(self, **more: Any) -> dict[str, Any]:
        return {"group_id": "mixed", "member_id": self.id, "group_instance_id": None} | more


def subscription(topic: str, owned: list[int]) -> bytes:
    topics = struct.pack(">i", bool(owned)) + (_topic_partitions(topic, owned) if owned else b"")
    return struct.pack(">hih", 1, 1, len(topic)) + topic.encode() + struct.pack(">i", -1) + topics


def assignment(topic: str, partitions: list[int]) -> bytes:
    return struct.pack(">hi", 0, 1) + _topic_partitions(topic, partitions) + struct.pack(">i", -1)


def _topic_partitions(topic: str, partitions: list[int]) -> bytes:
    return (
        struct.pack(">h", len(topic))
        + topic.encode()
        + struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    )


def assigned(data: bytes) -> list[int]:
    """Of one topic at most, whose name has one letter."""
    if struct.unpack_from(">i", data, 2) == (0,):
        return []
    (count,) = struct.unpack_from(">i", data, 9)
    return list(struct.unpack_from(f">{count}i", data, 13))


@pytest.mark.java
@pytest.mark.timeout(240)
@pytest.mark.spec("CLI-04")
@pytest.mark.parametrize(
    ("first", "second"), [(KafkaWithoutTransactions, Ballast), (Ballast, KafkaWithoutTransactions)]
)
def test_members_of_both_protocols_go_on(tmp_path: Path, first: type[Node], second: type[Node]) -> None:
    node = first(tmp_path / "node")
    try:
        asker = Asker(node)
        new = {"name": "t", "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
        asker.ask("CreateTopics", 7, topics=[new], timeout_ms=10_000, validate_only=False)
        asker.until(
            lambda answer: answer["coordinators"][0]["error_code"] == 0,
            "FindCoordinator",
            4,
            key_type=0,
            coordinator_keys=["mixed"],
        )
        classic = ClassicMember(asker)
        classic.join()
        assert classic.owned == [0, 1]
        asker.beat(group_id="mixed", member_id="m", subscribed_topic_names=["t"], **JOINING)
        assert classic.beat() == REBALANCE_IN_PROGRESS
        before = asker.described("mixed")["mixed"]
        assert sorted(member["member_type"] for member in before["members"]) == [0, 1]
        asker.close()
        node = node.succeeded_by(second)
        classic.asker = asker = Asker(node)
        after = asker.described("mixed")["mixed"]
        assert after == before
        while classic.beat() == REBALANCE_IN_PROGRESS:
            classic.join()
        assert len(classic.owned) == 1
        kept = {"group_id": "mixed", "member_id": "m", "rebalance_timeout_ms": -1, "topic_partitions": None}
        told = asker.until(lambda answer: answer["assignment"], "ConsumerGroupHeartbeat", 1, **kept, member_epoch=2)
        [got] = told["assignment"]["topic_partitions"]
        assert sorted(classic.owned + got["partitions"]) == [0, 1]
        # The last one that speaks the consumer protocol leaves, and the group goes back.
        asker.beat(**kept, member_epoch=-1)
        assert classic.beat() == REBALANCE_IN_PROGRESS
        classic.join()
        assert classic.owned == [0, 1]
        assert classic.beat() == 0
        asker.close()
    finally:
        node.stop()
