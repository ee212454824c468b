"""A cluster as a metadata image on which commands run one after the other, without an event loop or a log."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tests.broker.controller.cluster import CLUSTER_ID, FewConfigs
from tests.broker.seams import SeededRandom

from ballast_broker.controller.commands.context import CommandContext, ControllerConfig, Outcome
from ballast_broker.controller.commands.features import bootstrap_records
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.features import SUPPORTED
from ballast_broker.metadata.image import (
    EMPTY_IMAGE,
    BrokerImage,
    Listener,
    MetadataImage,
    PartitionRegistration,
)
from ballast_broker.metadata.records import decode_record, encode_record, record
from ballast_broker.metadata.snapshot import broker_record, partition_record
from ballast_wire.messages import message


def directory(broker_id: int, number: int = 0) -> uuid.UUID:
    return uuid.UUID(int=broker_id * 1000 + 500 + number)


class Scene:
    def __init__(
        self, brokers: Iterable[int] = (1, 2, 3), *, elr: bool = True, directories: int = 1, **config: Any
    ) -> None:
        self.config = ControllerConfig(CLUSTER_ID, 1, **config)
        self.random = SeededRandom(7)
        self.image: MetadataImage = EMPTY_IMAGE
        self.offset = 0
        self.history: list[Any] = []
        self.voters_features: dict[int, dict[str, tuple[int, int]]] = {}
        records = bootstrap_records(1)
        if not elr:
            records = [each for each in records if getattr(each, "name", "") != "eligible.leader.replicas.version"]
        self.apply(records)
        for broker_id in brokers:
            self.add_broker(broker_id, directories=directories)

    def add_broker(
        self, broker_id: int, *, fenced: bool = False, rack: str | None = None, directories: int = 1
    ) -> None:
        broker = BrokerImage(
            id=broker_id,
            epoch=1000 + broker_id,
            incarnation_id=uuid.UUID(int=broker_id),
            listeners={"PLAINTEXT": Listener("localhost", 9000 + broker_id)},
            rack=rack,
            fenced=fenced,
            in_controlled_shutdown=False,
            directories=frozenset(directory(broker_id, each) for each in range(directories)),
            features=SUPPORTED,
        )
        self.apply([broker_record(broker)])

    def change_broker(self, broker_id: int, **fields: Any) -> None:
        broker = self.image.cluster.brokers[broker_id]
        self.apply([broker_record(replace(broker, **fields))])

    def add_topic(self, name: str, *partitions: PartitionRegistration | list[int], **configs: str) -> uuid.UUID:
        """Partitions as replica lists (all in sync, the first leading) or as registrations."""
        topic_id = uuid.UUID(int=10_000 + self.offset)
        records = [record("TopicRecord", name=name, topic_id=topic_id)]
        for index, given in enumerate(partitions):
            if isinstance(given, list):
                places = tuple(directory(each) for each in given)
                given = PartitionRegistration(tuple(given), places, tuple(given), leader=given[0])
            records.append(partition_record(topic_id, index, given))
        for key, value in configs.items():
            fields = {"resource_type": 2, "resource_name": name, "name": key.replace("_", "."), "value": value}
            records.append(record("ConfigRecord", **fields))
        self.apply(records)
        return topic_id

    def apply(self, records: list[Any]) -> None:
        """Apply records after encoding and decoding them, as the metadata log would."""
        delta = MetadataDelta(self.image)
        for each in records:
            delta.replay(decode_record(encode_record(each)))
        self.offset += len(records)
        self.image = delta.apply(self.offset - 1, 1)
        self.history.extend(records)

    @property
    def context(self) -> CommandContext:
        return CommandContext(
            self.image, self.config, FewConfigs(), self.random, self.offset, voters_features=self.voters_features
        )

    def run(self, command: Callable[..., Outcome], *arguments: Any, **keywords: Any) -> Any:
        return self.commit(command(self.context, *arguments, **keywords))

    def commit(self, outcome: Outcome) -> Any:
        piece: Outcome | None = outcome
        while piece is not None:
            self.apply(piece.records)
            piece = piece.rest(self.context) if piece.rest is not None else None
        return outcome.response

    def partition(self, topic: str, partition: int = 0) -> PartitionRegistration:
        found = self.image.topics.by_name(topic)
        assert found is not None
        return found.partitions[partition]


def create_request(
    *names: str, partitions: int = 1, factor: int = 1, assignment: dict[int, list[int]] | None = None, **options: Any
) -> Any:
    kind = message("CreateTopicsRequest")
    configs = options.pop("configs", {})
    topics = []
    for name in names:
        topic = kind.CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
        topic.assignments = [
            kind.CreatableTopic.CreatableReplicaAssignment(partition_index=index, broker_ids=row)
            for index, row in (assignment or {}).items()
        ]
        topic.configs = [
            kind.CreatableTopic.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()
        ]
        topics.append(topic)
    return kind(topics=topics, timeout_ms=1000, validate_only=options.pop("validate_only", False))


def expand_request(*entries: tuple[str, int, list[list[int]] | None], validate_only: bool = False) -> Any:
    kind = message("CreatePartitionsRequest")
    topics = []
    for name, count, assignment in entries:
        rows = None
        if assignment is not None:
            rows = [kind.CreatePartitionsTopic.CreatePartitionsAssignment(broker_ids=row) for row in assignment]
        topics.append(kind.CreatePartitionsTopic(name=name, count=count, assignments=rows))
    return kind(topics=topics, timeout_ms=1000, validate_only=validate_only)
