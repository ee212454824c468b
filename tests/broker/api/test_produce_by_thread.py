"""Produce requests while a disk stalls: the event loop does not block, order and responses stay the same (LOG-32)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.api.producing import Producing, answer
from tests.broker.replication.cluster import Cluster, batch_of, eventually
from tests.broker.replication.cluster import Node as Broker

from ballast_broker.api.produce_answers import ProduceRefused
from ballast_broker.net_reply import Pending
from ballast_broker.storage.disk import RealFile
from ballast_wire.errors import ErrorCode
from ballast_wire.names import TopicPartition

ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 0)


class Gate:
    """Holds writes in threads while the event loop goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.waiting = threading.Semaphore(0)
        loop_thread, write = threading.get_ident(), RealFile.pwrite

        def pwrite(file: RealFile, data: Any, position: int) -> None:
            if threading.get_ident() != loop_thread:
                self.waiting.release()
                assert self.open.wait(30)
            write(file, data, position)

        monkeypatch.setattr(RealFile, "pwrite", pwrite)


class Client(Producing):
    def send(self, acks: int, *batches: tuple[TopicPartition, str]) -> Any:
        return self.send_batches(acks, *((partition, bytes(batch_of(value))) for partition, value in batches))


async def stalled(folder: Path, story: Callable[[Cluster, Broker, Client], Any]) -> None:
    async with Cluster(folder) as cluster:
        [node] = await cluster.add(1, directories=2)
        for name in ("orders", "bills"):
            cluster.controller.create_topic(name, [[1]])
        log = node.log(ORDERS)
        assert log.directory is not node.log(BILLS).directory
        log.directory.slow_until = asyncio.get_running_loop().time() + 3600
        await story(cluster, node, Client(cluster, node))


@pytest.mark.spec("LOG-32")
async def test_a_stalled_disk_holds_up_its_own_partitions_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)

    async def story(cluster: Cluster, node: Broker, client: Client) -> None:
        replies = [client.send(acks, (ORDERS, f"{acks}")) for acks in (1, -1)]
        assert all(isinstance(reply, Pending) and not reply.pipelined for reply in replies)
        silent = client.send(0, (ORDERS, "0"))
        both = client.send(-1, (BILLS, "in time"), (ORDERS, "late"))
        assert await answer(client.send(1, (BILLS, "at once"))) == [("bills", 0, 1)]
        assert await asyncio.to_thread(gate.waiting.acquire, True, 30)
        node.log(ORDERS).directory.slow_until = 0.0  # the disk is well again, but what came before goes before
        last = client.send(1, (ORDERS, "last"))
        assert isinstance(last, Pending)
        assert node.log(ORDERS).log_end_offset == 0
        gate.open.set()
        assert [await answer(reply) for reply in replies] == [[("orders", 0, 0)], [("orders", 0, 1)]]
        assert await silent.future is None
        assert await answer(both) == [("bills", 0, 0), ("orders", 0, 3)]
        assert await answer(last) == [("orders", 0, 4)]
        assert await answer(client.send(1, (ORDERS, "at once"))) == [("orders", 0, 5)]
        assert node.stored(ORDERS) == ["1", "-1", "0", "late", "last", "at once"]
        assert node.stored(BILLS) == ["in time", "at once"]

    await stalled(tmp_path, story)


@pytest.mark.spec("LOG-32", "TOP-24")
async def test_a_partition_that_goes_meanwhile_refuses_what_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)

    async def story(cluster: Cluster, node: Broker, client: Client) -> None:
        said, silent = client.send(-1, (ORDERS, "a")), client.send(0, (ORDERS, "b"))
        assert await asyncio.to_thread(gate.waiting.acquire, True, 30)
        cluster.controller.delete_topic("orders")
        gate.open.set()
        assert await answer(said) == [("orders", ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
        with pytest.raises(ProduceRefused):
            await silent.future

    await stalled(tmp_path, story)


@pytest.mark.spec("LOG-32", "REP-01")
async def test_coordinators_and_followers_append_by_thread_too(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        one, two = await cluster.add(1, 2)
        cluster.controller.create_topic("orders", [[1, 2]])
        for node in (one, two):
            node.log(ORDERS).directory.slow_until = asyncio.get_running_loop().time() + 3600
        for value in "abc":
            assert await one.produce_to_all(ORDERS, value) is ErrorCode.NONE
        assert one.stored(ORDERS) == two.stored(ORDERS) == ["a", "b", "c"]
        await eventually(lambda: two.log(ORDERS).high_watermark == 3)
        cluster.controller.lose(1)
        await eventually(lambda: two.state(ORDERS).is_leader)
        assert await two.produce_to_all(ORDERS, "d") is ErrorCode.NONE
        assert two.log(ORDERS).epoch_end_offset(0)[1] == 3
