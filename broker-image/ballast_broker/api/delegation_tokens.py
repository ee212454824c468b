"""CreateDelegationToken, RenewDelegationToken and ExpireDelegationToken: checked here, executed by the controller.

The requester must be authenticated, and not by a token, since whatever a token permits must end with it. Creating a
token for another user requires CREATE_TOKENS on that user; whether the requester may renew a token is checked by the
controller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ballast_broker.api.authorizer import Operation, Resource, ResourceKind
from ballast_broker.api.context import RequestContext
from ballast_broker.controller.commands.delegation_tokens import (
    CREATE,
    NEVER_MS,
    USER,
    change_answer,
    creation_answer,
    has_other_renewers,
    owner_of,
)
from ballast_broker.metadata.delegation_tokens import written
from ballast_broker.net_reply import ANONYMOUS
from ballast_wire.envelope import Requester
from ballast_wire.errors import ErrorCode

AskFor = Callable[[Any, Requester], Awaitable[Any]]


async def handle(request: Any, context: RequestContext) -> Any:
    timeout_s = context.broker.config.request_timeout_ms / 1000

    async def ask(allowed: Any, asker: Requester) -> Any:
        if context.api_key == CREATE and has_other_renewers(allowed):
            return _refused(allowed, context, ErrorCode.INVALID_PRINCIPAL_TYPE)
        return await context.broker.controller.call(allowed, context.version, timeout_s=timeout_s, asker=asker)

    return await ask_if_allowed(request, context, ask)


async def ask_if_allowed(request: Any, context: RequestContext, ask: AskFor) -> Any:
    if not may_ask(context):
        return _refused(request, context, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if context.api_key == CREATE and not _may_create(request, context):
        return _refused(request, context, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    return await ask(request, context.asker)


def may_ask(context: RequestContext) -> bool:
    return context.principal != ANONYMOUS and not context.principal.by_token


def principal_of(context: RequestContext) -> str:
    return written(USER, context.principal.name)


def _may_create(request: Any, context: RequestContext) -> bool:
    requester = principal_of(context)
    owner = owner_of(request, requester)
    return owner == requester or context.authorize(Operation.CREATE_TOKENS, Resource(ResourceKind.USER, owner))


def _refused(request: Any, context: RequestContext, error: ErrorCode) -> Any:
    if context.api_key == CREATE:
        return creation_answer(request, principal_of(context), error, time_ms=NEVER_MS)
    return change_answer(context.api_key, error, time_ms=NEVER_MS)
