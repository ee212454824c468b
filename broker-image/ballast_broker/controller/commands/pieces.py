"""A broker's replicas, and changes of many places: piece by piece, so that nobody's loop is held for long. PURE.

A piece looks at the state of its own moment: what changed since the places were collected is left alone.
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
RECORDS_PER_PIECE = 200  # of what is changed one by one, each whole
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
    """Those of the places that are there by now, and still as they were when they were looked for."""
    for topic_id, number in places:
        topic = context.image.topics.by_id(topic_id)
        partition = topic.partitions.get(number) if topic is not None else None
        if topic is not None and partition is not None and wanted(partition):
            yield topic, number


def leave(context: CommandContext, places: Iterable[Place], broker_id: int, *, unclean: bool = False) -> list[Any]:
    """The records that take a broker out of the ISRs and leaderships of these places."""

    def concerned(partition: PartitionRegistration) -> bool:
        return broker_id in partition.isr or (unclean and broker_id in partition.elr)

    found = still(context, places, concerned)
    return without_broker(context, found, broker_id, unclean_shutdown=unclean)


def lead_again(context: CommandContext, places: Iterable[Place]) -> list[Any]:
    """Leaders for what has none and may have one by now."""
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
    """`change` on a number of places at a time; `finish` together with the last of them, which it is told.

    Places are a broker's replicas, or what a request names; of its `response` each piece writes its own part.
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
    """Each thing for itself, with all of its records in one batch. `answer` puts into `response` what is told of it:
    also why `change` refuses it."""

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
