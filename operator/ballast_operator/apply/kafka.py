"""Changes a Kafka cluster: takes a batch of actions, returns an outcome per entry. Decides nothing.

Every function sends one request for many topics (or one per broker where the protocol requires it). A request that
fails as a whole raises `KafkaUnavailableError`: its effect is then unknown and has to be observed.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.protocol.api_message import ApiMessage

import ballast_operator.schemas as schemas
from ballast_operator.kafka_client import KafkaConnection, describe_error, error_of
from ballast_operator.model.actions import (
    AlterConfig,
    AlterReplicas,
    Appended,
    CreateTopic,
    ExpandTopic,
    Setting,
    Subtracted,
)
from ballast_operator.model.kafka import BROKER, TOPIC, Outcome, ReplicaId, TopicPartition
from ballast_operator.observe import BROKER_RESOURCE, TOPIC_RESOURCE, error_name, observe_leader

# Shorter than the client's own timeout, so that Kafka itself reports which topics were not done in time.
TIMEOUT_MS = 10_000
# Apache Kafka's controller refuses requests that generate more than 10,000 records.
RECORDS_PER_REQUEST = 1_000
SET, DELETE, APPEND, SUBTRACT = range(4)

Action = TypeVar("Action")


class UnregisterBrokerRequest(ApiMessage, load_json=schemas):  # type: ignore[misc, call-arg]
    pass


class UnregisterBrokerResponse(ApiMessage, load_json=schemas):  # type: ignore[misc, call-arg]
    pass


def _outcome(code: int, message: str | None, topic_id: Any = "") -> Outcome:
    return Outcome(error_name(code), message or "", str(topic_id or ""))


async def create_topics(kafka: KafkaConnection, actions: Sequence[CreateTopic]) -> dict[str, Outcome]:
    """TOPIC_ALREADY_EXISTS may be the effect of this very request, if it was sent again to another broker or forwarded
    again to a new controller; such an outcome is marked `doubtful`."""
    if not actions:
        return {}
    leader = await observe_leader(kafka)
    chunks = _chunks(actions, lambda action: max(action.partitions, len(action.assignment)), RECORDS_PER_REQUEST)
    requests = [_create_request(chunk) for chunk in chunks]
    answers = await kafka.send_all_to_controller(requests, lambda r: [t.error_code for t in r.topics])
    outcomes = {
        topic.name: _outcome(topic.error_code, topic.error_message, getattr(topic, "topic_id", ""))._replace(
            doubtful=answer.again
        )
        for answer in answers
        for topic in answer.response.topics
    }
    there = any(outcome.error == "TOPIC_ALREADY_EXISTS" for outcome in outcomes.values())
    if there and await observe_leader(kafka) != leader:
        return {name: outcome._replace(doubtful=True) for name, outcome in outcomes.items()}
    return outcomes


def _chunks(actions: Iterable[Action], records: Callable[[Action], int], most: int) -> list[list[Action]]:
    """Split the actions into requests small enough for a controller to answer well within the timeout."""
    chunks: list[list[Action]] = []
    left = 0
    for action in actions:
        size = max(1, records(action))
        if not chunks or size > left:
            chunks.append([])
            left = most
        chunks[-1].append(action)
        left -= size
    return chunks


def _create_request(actions: Sequence[CreateTopic]) -> Any:
    row = CreateTopicsRequest.CreatableTopic
    topics = [
        row(
            name=action.topic,
            num_partitions=-1 if action.assignment else action.partitions,
            replication_factor=-1 if action.assignment else action.replicas,
            assignments=[
                row.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                for index, brokers in enumerate(action.assignment)
            ],
            configs=[row.CreatableTopicConfig(name=key, value=value) for key, value in action.config.items()],
        )
        for action in actions
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS, validate_only=False)


async def create_partitions(kafka: KafkaConnection, actions: Sequence[ExpandTopic]) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    for chunk in _chunks(actions, lambda action: action.partitions, RECORDS_PER_REQUEST):
        request = _expand_request(chunk)
        response = await kafka.send_to_controller(request, lambda r: [t.error_code for t in r.results])
        outcomes |= {topic.name: _outcome(topic.error_code, topic.error_message) for topic in response.results}
    return outcomes


def _expand_request(actions: Iterable[ExpandTopic]) -> Any:
    row = CreatePartitionsRequest.CreatePartitionsTopic
    topics = [
        row(
            name=action.topic,
            count=action.partitions,
            assignments=[row.CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in action.assignment]
            or None,
        )
        for action in actions
    ]
    return CreatePartitionsRequest(topics=topics, timeout_ms=TIMEOUT_MS, validate_only=False)


async def delete_topics_by_id(kafka: KafkaConnection, topics: Mapping[str, uuid.UUID]) -> dict[str, Outcome]:
    """Delete exactly the topics that were observed: a topic recreated under the same name is left alone.

    Brokers without topic ids (before Kafka 2.8) report an id of zero; those topics are deleted by name.
    """
    if not topics:
        return {}
    row = DeleteTopicsRequest.DeleteTopicState
    named = [name for name, topic_id in topics.items() if topic_id.int == 0]
    rows = [row(name=None, topic_id=topic_id) for topic_id in topics.values() if topic_id.int]
    rows += [row(name=name, topic_id=uuid.UUID(int=0)) for name in named]
    request = DeleteTopicsRequest(topics=rows, topic_names=named, timeout_ms=TIMEOUT_MS)
    response = await kafka.send_to_controller(request, lambda r: [t.error_code for t in r.responses])
    name_of: dict[Any, str] = {topic_id: name for name, topic_id in topics.items()}
    return {
        name_of.get(getattr(topic, "topic_id", None), topic.name): _outcome(
            topic.error_code, getattr(topic, "error_message", None)
        )
        for topic in response.responses
    }


async def alter_configs(kafka: KafkaConnection, actions: Sequence[AlterConfig]) -> dict[tuple[str, str], Outcome]:
    """Outcomes by (resource, name). Topics share requests; a broker's settings are sent to that broker."""
    topics = [action for action in actions if action.resource != BROKER]
    brokers = [action for action in actions if action.resource == BROKER]
    outcomes: dict[tuple[str, str], Outcome] = {}
    for chunk in _chunks(topics, lambda action: len(action.values), RECORDS_PER_REQUEST):
        response = await kafka.send_to_controller(
            _configs_request(chunk), lambda r: [t.error_code for t in r.responses]
        )
        outcomes |= {
            (TOPIC, row.resource_name): _outcome(row.error_code, row.error_message) for row in response.responses
        }
    requests = {int(action.name): _configs_request([action]) for action in brokers}
    for broker, response in (await kafka.send_each(requests)).items():
        if isinstance(response, Exception):
            outcomes[BROKER, str(broker)] = Outcome("UNREACHABLE", describe_error(response))
            continue
        for row in response.responses:
            outcomes[BROKER, row.resource_name] = _outcome(row.error_code, row.error_message)
    return outcomes


