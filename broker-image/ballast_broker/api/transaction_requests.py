"""Shared by the transactional requests: authorization, the producer's identity, errors for old clients."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, transactional_id
from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.transactions import ProducerIdentity
from ballast_wire.errors import ApiError, ErrorCode


def check_writer(name: str, context: RequestContext) -> None:
    if not context.authorize(Operation.WRITE, transactional_id(name)):
        raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def producer_of(request: Any) -> ProducerIdentity:
    return ProducerIdentity(request.producer_id, request.producer_epoch)


def understood(error: ErrorCode, version: int, first_with_fenced: int) -> ErrorCode:
    """Older clients know INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED."""
    old = version < first_with_fenced and error is ErrorCode.PRODUCER_FENCED
    return ErrorCode.INVALID_PRODUCER_EPOCH if old else error
