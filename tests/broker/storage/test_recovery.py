"""Recovery from every state in which a crash can leave files, with real files (LOG-40, LOG-41)."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.storage.conftest import NOW_MS, PARTITION, TOPIC_ID, Bench, ReadAll
from tests.broker.storage.managing import World
from tests.sim.disk import Crashed

from ballast_broker.config.logs import LogConfig
from ballast_broker.storage import loading, recovery
from ballast_broker.storage.checkpoint import RECOVERY_POINTS
from ballast_broker.storage.errors import CorruptFile
from ballast_broker.storage.log import Log
from ballast_broker.storage.outdated_checkpoints import effective_offsets
from ballast_broker.storage.producer_snapshots import snapshot_path
from ballast_broker.storage.slices import AppendInfo
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.records import Record, encode_batch

FIRST = "00000000000000000000"
KINDS = (".log", ".index", ".timeindex")


@pytest.fixture
def log(bench: Bench) -> Log:
    """50 batches in several segments; everything flushed up to 30."""
    log = bench.create(segment_bytes=1000, index_interval_bytes=100)
    for number in range(50):
        bench.append(log, epoch=number // 10, timestamp=bench.clock.now_ms + number)
        if number == 29:
            log.flush()
    assert log.recovery_point == 30
    assert len(log.segments) > 4
    return log


def crash(bench: Bench, log: Log) -> int:
    """End the process: close descriptors, trim and write nothing."""
    bench.release()
    return log.recovery_point


def check_whole(log: Log, read_all: ReadAll, count: int) -> None:
    assert log.log_end_offset == count
    assert [record.offset for record in read_all(log)] == list(range(count))
    assert log.epochs.entries == [(epoch, epoch * 10) for epoch in range((count + 9) // 10)]
    for offset in range(count):
        log.known_positions.clear()
        found = log.read(offset, 1, upper_offset=count)
        assert struct.unpack_from(">q", found.read())[0] == offset
        found.release()
        place = log.offset_for_timestamp(1_750_000_000_000 + offset)
        assert place is not None
        assert place[1] == offset


@pytest.mark.spec("LOG-40")
def test_a_killed_process_loses_nothing(bench: Bench, log: Log, read_all: ReadAll) -> None:
    point = crash(bench, log)
    again = bench.load(clean=False, recovery_point=point, segment_bytes=1000, index_interval_bytes=100)
    check_whole(again, read_all, 50)
    bench.append(again, epoch=5, timestamp=bench.clock.now_ms + 50)
    assert again.log_end_offset == 51


@pytest.mark.spec("LOG-40")
def test_after_a_clean_stop_nothing_is_scanned(bench: Bench, log: Log, read_all: ReadAll) -> None:
    log.close()
    bench.release()
    first = bench.folder / f"{FIRST}.log"
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data)
    again = bench.load(clean=True, recovery_point=50)
    assert again.log_end_offset == 50
    assert not [segment for segment in again.segments if segment._file]


@pytest.mark.spec("LOG-40", "CLU-11")
@pytest.mark.parametrize("is_spoilt", [False, True])
def test_who_finds_his_log_spoilt_at_its_end_after_a_clean_stop_does_not_say_that_he_has_it_all(
    bench: Bench, log: Log, is_spoilt: bool
) -> None:
    path, position = log.active.path(), log.active.size
    log.close()
    bench.release()
    with open(path, "r+b") as file:
        *_, (last, _) = log.active.batches(0, position)
        bench.release()
        file.seek(last + 8)  # its length
        file.write(bytes(1) if not is_spoilt else b"\xff")
    again = bench.load(clean=True, recovery_point=50)
    assert again.log_end_offset == (49 if is_spoilt else 50)
    assert bench.directory.lost_some is is_spoilt


@pytest.mark.spec("LOG-41")
@pytest.mark.parametrize("cut_bytes", [1, 30, 61, 62, 90])
def test_a_torn_last_batch_is_cut(bench: Bench, log: Log, read_all: ReadAll, cut_bytes: int) -> None:
    path = log.active.path()
    crash(bench, log)
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - cut_bytes)
    again = bench.load(clean=False, recovery_point=30, index_interval_bytes=100)
    assert again.log_end_offset == 49
    assert os.path.getsize(path) == again.active.size
    bench.append(again)


@pytest.mark.spec("LOG-41")
def test_a_flipped_bit_after_the_recovery_point_cuts_there_and_drops_what_follows(
    bench: Bench, log: Log, read_all: ReadAll
) -> None:
    victim = log.segments[-2]
    crash(bench, log)
    with open(victim.path(), "r+b") as file:
        file.seek(100)
        file.write(b"\xff")
    again = bench.load(clean=False, recovery_point=30, index_interval_bytes=100)
    assert again.log_end_offset == victim.base_offset + 1
    assert again.log_end_offset >= 30
    assert [record.offset for record in read_all(again)] == list(range(again.log_end_offset))
    assert len([name for name in os.listdir(bench.folder) if name.endswith(".log")]) == len(again.segments)


@pytest.mark.spec("CLU-06")
@pytest.mark.parametrize("place", [8, 100, -1])
@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_nothing_is_cut_off_a_log_of_which_there_is_no_copy(
    bench: Bench, log: Log, monkeypatch: pytest.MonkeyPatch, place: int, chunk: int
) -> None:
    """Damaged: the length of a segment's first batch, its second batch, its last one. A start drops what follows."""
    monkeypatch.setattr(recovery, "_CHUNK", chunk)
    victim = log.segments[-3]
    crash(bench, log)
    path = Path(victim.path())
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)
    before = {each.name: each.stat().st_size for each in bench.folder.glob("*.log")}
    for below in (50, log.segments[-1].base_offset):
        with pytest.raises(CorruptFile, match=rf"{victim.path()} is spoilt at byte \d+, and sound records follow"):
            bench.load(clean=False, recovery_point=30, no_copy_below=below)
        assert {each.name: each.stat().st_size for each in bench.folder.glob("*.log")} == before
    again = bench.load(clean=False, recovery_point=30, no_copy_below=victim.base_offset)
    assert again.segments[-1].base_offset == victim.base_offset


