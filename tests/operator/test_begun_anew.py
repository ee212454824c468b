"""What becomes of the workers when Kopf, which has cancelled them, is begun anew."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.operator.test_left_behind import CLUSTER, NOBODY, body

from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection
from ballast_operator.runtime import Runtime

pytestmark = [pytest.mark.spec("OPR-04"), pytest.mark.timeout(30)]


async def test_a_worker_that_still_ends_behind_a_hanging_call_is_given_no_more_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was kept, since it had not ended yet; what was heard then was its, and nobody did it."""
    runtime, begun, answered = Runtime(NOBODY), asyncio.Event(), threading.Event()
    worker = runtime._worker(CLUSTER)
    ending = runtime._workers[CLUSTER][1]
    connection = KafkaConnection(ConnectionSettings("127.0.0.1:1"))
    closing = asyncio.Event()

    async def close() -> None:
        closing.set()
        await connection.close()

    monkeypatch.setattr(worker._cycle, "close", close)
    loop = asyncio.get_running_loop()

    def hang() -> None:
        loop.call_soon_threadsafe(begun.set)
        answered.wait()

    hanging = loop.run_in_executor(connection._executor, hang)
    try:
        async with asyncio.timeout(20):
            await begun.wait()
            ending.cancel()  # as Kopf does
            await closing.wait()
        assert not ending.done()
        runtime.begin_anew()
        runtime.heard("KafkaCluster", body("demo", {"external": {"bootstrapServers": "127.0.0.1:1"}}))
    finally:
        answered.set()
    async with asyncio.timeout(20):
        await asyncio.wait({ending})
        await hanging
    assert runtime.alive() is None
    assert runtime._worker(CLUSTER).depth == 2
    assert not runtime._workers[CLUSTER][1].done()
    assert ending not in runtime._ending
    await runtime.stop()
