"""Converts between the core's messages and Kafka's: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot. PURE.

There is one partition, `__cluster_metadata-0`. Requests that name another one, or several, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ballast_broker.raft.messages import BeginEpoch, EndEpoch, Fetch, FetchReply, Reply, Request, SnapshotId, Vote
from ballast_broker.raft.voters import STATIC, Endpoint, Voter, VoterSet, voter_set
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

TOPIC = "__cluster_metadata"
TOPIC_ID = UUID(int=1)
NO_DIRECTORY = UUID(int=0)
PARTITION = 0

FETCH, DESCRIBE_QUORUM, FETCH_SNAPSHOT = 1, 55, 59
VOTE, BEGIN_QUORUM_EPOCH, END_QUORUM_EPOCH = 52, 53, 54
VERSIONS: Mapping[int, int] = {FETCH: 17, VOTE: 2, BEGIN_QUORUM_EPOCH: 1, END_QUORUM_EPOCH: 1, FETCH_SNAPSHOT: 1}
MAX_FETCH_BYTES = 8 * 1024 * 1024
MAX_SNAPSHOT_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Quorum:
    """A node's configuration of its quorum."""

    cluster_id: str | None
    endpoints: Mapping[int, Endpoint]
    """The endpoints of a static quorum's voters."""
    listener_name: str = "CONTROLLER"
    bootstrap: Sequence[Endpoint] = ()
    """Where to ask for the leader, besides the voters."""
    own_endpoints: Callable[[], Mapping[str, Endpoint]] = dict
    """This node's own controller endpoints; empty if it is no controller."""

    @property
    def voters(self) -> VoterSet:
        return voter_set(STATIC, (Voter(v, None, {self.listener_name: e}) for v, e in self.endpoints.items()))


# ---------------------------------------------------------------------- requests


def encode_request(request: Request, to: int, quorum: Quorum) -> Any:
    if isinstance(request, Vote):
        return _encode_vote(request, to, quorum)
    if isinstance(request, BeginEpoch):
        return _encode_begin(request, to, quorum)
    if isinstance(request, EndEpoch):
        return _encode_end(request, quorum)
    return _encode_fetch(request, quorum)


def _topics(kind: Any, **partition: Any) -> list[Any]:
    return [kind.TopicData(topic_name=TOPIC, partitions=[kind.TopicData.PartitionData(**partition)])]


def _encode_vote(request: Vote, to: int, quorum: Quorum) -> Any:
    kind = message("VoteRequest")
    topics = _topics(
        kind,
        partition_index=PARTITION,
        replica_epoch=request.epoch,
        replica_id=request.candidate,
        last_offset_epoch=request.last_epoch,
        last_offset=request.end_offset,
        pre_vote=request.pre_vote,
        replica_directory_id=request.directory or NO_DIRECTORY,
        voter_directory_id=request.voter_directory or NO_DIRECTORY,
    )
    return kind(cluster_id=quorum.cluster_id, voter_id=to, topics=topics)


def _leader_endpoints(kind: Any, leader: int, quorum: Quorum) -> list[Any]:
    """The leader's own endpoints: only the leader sends these requests."""
    static = quorum.endpoints.get(leader)
    found = quorum.own_endpoints() if static is None else {quorum.listener_name: static}
    return [kind.LeaderEndpoint(name=name, host=each.host, port=each.port) for name, each in found.items()]


def _encode_begin(request: BeginEpoch, to: int, quorum: Quorum) -> Any:
    kind = message("BeginQuorumEpochRequest")
    return kind(
        cluster_id=quorum.cluster_id,
        voter_id=to,
        topics=_topics(
            kind,
            partition_index=PARTITION,
            leader_id=request.leader,
            leader_epoch=request.epoch,
            voter_directory_id=request.voter_directory or NO_DIRECTORY,
        ),
        leader_endpoints=_leader_endpoints(kind, request.leader, quorum),
    )


def _encode_end(request: EndEpoch, quorum: Quorum) -> Any:
    kind = message("EndQuorumEpochRequest")
    candidate = kind.TopicData.PartitionData.ReplicaInfo
    topics = _topics(
        kind,
        partition_index=PARTITION,
        leader_id=request.leader,
        leader_epoch=request.epoch,
        preferred_candidates=[candidate(candidate_id=each) for each in request.successors],
    )
    return kind(
        cluster_id=quorum.cluster_id,
        topics=topics,
        leader_endpoints=_leader_endpoints(kind, request.leader, quorum),
    )


