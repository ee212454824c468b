"""Messages and records of the consumer protocol, byte by byte as Apache Kafka 4.1 writes them."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest
from tests.contract.compare import build, plain

from ballast_broker.coordinator.consumers import records
from ballast_broker.coordinator.consumers.group import (
    About,
    AboutChange,
    Change,
    Classic,
    Current,
    CurrentChange,
    EpochChange,
    MemberState,
    PatternChange,
    Resolved,
    TargetChange,
    TargetEpochChange,
    TopicsGoneChange,
)
from ballast_broker.coordinator.group import Protocol
from ballast_wire.messages import message

pytestmark = pytest.mark.spec("CLI-04", "CLI-10")

T = UUID("67696f12-54ef-40a7-b551-a764f258d40f")
T_HEX = "67696f1254ef40a7b551a764f258d40f"
G = "000167"  # "g", in a key
M = "00026d31"  # "m1", likewise
OF_T = f"02{T_HEX}03000000000000000200"  # one topic, partitions 0 and 2

GOLDEN: list[tuple[Change, str, str | None]] = [
    (EpochChange(1), f"0003{G}", "00000000000100"),
    (EpochChange(3, 72), f"0003{G}", "000000000003" + "010008" + "0000000000000048"),
    (EpochChange(None), f"0003{G}", None),
    (TopicsGoneChange(), f"0004{G}", None),
    (
        AboutChange("m1", About("i1", None, "contract", "/127.0.0.1", frozenset({"a1", "nope"}), "", 30000)),
        f"0005{G}{M}",
        "0000" + "036931" + "00" + "09" + b"contract".hex() + "0b" + b"/127.0.0.1".hex() + "03" + "036131" + "05"
        + b"nope".hex() + "01" + "00007530" + "00" + "01000100",
    ),
    (AboutChange("m1", None), f"0005{G}{M}", None),
    (TargetEpochChange(7), f"0006{G}", "00000000000700"),
    (TargetEpochChange(None), f"0006{G}", None),
    (TargetChange("m1", {T: frozenset({0, 2})}), f"0007{G}{M}", f"0000{OF_T}00"),
    (TargetChange("m1", {}), f"0007{G}{M}", "00000100"),
    (
        CurrentChange("m1", Current(3, 2, MemberState.UNRELEASED_PARTITIONS, {T: frozenset({0, 2})})),
        f"0008{G}{M}",
        f"0000000000030000000202{OF_T}0100",
    ),
    (CurrentChange("m1", None), f"0008{G}{M}", None),
    (
        PatternChange("a.*", Resolved(frozenset({"a1"}), 217, 1795456175321)),
        f"0010{G}0003{b'a.*'.hex()}",
        "0000" + "02036131" + struct.pack(">qq", 217, 1795456175321).hex() + "00",
    ),
    (PatternChange("a.*", None), f"0010{G}0003{b'a.*'.hex()}", None),
]  # fmt: skip


@pytest.mark.parametrize(("change", "key", "value"), GOLDEN)
def test_records(change: Change, key: str, value: str | None) -> None:
    written, body = records.encode("g", change)
    assert (written.hex(), None if body is None else body.hex()) == (key, value)
    (kind,) = struct.unpack_from(">h", written)
    assert records.decode(kind, written, body) == ("g", change)


def test_a_member_of_the_classic_protocol_is_read() -> None:
    """As Apache Kafka writes it while a group has members of both."""
    classic = "0100" + "10" + "01" + "00002710" + "02" + "06" + b"range".hex() + "0278" + "00" + "00"
    value = "00000000" + "0263" + "0268" + "02036131" + "01" + "00007530" + "00" + classic
    change = records.decode(5, bytes.fromhex(f"0005{G}{M}"), bytes.fromhex(value)).change
    about = About(
        None, None, "c", "h", frozenset({"a1"}), "", 30000, classic=Classic(10_000, (Protocol("range", b"x"),))
    )
    assert change == AboutChange("m1", about)


REQUEST: dict[str, Any] = {
    "group_id": "g",
    "member_id": "m1",
    "member_epoch": 0,
    "rebalance_timeout_ms": 30000,
    "subscribed_topic_names": ["a1"],
    "subscribed_topic_regex": "a.*",
    "topic_partitions": [{"topic_id": T, "partitions": [0, 2]}],
}
BEFORE = "0267" + "036d31" + "00000000" + "00" + "00" + "00007530" + "02036131"


@pytest.mark.parametrize(
    ("name", "version", "fields", "golden"),
    [
        ("ConsumerGroupHeartbeatRequest", 0, REQUEST, BEFORE + "00" + OF_T + "00"),
        ("ConsumerGroupHeartbeatRequest", 1, REQUEST, BEFORE + "04" + b"a.*".hex() + "00" + OF_T + "00"),
        (
            "ConsumerGroupHeartbeatResponse",
            1,
            {
                "member_id": "m1",
                "member_epoch": 3,
                "heartbeat_interval_ms": 5000,
                "assignment": {"topic_partitions": [{"topic_id": T, "partitions": [0, 2]}]},
            },
            "00000000" + "0000" + "00" + "036d31" + "00000003" + "00001388" + "01" + OF_T + "00" + "00",
        ),
        (
            "ConsumerGroupHeartbeatResponse",
            0,
            {"error_code": 110, "error_message": "no", "assignment": None},
            "00000000" + "006e" + "036e6f" + "00" + "00000000" + "00000000" + "ff" + "00",
        ),
        (
            "ConsumerGroupDescribeRequest",
            1,
            {"group_ids": ["g"], "include_authorized_operations": True},
            "020267" + "01" + "00",
        ),
    ],
)
def test_messages(name: str, version: int, fields: dict[str, Any], golden: str) -> None:
    kind = message(name)
    made = build(kind, fields, version)
    assert bytes(made.encode(version=version)).hex() == golden
    assert plain(kind.decode(bytes.fromhex(golden), version=version), version) == plain(made, version)


@pytest.mark.parametrize(("version", "last"), [(0, ""), (1, "01")])
def test_a_described_group(version: int, last: str) -> None:
    named = f"02{T_HEX}036131" + "0200000001" + "00"
    golden = (
        "00000000" + "02" + "0000" + "00" + "0267" + "07" + b"Stable".hex() + "00000003" * 2 + "08" + b"uniform".hex()
        + "02" + "036d31" + "00" + "00" + "00000003" + "0263" + "0268" + "02036131" + "01" + (named + "00") * 2 + last
        + "00" + "80000000" + "00" + "00"
    )  # fmt: skip
    told = message("ConsumerGroupDescribeResponse").decode(bytes.fromhex(golden), version=version)
    (group,) = told.groups
    (member,) = group.members
    assert (group.group_state, group.assignor_name, member.client_host) == ("Stable", "uniform", "h")
    assert [each.partitions for each in member.target_assignment.topic_partitions] == [[1]]
    assert bytes(told.encode(version=version)).hex() == golden
