"""The initial client response of OAUTHBEARER (RFC 7628), byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_broker.security.oauthbearer import MOST_BYTES, OauthbearerError, first_message, parse_first

pytestmark = pytest.mark.spec("CLI-06")


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (b"n,,\x01auth=Bearer a.b.c\x01\x01", ("", "a.b.c", {})),
        (b"n,,\x01auth=bEARER   a.b-c_d~e+f/g==\x01\x01", ("", "a.b-c_d~e+f/g==", {})),
        (b"n,a=alice,\x01auth=Bearer t\x01\x01", ("alice", "t", {})),
        (b"n,a=a=2Cb=3Dc,\x01auth=Bearer t\x01\x01", ("a,b=c", "t", {})),
        (b"n,,\x01host=a b\t\x01auth=Bearer t\x01port=9092\x01\x01", ("", "t", {"host": "a b\t", "port": "9092"})),
        (b"n,,\x01auth=Bearer t\x01a=x=y\x01\x01", ("", "t", {"a": "x=y"})),
    ],
)
def test_what_is_said(message: bytes, found: tuple[str, str, dict[str, str]]) -> None:
    assert parse_first(message) == found


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"\x00alice\x00secret",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer t\x01",
        b"n,,\x01auth=Bearer t\x01\x01\x01",
        b"n,,\x01auth=Bearer t\x01\x01n",
        b"n,\x01auth=Bearer t\x01\x01",
        b"y,,\x01auth=Bearer t\x01\x01",
        b"p=x,,\x01auth=Bearer t\x01\x01",
        b"n,a=,\x01auth=Bearer t\x01\x01",
        b"n,a=a=2c,\x01auth=Bearer t\x01\x01",
        b"n,,\x01auth=Basic t\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearert\x01\x01",
        b"n,,\x01auth=Bearer t t\x01\x01",
        b"n,,\x01auth=Bearer t=t\x01\x01",
        b"n,,\x01auth=Bearer t\xc3\xa9\x01\x01",
        b"n,,\x01auth=Bearer t\x01auth=Bearer u\x01\x01",
        b"n,,\x01a=1\x01a=2\x01auth=Bearer t\x01\x01",
        b"n,,\x01au1th=Bearer t\x01\x01",
        b"n,,\x01a=\x01auth=Bearer t\x01\x01",
        b"n,,\x01a=\x00\x01auth=Bearer t\x01\x01",
        b"n,,\x01host=a\x01\x01",
        b"n,,\x01auth=Bearer " + b"t" * MOST_BYTES + b"\x01\x01",
    ],
)
def test_what_is_not_said(message: bytes) -> None:
    with pytest.raises(OauthbearerError):
        parse_first(message)


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda more: b"n,,\x01auth=Bearer t\x01" + more))
def test_no_bytes_break_it(message: bytes) -> None:
    try:
        found = parse_first(message)
    except OauthbearerError:
        return
    assert found.token


KEYS = st.text("abcXYZ", min_size=1).filter(lambda key: key != "auth")


@given(
    st.from_regex(r"\A[-_~+/.a-zA-Z0-9]+=*\Z"),
    st.dictionaries(KEYS, st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1), max_size=4),
)
def test_what_we_say_is_understood(token: str, extensions: dict[str, str]) -> None:
    assert parse_first(first_message(token, extensions)) == ("", token, extensions)


@pytest.mark.timeout(10)
def test_a_long_message_takes_no_time() -> None:
    """A regular expression with exponential backtracking would take years."""
    for piece in (b"a=b\x01", b"a=", b"\x01", b"=2C", b" ", b"a"):
        for start in (b"n,,\x01", b"n,a="):
            with pytest.raises(OauthbearerError):
                parse_first(start + piece * ((MOST_BYTES - 10) // len(piece)))
