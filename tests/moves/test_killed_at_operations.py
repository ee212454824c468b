"""A real broker process is killed at one file operation of a move after the other; each restart has one log.

`tests/broker/replication/test_crash_points.py` does it at every operation, in one process. Here it is at every sixth,
and everything is real.
"""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from e2e import moving
from e2e.clients import QUIET
from e2e.partition_files import Cursor, read_batches
from tests.moves.brokers import PATIENCE_S, Brokers, eventually

EVERY = 6
FEWEST_POINTS = 10
MOST_OPERATIONS = 1000
MOVED = ("moved", 0)


class Sender:
    """Sends without waiting, over restarts, and counts what was acknowledged. An idempotent producer: nothing twice."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {**QUIET, "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, "batch.size": 30_000}
        )
        self.sent = 0

    def send(self, count: int, size: int = 500) -> None:
        for _ in range(count):
            self._producer.produce("moved", str(self.sent).zfill(size), partition=0)
            self.sent += 1
        self._producer.poll(0)

    def settle(self) -> None:
        assert self.settled(PATIENCE_S), "everything is acknowledged"

    def settled(self, seconds: float = 0.1) -> bool:
        return self._producer.flush(seconds) == 0


def only_log(brokers: Brokers) -> Path:
    directory = brokers.directory_of(0, *MOVED)
    assert directory is not None, "there is a current log"
    return Path(directory) / "moved-0"


def records_on_disk(folder: Path) -> int:
    """Also that offsets have no gap and that each batch is whole."""
    cursor = Cursor()
    for _ in read_batches(folder, cursor, whole=False):
        pass
    return cursor.next_offset


@pytest.mark.disks
@pytest.mark.timeout(400)
@pytest.mark.spec("DIR-31", "DIR-29")
def test_killed_at_every_sixth_file_operation_of_a_move(tmp_path: Path) -> None:
    with Brokers(tmp_path, 1, [], log_segment_bytes="1048576", log_segment_delete_delay_ms="1000") as brokers:
        broker = brokers[0]
        broker.module = "tests.moves.killed_broker"
        points = 0
        sender: Sender | None = None
        for operations in itertools.count(0, EVERY):
            broker.environment["BALLAST_TEST_KILL_AFTER"] = str(operations)
            brokers.join(0)
            if sender is None:
                brokers.create("moved", [[0]])
                sender = Sender(brokers.bootstrap)
                sender.send(200, 20_000)
            sender.settle()
            eventually(lambda: not brokers.futures(), f"what was left at operation {operations} is resolved")
            assert records_on_disk(only_log(brokers)) == sender.sent, f"at operation {operations}"
            target = brokers.other_directory(0, *MOVED)
            sender.send(5)
            with contextlib.suppress(OSError):  # it may be gone before it can answer
                moving.alter_log_dirs(broker.address, {MOVED: target})
            sender.send(5)
            eventually(partial(has_ended, brokers, sender, target), "killed, or moved")
            if broker.is_running:
                break
            broker.kill()
            points += 1
            assert operations < MOST_OPERATIONS
        assert sender is not None
        sender.settle()
        assert points > FEWEST_POINTS, points
        assert records_on_disk(only_log(brokers)) == sender.sent


def has_ended(brokers: Brokers, sender: Sender, target: str) -> bool:
    """Killed, or everything is moved and written: what is written after the move counts, too."""
    if not brokers[0].is_running:
        return True
    moved = brokers.directory_of(0, *MOVED) == target and not brokers.futures()
    return moved and sender.settled()
