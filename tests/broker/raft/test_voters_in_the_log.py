"""The voter set of a metadata log follows appends, truncations and snapshots, and survives restarts."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest
from tests.broker.raft.memory import MemoryDisk, MemoryLog, static_voters

from ballast_broker.raft.control_records import (
    leader_change_batch,
    snapshot_footer_batch,
    snapshot_header_batch,
    voters_batch,
    voters_in,
)
from ballast_broker.raft.messages import SnapshotId
from ballast_broker.raft.store import QUORUM_STATE, MetadataStore
from ballast_broker.raft.terms import Persisted
from ballast_broker.raft.voters import DYNAMIC, Endpoint, Voter, VoterSet, voter_set
from ballast_wire.records import Record, encode_batch

pytestmark = pytest.mark.spec("CLU-05")
ONE = Voter(1, UUID(int=101), {"CONTROLLER": Endpoint("one", 9093)})
TWO = Voter(2, UUID(int=102), {"CONTROLLER": Endpoint("two", 65_535), "OTHER": Endpoint("zwei", 1)})
FOUNDED = voter_set(DYNAMIC, [ONE])
GROWN = FOUNDED.with_voter(TWO)


def store_on(disk: MemoryDisk, log: MemoryLog) -> MetadataStore:
    return MetadataStore(disk, "/meta", log)


def data() -> bytearray:
    return encode_batch([Record(value=b"x", timestamp=1)])


def test_voters_are_read_as_they_were_written_and_what_changes_with_them_is_one_batch() -> None:
    batch = leader_change_batch(1, FOUNDED, (1,), 5, founds=True)
    assert list(voters_in(batch)) == [(2, FOUNDED)]
    assert list(voters_in(voters_batch(GROWN, 5, with_version=True) + data())) == [(1, GROWN)]
    assert list(voters_in(data() + voters_batch(GROWN, 5, with_version=False))) == [(0, GROWN)]
    assert list(voters_in(leader_change_batch(1, FOUNDED, (1,), 5) + data())) == []


def test_the_bytes_are_kafkas() -> None:
    """The values of the records that DumpLogSegments of Apache Kafka 4.1 reads (`test_apache_tools` shows that)."""
    batch = bytes(voters_batch(FOUNDED, 0, with_version=True))
    version = bytes.fromhex("0000 0001 00".replace(" ", ""))
    voters = bytes.fromhex(
        "0000" "02" "00000001" "00000000000000000000000000000065"
        "02" "0b434f4e54524f4c4c4552" "046f6e65" "2385" "00" "00000001" "00" "00" "00"
    )  # fmt: skip
    assert version in batch
    assert voters in batch


def test_a_change_counts_when_it_is_appended_and_no_longer_when_it_is_cut_off() -> None:
    store = store_on(MemoryDisk(), MemoryLog())
    store.configured(static_voters((1, 2)))
    assert (store.voters, store.voters_offset) == (static_voters((1, 2)), -1)
    store.append(leader_change_batch(1, FOUNDED, (1,), 5, founds=True), 1, 5)
    store.append(data(), 1, 5)
    offset, _ = store.append(voters_batch(GROWN, 5, with_version=False), 1, 5)
    assert (store.voters, store.voters_before, store.voters_offset) == (GROWN, FOUNDED, offset)
    assert store.voters_up_to(offset) == FOUNDED
    store.truncate(offset)
    assert (store.voters, store.voters_offset) == (FOUNDED, 2)
    store.truncate(0)
    assert (store.voters, store.voters_offset) == (static_voters((1, 2)), -1)


def test_a_follower_takes_the_voters_from_what_it_fetches_and_finds_them_again_after_a_restart() -> None:
    leader, disk, log = store_on(MemoryDisk(), MemoryLog()), MemoryDisk(), MemoryLog()
    leader.append(leader_change_batch(1, FOUNDED, (1,), 5, founds=True), 1, 5)
    leader.append(data(), 1, 5)
    leader.append(voters_batch(GROWN, 5, with_version=False), 1, 5)
    follower = store_on(disk, log)
    follower.append_fetched(leader.read(0, 1 << 20, leader.end_offset))
    assert follower.voters == GROWN
    again = store_on(disk, log)
    assert (again.voters, again.voters_before, again.voters_offset) == (GROWN, FOUNDED, follower.voters_offset)


def write_snapshot(store: MetadataStore, snapshot: SnapshotId, voters: VoterSet | None) -> None:
    writer = store.new_snapshot(snapshot)
    writer.write(snapshot_header_batch(1, 2, snapshot.epoch, voters))
    writer.write(snapshot_footer_batch(2, 3 if voters else 1, snapshot.epoch))
    writer.finish()


def test_a_log_that_begins_after_a_snapshot_has_the_voters_of_its_header() -> None:
    disk, log = MemoryDisk(), MemoryLog()
    store = store_on(disk, log)
    write_snapshot(store, SnapshotId(50, 3), GROWN)
    store.begin_after(SnapshotId(50, 3))
    assert (store.voters, store.voters_offset) == (GROWN, 49)
    assert store.voters_before == VoterSet(0, ()), "that it was committed is known"
    store.append(voters_batch(FOUNDED, 5, with_version=False), 4, 5)
    assert store_on(disk, log).voters == FOUNDED
    store.truncate(50)
    assert store_on(disk, log).voters == GROWN


def test_a_snapshot_from_before_the_log_does_not_say_who_votes() -> None:
    """A crash leaves it between starting the log after the leader's snapshot and removing the previous snapshot."""
    disk, log = MemoryDisk(), MemoryLog()
    store = store_on(disk, log)
    write_snapshot(store, SnapshotId(20, 2), FOUNDED)
    store.begin_after(SnapshotId(20, 2))
    write_snapshot(store, SnapshotId(50, 3), GROWN)
    log.truncate_fully_and_start_at(50)
    again = store_on(disk, log)
    assert again.snapshots == [SnapshotId(20, 2), SnapshotId(50, 3)]
    assert (again.voters, again.voters_offset) == (GROWN, 49)
    again.append(voters_batch(FOUNDED, 5, with_version=False), 4, 5)
    assert store_on(disk, log).voters == FOUNDED


