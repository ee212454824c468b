"""Requests that the controller answers: sent on to it as they came, its answer handed back."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.context import RequestContext


async def handle(request: Any, context: RequestContext) -> Any:
    return await forward(request, context)


async def forward(request: Any, context: RequestContext) -> Any:
    """The controller's answer; ApiError REQUEST_TIMED_OUT where there is none within `request.timeout.ms`."""
    timeout_s = context.broker.config.request_timeout_ms / 1000
    return await context.broker.controller.call(request, context.version, timeout_s=timeout_s)
