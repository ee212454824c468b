"""Times in objects are the API server's: a wrong clock where the operator runs makes nothing seem lost or over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import unused_port
from making import reassignment

from ballast_operator.apply.kubernetes import ApiUnavailableError, KubernetesApi
from ballast_operator.clock import ServerClock
from ballast_operator.handlers.reassignments import ReassignmentHandler
from ballast_operator.kubeconfig import ApiAccess
from ballast_operator.model.times import seconds_of

NINE = 1_767_258_000.0  # 2026-01-01T09:00:00Z
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Here:
    """The clocks of the operator's machine."""

    def __init__(self, wall: float) -> None:
        self.wall = wall
        self.steady = 5_000.0
        self.server = ServerClock(lambda: self.wall, lambda: self.steady)

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.mark.spec("OPR-04")
@pytest.mark.parametrize("wrong_by", [-86_400, -3, 0, 3, 3_600])
def test_the_api_servers_time_counts(wrong_by: float, caplog: pytest.LogCaptureFixture) -> None:
    here = Here(NINE + wrong_by)
    here.server.heard(None)
    here.server.heard("yesterday")
    assert seconds_of(here.server.now()) == NINE + wrong_by, "nothing else is known yet"
    here.server.heard("Thu, 01 Jan 2026 09:00:00 GMT")
    assert here.server.now() == "2026-01-01T09:00:00Z"
    here.passes(90)
    assert here.server.now() == "2026-01-01T09:01:30Z"
    # Answers tell whole seconds, and some are a while on their way.
    here.server.heard("Thu, 01 Jan 2026 09:01:29 GMT")
    assert here.server.now() == "2026-01-01T09:01:30Z"
    here.wall -= wrong_by  # somebody puts it right
    assert here.server.now() == "2026-01-01T09:01:30Z"
    here.server.heard("Thu, 01 Jan 2026 08:00:00 GMT")
    assert here.server.now() == "2026-01-01T08:00:00Z", "the server's own clock was set back"
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(" the API")[0] for text in told[:-1]] == {
        -86_400: ["the clock here is 86400 s behind"],
        3_600: ["the clock here is 3600 s ahead of"],
    }.get(int(wrong_by), [])


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[KubernetesApi]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = unused_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    api = KubernetesApi(ApiAccess(server=f"http://127.0.0.1:{port}"))
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


@pytest.mark.spec("OPR-04")
async def test_each_answer_tells_the_time_also_a_refusal() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"reason": "NotFound"}, status=404, headers={"Date": "Thu, 01 Jan 2026 09:00:00 GMT"})

    async with server(refuse) as api:
        assert await api.find("/api/v1/namespaces/default/pods/demo-0") is None
        assert api.clock.now().startswith("2026-01-01T09:00:0")


@pytest.mark.spec("OPR-04", "OPR-08")
async def test_an_answer_that_is_no_object_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands before the API server may answer in its place, and not as it would; who waits for the Lease, or
    lists, ended with it."""
    monkeypatch.setattr("ballast_operator.apply.kubernetes.FIRST_DELAY_SECONDS", 0.001)
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        page = request.path == "/page" or len(asked) < 3
        return web.Response(text="<html>Please log in" if page else '{"kind": "Pod"}')

    async with server(answer) as api:
        assert await api.get("/object") == {"kind": "Pod"}
        assert asked == ["/object"] * 3
        with pytest.raises(ApiUnavailableError, match="the answer is no object: <html>Please log in"):
            await api.get("/page")


@pytest.mark.spec("OPR-34")
@pytest.mark.parametrize(("measured_at", "due"), [("08:59:58", False), ("08:59:57", True), ("11:00:00", True)])
def test_progress_that_a_wrong_clock_has_measured_is_told_anew(measured_at: str, due: bool) -> None:
    """It was told nothing more of until that time had come."""
    clock = Here(NINE).server
    handler = ReassignmentHandler(reassignment().cluster, cast(Any, SimpleNamespace(now=clock.now)))
    before = reassignment(status={"progress": {"measuredAt": f"2026-01-01T{measured_at}Z"}}).status
    assert handler._progress_due(before) is due
