"""The fast check of a plain batch never accepts what the full check refuses."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from ballast_broker.config.logs import LogConfig
from ballast_broker.storage.validation import CLIENT, check_leader_batch, is_plain
from ballast_wire.records import CRC_FROM, CRC_POSITION, HEADER, Header, Record, encode_batch

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(max_message_bytes=200)


def batch_of(size: int) -> bytearray:
    return bytearray(encode_batch([Record(None, bytes(size), NOW_MS)]))


@pytest.mark.spec("LOG-03")
@given(st.integers(0, 250), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=2), st.booleans())
def test_what_is_plain_passes_the_full_check(size: int, changes: list[tuple[int, int]], sealed: bool) -> None:
    batch = batch_of(size)
    for position, value in changes:
        batch[position] = value
    if sealed:  # the checksum fits, so that what it covers is looked at for itself
        struct.pack_into(">I", batch, CRC_POSITION, crc32c(bytes(batch[CRC_FROM:])))
    view = memoryview(batch)
    fields = HEADER.unpack_from(view)
    if is_plain(view, fields, CONFIG, NOW_MS):
        check_leader_batch(view, Header._make(fields), CONFIG, "t-0", CLIENT, NOW_MS)


@pytest.mark.spec("LOG-03")
def test_a_clients_batch_is_plain() -> None:
    view = memoryview(batch_of(100))
    assert is_plain(view, HEADER.unpack_from(view), CONFIG, NOW_MS)
