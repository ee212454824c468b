"""AlterReplicaLogDirs as its handler answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker import turning

from ballast_broker.api import alter_replica_log_dirs
from ballast_broker.api.authorizer import CLUSTER, Operation
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition


def of_partitions(count: int) -> Any:
    kind = message("AlterReplicaLogDirsRequest")
    topics = [kind.AlterReplicaLogDir.AlterReplicaLogDirTopic(name="orders", partitions=list(range(count)))]
    return kind(dirs=[kind.AlterReplicaLogDir(path="/data/d2", topics=topics)])


@pytest.mark.spec("DIR-12")
async def test_who_may_not_alter_the_cluster_is_refused_for_every_partition() -> None:
    asked: list[object] = []
    broker = SimpleNamespace(directories=SimpleNamespace(alter=asked.append))
    request = of_partitions(2)
    context: Any = SimpleNamespace(
        authorize=lambda operation, resource: (operation, resource) != (Operation.ALTER, CLUSTER),
        broker=broker,
        version=2,
    )
    answer = await alter_replica_log_dirs.handle(request, context)
    codes = [(each.partition_index, each.error_code) for each in answer.results[0].partitions]
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert codes == [(0, refused), (1, refused)]
    assert asked == [], "nothing is done"


@pytest.mark.spec("DIR-11", "DIR-29")
async def test_a_request_for_a_whole_disk_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turning.end_at_once(monkeypatch)
    turns: list[str] = []

    def alter(entries: Mapping[TopicPartition, str]) -> dict[TopicPartition, ErrorCode]:
        turns.append("moves")
        return {each: ErrorCode.NONE if each.partition else ErrorCode.KAFKA_STORAGE_ERROR for each in entries}

    async def produce() -> None:
        while len(turns) < 100:
            turns.append("produce")
            await asyncio.sleep(0)

    context: Any = SimpleNamespace(
        authorize=lambda *_: True,
        broker=SimpleNamespace(directories=SimpleNamespace(alter=alter)),
        version=2,
    )
    producing = asyncio.create_task(produce())
    answer = await alter_replica_log_dirs.handle(of_partitions(200), context)
    producing.cancel()
    codes = [(each.partition_index, each.error_code) for each in answer.results[0].partitions]
    assert codes == [(0, ErrorCode.KAFKA_STORAGE_ERROR), *((number, ErrorCode.NONE) for number in range(1, 200))]
    assert turns[:20] == ["produce", "moves"] * 10
