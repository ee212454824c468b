"""An asyncio event loop whose time is virtual: it jumps to the next timer whenever nothing is left to do.

Whole brokers run on it unchanged. With seeded randomness and no real I/O, a run is a function of its seed. A loop that
has nothing to run and no timer would wait for ever: that raises `Deadlock`. The number of steps of a run is bounded.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")
NODE: contextvars.ContextVar[str] = contextvars.ContextVar("simulated_node", default="world")
FOREVER = float("inf")
MAX_STEPS = 20_000_000
MOST_CANCELLED = 100


class Deadlock(AssertionError):
    """Everything waits and no timer is set."""


class SimTask(asyncio.Task[Any]):
    """Hashed by its number: asyncio keeps tasks in sets, whose order must not depend on memory addresses."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, number: int, **keywords: Any) -> None:
        self.number = number
        super().__init__(coroutine, **keywords)

    def __hash__(self) -> int:
        return self.number


class SimHandle:
    """A callback to run soon or at its time: like asyncio's handles, without what only debug mode needs.

    No handle is less than another, so the order in which timers leave the heap depends on their times alone.
    """

    __slots__ = ("__weakref__", "_args", "_callback", "_cancelled", "_context", "_loop", "_scheduled", "_when")

    def __init__(
        self,
        loop: SimLoop,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self._loop = loop
        self._when = when
        self._callback = callback
        self._args = args
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False
        self._scheduled = when > 0.0  # in the heap

    def __lt__(self, other: SimHandle) -> bool:
        return False

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._loop.cancelled_timers += self._scheduled
            self._callback, self._args = _nothing, ()

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


def _nothing() -> None: ...


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, start: float = 1000.0) -> None:
        super().__init__()
        self._now = start
        self._clock_resolution = 1e-9
        self.turns = 0
        self._tasks_made = 0
        self._stalled: dict[str, tuple[float, list[SimHandle]]] = {}
        self._tasks_of: dict[str, dict[asyncio.Task[Any], None]] = {}
        self.errors: list[dict[str, Any]] = []
        self.cancelled_timers = 0  # that are still in the heap
        self._ready: deque[SimHandle]
        self._timers: list[tuple[float, SimHandle]] = []
        self._stopping: bool
        self.set_task_factory(self._make_task)
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle(self, 0.0, callback, args, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle(self, when, callback, args, context)
        heapq.heappush(self._timers, (when, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle(self, self._now + delay, callback, args, context)
        heapq.heappush(self._timers, (handle._when, handle))
        return handle

    def _run_once(self) -> None:
        """Run until stopped: run what is ready; if nothing is, advance the time to the next timer."""
        ready, timers, pop = self._ready, self._timers, heapq.heappop
        while True:
            self.turns += 1
            if self.turns > MAX_STEPS:
                raise AssertionError(f"the run is over its bound of {MAX_STEPS} steps")
            if self.cancelled_timers > MOST_CANCELLED and self.cancelled_timers > len(timers) // 2:
                self._forget_cancelled()
            if not ready and not self._stopping:
                while timers and timers[0][1]._cancelled:
                    pop(timers)[1]._scheduled = False
                if not timers:
                    raise Deadlock("every task waits and nothing is scheduled")
                self._now = max(self._now, timers[0][0])
            now = self._now
            while timers and timers[0][0] <= now:
                timer = pop(timers)[1]
                timer._scheduled = False
                ready.append(timer)
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle._cancelled or (self._stalled and self._held_back(handle)):
                    continue
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    what = f"Exception in callback {handle._callback}"
                    self.call_exception_handler({"message": what, "exception": error, "handle": handle})
            if self._stopping:
                return

    def _forget_cancelled(self) -> None:
        for _, handle in self._timers:
            handle._scheduled = not handle._cancelled
        self._timers[:] = [timer for timer in self._timers if timer[1]._scheduled]
        heapq.heapify(self._timers)
        self.cancelled_timers = 0

    # -- stalled processes ------------------------------------------------------------------------------------------
    def stall(self, node: str, seconds: float) -> None:
        """Run nothing of this process for `seconds`; what becomes ready meanwhile runs afterwards, in order."""
        until, held = self._stalled.get(node, (0.0, []))
        if self._now + seconds > until:
            self._stalled[node] = (self._now + seconds, held)
            self.call_later(seconds, self._go_on, node, context=contextvars.Context())

    def is_stalled(self, node: str) -> bool:
        return node in self._stalled

    def _held_back(self, handle: SimHandle) -> bool:
        stalled = self._stalled.get(handle._context.get(NODE, ""))
        if stalled is not None:
            stalled[1].append(handle)
        return stalled is not None

    def _go_on(self, node: str) -> None:
        until, held = self._stalled.get(node, (FOREVER, []))
        if until <= self._now:
            del self._stalled[node]
            self._ready.extendleft(reversed(held))

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
        **keywords: Any,
    ) -> asyncio.Task[T]:
        node = NODE.get()
        context = keywords.get("context")
        node = context.get(NODE, "world") if context is not None else node
        self._tasks_made += 1
        assert isinstance(coroutine, Coroutine)
        task = SimTask(coroutine, loop=loop, number=self._tasks_made, **keywords)
        tasks = self._tasks_of.setdefault(node, {})
        tasks[task] = None
        task.add_done_callback(tasks.pop)
        return task

    def tasks_of(self, node: str) -> list[asyncio.Task[Any]]:
        """The unfinished tasks that code of this node started, the oldest first."""
        return list(self._tasks_of.get(node, ()))

    def bury(self, node: str) -> None:
        """End a dead process: its tasks stop where they are and none of its callbacks runs any more.

        Tasks are cancelled, so their `finally` blocks run, but the disk raises `disk.Crashed` on each call they make.
        """
        _, held = self._stalled.pop(node, (0.0, []))
        for handle in [*self._ready, *(handle for _, handle in self._timers), *held]:
            if handle._context.get(NODE) == node:
                handle.cancel()
        for task in self.tasks_of(node):
            coroutine: Any = task.get_coro()
            # `inspect` does not recognise coroutines of compiled code, which do not warn if nobody awaits them.
            if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()  # its first step was just cancelled: it will never run
            task.cancel()

    # required by BaseEventLoop
    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def run(main: Coroutine[Any, Any, T], kind: type[SimLoop] = SimLoop) -> T:
    """Run a simulation to its end on a loop of its own."""
    loop = kind()
    try:
        return loop.run_until_complete(main)
    finally:
        leftovers = asyncio.all_tasks(loop)
        for task in leftovers:
            task.cancel()
        if leftovers:
            loop.run_until_complete(asyncio.wait(leftovers, timeout=10))
        loop.close()
