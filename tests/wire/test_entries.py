"""How many things (groups, topics, partitions) a request names, of which only so many are let through."""

from __future__ import annotations

from tests.contract.compare import build

from ballast_wire.entries import entries_in
from ballast_wire.messages import message


def test_all_levels_count() -> None:
    groups = [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0, 1, 2]}] * 2}] * 5
    request = build(message("OffsetFetchRequest"), {"groups": groups}, 8)
    assert entries_in(request, 8, 1000) == 5 * (1 + 2 * (1 + 3))
    assert 10 < entries_in(request, 8, 10) <= 10 + 1 + 2 + 3, "no further than necessary"


def test_what_a_version_lacks_and_what_is_null_counts_nothing() -> None:
    assert entries_in(build(message("MetadataRequest"), {"topics": None}, 9), 9, 1000) == 0
    assert entries_in(build(message("HeartbeatRequest"), {"group_id": "g"}, 4), 4, 1000) == 0
