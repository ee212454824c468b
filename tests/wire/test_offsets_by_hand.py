"""OffsetCommit, OffsetFetch and ListOffsets responses that are written by hand are what the general engine writes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.contract.compare import build

from ballast_wire.error_codes import errors_in
from ballast_wire.fast.offsets import ListOffsetsResponse, OffsetCommitResponse, OffsetFetchResponse
from ballast_wire.messages import message

SIZES = [(0, 0), (1, 0), (1, 130), (130, 1)]
ID = UUID(int=7)
FIRST_COMMIT_WITH_ID = FIRST_FETCH_WITH_ID = 10
FIRST_WITH_GROUPS = 8


@pytest.mark.parametrize("version", range(2, 11))
@pytest.mark.parametrize(("topics", "partitions"), SIZES)
def test_commits(version: int, topics: int, partitions: int) -> None:
    by_hand = OffsetCommitResponse(version)
    expected: list[dict[str, Any]] = []
    for number in range(topics):
        answers = [{"partition_index": index, "error_code": index % 3 * 11} for index in range(partitions)]
        expected.append({"name": "t" * number, "topic_id": ID, "partitions": answers})
        for each in answers:
            by_hand.add(each["partition_index"], each["error_code"])
        by_hand.end_topic(ID if version >= FIRST_COMMIT_WITH_ID else "t" * number)
    as_the_engine(by_hand, build(message("OffsetCommitResponse"), {"topics": expected}, version), version)


@pytest.mark.parametrize("version", range(1, 11))
@pytest.mark.parametrize("groups", [0, 1, 3])
@pytest.mark.parametrize(("topics", "partitions"), SIZES)
def test_fetches(version: int, groups: int, topics: int, partitions: int) -> None:
    by_hand = OffsetFetchResponse(version)
    expected = []
    for group in range(groups if version >= FIRST_WITH_GROUPS else 1):
        found: list[dict[str, Any]] = []
        for number in range(topics):
            offsets = [offset_of(index) for index in range(partitions)]
            found.append({"name": "t" * number, "partitions": offsets})
            if version >= FIRST_FETCH_WITH_ID:
                found[-1]["topic_id"] = ID
            for each in offsets:
                by_hand.add(*each.values())
            by_hand.end_topic(ID if version >= FIRST_FETCH_WITH_ID else "t" * number)
        expected.append({"group_id": f"g{group}", "topics": found, "error_code": group})
        by_hand.end_group(f"g{group}", group)
    whole = {"groups": expected} if version >= FIRST_WITH_GROUPS else expected[0]
    known = message("OffsetFetchResponse")._struct.fields
    values = {name: value for name, value in whole.items() if name in known}
    as_the_engine(by_hand, build(message("OffsetFetchResponse"), values, version), version)


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize(("topics", "partitions"), SIZES)
def test_lists(version: int, topics: int, partitions: int) -> None:
    by_hand = ListOffsetsResponse(version)
    expected: list[dict[str, Any]] = []
    names = ("partition_index", "error_code", "timestamp", "offset", "leader_epoch")
    for number in range(topics):
        answers = [(index, index % 2 * 78, index - 1, index * 2**33, index - 1) for index in range(partitions)]
        listed = [dict(zip(names, each, strict=True)) for each in answers]
        expected.append({"name": "t" * number, "partitions": listed})
        for each in answers:
            by_hand.add(*each)
        by_hand.end_topic("t" * number)
    as_the_engine(by_hand, build(message("ListOffsetsResponse"), {"topics": expected}, version), version)


def offset_of(index: int) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": index * 2**33 - 1,
        "committed_leader_epoch": index - 1,
        "metadata": "é" * index,
        "error_code": index % 2 * 100,
    }


def as_the_engine(by_hand: Any, by_engine: Any, version: int) -> None:
    expected = bytes(by_engine.encode(version=version))
    assert sorted(by_hand.error_codes()) == sorted(errors_in(by_engine, version))
    assert by_hand.encode(version) == expected
