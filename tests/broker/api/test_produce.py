"""For what a Produce request is refused before it reaches its partition."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.broker.api.producing import Producing, Slow, answer
from tests.broker.replication.cluster import Cluster, Node, batch_of, eventually

from ballast_broker.api.produce_answers import ProduceRefused
from ballast_broker.net_reply import Pending
from ballast_broker.real_world import RealClock
from ballast_wire.compression import Codec
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

ORDERS = TopicPartition("orders", 0)


@pytest.mark.spec("CLI-07", "CLI-10")
async def test_zstd_comes_in_versions_that_know_it(tmp_path: Path) -> None:
    record = Record(value=b"v", timestamp=RealClock().wall_ms())
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1)
        cluster.controller.create_topic("orders", [[1]])
        client = Producing(cluster, node)
        offset = 0
        for version in (3, 6, 7, 9):
            for codec in (Codec.GZIP, Codec.ZSTD):
                sent = client.send_batches(1, (ORDERS, bytes(encode_batch([record], codec=codec))), version=version)
                [(_, error, at)] = await answer(sent, version)
                if codec == Codec.ZSTD and version < 7:
                    assert (error, at) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, -1)
                else:
                    assert (error, at) == (ErrorCode.NONE, offset)
                    offset += 1


@pytest.mark.spec("CLI-10")
@pytest.mark.parametrize("batches", [1, 2])
async def test_what_another_broker_has_is_not_unknown(tmp_path: Path, batches: int) -> None:
    """As after a reassignment: the client learns of the leader, instead of an unknown topic."""
    record = Record(value=b"v", timestamp=RealClock().wall_ms())
    async with Cluster(tmp_path) as cluster:
        node, _ = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1], [1]])
        client = Producing(cluster, node)
        sent = [(TopicPartition("orders", number), bytes(encode_batch([record]))) for number in range(batches)]
        assert (await answer(client.send_batches(1, *sent)))[0] == ("orders", ErrorCode.NONE, 0)
        cluster.controller.reassign("orders", [2])
        await eventually(lambda: node.replicas.partition(ORDERS) is None)
        assert (await answer(client.send_batches(1, *sent)))[0] == ("orders", ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        cluster.controller.delete_topic("orders")
        assert (await answer(client.send_batches(1, *sent)))[0][1] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.spec("CLI-10")
async def test_a_partition_that_is_named_twice_is_written_once(tmp_path: Path) -> None:
    """As it is named last, and with one response; also if it is the topic that is named twice."""
    first, last = (
        [Record(value=value, timestamp=RealClock().wall_ms())] * count for value, count in ((b"f", 3), (b"l", 1))
    )
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1)
        cluster.controller.create_topic("orders", [[1], [1]])
        client = Producing(cluster, node)
        twice = [(ORDERS, bytes(encode_batch(first))), (ORDERS, bytes(encode_batch(last)))]
        other = (TopicPartition("orders", 1), bytes(encode_batch(first)))
        assert await answer(client.send_batches(1, *twice, other)) == [("orders", ErrorCode.NONE, 0)] * 2
        assert node.log(ORDERS).log_end_offset == 1
        assert await answer(client.send_batches(1, *twice, apart=True)) == [("orders", ErrorCode.NONE, 1)]
        assert node.log(ORDERS).log_end_offset == 2


@pytest.mark.spec("CLI-10")
async def test_where_there_is_nothing_acks_do_not_matter(tmp_path: Path) -> None:
    batch = bytes(encode_batch([Record(value=b"v", timestamp=RealClock().wall_ms())]))
    places = [ORDERS, TopicPartition("orders", 9), TopicPartition("nowhere", 0)]
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1)
        cluster.controller.create_topic("orders", [[1]])
        client = Producing(cluster, node)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for sent in ([place] for place in places), [places]:
            answers = [
                each
                for some in sent
                for each in await answer(client.send_batches(2, *((place, batch) for place in some)))
            ]
            assert [error for _, error, _ in answers] == [ErrorCode.INVALID_REQUIRED_ACKS, unknown, unknown]


MANY = [TopicPartition("orders", number) for number in range(5)]


async def begun_to_write(cluster: Cluster, acks: int, *others: TopicPartition) -> tuple[Node, Any]:
    [node] = await cluster.add(1)
    cluster.controller.create_topic("orders", [[1]] * len(MANY))
    sent = [(each, bytes(batch_of(str(each)))) for each in (*MANY, *others)]
    return node, Producing(cluster, node, clock=Slow()).send_batches(acks, *sent)


def written(node: Node) -> list[int]:
    return [node.log(each).log_end_offset for each in MANY]


@pytest.mark.spec("CLI-10")
@pytest.mark.parametrize("acks", [-1, 0, 1])
async def test_many_partitions_of_one_request_are_written_in_turns(tmp_path: Path, acks: int) -> None:
    """Others are served in between; the rest of the request is no longer in the connection's buffer."""
    async with Cluster(tmp_path) as cluster:
        node, reply = await begun_to_write(cluster, acks)
        assert isinstance(reply, Pending)
        assert reply.begun is not None
        seen = [written(node)]
        while not reply.begun.done():
            await asyncio.sleep(0)
            if written(node) != seen[-1]:
                seen.append(written(node))
        assert seen == [[1] * count + [0] * (len(MANY) - count) for count in range(1, len(MANY) + 1)]
        if acks:
            assert await answer(reply) == [("orders", ErrorCode.NONE, 0)] * len(MANY)
        else:
            assert await reply.future is None
        assert [node.stored(each) for each in MANY] == [[str(each)] for each in MANY]


async def test_what_is_refused_of_a_request_in_turns_ends_its_connection_without_acks(tmp_path: Path) -> None:
    """No later request is begun before that. The log gets no more of a name than a topic may have."""
    async with Cluster(tmp_path) as cluster:
        long = TopicPartition("n" * 30_000, 0)
        node, reply = await begun_to_write(cluster, 0, long)
        told = "^a produce to n{249}-0 without acks was refused: UNKNOWN_TOPIC.{,100}$"
        with pytest.raises(ProduceRefused, match=told):
            await reply.future
        with pytest.raises(ProduceRefused, match=told):
            Producing(cluster, node).send_batches(0, (long, bytes(batch_of("v"))))
        assert not reply.begun.done()
        assert written(node) == [1] * len(MANY)
