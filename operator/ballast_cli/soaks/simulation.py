"""Thousands of schedules of the simulation, on two processes."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

TIMES = 20_000
WORKERS = 2
SCHEDULES_PER_LINE = 50


def play(first: int, times: int) -> int:
    """Every seed of the range; the exit code is 1 where one failed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # workers must not outlive it
    began = time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    failed: list[int] = []
    played = 0
    pool = ProcessPoolExecutor(WORKERS, mp_context=spawn, initializer=_leave_interrupts_to_the_parent)
    try:
        results = {pool.submit(_play, seed): seed for seed in range(first, first + times)}
        for result in as_completed(results):
            played += 1
            told = result.result()
            if told is not None:
                failed.append(results[result])
                print(f"\n{told}", flush=True)
            if played % SCHEDULES_PER_LINE == 0:
                took = time.monotonic() - began
                print(f"{played} of {times} schedules after {took:.0f} s, {len(failed)} failed", flush=True)
    except KeyboardInterrupt:
        print(f"interrupted after {played} of {times} schedules; failed: {sorted(failed) or 'none'}", flush=True)
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    took = time.monotonic() - began
    verdict = f"seeds {', '.join(map(str, sorted(failed)))} FAILED" if failed else "everything held"
    print(f"{times} schedules, seeds {first} to {first + times - 1}, in {took:.0f} s: {verdict}")
    return 1 if failed else 0


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    os.nice(5)


def _play(seed: int) -> str | None:
    told: str | None = importlib.import_module("tests.sim.test_many").fails(seed)
    return told
