"""Runs one worker per cluster: it takes the dirty keys, reconciles them in one cycle and schedules the next one.

Dirty keys are kept in sets, so a thousand events of one object cost one reconciliation, and the queue is bounded by the
number of objects. A slow or failing cluster delays only itself. A worker acts only while this process leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from ballast_operator.model.meta import Key
from ballast_operator.pulse import PULSE, Pulse

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.05
TOPICS_PER_CYCLE = 1_000
RETRY_SECONDS = 2.0
FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 30.0


@dataclass
class Work:
    """What a cycle has to reconcile."""

    topics: set[Key] = field(default_factory=set)
    reassignments: bool = False
    cluster: bool = False

    def __bool__(self) -> bool:
        return bool(self.topics) or self.reassignments or self.cluster


class Part(StrEnum):
    """The parts of a cycle that may fail independently of each other."""

    TOPICS = "topics"
    REASSIGNMENTS = "Reassignments"
    CLUSTER = "cluster"


@dataclass
class Requeue:
    """What a cycle leaves to do, and within how many seconds; None waits for events. Parts that failed are retried with
    exponential backoff."""

    topics: set[Key] = field(default_factory=set)
    topics_seconds: float = RETRY_SECONDS
    reassignments_seconds: float | None = None
    cluster_seconds: float | None = None
    failed: set[Part] = field(default_factory=set)

    def reassignments_within(self, seconds: float) -> None:
        self.reassignments_seconds = _sooner(self.reassignments_seconds, seconds)

    def cluster_within(self, seconds: float) -> None:
        self.cluster_seconds = _sooner(self.cluster_seconds, seconds)

    def all_of(self, work: Work) -> None:
        """The cycle failed: everything has to be looked at again."""
        self.failed |= set(Part)
        self.topics |= work.topics
        self.topics_seconds = RETRY_SECONDS
        if work.reassignments:
            self.reassignments_within(RETRY_SECONDS)
        self.cluster_within(RETRY_SECONDS)


def _sooner(known: float | None, new: float) -> float:
    return new if known is None else min(known, new)


@dataclass
class Timers:
    """When each part is due again, on the worker's clock."""

    topics: set[Key] = field(default_factory=set)
    topics_at: float | None = None
    reassignments_at: float | None = None
    cluster_at: float | None = None

    @property
    def next(self) -> float | None:
        known = [at for at in (self.topics_at, self.reassignments_at, self.cluster_at) if at is not None]
        return min(known, default=None)

    def merge(self, requeue: Requeue, now: float, least: Mapping[Part, float]) -> None:
        """No part sooner than after so long."""
        if requeue.topics:
            self.topics |= requeue.topics
            self.topics_at = _sooner(self.topics_at, now + max(requeue.topics_seconds, least[Part.TOPICS]))
        if requeue.reassignments_seconds is not None:
            self.reassignments_at = _sooner(
                self.reassignments_at, now + max(requeue.reassignments_seconds, least[Part.REASSIGNMENTS])
            )
        if requeue.cluster_seconds is not None:
            self.cluster_at = _sooner(self.cluster_at, now + max(requeue.cluster_seconds, least[Part.CLUSTER]))

    def due(self, now: float) -> Work:
        """What is due by now; it is no longer scheduled then."""
        work = Work()
        if self.topics_at is not None and self.topics_at <= now:
            work.topics, self.topics, self.topics_at = self.topics, set(), None
        if self.reassignments_at is not None and self.reassignments_at <= now:
            work.reassignments, self.reassignments_at = True, None
        if self.cluster_at is not None and self.cluster_at <= now:
            work.cluster, self.cluster_at = True, None
        return work


class Cycle(Protocol):
    """Handles one batch of work of one cluster."""

    async def run(self, work: Work) -> Requeue: ...

    async def close(self) -> None: ...


class Worker:
    """The loop of one cluster. `pulse` tells a probe whether it is stuck, while `busy_since` says that it is busy."""

    def __init__(self, cluster: Key, cycle: Cycle, leads: Callable[[], bool], clock: Callable[[], float]) -> None:
        self.cluster = cluster
        self._cycle = cycle
        self._leads = leads
        self._clock = clock
        self._dirty = Work()
        self._wake = asyncio.Event()
        self._timers = Timers()
        self._failures = dict.fromkeys(Part, 0)
        self.busy_since: float | None = None
        self.pulse = Pulse(clock())
        self.dirty_since: float | None = None

    @property
    def depth(self) -> int:
        return len(self._dirty.topics) + self._dirty.reassignments + self._dirty.cluster

    @property
    def idle(self) -> bool:
        return not self._dirty and self.busy_since is None

    def add(self, topics: Iterable[Key] = (), reassignments: bool = False, cluster: bool = False) -> None:
        """Mark something dirty."""
        self._dirty.topics.update(topics)
        self._dirty.reassignments |= reassignments
        self._dirty.cluster |= cluster
        if self._dirty:
            self.dirty_since = self.dirty_since or self._clock()
            self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        PULSE.set(self.pulse)
        try:
            while True:
                await self._wait()
                if not self._leads() or not self._dirty:
                    continue
                await asyncio.sleep(GATHER_SECONDS)
                await self._cycle_once(self._take())
        finally:
            with contextlib.suppress(Exception):
                await self._cycle.close()

    async def _wait(self) -> None:
        if not (self._dirty and self._leads()):
            self._wake.clear()
            at = self._timers.next
            if self._dirty:
                # Leadership that lapses and returns within one renewal is not announced, so poll for it.
                at = _sooner(at, self._clock() + RETRY_SECONDS)
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that arrives together with the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if at is None else max(0.0, at - self._clock())):
                    await self._wake.wait()
        due = self._timers.due(self._clock())
        self.add(due.topics, due.reassignments, due.cluster)

    def _take(self) -> Work:
        topics = set(list(self._dirty.topics)[:TOPICS_PER_CYCLE])
        work = Work(topics, self._dirty.reassignments, self._dirty.cluster)
        self._dirty = Work(self._dirty.topics - topics)
        self.dirty_since = self._clock() if self._dirty else None
        return work

    async def _cycle_once(self, work: Work) -> None:
        self.busy_since = self.pulse.at = self._clock()
        try:
            requeue = await self._cycle.run(work)
        except Exception:
            log.exception("cluster %s: a cycle failed; it is tried again", self.cluster)
            requeue = Requeue()
            requeue.all_of(work)
        finally:
            self.busy_since = None
        self._failures = {part: many + 1 if part in requeue.failed else 0 for part, many in self._failures.items()}
        least = {part: _backoff(many) for part, many in self._failures.items()}
        self._timers.merge(requeue, self._clock(), least)


def _backoff(failures: int) -> float:
    return min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** (failures - 1)) if failures else 0.0
