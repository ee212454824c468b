"""AlterReplicaLogDirs as its handler answers it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ballast_broker.api import alter_replica_log_dirs
from ballast_broker.api.authorizer import CLUSTER, Operation
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message


@pytest.mark.spec("DIR-12")
async def test_who_may_not_alter_the_cluster_is_refused_for_every_partition() -> None:
    asked: list[object] = []
    broker = SimpleNamespace(replicas=SimpleNamespace(alter_replica_log_dirs=asked.append))
    kind = message("AlterReplicaLogDirsRequest")
    topics = [kind.AlterReplicaLogDir.AlterReplicaLogDirTopic(name="orders", partitions=[0, 1])]
    request = kind(dirs=[kind.AlterReplicaLogDir(path="/data/d2", topics=topics)])
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
