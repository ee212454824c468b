"""Null is read only where the schema allows it."""

from __future__ import annotations

from typing import Any

import pytest

from ballast_wire.messages import message
from ballast_wire.nulls import misplaced_null

Create, Metadata, Commit = message("CreateTopicsRequest"), message("MetadataRequest"), message("OffsetCommitRequest")
Group, Join = message("DescribeGroupsRequest"), message("JoinGroupRequest")


def topic(**fields: Any) -> Any:
    whole = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return Create.CreatableTopic(**(whole | fields))


@pytest.mark.spec("CLI-08")
@pytest.mark.parametrize(
    ("request_", "version", "where"),
    [
        (Create(topics=None, timeout_ms=1, validate_only=False), 7, "topics"),
        (Create(topics=[topic(), topic(configs=None)], timeout_ms=1, validate_only=False), 7, "topics.configs"),
        (Create(topics=[topic()], timeout_ms=1, validate_only=False), 7, None),
        (Metadata(topics=None), 9, None),
        (Metadata(topics=None), 0, "topics"),
        (Group(groups=["a", "b"]), 0, None),
        (Join(group_id="g", member_id="", group_instance_id=None, protocol_type="c", protocols=[]), 7, None),
        (Join(group_id="g", member_id="", group_instance_id=None, protocol_type="c", protocols=None), 7, "protocols"),
    ],
)
def test_null_is_found_where_it_must_not_be(request_: Any, version: int, where: str | None) -> None:
    assert misplaced_null(request_, version) == where


@pytest.mark.spec("CLI-08")
def test_null_names_are_found() -> None:
    """The engine does not write them; they come off the wire."""
    data = bytearray(Group(groups=["a"]).encode(version=0))
    assert misplaced_null(Group.decode(bytes(data), version=0), 0) is None
    data[4:] = b"\xff\xff"
    assert misplaced_null(Group.decode(bytes(data), version=0), 0) == "groups"
    data = bytearray(Create(topics=[topic()], timeout_ms=1, validate_only=False).encode(version=2))
    data[4:7] = b"\xff\xff"
    assert misplaced_null(Create.decode(bytes(data), version=2), 2) == "topics.name"
