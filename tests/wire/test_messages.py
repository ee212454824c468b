"""The adapter over kafka-python's message engine leaves kafka-python's own client as it was."""

from __future__ import annotations

import pytest
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.metadata import MetadataResponse

from ballast_wire.messages import message


@pytest.mark.spec("CLI-01")
def test_our_classes_do_not_take_the_clients_answers() -> None:
    ours = message("MetadataResponse")
    assert ours is not MetadataResponse
    message("ListOffsetsResponse")
    registered = ResponseClassRegistry._response_class_registry[ours.API_KEY]
    assert registered.__module__ == "kafka.protocol.metadata.metadata"


def test_what_was_decoded_can_be_encoded_again() -> None:
    kind = message("MetadataRequest")
    data = bytes(kind(topics=None, allow_auto_topic_creation=True).encode(version=12))
    assert bytes(kind.decode(data, version=12).encode(version=12)) == data
