"""Whether a failed Reassignment would move something now: how often that is tried, and what is kept of it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.operator.making import topic_view, view

from ballast_operator.cache import Cache
from ballast_operator.handlers import second_tries
from ballast_operator.handlers.second_tries import PAUSE_SHARE, SecondTries
from ballast_operator.model.kafka import LogView
from ballast_operator.model.reassignment import Reassignment


@pytest.mark.spec("OPR-05", "OPR-23")
async def test_what_is_gone_is_forgotten_once_its_pause_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics come and go, and with them Reassignments of ever new names: each that had failed was kept for ever."""
    steps = itertools.count(0.0, 1.0)  # each plan takes a second
    monkeypatch.setattr(second_tries, "monotonic", lambda: next(steps))
    cache = Cache()

    def failed(name: str) -> Reassignment:
        meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1"}
        spec: dict[str, Any] = {"clusterRef": {"name": "demo"}, "drainBrokers": [2]}
        _, found = cache.put_reassignment({"metadata": meta, "spec": spec, "status": {"phase": "Failed"}})
        assert found is not None
        return found

    logs = {("orders", 0, broker): LogView("/a", 1) for broker in (0, 2)}
    seen = view({"orders": topic_view((0, 2))}, logs)
    tries = SecondTries(cache)
    stays = failed("stays")
    assert await tries.would_move(stays, seen)
    for number in range(100):
        one = failed(f"one-{number}")
        assert await tries.would_move(one, seen)
        cache.remove_reassignment(one.meta.key, one.meta.uid)
        assert not await tries.would_move(one, seen), "another of its name would be tried without a pause"
    assert len(tries._next) <= PAUSE_SHARE + 2
    assert "stays" in tries._next, "who was tried before comes after the others"
