"""DescribeQuorum: who leads, and how far everybody is. PURE."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ballast_broker.raft import wire
from ballast_broker.raft.core import RaftCore
from ballast_broker.raft.leader import ReplicaProgress
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
    kind = message("DescribeQuorumResponse")
    part = kind.TopicData.PartitionData
    data = part(
        partition_index=wire.PARTITION,
        error_code=0,
        error_message="",
        leader_id=core.leader,
        leader_epoch=core.epoch,
        high_watermark=core.high_watermark,
        current_voters=[],
        observers=[],
    )
    leadership = core.leadership
    if leadership is None:
        data.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    else:
        state = part.ReplicaState
        offset_ms = wall_ms - round(now * 1000)

        def described(progress: ReplicaProgress, directory: UUID | None) -> Any:
            mine = progress is leadership.own
            return state(
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
    nodes = [
        kind.Node(
            node_id=voter.id,
            listeners=[
                kind.Node.Listener(name=name, host=each.host, port=each.port) for name, each in voter.endpoints.items()
            ],
        )
        for voter in core.voter_set.voters
    ]
    topic = kind.TopicData(topic_name=wire.TOPIC, partitions=[data])
    return kind(error_code=0, error_message="", topics=[topic], nodes=nodes)


def _not_here(request: Any) -> Any:
    """There is but one partition that a quorum agrees on; any other list gets an error for each of its entries."""
    kind = message("DescribeQuorumResponse")
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topics = [
        kind.TopicData(
            topic_name=topic.topic_name,
            partitions=[
                kind.TopicData.PartitionData(
                    partition_index=each.partition_index,
                    error_code=int(error),
                    error_message=WORDING[error],
                    leader_id=0,
                    leader_epoch=0,
                    high_watermark=0,
                    current_voters=[],
                    observers=[],
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return kind(error_code=0, error_message="", topics=topics, nodes=[])


def _wall(moment: float, offset_ms: int) -> int:
    return -1 if moment == float("-inf") else round(moment * 1000) + offset_ms
