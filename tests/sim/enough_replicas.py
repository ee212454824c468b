"""Checks that what is committed is on as many replicas as `min.insync.replicas` asks for, even if none is ever missed.

If only the ISR may lead, a replica that committed alone leads again and has everything: nothing is lost, so no other
check would notice. Checked each time a high watermark has moved. A replica that is down or offline has at most what
existed when that was first seen; one whose log was replaced since the last check may have anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.sim.checkers import Broken
from tests.sim.machine import Machine

from ballast_broker.replication.replica import Replica
from ballast_broker.storage.log import Log
from ballast_wire.names import TopicPartition


class Led(NamedTuple):
    """A partition as its leader knows it."""

    epoch: int
    high_watermark: int
    least: int


class EnoughReplicas:
    """The check; it remembers what it saw the last time."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self._partitions = tuple(partitions)
        self._logs: dict[tuple[int, TopicPartition], Log | None] = {}
        self._at_most: dict[tuple[int, TopicPartition], int] = {}
        self._led: dict[tuple[int, TopicPartition], Led] = {}

    def check(self, machines: Sequence[Machine]) -> None:
        for partition in self._partitions:
            replicas = {machine.node_id: _replica(machine, partition) for machine in machines}
            ends = self._ends(partition, replicas)
            for node_id, replica in replicas.items():
                self._check(node_id, partition, replica, ends)

    def _ends(self, partition: TopicPartition, replicas: dict[int, Replica | None]) -> dict[int, float]:
        """The greatest log end offset that each replica may have."""
        logs = {node_id: _log(replica) for node_id, replica in replicas.items()}
        longest = max((log.log_end_offset for log in logs.values() if log is not None), default=0)
        ends: dict[int, float] = {}
        for node_id, log in logs.items():
            place = node_id, partition
            changed = log is not self._logs.get(place)
            self._logs[place] = log
            if log is None:
                if changed or place not in self._at_most:
                    self._at_most[place] = longest
                ends[node_id] = self._at_most[place]
            else:
                ends[node_id] = math.inf if changed else log.log_end_offset
        return ends

    def _check(self, node_id: int, partition: TopicPartition, replica: Replica | None, ends: dict[int, float]) -> None:
        before = self._led.pop((node_id, partition), None)
        if replica is None or not replica.state.is_leader:
            return
        state = replica.state
        now = Led(state.leader_epoch, state.high_watermark, min(state.min_insync_replicas, len(state.replicas)))
        self._led[node_id, partition] = now
        if before is None or before.epoch != now.epoch or now.high_watermark == before.high_watermark:
            return
        have = [other for other, end in ends.items() if end >= now.high_watermark]
        if len(have) < min(before.least, now.least):
            raise Broken(
                f"enough replicas have what is committed: {partition} up to {now.high_watermark} by {node_id}: {ends}"
            )


def _replica(machine: Machine, partition: TopicPartition) -> Replica | None:
    broker = None if machine.process is None else machine.process.node.broker
    return None if broker is None else broker.replicas.find(partition)


def _log(replica: Replica | None) -> Log | None:
    return None if replica is None or replica.offline else replica.log