def _encode_fetch(request: Fetch, quorum: Quorum) -> Any:
    kind = message("FetchRequest")
    partition = kind.FetchTopic.FetchPartition(
        partition=PARTITION,
        current_leader_epoch=request.epoch,
        fetch_offset=request.offset,
        last_fetched_epoch=request.last_epoch,
        log_start_offset=-1,
        partition_max_bytes=MAX_FETCH_BYTES,
        replica_directory_id=request.directory or NO_DIRECTORY,
    )
    return kind(
        cluster_id=quorum.cluster_id,
        replica_state=kind.ReplicaState(replica_id=request.replica, replica_epoch=-1),
        max_wait_ms=request.max_wait_ms,
        min_bytes=0,
        max_bytes=MAX_FETCH_BYTES,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[kind.FetchTopic(topic=TOPIC, topic_id=TOPIC_ID, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
    )


def check_cluster(request: Any, cluster_id: str | None) -> None:
    theirs = request.cluster_id
    if theirs is not None and cluster_id is not None and theirs != cluster_id:
        raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID)


def only_partition(request: Any) -> Any:
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, "exactly one partition expected")
    return request.topics[0].partitions[0]


def asked_partition(request: Any) -> Any:
    """Like `only_partition`, for a request: checks that it is the metadata partition."""
    data, topic, key = only_partition(request), request.topics[0], request.API_KEY
    if key == FETCH:
        here = (topic.topic_id, data.partition) == (TOPIC_ID, PARTITION)
    elif key == FETCH_SNAPSHOT:
        here = (topic.name, data.partition) == (TOPIC, PARTITION)
    else:
        here = (topic.topic_name, data.partition_index) == (TOPIC, PARTITION)
    if not here:
        unknown = key == FETCH_SNAPSHOT
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if unknown else ErrorCode.INVALID_REQUEST)
    return data


def decode_vote(request: Any) -> Vote:
    data = asked_partition(request)
    return Vote(
        data.replica_epoch,
        data.replica_id,
        data.last_offset_epoch,
        data.last_offset,
        bool(data.pre_vote),
        _directory(data, "replica_directory_id"),
        _directory(data, "voter_directory_id"),
        _voter_asked(request),
    )


def _voter_asked(request: Any) -> int | None:
    """The voter id that the request is addressed to; version 0 does not have it."""
    asked: int = request.voter_id
    return asked if asked >= 0 else None


def _directory(data: Any, field: str) -> UUID | None:
    """A directory id; None in old versions, which lack it, and if the sender does not know it (zeros)."""
    found: UUID | None = getattr(data, field, None)
    return None if found == NO_DIRECTORY else found


def decode_begin(request: Any) -> BeginEpoch:
    data = asked_partition(request)
    directory = _directory(data, "voter_directory_id")
    return BeginEpoch(data.leader_epoch, data.leader_id, directory, _voter_asked(request))


def decode_end(request: Any) -> EndEpoch:
    data = asked_partition(request)
    successors = [each.candidate_id for each in data.preferred_candidates or ()] or data.preferred_successors or ()
    return EndEpoch(data.leader_epoch, data.leader_id, tuple(successors))


def decode_fetch(request: Any) -> Fetch:
    data = asked_partition(request)
    state = request.replica_state
    replica = state.replica_id if state is not None else request.replica_id
    return Fetch(
        data.current_leader_epoch,
        replica,
        data.fetch_offset,
        data.last_fetched_epoch,
        request.max_wait_ms,
        _directory(data, "replica_directory_id"),
    )


def replica_directory(request: Any) -> UUID | None:
    """The replica's directory id in a FetchSnapshot request."""
    return _directory(only_partition(request), "replica_directory_id")


def leader_endpoint(request: Any, listener_name: str) -> tuple[int, Endpoint] | None:
    """The leader's id and address in its BeginQuorumEpoch or EndQuorumEpoch."""
    for each in request.leader_endpoints or ():
        if each.name == listener_name:
            return asked_partition(request).leader_id, Endpoint(each.host, each.port)
    return None


def node_endpoints(response: Any) -> Iterator[tuple[int, Endpoint]]:
    """The address of the leader that a response names."""
    for each in getattr(response, "node_endpoints", None) or ():
        yield each.node_id, Endpoint(each.host, each.port)


