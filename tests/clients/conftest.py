"""Provides a real broker for third-party clients: one for all tests that do not need their own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.sockets import forget_sockets
from tests.clients.running import RunningBroker

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    running = RunningBroker(tmp_path_factory.mktemp("broker")).start()
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log_text(), running.log_text()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses."""
    return re.sub(r"[^a-zA-Z0-9._-]", "-", f"{request.node.name}-{next(_numbers)}")[-200:]


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Callable[..., RunningBroker]]:
    """Makes brokers that a test may stop, kill and restart; those still running are killed after it."""
    made: list[RunningBroker] = []

    def make(**properties: str | int) -> RunningBroker:
        made.append(RunningBroker(tmp_path / f"broker-{len(made)}", **properties))
        return made[-1].start()

    yield make
    for running in made:
        running.kill()


@pytest.fixture(autouse=True)
def sockets_are_forgotten() -> Iterator[None]:
    """Clean up within the test whose clients left sockets open."""
    yield
    forget_sockets()
