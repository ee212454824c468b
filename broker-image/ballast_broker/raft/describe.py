"""Implements DescribeQuorum: the leader, and each replica's progress. PURE."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ballast_broker.raft import wire
from ballast_broker.raft.core import RaftCore
from ballast_broker.raft.leader import ReplicaProgress
from ballast_broker.raft.voters import Voter
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message
from ballast_wire.wording import WORDING


def describe_request() -> Any:
    kind = message("DescribeQuorumRequest")
    partition = kind.TopicData.PartitionData(partition_index=wire.PARTITION)
    return kind(topics=[kind.TopicData(topic_name=wire.TOPIC, partitions=[partition])])


def describe_quorum(request: Any, core: RaftCore, now: float, wall_ms: int) -> Any:
    asked = [(topic.topic_name, p.partition_index) for topic in request.topics for p in topic.partitions]
    if asked != [(wire.TOPIC, wire.PARTITION)]:
        return _not_here(request)
    leadership = core.leadership
    data = _partition(
        wire.PARTITION,
        ErrorCode.NONE if leadership is not None else ErrorCode.NOT_LEADER_OR_FOLLOWER,
        leader_id=core.leader,
        leader_epoch=core.epoch,
        high_watermark=core.high_watermark,
    )
    if leadership is not None:
        offset_ms = wall_ms - round(now * 1000)

        def described(progress: ReplicaProgress, directory: UUID | None) -> Any:
            mine = progress is leadership.own
            return message("DescribeQuorumResponse").TopicData.PartitionData.ReplicaState(
                replica_id=progress.id,
                replica_directory_id=directory or wire.NO_DIRECTORY,
                log_end_offset=core.log_end_offset if mine else progress.end_offset,
                last_fetch_timestamp=wall_ms if mine else _wall(progress.fetched_at, offset_ms),
                last_caught_up_timestamp=wall_ms if mine else _wall(progress.caught_up_at, offset_ms),
            )

        data.current_voters = [
            described(leadership.voters[voter.id], voter.directory) for voter in core.voter_set.voters
        ]
        data.observers = [described(each, each.directory) for each in leadership.observers.values()]
    return _response([(wire.TOPIC, [data])], [_node(voter) for voter in core.voter_set.voters])


def _node(voter: Voter) -> Any:
    kind = message("DescribeQuorumResponse").Node
    listeners = [kind.Listener(name=name, host=each.host, port=each.port) for name, each in voter.endpoints.items()]
    return kind(node_id=voter.id, listeners=listeners)


def _not_here(request: Any) -> Any:
    """The quorum has only one partition; any other list gets an error for each of its entries."""
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topics = [
        (topic.topic_name, [_partition(each.partition_index, error, WORDING[error]) for each in topic.partitions])
        for topic in request.topics
    ]
    return _response(topics, [])


def _partition(
    number: int, error: ErrorCode, text: str = "", *, leader_id: int = 0, leader_epoch: int = 0, high_watermark: int = 0
) -> Any:
    return message("DescribeQuorumResponse").TopicData.PartitionData(
        partition_index=number,
        error_code=error,
        error_message=text,
        leader_id=leader_id,
        leader_epoch=leader_epoch,
        high_watermark=high_watermark,
        current_voters=[],
        observers=[],
    )


def _response(topics: list[tuple[str, list[Any]]], nodes: list[Any]) -> Any:
    kind = message("DescribeQuorumResponse")
    named = [kind.TopicData(topic_name=name, partitions=partitions) for name, partitions in topics]
    return kind(error_code=ErrorCode.NONE, error_message="", topics=named, nodes=nodes)


def _wall(moment: float, offset_ms: int) -> int:
    return -1 if moment == float("-inf") else round(moment * 1000) + offset_ms
