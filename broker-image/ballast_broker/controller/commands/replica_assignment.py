"""Validates manual replica assignments and creates automatic ones. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from ballast_broker.controller.commands.context import CommandContext
from ballast_broker.metadata.image import RESOURCE_BROKER, BrokerImage, PartitionRegistration, TopicImage
from ballast_broker.metadata.placement import PlacementError, UsableBroker, choose_start, place_partitions
from ballast_broker.metadata.snapshot import partition_record
from ballast_wire.errors import ApiError, ErrorCode

INVALID = ErrorCode.INVALID_REPLICA_ASSIGNMENT
CORDONED = "cordoned.log.dirs"
ALL_DIRECTORIES = "*"


def check_assignment(context: CommandContext, replicas: Sequence[int], replication_factor: int | None) -> None:
    """Raise ApiError unless the replicas are distinct registered brokers, as many as the other partitions have."""
    if not replicas:
        raise ApiError(INVALID, "The manual partition assignment includes an empty replica list.")
    for broker_id in sorted(replicas):
        if broker_id not in context.image.cluster.brokers:
            raise ApiError(
                INVALID,
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered.",
            )
        if list(replicas).count(broker_id) > 1:
            raise ApiError(INVALID, f"The manual partition assignment includes the broker {broker_id} more than once.")
    if replication_factor is not None and len(replicas) != replication_factor:
        raise ApiError(
            INVALID,
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s).",
        )


def new_registration(context: CommandContext, replicas: Sequence[int]) -> PartitionRegistration | None:
    """A new partition's state: all live replicas in sync, the first of them leading. None if none is live."""
    brokers = context.image.cluster.brokers
    isr = tuple(each for each in replicas if each in brokers and brokers[each].active)
    if not isr:
        return None
    return PartitionRegistration(
        replicas=tuple(replicas),
        directories=tuple(context.default_directory(each) for each in replicas),
        isr=isr,
        leader=isr[0],
    )


def manual_registration(context: CommandContext, partition: int, replicas: Sequence[int]) -> PartitionRegistration:
    registration = new_registration(context, replicas)
    if registration is None:
        raise ApiError(
            INVALID,
            f"All brokers specified in the manual partition assignment for partition {partition} are fenced or in "
            "controlled shutdown.",
        )
    return registration


def place(
    context: CommandContext, first_partition: int, count: int, replication_factor: int
) -> list[PartitionRegistration]:
    usable = [
        UsableBroker(broker.id, broker.rack, fenced=not broker.active)  # in controlled shutdown: will be soon
        for broker in context.image.cluster.brokers.values()
        if not is_cordoned(context, broker)
    ]
    unable = f"Unable to replicate the partition {replication_factor} time(s): "
    live = sum(not broker.fenced for broker in usable)
    try:
        rows = place_partitions(usable, first_partition, count, replication_factor, choose_start(live, context.random))
    except PlacementError as error:
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, f"{unable}{error}") from error
    registrations = [new_registration(context, row) for row in rows]
    placed = [each for each in registrations if each is not None]
    if len(placed) != len(registrations):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{unable}All brokers are currently fenced or in controlled shutdown.",
        )
    return placed


def is_cordoned(context: CommandContext, broker: BrokerImage) -> bool:
    """Whether none of the broker's directories accepts new replicas."""
    configs = context.image.configs
    for name in (str(broker.id), ""):
        value = configs.of(RESOURCE_BROKER, name).get(CORDONED)
        if value is not None:
            return value.strip() == ALL_DIRECTORIES
    return False


def partition_records(topic_id: UUID, first: int, registrations: Iterable[PartitionRegistration]) -> list[Any]:
    return [partition_record(topic_id, first + index, each) for index, each in enumerate(registrations)]


def replication_factor_of(topic: TopicImage) -> int:
    if 0 not in topic.partitions:
        raise ApiError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"Invalid state: topic {topic.name} appears to have no partitions."
        )
    return len(topic.partitions[0].replicas)
