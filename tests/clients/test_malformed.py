"""Whatever comes over the wire: the sender gets an error or is cut off, nobody else notices, the log is unharmed."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.clients.running import AN_HOUR_AGO_MS, RunningBroker
from tests.clients.test_librdkafka import consumer, create, from_beginning, producer, read, send

from ballast_broker.api.registry import BROKER_APIS
from ballast_wire.errors import ErrorCode
from ballast_wire.headers import frame_request, is_flexible
from ballast_wire.messages import message
from ballast_wire.records import CRC_POSITION, Record, encode_batch

PATIENCE_S = 20.0
PRODUCE_VERSION = 8


class Raw:
    """A socket that the test speaks into without any manners."""

    def __init__(self, broker: RunningBroker) -> None:
        self._socket = socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes | bytearray) -> None:
        with suppress(ConnectionResetError, BrokenPipeError):  # it may be cut off already
            self._socket.sendall(data)

    def receive(self) -> bytes:
        size = int.from_bytes(self._exactly(4), "big")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return data

    def is_cut_off(self) -> bool:
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True


def request(name: str, version: int, *, correlation_id: int = 7) -> bytes:
    """As empty as the schema allows."""
    kind = message(name + "Request")
    body = kind(version=version).encode(version=version)
    flexible = is_flexible(name + "Request", version)
    return frame_request(kind.API_KEY, version, correlation_id, "test", body, flexible=flexible)


def is_alive(broker: RunningBroker) -> bool:
    with Raw(broker) as raw:
        raw.send(request("ApiVersions", 0))
        return raw.receive()[:6] == struct.pack(">ih", 7, 0)


@pytest.mark.spec("CLI-08")
@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # the beginning of TLS
        struct.pack(">i", 2**31 - 1) + bytes(100),
        struct.pack(">i", -1) + bytes(100),
        struct.pack(">i", 0),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">ihhi", 10, 999, 0, 1) + b"\xff\xff",  # an unknown key
        struct.pack(">ihhi", 10, -1, 0, 1) + b"\xff\xff",
        struct.pack(">ihhi", 10, 3, 99, 1) + b"\xff\xff",  # an unknown version
        struct.pack(">ihhi", 10, 3, -1, 1) + b"\xff\xff",
        struct.pack(">ihhih", 10, 3, 1, 1, 5000),  # a client id that reaches past the end
        frame_request(3, 1, 7, "test", struct.pack(">ih", 1, 6) + b"ord", flexible=False),  # half the name of a topic
        frame_request(12, 4, 7, "test", b"\xff" * 4_000_000, flexible=True),  # a length without an end
    ],
    ids=["http", "tls", "2 GB", "negative", "empty", "short", "key", "key -1", "version", "version -1", "client id",
         "half a name", "endless"],
)  # fmt: skip
def test_what_makes_no_sense_is_cut_off(broker: RunningBroker, data: bytes) -> None:
    with Raw(broker) as raw:
        raw.send(data)
        assert raw.is_cut_off()
    assert is_alive(broker)


@pytest.mark.spec("CLI-08", "CLI-10")
@pytest.mark.parametrize("version", [5, 99, 32767])
def test_unknown_versions_of_api_versions_are_answered_in_version_0(broker: RunningBroker, version: int) -> None:
    with Raw(broker) as raw:
        raw.send(struct.pack(">ihhi", 10, 18, version, 7) + b"\xff\xff")
        answer = message("ApiVersionsResponse").decode(raw.receive()[4:], version=0)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    found = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert found[18] == (0, BROKER_APIS[18].highest)


def of_too_many(name: str) -> bytes:
    """A request that names 200,001 things, each as small as it may be; or one of 8 MB with nothing in it."""
    many = 200_001
    partitions = struct.pack(">i", many)
    body, version = {
        "Produce": (struct.pack(">hhiihc", -1, -1, 1000, 1, 1, b"t") + partitions + struct.pack(">ii", 0, 0) * many, 3),
        "Fetch": (
            struct.pack(">iiiibihc", -1, 0, 1, 1 << 20, 0, 1, 1, b"t")
            + partitions
            + struct.pack(">iqi", 0, 0, 1) * many,
            4,
        ),
        "DescribeGroups": (partitions + struct.pack(">h", 0) * many, 0),
        "ListOffsets": (struct.pack(">iihc", -1, 1, 1, b"t") + partitions + struct.pack(">iq", 0, -1) * many, 1),
        "Heartbeat": (struct.pack(">h", 30_000) + b"g" * 30_000 + bytes(8_000_000), 0),
    }[name]
    return frame_request(message(name + "Request").API_KEY, version, 7, "test", body, flexible=False)


@pytest.mark.spec("CLI-09")
@pytest.mark.parametrize("name", ["Produce", "Fetch", "DescribeGroups", "ListOffsets", "Heartbeat"])
def test_what_would_keep_all_others_waiting_is_cut_off(broker: RunningBroker, name: str) -> None:
    with Raw(broker) as raw:
        raw.send(of_too_many(name))
        assert raw.is_cut_off()
    assert is_alive(broker)


# ---- record batches that lie


def produce(broker: RunningBroker, topic: str, batch: bytes | bytearray) -> int:
    """The error that one produce request with this batch gets."""
    kind = message("ProduceRequest")
    partition = kind.TopicProduceData.PartitionProduceData(index=0, records=bytes(batch))
    data = [kind.TopicProduceData(name=topic, partition_data=[partition])]
    body = kind(version=PRODUCE_VERSION, transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=data)
    with Raw(broker) as raw:
        raw.send(frame_request(0, PRODUCE_VERSION, 7, "test", body.encode(version=PRODUCE_VERSION), flexible=False))
        answer = message("ProduceResponse").decode(raw.receive()[4:], version=PRODUCE_VERSION)
    return int(answer.responses[0].partition_responses[0].error_code)


def lying_batches() -> Iterator[tuple[str, bytearray]]:
    def sound() -> bytearray:
        return encode_batch([Record(b"k", b"v", AN_HOUR_AGO_MS)] * 3)

    for name, position, value in (
        ("its CRC", CRC_POSITION, b"\x00\x00\x00\x01"),
        ("a length too long", 8, struct.pack(">i", 10_000)),
        ("a negative length", 8, struct.pack(">i", -5)),
        ("a length of 2 GB", 8, struct.pack(">i", 2**31 - 1)),
        ("magic 1", 16, b"\x01"),
        ("magic 0", 16, b"\x00"),
        ("magic 99", 16, b"\x63"),
    ):
        batch = sound()
        batch[position : position + len(value)] = value
        yield name, batch
    yield "its end missing", sound()[:-1]
    yield "only a head", sound()[:61]
    yield "one byte", bytearray(b"\x00")
    yield "nothing", bytearray()
    yield "two batches, the second torn", sound() + sound()[:-5]


LYING = dict(lying_batches())


@pytest.mark.spec("CLI-08", "LOG-03")
@pytest.mark.parametrize("lie", LYING)
def test_a_batch_that_lies_is_refused_and_the_log_goes_on(broker: RunningBroker, topic: str, lie: str) -> None:
    create(broker, topic)
    send(producer(broker), topic, [b"before"])
    assert produce(broker, topic, LYING[lie]) != ErrorCode.NONE
    send(producer(broker), topic, [b"after"])
    reader = consumer(broker)
    reader.assign(from_beginning(topic))
    assert [(one.offset(), one.value()) for one in read(reader, 2)] == [(0, b"before"), (1, b"after")]
    reader.close()
