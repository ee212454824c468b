"""The adapter over kafka-python's message engine leaves kafka-python's own client as it was."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from ballast_wire.messages import message


@pytest.mark.spec("CLI-01")
def test_our_classes_do_not_take_the_clients_answers() -> None:
    """Whoever makes classes, in as many threads as they like: the client's table of answers stays as it is."""
    before = dict(ResponseClassRegistry._response_class_registry)
    names = ["MetadataResponse", "ListOffsetsResponse", "MetadataRequest", "BrokerHeartbeatResponse"] * 4
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(message.__wrapped__, names))
    made += [message("MetadataResponse")[3], message("ProduceResponse")[7]]  # a class per version is another class
    assert MetadataResponse not in made
    after = ResponseClassRegistry._response_class_registry
    assert after.keys() == before.keys()
    assert all(after[key] is kind for key, kind in before.items())


@pytest.mark.spec("CLI-01")
def test_the_client_decodes_with_its_own_class() -> None:
    message("MetadataResponse")
    header = MetadataRequest[1](topics=None)
    header.with_header()
    assert header.header.get_response_class() is MetadataResponse[1]


WHOLE = """
import sys
from ballast_wire.messages import message
message("MetadataResponse")
assert "kafka" not in sys.modules, "a broker needs no client"
from kafka.protocol.metadata import MetadataRequest
import kafka
kind = message("FetchRequest")
again = kind.decode(kind(max_wait_ms=7).encode(version=12), version=12)
print(kafka.KafkaConsumer.__name__, kafka.protocol.__name__, again.max_wait_ms)
"""


@pytest.mark.spec("CLI-01")
def test_the_client_is_whole_afterwards() -> None:
    """Whichever part of it is asked for first: Python 3.14 wants all above that part."""
    ran = subprocess.run([sys.executable, "-c", WHOLE], capture_output=True, text=True, timeout=50, check=False)
    assert (ran.stdout, ran.stderr) == ("KafkaConsumer kafka.protocol 7\n", "")


def test_what_was_decoded_can_be_encoded_again() -> None:
    kind = message("MetadataRequest")
    data = bytes(kind(topics=None, allow_auto_topic_creation=True).encode(version=12))
    assert bytes(kind.decode(data, version=12).encode(version=12)) == data
