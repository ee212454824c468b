"""Runs in which brokers expire producer ids soon after their transactions have ended, while the producers go on.

The timestamps of all records are older than that, so only an open transaction keeps a producer's state. The idempotent
producer is stopped: a retry after its state has expired would write its records twice, as with Apache Kafka.
"""

from __future__ import annotations

import asyncio

from tests.sim.follower_fetching import FollowerFetchingRun
from tests.sim.machine import Machine

from ballast_wire.names import TopicPartition

FORGETTING = {"producer.id.expiration.ms": "2000", "producer.id.expiration.check.interval.ms": "500"}


class ExpiringRun(FollowerFetchingRun):
    def _properties(self, node_id: int) -> dict[str, str]:
        return {**super()._properties(node_id), **FORGETTING}

    def _clients(self, hosts: list[str]) -> list[asyncio.Task[None]]:
        tasks = super()._clients(hosts)
        self._idempotent.finish()
        return tasks

    def _check_rebuilt(self, machine: Machine, partition: TopicPartition) -> None:
        """Not checked: a restart recovers expired producers, until the next expiration check."""
