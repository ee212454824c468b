"""ElectLeaders requests, and automatic rebalancing to preferred leaders. PURE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ballast_broker.controller.commands.context import CommandContext, Outcome
from ballast_broker.controller.commands.partition_change import Election, change_of
from ballast_broker.controller.commands.pieces import Place, lead_again, leaderless, piecewise, still
from ballast_broker.metadata.image import NO_LEADER, MetadataImage, PartitionRegistration, TopicImage
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.wording import WORDING

PREFERRED_TYPE = 0
UNCLEAN_TYPE = 1


def elect_leaders(context: CommandContext, request: Any) -> Outcome:
    """No list of partitions means all; the response then omits partitions that need no election."""
    response = message("ElectLeadersResponse")(replica_election_results=[], error_code=0, throttle_time_ms=0)
    if request.topic_partitions == []:
        return Outcome([], response)
    election = _election_type(request.election_type)
    everything = request.topic_partitions is None
    kind = type(response).ReplicaElectionResult
    wanted = (
        [topic.name for topic in context.image.topics] if everything else [t.topic for t in request.topic_partitions]
    )
    answers = {name: kind(topic=name, partition_result=[]) for name in wanted}
    response.replica_election_results = list(answers.values())

    def elect(now: CommandContext, asked: Sequence[tuple[str, int]]) -> list[Any]:
        records = []
        for name, partition in asked:
            result = kind.PartitionResult(partition_id=partition, error_code=0, error_message=None)
            try:
                records.append(_elect(now, name, partition, election))
            except ApiError as error:
                if everything and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                result.error_code, result.error_message = int(error.code), error.message
            answers[name].partition_result.append(result)
        return records

    return piecewise(context, list(_wanted(context, request)), elect, response=response)


def _election_type(number: int) -> Election:
    if number == PREFERRED_TYPE:
        return Election.PREFERRED
    if number == UNCLEAN_TYPE:
        return Election.UNCLEAN
    raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {number}")


def _wanted(context: CommandContext, request: Any) -> Iterator[tuple[str, int]]:
    if request.topic_partitions is None:
        for topic in context.image.topics:
            for partition, _ in topic.sorted_partitions():
                yield topic.name, partition
        return
    for each in request.topic_partitions:
        for partition in each.partitions:
            yield each.topic, partition


def _refused(code: ErrorCode) -> ApiError:
    return ApiError(code, WORDING[code])


def _elect(context: CommandContext, name: str, partition_id: int, election: Election) -> Any:
    topic = context.image.topics.by_name(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    before = topic.partitions.get(partition_id)
    if before is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{partition_id}")
    if election is Election.PREFERRED and before.leader == before.preferred_leader:
        raise _refused(ErrorCode.ELECTION_NOT_NEEDED)
    if election is Election.UNCLEAN and before.leader != NO_LEADER:
        raise _refused(ErrorCode.ELECTION_NOT_NEEDED)
    built = change_of(context, topic, partition_id, election=election).build()
    if built is None:
        if election is Election.PREFERRED:
            raise _refused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
        raise _refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    return built


def balance_leaders(context: CommandContext) -> Outcome:
    """Return leaderships to preferred brokers that lack more than the allowed percentage of theirs."""
    overdue = imbalanced_brokers(context.image, context.config.leader_imbalance_per_broker_percentage)
    places = [
        (topic.id, partition_id)
        for topic, partition_id, before in _partitions(context.image)
        if before.preferred_leader in overdue and _leads_elsewhere(before)
    ]
    return piecewise(context, places, _give_back)


def _leads_elsewhere(partition: PartitionRegistration) -> bool:
    return partition.leader != partition.preferred_leader


def _give_back(context: CommandContext, places: Sequence[Place]) -> list[Any]:
    found = still(context, places, _leads_elsewhere)
    built = (change_of(context, topic, number, election=Election.PREFERRED).build() for topic, number in found)
    return [each for each in built if each is not None]


def imbalanced_brokers(image: MetadataImage, percentage: int) -> set[int]:
    preferred: Counter[int] = Counter()
    elsewhere: Counter[int] = Counter()
    for _, _, partition in _partitions(image):
        preferred[partition.preferred_leader] += 1
        if partition.leader != partition.preferred_leader:
            elsewhere[partition.preferred_leader] += 1
    return {broker for broker, count in elsewhere.items() if count * 100 > percentage * preferred[broker]}


def _partitions(image: MetadataImage) -> Iterator[tuple[TopicImage, int, PartitionRegistration]]:
    for topic in image.topics:
        for partition_id, partition in topic.partitions.items():
            yield topic, partition_id, partition


def offline_elections(context: CommandContext) -> Outcome:
    """Elect leaders for offline partitions that may have one by now.

    Either unclean election was enabled for the topic, or a controller died before it had elected leaders after a
    replica's return.
    """
    return piecewise(context, leaderless(context), lead_again)
