"""An object whose spec cannot be read: a list in the config of a KafkaTopic, say, which its schema cannot refuse."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.operator.making import NOW
from tests.operator.test_left_behind import NOBODY, body

from ballast_operator.runtime import Runtime

REFERENCE = {"clusterRef": {"name": "demo"}}
LIST = {**REFERENCE, "deletionPolicy": "Delete", "config": {"cleanup.policy": ["compact", "delete"]}}
LATER = "2026-02-01T00:00:00Z"


@pytest.mark.spec("OPR-02")
async def test_of_one_that_was_changed_and_cannot_be_read_either_the_status_speaks_of_the_present_spec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It spoke of the former one for ever, so that Argo CD showed Progressing, and Flux waited."""
    runtime, written = Runtime(NOBODY), list[dict[str, Any]]()

    async def merge(_: str, patch: dict[str, Any]) -> dict[str, Any]:
        written.append(patch["status"])
        return {}

    async def hear(generation: int, status: dict[str, Any]) -> None:
        found = body("orders", LIST, status, resourceVersion=str(10 * generation + len(written)), generation=generation)
        runtime.heard("KafkaTopic", found)
        await asyncio.gather(*runtime._telling)

    monkeypatch.setattr(runtime, "_acts_in", lambda _: True)
    monkeypatch.setattr(runtime, "_now", lambda: NOW)
    monkeypatch.setattr(runtime.api, "merge", merge)
    await hear(1, {})
    monkeypatch.setattr(runtime, "_now", lambda: LATER)
    await hear(1, written[-1])
    assert len(written) == 1
    await hear(2, written[-1])
    assert [one["observedGeneration"] for one in written] == [1, 2]
    assert {one["observedGeneration"] for one in written[-1]["conditions"]} == {2}
    assert {one["lastTransitionTime"] for one in written[-1]["conditions"]} == {NOW}
    await hear(2, written[-1])
    assert len(written) == 2
    await runtime.stop()
