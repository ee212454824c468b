"""A bench of coordinators whose server fails ends at once, and tells which server it was and what its log says."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bench import coordinators
from bench.coordinators import Step
from bench.servers import Server, ServerFailed
from confluent_kafka import KafkaError, KafkaException


class Broken(Server):
    name = "broken"

    def command(self, properties: object) -> list[str]:
        return [sys.executable, "-c", "print('the disk is on fire', flush=True); import time; time.sleep(600)"]


@pytest.fixture
def server() -> Iterator[Server]:
    broken = Broken()
    broken.spawn()
    assert broken.process is not None
    deadline = time.monotonic() + 50
    while not broken.tail() and time.monotonic() < deadline:
        time.sleep(0.01)
    yield broken
    broken.process.kill()
    broken.process.wait()
    broken.remove()


def refused() -> None:
    raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "leader -1"))


def endless(failed: threading.Event) -> None:
    def times_out(_: float) -> None:
        time.sleep(0.01)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    coordinators._in_pieces(times_out, failed)


@pytest.mark.timeout(120)
def test_a_step_that_fails_ends_all_clients(server: Server) -> None:
    clients = 0

    @contextmanager
    def prepare(_: Server, failed: threading.Event) -> Iterator[Step]:
        nonlocal clients
        clients += 1
        after: Callable[[], None] = [refused, lambda: endless(failed), lambda: time.sleep(0.01)][clients - 1]
        connected = False

        def step() -> None:
            nonlocal connected
            if connected:
                after()
            connected = True

        yield step

    began = time.monotonic()
    with pytest.raises(ServerFailed, match=r"(?s)broken: .*leader -1.*the disk is on fire"):
        coordinators._steps(server, 3, prepare, 3600.0)
    assert time.monotonic() - began < 50


@pytest.mark.timeout(120)
def test_a_group_that_one_member_cannot_join_fails(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "_new_topic", lambda *_: "topic")

    @contextmanager
    def consumer(server: Server, **settings: Any) -> Iterator[Any]:
        refused()
        yield None

    monkeypatch.setattr(coordinators, "_consumer", consumer)
    with pytest.raises(ServerFailed, match=r"(?s)broken: .*leader -1.*the disk is on fire"):
        coordinators._group(server, "classic")


@pytest.mark.timeout(120)
def test_a_group_that_is_never_complete_is_no_figure(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "_new_topic", lambda *_: "topic")
    monkeypatch.setattr(coordinators, "LIMIT_S", 0.2)

    class Idle:
        def subscribe(self, _: list[str]) -> None: ...
        def poll(self, seconds: float) -> None:
            time.sleep(seconds)

        def assignment(self) -> list[object]:
            return []

    @contextmanager
    def consumer(server: Server, **settings: Any) -> Iterator[Any]:
        yield Idle()

    monkeypatch.setattr(coordinators, "_consumer", consumer)
    with pytest.raises(ServerFailed, match=r"(?s)broken: a group of 20 is not complete.*the disk is on fire"):
        coordinators._group(server, "consumer")
