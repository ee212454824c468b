"""A broker that starts while no controller can be reached knows of its topics' data, but not of their configuration."""

from __future__ import annotations

import asyncio

import pytest
from tests.sim.clients import SimClient, create_topic
from tests.sim.loop import run
from tests.sim.schedule import TOPIC, Plan, Run

from ballast_broker.config.logs import LogConfig
from ballast_wire.names import TopicPartition

DEFAULTS = [
    {"log.retention.ms": "60000"},
    {"log.retention.bytes": "0"},
    {"log.cleanup.policy": "compact", "log.cleaner.min.cleanable.ratio": "0.0"},
]
ALONE_S = 600.0


@pytest.mark.spec("LOG-20", "LOG-21", "LOG-25")
@pytest.mark.parametrize("defaults", DEFAULTS, ids=["by time", "by size", "compact"])
def test_nothing_goes_by_a_default_that_the_topic_overrides(defaults: dict[str, str]) -> None:
    """The topic keeps everything for ever, and a cleaner would delete its records, which have no keys."""

    async def play() -> None:
        cluster = Run(1, Plan(properties=defaults))
        hosts = [machine.host for machine in cluster.machines]
        try:
            for machine in cluster.machines:
                machine.start()
            admin = SimClient(cluster.fabric, "admin", hosts)
            configs = {"retention_ms": "-1", "retention_bytes": "-1", "cleanup_policy": "delete"}
            await create_topic(admin, TOPIC, 1, 3, **configs)
            clients = cluster._clients(hosts)
            await asyncio.sleep(10.0)
            for client in clients:
                client.cancel()
            await asyncio.sleep(10.0)  # the high watermark is checkpointed meanwhile
            for machine in cluster.machines:
                machine.kill()
            cluster.machines[0].start()
            await asyncio.sleep(5.0)
            assert cluster.machines[0].process is not None
            logs = cluster.machines[0].process.node.logs
            log = logs.logs[TopicPartition(TOPIC, 0)]
            log.roll()
            assert log.high_watermark == log.log_end_offset > 10
            await asyncio.sleep(ALONE_S)
            assert log.log_start_offset == 0
            assert await logs.compactor.dirtiest(log.context.clock.wall_ms()) is None
            log.update_config(LogConfig(retention_ms=60_000))  # as if the topic were known, and did not keep it
            await asyncio.sleep(ALONE_S)
            assert log.log_start_offset == log.log_end_offset
        finally:
            for machine in cluster.machines:
                machine.kill()

    run(play())


@pytest.mark.spec("CLU-02")
def test_a_voter_that_is_alone_for_hours_goes_on_asking() -> None:
    """Each lost election doubles the wait before the next, up to a limit: a thousand doublings must not overflow."""

    async def play() -> None:
        cluster = Run(1, Plan())
        try:
            cluster.machines[0].start()
            await asyncio.sleep(3600.0)
            assert not cluster.machines[0].failures
            assert cluster.machines[0].is_up
        finally:
            cluster.machines[0].kill()

    run(play())
