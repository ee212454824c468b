"""SaslHandshake and SaslAuthenticate after authentication or without SASL; regular ones are handled in `net`."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.context import RequestContext
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

HANDSHAKE = 17


async def handle(request: Any, context: RequestContext) -> Any:
    del request
    error = ErrorCode.ILLEGAL_SASL_STATE
    if context.api_key == HANDSHAKE:
        return message("SaslHandshakeResponse")(error_code=error, mechanisms=[])
    text = "SaslAuthenticate request received after successful authentication"
    return message("SaslAuthenticateResponse")(error_code=error, error_message=text, auth_bytes=b"")
