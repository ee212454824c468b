"""Splits changes of many partitions or entities into pieces, so that none blocks the event loop for long. PURE.

Each piece works on the state at its own time and leaves alone what has changed since the places were collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from ballast_broker.controller.commands.context import CommandContext, Outcome
from ballast_broker.controller.commands.partition_change import change_of, without_broker
from ballast_broker.metadata.image import NO_LEADER, PartitionRegistration, TopicImage
from ballast_wire.errors import ApiError

PLACES_PER_PIECE = 200
RECORDS_PER_PIECE = 200  # for `one_by_one`; a single thing is never split
Place = tuple[UUID, int]
T = TypeVar("T")


def in_sync_on(context: CommandContext, broker_id: int) -> list[Place]:
    return where(context, lambda partition: broker_id in partition.isr)


def in_sync_or_eligible_on(context: CommandContext, broker_id: int) -> list[Place]:
    return where(context, lambda partition: broker_id in partition.isr or broker_id in partition.elr)


def leaderless(context: CommandContext) -> list[Place]:
    return where(context, lambda partition: partition.leader == NO_LEADER)


def where(context: CommandContext, wanted: Callable[[PartitionRegistration], bool]) -> list[Place]:
    return [
        (topic.id, number)
        for topic in context.image.topics.topics_by_id.values()
        for number, partition in topic.partitions.items()
        if wanted(partition)
    ]


def still(
    context: CommandContext, places: Iterable[Place], wanted: Callable[[PartitionRegistration], bool]
) -> Iterator[tuple[TopicImage, int]]:
    """The places that still exist and still satisfy `wanted`."""
    for topic_id, number in places:
        topic = context.image.topics.by_id(topic_id)
        partition = topic.partitions.get(number) if topic is not None else None
        if topic is not None and partition is not None and wanted(partition):
            yield topic, number


def leave(context: CommandContext, places: Iterable[Place], broker_id: int, *, unclean: bool = False) -> list[Any]:
    """The records that remove a broker from the ISRs and leaderships of these places."""

    def concerned(partition: PartitionRegistration) -> bool:
        return broker_id in partition.isr or (unclean and broker_id in partition.elr)

    found = still(context, places, concerned)
    return without_broker(context, found, broker_id, unclean_shutdown=unclean)


def lead_again(context: CommandContext, places: Iterable[Place]) -> list[Any]:
    """The records that elect leaders for leaderless partitions that may have one by now."""
    found = still(context, places, lambda partition: partition.leader == NO_LEADER)
    built = (change_of(context, topic, number).build() for topic, number in found)
    return [each for each in built if each is not None]


def piecewise(
    context: CommandContext,
    places: Sequence[T],
    change: Callable[[CommandContext, Sequence[T]], list[Any]],
    *,
    response: Any = None,
    finish: Callable[[CommandContext, Sequence[T]], list[Any]] = lambda _context, _places: [],
) -> Outcome:
    """Apply `change` to PLACES_PER_PIECE places at a time; `finish` runs with the last piece and gets its places.

    Places are a broker's replicas, or the partitions of a request; each piece adds its own part to `response`.
    """
    records = change(context, places[:PLACES_PER_PIECE])
    if len(places) <= PLACES_PER_PIECE:
        return Outcome(records + finish(context, places), response, atomic=False)

    def rest(later: CommandContext) -> Outcome:
        return piecewise(later, places[PLACES_PER_PIECE:], change, response=response, finish=finish)

    return Outcome(records, response, atomic=False, rest=rest)


def one_by_one(
    context: CommandContext,
    things: Sequence[T],
    answer: Callable[[T], Any],
    change: Callable[[CommandContext, T], list[Any]],
    response: Any,
    *,
    only_looks: bool = False,
    at_a_time: int = RECORDS_PER_PIECE,
) -> Outcome:
    """Apply `change` to each thing independently, with all its records in one batch.

    `answer` adds a result for the thing to `response`; if `change` raises ApiError, the error is set on that result.
    """

    def some(now: CommandContext, left: Sequence[T]) -> Outcome:
        now = replace(now, asker=context.asker, mutations=context.mutations)
        records: list[Any] = []
        for done, thing in enumerate(left):
            if done == at_a_time or len(records) >= RECORDS_PER_PIECE:
                return Outcome([] if only_looks else records, response, rest=partial(some, left=left[done:]))
            told = answer(thing)
            try:
                records += change(now, thing)
            except ApiError as error:
                told.error_code, told.error_message = int(error.code), error.message
        return Outcome([] if only_looks else records, response)

    return some(context, things)


def leads_something(context: CommandContext, broker_id: int) -> bool:
    return any(
        registration.leader == broker_id
        for topic in context.image.topics.topics_by_id.values()
        for registration in topic.partitions.values()
    )
