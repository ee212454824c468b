"""Directories that really fail, below real brokers: full, read-only, pulled out, lying about durability, EIO."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from e2e import disks, moving
from e2e.clients import QUIET, value_of
from e2e.move_soak import LOG_DIRS_RATE
from tests.moves.brokers import PATIENCE_S, Brokers, eventually, metric

from ballast_wire.errors import ErrorCode

pytestmark = [pytest.mark.disks, pytest.mark.timeout(300)]
MIB = 1 << 20
BRIEF_MS = 3000
CALM = {"log_flush_offset_checkpoint_interval_ms": "500", "replica_high_watermark_checkpoint_interval_ms": "500"}


@pytest.fixture(autouse=True)
def _able() -> None:
    missing = disks.why_not()
    if missing:
        pytest.skip(missing)


@pytest.fixture
def mounts() -> Iterator[ExitStack]:
    """What is mounted by a test is unmounted after its brokers have ended."""
    with ExitStack() as stack:
        yield stack


HOLDING = """
import sys, time
from pathlib import Path
from e2e.disks import MIB, FaultyMount, LoopDisk, ThinDisk
place = Path(sys.argv[1])
with (
    FaultyMount(place / "faulty", place / "behind") as faulty, LoopDisk(place / "loop", place / "image", 8 * MIB),
    ThinDisk(place / "thin", place / "below", 8 * MIB, 4 * MIB),
):
    faulty.fail("HUNG")
    print(faulty._process.pid, flush=True)
    time.sleep(60)
"""


def test_disks_of_who_is_killed_are_gone(tmp_path: Path) -> None:
    """The process that answers for the disk lived on, and what was mounted stayed so until somebody found it."""
    command = [sys.executable, "-c", HOLDING, str(tmp_path)]
    with subprocess.Popen(command, cwd=disks.ROOT, stdout=subprocess.PIPE, env=os.environ) as holding:
        assert holding.stdout is not None
        answering = Path(f"/proc/{int(holding.stdout.readline())}")
        assert str(tmp_path) not in Path("/proc/self/mounts").read_text(), "nobody else sees them"
        holding.kill()
    eventually(lambda: not answering.exists())
    eventually(lambda: str(tmp_path) not in disks.run("losetup", "--list", "--noheadings", "--output", "BACK-FILE"))


class Writer:
    """Numbers into one partition; remembers which of them were acknowledged."""

    def __init__(self, brokers: Brokers, topic: str, partition: int = 0, key: bytes | None = None) -> None:
        settings = {**QUIET, "bootstrap.servers": brokers.bootstrap, "linger.ms": 1}
        self._patient = Producer({**settings, "message.timeout.ms": int(PATIENCE_S * 1000)})
        self._brief = Producer({**settings, "message.timeout.ms": BRIEF_MS})
        self._brokers = brokers
        self._topic, self._partition, self._key = topic, partition, key
        self._next = 0
        self.acknowledged: list[int] = []

    def write(self, count: int, size: int = 1000) -> bool:
        """Whether all of them were acknowledged, however slow the machine is."""
        return self._send(self._patient, count, size)

    def write_briefly(self, count: int, size: int = 1000) -> bool:
        """For what shall fail: whether all of them were acknowledged soon. A machine that stalls looks the same."""
        return self._send(self._brief, count, size)

    def _send(self, producer: Producer, count: int, size: int) -> bool:
        before = len(self.acknowledged)
        for number in range(self._next, self._next + count):
            value = str(number).zfill(10).encode() + bytes(size - 10)
            producer.produce(self._topic, value, self._key, partition=self._partition, on_delivery=self._answered)
            producer.poll(0)
        self._next += count
        producer.flush(PATIENCE_S)
        return len(self.acknowledged) - before == count

    def _answered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append(int(value_of(message)[:10]))

    def read(self) -> list[int]:
        """What a consumer is given from the beginning to the end."""
        consumer = Consumer({**QUIET, "bootstrap.servers": self._brokers.bootstrap, "group.id": "reader"})
        place = TopicPartition(self._topic, self._partition, 0)
        try:
            _, end = consumer.get_watermark_offsets(place, PATIENCE_S)
            consumer.assign([place])
            found: list[int] = []
            eventually(lambda: _take(consumer, found) >= end, f"{end} records are read")
            return found
        finally:
            consumer.close()

    def everything_is_there(self) -> None:
        found = self.read()
        assert len(found) == len(set(found)), "nothing twice"
        missing = set(self.acknowledged) - set(found)
        assert not missing, f"{len(missing)} acknowledged records are gone"


def _take(consumer: Consumer, found: list[int]) -> int:
    found += [int(value_of(message)[:10]) for message in consumer.consume(1000, 0.1) if message.error() is None]
    return len(found)


def arrived(brokers: Brokers, node_id: int, topic: str, directory: object) -> None:
    """The topic exists before its replicas' folders do."""
    eventually(lambda: brokers.directory_of(node_id, topic, 0) is not None, f"broker {node_id} has {topic}")
    assert brokers.directory_of(node_id, topic, 0) == str(directory)


