"""Encodes and decodes Raft's control batches: leader changes and voters in the log, header and footer of snapshots.
PURE.

If voters and kraft.version both change, one batch has both, so that nobody reads one without the other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any
from uuid import UUID

from ballast_broker.raft.voters import DYNAMIC, Endpoint, Voter, VoterSet, voter_set
from ballast_wire.messages import message
from ballast_wire.records import HEADER_BYTES, LOG_OVERHEAD, BatchView, Record, decode_records, encode_batch

LEADER_CHANGE, SNAPSHOT_HEADER, SNAPSHOT_FOOTER, KRAFT_VERSION, VOTERS = 2, 3, 4, 5, 6
HEADER_RECORDS, HEADER_RECORDS_WITH_VOTERS = 1, 3
NO_DIRECTORY = UUID(int=0)
_KEY = struct.Struct(">hh")  # version, type
_VERSION = struct.Struct(">h")
_HEADER = struct.Struct(">hq")  # version, timestamp of the last record contained
_NO_TAGS = b"\x00"
_ATTRIBUTES = 21
_CONTROL = 0x20


def _batch(records: Sequence[tuple[int, bytes]], now_ms: int, offset: int, epoch: int) -> bytearray:
    encoded = [Record(_KEY.pack(0, kind), body, now_ms) for kind, body in records]
    return encode_batch(encoded, control=True, base_offset=offset, leader_epoch=epoch)


def _encoded(name: str, fields: dict[str, Any]) -> bytes:
    """These messages have a field called `version`, which equals the version of their schema: 0."""
    body: bytes = message(name)._struct.encode({"version": 0, **fields}, version=0, compact=True, tagged=True)
    return body


def leader_change_batch(
    leader: int, voters: VoterSet, granting: Sequence[int], now_ms: int, *, founds: bool = False
) -> bytearray:
    """`founds`: the log names its voters for the first time. Kafka reads no directory ids here in any version."""
    fields = {
        "leader_id": leader,
        "voters": [{"voter_id": each} for each in voters.ids],
        "granting_voters": [{"voter_id": each} for each in granting],
    }
    records = [(LEADER_CHANGE, _encoded("LeaderChangeMessage", fields))]
    return _batch([*records, *(_of_voters(voters, with_version=True) if founds else ())], now_ms, 0, -1)


def voters_batch(voters: VoterSet, now_ms: int, *, with_version: bool) -> bytearray:
    return _batch(_of_voters(voters, with_version=with_version), now_ms, 0, -1)


def snapshot_header_batch(last_contained_ms: int, now_ms: int, epoch: int, voters: VoterSet | None) -> bytearray:
    header = (SNAPSHOT_HEADER, _HEADER.pack(0, last_contained_ms) + _NO_TAGS)
    return _batch([header, *(_of_voters(voters, with_version=True) if voters else ())], now_ms, 0, epoch)


def snapshot_footer_batch(now_ms: int, offset: int, epoch: int) -> bytearray:
    return _batch([(SNAPSHOT_FOOTER, _VERSION.pack(0) + _NO_TAGS)], now_ms, offset, epoch)


def _of_voters(voters: VoterSet, *, with_version: bool) -> list[tuple[int, bytes]]:
    fields = {
        "voters": [
            {
                "voter_id": voter.id,
                "voter_directory_id": voter.directory or NO_DIRECTORY,
                "endpoints": [
                    {"name": name, "host": each.host, "port": each.port} for name, each in voter.endpoints.items()
                ],
                "k_raft_version_feature": {
                    "min_supported_version": voter.versions[0],
                    "max_supported_version": voter.versions[1],
                },
            }
            for voter in voters.voters
        ]
    }
    records = [(VOTERS, _encoded("VotersRecord", fields))]
    if with_version:
        version = _encoded("KRaftVersionRecord", {"k_raft_version": voters.version})
        records.insert(0, (KRAFT_VERSION, version))
    return records


def voters_in(batches: bytes | bytearray | memoryview) -> Iterator[tuple[int, VoterSet]]:
    """The voter sets in these (whole) batches, each with its record's offset."""
    data = memoryview(batches)
    position = 0
    while position + HEADER_BYTES <= len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big") + LOG_OVERHEAD
        if data[position + _ATTRIBUTES + 1] & _CONTROL:
            yield from _in_batch(BatchView(data[position : position + size]))
        position += size


def control_kind(batch: BatchView) -> int | None:
    """The type of a control batch's first record; None for any other batch."""
    if not batch.is_control:
        return None
    first = next(iter(decode_records(batch)), None)
    return None if first is None else int(_KEY.unpack_from(first.key or b"")[1])


def _in_batch(batch: BatchView) -> Iterator[tuple[int, VoterSet]]:
    version = DYNAMIC
    for record in decode_records(batch):
        kind = _KEY.unpack_from(record.key or b"")[1]
        if kind == KRAFT_VERSION:
            version = _decoded("KRaftVersionRecord", record.value or b"")["k_raft_version"]
        elif kind == VOTERS:
            found = _decoded("VotersRecord", record.value or b"")
            yield record.offset, voter_set(version, (_voter(each) for each in found["voters"]))


def _decoded(name: str, body: bytes) -> dict[str, Any]:
    data = BytesIO(body)
    fields = message(name)._struct.untagged_fields(0)
    return {field.name: field.decode(data, version=0, compact=True, tagged=True) for field in fields}


def _voter(found: Any) -> Voter:
    supported = found.k_raft_version_feature
    return Voter(
        found.voter_id,
        found.voter_directory_id,
        {each.name: Endpoint(each.host, each.port) for each in found.endpoints},
        (supported.min_supported_version, supported.max_supported_version),
    )
