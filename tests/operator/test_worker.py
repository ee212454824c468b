"""The worker of a cluster: coalescing, batches, back-off, leadership. Time is what the test says."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ballast_operator import kafka_client
from ballast_operator import worker as worker_module
from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection
from ballast_operator.model.meta import Key
from ballast_operator.worker import TOPICS_PER_CYCLE, Part, Requeue, Timers, Work, Worker

CLUSTER = Key("default", "demo")


class Recorder:
    """Keeps what it was asked to do, and answers as told."""

    def __init__(self, answer: Callable[[Work], Requeue] = lambda work: Requeue()) -> None:
        self.seen: list[Work] = []
        self.answer = answer
        self.done = asyncio.Event()

    async def run(self, work: Work) -> Requeue:
        self.seen.append(work)
        self.done.set()
        return self.answer(work)

    async def close(self) -> None:
        pass


def keys(count: int) -> list[Key]:
    return [Key("default", f"t{index}") for index in range(count)]


async def cycles(recorder: Recorder, worker: Worker, count: int) -> None:
    task = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(10):
            while len(recorder.seen) < count:
                recorder.done.clear()
                await recorder.done.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.spec("OPR-05")
def test_a_thousand_events_are_a_few_batches() -> None:
    async def scenario() -> list[Work]:
        recorder = Recorder()
        worker = Worker(CLUSTER, recorder, lambda: True, asyncio.get_running_loop().time)
        for _ in range(3):
            worker.add(topics=keys(1500))
        await cycles(recorder, worker, 2)
        return recorder.seen

    seen = asyncio.run(scenario())
    assert [len(work.topics) for work in seen] == [TOPICS_PER_CYCLE, 1500 - TOPICS_PER_CYCLE]


@pytest.mark.spec("OPR-05")
def test_what_fails_is_looked_at_ever_more_seldom_and_the_rest_as_before() -> None:
    """A Service that is never answered made moves be looked at every 30 s."""
    failing = Requeue(topics=set(keys(1)), topics_seconds=2.0, failed={Part.CLUSTER})
    failing.cluster_within(0.0)
    failing.reassignments_within(0.2)

    async def scenario() -> list[float]:
        now, waited = 1000.0, []
        worker = Worker(CLUSTER, Recorder(lambda work: failing), lambda: True, lambda: now)
        for _ in range(7):
            await worker._cycle_once(Work(cluster=True))
            timers = worker._timers
            assert (timers.topics_at, timers.reassignments_at) == (now + 2.0, now + 0.2)
            waited.append((timers.cluster_at or 0.0) - now)
            worker._timers = Timers()
        failing.failed.clear()
        await worker._cycle_once(Work(cluster=True))
        return [*waited, (worker._timers.cluster_at or 0.0) - now]

    assert asyncio.run(scenario()) == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 0.0]


@pytest.mark.spec("OPR-04")
def test_it_acts_only_while_it_leads() -> None:
    async def scenario() -> list[Work]:
        leads = False
        recorder = Recorder()
        worker = Worker(CLUSTER, recorder, lambda: leads, asyncio.get_running_loop().time)
        worker.add(topics=keys(1))
        task = asyncio.create_task(worker.run())
        for _ in range(20):
            await asyncio.sleep(0)
        assert recorder.seen == []
        leads = True
        worker.wake()
        async with asyncio.timeout(5):
            await recorder.done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return recorder.seen

    assert len(asyncio.run(scenario())) == 1


@pytest.mark.spec("OPR-04")
def test_what_is_due_while_it_does_not_lead_for_a_moment_is_done_without_being_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A renewal that comes a little late is no change of leadership: nobody says anything, and nothing may happen."""
    monkeypatch.setattr(worker_module, "RETRY_SECONDS", 0.01)

    async def scenario() -> list[Work]:
        asked = 0

        def leads() -> bool:
            nonlocal asked
            asked += 1
            return asked > 3

        recorder = Recorder()
        worker = Worker(CLUSTER, recorder, leads, asyncio.get_running_loop().time)
        worker.add(reassignments=True)
        await cycles(recorder, worker, 1)
        return recorder.seen

    assert asyncio.run(scenario()) == [Work(reassignments=True)]


@pytest.mark.parametrize("turns", range(4))
async def test_it_ends_when_it_is_cancelled_as_it_is_woken(turns: int) -> None:
    """Nobody cancels it a second time: the operator would wait for it until it is killed."""
    worker = Worker(CLUSTER, Recorder(), lambda: False, asyncio.get_running_loop().time)
    worker.add(cluster=True)
    task = asyncio.create_task(worker.run())
    await asyncio.sleep(0.01)
    worker.wake()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=1)
    ended = task.done()
    task.cancel()
    assert ended


async def test_a_call_is_cancelled_as_its_answer_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    answer = loop.create_future()
    connection = KafkaConnection(ConnectionSettings("127.0.0.1:1"))
    monkeypatch.setattr(loop, "run_in_executor", lambda *_: answer)
    task = asyncio.create_task(connection.send(None))
    await asyncio.sleep(0)
    answer.set_result("done")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_client_that_has_broken_down_makes_way_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ends by what it did not expect, and each call raises that again: nothing was done until a restart."""

    class Client:
        def __init__(self, **_: object) -> None:
            self.closed = False
            made.append(self)

        def close(self) -> None:
            self.closed = True

    def call(client: Any) -> str:
        if client is made[0]:
            raise RuntimeError("the thread has ended")
        return "done"

    made: list[Client] = []
    monkeypatch.setattr(kafka_client, "Admin", Client)
    connection = KafkaConnection(ConnectionSettings("127.0.0.1:1"))
    with pytest.raises(RuntimeError):
        await connection._call(call)
    assert await connection._call(call) == "done"
    assert [one.closed for one in made] == [True, False]
    await connection.close()


def test_a_cycle_that_raises_is_tried_again_with_all_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "FIRST_BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(worker_module, "RETRY_SECONDS", 0.01)

    async def scenario() -> list[Work]:
        def answer(work: Work) -> Requeue:
            if len(recorder.seen) == 1:
                raise RuntimeError("a bug")
            return Requeue()

        recorder = Recorder(answer)
        worker = Worker(CLUSTER, recorder, lambda: True, asyncio.get_running_loop().time)
        worker.add(topics=keys(2), reassignments=True)
        await cycles(recorder, worker, 2)
        return recorder.seen

    again = asyncio.run(scenario())[1]
    assert again.topics == set(keys(2))
    assert again.reassignments


def test_timers_keep_the_soonest_and_give_back_what_is_due() -> None:
    timers = Timers()
    requeue = Requeue(topics=set(keys(1)), topics_seconds=5.0)
    requeue.reassignments_within(9.0)
    requeue.reassignments_within(3.0)
    timers.merge(requeue, now=100.0, least=dict.fromkeys(Part, 0.0))
    assert timers.next == 103.0
    due = timers.due(103.0)
    assert (due.topics, due.reassignments) == (set(), True)
    assert timers.due(105.0).topics == set(keys(1))
    assert timers.next is None


def test_failures_hold_everything_back_for_the_time_of_the_back_off() -> None:
    timers = Timers()
    requeue = Requeue()
    requeue.cluster_within(0.0)
    timers.merge(requeue, now=0.0, least=dict.fromkeys(Part, 8.0))
    assert timers.next == 8.0
