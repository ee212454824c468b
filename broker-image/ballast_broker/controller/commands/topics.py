"""CreateTopics and DeleteTopics. PURE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from ballast_broker.controller.commands.context import MAX_RECORDS_PER_BATCH, CommandContext, Outcome
from ballast_broker.controller.commands.pieces import RECORDS_PER_PIECE
from ballast_broker.controller.commands.replica_assignment import (
    INVALID,
    check_assignment,
    manual_registration,
    partition_records,
    place,
)
from ballast_broker.controller.commands.topic_names import METADATA_TOPIC, check_collision, check_name
from ballast_broker.metadata.image import RESOURCE_TOPIC, PartitionRegistration
from ballast_broker.metadata.records import record
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.names import ZERO_UUID
from ballast_wire.wording import WORDING

FIRST_THAT_KNOWS_DELETION_DISABLED = 3
# A few milliseconds of work. A topic and its partitions are never split.
TOPICS_PER_PIECE = 50


def create_topics(context: CommandContext, request: Any) -> Outcome:
    """Create each topic independently, in pieces small enough that other requests do not wait long."""
    response = message("CreateTopicsResponse")(topics=[], throttle_time_ms=0)
    only = bool(request.validate_only)
    _check_total(context, request)
    counts = Counter(topic.name for topic in request.topics)
    describe = _Describing(context)

    def create(now: CommandContext, topics: list[Any]) -> Outcome:
        now = replace(now, asker=context.asker, mutations=context.mutations)
        records: list[Any] = []
        for done, topic in enumerate(topics):
            if done == TOPICS_PER_PIECE or len(records) >= RECORDS_PER_PIECE:
                rest = partial(create, topics=topics[done:])
                # With validate_only nothing is stored: only this context has the topics that later names may collide
                # with.
                rest = partial(_as_of, now, rest) if only else rest
                return Outcome([] if only else records, response, rest=rest)
            name, kind = topic.name, type(response).CreatableTopicResult
            result = kind(name=name, topic_id=ZERO_UUID, error_code=0, error_message=None)
            try:
                if counts[name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                created = _create(now, topic, result, describe)
            except ApiError as error:
                result.error_code, result.error_message = int(error.code), error.message
            else:
                records.extend(created)
                now = now.after(created)  # the next topic's name may collide with this one
            response.topics.append(result)
        return Outcome([] if only else records, response)

    return create(context, list({topic.name: topic for topic in request.topics}.values()))


def _as_of(then: CommandContext, rest: Callable[[CommandContext], Outcome], _now: CommandContext) -> Outcome:
    return rest(then)


def _check_total(context: CommandContext, request: Any) -> None:
    total = 0
    for topic in request.topics:
        wanted = len(topic.assignments) or topic.num_partitions
        total += context.config.num_partitions if wanted == -1 else max(0, wanted)
    if total > MAX_RECORDS_PER_BATCH:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def _create(context: CommandContext, topic: Any, result: Any, describe: _Describing) -> list[Any]:
    name = topic.name
    if name == METADATA_TOPIC:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    check_name(name)
    if context.image.topics.by_name(name) is not None:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    check_collision(context.image.topics, name)
    configs = _configs(context, topic)
    registrations = _manual(context, topic) if topic.assignments else _automatic(context, topic)
    context.take_mutations(len(registrations))
    topic_id = context.new_id()
    describe(result, topic_id, registrations, configs)
    config_records = [
        record("ConfigRecord", resource_type=RESOURCE_TOPIC, resource_name=name, name=key, value=value)
        for key, value in sorted(configs.items())
    ]
    # Configs come before the partitions, so that a broker knows them when it creates a log.
    head = record("TopicRecord", name=name, topic_id=topic_id)
    return [head, *config_records, *partition_records(topic_id, 0, registrations)]


def _configs(context: CommandContext, topic: Any) -> dict[str, str]:
    nulls = [each.name for each in topic.configs if each.value is None]
    if nulls:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    configs = {each.name: each.value for each in topic.configs}
    context.rules.validate(RESOURCE_TOPIC, topic.name, configs)
    return configs


def _manual(context: CommandContext, topic: Any) -> list[PartitionRegistration]:
    if topic.replication_factor != -1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if topic.num_partitions != -1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    rows: dict[int, PartitionRegistration] = {}
    factor: int | None = None
    for assignment in topic.assignments:
        partition = assignment.partition_index
        if partition in rows:
            raise ApiError(INVALID, f"Found multiple manual partition assignments for partition {partition}")
        check_assignment(context, assignment.broker_ids, factor)
        factor = len(assignment.broker_ids)
        rows[partition] = manual_registration(context, partition, assignment.broker_ids)
    if sorted(rows) != list(range(len(rows))):
        raise ApiError(INVALID, "partitions should be a consecutive 0-based integer sequence")
    return [rows[partition] for partition in sorted(rows)]


def _automatic(context: CommandContext, topic: Any) -> list[PartitionRegistration]:
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    count = context.config.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    factor = topic.replication_factor
    return place(context, 0, count, context.config.default_replication_factor if factor == -1 else factor)


class _Describing:
    """Fills in the results of created topics; topics with equal configs share one list of effective configs."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._known: dict[tuple[tuple[str, str], ...], list[Any]] = {}

    def __call__(
        self, result: Any, topic_id: UUID, registrations: list[PartitionRegistration], configs: dict[str, str]
    ) -> None:
        result.topic_id = topic_id
        result.num_partitions = len(registrations)
        result.replication_factor = len(registrations[0].replicas)
        key = tuple(configs.items())
        if key not in self._known:
            self._known[key] = self._effective(configs)
        result.configs = self._known[key]

    def _effective(self, configs: dict[str, str]) -> list[Any]:
        kind = message("CreateTopicsResponse").CreatableTopicResult.CreatableTopicConfigs
        return [
            kind(
                name=each.name,
                value=each.value,
                read_only=each.read_only,
                config_source=each.source,
                is_sensitive=each.sensitive,
            )
            for each in self._context.rules.effective_topic_configs(configs, *self._context.dynamic_broker_configs)
        ]


