"""Errors are found wherever a response tells them."""

from __future__ import annotations

from typing import Any

import pytest

from ballast_wire.error_codes import errors_in
from ballast_wire.fast.metadata import MetadataResponse, encode_topic
from ballast_wire.messages import message
from ballast_wire.names import ZERO_UUID

Heartbeat, Topics, Offsets = (message(f"{name}Response") for name in ("Heartbeat", "CreateTopics", "ListOffsets"))


def created(code: int) -> Any:
    return Topics.CreatableTopicResult(name="t", error_code=code, error_message=None, topic_config_error_code=0)


def listed(*codes: int) -> Any:
    kind = Offsets.ListOffsetsTopicResponse
    partitions = [kind.ListOffsetsPartitionResponse(partition_index=n, error_code=c) for n, c in enumerate(codes)]
    return kind(name="t", partitions=partitions)


@pytest.mark.parametrize(
    ("response", "version", "codes"),
    [
        (Heartbeat(error_code=0), 1, []),
        (Heartbeat(error_code=27), 1, [27]),
        (Topics(topics=[created(0), created(36)]), 7, [36]),
        (Offsets(topics=[listed(0, 3), listed(6)]), 5, [3, 6]),
        (Offsets(topics=[]), 5, []),
    ],
)
def test_errors_are_found(response: Any, version: int, codes: list[int]) -> None:
    decoded = type(response).decode(bytes(response.encode(version=version)), version=version)
    assert list(errors_in(decoded, version)) == codes


def test_errors_of_a_response_made_by_hand_are_found() -> None:
    topics = [
        encode_topic(12, error=code, name="t", topic_id=ZERO_UUID, internal=False, partitions=[], operations=0)
        for code in (0, 3, 100)
    ]
    assert list(errors_in(MetadataResponse(12, [], "cluster", 1, topics, 0), 12)) == [3, 100]
