"""What is asked of a controller goes in requests that it takes, however much there is to ask.

A controller of Apache Kafka refuses a request as a whole when it would make more than 10,000 records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace as Row
from typing import Any, cast

import pytest
from kafka.errors import kafka_errors

from ballast_operator.apply.kafka import alter_configs, alter_reassignments, create_partitions
from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.model.actions import AlterConfig, AlterReplicas, ExpandTopic
from ballast_operator.model.kafka import TOPIC, TopicPartition
from ballast_operator.observe import error_name
from ballast_wire.errors import ErrorCode

MOST_RECORDS = 10_000


class Controller:
    """Takes what it is sent apart, and says how many records each request makes."""

    def __init__(self, records: Callable[[Any], int], answer: Callable[[Any], Any]) -> None:
        self._records = records
        self._answer = answer
        self.sizes: list[int] = []

    async def send_to_controller(self, request: Any, _: object) -> Any:
        self.sizes.append(self._records(request))
        return self._answer(request)

    async def send_each(self, _: object) -> dict[int, Any]:
        return {}


def check(controller: Controller, act: Callable[[KafkaConnection], Any], total: int) -> None:
    assert len(asyncio.run(act(cast(KafkaConnection, controller)))) == total
    assert max(controller.sizes) <= MOST_RECORDS
    assert len(controller.sizes) < 100


@pytest.mark.spec("OPR-05", "OPR-35")
def test_throttles_of_thousands_of_topics() -> None:
    lists = {"leader.replication.throttled.replicas": "0:1", "follower.replication.throttled.replicas": "0:2"}
    actions = [AlterConfig(TOPIC, f"topic-{index}", lists) for index in range(6_000)]
    controller = Controller(
        lambda request: sum(len(row.configs) for row in request.resources),
        lambda request: Row(
            responses=[
                Row(resource_name=row.resource_name, error_code=0, error_message=None) for row in request.resources
            ]
        ),
    )
    check(controller, lambda kafka: alter_configs(kafka, actions), 6_000)


@pytest.mark.spec("OPR-05", "OPR-21")
def test_expansions_of_a_batch_of_topics() -> None:
    actions = [ExpandTopic(f"topic-{index}", 100) for index in range(250)]
    controller = Controller(
        lambda request: sum(row.count for row in request.topics),
        lambda request: Row(results=[Row(name=row.name, error_code=0, error_message=None) for row in request.topics]),
    )
    check(controller, lambda kafka: create_partitions(kafka, actions), 250)


@pytest.mark.spec("OPR-05", "OPR-33")
def test_a_cancellation_of_thousands_of_moves() -> None:
    actions = [AlterReplicas(TopicPartition("orders", index), None) for index in range(12_000)]

    def answer(request: Any) -> Any:
        rows = [
            Row(
                name=topic.name,
                partitions=[
                    Row(partition_index=part.partition_index, error_code=0, error_message=None)
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return Row(error_code=0, error_message=None, responses=rows)

    controller = Controller(lambda request: sum(len(topic.partitions) for topic in request.topics), answer)
    check(controller, lambda kafka: alter_reassignments(kafka, actions), 12_000)


@pytest.mark.spec("OPR-02")
def test_errors_have_kafkas_own_names() -> None:
    """Reasons are told by them, and whether nothing was made for certain; the library has other names for some."""
    named = {int(code): error_name(int(code)) for code in ErrorCode if code and int(code) in kafka_errors}
    assert named == {code: ErrorCode(code).name for code in named}
    assert len(named) > 100
