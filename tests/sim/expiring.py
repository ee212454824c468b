"""Brokers that forget producers soon after their transactions have ended, and go on with them.

What is written is older than that from the beginning, so that only an open transaction keeps anybody known. The
idempotent producer does nothing here: whoever is forgotten while he sends once more is there twice, as with Apache
Kafka.
"""

from __future__ import annotations

import asyncio

from tests.sim.machine import Machine
from tests.sim.near import NearRun

from ballast_wire.names import TopicPartition

FORGETTING = {"producer.id.expiration.ms": "2000", "producer.id.expiration.check.interval.ms": "500"}


class ExpiringRun(NearRun):
    def _properties(self, node_id: int) -> dict[str, str]:
        return {**super()._properties(node_id), **FORGETTING}

    def _clients(self, hosts: list[str]) -> list[asyncio.Task[None]]:
        tasks = super()._clients(hosts)
        self._idempotent.finish()
        return tasks

    def _check_rebuilt(self, machine: Machine, partition: TopicPartition) -> None:
        """A restart finds those again whom it has forgotten, until it looks for them."""
