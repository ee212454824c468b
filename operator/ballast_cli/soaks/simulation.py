"""Runs thousands of schedules of the simulation, in two processes."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import cast

TIMES = 20_000
WORKERS = 2
SCHEDULES_PER_LINE = 50


def play(first: int, times: int) -> int:
    """Run every seed of the range; returns the exit code, 1 if any failed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # workers must not outlive it
    began = time.monotonic()
    failed: list[int] = []
    played = 0
    try:
        with _workers() as workers:
            print(f"{times} schedules from seed {first} on, on {WORKERS} processes", flush=True)
            for seed, told in _played(workers, iter(range(first, first + times))):
                played += 1
                if told is not None:
                    failed.append(seed)
                    print(f"\n{told}", flush=True)
                if played % SCHEDULES_PER_LINE == 0:
                    took = time.monotonic() - began
                    print(f"{played} of {times} schedules after {took:.0f} s, {len(failed)} failed", flush=True)
    except KeyboardInterrupt:
        print(f"interrupted after {played} of {times} schedules; failed: {sorted(failed) or 'none'}", flush=True)
        raise
    took = time.monotonic() - began
    verdict = f"seeds {', '.join(map(str, sorted(failed)))} FAILED" if failed else "everything held"
    print(f"{times} schedules, seeds {first} to {first + times - 1}, in {took:.0f} s: {verdict}")
    return 1 if failed else 0


def _played(workers: list[Connection], seeds: Iterator[int]) -> Iterator[tuple[int, str | None]]:
    """Yield each seed, as a worker finishes it, with its failure report, or None if it passed."""
    busy: dict[Connection, int] = {}

    def give(worker: Connection) -> None:
        seed = next(seeds, None)
        if seed is not None:
            worker.send(seed)
            busy[worker] = seed

    for worker in workers:
        give(worker)
    while busy:
        for worker in cast(list[Connection], wait(busy)):
            seed = busy.pop(worker)
            try:
                told: str | None = worker.recv()
            except EOFError:
                raise RuntimeError(f"the process that played seed {seed} ended") from None
            yield seed, told
            give(worker)


@contextmanager
def _workers() -> Iterator[list[Connection]]:
    """Worker processes that share only pipes with this one, no threads or locks: safe to terminate at any moment."""
    spawn = multiprocessing.get_context("spawn")
    ends, processes = [], []
    try:
        for _ in range(WORKERS):
            here, there = spawn.Pipe()
            process = spawn.Process(target=_work, args=(there,), daemon=True)
            process.start()
            there.close()
            ends.append(here)
            processes.append(process)
        yield ends
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _work(connection: Connection) -> None:
    _leave_interrupts_to_the_parent()
    with suppress(EOFError):  # the parent is gone
        while True:
            connection.send(_play(connection.recv()))


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    os.nice(5)


def _play(seed: int) -> str | None:
    told: str | None = importlib.import_module("tests.sim.test_many").fails(seed)
    return told
