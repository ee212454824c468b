"""A group of the consumer protocol outlives a change of brokers: one writes its records, and the other loads them."""

from __future__ import annotations

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

    def described(self) -> dict[str, Any]:
        answer = self.until(
            lambda answer: all(group["error_code"] == 0 for group in answer["groups"]),
            "ConsumerGroupDescribe",
            1,
            group_ids=["names", "pattern"],
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
        before = asker.described()
        asker.close()
        node = node.succeeded_by(second)
        asker = Asker(node)
        after = asker.described()
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
