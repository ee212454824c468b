"""Requests that the controller answers: what is allowed of one is sent on to it, and its answer handed back.

Everything is decided here: the controller trusts whoever may act for the cluster, and learns who asked only where that
one's quotas concern it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ballast_broker.api.context import RequestContext
from ballast_broker.api.permissions import ask_for_what_is_allowed

SAYS_NOT_CONTROLLER_SINCE = {43: 1}
"""The first ElectLeaders has no error of its own: who asked for all partitions would be told that all went well."""


async def handle(request: Any, context: RequestContext) -> Any:
    return await ask_for_what_is_allowed(request, context, partial(forward, context=context))


async def forward(request: Any, context: RequestContext) -> Any:
    """The controller's answer; ApiError REQUEST_TIMED_OUT where there is none within `request.timeout.ms`."""
    timeout_s = context.broker.config.request_timeout_ms / 1000
    version = max(context.version, SAYS_NOT_CONTROLLER_SINCE.get(context.api_key, 0))
    response = await context.broker.controller.call(request, version, timeout_s=timeout_s, asker=context.asker_to_tell)
    if version != context.version:
        response._version = context.version
    return response