def test_a_snapshot_of_a_static_quorum_says_nothing_of_voters() -> None:
    store = store_on(MemoryDisk(), MemoryLog())
    store.configured(static_voters((1, 2, 3)))
    write_snapshot(store, SnapshotId(50, 3), None)
    store.begin_after(SnapshotId(50, 3))
    assert store.voters == static_voters((1, 2, 3))


def test_what_the_formatting_says_counts_until_the_log_does_and_nobody_is_told_to_load_it() -> None:
    disk, log = MemoryDisk(), MemoryLog()
    store = store_on(disk, log)
    before = store.is_empty
    store.format(FOUNDED, 5)
    assert (before, store.is_empty) == (True, False)
    again = store_on(disk, log)
    again.configured(static_voters((7,)))
    assert (again.voters, again.voters_offset, again.latest_snapshot) == (FOUNDED, -1, None)
    again.append(leader_change_batch(1, FOUNDED, (1,), 5, founds=True), 1, 5)
    again.append(voters_batch(GROWN, 5, with_version=False), 1, 5)
    assert store_on(disk, log).voters == GROWN


def test_whom_a_vote_was_given_to_is_remembered_with_its_directory() -> None:
    disk = MemoryDisk()
    store = store_on(disk, MemoryLog())
    store.configured(static_voters((1, 2)))
    store.persist(Persisted(3, 2, -1, TWO.directory))
    assert json.loads(disk.read_bytes(f"/meta/{QUORUM_STATE}"))["currentVoters"] == [{"voterId": 1}, {"voterId": 2}]
    assert store.load_persisted() == Persisted(3, 2, -1), "as before: a static quorum knows voters by their ids"
    assert store.voters_remembered() == [1, 2]
    store.append(voters_batch(GROWN, 5, with_version=True), 3, 5)
    store.persist(Persisted(3, 2, -1, TWO.directory))
    assert store_on(disk, MemoryLog()).load_persisted() == Persisted(3, 2, -1, TWO.directory)
    state = json.loads(disk.read_bytes(f"/meta/{QUORUM_STATE}"))
    assert state == {
        "leaderId": -1,
        "leaderEpoch": 3,
        "votedId": 2,
        "votedDirectoryId": "AAAAAAAAAAAAAAAAAAAAZg",
        "data_version": 1,
    }
    assert store.voters_remembered() == []


def test_a_voter_is_told_by_its_directory_too() -> None:
    assert GROWN.has(2, TWO.directory)
    assert not GROWN.has(2, UUID(int=7))
    assert not GROWN.has(2, None)
    assert static_voters((2,)).has(2, UUID(int=7))
    moved = replace(TWO, endpoints={})
    assert GROWN.with_voter(moved).ids == (1, 2)
    assert GROWN.without(1).voters == (TWO,)
    assert str(GROWN).startswith("[ReplicaKey(id=1, directoryId=AAAAAAAAAAAAAAAAAAAAZQ), ")
