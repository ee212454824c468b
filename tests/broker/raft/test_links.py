"""Connections between members of the quorum while processes stall."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest
from tests.sim.loop import NODE, SimLoop, run

from ballast_broker.raft.links import PeerLink
from ballast_broker.raft.voters import Endpoint


class Peer:
    """A network and its channel in one; it answers every request after a second."""

    def __init__(self) -> None:
        self.closed = False

    async def connect(self, host: str, port: int, *, timeout_s: float) -> Peer:
        self.closed = False
        return self

    async def call(self, request: Any, version: int) -> str:
        await asyncio.sleep(1.0)
        if self.closed:
            raise ConnectionResetError
        return f"answer to {request}"

    def close(self) -> None:
        self.closed = True


def ask_and_stall(timeout_s: float, stall_s: float) -> tuple[Any, Peer]:
    """Send a request, and stall half a second later."""
    peer = Peer()

    async def ask() -> Any:
        link = PeerLink(peer, Endpoint("peer", 1), timeout_s)
        return (await asyncio.gather(link.call("a fetch", 0), return_exceptions=True))[0]

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        context = contextvars.copy_context()
        context.run(NODE.set, "n1")
        asking = loop.create_task(ask(), context=context)
        await asyncio.sleep(0.5)
        loop.stall("n1", stall_s)
        return await asking

    return run(main()), peer


@pytest.mark.spec("CLU-02")
def test_an_answer_that_came_while_the_process_stood_still_is_used() -> None:
    answer, peer = ask_and_stall(timeout_s=2.0, stall_s=3.0)
    assert answer == "answer to a fetch"
    assert not peer.closed


def test_without_an_answer_in_time_the_connection_ends() -> None:
    answer, peer = ask_and_stall(timeout_s=0.8, stall_s=0.1)
    assert isinstance(answer, TimeoutError)
    assert peer.closed


@pytest.mark.spec("CLU-02")
def test_who_gives_up_takes_the_connection_from_nobody_else() -> None:
    """The requests of others on it are being handled already, and would be handled twice."""

    async def main() -> None:
        peer = Peer()
        link = PeerLink(peer, Endpoint("peer", 1), 5.0)
        first, second = (asyncio.ensure_future(link.call(name, 0)) for name in ("first", "second"))
        await asyncio.sleep(0.5)
        first.cancel()
        assert await second == "answer to second"
        assert not peer.closed
        alone = asyncio.ensure_future(link.call("alone", 0))
        await asyncio.sleep(0.5)
        alone.cancel()
        await asyncio.wait([alone])
        assert peer.closed  # the next request need not wait behind it

    run(main())
