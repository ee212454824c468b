"""Makes a self-signed certificate for the loopback API, with only the standard library.

kubectl sends a token only over TLS, so there must be a certificate; a laptop may have no openssl. It is ECDSA on P-256,
with one key and one signature. Use it only on loopback: the arithmetic is not constant-time.
"""

import base64
import hashlib
import secrets
from datetime import UTC, datetime, timedelta

_P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_A = _P - 3
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
Point = tuple[int, int]


def _add(left: Point | None, right: Point | None) -> Point | None:
    if left is None or right is None:
        return left or right
    (x1, y1), (x2, y2) = left, right
    if x1 == x2 and (y1 + y2) % _P == 0:
        return None
    slope = (3 * x1 * x1 + _A) * pow(2 * y1, -1, _P) if left == right else (y2 - y1) * pow(x2 - x1, -1, _P)
    x3 = (slope * slope - x1 - x2) % _P
    return x3, (slope * (x1 - x3) - y1) % _P


def _multiply(scalar: int, point: Point) -> Point:
    result: Point | None = None
    addend: Point | None = point
    while scalar:
        if scalar & 1:
            result = _add(result, addend)
        addend = _add(addend, addend)
        scalar >>= 1
    assert result is not None
    return result


def _sign(key: int, message: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
    while True:
        nonce = secrets.randbelow(_N - 1) + 1
        r = _multiply(nonce, _G)[0] % _N
        s = pow(nonce, -1, _N) * (digest + r * key) % _N
        if r and s:
            return _sequence(_integer(r), _integer(s))


# DER


def _tlv(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _sequence(*parts: bytes) -> bytes:
    return _tlv(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _tlv(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _oid(text: str) -> bytes:
    first, second, *rest = (int(part) for part in text.split("."))
    encoded = bytes([40 * first + second])
    for number in rest:
        septets = [number & 0x7F]
        while number := number >> 7:
            septets.append(number & 0x7F | 0x80)
        encoded += bytes(reversed(septets))
    return _tlv(0x06, encoded)


def _bits(content: bytes, unused: int = 0) -> bytes:
    return _tlv(0x03, bytes([unused]) + content)


def _time(moment: datetime) -> bytes:
    return _tlv(0x17, moment.strftime("%y%m%d%H%M%SZ").encode())


def _extension(oid: str, content: bytes, critical: bool = False) -> bytes:
    flag = _tlv(0x01, b"\xff") if critical else b""
    return _sequence(_oid(oid), flag, _tlv(0x04, content))


def _pem(label: str, content: bytes) -> str:
    text = base64.b64encode(content).decode()
    lines = "\n".join(text[start : start + 64] for start in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"


_ECDSA_SHA256 = "1.2.840.10045.4.3.2"
DAYS = 3650
_CURVE = _sequence(_oid("1.2.840.10045.2.1"), _oid("1.2.840.10045.3.1.7"))


def make_certificate() -> tuple[str, str]:
    """(certificate, private key) in PEM, for 127.0.0.1, ::1, localhost and the in-cluster names."""
    key = secrets.randbelow(_N - 1) + 1
    x, y = _multiply(key, _G)
    public = b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
    now = datetime.now(UTC) - timedelta(hours=1)
    name = _sequence(_tlv(0x31, _sequence(_oid("2.5.4.3"), _tlv(0x0C, b"ballast-local"))))
    key_id = hashlib.sha1(public, usedforsecurity=False).digest()
    names = [_tlv(0x82, host) for host in (b"localhost", b"kubernetes", b"kubernetes.default.svc")]
    names += [_tlv(0x87, bytes([127, 0, 0, 1])), _tlv(0x87, bytes(15) + b"\x01")]
    extensions = _sequence(
        _extension("2.5.29.14", _tlv(0x04, key_id)),
        _extension("2.5.29.35", _sequence(_tlv(0x80, key_id))),
        _extension("2.5.29.19", _sequence(_tlv(0x01, b"\xff")), critical=True),
        _extension("2.5.29.15", _bits(bytes([0b10000100]), 2), critical=True),
        _extension("2.5.29.37", _sequence(_oid("1.3.6.1.5.5.7.3.1"))),
        _extension("2.5.29.17", _sequence(*names)),
    )
    body = _sequence(
        _tlv(0xA0, _integer(2)),
        _integer(secrets.randbits(120) | 1),
        _sequence(_oid(_ECDSA_SHA256)),
        name,
        _sequence(_time(now), _time(now + timedelta(days=DAYS))),
        name,
        _sequence(_CURVE, _bits(public)),
        _tlv(0xA3, extensions),
    )
    certificate = _sequence(body, _sequence(_oid(_ECDSA_SHA256)), _bits(_sign(key, body)))
    private = _sequence(
        _integer(1),
        _tlv(0x04, key.to_bytes(32, "big")),
        _tlv(0xA0, _oid("1.2.840.10045.3.1.7")),
        _tlv(0xA1, _bits(public)),
    )
    return _pem("CERTIFICATE", certificate), _pem("EC PRIVATE KEY", private)
