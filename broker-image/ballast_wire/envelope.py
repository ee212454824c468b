"""Wraps and unwraps forwarded requests: Envelope, as Kafka's brokers send it to a controller.

It contains the whole request with its header, the client's principal and address. PURE.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import Any, NamedTuple

from ballast_wire.errors import ErrorCode
from ballast_wire.fast.reader import MalformedRequest
from ballast_wire.headers import (
    frame_request,
    frame_response,
    is_flexible,
    parse_request_header,
    skip_header_tags,
)
from ballast_wire.messages import message

API_KEY, VERSION = 58, 0
PRINCIPAL_VERSION = 0
LENGTH_BYTES = 4
CORRELATION_ID = 0
USER = "User"


class Requester(NamedTuple):
    """The client for whom a request is forwarded."""

    user: str
    client_id: str
    host: str  # as Kafka writes it: "/127.0.0.1"
    by_token: bool = False  # authenticated by a delegation token


class Enclosed(NamedTuple):
    """A request taken from an envelope."""

    name: str  # without Request
    version: int
    correlation_id: int
    request: Any
    asker: Requester


def enclose(request: Any, version: int, asker: Requester) -> Any:
    name = type(request).__name__
    frame = frame_request(
        request.API_KEY,
        version,
        CORRELATION_ID,
        asker.client_id,
        request.encode(version=version),
        flexible=is_flexible(name, version),
    )
    principal = message("DefaultPrincipalData")(type=USER, name=asker.user, token_authenticated=asker.by_token)
    return message("EnvelopeRequest")(
        request_data=frame[LENGTH_BYTES:],
        request_principal=struct.pack(">h", PRINCIPAL_VERSION) + bytes(principal.encode(version=PRINCIPAL_VERSION)),
        client_host_address=_packed(asker.host),
    )


def disclose(envelope: Any, names: dict[int, str]) -> Enclosed:
    """`names`: the APIs that may be forwarded. MalformedRequest if it is none of them, or cannot be decoded."""
    frame = memoryview(bytes(envelope.request_data))
    header = parse_request_header(frame)
    name = names.get(header.api_key)
    if name is None:
        raise MalformedRequest(f"API key {header.api_key} is not sent on for others")
    kind = message(name + "Request")
    position = skip_header_tags(frame, header.end) if is_flexible(name + "Request", header.version) else header.end
    try:
        request = kind.decode(bytes(frame[position:]), version=header.version)
        principal = _principal(envelope.request_principal)
        host = f"/{ipaddress.ip_address(bytes(envelope.client_host_address))}"
    except Exception as error:  # the codec may raise anything on bad bytes
        raise MalformedRequest(f"what is in an envelope cannot be read: {error}") from error
    asker = Requester(principal.name, header.client_id or "", host, principal.token_authenticated)
    return Enclosed(name, header.version, header.correlation_id, request, asker)


def enclose_answer(enclosed: Enclosed, response: Any) -> Any:
    """Wrap a response, with its own header, in an EnvelopeResponse."""
    version = enclosed.version
    flexible = is_flexible(enclosed.name + "Request", version)
    frame = frame_response(
        response.API_KEY, enclosed.correlation_id, response.encode(version=version), flexible=flexible
    )
    return refusal(ErrorCode.NONE, frame[LENGTH_BYTES:])


def refusal(error: ErrorCode, answer: bytes | None = None) -> Any:
    return message("EnvelopeResponse")(response_data=answer, error_code=int(error))


def disclose_answer(envelope: Any, request_name: str, version: int) -> Any:
    """The response to the request of this name, taken from an EnvelopeResponse."""
    tags_bytes = 1 if is_flexible(request_name, version) else 0
    body = bytes(envelope.response_data)[LENGTH_BYTES + tags_bytes :]
    return message(request_name.removesuffix("Request") + "Response").decode(body, version=version)


def _principal(data: Any) -> Any:
    if data is None:
        raise ValueError("nobody is named")
    (version,) = struct.unpack_from(">h", data)
    return message("DefaultPrincipalData").decode(bytes(data)[2:], version=version)


def _packed(host: str) -> bytes:
    address = host.removeprefix("/").partition("%")[0]
    return ipaddress.ip_address(address).packed
