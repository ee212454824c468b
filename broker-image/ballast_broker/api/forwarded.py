"""Forwards requests to the controller, as far as the requester is authorized, and returns its response.

Authorization happens here: the controller trusts whoever may act for the cluster, and learns who the requester is only
if that one's quotas concern it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ballast_broker.api.context import RequestContext
from ballast_broker.api.permissions import ask_for_what_is_allowed

SAYS_NOT_CONTROLLER_SINCE = {43: 1}
"""ElectLeaders version 0 has no top-level error: NOT_CONTROLLER for all partitions would look like success."""


async def handle(request: Any, context: RequestContext) -> Any:
    return await ask_for_what_is_allowed(request, context, partial(forward, context=context))


async def forward(request: Any, context: RequestContext) -> Any:
    """The controller's response; raises ApiError REQUEST_TIMED_OUT if there is none within `request.timeout.ms`."""
    timeout_s = context.broker.config.request_timeout_ms / 1000
    version = max(context.version, SAYS_NOT_CONTROLLER_SINCE.get(context.api_key, 0))
    response = await context.broker.controller.call(request, version, timeout_s=timeout_s, asker=context.asker_to_tell)
    if version != context.version:
        response._version = context.version
    return response
