"""The control batches that Raft itself writes: leader changes in the log, header and footer in snapshots. PURE."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ballast_wire.messages import message
from ballast_wire.records import Record, encode_batch

LEADER_CHANGE, SNAPSHOT_HEADER, SNAPSHOT_FOOTER = 2, 3, 4
_KEY = struct.Struct(">hh")  # version, type
_VERSION = struct.Struct(">h")
_HEADER = struct.Struct(">hq")  # version, timestamp of the last record contained
_NO_TAGS = b"\x00"


def _control_batch(kind: int, body: bytes, now_ms: int, offset: int, epoch: int) -> bytearray:
    record = Record(_KEY.pack(0, kind), body, now_ms)
    return encode_batch([record], control=True, base_offset=offset, leader_epoch=epoch)


def leader_change_batch(leader: int, voters: Sequence[int], granting: Sequence[int], now_ms: int) -> bytearray:
    kind = message("LeaderChangeMessage")
    structure = kind._struct
    # The message has a field called `version`, whose value is also the version of its form: 0.
    fields = {
        "version": 0,
        "leader_id": leader,
        "voters": [{"voter_id": each} for each in voters],
        "granting_voters": [{"voter_id": each} for each in granting],
    }
    body: bytes = structure.encode(fields, version=0, compact=True, tagged=True)
    return _control_batch(LEADER_CHANGE, body, now_ms, 0, -1)


def snapshot_header_batch(last_contained_ms: int, now_ms: int, epoch: int) -> bytearray:
    return _control_batch(SNAPSHOT_HEADER, _HEADER.pack(0, last_contained_ms) + _NO_TAGS, now_ms, 0, epoch)


def snapshot_footer_batch(now_ms: int, offset: int, epoch: int) -> bytearray:
    return _control_batch(SNAPSHOT_FOOTER, _VERSION.pack(0) + _NO_TAGS, now_ms, offset, epoch)
