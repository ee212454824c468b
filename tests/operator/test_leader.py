"""What the operator says of its Lease."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from ballast_operator import leader as leader_module
from ballast_operator.apply.kubernetes import KubernetesApi
from ballast_operator.leader import RETRY_SECONDS, Leader


class Silent:
    failure = ""

    async def find(self, _path: str) -> dict[str, Any] | None:
        await asyncio.Event().wait()
        return None


async def test_an_api_server_that_says_nothing_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The line ended after its colon."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(leader_module, "RENEW_DEADLINE_SECONDS", RETRY_SECONDS + 0.01)
    running = asyncio.create_task(Leader(cast(KubernetesApi, Silent()), "own", "lease", lambda _: None).run())
    async with asyncio.timeout(10):
        while not caplog.messages:  # noqa: ASYNC110 - nobody tells that something was logged
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait({running})
    assert caplog.messages == ["the Lease could not be renewed: the API server does not answer"]
