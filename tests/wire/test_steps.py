"""What the message engine does step by step is what it does at one go, for every message and version."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest

from ballast_broker.api.registry import BROKER_APIS
from ballast_broker.controller_requests import CONTROLLER_APIS
from ballast_wire.fast.reader import MalformedRequest
from ballast_wire.messages import message
from ballast_wire.steps import decoding, encoding

pytestmark = pytest.mark.spec("CLI-09")

VALUES: dict[str, Any] = {
    "string": "orders", "bytes": b"\1\2", "records": b"\3", "bool": True, "uuid": UUID(int=7), "float64": 1.5,
}  # fmt: skip
RANGE = sorted({(api.name, version) for api in [*BROKER_APIS.values(), *CONTROLLER_APIS.values()]
                for version in range(api.lowest, api.highest + 1)})  # fmt: skip


def filled(kind: Any, struct_field: Any, version: int, count: int) -> Any:
    """With so many elements in each of its arrays."""
    fields = {}
    for field in struct_field.fields.values():
        if not field.for_version_q(version):
            continue
        if field.is_struct_array():
            fields[field.name] = [filled(field, field, version, count) for _ in range(count)]
        elif field.is_array():
            fields[field.name] = [VALUES.get(field.type_str.removeprefix("[]"), 3)] * count
        elif field.is_struct():
            fields[field.name] = filled(field, field, version, count)
        else:
            fields[field.name] = VALUES.get(field.type_str, 3)
    return kind(**fields)


def all_of(steps: Any) -> tuple[Any, int]:
    """What they come to, and how many they are."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


@pytest.mark.parametrize("what", ["Request", "Response"])
def test_the_bytes_and_what_is_read_of_them_are_the_same(what: str) -> None:
    for name, version in RANGE:
        kind = message(name + what)
        for count in (0, 1, 3):
            made = filled(kind, kind._struct, version, count)
            data = bytes(made.encode(version=version))
            assert bytes(all_of(encoding(made, version))[0]) == data, (name, version)
            plain = kind.decode(data, version=version)
            found = all_of(decoding(kind, data, version))[0]
            assert type(found) is type(plain) is kind
            assert found == plain, (name, version)
            assert bytes(found.encode(version=version)) == data, "it can be encoded again"


def test_no_step_is_more_than_one_thing() -> None:
    kind = message("OffsetCommitRequest")
    topics = kind.OffsetCommitRequestTopic
    partitions = [
        topics.OffsetCommitRequestPartition(partition_index=n, committed_offset=n, committed_metadata="")
        for n in range(500)
    ]
    made = kind(group_id="g", topics=[topics(name=f"t{n}", partitions=partitions) for n in range(4)])
    data, steps = all_of(encoding(made, 8))
    assert steps >= 2000
    found, steps = all_of(decoding(kind, bytes(data), 8))
    assert steps >= 2000
    assert [len(each.partitions) for each in found.topics] == [500] * 4


def test_what_is_cut_short_is_refused_in_steps_as_well() -> None:
    kind = message("DescribeGroupsRequest")
    data = bytes(kind(groups=["orders"] * 100, include_authorized_operations=True).encode(version=5))
    for cut in range(1, 20):
        with pytest.raises((MalformedRequest, IndexError, struct.error)):
            all_of(decoding(kind, data[:-cut], 5))