def prefer(brokers: Brokers, node_id: int, topic: str, directory: Path) -> None:
    """Where a replica shall be when it is created (DIR-13)."""
    answer = moving.alter_log_dirs(brokers[node_id].address, {(topic, 0): str(directory)})
    assert answer == {(topic, 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}  # remembered all the same


def two_topics(brokers: Brokers, broken: Path, healthy: Path, node_id: int = 0) -> tuple[Writer, Writer]:
    """One topic in each directory of the broker."""
    for topic, directory in (("broken", broken), ("healthy", healthy)):
        prefer(brokers, node_id, topic, directory)
        brokers.create(topic, [[node_id]], segment_bytes="1048576")
        arrived(brokers, node_id, topic, directory)
    writers = Writer(brokers, "broken"), Writer(brokers, "healthy")
    assert all(writer.write(100) for writer in writers)
    return writers


def offline_seen(brokers: Brokers, node_id: int, directory: Path) -> bool:
    found = {each.path: each.error for each in moving.describe_log_dirs(brokers[node_id].address)}
    return found[str(directory)] == ErrorCode.KAFKA_STORAGE_ERROR


def started(mounts: ExitStack, folder: Path, count: int = 1, **properties: str) -> Brokers:
    return mounts.enter_context(Brokers(folder, count, range(count), metrics_port="0", **CALM, **properties))


def until_offline(brokers: Brokers, directory: Path, writer: Writer, count: int) -> None:
    """Write until the disk takes no more and the broker has seen it."""
    eventually(
        lambda: not writer.write_briefly(count) and offline_seen(brokers, 0, directory), f"{directory} takes no more"
    )


def fails_alone(brokers: Brokers, directory: Path, broken: Writer, healthy: Writer, node_id: int = 0) -> None:
    """Offline for everybody to see, and the partitions of the other directory never noticed."""
    eventually(lambda: offline_seen(brokers, node_id, directory), f"{directory} is offline")
    assert not broken.write_briefly(1)
    assert healthy.write(200)
    healthy.everything_is_there()
    assert brokers[node_id].is_running


def make_durable(brokers: Brokers) -> None:
    """With one replica, only what was flushed is safe from a disk that fails."""
    brokers[0].stop()
    brokers[0].start()
    brokers[0].wait_ready()


def comes_back(brokers: Brokers, directory: Path, broken: Writer, healthy: Writer, node_id: int = 0) -> None:
    brokers[node_id].start()
    brokers[node_id].wait_ready()
    eventually(lambda: not offline_seen(brokers, node_id, directory), f"{directory} is back")
    eventually(lambda: broken.write(10), "it serves again")
    for writer in (broken, healthy):
        writer.everything_is_there()


@pytest.mark.spec("DIR-42", "DIR-41", "DIR-45")
def test_a_full_disk(mounts: ExitStack, tmp_path: Path) -> None:
    folder = tmp_path / "brokers"
    disk = mounts.enter_context(disks.LoopDisk(folder / "broker-0" / "b", tmp_path / "image", 24 * MIB))
    brokers = started(mounts, folder)
    broken, healthy = two_topics(brokers, disk.path, brokers[0].volumes[0])
    filler = disk.path / "filler"
    filler.write_bytes(bytes(8 * MIB))
    until_offline(brokers, disk.path, broken, 2000)
    fails_alone(brokers, disk.path, broken, healthy)
    offline = metric(brokers[0], "ballast_log_dir_offline")
    assert [line for line in offline if line.endswith((" 1", " 1.0"))] == [line for line in offline if '/b"' in line]
    brokers[0].stop()
    filler.unlink()
    comes_back(brokers, disk.path, broken, healthy)


@pytest.mark.spec("LOG-26", "DIR-42")
def test_compaction_waits_for_room_on_a_disk_that_is_nearly_full(mounts: ExitStack, tmp_path: Path) -> None:
    folder = tmp_path / "brokers"
    disk = mounts.enter_context(disks.LoopDisk(folder / "broker-0" / "b", tmp_path / "image", 24 * MIB))
    brokers = started(mounts, folder, log_cleaner_backoff_ms="100", ballast_log_dir_reserve_bytes=str(2 * MIB))
    prefer(brokers, 0, "compacted", disk.path)
    brokers.create(
        "compacted", [[0]], segment_bytes="1048576", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01",
        min_compaction_lag_ms="3600000",
    )  # fmt: skip
    arrived(brokers, 0, "compacted", disk.path)
    writer = Writer(brokers, "compacted", key=b"the same")
    assert writer.write(4000)
    filler = disk.path / "filler"
    # Less than the reserve: how small the oldest segment is depends on how the producer filled its batches.
    filler.write_bytes(bytes(shutil.disk_usage(disk.path).free - MIB))
    # Else the cleaner might go by what was free before.
    eventually(lambda: free_seen(brokers, disk.path) < 2 * MIB, "the broker knows of the filler")
    may_be_compacted(brokers, "compacted")
    eventually(lambda: cleaner(brokers, "uncleanable_partitions") == 1, "it is left alone, visibly")
    assert cleaner(brokers, "passes_total") == 0
    assert not offline_seen(brokers, 0, disk.path)
    assert writer.write(1)
    filler.unlink()
    eventually(lambda: cleaner(brokers, "uncleanable_partitions") == 0, "it is compacted")
    assert cleaner(brokers, "passes_total") == 1
    consumer = Consumer({**QUIET, "bootstrap.servers": brokers.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition("compacted", 0, 0)])
    found: list[int] = []
    eventually(lambda: bool(_take(consumer, found)) and found[-1] == writer.acknowledged[-1], "the newest is there")
    consumer.close()
    assert len(found) < len(writer.acknowledged)


def may_be_compacted(brokers: Brokers, topic: str) -> None:
    """At once: until now its records were too young."""
    admin = AdminClient({**QUIET, "bootstrap.servers": brokers.bootstrap})
    entry = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([wanted])[wanted].result(PATIENCE_S)


def free_seen(brokers: Brokers, directory: Path) -> float:
    """In bytes, as far as the broker knows."""
    lines = [line for line in metric(brokers[0], "ballast_log_dir_") if f'"{directory}"' in line]
    found = {line.split("{")[0]: float(line.split()[-1]) for line in lines}
    return found["ballast_log_dir_total_bytes"] - found["ballast_log_dir_used_bytes"]


def cleaner(brokers: Brokers, name: str) -> float:
    return sum(float(line.split()[-1]) for line in metric(brokers[0], f"ballast_cleaner_{name}"))


@pytest.mark.spec("DIR-41")
def test_a_disk_goes_read_only(mounts: ExitStack, tmp_path: Path) -> None:
    folder = tmp_path / "brokers"
    disk = mounts.enter_context(disks.LoopDisk(folder / "broker-0" / "b", tmp_path / "image", 64 * MIB))
    brokers = started(mounts, folder)
    broken, healthy = two_topics(brokers, disk.path, brokers[0].volumes[0])
    make_durable(brokers)
    disk.go_read_only()
    until_offline(brokers, disk.path, broken, 1)
    fails_alone(brokers, disk.path, broken, healthy)
    brokers[0].stop()
    disk.repair()
    comes_back(brokers, disk.path, broken, healthy)


@pytest.mark.spec("DIR-41")
def test_a_disk_is_pulled_out(mounts: ExitStack, tmp_path: Path) -> None:
    """Nobody writes: the broker finds out by itself."""
    folder = tmp_path / "brokers"
    disk = mounts.enter_context(disks.LoopDisk(folder / "broker-0" / "b", tmp_path / "image", 64 * MIB))
    brokers = started(mounts, folder)
    broken, healthy = two_topics(brokers, disk.path, brokers[0].volumes[0])
    make_durable(brokers)
    disk.pull_out()
    fails_alone(brokers, disk.path, broken, healthy)
    brokers[0].stop()
    disk.repair()
    comes_back(brokers, disk.path, broken, healthy)


@pytest.mark.spec("DIR-41", "LOG-30")
def test_a_disk_that_lies_is_found_out_when_it_is_flushed(mounts: ExitStack, tmp_path: Path) -> None:
    folder = tmp_path / "brokers"
    disk = mounts.enter_context(
        disks.ThinDisk(folder / "broker-0" / "b", tmp_path / "below", size_bytes=256 * MIB, real_bytes=20 * MIB)
    )
    brokers = started(mounts, folder)
    broken, healthy = two_topics(brokers, disk.path, brokers[0].volumes[0])
    until_offline(brokers, disk.path, broken, 5000)
    fails_alone(brokers, disk.path, broken, healthy)
    brokers[0].stop()


@pytest.mark.spec("DIR-41", "CLU-10", "REP-13")
def test_leaders_move_away_from_a_failed_directory_only(mounts: ExitStack, tmp_path: Path) -> None:
    folder = tmp_path / "brokers"
    disk = mounts.enter_context(disks.FaultyMount(folder / "broker-1" / "b", tmp_path / "behind"))
    brokers = started(mounts, folder, 2)
    healthy_directory = brokers[1].volumes[0]
    for topic, directory in (("broken", disk.path), ("healthy", healthy_directory)):
        prefer(brokers, 1, topic, directory)
        brokers.create(topic, [[1, 0]])
        arrived(brokers, 1, topic, directory)
    broken, healthy = Writer(brokers, "broken"), Writer(brokers, "healthy")
    assert broken.write(100)
    assert healthy.write(100)
    disk.fail("EIO")
    assert broken.write(100), "the client is led to the other replica"
    assert brokers.metadata("broken")[0].leader == 0
    assert brokers.metadata("broken")[0].isrs == [0]
    assert brokers.metadata("healthy")[0].leader == 1
    assert offline_seen(brokers, 1, disk.path)
    disk.heal()
    brokers[1].stop()
    brokers[1].start()
    brokers[1].wait_ready()
    eventually(lambda: brokers.in_sync("broken"), "both replicas are in sync again")
    for writer in (broken, healthy):
        assert writer.write(10)
        writer.everything_is_there()


@pytest.mark.spec("DIR-43", "DIR-41")
@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EROFS"])
def test_the_destination_of_a_move_fails(mounts: ExitStack, tmp_path: Path, error: str) -> None:
    folder = tmp_path / "brokers"
    disk = mounts.enter_context(disks.FaultyMount(folder / "broker-0" / "b", tmp_path / "behind"))
    brokers = started(mounts, folder)
    moving.configure_broker(brokers[0].address, 0, {LOG_DIRS_RATE: "100000"})  # it is under way when the disk fails
    prefer(brokers, 0, "moving", brokers[0].volumes[0])
    brokers.create("moving", [[0]], segment_bytes="1048576")
    writer = Writer(brokers, "moving")
    assert writer.write(6000)
    assert moving.alter_log_dirs(brokers[0].address, {("moving", 0): str(disk.path)}) == {("moving", 0): 0}
    eventually(lambda: any(path.stat().st_size for path in disk.path.glob("*-future/*.log")), "it has begun")
    disk.fail(error)
    eventually(lambda: offline_seen(brokers, 0, disk.path), "the failure is visible")
    eventually(lambda: not futures_told(brokers, 0), "the copy is given up")
    assert writer.write(100)
    writer.everything_is_there()
    assert brokers.directory_of(0, "moving", 0) == str(brokers[0].volumes[0])
    disk.heal()
    brokers[0].stop()
    brokers[0].start()
    brokers[0].wait_ready()
    assert writer.write(100)
    writer.everything_is_there()


def futures_told(brokers: Brokers, node_id: int) -> list[moving.Held]:
    told = moving.describe_log_dirs(brokers[node_id].address)
    return [held for each in told for held in each.replicas if held.is_future]


@pytest.mark.spec("DIR-41")
def test_the_last_directory_lost_stops_the_broker(mounts: ExitStack, tmp_path: Path) -> None:
    folder = tmp_path / "brokers"
    held = [
        mounts.enter_context(disks.FaultyMount(folder / "broker-1" / name, tmp_path / f"behind-{name}"))
        for name in ("a", "b", "c")
    ]
    brokers = started(mounts, folder, 2)
    brokers.create("last", [[1, 0], [1, 0], [1, 0]])
    writers = [Writer(brokers, "last", partition) for partition in range(3)]
    assert all(writer.write(50) for writer in writers)
    for disk in held[1:]:  # the first has the metadata log
        disk.fail("EIO")
        eventually(partial(offline_seen, brokers, 1, disk.path), f"{disk.path} is offline")
    assert brokers[1].is_running
    assert all(writer.write(50) for writer in writers)
    held[0].fail("EIO")
    eventually(lambda: not brokers[1].is_running, "it stopped")
    assert all(writer.write(50) for writer in writers)
    for disk in held:
        disk.heal()
    brokers[1].start()
    brokers[1].wait_ready()
    eventually(lambda: brokers.in_sync("last"), "it follows again")
    for writer in writers:
        writer.everything_is_there()


@pytest.mark.spec("DIR-41")
def test_a_directory_is_removed(mounts: ExitStack, tmp_path: Path) -> None:
    folder = tmp_path / "brokers"
    brokers = started(mounts, folder)
    directory = brokers[0].volumes[1]
    broken, healthy = two_topics(brokers, directory, brokers[0].volumes[0])
    directory.rename(tmp_path / "elsewhere")
    fails_alone(brokers, directory, broken, healthy)
    brokers[0].stop()
    (tmp_path / "elsewhere").rename(directory)
    comes_back(brokers, directory, broken, healthy)


@pytest.mark.spec("DIR-46")
def test_a_start_that_waits_for_the_metadata_logs_disk_can_be_stopped(mounts: ExitStack, tmp_path: Path) -> None:
    folder = tmp_path / "brokers"
    disk = mounts.enter_context(disks.FaultyMount(folder / "broker-0" / "a", tmp_path / "behind"))
    brokers = started(mounts, folder)
    brokers[0].stop()
    disk.fail("HUNG")
    brokers[0].start()
    says = brokers[0].folder / "output.log"
    eventually(lambda: f"log directory {disk.path} does not answer: the start waits" in says.read_text(), "it waits")
    brokers[0].stop()


@pytest.mark.spec("LOG-32")
def test_who_reads_what_is_in_no_memory_waits_alone_for_a_disk_that_does_not_answer(
    mounts: ExitStack, tmp_path: Path
) -> None:
    folder = tmp_path / "brokers"
    below = mounts.enter_context(disks.FaultyMount(tmp_path / "below", tmp_path / "behind"))
    disk = mounts.enter_context(disks.LoopDisk(folder / "broker-0" / "b", below.path / "image", 64 * MIB))
    mounts.callback(below.heal)
    brokers = started(mounts, folder)
    broken, healthy = two_topics(brokers, disk.path, brokers[0].volumes[0])
    assert broken.write(5000)
    brokers[0].stop()
    brokers[0].start()  # it remembers no place in these files
    brokers[0].wait_ready()
    for path in disk.path.glob("broken-0/0*"):
        put_out_of_memory(path)
    below.fail("HUNG")
    consumer = Consumer({**QUIET, "bootstrap.servers": brokers.bootstrap, "group.id": "reader"})
    try:
        consumer.assign([TopicPartition("broken", 0, 500)])
        assert consumer.poll(2) is None
        assert healthy.write(200)
        below.heal()
        found: list[int] = []
        eventually(lambda: _take(consumer, found) > 0, "the disk answers")
        assert found[0] == broken.acknowledged[500]
    finally:
        consumer.close()


def put_out_of_memory(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.spec("DIR-46")
def test_a_disk_that_does_not_answer_while_the_broker_starts(mounts: ExitStack, tmp_path: Path) -> None:
    folder = tmp_path / "brokers"
    disk = mounts.enter_context(disks.FaultyMount(folder / "broker-0" / "b", tmp_path / "behind"))
    brokers = started(mounts, folder)
    broken, healthy = two_topics(brokers, disk.path, brokers[0].volumes[0])
    brokers[0].stop()
    disk.fail("HUNG")
    brokers[0].start()
    brokers[0].wait_ready()
    fails_alone(brokers, disk.path, broken, healthy)
    brokers[0].stop()
    disk.heal()
    comes_back(brokers, disk.path, broken, healthy)
