"""DescribeDelegationToken: the tokens the requester may see, with the HMACs needed to use them."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, Resource, ResourceKind
from ballast_broker.api.context import RequestContext
from ballast_broker.api.delegation_tokens import may_ask, principal_of
from ballast_broker.metadata.delegation_tokens import DelegationToken, parted, written
from ballast_broker.security.delegation import hmac_of
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

FIRST_WITH_REQUESTER = 3


async def handle(request: Any, context: RequestContext) -> Any:
    secret = context.broker.config.delegation_token_secret
    if not may_ask(context):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if secret is None:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = None
    if request.owners is not None:
        owners = [written(each.principal_type, each.principal_name) for each in request.owners]
    kind = message("DescribeDelegationTokenResponse")
    tokens = []
    async for token in InTurns(sorted(context.broker.image().security.delegation_tokens.values())):
        asked = owners is None or any(token.concerns(owner) for owner in owners)
        if asked and _may_see(token, context):
            tokens.append(_described(kind.DescribedDelegationToken, token, secret, context.version))
    return kind(error_code=ErrorCode.NONE, tokens=tokens)


def _may_see(token: DelegationToken, context: RequestContext) -> bool:
    return (
        token.concerns(principal_of(context))
        or context.may(Operation.DESCRIBE, Resource(ResourceKind.DELEGATION_TOKEN, token.id))
        or context.may(Operation.DESCRIBE_TOKENS, Resource(ResourceKind.USER, token.owner))
    )


def _described(kind: Any, token: DelegationToken, secret: bytes, version: int) -> Any:
    owner_type, owner_name = parted(token.owner)
    requester_type, requester_name = parted(token.requester)
    described = kind(
        principal_type=owner_type,
        principal_name=owner_name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.ends_ms,
        token_id=token.id,
        hmac=hmac_of(secret, token.id),
        renewers=[
            kind.DescribedDelegationTokenRenewer(principal_type=each, principal_name=name)
            for each, name in map(parted, token.renewers)
        ],
    )
    if version >= FIRST_WITH_REQUESTER:
        described.token_requester_principal_type = requester_type
        described.token_requester_principal_name = requester_name
    return described