def _configs_request(actions: Iterable[AlterConfig]) -> Any:
    row = IncrementalAlterConfigsRequest.AlterConfigsResource
    resources = [
        row(
            resource_type=BROKER_RESOURCE if action.resource == BROKER else TOPIC_RESOURCE,
            resource_name=action.name,
            configs=[
                row.AlterableConfig(name=key, config_operation=operation, value=value)
                for key, setting in action.values.items()
                for operation, value in (_operation(setting),)
            ],
        )
        for action in actions
    ]
    return IncrementalAlterConfigsRequest(resources=resources, validate_only=False)


def _operation(setting: Setting) -> tuple[int, str | None]:
    if isinstance(setting, Appended):
        return APPEND, ",".join(setting.entries)
    if isinstance(setting, Subtracted):
        return SUBTRACT, ",".join(setting.entries)
    return (DELETE, None) if setting is None else (SET, setting)


async def alter_reassignments(
    kafka: KafkaConnection, actions: Sequence[AlterReplicas]
) -> dict[TopicPartition, Outcome]:
    outcomes: dict[TopicPartition, Outcome] = {}
    for chunk in _chunks(actions, lambda _: 1, RECORDS_PER_REQUEST):
        response = await kafka.send_to_controller(_reassign_request(chunk), lambda r: [r.error_code])
        if response.error_code:
            raise error_of(response)
        outcomes |= {
            TopicPartition(topic.name, part.partition_index): _outcome(part.error_code, part.error_message)
            for topic in response.responses
            for part in topic.partitions
        }
    return outcomes


def _reassign_request(actions: Iterable[AlterReplicas]) -> Any:
    row = AlterPartitionReassignmentsRequest.ReassignableTopic
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for action in actions:
        replicas = None if action.replicas is None else list(action.replicas)
        by_topic[action.partition.topic].append(
            row.ReassignablePartition(partition_index=action.partition.partition, replicas=replicas)
        )
    topics = [row(name=topic, partitions=partitions) for topic, partitions in by_topic.items()]
    return AlterPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=topics)


async def alter_log_dirs(kafka: KafkaConnection, actions: Mapping[ReplicaId, str]) -> dict[ReplicaId, Outcome]:
    """Send each broker the moves of its own replicas, to all brokers in parallel (DIR-11)."""
    directory = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    grouped: dict[int, dict[str, dict[str, list[int]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for replica, path in actions.items():
        grouped[replica.broker][path][replica.topic].append(replica.partition)
    requests = {
        broker: AlterReplicaLogDirsRequest(
            dirs=[
                directory(
                    path=path,
                    topics=[
                        directory.AlterReplicaLogDirTopic(name=topic, partitions=partitions)
                        for topic, partitions in topics.items()
                    ],
                )
                for path, topics in paths.items()
            ]
        )
        for broker, paths in grouped.items()
    }
    outcomes: dict[ReplicaId, Outcome] = {}
    for broker, response in (await kafka.send_each(requests)).items():
        if isinstance(response, Exception):
            lost = Outcome("UNREACHABLE", describe_error(response))
            outcomes |= {replica: lost for replica in actions if replica.broker == broker}
            continue
        for topic in response.results:
            for part in topic.partitions:
                outcomes[ReplicaId(topic.topic_name, part.partition_index, broker)] = _outcome(part.error_code, None)
    return outcomes


async def unregister_broker(kafka: KafkaConnection, broker: int) -> Outcome:
    """Tell the controller that a broker will not come back."""
    response = await kafka.send_to_controller(UnregisterBrokerRequest(broker_id=broker), lambda r: [r.error_code])
    return _outcome(response.error_code, response.error_message)
