"""One cluster that all scenarios share that leave it as they found it; it stops after this directory's last test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.operator.world import World

HERE = Path(__file__).parent
running: list[World] = []


@pytest.fixture(scope="session")
def ballast_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three brokers with three volumes each, and an operator."""
    found = World(tmp_path_factory.mktemp("world"))
    running.append(found)
    found.start()
    volumes = [{"name": name, "size": "4Gi"} for name in ("a", "b", "c")]
    found.start_cluster(brokers=3, volumes=volumes, resyncSeconds=2)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or HERE not in nextitem.path.parents:
        while running:
            running.pop().stop()
    elif nextitem.path != item.path:
        for world in running:
            world.hang_up()
