"""Answers that are made by hand tell for how long to wait, in the versions that have a place for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ballast_wire.fast.configs import DescribeConfigsResponse
from ballast_wire.fast.metadata import MetadataResponse
from ballast_wire.fast.offsets import ListOffsetsResponse, OffsetCommitResponse, OffsetFetchResponse
from ballast_wire.messages import message


def offsets_of_a_group(version: int) -> OffsetFetchResponse:
    made = OffsetFetchResponse(version)
    made.end_group("g", 0)
    return made


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize(
    ("name", "make", "versions", "first"),
    [
        ("DescribeConfigs", lambda version: DescribeConfigsResponse(version, []), range(1, 5), 1),
        ("Metadata", lambda version: MetadataResponse(version, [], "cluster", 1, [], 0), range(14), 3),
        ("OffsetCommit", OffsetCommitResponse, range(2, 11), 3),
        ("OffsetFetch", offsets_of_a_group, range(1, 11), 3),
        ("ListOffsets", ListOffsetsResponse, range(1, 12), 2),
    ],
)
def test_what_it_tells(name: str, make: Callable[[int], Any], versions: range, first: int) -> None:
    for version in versions:
        for told_ms in (0, 1234):
            made = make(version)
            made.throttle_time_ms = told_ms
            found = message(name + "Response").decode(bytes(made.encode(version)), version=version)
            assert found.throttle_time_ms == (told_ms if version >= first else 0), version
