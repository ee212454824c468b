"""Thousands of logs are closed and made durable with few commits of the file system's journal."""

from __future__ import annotations

import errno

import pytest
from tests.broker.storage.conftest import NOW_MS, TOPIC_ID, Bench

from ballast_broker.config.logs import LogConfig
from ballast_broker.storage.closing import CLOSED_AT_ONCE, close_logs
from ballast_broker.storage.disk import RealDisk, RealFile
from ballast_broker.storage.loading import create_log
from ballast_broker.storage.log import Log
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch


def logs_with_a_record(bench: Bench, count: int) -> list[Log]:
    made = []
    for number in range(count):
        partition = TopicPartition("topic", number)
        folder = str(bench.root / str(partition))
        made.append(create_log(bench.context, bench.directory, folder, partition, TOPIC_ID, LogConfig()))
        made[-1].append_as_leader(encode_batch([Record(None, b"v", NOW_MS)]), 1, now_ms=NOW_MS)
    bench.opened += made
    return made


@pytest.mark.spec("LOG-33")
@pytest.mark.parametrize(("count", "whole"), [(3, 0), (CLOSED_AT_ONCE + 1, 1)])
async def test_many_logs_are_written_back_together_and_each_is_durable(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, count: int, whole: int
) -> None:
    events: list[str] = []
    sync, write_back = RealFile.sync, RealDisk.write_back

    def noted(file: RealFile) -> None:
        events.append("sync")
        sync(file)

    def all_noted(disk: RealDisk, path: str) -> None:
        events.append("all")
        write_back(disk, path)

    monkeypatch.setattr(RealFile, "sync", noted)
    monkeypatch.setattr(RealDisk, "write_back", all_noted)
    logs = logs_with_a_record(bench, count)
    events.clear()
    await close_logs(bench.directory, logs, bench.disk)
    assert events.count("all") == whole
    assert events.count("sync") >= count
    assert events.index("sync") == whole  # what is synced is already on the disk
    assert all(log.closed and log.recovery_point == log.end_offset == 1 for log in logs)


@pytest.mark.spec("LOG-33")
async def test_a_disk_that_fails_meanwhile_takes_its_directory_offline(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(disk: RealDisk, path: str) -> None:
        raise OSError(errno.EIO, "EIO", path)

    monkeypatch.setattr(RealDisk, "write_back", fail)
    logs = logs_with_a_record(bench, CLOSED_AT_ONCE + 1)
    await close_logs(bench.directory, logs, bench.disk)
    assert not bench.directory.online
    assert all(log.recovery_point == 0 for log in logs)
