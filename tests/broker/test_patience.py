"""A shutdown does not wait for ever for a hung disk."""

from __future__ import annotations

import asyncio

import pytest

from ballast_broker import patience
from ballast_broker.patience import patiently


@pytest.mark.spec("LOG-32")
async def test_what_does_not_end_is_left_alone_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "LONGEST_WAIT_S", 0.01)
    ended = asyncio.Event()

    async def work() -> None:
        await ended.wait()

    going = asyncio.ensure_future(work())
    await patiently(going, "replication")
    assert "replication did not end within 0.01 s" in caplog.text
    assert not going.done()
    ended.set()
    await going


async def test_what_ends_is_waited_for_and_what_fails_is_told() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await patiently(fail(), "work")
