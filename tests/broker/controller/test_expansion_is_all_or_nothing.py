"""The active controller dies at every single step of an expansion, which then happens completely or not at all."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.controller.cluster import Cluster, Node
from tests.broker.controller.scene import expand_request

from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.image import MetadataImage


class Steps:
    """Kills the active controller when the n-th message of the cluster travels after `arm`."""

    def __init__(self, cluster: Cluster, fatal: int) -> None:
        self.cluster = cluster
        self.fatal = fatal
        self.taken = -1
        self.killed = asyncio.Event()
        cluster.network.on_message = self.step

    def arm(self) -> None:
        self.taken = 0

    def step(self) -> None:
        if self.taken < 0 or self.killed.is_set():
            return
        self.taken += 1
        if self.taken >= self.fatal:
            self.killed.set()
            self.victim = self.cluster.active
            self.task = asyncio.get_running_loop().create_task(self.victim.kill())


def never_half(cluster: Cluster) -> None:
    def publish(delta: MetadataDelta, image: MetadataImage) -> None:
        topic = image.topics.by_name("orders")
        assert topic is None or len(topic.partitions) in (1, 5), "a half-made expansion was seen"

    for node in cluster.nodes.values():
        node.replica.add_publisher(publish)


def partitions(node: Node) -> int:
    topic = node.image.topics.by_name("orders")
    return 0 if topic is None else len(topic.partitions)


@pytest.mark.spec("TOP-11")
@pytest.mark.parametrize("fatal", range(1, 25))
async def test_the_controller_dies_at_step(fatal: int) -> None:
    async with Cluster(voters=3, seed=fatal) as cluster:
        await cluster.create_topic("orders", [1, 2, 3])
        never_half(cluster)
        steps = Steps(cluster, fatal)
        asked_by = next(node for node in cluster.live if node is not cluster.active)
        steps.arm()
        response = await asked_by.client.call(expand_request(("orders", 5, None)), 3)
        await asyncio.wait_for(steps.killed.wait(), 5)
        await steps.task
        # Done in the first attempt, or in the retry after a lost response; in both cases once.
        code = response.results[0].error_code
        assert code in (0, 37), response.results[0]
        await cluster.until(lambda: any(node.service and node.service.is_active for node in cluster.live))
        topic = cluster.active.image.topics.by_name("orders")
        assert topic is not None
        assert sorted(topic.partitions) == [0, 1, 2, 3, 4]
        await steps.victim.start()
        await cluster.until(lambda: all(partitions(node) == 5 for node in cluster.live))
