"""A request that failed as a whole: its answer can be read in every version, and says the error where it belongs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.contract.compare import build, plain

from ballast_broker.api.registry import BROKER_APIS
from ballast_wire.errors import ErrorCode
from ballast_wire.failures import ERROR_CODES, failure_response
from ballast_wire.messages import message

ERROR = ErrorCode.REQUEST_TIMED_OUT
SAMPLES: dict[str, dict[str, Any]] = {
    "AddPartitionsToTxn": {"v3_and_below_topics": [{"name": "t", "partitions": [3]}]},
    "AlterClientQuotas": {"entries": [{"entity": [{"entity_type": "user", "entity_name": "a"}], "ops": []}]},
    "AlterConfigs": {"resources": [{"resource_type": 2, "resource_name": "t", "configs": []}]},
    "AlterPartitionReassignments": {"topics": [{"name": "t", "partitions": [{"partition_index": 3}]}]},
    "AlterReplicaLogDirs": {"dirs": [{"path": "/d", "topics": [{"name": "t", "partitions": [3]}]}]},
    "CreatePartitions": {"topics": [{"name": "t", "count": 3}]},
    "CreateTopics": {"topics": [{"name": "t", "assignments": [], "configs": [{"name": "x", "value": "y"}]}]},
    "DeleteGroups": {"groups_names": ["t"]},
    "DeleteRecords": {"topics": [{"name": "t", "partitions": [{"partition_index": 3, "offset": 9}]}]},
    "DeleteTopics": {"topic_names": ["t"], "topics": [{"name": "t", "topic_id": UUID(int=0)}]},
    "DescribeConfigs": {"resources": [{"resource_type": 2, "resource_name": "t"}]},
    "DescribeGroups": {"groups": ["t"]},
    "DescribeProducers": {"topics": [{"name": "t", "partition_indexes": [3]}]},
    "DescribeTransactions": {"transactional_ids": ["t"]},
    "DescribeTopicPartitions": {"topics": [{"name": "t"}]},
    "ElectLeaders": {"topic_partitions": [{"topic": "t", "partitions": [3]}]},
    "FindCoordinator": {"key": "t", "coordinator_keys": ["t"]},
    "IncrementalAlterConfigs": {"resources": [{"resource_type": 2, "resource_name": "t", "configs": []}]},
    "ListOffsets": {"topics": [{"name": "t", "partitions": [{"partition_index": 3, "timestamp": -2}]}]},
    "ListPartitionReassignments": {"topics": [{"name": "t", "partition_indexes": [3]}]},
    "Metadata": {"topics": [{"name": "t", "topic_id": UUID(int=0)}]},
    "OffsetCommit": {
        "group_id": "g",
        "topics": [{"name": "t", "topic_id": UUID(int=7), "partitions": [{"partition_index": 3}]}],
    },
    "OffsetFetch": {
        "group_id": "g",
        "topics": [{"name": "t", "partition_indexes": [3]}],
        "groups": [{"group_id": "t", "topics": None}],
    },
    "OffsetForLeaderEpoch": {"topics": [{"topic": "t", "partitions": [{"partition": 3, "leader_epoch": 1}]}]},
    "WriteTxnMarkers": {"markers": [{"producer_id": 1, "topics": [{"name": "t", "partition_indexes": [3]}]}]},
    "TxnOffsetCommit": {"topics": [{"name": "t", "partitions": [{"partition_index": 3}]}]},
}  # fmt: skip
# Versions whose answer has no place for an error at all.
SILENT = {("DescribeLogDirs", 1), ("DescribeLogDirs", 2)}
EVERY = [
    (api.name, version)
    for api in BROKER_APIS.values()
    if api.name not in ("Produce", "Fetch")
    for version in range(api.lowest, api.highest + 1)
]


def failed(name: str, version: int, text: str | None = None) -> Any:
    request = build(message(name + "Request"), SAMPLES.get(name, {}), version)
    response = failure_response(name, request, version, ERROR, text)
    return plain(message(name + "Response").decode(response.encode(version=version), version=version), version)


def errors_in(value: Any) -> list[int]:
    if isinstance(value, dict):
        own = [code for name, code in value.items() if name in ERROR_CODES]
        return own + [code for each in value.values() for code in errors_in(each)]
    return [code for each in value for code in errors_in(each)] if isinstance(value, list) else []


@pytest.mark.spec("CLI-10")
@pytest.mark.parametrize(("name", "version"), EVERY)
def test_every_answer_says_the_error_and_nothing_else(name: str, version: int) -> None:
    assert set(errors_in(failed(name, version))) == (set() if (name, version) in SILENT else {ERROR})


@pytest.mark.parametrize(
    ("name", "version", "answer"),
    [
        ("ListOffsets", 7, {"throttle_time_ms": 0, "topics": [{"name": "t", "partitions": [
            {"partition_index": 3, "error_code": ERROR, "timestamp": -1, "offset": -1, "leader_epoch": -1}]}]}),
        ("DeleteRecords", 2, {"throttle_time_ms": 0, "topics": [{"name": "t", "partitions": [
            {"partition_index": 3, "low_watermark": -1, "error_code": ERROR}]}]}),
        ("AlterReplicaLogDirs", 2, {"throttle_time_ms": 0, "results": [{"topic_name": "t", "partitions": [
            {"partition_index": 3, "error_code": ERROR}]}]}),
        ("ElectLeaders", 0, {"throttle_time_ms": 0, "replica_election_results": [{"topic": "t", "partition_result": [
            {"partition_id": 3, "error_code": ERROR, "error_message": "why"}]}]}),
        ("FindCoordinator", 4, {"throttle_time_ms": 0, "coordinators": [
            {"key": "t", "node_id": -1, "host": "", "port": -1, "error_code": ERROR, "error_message": "why"}]}),
        ("OffsetFetch", 9, {"throttle_time_ms": 0, "groups": [{"group_id": "t", "topics": [], "error_code": ERROR}]}),
        ("AlterClientQuotas", 1, {"throttle_time_ms": 0, "entries": [
            {"error_code": ERROR, "error_message": "why", "entity": [{"entity_type": "user", "entity_name": "a"}]}]}),
        ("AddPartitionsToTxn", 3, {"throttle_time_ms": 0, "results_by_topic_v3_and_below": [
            {"name": "t", "results_by_partition": [{"partition_index": 3, "partition_error_code": ERROR}]}]}),
        ("EndTxn", 5, {"throttle_time_ms": 0, "error_code": ERROR, "producer_id": -1, "producer_epoch": -1}),
        ("CreateTopics", 4, {"throttle_time_ms": 0, "topics": [
            {"name": "t", "error_code": ERROR, "error_message": "why"}]}),
    ],
)  # fmt: skip
def test_the_shape_is_kafkas(name: str, version: int, answer: Any) -> None:
    assert failed(name, version, "why") == answer


def test_a_request_that_could_not_be_read_has_an_answer_still() -> None:
    assert failure_response("Metadata", None, 9, ERROR, None).topics == []
