"""ConsumerGroupHeartbeat: a consumer-protocol member reports what it owns and gets its assignment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ballast_broker.api.authorizer import Operation, group, topic
from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.consumers.group import JOINING, LEAVING, LEAVING_FOR_A_WHILE
from ballast_broker.coordinator.consumers.heartbeat import Ask
from ballast_broker.coordinator.consumers.records import partitions_of
from ballast_broker.metadata.features import GROUP_VERSION
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.wording import WORDING

FIRST_VERSION_WITH_OWN_IDS = 1
FIRST_VERSION_WITH_PATTERNS = 1
PROTOCOL = "consumer"


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("ConsumerGroupHeartbeatResponse")
    groups = context.broker.groups.consumers
    try:
        check_enabled(context)
        refusal = _refusal(request, context)
        if refusal is not None:  # without a message, as in Kafka
            return kind(error_code=refusal, error_message=None)
        ask = _ask(request, context)
        answer = await groups.heartbeat(request.group_id, ask, _may_describe(context))
    except ApiError as error:
        text = error.message or WORDING.get(error.code)
        return kind(error_code=error.code, error_message=text)
    assignment = None
    if answer.assigned is not None:
        entry = kind.Assignment.TopicPartitions
        entries = [entry(topic_id=topic_id, partitions=sorted(found)) for topic_id, found in answer.assigned.items()]
        assignment = kind.Assignment(topic_partitions=entries)
    leaves = ask.epoch in (LEAVING, LEAVING_FOR_A_WHILE)
    return kind(
        error_code=ErrorCode.NONE,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=0 if leaves else groups.heartbeat_interval_ms(request.group_id),
        assignment=assignment,
    )


def check_enabled(context: RequestContext) -> None:
    """The feature must be finalized, so that any broker can take the groups over, and the protocol enabled here."""
    wanted = PROTOCOL in context.broker.config.group_coordinator_rebalance_protocols
    if not wanted or context.broker.image().features.level(GROUP_VERSION) < 1:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)


def _refusal(request: Any, context: RequestContext) -> ErrorCode | None:
    if not context.authorize(Operation.READ, group(request.group_id)):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not all(context.authorize(Operation.DESCRIBE, topic(name)) for name in request.subscribed_topic_names or ()):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return None


def _may_describe(context: RequestContext) -> Callable[[str], bool] | None:
    """A pattern matches only topics that the member may describe."""
    if not context.broker.authorizer.enforces:
        return None
    return lambda name: context.may(Operation.DESCRIBE, topic(name))


def _ask(request: Any, context: RequestContext) -> Ask:
    pattern = request.subscribed_topic_regex if context.version >= FIRST_VERSION_WITH_PATTERNS else None
    _check(request, pattern, context)
    names, owned = request.subscribed_topic_names, request.topic_partitions
    return Ask(
        member_id=request.member_id or str(context.fresh_id()),
        epoch=request.member_epoch,
        client_id=context.client_id or "",
        client_host=context.host,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if names is None else frozenset(names),
        pattern=pattern,
        assignor=request.server_assignor,
        owned=None if owned is None else partitions_of(owned),
    )


def _check(request: Any, pattern: str | None, context: RequestContext) -> None:
    _not_blank(request.group_id, "GroupId")
    _not_blank(request.instance_id, "InstanceId")
    _not_blank(request.rack_id, "RackId")
    epoch = request.member_epoch
    if context.version >= FIRST_VERSION_WITH_OWN_IDS or epoch != JOINING:
        _not_blank(request.member_id, "MemberId")
    if epoch == JOINING:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and pattern is None:
            raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif epoch == LEAVING_FOR_A_WHILE:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVING_FOR_A_WHILE:
        raise _invalid("MemberEpoch is invalid.")
    known = context.broker.config.group_consumer_assignors
    if request.server_assignor is not None and request.server_assignor not in known:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(known)}.",
        )


def _not_blank(value: str | None, name: str) -> None:
    if value is not None and not value.strip():
        raise _invalid(f"{name} can't be empty.")


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)
