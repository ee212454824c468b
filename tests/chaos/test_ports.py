"""Ports of brokers: nobody else takes one before its broker listens, or while it is down."""

from __future__ import annotations

import pytest
from e2e.processes import free_ports


def test_no_port_is_given_to_two(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    for worker in ("gw0", "gw1", "gw2"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        given += [port for _ in range(50) for port in free_ports(3)]
    assert len(set(given)) == 450


def test_who_needs_none_gets_none() -> None:
    assert free_ports(0) == []
