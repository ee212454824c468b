"""ConsumerGroupDescribe: consumer-protocol groups with each member's current and target assignment."""

from __future__ import annotations

from typing import Any

from ballast_broker.api.authorizer import Operation, authorized_operations, topic
from ballast_broker.api.authorizer import group as group_resource
from ballast_broker.api.consumer_group_heartbeat import check_enabled
from ballast_broker.api.context import RequestContext
from ballast_broker.coordinator.consumers.group import NONE, ConsumerGroup, Partitions
from ballast_broker.coordinator.consumers.heartbeat import ConsumerLimits, preferred_assignor
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
NOT_ALL_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


async def handle(request: Any, context: RequestContext) -> Any:
    groups = [_describe(group_id, request, context) for group_id in request.group_ids]
    return message("ConsumerGroupDescribeResponse")(groups=groups)


def _describe(group_id: str, request: Any, context: RequestContext) -> Any:
    kind = message("ConsumerGroupDescribeResponse").DescribedGroup
    try:
        check_enabled(context)
        if not context.authorize(Operation.DESCRIBE, group_resource(group_id)):
            raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        group = context.broker.groups.consumers.describe(group_id)
    except ApiError as error:
        return kind(error_code=error.code, error_message=error.message, group_id=group_id)
    if not _may_know(group, context):
        error_code, text = ErrorCode.TOPIC_AUTHORIZATION_FAILED, NOT_ALL_TOPICS
        return kind(error_code=error_code, error_message=text, group_id=group_id)
    described = kind(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=_assignor(group, context),
        members=_members(group, context),
    )
    if request.include_authorized_operations:
        described.authorized_operations = authorized_operations(context, group_resource(group_id))
    return described


def _may_know(group: ConsumerGroup, context: RequestContext) -> bool:
    """A group that reads a topic the requester may not describe is not described at all."""
    topics = context.broker.image().topics
    ids = {topic_id for member in group.members.values() for topic_id in member.current.assigned}
    ids |= {topic_id for target in group.targets.values() for topic_id in target}
    names = [found.name for topic_id in ids if (found := topics.by_id(topic_id)) is not None]
    return all(context.may(Operation.DESCRIBE, topic(name)) for name in names)


def _assignor(group: ConsumerGroup, context: RequestContext) -> str:
    limits = ConsumerLimits(assignors=context.broker.config.group_consumer_assignors)
    return preferred_assignor([member.about for member in group.members.values()], limits)


def _members(group: ConsumerGroup, context: RequestContext) -> list[Any]:
    kind = message("ConsumerGroupDescribeResponse").DescribedGroup.Member
    return [
        kind(
            member_id=member.member_id,
            instance_id=member.about.instance_id,
            rack_id=member.about.rack_id,
            member_epoch=member.current.epoch,
            client_id=member.about.client_id,
            client_host=member.about.client_host,
            subscribed_topic_names=sorted(member.about.topics),
            subscribed_topic_regex=member.about.pattern,
            assignment=kind.Assignment(
                topic_partitions=_named(kind.Assignment.AssignmentTopicPartitions, member.current.assigned, context)
            ),
            target_assignment=kind.TargetAssignment(
                topic_partitions=_named(
                    kind.TargetAssignment.TargetAssignmentTopicPartitions,
                    group.targets.get(member.member_id, NONE),
                    context,
                )
            ),
            member_type=CONSUMER_MEMBER if member.about.classic is None else CLASSIC_MEMBER,
        )
        for member in group.members.values()
    ]


def _named(kind: Any, partitions: Partitions, context: RequestContext) -> list[Any]:
    """Convert to structs; deleted topics are left out."""
    topics = context.broker.image().topics
    return [
        kind(topic_id=topic_id, topic_name=topic.name, partitions=sorted(numbers))
        for topic_id, numbers in partitions.items()
        if (topic := topics.by_id(topic_id)) is not None
    ]
