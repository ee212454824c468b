"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, and the removal of expired tokens. PURE.

The forwarding broker tells who the requester is; a requester that authenticated with a token is rejected.
"""

from __future__ import annotations

import base64
from typing import Any

from ballast_broker.controller.commands.context import MAX_RECORDS_PER_BATCH, CommandContext, Outcome, TokenConfig
from ballast_broker.metadata.delegation_tokens import DelegationToken, parted, written
from ballast_broker.metadata.records import record
from ballast_broker.security.delegation import hmac_of, is_hmac_of
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

USER = "User"
NEVER_MS = -1  # as a time, in responses given without asking the controller
CREATE, RENEW, EXPIRE = 38, 39, 40


def owner_of(request: Any, requester: str) -> str:
    """The owner of the requested token: the requester, unless another is named."""
    name = request.owner_principal_name
    return written(request.owner_principal_type or "", name) if name else requester


def has_other_renewers(request: Any) -> bool:
    """Whether a renewer is not a user: only users may renew tokens."""
    return any(each.principal_type != USER for each in request.renewers)


def creation_answer(request: Any, requester: str, error: ErrorCode = ErrorCode.NONE, *, time_ms: int = 0) -> Any:
    owner_type, owner_name = parted(owner_of(request, requester))
    requester_type, requester_name = parted(requester)
    return message("CreateDelegationTokenResponse")(
        error_code=int(error),
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp_ms=time_ms,
        expiry_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
        token_id="",
        hmac=b"",
        throttle_time_ms=0,
    )


def change_answer(api_key: int, error: ErrorCode = ErrorCode.NONE, *, time_ms: int = 0) -> Any:
    """The response to RenewDelegationToken or ExpireDelegationToken."""
    name = "RenewDelegationTokenResponse" if api_key == RENEW else "ExpireDelegationTokenResponse"
    return message(name)(error_code=int(error), expiry_timestamp_ms=time_ms, throttle_time_ms=0)


def create_delegation_token(context: CommandContext, request: Any) -> Outcome:
    requester = _requester(context)
    tokens = context.config.delegation_tokens
    if tokens is None:
        return Outcome([], creation_answer(request, requester, ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED))
    if has_other_renewers(request):
        return Outcome([], creation_answer(request, requester, ErrorCode.INVALID_PRINCIPAL_TYPE))
    lifetime_ms = tokens.max_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    token = DelegationToken(
        id=base64.urlsafe_b64encode(context.new_id().bytes).rstrip(b"=").decode(),
        owner=owner_of(request, requester),
        requester=requester,
        renewers=tuple(written(each.principal_type, each.principal_name) for each in request.renewers),
        issued_ms=context.now_ms,
        ends_ms=context.now_ms + lifetime_ms,
        expires_ms=context.now_ms + min(lifetime_ms, tokens.expiry_time_ms),
    )
    answer = creation_answer(request, requester)
    answer.token_id = token.id
    answer.hmac = hmac_of(tokens.secret, token.id)
    answer.issue_timestamp_ms = token.issued_ms
    answer.expiry_timestamp_ms = token.expires_ms
    answer.max_timestamp_ms = token.ends_ms
    return Outcome([token.record()], answer)


def renew_delegation_token(context: CommandContext, request: Any) -> Outcome:
    requester = _requester(context)
    tokens = context.config.delegation_tokens
    try:
        token = _shown(context, tokens, request.hmac)
        if token.is_expired(context.now_ms):
            raise ApiError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
        _check_renewer(token, requester)
    except ApiError as refusal:
        return Outcome([], change_answer(RENEW, refusal.code))
    assert tokens is not None
    period_ms = tokens.expiry_time_ms
    if request.renew_period_ms > 0:
        period_ms = min(period_ms, request.renew_period_ms)
    return _until(context, token, period_ms, RENEW)


def expire_delegation_token(context: CommandContext, request: Any) -> Outcome:
    """A negative period removes the token at once, even one that has expired."""
    requester = _requester(context)
    try:
        token = _shown(context, context.config.delegation_tokens, request.hmac)
        _check_renewer(token, requester)
        if request.expiry_time_period_ms < 0:
            return Outcome([_end_of(token)], change_answer(EXPIRE, time_ms=context.now_ms))
        if token.is_expired(context.now_ms):
            raise ApiError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    except ApiError as refusal:
        return Outcome([], change_answer(EXPIRE, refusal.code))
    return _until(context, token, request.expiry_time_period_ms, EXPIRE)


def remove_expired_tokens(context: CommandContext) -> Outcome:
    """Remove as many as fit into one batch; the rest waits for the next run."""
    tokens = sorted(context.image.security.delegation_tokens.values())
    expired = [_end_of(each) for each in tokens if each.is_expired(context.now_ms)]
    return Outcome(expired[:MAX_RECORDS_PER_BATCH], atomic=False)


def _requester(context: CommandContext) -> str:
    if context.asker is None or context.asker.by_token:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    return written(USER, context.asker.user)


def _shown(context: CommandContext, tokens: TokenConfig | None, shown: bytes) -> DelegationToken:
    if tokens is None:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    for token in context.image.security.delegation_tokens.values():
        if is_hmac_of(tokens.secret, token.id, bytes(shown)):
            return token
    raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)


def _check_renewer(token: DelegationToken, requester: str) -> None:
    if not token.may_be_renewed_by(requester):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _until(context: CommandContext, token: DelegationToken, period_ms: int, api_key: int) -> Outcome:
    changed = token._replace(expires_ms=min(token.ends_ms, context.now_ms + period_ms))
    return Outcome([changed.record()], change_answer(api_key, time_ms=changed.expires_ms))


def _end_of(token: DelegationToken) -> Any:
    return record("RemoveDelegationTokenRecord", token_id=token.id)
