"""Requests that are sent on for others: what is put into an envelope comes out of it, and nothing else does."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from ballast_wire.envelope import Requester, disclose, disclose_answer, enclose, enclose_answer, refusal
from ballast_wire.errors import ErrorCode
from ballast_wire.fast.reader import MalformedRequest
from ballast_wire.messages import message

NAMES = {19: "CreateTopics", 37: "CreatePartitions"}
ANN = Requester("ann", "app", "/10.0.0.1")


def creation() -> Any:
    kind = message("CreateTopicsRequest")
    topic = kind.CreatableTopic(name="t", num_partitions=3, replication_factor=1, assignments=[], configs=[])
    return kind(topics=[topic], timeout_ms=7, validate_only=True)


def through_bytes(sent: Any) -> Any:
    name = type(sent).__name__
    return message(name).decode(bytes(sent.encode(version=0)), version=0)


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize("version", [2, 4, 5, 7])  # with a flexible header and without
@pytest.mark.parametrize("asker", [ANN, Requester("", "", "/::1"), Requester("Zoë", "ä", "/fe80::1")])
def test_a_request_and_its_answer_come_as_they_were(version: int, asker: Requester) -> None:
    found = disclose(through_bytes(enclose(creation(), version, asker)), NAMES)
    assert (found.name, found.version, found.asker) == ("CreateTopics", version, asker)
    assert [(each.name, each.num_partitions) for each in found.request.topics] == [("t", 3)]
    assert (found.request.timeout_ms, found.request.API_VERSION) == (7, version)
    answer = message("CreateTopicsResponse")(topics=[], throttle_time_ms=25)
    envelope = through_bytes(enclose_answer(found, answer))
    assert envelope.error_code == ErrorCode.NONE
    assert disclose_answer(envelope, "CreateTopicsRequest", version).throttle_time_ms == 25


def test_a_scope_of_an_address_stays_behind() -> None:
    found = disclose(enclose(creation(), 7, ANN._replace(host="/fe80::1%eth0")), NAMES)
    assert found.asker.host == "/fe80::1"


def test_a_refusal_has_no_answer_in_it() -> None:
    envelope = through_bytes(refusal(ErrorCode.NOT_CONTROLLER))
    assert (envelope.error_code, envelope.response_data) == (ErrorCode.NOT_CONTROLLER, None)


@pytest.mark.spec("CLI-08")
@pytest.mark.parametrize(
    "changes",
    [
        {"request_data": b""},
        {"request_data": struct.pack(">hhih", 19, 7, 1, -1)},
        {"request_data": struct.pack(">hhih", 20, 6, 1, -1) + b"\0\1\0\0\0\0\0"},
        {"request_data": struct.pack(">hhih", 58, 0, 1, -1) + b"\0\1\0\0"},
        {"request_principal": None},
        {"request_principal": b"\0"},
        {"request_principal": b"\0\0\x7fUser"},
        {"client_host_address": b"\1\2\3"},
    ],
)
def test_what_is_no_request_for_others_is_refused(changes: dict[str, Any]) -> None:
    envelope = enclose(creation(), 7, ANN)
    for field, value in changes.items():
        setattr(envelope, field, value)
    with pytest.raises(MalformedRequest):
        disclose(envelope, NAMES)
