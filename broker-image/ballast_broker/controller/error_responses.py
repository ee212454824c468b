"""Builds the error response to a whole request, at the top level or in each entry, as its schema requires. PURE."""

from __future__ import annotations

from typing import Any

from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.failures import failure_response


def error_response(name: str, request: Any, error: ApiError) -> Any:
    """`name` is the API's name, without "Request"."""
    return failure_response(name, request, request.API_VERSION, error.code, error.message)


_ENTRY_LISTS = ("topics", "responses", "results", "filter_results", "entries")


def is_not_controller(response: Any) -> bool:
    """Whether the whole request has to be retried at another controller."""
    code = int(ErrorCode.NOT_CONTROLLER)
    if type(response).__name__ in ("AddRaftVoterResponse", "RemoveRaftVoterResponse"):
        return response.error_code in (code, int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    fields = type(response).fields
    if "error_code" in fields:
        return bool(response.error_code == code)
    for name in _ENTRY_LISTS:
        if name in fields:
            entries = getattr(response, name)
            return bool(entries) and all(getattr(each, "error_code", 0) == code for each in entries)
    return False