def with_leader(response: Any, leader: int, endpoint: Endpoint | None) -> Any:
    """Add the address of the leader that the response names."""
    if endpoint is not None:
        kind = type(response).NodeEndpoint
        response.node_endpoints = [kind(node_id=leader, host=endpoint.host, port=endpoint.port)]
    return response


# ---------------------------------------------------------------------- responses


def encode_reply(name: str, reply: Reply) -> Any:
    """For VoteResponse, BeginQuorumEpochResponse, EndQuorumEpochResponse."""
    kind = message(name)
    data = kind.TopicData.PartitionData(
        partition_index=PARTITION, error_code=int(reply.error), leader_id=reply.leader, leader_epoch=reply.epoch
    )
    if name == "VoteResponse":
        data.vote_granted = reply.granted
    return kind(error_code=0, topics=[kind.TopicData(topic_name=TOPIC, partitions=[data])])


def decode_reply(response: Any) -> Reply:
    if response.error_code:
        return Reply(-1, -1, ErrorCode(response.error_code))
    data = only_partition(response)
    granted = bool(getattr(data, "vote_granted", False))
    return Reply(data.leader_epoch, data.leader_id, ErrorCode(data.error_code), granted)


def encode_fetch_reply(reply: FetchReply, log_start_offset: int) -> Any:
    kind = message("FetchResponse")
    part = kind.FetchableTopicResponse.PartitionData
    data = part(
        partition_index=PARTITION,
        error_code=int(reply.error),
        high_watermark=reply.high_watermark,
        last_stable_offset=reply.high_watermark,
        log_start_offset=log_start_offset,
        aborted_transactions=[],
        records=bytes(reply.records),
    )
    data.current_leader = part.LeaderIdAndEpoch(leader_id=reply.leader, leader_epoch=reply.epoch)
    if reply.diverging is not None:
        data.diverging_epoch = part.EpochEndOffset(epoch=reply.diverging[0], end_offset=reply.diverging[1])
    if reply.snapshot is not None:
        data.snapshot_id = part.SnapshotId(end_offset=reply.snapshot.offset, epoch=reply.snapshot.epoch)
    topic = kind.FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID, partitions=[data])
    return kind(throttle_time_ms=0, error_code=0, session_id=0, responses=[topic])


def decode_fetch_reply(response: Any) -> FetchReply:
    if response.error_code:
        return FetchReply(-1, -1, ErrorCode(response.error_code))
    if len(response.responses) != 1 or len(response.responses[0].partitions) != 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, "exactly one partition expected")
    data = response.responses[0].partitions[0]
    leader = data.current_leader
    diverging, snapshot = data.diverging_epoch, data.snapshot_id
    has_snapshot = snapshot is not None and snapshot.end_offset >= 0
    return FetchReply(
        epoch=-1 if leader is None else leader.leader_epoch,
        leader=-1 if leader is None else leader.leader_id,
        error=ErrorCode(data.error_code),
        high_watermark=data.high_watermark,
        diverging=(diverging.epoch, diverging.end_offset) if diverging is not None and diverging.epoch >= 0 else None,
        snapshot=SnapshotId(snapshot.end_offset, snapshot.epoch) if has_snapshot else None,
        records=data.records or b"",
    )


# ---------------------------------------------------------------------- snapshots


def snapshot_request(
    me: int, directory: UUID | None, epoch: int, snapshot: SnapshotId, position: int, cluster_id: str | None
) -> Any:
    kind = message("FetchSnapshotRequest")
    part = kind.TopicSnapshot.PartitionSnapshot
    data = part(
        partition=PARTITION,
        current_leader_epoch=epoch,
        snapshot_id=part.SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        position=position,
        replica_directory_id=directory or NO_DIRECTORY,
    )
    topic = kind.TopicSnapshot(name=TOPIC, partitions=[data])
    return kind(replica_id=me, max_bytes=MAX_SNAPSHOT_PIECE_BYTES, topics=[topic], cluster_id=cluster_id)


def snapshot_response(
    snapshot: SnapshotId, leader: int, epoch: int, error: ErrorCode, size: int = 0, position: int = 0, data: bytes = b""
) -> Any:
    kind = message("FetchSnapshotResponse")
    part = kind.TopicSnapshot.PartitionSnapshot
    answer = part(
        index=PARTITION,
        error_code=int(error),
        snapshot_id=part.SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        size=size,
        position=position,
        unaligned_records=data,
    )
    answer.current_leader = part.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    return kind(throttle_time_ms=0, error_code=0, topics=[kind.TopicSnapshot(name=TOPIC, partitions=[answer])])
