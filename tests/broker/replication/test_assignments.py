"""When the controller is told the directories of replicas, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest
from tests.sim import loop

from ballast_broker.replication.assignments import LONGEST_LULL_S, LULL_S, Assignments
from ballast_wire.messages import message

TOPIC, HERE, THERE = UUID(int=1_000), UUID(int=2_000), UUID(int=3_000)


class Controller:
    """Accepts everything, and notes the time and size of each request."""

    def __init__(self) -> None:
        self.told: list[tuple[float, int]] = []
        self.failures: list[Exception] = []

    async def call(self, request: Any, version: int) -> Any:
        if self.failures:
            raise self.failures.pop()
        topics = [topic for directory in request.directories for topic in directory.topics]
        self.told.append((asyncio.get_running_loop().time(), sum(len(topic.partitions) for topic in topics)))
        response = message("AssignReplicasToDirsResponse")
        data = response.DirectoryData
        return response(
            error_code=0,
            directories=[
                data(
                    id=directory.id,
                    topics=[
                        data.TopicData(
                            topic_id=topic.topic_id,
                            partitions=[
                                data.TopicData.PartitionData(partition_index=each.partition_index, error_code=0)
                                for each in topic.partitions
                            ],
                        )
                        for topic in directory.topics
                    ],
                )
                for directory in request.directories
            ],
        )


def run(work: Callable[[Assignments], Coroutine[Any, Any, None]]) -> list[tuple[float, int]]:
    """The time (seconds from the beginning) and size of each request to the controller."""
    controller = Controller()

    async def main() -> float:
        assignments = Assignments(controller, 1, lambda: 7)
        began = asyncio.get_running_loop().time()
        await work(assignments)
        await assignments.close()
        return began

    began = loop.run(main())
    return [(at - began, count) for at, count in controller.told]


async def create(assignments: Assignments, seconds: float) -> int:
    """Create a partition every tenth of a second."""
    count = round(seconds * 10)
    for number in range(count):
        assignments.assign_in_time(TOPIC, number, HERE)
        await asyncio.sleep(0.1)
    return count


def test_new_replicas_are_told_of_together_when_no_more_are_made() -> None:
    async def work(assignments: Assignments) -> None:
        await create(assignments, 5)
        await asyncio.sleep(3 * LULL_S)
        assert not len(assignments)

    ((at, count),) = run(work)
    assert count == 50
    assert 5 < at <= 5 + 2 * LULL_S


def test_creation_without_an_end_does_not_keep_them_back_for_ever() -> None:
    async def work(assignments: Assignments) -> None:
        await create(assignments, 3 * LONGEST_LULL_S)

    assert run(work)[0][0] == pytest.approx(LONGEST_LULL_S)


def test_thousands_are_told_of_piece_by_piece() -> None:
    """The controller handles each request in one turn of its event loop."""

    async def work(assignments: Assignments) -> None:
        for number in range(480):
            assignments.assign_in_time(TOPIC, number, HERE)
        await asyncio.sleep(3 * LULL_S)
        assert not len(assignments)

    assert [count for _, count in run(work)] == [200, 200, 80]


@pytest.mark.parametrize("why", ["a move", "a failed directory"])
def test_a_move_and_a_failed_directory_wait_for_nothing(why: str) -> None:
    async def work(assignments: Assignments) -> None:
        await create(assignments, LULL_S / 2)
        if why == "a move":
            assert await assignments.assign(TOPIC, 100, THERE)
        else:
            assignments.hurry()
            await asyncio.sleep(0.01)

    ((at, _),) = run(work)
    assert at == pytest.approx(LULL_S / 2)


def test_the_next_burst_waits_again_after_a_hurry() -> None:
    async def work(assignments: Assignments) -> None:
        assert await assignments.assign(TOPIC, 0, THERE)
        await asyncio.sleep(1)
        assignments.assign_in_time(TOPIC, 1, HERE)
        await asyncio.sleep(3 * LULL_S)

    assert [at for at, _ in run(work)] == [0, pytest.approx(1 + LULL_S)]


@pytest.mark.parametrize("turns", range(6))
def test_a_broker_that_ends_in_the_middle_of_a_hurry_ends(turns: int) -> None:
    """Whoever is told to end has ended, however far it has got."""

    class Silent(Controller):
        async def call(self, request: Any, version: int) -> Any:
            await asyncio.sleep(1_000)

    async def main() -> None:
        assignments = Assignments(Silent(), 1, lambda: 7)
        assignments.assign_in_time(TOPIC, 0, HERE)
        await asyncio.sleep(LULL_S / 2)
        assignments.hurry()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(1):
            await assignments.close()

    loop.run(main())


def test_what_a_bug_kept_from_being_told_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        controller = Controller()
        controller.failures = [ValueError("133 is not a valid ErrorCode")]
        assignments = Assignments(controller, 1, lambda: 7)
        async with asyncio.timeout(10):
            assert await assignments.assign(TOPIC, 0, THERE)
        await assignments.close()

    loop.run(main())
    assert "133 is not a valid ErrorCode" in caplog.text
