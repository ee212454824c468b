"""Requests as the generic codec encodes them, to compare the hand-written parsers with."""

from __future__ import annotations

from uuid import UUID

from ballast_wire.fast.fetch import FIRST_WITH_REPLICA_STATE, FetchPartition
from ballast_wire.messages import message

ProduceTopics = list[tuple[str, UUID, list[tuple[int, bytes | None]]]]
FetchTopics = list[tuple[str, UUID, list[FetchPartition]]]
Forgotten = list[tuple[str, UUID, list[int]]]
NO_REPLICA = (-1, -1)
NO_SESSION = (0, -1)


def produce_request(
    version: int, transactional_id: str | None, acks: int, timeout_ms: int, topics: ProduceTopics
) -> bytes:
    kind = message("ProduceRequest")
    topic_of, partition_of = kind.TopicProduceData, kind.TopicProduceData.PartitionProduceData
    data = [
        topic_of(
            version=version,
            name=name,
            topic_id=topic_id,
            partition_data=[partition_of(version=version, index=i, records=r) for i, r in partitions],
        )
        for name, topic_id, partitions in topics
    ]
    request = kind(
        version=version, transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=data
    )
    return bytes(request.encode(version=version))


def fetch_request(
    version: int,
    topics: FetchTopics,
    *,
    replica: tuple[int, int] = NO_REPLICA,
    session: tuple[int, int] = NO_SESSION,
    gone: Forgotten | None = None,
    rack: str = "",
) -> bytes:
    """`replica` and `session` are an id and an epoch each."""
    kind = message("FetchRequest")
    partition_of = kind.FetchTopic.FetchPartition
    request = kind(
        version=version,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            kind.FetchTopic(
                topic=name,
                topic_id=topic_id,
                partitions=[
                    partition_of(
                        partition=p.partition,
                        current_leader_epoch=p.current_leader_epoch,
                        fetch_offset=p.fetch_offset,
                        last_fetched_epoch=p.last_fetched_epoch,
                        log_start_offset=p.log_start_offset,
                        partition_max_bytes=p.max_bytes,
                        high_watermark=p.high_watermark,
                        **({} if p.directory_id is None else {"replica_directory_id": p.directory_id}),
                    )
                    for p in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ],
        forgotten_topics_data=[
            kind.ForgottenTopic(topic=name, topic_id=topic_id, partitions=numbers)
            for name, topic_id, numbers in gone or ()
        ],
        rack_id=rack,
    )
    if version < FIRST_WITH_REPLICA_STATE:
        request.replica_id = replica[0]
    elif replica != NO_REPLICA:
        request.replica_state = kind.ReplicaState(replica_id=replica[0], replica_epoch=replica[1])
    return bytes(request.encode(version=version))
