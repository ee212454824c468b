"""An asyncio event loop whose time is virtual: it jumps to the next timer whenever nothing is left to do.

Whole brokers run on it unchanged. With seeded randomness and no real I/O, a run is a function of its seed. A loop that
waits with no timer set would wait for ever: that is reported as `Deadlock`, and a run is bounded in steps.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import inspect
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
NODE: contextvars.ContextVar[str] = contextvars.ContextVar("simulated_node", default="world")
FOREVER = float("inf")
MAX_STEPS = 20_000_000
MOST_CANCELLED = 100


class Deadlock(AssertionError):
    """Everything waits and no timer is set."""


class SimTask(asyncio.Task[Any]):
    """Tasks are kept in sets, by asyncio as well: their order there must not be that of addresses in memory."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, number: int, **keywords: Any) -> None:
        self.number = number
        super().__init__(coroutine, **keywords)

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, start: float = 1000.0) -> None:
        super().__init__()
        self._now = start
        self._clock_resolution = 1e-9
        self._steps = 0
        self._tasks_made = 0
        self._stalled: dict[str, tuple[float, list[asyncio.Handle]]] = {}
        self._tasks_of: dict[str, dict[asyncio.Task[Any], None]] = {}
        self.errors: list[dict[str, Any]] = []
        self._ready: Any
        self._scheduled: Any
        self._timer_cancelled_count: int
        self.set_task_factory(self._make_task)
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        """What is ready runs; if nothing is, it is the time of the next timer."""
        ready, scheduled = self._ready, self._scheduled
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise AssertionError(f"the run is over its bound of {MAX_STEPS} steps")
        if self._timer_cancelled_count > max(MOST_CANCELLED, len(scheduled) // 2):
            self._forget_cancelled()
        if not ready and not self._stopping:
            while scheduled and scheduled[0]._cancelled:
                heapq.heappop(scheduled)._scheduled = False
            if not scheduled:
                raise Deadlock("every task waits and nothing is scheduled")
            self._now = max(self._now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled and not (self._stalled and self._held_back(handle)):
                handle._run()

    def _forget_cancelled(self) -> None:
        for handle in self._scheduled:
            handle._scheduled = not handle._cancelled
        self._scheduled[:] = [handle for handle in self._scheduled if handle._scheduled]
        heapq.heapify(self._scheduled)
        self._timer_cancelled_count = 0

    # -- processes that stand still ---------------------------------------------------------------------------------
    def stall(self, node: str, seconds: float) -> None:
        """Nothing of this process runs for so long; what came up meanwhile runs then, in its order."""
        until, held = self._stalled.get(node, (0.0, []))
        if self._now + seconds > until:
            self._stalled[node] = (self._now + seconds, held)
            self.call_later(seconds, self._go_on, node, context=contextvars.Context())

    def is_stalled(self, node: str) -> bool:
        return node in self._stalled

    def _held_back(self, handle: asyncio.Handle) -> bool:
        context: contextvars.Context = handle._context  # type: ignore[attr-defined]
        stalled = self._stalled.get(context.get(NODE, ""))
        if stalled is not None:
            stalled[1].append(handle)
        return stalled is not None

    def _go_on(self, node: str) -> None:
        until, held = self._stalled.get(node, (FOREVER, []))
        if until <= self._now:
            del self._stalled[node]
            self._ready.extendleft(reversed(held))

    def _make_task(self, loop: Any, coroutine: Coroutine[Any, Any, T], **keywords: Any) -> asyncio.Task[T]:
        node = NODE.get()
        context = keywords.get("context")
        node = context.get(NODE, "world") if context is not None else node
        self._tasks_made += 1
        task = SimTask(coroutine, loop=loop, number=self._tasks_made, **keywords)
        tasks = self._tasks_of.setdefault(node, {})
        tasks[task] = None
        task.add_done_callback(tasks.pop)
        return task

    def tasks_of(self, node: str) -> list[asyncio.Task[Any]]:
        """The unfinished tasks that code of this node started, the oldest first."""
        return list(self._tasks_of.get(node, ()))

    def bury(self, node: str) -> None:
        """A process is dead: its tasks end where they stand and none of its callbacks runs any more.

        Tasks are cancelled, so their `finally` blocks run; whatever these touch raises (`disk.Crashed`).
        """
        _, held = self._stalled.pop(node, (0.0, []))
        for handle in [*self._ready, *self._scheduled, *held]:
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
