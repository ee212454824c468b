"""The checker of `./ballast chaos` finds each fault of a log: each test writes a log with that one fault in it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from e2e import partition_files
from e2e.checker import (
    History,
    check_complete,
    check_known,
    check_readers,
    check_replicas,
    check_unplaced,
    partition_folder,
)
from e2e.clients import Worker
from e2e.ledger import TOKEN, Ledger, token_of
from e2e.partition_files import Cursor, Damaged, check_indexes, end_offset, read_batches

from ballast_wire.records import Record, encode_batch

PER_BATCH = 4


def write_log(folder: Path, tokens: Sequence[int], *, base: int = 0, leader_epoch: int = 1) -> list[int]:
    """A segment of batches of four records; answers where each batch begins."""
    folder.mkdir(parents=True, exist_ok=True)
    data, positions = bytearray(), []
    for start in range(0, len(tokens), PER_BATCH):
        records = [
            Record(value=TOKEN.pack(token), timestamp=1000 + base + start)
            for token in tokens[start : start + PER_BATCH]
        ]
        positions.append(len(data))
        data += encode_batch(records, base_offset=base + start, leader_epoch=leader_epoch)
    (folder / f"{base:020d}.log").write_bytes(data)
    return positions


def history_of(folder: Path, partitions: int = 1) -> History:
    history = History(0, partitions)
    history.read(folder, whole=True)
    return history


def in_order(count: int) -> list[int]:
    return [token_of(0, sequence) for sequence in range(count)]


def ledger_of(tokens: Sequence[int], *, sent: int) -> Ledger:
    ledger = Ledger(1, 1)
    ledger.sent = [sent]
    for offset, token in enumerate(tokens):
        ledger.acknowledged[0].note(token, offset)
        ledger.consumed[0].note(token, offset)
        ledger.note_group_read(0, offset)
    return ledger


def test_a_sound_log_has_no_findings(tmp_path: Path) -> None:
    tokens = in_order(10)
    for broker in "abc":
        write_log(tmp_path / broker / "v" / "t-0", tokens)
    ledger = ledger_of(tokens, sent=10)
    folder = tmp_path / "a" / "v" / "t-0"
    history = history_of(folder)
    assert list(history.tokens) == tokens
    assert history.findings == []
    assert check_known(history, ledger.acknowledged[0], "was acknowledged at") == []
    assert check_complete([history], ledger) == []
    assert check_readers([history], ledger) == []
    assert check_replicas([tmp_path / broker / "v" / "t-0" for broker in "abc"]) == []


def test_a_log_whose_start_was_deleted_begins_with_what_was_read(tmp_path: Path) -> None:
    tokens = in_order(20)
    early, late = tmp_path / "a" / "v" / "t-0", tmp_path / "b" / "v" / "t-0"
    write_log(early, tokens[8:], base=8)
    write_log(late, tokens[12:], base=12)
    history = History(0, 1)
    history.begin(early, tokens)
    history.read(early, whole=True)
    assert (list(history.tokens), history.findings) == (tokens, [])
    assert check_replicas([early, late]) == []
    assert end_offset(early) == end_offset(late) == 20


def test_a_start_that_was_deleted_before_it_was_read_is_found(tmp_path: Path) -> None:
    write_log(tmp_path, in_order(20)[8:], base=8)
    history = History(0, 1)
    history.begin(tmp_path, in_order(6))
    history.read(tmp_path, whole=True)
    assert "offset 8 where 6 is due" in history.findings[0]


def test_an_acknowledged_record_that_is_gone_is_found(tmp_path: Path) -> None:
    write_log(tmp_path, in_order(8))
    ledger = ledger_of(in_order(10), sent=10)
    history = history_of(tmp_path)
    lost = check_known(history, ledger.acknowledged[0], "was acknowledged at")
    assert lost[0] == "partition 0: record 8 of producer 0 was acknowledged at offset 8; there is nothing"
    assert len(lost) == 2
    assert check_complete([history], ledger) == ["partition 0: 8 records of producer 0 are there; it sent 10"]


def test_an_acknowledged_record_that_another_took_the_place_of_is_found(tmp_path: Path) -> None:
    write_log(tmp_path, [token_of(0, 0), token_of(1, 0)])
    ledger = ledger_of(in_order(2), sent=2)
    assert "there is record 0 of producer 1" in check_known(history_of(tmp_path), ledger.acknowledged[0], "was at")[0]


def test_a_record_acknowledged_without_an_offset_must_be_somewhere(tmp_path: Path) -> None:
    write_log(tmp_path, in_order(4))
    history = history_of(tmp_path)
    assert check_unplaced(history, in_order(4)) == []
    assert check_unplaced(history, in_order(5)) == [
        "partition 0: record 4 of producer 0 was acknowledged, and is nowhere"
    ]


@pytest.mark.parametrize(
    ("sequences", "finding"),
    [
        ([0, 1, 1, 2], "is there twice, at offset 2"),
        ([0, 1, 2, 0], "comes after its record 2, at offset 3"),
        ([0, 1, 3, 4], "record 3 of producer 0 comes right after its record 1, at offset 2"),
    ],
)
def test_doubled_reordered_and_missing_records_are_found(tmp_path: Path, sequences: list[int], finding: str) -> None:
    write_log(tmp_path, [token_of(0, sequence) for sequence in sequences])
    assert finding in history_of(tmp_path).findings[0]


def test_a_record_in_a_partition_where_nobody_sent_it_is_found(tmp_path: Path) -> None:
    write_log(tmp_path, [token_of(0, 0), token_of(0, 1)])
    assert "what nobody sent there" in history_of(tmp_path, partitions=2).findings[0]


def test_records_of_an_unknown_producer_are_found(tmp_path: Path) -> None:
    write_log(tmp_path, [token_of(5, 0)])
    assert check_complete([history_of(tmp_path)], Ledger(1, 0)) == [
        "there are records of producer 5, whom nobody knows"
    ]


def test_what_readers_missed_is_found(tmp_path: Path) -> None:
    write_log(tmp_path, in_order(8))
    missing = check_readers([history_of(tmp_path)], ledger_of(in_order(6), sent=8))
    assert missing == [
        "partition 0: the consumer read 6 records of 8",
        "partition 0: the group was never given 2 records, the first at offset 6",
    ]


@pytest.mark.parametrize("other", [in_order(7), [*in_order(7), token_of(0, 9)]])
def test_replicas_that_differ_are_found(tmp_path: Path, other: list[int]) -> None:
    folders = [tmp_path / broker / "v" / "t-0" for broker in "ab"]
    write_log(folders[0], in_order(8))
    write_log(folders[1], other)
    assert "the replicas of t-0 differ at offset 4" in check_replicas(folders)[0]


def test_a_replica_with_another_leader_epoch_is_found(tmp_path: Path) -> None:
    folders = [tmp_path / broker / "v" / "t-0" for broker in "ab"]
    write_log(folders[0], in_order(8))
    write_log(folders[1], in_order(8), leader_epoch=2)
    assert "differ at offset 0" in check_replicas(folders)[0]


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    positions = write_log(tmp_path, in_order(8))
    path = tmp_path / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[positions[1] + 70] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged, match="after offset 3"):
        history_of(tmp_path)


def test_a_torn_tail_counts_only_where_the_log_must_be_whole(tmp_path: Path) -> None:
    write_log(tmp_path, in_order(8))
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-3])
    assert [batch.last_offset for batch in read_batches(tmp_path, Cursor(), whole=False)] == [3]
    with pytest.raises(Damaged):
        history_of(tmp_path)


def test_a_gap_between_segments_is_found(tmp_path: Path) -> None:
    write_log(tmp_path, in_order(8))
    write_log(tmp_path, [token_of(0, 9)], base=9)
    with pytest.raises(Damaged, match="segment 9 comes where offset 8 is due"):
        history_of(tmp_path)


def test_a_reader_goes_on_where_it_was(tmp_path: Path) -> None:
    write_log(tmp_path, in_order(8))
    history = history_of(tmp_path)
    write_log(tmp_path, [token_of(0, sequence) for sequence in range(8, 12)], base=8)
    history.read(tmp_path, whole=True)
    assert list(history.tokens) == in_order(12)


def test_a_segment_that_grows_and_is_rolled_while_it_is_read_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, in_order(4))
    looked: list[int] = []

    def segments_after(folder: Path, segment: int) -> list[int]:
        looked.append(segment)
        if len(looked) == 2:  # the first segment has been read as far as it went
            write_log(tmp_path, in_order(12))
            write_log(tmp_path, in_order(4), base=12)
        return [base for base in partition_files.segments(folder) if base > segment]

    monkeypatch.setattr(partition_files, "_segments_after", segments_after)
    assert [batch.last_offset for batch in read_batches(tmp_path, Cursor(), whole=True)] == [3, 7, 11, 15]


def write_indexes(folder: Path, offsets: list[tuple[int, int]], times: list[tuple[int, int]]) -> None:
    name = f"{0:020d}"
    (folder / f"{name}.index").write_bytes(b"".join(struct.pack(">Ii", *entry) for entry in offsets) + bytes(80))
    (folder / f"{name}.timeindex").write_bytes(b"".join(struct.pack(">qI", *entry) for entry in times) + bytes(120))


def test_indexes_that_say_what_the_log_says_are_right(tmp_path: Path) -> None:
    positions = write_log(tmp_path, in_order(12))
    write_indexes(tmp_path, [(7, positions[1]), (11, positions[2])], [(1004, 7), (1008, 11)])
    assert check_indexes(tmp_path) == 4


@pytest.mark.parametrize("offset", [(6, 1), (7, 2)])
def test_a_wrong_offset_index_is_found(tmp_path: Path, offset: tuple[int, int]) -> None:
    positions = write_log(tmp_path, in_order(12))
    write_indexes(tmp_path, [(offset[0], positions[offset[1]])], [])
    with pytest.raises(Damaged, match=r"\.index says that the batch"):
        check_indexes(tmp_path)


@pytest.mark.parametrize("entry", [(1005, 7), (1004, 6)])
def test_a_wrong_time_index_is_found(tmp_path: Path, entry: tuple[int, int]) -> None:
    write_log(tmp_path, in_order(12))
    write_indexes(tmp_path, [], [entry])
    with pytest.raises(Damaged, match=r"\.timeindex says"):
        check_indexes(tmp_path)


def test_a_partition_in_two_directories_is_found(tmp_path: Path) -> None:
    for volume in "ab":
        (tmp_path / volume / "t-0").mkdir(parents=True)
    with pytest.raises(Damaged, match="is in 2 directories"):
        partition_folder([tmp_path / "a", tmp_path / "b"], "t", 0)


class Idle(Worker):
    def work(self) -> None:
        return


def test_a_client_that_never_started_is_joined_at_once() -> None:
    """Interrupted between the first client's start and the last one's, a run must still end in order."""
    ledger = Ledger(1, 1)
    idle = Idle("idle", ledger)
    idle.stop()
    idle.join()
    idle.start()
    idle.join()
    assert ledger.problems == []
