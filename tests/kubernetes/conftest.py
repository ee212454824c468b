"""Provides one Kubernetes for all scenarios of a run; BALLAST_E2E_PROVIDER names the provider (default: host)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest
from e2e.kubernetes.providers import PROVIDERS, ProviderError, running
from e2e.kubernetes.story import ensure_cluster, ensure_operator
from e2e.kubernetes.world import World
from e2e.sockets import forget_sockets

HERE = Path(__file__).parent


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    """Raise on SIGTERM or SIGHUP, so that the node is taken down before this process ends."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt(f"signal {number}")


@pytest.fixture(scope="session")
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    provider = PROVIDERS[os.environ.get("BALLAST_E2E_PROVIDER", "host")](lambda text: print(f"  {text}", flush=True))
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with running(provider):
            yield World(provider)
    except ProviderError as error:
        if runs_beside_others(request.config):
            pytest.fail(str(error), pytrace=False)  # fails each test that needs it; the others go on
        pytest.exit(str(error), returncode=1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.fixture
def installed(world: World) -> World:
    """A world with the operator and a Ready cluster, whatever the last scenario has left."""
    ensure_operator(world)
    ensure_cluster(world)
    return world


@pytest.fixture
def host(installed: World) -> World:
    """The same, on a node that tests may break."""
    if installed.provider.name != "host":
        pytest.skip(f"provider {installed.provider.name} lets nobody at its nodes")
    return installed


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests that need the node last; in parallel runs first, as they take longer than all others. Of these, the
    story comes first: a cluster must become Ready where none was."""
    beside = runs_beside_others(config)
    items.sort(key=lambda item: (needs_the_node(item) != beside, item.path.name != "test_story.py"))


def needs_the_node(item: pytest.Item) -> bool:
    return item.path.parent == HERE and item.get_closest_marker("kubernetes") is not None


def runs_beside_others(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    forget_sockets()
