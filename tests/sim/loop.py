"""An asyncio event loop whose time is virtual: it jumps to the next timer whenever nothing is left to do.

Whole brokers run on it unchanged. With seeded randomness and no real I/O, a run is a function of its seed. A loop that
waits with no timer set would wait for ever: that is reported as `Deadlock`, and a run is bounded in steps.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
NODE: contextvars.ContextVar[str] = contextvars.ContextVar("simulated_node", default="world")
MAX_STEPS = 20_000_000


class Deadlock(AssertionError):
    """Everything waits and no timer is set."""


class _VirtualSelector:
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock("every task waits and nothing is scheduled")
        self._loop.advance(timeout)
        return []

    def close(self) -> None:
        pass


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, start: float = 1000.0) -> None:
        super().__init__()
        self._now = start
        self._selector = _VirtualSelector(self)
        self._clock_resolution = 1e-9
        self._steps = 0
        self._tasks_of: dict[str, set[asyncio.Task[Any]]] = {}
        self.errors: list[dict[str, Any]] = []
        self._ready: Any
        self._scheduled: Any
        self.set_task_factory(self._make_task)
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise AssertionError(f"the run is over its bound of {MAX_STEPS} steps")

    def _make_task(self, loop: Any, coroutine: Coroutine[Any, Any, T], **keywords: Any) -> asyncio.Task[T]:
        node = NODE.get()
        context = keywords.get("context")
        node = context.get(NODE, "world") if context is not None else node
        task = asyncio.Task(coroutine, loop=loop, **keywords)
        tasks = self._tasks_of.setdefault(node, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    def tasks_of(self, node: str) -> list[asyncio.Task[Any]]:
        """The unfinished tasks that code of this node started, in no particular order of meaning but a fixed one."""
        return sorted(self._tasks_of.get(node, ()), key=lambda task: task.get_name())

    def bury(self, node: str) -> None:
        """A process is dead: its tasks end where they stand and none of its callbacks runs any more.

        Tasks are cancelled, so their `finally` blocks run; whatever these touch raises (`disk.Crashed`).
        """
        for handle in [*self._ready, *self._scheduled]:
            if handle._context is not None and handle._context.get(NODE) == node:
                handle.cancel()
        for task in self.tasks_of(node):
            coroutine: Any = task.get_coro()
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()  # its first step is among those that were cancelled
            task.cancel()

    # what BaseEventLoop asks of a concrete loop
    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a simulation to its end on a loop of its own."""
    loop = SimLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        leftovers = asyncio.all_tasks(loop)
        for task in leftovers:
            task.cancel()
        if leftovers:
            loop.run_until_complete(asyncio.wait(leftovers, timeout=10))
        loop.close()
