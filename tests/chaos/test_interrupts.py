"""Ctrl-C and SIGTERM end a run as an interrupt, whatever is on the stack when they come."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import pytest
from e2e.processes import until_interrupted

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def code_of_others_turns_it_into_an_error() -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except KeyboardInterrupt:
        raise TypeError("expected configuration property name as type unicode string") from None


def code_of_others_swallows_it() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("work", [code_of_others_turns_it_into_an_error, code_of_others_swallows_it])
def test_an_interrupt_stays_one(work: Callable[[], None]) -> None:
    with pytest.raises(KeyboardInterrupt):
        until_interrupted(work)


def test_an_error_without_an_interrupt_stays_one_too() -> None:
    with pytest.raises(ZeroDivisionError):
        until_interrupted(lambda: 1 // 0)


def test_a_second_request_to_end_does_not_disturb_the_end() -> None:
    ended = []

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        until_interrupted(work)
    assert ended
