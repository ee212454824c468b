"""Reads the subject of a certificate as the user name that Kafka makes of it (RFC 2253, the last part first). PURE.

Only as much of the certificate's DER is parsed as it takes to find its subject.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

VERSION_TAG = 0xA0
# Those of RFC 2253; Java writes all other attributes as OIDs with hexadecimal DER.
KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
ENCODINGS = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii"}
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)


class SubjectError(ValueError):
    """There is no certificate, or its subject cannot be written as a user's name."""


def subject_of(pem: str) -> str:
    """The subject of the first certificate of a chain, which is the owner's."""
    found = _CERTIFICATE.search(pem)
    if found is None:
        raise SubjectError("it has no certificate in it")
    try:
        der = base64.b64decode(found[1])
        fields = list(_parts(_first(_first(der))))
        name = fields[5 if fields[0][0] == VERSION_TAG else 4][1]
        parts = ["+".join(_attribute(one) for _, one in _parts(each)) for _, each in _parts(name)]
    except (IndexError, ValueError, binascii.Error) as error:
        raise SubjectError(f"its subject cannot be read: {error}") from None
    return ",".join(reversed(parts))


def _first(data: bytes) -> bytes:
    return next(_parts(data))[1]


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, content) of consecutive DER values."""
    position = 0
    while position < len(data):
        tag, size, start = data[position], data[position + 1], position + 2
        if size & 0x80:
            count = size & 0x7F
            size, start = int.from_bytes(data[start : start + count], "big"), start + count
        if start + size > len(data):
            raise ValueError("it ends early")
        yield tag, data[start : start + size]
        position = start + size


def _attribute(data: bytes) -> str:
    (_, kind), (tag, value) = _parts(data)
    keyword = KEYWORDS.get(_dotted(kind))
    if keyword is None or tag not in ENCODINGS:
        raise ValueError(f"{_dotted(kind)} is none of {', '.join(KEYWORDS.values())}, or no plain text")
    text = value.decode(ENCODINGS[tag])
    escaped = re.sub(r'([,=+<>#;"\\])', r"\\\1", text)
    if text != text.strip() or not text:
        raise ValueError(f"{keyword} is empty, or has blanks around it")
    return f"{keyword}={escaped}"


def _dotted(content: bytes) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