def delete_topics(context: CommandContext, request: Any) -> Outcome:
    """Delete topics by name (versions before 6 have only a list of names) or by id."""
    if not context.config.delete_topic_enable:
        old = request.API_VERSION < FIRST_THAT_KNOWS_DELETION_DISABLED
        raise ApiError(ErrorCode.INVALID_REQUEST if old else ErrorCode.TOPIC_DELETION_DISABLED)
    response = message("DeleteTopicsResponse")(responses=[], throttle_time_ms=0)
    found: dict[UUID, Any] = {}
    wanted = _wanted(request)
    counts = Counter(wanted)
    for name, topic_id in counts:
        result = type(response).DeletableTopicResult(name=name, topic_id=topic_id, error_code=0, error_message=None)
        try:
            if counts[name, topic_id] > 1:
                what = "name" if topic_id == ZERO_UUID else "id"
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}.")
            topic = _find(context, name, topic_id)
            if topic.id not in found:
                context.take_mutations(len(topic.partitions))
        except ApiError as error:
            result.error_code, result.error_message = int(error.code), error.message
        else:
            if topic.id in found:  # named both by name and by id
                text = "The provided topic name maps to an ID that was already supplied."
                found[topic.id].error_code, found[topic.id].error_message = int(ErrorCode.INVALID_REQUEST), text
                continue
            result.name, result.topic_id = topic.name, topic.id
            found[topic.id] = result
        response.responses.append(result)
    gone = [topic_id for topic_id, result in found.items() if not result.error_code]
    return Outcome([record("RemoveTopicRecord", topic_id=topic_id) for topic_id in gone], response)


def _wanted(request: Any) -> list[tuple[str | None, UUID]]:
    by_name = [(name, ZERO_UUID) for name in request.topic_names or ()]
    return by_name + [(each.name, each.topic_id or ZERO_UUID) for each in request.topics or ()]


def _find(context: CommandContext, name: str | None, topic_id: UUID) -> Any:
    if name is not None and topic_id != ZERO_UUID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if name is None and topic_id == ZERO_UUID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if name is not None:
        topic = context.image.topics.by_name(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, WORDING[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
        return topic
    topic = context.image.topics.by_id(topic_id)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, WORDING[ErrorCode.UNKNOWN_TOPIC_ID])
    return topic
