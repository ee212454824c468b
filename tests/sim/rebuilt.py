"""Checks that a process that started now, on a copy of a log's files, would recover the state that the log has."""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.sim.checkers import Broken
from tests.sim.disk import Folder, Inode, SimDisk, Store
from tests.sim.machine import Machine

from ballast_broker.storage.context import LogContext
from ballast_broker.storage.loading import load_log
from ballast_broker.storage.log import Log
from ballast_wire.names import TopicPartition

PATH = "/copy"


class Known(NamedTuple):
    """The state of one producer, as far as producer snapshots keep it."""

    epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_offset: int
    open_since: int  # the first offset of its open transaction; -1 if there is none


def known(log: Log) -> dict[int, Known]:
    return {
        producer_id: Known(
            state.epoch, state.coordinator_epoch, state.last_sequence, state.last_offset, state.current_txn_first_offset
        )
        for producer_id, state in log.producers.items()
    }


def at_rest(machine: Machine, partition: TopicPartition) -> Log | None:
    """The log of a running machine; None if it has none, or if it is offline or being written to."""
    log = None if machine.process is None else machine.process.node.logs.get(partition)
    return None if log is None or log.closed or not log.directory.online or log.write_in_progress else log


def check_rebuilt(machine: Machine, log: Log) -> None:
    partition = log.topic_partition
    folder = machine.store.find(log.folder.path)
    assert isinstance(folder, Folder), f"{machine.host} has no {log.folder.path}"
    store = Store(random.Random(0), machine.clock.wall_ms)
    copied = store.root.entries[PATH[1:]] = Folder()
    for name, inode in folder.entries.items():
        assert isinstance(inode, Inode)
        copied.entries[name] = Inode(bytearray(inode.data), inode.size)
    found = load_log(
        LogContext(SimDisk(store), machine.clock), log.directory, PATH, partition, log.config,
        clean=False, recovery_point=log.recovery_point, start_offset=log.log_start_offset,
    )  # fmt: skip
    if found.log_end_offset != log.log_end_offset or known(found) != known(log):
        raise Broken(
            f"what a restart finds is what was known: {partition} on {machine.host} ends at {log.log_end_offset} "
            f"with {known(log)}, found {found.log_end_offset} with {known(found)}"
        )
