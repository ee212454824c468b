"""Delegation tokens on the wire and in the metadata: the bytes that Apache Kafka 4.1's own classes make."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.compare import build, plain

from ballast_broker.metadata.delegation_tokens import DelegationToken
from ballast_broker.metadata.records import decode_record, encode_record, record
from ballast_wire.messages import message

pytestmark = pytest.mark.spec("CLI-13")

HMAC, TOKEN_ID = b"\x01\x02\x03\xff", "n8NK4bc1Qze724ECwi2_aQ"
ISSUED, EXPIRES, ENDS = 1_700_000_000_000, 1_700_000_060_000, 1_700_000_120_000
ZOE, BOB = ({"principal_type": "User", "principal_name": each} for each in ("Zoë", "bob"))
OWNER = {"owner_principal_type": "User", "owner_principal_name": "Zoë"}
REQUESTER = {"token_requester_principal_type": "User", "token_requester_principal_name": "ann"}
CREATION = {**OWNER, "renewers": [BOB], "max_lifetime_ms": 60_000}
FOR_ONESELF: dict[str, Any] = {
    "owner_principal_type": None,
    "owner_principal_name": None,
    "renewers": [],
    "max_lifetime_ms": -1,
}
CREATED = {
    **ZOE,
    **REQUESTER,
    "issue_timestamp_ms": ISSUED,
    "expiry_timestamp_ms": EXPIRES,
    "max_timestamp_ms": ENDS,
    "token_id": TOKEN_ID,
    "hmac": HMAC,
    "throttle_time_ms": 7,
}
ASKED: dict[str, Any] = {"owners": [ZOE]}
ALL: dict[str, Any] = {"owners": None}
TOKEN = {
    **ZOE,
    **REQUESTER,
    "issue_timestamp": ISSUED,
    "expiry_timestamp": EXPIRES,
    "max_timestamp": ENDS,
    "token_id": TOKEN_ID,
    "hmac": HMAC,
    "renewers": [BOB],
}
DESCRIBED = {"tokens": [TOKEN], "throttle_time_ms": 7}
RENEWAL = {"hmac": HMAC, "renew_period_ms": 60_000}
RENEWED = {"error_code": 63, "expiry_timestamp_ms": EXPIRES, "throttle_time_ms": 7}
END = {"hmac": HMAC, "expiry_time_period_ms": -1}
ENDED = {"error_code": 66, "expiry_timestamp_ms": EXPIRES, "throttle_time_ms": 7}
KEPT = DelegationToken(TOKEN_ID, "User:Zoë", "User:ann", ("User:bob", "User:carol"), ISSUED, ENDS, EXPIRES)


@pytest.mark.parametrize(
    ("name", "version", "fields", "golden"),
    [
        ("CreateDelegationTokenRequest", 1, CREATION, "000000010004557365720003626f62000000000000ea60"),
        (
            "CreateDelegationTokenResponse",
            1,
            CREATED,
            (
                "000000045573657200045a6fc3ab0000018bcfe568000000018bcfe652600000018bcfe73cc000166e384e4b"
                "34626331517a6537323445437769325f615100000004010203ff00000007"
            ),
        ),
        ("DescribeDelegationTokenRequest", 1, ASKED, "0000000100045573657200045a6fc3ab"),
        ("DescribeDelegationTokenRequest", 1, ALL, "ffffffff"),
        (
            "DescribeDelegationTokenResponse",
            1,
            DESCRIBED,
            (
                "00000000000100045573657200045a6fc3ab0000018bcfe568000000018bcfe652600000018bcfe73cc00016"
                "6e384e4b34626331517a6537323445437769325f615100000004010203ff000000010004557365720003626f"
                "6200000007"
            ),
        ),
        ("CreateDelegationTokenRequest", 2, CREATION, "02055573657204626f6200000000000000ea6000"),
        (
            "CreateDelegationTokenResponse",
            2,
            CREATED,
            (
                "00000555736572055a6fc3ab0000018bcfe568000000018bcfe652600000018bcfe73cc0176e384e4b346263"
                "31517a6537323445437769325f615105010203ff0000000700"
            ),
        ),
        ("DescribeDelegationTokenRequest", 2, ASKED, "020555736572055a6fc3ab0000"),
        ("DescribeDelegationTokenRequest", 2, ALL, "0000"),
        (
            "DescribeDelegationTokenResponse",
            2,
            DESCRIBED,
            (
                "0000020555736572055a6fc3ab0000018bcfe568000000018bcfe652600000018bcfe73cc0176e384e4b3462"
                "6331517a6537323445437769325f615105010203ff02055573657204626f6200000000000700"
            ),
        ),
        ("CreateDelegationTokenRequest", 3, CREATION, "0555736572055a6fc3ab02055573657204626f6200000000000000ea6000"),
        (
            "CreateDelegationTokenResponse",
            3,
            CREATED,
            (
                "00000555736572055a6fc3ab055573657204616e6e0000018bcfe568000000018bcfe652600000018bcfe73c"
                "c0176e384e4b34626331517a6537323445437769325f615105010203ff0000000700"
            ),
        ),
        ("DescribeDelegationTokenRequest", 3, ASKED, "020555736572055a6fc3ab0000"),
        ("DescribeDelegationTokenRequest", 3, ALL, "0000"),
        (
            "DescribeDelegationTokenResponse",
            3,
            DESCRIBED,
            (
                "0000020555736572055a6fc3ab055573657204616e6e0000018bcfe568000000018bcfe652600000018bcfe7"
                "3cc0176e384e4b34626331517a6537323445437769325f615105010203ff02055573657204626f6200000000"
                "000700"
            ),
        ),
        ("CreateDelegationTokenRequest", 3, FOR_ONESELF, "000001ffffffffffffffff00"),
        ("RenewDelegationTokenRequest", 1, RENEWAL, "00000004010203ff000000000000ea60"),
        ("RenewDelegationTokenResponse", 1, RENEWED, "003f0000018bcfe6526000000007"),
        ("ExpireDelegationTokenRequest", 1, END, "00000004010203ffffffffffffffffff"),
        ("ExpireDelegationTokenResponse", 1, ENDED, "00420000018bcfe6526000000007"),
        ("RenewDelegationTokenRequest", 2, RENEWAL, "05010203ff000000000000ea6000"),
        ("RenewDelegationTokenResponse", 2, RENEWED, "003f0000018bcfe652600000000700"),
        ("ExpireDelegationTokenRequest", 2, END, "05010203ffffffffffffffffff00"),
        ("ExpireDelegationTokenResponse", 2, ENDED, "00420000018bcfe652600000000700"),
    ],
)
def test_messages(name: str, version: int, fields: dict[str, Any], golden: str) -> None:
    kind = message(name)
    made = build(kind, fields, version)
    assert bytes(made.encode(version=version)).hex() == golden
    assert plain(kind.decode(bytes.fromhex(golden), version=version), version) == plain(made, version)


def test_records() -> None:
    golden = (
        "010a000a557365723a5a6fc3ab09557365723a616e6e0309557365723a626f620b557365723a6361726f6c0000018bcfe568"
        "000000018bcfe73cc00000018bcfe65260176e384e4b34626331517a6537323445437769325f615100"
    )
    assert encode_record(KEPT.record()).hex() == golden
    assert DelegationToken.of(decode_record(bytes.fromhex(golden))) == KEPT
    removal = record("RemoveDelegationTokenRecord", token_id=TOKEN_ID)
    assert encode_record(removal).hex() == "011a00176e384e4b34626331517a6537323445437769325f615100"
