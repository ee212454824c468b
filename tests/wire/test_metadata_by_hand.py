"""Metadata responses by hand are the same bytes as the general engine's, in every version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_wire.fast.metadata import Broker, MetadataResponse, Partition, encode_partition, encode_topic
from ballast_wire.messages import message

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=4) | st.just(list(range(200)))
PARTITIONS = st.builds(
    Partition, st.integers(-1, 100), st.integers(0, 9999), st.integers(-1, 9), st.integers(0, 9), IDS, IDS, IDS
)
TOPICS = st.fixed_dictionaries(
    {
        "error": st.integers(-1, 130),
        "name": st.text(min_size=1, max_size=200),
        "topic_id": st.uuids(),
        "internal": st.booleans(),
        "partitions": st.lists(PARTITIONS, max_size=3),
        "operations": st.integers(-(2**31), 2**31 - 1),
    }
)
BROKERS = st.lists(
    st.builds(Broker, st.integers(0, 9), st.text(max_size=9), st.integers(1, 65535), st.none() | st.text(max_size=9)),
    max_size=3,
)


def by_engine(version: int, brokers: list[Broker], topics: list[dict[str, Any]], operations: int) -> bytes:
    kind = message("MetadataResponse")
    topic_kind = kind.MetadataResponseTopic

    def partition(each: Partition) -> Any:
        return topic_kind.MetadataResponsePartition(
            version=version,
            error_code=each.error,
            partition_index=each.number,
            leader_id=each.leader,
            leader_epoch=each.leader_epoch,
            replica_nodes=list(each.replicas),
            isr_nodes=list(each.isr),
            offline_replicas=list(each.offline),
        )

    made = kind(
        version=version,
        brokers=[
            kind.MetadataResponseBroker(version=version, node_id=b.node_id, host=b.host, port=b.port, rack=b.rack)
            for b in brokers
        ],
        cluster_id="cluster",
        controller_id=3,
        topics=[
            topic_kind(
                version=version,
                error_code=each["error"],
                name=each["name"],
                topic_id=each["topic_id"],
                is_internal=each["internal"],
                partitions=[partition(p) for p in each["partitions"]],
                topic_authorized_operations=each["operations"],
            )
            for each in topics
        ],
        cluster_authorized_operations=operations,
    )
    return bytes(made.encode(version=version))


@pytest.mark.spec("CLI-10")
@pytest.mark.parametrize("version", range(14))
@settings(max_examples=25, deadline=None)
@given(brokers=BROKERS, topics=st.lists(TOPICS, max_size=3), operations=st.integers(0, 9999))
def test_the_same_bytes(version: int, brokers: list[Broker], topics: list[dict[str, Any]], operations: int) -> None:
    encoded = [
        encode_topic(version, **each | {"partitions": [encode_partition(one, version) for one in each["partitions"]]})
        for each in topics
    ]
    response = MetadataResponse(version, brokers, "cluster", 3, encoded, operations)
    assert response.encode(version) == by_engine(version, brokers, topics, operations)


def test_a_response_is_of_one_version() -> None:
    with pytest.raises(ValueError, match="version 9, not 8"):
        MetadataResponse(9, [], "cluster", 3, [], 0).encode(8)
