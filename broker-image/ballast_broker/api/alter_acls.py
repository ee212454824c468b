"""CreateAcls and DeleteAcls: forwarded to the controller for those who may alter the cluster."""

from __future__ import annotations

from typing import Any

from ballast_broker.api import forwarded
from ballast_broker.api.context import RequestContext
from ballast_wire.fast.reader import MalformedRequest

UNKNOWN = 0
CODES = ("resource_type", "resource_type_filter", "resource_pattern_type", "pattern_type_filter", "operation",
         "permission_type")  # fmt: skip


async def handle(request: Any, context: RequestContext) -> Any:
    for each in request.creations if hasattr(request, "creations") else request.filters:
        check_codes(each)
    return await forwarded.handle(request, context)


def check_codes(asked: Any) -> None:
    """As Kafka, treat code 0 (UNKNOWN) as unparseable; other unknown codes are accepted here."""
    if any(getattr(asked, name, None) == UNKNOWN for name in CODES):
        raise MalformedRequest("an access control entry with a code of nothing known")