@pytest.mark.spec("LOG-41")
@pytest.mark.parametrize("kind", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "empty", "odd", "zeros", "noise"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_index_is_built_again(
    bench: Bench, log: Log, read_all: ReadAll, kind: str, damage: str, clean: bool
) -> None:
    if clean:
        log.close()
    crash(bench, log)
    for name in [name for name in os.listdir(bench.folder) if name.endswith(kind)]:
        path = bench.folder / name
        if damage == "missing":
            path.unlink()
        elif damage == "empty":
            path.write_bytes(b"")
        elif damage == "odd":
            path.write_bytes(path.read_bytes()[:13])
        elif damage == "zeros":
            path.write_bytes(bytes(240))
        else:
            path.write_bytes(b"\x7f" * 240)
    again = bench.load(clean=clean, recovery_point=30, index_interval_bytes=100)
    if clean and (kind, damage) in ((".timeindex", "noise"), (".timeindex", "zeros"), (".timeindex", "empty")):
        assert [record.offset for record in read_all(again)] == list(range(50))
        return
    check_whole(again, read_all, 50)


@pytest.mark.spec("LOG-41")
def test_an_empty_segment_is_no_obstacle(bench: Bench, log: Log, read_all: ReadAll) -> None:
    crash(bench, log)
    (bench.folder / "00000000000000000050.log").write_bytes(b"")
    again = bench.load(clean=False, recovery_point=30, index_interval_bytes=100)
    check_whole(again, read_all, 50)
    bench.append(again, epoch=5)
    assert again.log_end_offset == 51


@pytest.mark.spec("LOG-41")
def test_an_empty_folder_is_an_empty_log(bench: Bench) -> None:
    bench.folder.mkdir()
    log = bench.load(clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    bench.append(log)


@pytest.mark.spec("LOG-41")
@pytest.mark.parametrize("point", [0, 50])
@pytest.mark.parametrize("count", [1, 2])
def test_overlapping_segments_left_by_a_cleaner(
    bench: Bench, log: Log, read_all: ReadAll, point: int, count: int
) -> None:
    """The cleaned segment 0 has the contents of the first ones, of which the others are still there."""
    first, *covered = log.segments[: count + 1]
    crash(bench, log)
    with open(first.path(), "ab") as file:
        for each in covered:
            file.write(Path(each.path()).read_bytes())
    os.unlink(first.path(".index"))
    again = bench.load(clean=False, recovery_point=point, index_interval_bytes=100)
    assert [record.offset for record in read_all(again)] == list(range(50))
    assert not {each.base_offset for each in covered} & set(again.bases)


@pytest.mark.spec("LOG-41")
def test_an_overlapping_segment_that_goes_further_keeps_its_rest(bench: Bench, log: Log, read_all: ReadAll) -> None:
    first, second = log.segments[0], log.segments[1]
    crash(bench, log)
    with open(second.path(), "rb") as rest:
        batch = rest.read(100)
    size = struct.unpack_from(">i", batch, 8)[0] + 12
    with open(first.path(), "ab") as file, open(second.path(), "rb") as rest:
        file.write(rest.read(size))
    again = bench.load(clean=False, recovery_point=0, index_interval_bytes=100)
    assert [record.offset for record in read_all(again)] == list(range(50))


@pytest.mark.spec("LOG-02", "LOG-41")
@pytest.mark.parametrize("point", [0, 50])
def test_a_start_is_killed_while_it_keeps_the_rest_of_an_overlapping_segment(
    bench: Bench, read_all: ReadAll, point: int
) -> None:
    config: dict[str, Any] = {"segment_bytes": 1000, "index_interval_bytes": 100}
    for operation in itertools.count(1):
        bench.on_a_disk_that_forgets(1)
        log = bench.create(**config)
        for _ in range(50):
            bench.append(log)
        log.flush()
        first, second = log.segments[:2]
        rest = second.file().pread(1000, 0)
        size = struct.unpack_from(">i", rest, 8)[0] + 12
        first.writable_file().pwrite(rest[:size], first.size)
        bench.disk.remove(first.path(".index"))
        bench.restart(crash_at=operation)
        try:
            bench.load(clean=False, recovery_point=point, **config)
        except Crashed:
            bench.restart()
            again = bench.load(clean=False, recovery_point=point, **config)
            assert [record.offset for record in read_all(again)] == list(range(50)), operation
        else:
            break
    assert operation > 40


@pytest.mark.spec("LOG-40", "LOG-24")
@pytest.mark.parametrize("why", ["cut", "covered"])
async def test_what_a_recovery_takes_away_is_removed_without_another_start(world: World, why: str) -> None:
    manager = await world.started(log_dirs=(world.paths[0],))
    log = manager.get_or_create(PARTITION, TOPIC_ID, LogConfig(), is_new=True)
    for _ in range(3):
        log.append_as_leader(encode_batch([Record(b"k", b"v" * 50, NOW_MS)]), 0, now_ms=NOW_MS)
        log.roll()
    first, second = log.segments[:2]
    batch = second.file().pread(1000, 0)
    end = first.size
    world.kill(manager)
    with open(first.path(), "r+b") as file:  # noqa: ASYNC230
        if why == "cut":
            file.truncate(end - 1)
        else:
            file.seek(end)
            file.write(batch)
    again = await world.started(log_dirs=(world.paths[0],))
    assert again.logs[PARTITION].log_end_offset == (0 if why == "cut" else 3)
    taken_away = [name for name in os.listdir(log.folder.path) if name.endswith(".deleted")]
    assert taken_away
    await again.maintenance.remove_everything_waiting()
    assert not [name for name in os.listdir(log.folder.path) if name.endswith(".deleted")]


@pytest.mark.spec("LOG-41")
@pytest.mark.parametrize("content", [b"", b"0\n", b"0\n5\n0 0\n1 1", b"0\n2\n0 0\n1", b"\xff\xfe", b"0\n1\n0 0"])
def test_an_epoch_file_cut_in_the_middle(bench: Bench, log: Log, read_all: ReadAll, content: bytes) -> None:
    log.close()
    crash(bench, log)
    (bench.folder / "leader-epoch-checkpoint").write_bytes(content)
    check_whole(bench.load(clean=False, recovery_point=30, index_interval_bytes=100), read_all, 50)


@pytest.mark.spec("LOG-41", "REP-21")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("content", [None, "0\n2\n0 0\n9 4\n", "0\n2\n0 0\n3 100\n", "0\n1\n-1 -5\n"])
def test_epochs_that_a_file_does_not_tell_are_those_of_the_batches(
    bench: Bench, content: str | None, clean: bool
) -> None:
    """Without them a follower would not see where its leader's log diverges."""
    log = bench.create(segment_bytes=300)
    for epoch in range(5):
        bench.append(log, 2, epoch=epoch)
    log.close()
    log.flush()
    file = bench.folder / "leader-epoch-checkpoint"
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    again = bench.load(clean=clean, recovery_point=10 if clean or content is None else 0)
    assert again.epochs.entries == [(epoch, 2 * epoch) for epoch in range(5)]


@pytest.mark.spec("LOG-41", "REP-20")
def test_an_epoch_in_which_nothing_was_written_does_not_make_the_file_wrong(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.append(log, 2, epoch=3)
    log.assign_epoch(4, 2)
    log.close()
    monkeypatch.setattr(loading._Loading, "_epochs_from_batches", lambda _: pytest.fail("nothing is to be read again"))
    assert bench.load(clean=True).epochs.entries == [(3, 0)]


@pytest.mark.spec("LOG-02")
def test_leftovers_of_cleaning_and_deleting(bench: Bench, log: Log, read_all: ReadAll) -> None:
    crash(bench, log)
    for name in ("00000000000000000003.log.deleted", f"{FIRST}.log.cleaned", f"{FIRST}.index.cleaned", "x.tmp"):
        (bench.folder / name).write_bytes(b"anything")
    check_whole(bench.load(clean=False, recovery_point=30, index_interval_bytes=100), read_all, 50)
    assert not [name for name in os.listdir(bench.folder) if name.endswith((".deleted", ".cleaned", ".tmp"))]


@pytest.mark.spec("LOG-02")
@pytest.mark.parametrize("unfinished", [False, True], ids=["alone", "beside another job's leftover"])
@pytest.mark.parametrize("originals", ["both", "second", "none"])
def test_a_complete_swap_is_completed(
    bench: Bench, log: Log, read_all: ReadAll, originals: str, unfinished: bool
) -> None:
    first, second = log.segments[0], log.segments[1]
    crash(bench, log)
    swapped = b""
    for segment in (first, second):
        with open(segment.path(), "rb") as file:
            swapped += file.read()
    (bench.folder / f"{FIRST}.log.swap").write_bytes(swapped)
    (bench.folder / f"{FIRST}.index.swap").write_bytes(b"")
    if unfinished:
        (bench.folder / f"{FIRST}.log.cleaned").write_bytes(b"of one that came to nothing")
    for segment in {"both": (), "second": (first,), "none": (first, second)}[originals]:
        for kind in KINDS:
            os.unlink(segment.path(kind))
    again = bench.load(clean=False, recovery_point=30, index_interval_bytes=100)
    check_whole(again, read_all, 50)
    assert (second.base_offset not in again.bases) or (unfinished and originals == "both")


@pytest.mark.spec("LOG-41")
def test_a_log_start_offset_behind_the_end_means_an_empty_log_there(bench: Bench, log: Log) -> None:
    crash(bench, log)
    again = bench.load(clean=False, recovery_point=0, start_offset=80)
    assert (again.log_start_offset, again.log_end_offset) == (80, 80)


@pytest.mark.spec("LOG-40")
def test_producers_are_rebuilt_from_the_newest_whole_snapshot(bench: Bench) -> None:
    log = bench.create(segment_bytes=1000)
    for number in range(40):
        batch = encode_batch(
            [Record(None, b"x" * 50, bench.clock.now_ms)], producer_id=number % 3, producer_epoch=0,
            base_sequence=number // 3,
        )  # fmt: skip
        log.append_as_leader(batch, 0, now_ms=bench.clock.now_ms)
    expected = {producer: (s.epoch, s.last_sequence, s.last_offset) for producer, s in log.producers.items()}
    newest = snapshot_path(log.folder, log.snapshots.offsets[-1])
    crash(bench, log)
    for damage in (None, b"", b"\0\1" + bytes(40)):
        if damage is not None:
            with open(newest, "wb") as file:
                file.write(damage)
        again = bench.load(clean=False, recovery_point=40, segment_bytes=1000)
        assert {
            producer: (s.epoch, s.last_sequence, s.last_offset) for producer, s in again.producers.items()
        } == expected
        bench.release()


@pytest.mark.spec("LOG-40", "CLI-05")
def test_who_may_repeat_what_the_disk_has_spoiled_is_to_ask_again(bench: Bench) -> None:
    """The producer was told that it is out of order, which is fatal."""
    log = bench.create(index_interval_bytes=1)

    def append(log: Log, sequence: int) -> AppendInfo:
        batch = encode_batch(
            [Record(None, b"x", bench.clock.now_ms)], producer_id=5, producer_epoch=0, base_sequence=sequence
        )
        return log.append_as_leader(batch, 0, now_ms=bench.clock.now_ms)

    for sequence in range(4):
        append(log, sequence)
    log.close()
    bench.release()
    with open(log.active.path(), "r+b") as file:
        file.seek(8)  # the length of the first batch
        file.write(b"\xff")
    again = bench.load(clean=True, recovery_point=4, index_interval_bytes=1)
    for _ in range(2):
        with pytest.raises(ApiError) as refusal:
            append(again, 2)
        assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (append(again, 3).duplicate, append(again, 4).first_offset) == (True, 4)


def log_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@pytest.mark.spec("LOG-41")
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_cut_at_any_byte_or_filled_with_zeros(
    new_bench: Callable[[], Bench], read_all: ReadAll, data: st.DataObject
) -> None:
    """Whatever the active segment's end looks like, all whole batches before it survive, and appends work."""
    bench = new_bench()
    log = bench.create(index_interval_bytes=50)
    ends = [0]
    for size in data.draw(st.lists(st.integers(0, 200), min_size=1, max_size=12)):
        bench.append(log, 1 + size % 3, size=size)
        ends.append(log.size_bytes)
    offsets = dict(zip(ends, [0, *sorted(log.known_positions)], strict=True))
    path = log.active.path()
    bench.release()
    cut = data.draw(st.integers(0, ends[-1]))
    original = log_bytes(path)
    with open(path, "r+b") as file:
        file.truncate(cut)
        if data.draw(st.booleans()):
            file.truncate(cut + data.draw(st.integers(1, 5000)))
    left = log_bytes(path)
    again = bench.load(clean=False, index_interval_bytes=50)
    whole = max(end for end in ends if original[:end] == left[:end])
    assert again.size_bytes == os.path.getsize(path) == whole
    assert again.log_end_offset == offsets[whole]
    bench.append(again)
    assert [record.offset for record in read_all(again)] == list(range(again.log_end_offset))
    bench.release()


@pytest.mark.spec("LOG-40", "TOP-24")
@pytest.mark.parametrize("seed", range(20))
def test_what_was_flushed_survives_a_loss_of_power_with_the_id_of_its_topic(
    bench: Bench, read_all: ReadAll, seed: int
) -> None:
    """Without the topic id, the records would be taken for those of whatever topic has the name by then."""
    store = bench.on_a_disk_that_forgets(seed)
    log = bench.create()
    bench.append(log)
    log.flush()
    bench.append(log)
    store.lose_power()
    again = bench.load(clean=False)
    assert again.topic_id == TOPIC_ID
    assert [record.offset for record in read_all(again)][:1] == [0]


@pytest.mark.spec("LOG-40", "LOG-41")
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_kept_behind_a_hole_that_a_loss_of_power_left(
    bench: Bench, read_all: ReadAll, seed: int, flushed: bool
) -> None:
    """Files are written back in any order: a later segment may survive, but not the end of the one before it."""
    store = bench.on_a_disk_that_forgets(seed)
    log = bench.create(segment_bytes=250)
    bench.append(log)
    log.flush()
    for number in range(12):
        bench.append(log)
        if flushed and number == 6:
            log.flush()
    point = log.recovery_point
    store.lose_power()
    again = bench.load(clean=False, recovery_point=point)
    assert [record.offset for record in read_all(again)] == list(range(again.log_end_offset))
    assert again.log_end_offset >= point
    again.flush()
    assert not [name for name in bench.disk.list(str(bench.folder)) if name.endswith(".unflushed")]


@pytest.mark.spec("LOG-40", "LOG-41")
@pytest.mark.parametrize("seed", [80, 88, 93, 124, *range(20)])
def test_what_was_dropped_behind_a_hole_does_not_come_back_with_another_loss_of_power(
    bench: Bench, read_all: ReadAll, seed: int
) -> None:
    """By then the log goes on with other records, which a leader has given: those dropped were not its own."""
    store = bench.on_a_disk_that_forgets(seed)
    log = bench.create(segment_bytes=250)
    bench.append(log)
    log.flush()
    for _ in range(12):
        bench.append(log)
    store.lose_power()
    again = bench.load(clean=False, recovery_point=1, segment_bytes=2000)
    kept = again.log_end_offset
    for _ in range(9):
        bench.append(again, timestamp=NOW_MS + 1, epoch=1)
    store.lose_power()
    records = read_all(bench.load(clean=False, recovery_point=1))
    assert [record.offset for record in records] == list(range(len(records)))
    assert all(record.timestamp == NOW_MS + 1 for record in records if record.offset >= kept)


@pytest.mark.spec("LOG-40", "LOG-41")
@pytest.mark.parametrize("at", ["in a gap", "in a batch"])
def test_a_log_that_was_cut_where_no_record_ends_has_no_hole(bench: Bench, read_all: ReadAll, at: str) -> None:
    """That of a follower that was killed after it had begun the next segment."""
    log = bench.create(segment_bytes=250)
    bench.append(log)
    last = encode_batch([Record(b"k", b"v", NOW_MS)] * 3, base_offset=9 if at == "in a gap" else 6)
    log.append_as_follower(memoryview(last))
    log.truncate_to(7)
    for _ in range(6):
        bench.append(log, size=100)
    assert log.bases[:2] == [0, 7]
    bench.release()
    again = bench.load(clean=False, segment_bytes=250)
    assert [record.offset for record in read_all(again)] == [0, *range(7, 13)]


@pytest.mark.spec("LOG-02", "LOG-40", "CLI-05")
@pytest.mark.parametrize("knows", ["a clean stop", "the recovery point", "where cleaning ended"])
def test_a_gap_that_another_program_left_is_no_hole(bench: Bench, read_all: ReadAll, knows: str) -> None:
    """Ballast is killed before a segment is flushed. Apache Kafka continues with it, and cleans what precedes it."""
    log = bench.create()
    for _ in range(6):
        bench.append(log)
    log.roll()
    for _ in range(6):
        bench.append(log)
    log.roll()
    bench.append(log)
    first, end = log.segments[0], log.log_end_offset
    mark = bench.folder / f"{6:020d}.unflushed"
    assert mark.exists()
    last = first.find(5)
    assert last is not None
    bench.release()
    with open(first.path(), "r+b") as file:
        file.truncate(last[0])
    for kind in (".index", ".timeindex"):
        os.unlink(first.path(kind))
    said = {"recovery_point": 12} if knows == "the recovery point" else {"cleaned_to": 12}
    if knows == "a clean stop":
        bench.load(clean=True)
        bench.release()
        assert not mark.exists()
        said = {}
    again = bench.load(clean=False, **said)
    assert again.log_end_offset == end
    assert [record.offset for record in read_all(again)] == [0, 1, 2, 3, 4, *range(6, end)]


@pytest.mark.spec("LOG-40", "LOG-41")
@pytest.mark.parametrize("seed", range(40))
def test_what_took_the_place_of_flushed_segments_is_scanned(bench: Bench, read_all: ReadAll, seed: int) -> None:
    """There has been no checkpoint since the truncation. Names reach the disk before contents."""
    store = bench.on_a_disk_that_forgets(seed)
    log = bench.create(segment_bytes=250)
    for _ in range(12):
        bench.append(log)
    log.flush()
    checkpoints = bench.directory.checkpoints
    checkpoints[RECOVERY_POINTS].load({PARTITION: log.recovery_point})
    log.truncate_to(3)
    for _ in range(12):
        bench.append(log, epoch=1)
    bench.disk.sync_directory(log.folder.path)
    store.lose_power()
    point = effective_offsets(bench.disk.list(log.folder.path), checkpoints, PARTITION)[RECOVERY_POINTS]
    assert point == 3
    again = bench.load(clean=False, recovery_point=point)
    assert [record.offset for record in read_all(again)] == list(range(again.log_end_offset))
    assert again.log_end_offset >= 3
    again.flush()
    assert not [name for name in bench.disk.list(str(bench.folder)) if name.endswith(".unflushed")]


@pytest.mark.spec("LOG-40", "CLI-05")
def test_a_snapshot_of_what_was_cut_is_not_believed_when_a_loss_of_power_brings_it_back(bench: Bench) -> None:
    """Otherwise a retry of a truncated batch is taken for a duplicate: it is acknowledged, and lost."""
    log = bench.create()
    bench.append(log, 5)
    log.flush()
    bench.append(log, 5, producer_id=7, producer_epoch=0, base_sequence=0)
    log.roll()
    snapshot = Path(snapshot_path(log.folder, 10))
    of_the_past = snapshot.read_bytes()
    log.truncate_to(5)
    bench.append(log, 5)
    log.roll()
    bench.append(log, 1)
    snapshot.write_bytes(of_the_past)
    again = bench.load(clean=False, recovery_point=5)
    assert again.log_end_offset == 11
    assert again.producers.get(7) is None
    assert snapshot.read_bytes() != of_the_past, "a cut need not look at more than the last segment"


@pytest.mark.spec("LOG-01")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", ["7.log", "²" * 20 + ".log", "9" * 20 + ".log", "notes.log", "0" * 19 + "x.log"])
def test_a_file_that_has_not_the_name_of_a_segment_is_somebody_elses(
    bench: Bench, read_all: ReadAll, name: str, clean: bool
) -> None:
    log = bench.create()
    bench.append(log, 3)
    log.close()
    (bench.folder / name).write_text("mine")
    log = bench.load(clean=clean)
    assert log.bases == [0]
    assert [record.offset for record in read_all(log)] == [0, 1, 2]
    assert (bench.folder / name).read_text() == "mine"
