"""Request and response headers, against those of kafka-python."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_wire.fast.reader import MalformedRequest
from ballast_wire.headers import frame_request, frame_response, is_flexible, parse_request_header, skip_header_tags
from ballast_wire.messages import message

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


@given(st.sampled_from([(0, 2), (12, 13)]), INT32, st.none() | st.text(max_size=200))
def test_headers_are_read_as_kafka_python_writes_them(
    versions: tuple[int, int], correlation_id: int, client_id: str | None
) -> None:
    for version in versions:
        request = message("MetadataRequest")(version=version)
        request.with_header(correlation_id=correlation_id, client_id=client_id)
        frame = memoryview(request.encode(version=version, header=True, framed=True))[4:]
        header = parse_request_header(frame)
        assert header[:4] == (3, version, correlation_id, client_id)
        body = skip_header_tags(frame, header.end) if is_flexible("MetadataRequest", version) else header.end
        assert frame[body:] == request.encode(version=version)


@given(st.booleans(), INT16, INT16, INT32, st.text(max_size=30), st.binary(max_size=30))
def test_what_is_framed_is_read_again(
    flexible: bool, key: int, version: int, correlation_id: int, client_id: str, body: bytes
) -> None:
    frame = memoryview(frame_request(key, version, correlation_id, client_id, body, flexible=flexible))
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    header = parse_request_header(frame[4:])
    assert header[:4] == (key, version, correlation_id, client_id)
    assert frame[4:][skip_header_tags(frame[4:], header.end) if flexible else header.end :] == body


@pytest.mark.spec("CLI-08")
@given(st.binary(max_size=60))
def test_noise_is_refused_or_read(noise: bytes) -> None:
    try:
        header = parse_request_header(memoryview(noise))
        skip_header_tags(memoryview(noise), header.end)
    except MalformedRequest:
        pass


@pytest.mark.spec("CLI-10")
def test_a_client_id_that_is_no_utf_8_is_read_as_java_reads_it() -> None:
    start = struct.pack(">hhih", 3, 4, 7, 6)
    assert parse_request_header(memoryview(start + b"M\xfcller")).client_id == "M\ufffdller"
    long = struct.pack(">hhih", 3, 4, 7, 20_000)
    assert parse_request_header(memoryview(long + b"?" * 20_000)).client_id == "?" * 20_000
    with pytest.raises(MalformedRequest):
        parse_request_header(memoryview(long + b"\xfc" * 20_000))


@pytest.mark.spec("CLI-08")
def test_an_endless_varint_of_tags_is_refused() -> None:
    with pytest.raises(MalformedRequest):
        skip_header_tags(memoryview(b"\xff" * 40), 0)
    with pytest.raises(MalformedRequest):
        skip_header_tags(memoryview(b"\xff\xff\xff\xff\x07" + b"\x00\x00" * 4), 0)


def test_api_versions_keeps_the_old_response_header() -> None:
    assert frame_response(18, 7, b"body", flexible=True) == struct.pack(">ii", 8, 7) + b"body"
    assert frame_response(3, 7, b"body", flexible=True) == struct.pack(">ii", 9, 7) + b"\x00body"
    assert frame_response(3, 7, b"body", flexible=False) == struct.pack(">ii", 8, 7) + b"body"
